"""Headers on every answer, and a limit on every request's body."""

import contextlib

from starlette.datastructures import MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_BODY_BYTES = 256 << 20
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class _TooLarge(Exception):
    pass


class Protection:
    """ASGI middleware: adds HEADERS, and answers 413 once a body is larger than `limit` bytes, announced or not."""

    def __init__(self, app: ASGIApp, limit: int = MAX_BODY_BYTES) -> None:
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body = _CountedBody(receive, self._limit)

        async def guarded_send(message: Message) -> None:
            if body.too_large:  # the framework answers a body it could not read with something less clear
                return
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        with contextlib.suppress(_TooLarge):
            await self._app(scope, body.receive, guarded_send)
        if body.too_large:
            error = {"code": "too_large", "message": f"a request's body may have {self._limit} bytes"}
            await JSONResponse({"error": error}, status_code=413, headers=HEADERS)(scope, receive, send)


class _CountedBody:
    def __init__(self, receive: Receive, limit: int) -> None:
        self._receive = receive
        self._left = limit
        self.too_large = False

    async def receive(self) -> Message:
        message = await self._receive()
        self._left -= len(message.get("body", b""))
        if self._left < 0:
            self.too_large = True
            raise _TooLarge
        return message
