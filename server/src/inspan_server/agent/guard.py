"""Who may ask: the bearer token, if there is one, before anything else is looked at."""

from __future__ import annotations

import hmac
import ipaddress

from starlette.types import ASGIApp, Receive, Scope, Send

from inspan_server.agent.bodies import JsonResponse

OPEN_PATHS = frozenset({"/healthz", "/readyz"})
"""Probes have no token, and learn nothing but whether the server works."""

ADMIN_PREFIX = "/admin/"


class BearerGuard:
    """Answers 401 to whoever does not show the token. The verbs of operators have a key of their own.

    Args:
        token: What clients show; None: anybody may ask.
        admin_key: What the ``inspan sessions`` verbs show; None: there are none.
    """

    def __init__(self, app: ASGIApp, token: str | None, admin_key: str | None) -> None:
        self._app = app
        self._token = None if token is None else b"bearer " + token.encode()
        self._admin_key = None if admin_key is None else b"bearer " + admin_key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See the ASGI specification."""
        if scope["type"] == "http" and not self._may(scope):
            detail = "the Authorization header shows no token that is taken here"
            refusal = JsonResponse(401, {"detail": detail})
            refusal.headers["WWW-Authenticate"] = "Bearer"
            await refusal(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _may(self, scope: Scope) -> bool:
        path = scope["path"]
        if path.startswith(ADMIN_PREFIX):
            return self._admin_key is not None and _shows(scope, self._admin_key)
        return self._token is None or path in OPEN_PATHS or _shows(scope, self._token)


def _shows(scope: Scope, expected: bytes) -> bool:
    given = [value for name, value in scope["headers"] if name == b"authorization"]
    if len(given) != 1:
        return False
    scheme, _, token = given[0].partition(b" ")
    # In constant time, whatever was sent.
    return hmac.compare_digest(scheme.lower() + b" " + token.strip(), expected)


def is_loopback(host: str) -> bool:
    """Whether only programs of this machine reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
