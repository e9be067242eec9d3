"""The pages for people: log in, compare, and see how far the batches are. The comparing page's source holds no task."""

import secrets
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import parse_qs

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from include.annotation.access import SESSION_COOKIE, check_secret, session_of
from include.annotation.errors import Refused
from include.annotation.identity import SESSION_HOURS
from include.annotation.progress import all_progress
from include.annotation.service import Service, service_of

router = APIRouter(include_in_schema=False)
Running = Annotated[Service, Depends(service_of)]

LOGIN_COOKIE = "annotation_login"
_MAX_FORM_BYTES = 10_000
_HOMES = {"annotator": "/annotate", "pipeline": "/", "admin": "/"}
_templates = Environment(
    loader=FileSystemLoader(Path(__file__).with_name("templates")),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


def percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.0f} %"


def figure(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def minute(value: str | None) -> str:
    """A stored time as people read it, to the minute."""
    return "–" if value is None else f"{value[:10]} {value[11:16]} UTC"


_templates.filters.update(percent=percent, minute=minute, figure=figure)


def _page(template: str, /, status: int = 200, **values: Any) -> HTMLResponse:
    return HTMLResponse(_templates.get_template(template).render(**values), status_code=status)


def _go(path: str) -> RedirectResponse:
    return RedirectResponse(path, status_code=303)


def _set_cookie(response: Response, service: Service, name: str, value: str, hours: int) -> None:
    response.set_cookie(name, value, max_age=hours * 3600, httponly=True, samesite="lax", secure=service.config.https, path="/")


@router.get("/login")
def login_page(request: Request, service: Running) -> Response:
    login = session_of(request, service)
    if login and login[1].role in _HOMES:
        return _go(_HOMES[login[1].role])
    return _login_form(service)


def _login_form(service: Service, status: int = 200, problem: str = "") -> Response:
    secret = secrets.token_urlsafe(32)
    response = _page("login.html", status=status, secret=secret, problem=problem)
    _set_cookie(response, service, LOGIN_COOKIE, secret, 1)
    return response


async def _form(request: Request) -> dict[str, str]:
    """A small URL-encoded form. (A dependency, so that the handlers themselves may block on the database.)"""
    body = await request.body()
    if len(body) > _MAX_FORM_BYTES:
        raise Refused("too_large", "this form is too large")
    try:
        return {key: values[-1] for key, values in parse_qs(body.decode("ascii"), strict_parsing=bool(body)).items()}
    except ValueError as error:
        raise Refused("invalid", "this is not a form") from error


Form = Annotated[dict[str, str], Depends(_form)]


@router.post("/login")
def log_in(request: Request, service: Running, form: Form) -> Response:
    """Opens a session for a token; the form's secret and its cookie must be the same (else another site sent it)."""
    expected = request.cookies.get(LOGIN_COOKIE, "")
    if not expected or form.get("secret") != expected:
        return _login_form(service, 403, "The page was open for too long. Please try again.")
    account = service.accounts.of_token(form.get("token", "").strip())
    if account is None or account.role not in _HOMES:
        return _login_form(service, 401, "This token is not known here, or it belongs to a program.")
    response = _go(_HOMES[account.role])
    _set_cookie(response, service, SESSION_COOKIE, service.identities.open_session(account), SESSION_HOURS)
    response.delete_cookie(LOGIN_COOKIE, path="/")
    return response


@router.post("/logout")
def log_out(request: Request, service: Running, form: Form) -> Response:
    login = session_of(request, service)
    if login:
        check_secret(form.get("csrf", ""), login[0].csrf)
        service.identities.close_session(request.cookies[SESSION_COOKIE])
    response = _go("/login")
    response.delete_cookie(SESSION_COOKIE, path="/")
    return response


@router.get("/annotate")
def annotate_page(request: Request, service: Running) -> Response:
    login = session_of(request, service)
    if login is None:
        return _go("/login")
    session, account = login
    if account.role != "annotator":
        return _go(_HOMES.get(account.role, "/login"))
    return _page("annotate.html", csrf=session.csrf, name=account.display_name)


@router.get("/")
def status_page(request: Request, service: Running) -> Response:
    """How far each batch is, for the pipeline's people and the administrator; annotators are sent to their work."""
    login = session_of(request, service)
    if login is None:
        return _go("/login")
    session, account = login
    if account.role not in ("pipeline", "admin"):
        return _go(_HOMES.get(account.role, "/login"))
    return _page("status.html", csrf=session.csrf, name=account.display_name, batches=all_progress(service.database))
