"""The console: pages and an API under Airflow's API server, mounted at /alignment.

A mounted app inherits no authentication: every route here asks for Airflow's user.
"""

from airflow.api_fastapi.core_api.security import requires_authenticated
from fastapi import Depends, FastAPI, Request
from fastapi.responses import JSONResponse

from include.console import api, pages
from include.domain.errors import AlignmentError


def create_app() -> FastAPI:
    """The app that the plugin mounts."""
    app = FastAPI(title="Alignment", docs_url=None, redoc_url=None, openapi_url=None, dependencies=[Depends(requires_authenticated())])
    app.include_router(pages.router)
    app.include_router(api.router)

    @app.exception_handler(AlignmentError)
    async def refused(request: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"error": type(error).__name__, "message": str(error)}, status_code=404)

    return app
