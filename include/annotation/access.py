"""Who is asking, and whether they may. Programs show a token; people a cookie, and for changes a second secret beside it."""

import hmac
from collections.abc import Callable
from dataclasses import dataclass

from fastapi import Request

from include.annotation.accounts import Account
from include.annotation.assignment import Annotator
from include.annotation.errors import Forbidden, Unauthenticated
from include.annotation.identity import Session
from include.annotation.service import Service, service_of

SESSION_COOKIE = "annotation_session"
CSRF_HEADER = "x-csrf-token"
_SAFE_METHODS = ("GET", "HEAD")
_POOLS = {"annotator": "human", "verifier": "verifier"}


@dataclass(frozen=True)
class Caller:
    """An account that has shown who it is, and its pseudonym."""

    account: Account
    pseudonym: str

    @property
    def annotator(self) -> Annotator:
        return Annotator(self.pseudonym, self.account.kind or "", _POOLS[self.account.role])


def session_of(request: Request, service: Service) -> tuple[Session, Account] | None:
    """The login of a person's browser: None if there is none, it has run out, or its token is no longer in the file."""
    secret = request.cookies.get(SESSION_COOKIE)
    session = service.identities.session(secret) if secret else None
    account = service.accounts.of_hash(session.token_sha256) if session else None
    return (session, account) if session and account else None


def caller_of(request: Request) -> Caller:
    """Raises Unauthenticated, or Forbidden for a change by cookie without the session's CSRF token."""
    service = service_of(request)
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme:
        account = service.accounts.of_token(token.strip()) if scheme.lower() == "bearer" else None
        if account is None:
            raise Unauthenticated("unknown_token", "the token is not known here")
    else:
        login = session_of(request, service)
        if login is None:
            raise Unauthenticated("no_token", "send `Authorization: Bearer TOKEN`, or log in at /login")
        session, account = login
        if request.method not in _SAFE_METHODS:
            check_secret(request.headers.get(CSRF_HEADER, ""), session.csrf)
    return Caller(account, service.identities.pseudonym_of(account))


def check_secret(shown: str, expected: str) -> None:
    if not hmac.compare_digest(shown.encode(), expected.encode()):
        raise Forbidden("csrf", "this did not come from the service's own page: load the page again")


def only(*roles: str) -> Callable[[Request], Caller]:
    """A dependency that lets only these roles in."""

    def check(request: Request) -> Caller:
        caller = caller_of(request)
        if caller.account.role not in roles:
            raise Forbidden("role", f"role {caller.account.role} may not do this; {' or '.join(roles)} may")
        return caller

    return check
