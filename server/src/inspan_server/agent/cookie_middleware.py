"""Reads the session cookie of every request, and sets one on every answer, errors included."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from inspan_server.agent.cookies import Marker, SessionCookies

_SCOPE_KEY = "inspan.marker"


class CookieMiddleware:
    """Keeps a client's marker as it came, unless a handler called `set_marker`."""

    def __init__(self, app: ASGIApp, cookies: SessionCookies) -> None:
        self._app = app
        self._cookies = cookies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See the ASGI specification."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope[_SCOPE_KEY] = self._cookies.read(
            value.decode("latin-1") for name, value in scope["headers"] if name == b"cookie"
        )

        async def send_with_cookie(message: Message) -> None:
            if message["type"] == "http.response.start":
                cookie = self._cookies.set_header(scope[_SCOPE_KEY]).encode("latin-1")
                message = {**message, "headers": [*message.get("headers", ()), (b"set-cookie", cookie)]}
            await send(message)

        await self._app(scope, receive, send_with_cookie)


def marker_of(request: Request) -> Marker:
    """What the request's cookie says."""
    marker: Any = request.scope[_SCOPE_KEY]
    assert isinstance(marker, Marker)
    return marker


def set_marker(request: Request, session_id: str) -> None:
    """Bind the client to a session from this answer on."""
    request.scope[_SCOPE_KEY] = Marker(session_id=session_id)
