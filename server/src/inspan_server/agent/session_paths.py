"""The paths of sessions, found without a router: they are asked for thousands of times a second."""

from __future__ import annotations

import re
from collections.abc import Iterable

from starlette.requests import Request
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from inspan_server.agent.bodies import LIMITS_KEY, BodyLimits

ACTIVATION = re.compile(r"(/ng-rollout/)([^/]+)((?:/training-token-capture)?/v1/responses)", re.ASCII)


class SessionPaths:
    """Answers POST requests by their routes' own endpoints, bounds their bodies, and hands all others on."""

    def __init__(self, app: ASGIApp, routes: Iterable[Route], body_limits: BodyLimits) -> None:
        self._app = app
        self._body_limits = body_limits
        self._endpoints = {route.path: route.endpoint for route in routes if "POST" in (route.methods or ())}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See the ASGI specification."""
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        path = scope["path"]
        scope[LIMITS_KEY] = self._body_limits
        if path.startswith("/ng-rollout/") and (match := ACTIVATION.fullmatch(path)):
            path = f"{match[1]}{{capture_key}}{match[3]}"
            scope["path_params"] = {"capture_key": match[2]}
        endpoint = self._endpoints.get(path)
        if endpoint is None:
            await self._app(scope, receive, send)
            return
        response = await endpoint(Request(scope, receive))
        await response(scope, receive, send)
