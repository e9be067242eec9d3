"""The console: pages and an API under Airflow's API server, mounted at /alignment.

A mounted app inherits no authentication: every route here asks for Airflow's user, and for a right of theirs (`rights`).
"""

from collections.abc import Awaitable, Callable

from airflow.api_fastapi.core_api.security import requires_authenticated
from fastapi import Depends, FastAPI, Request
from fastapi.responses import JSONResponse, Response

from include.console import api, pages, rights, run_routes
from include.console.errors import status_of
from include.console.run_body import FieldRefused
from include.domain.errors import AlignmentError

PAGE_POLICY = "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; base-uri 'none'; frame-ancestors 'self'"
"""Our own pages need no script."""


def create_app() -> FastAPI:
    """The app that the plugin mounts."""
    app = FastAPI(title="Alignment", docs_url=None, redoc_url=None, openapi_url=None, dependencies=[Depends(requires_authenticated())])
    app.include_router(pages.router, dependencies=[rights.RUNS])
    app.include_router(api.router, dependencies=[rights.RUNS])
    app.include_router(run_routes.router)

    @app.middleware("http")
    async def harden(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        answer = await call_next(request)
        answer.headers.setdefault("Content-Security-Policy", PAGE_POLICY)
        answer.headers["X-Content-Type-Options"] = "nosniff"
        return answer

    @app.exception_handler(AlignmentError)
    async def refused(request: Request, error: Exception) -> Response:
        if "/v1/" in request.url.path:
            named = {"field": error.field} if isinstance(error, FieldRefused) else {}
            return JSONResponse({"error": type(error).__name__, **named, "message": str(error)}, status_code=status_of(error))
        return pages.problem(request, error)

    return app
