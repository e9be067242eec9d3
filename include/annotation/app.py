"""The FastAPI application around an opened service."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.staticfiles import StaticFiles

from include.annotation import api, pages
from include.annotation.errors import ConfigurationError, ServiceError
from include.annotation.protection import Protection
from include.annotation.service import Service
from include.domain.errors import RecordError

_log = logging.getLogger("uvicorn.error")
_STATIC = Path(__file__).with_name("static")
_SHOWN_ERRORS = 5


def create_app(service: Service) -> FastAPI:
    """The whole service as an ASGI app; it closes the databases when it stops."""

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        yield
        service.database.close()
        service.identities.close()

    # Interactive docs load scripts from elsewhere, which the content security policy refuses anyway.
    app = FastAPI(title="Annotation service", version="1", lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.service = service
    app.add_middleware(Protection)
    app.include_router(api.router)
    app.include_router(pages.router)
    app.mount("/static", StaticFiles(directory=_STATIC), name="static")
    app.add_exception_handler(ServiceError, _on_service_error)
    app.add_exception_handler(RequestValidationError, _on_invalid_request)
    app.add_exception_handler(RecordError, _on_record_error)
    app.add_exception_handler(ConfigurationError, _on_configuration_error)

    @app.get("/healthz")
    def healthz() -> dict[str, str]:
        with service.database.read() as connection:
            connection.exec_driver_sql("SELECT 1")
        return {"status": "ok", "schema": service.schema}

    return app


def _error(status: int, code: str, message: str) -> JSONResponse:
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else None
    return JSONResponse({"error": {"code": code, "message": message}}, status_code=status, headers=headers)


def _on_service_error(_request: Request, error: Any) -> JSONResponse:
    return _error(error.status, error.code, str(error))


def _on_record_error(_request: Request, error: Any) -> JSONResponse:
    return _error(422, "invalid", str(error))


def _on_configuration_error(_request: Request, error: Any) -> JSONResponse:
    _log.error("%s", error)
    return _error(503, "configuration", "the service is not set up right; its log says what to do")


def _on_invalid_request(_request: Request, error: Any) -> JSONResponse:
    """Names the fields, and never sends back what was in them."""
    found = [f"{'.'.join(str(part) for part in e['loc'])}: {e['msg']}" for e in error.errors()]
    more = f" (and {len(found) - _SHOWN_ERRORS} more)" if len(found) > _SHOWN_ERRORS else ""
    return _error(422, "invalid", "; ".join(found[:_SHOWN_ERRORS]) + more)
