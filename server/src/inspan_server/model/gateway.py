"""The Model Server: two APIs under a rollout prefix, in front of a script or of a real model; all recorded.

Routes, with or without the ``/training-token-capture`` segment after the key::

    POST /ng-rollout/<rollout key>/v1/chat/completions     streaming (SSE) and plain
    POST /ng-rollout/<rollout key>/v1/responses            streaming (SSE) and plain
    GET  /ng-rollout/<rollout key>/v1/models                answered, not recorded: it is no model call

A call without the prefix belongs to no rollout: it is answered 404 and counted as a stray. A script that
has no more replies is answered 400, which no harness retries, of type ``script_exhausted``.
"""

from __future__ import annotations

import hmac
import re
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

from attrs import define, field
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from inspan_core.errors import UsageError
from inspan_server.model.answers import JsonAnswer
from inspan_server.model.call import (
    CallInProgress,
    Refusal,
    parse_chat_request,
    parse_responses_request,
    read_body,
)
from inspan_server.model.capture import Capture
from inspan_server.model.chat import openai_error
from inspan_server.model.proxied import ProxiedModel
from inspan_server.model.rollouts import COOKIE, Rollout
from inspan_server.model.script import Script
from inspan_server.model.scripted import ScriptedModel, json_answer
from inspan_server.model.upstream import Upstream

ROLLOUT_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,255}")
CLIENT_GONE_STATUS = 499
KeyLookup = Callable[[str], str | None]
Parse: TypeAlias = Callable[[bytes], dict[str, Any]]
Answer: TypeAlias = Callable[[Request, CallInProgress, Rollout, dict[str, Any]], Awaitable[Response]]


def create_gateway(
    script: Script | None,
    capture: Capture,
    *,
    upstream: Upstream | None = None,
    keys: Mapping[str, str] | KeyLookup | None = None,
    models: Sequence[str] = ("policy",),
) -> Starlette:
    """Build the gateway's application.

    Args:
        script: What to answer; None with an upstream.
        capture: Receives a record of every call.
        upstream: The model server that calls are passed on to; None with a script.
        keys: The API key of each rollout, as a mapping or a function (asked at every call); a rollout
            without one is refused. None: no key is asked for.
        models: Names for ``GET /models`` of a script; a call for any other name is answered too.

    Raises:
        UsageError: Neither a script nor an upstream was given, or both.
    """
    model: ScriptedModel | ProxiedModel
    if script is not None and upstream is None:
        model = ScriptedModel(script, tuple(models))
    elif script is None and upstream is not None:
        model = ProxiedModel(upstream)
    else:
        raise UsageError("create_gateway: expected either a script or an upstream")
    lookup = keys.get if isinstance(keys, Mapping) else keys
    gateway = _Gateway(model=model, capture=capture, lookup=lookup)
    routes = []
    for prefix in ("/ng-rollout/{key}", "/ng-rollout/{key}/training-token-capture"):
        routes += [
            Route(f"{prefix}/v1/chat/completions", gateway.chat_completions, methods=["POST"]),
            Route(f"{prefix}/v1/responses", gateway.responses, methods=["POST"]),
            Route(f"{prefix}/v1/models", gateway.list_models, methods=["GET"]),
        ]
    every_method = ["GET", "POST", "PUT", "PATCH", "DELETE"]
    routes.append(Route("/{path:path}", gateway.no_such_route, methods=every_method))
    return Starlette(routes=routes, lifespan=gateway.lifespan)


@define(kw_only=True)
class _Gateway:
    model: ScriptedModel | ProxiedModel
    capture: Capture
    lookup: KeyLookup | None
    rollouts: dict[str, Rollout] = field(factory=dict)

    @asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        """Let go of the model's connections when the server ends."""
        yield
        await self.model.aclose()

    async def chat_completions(self, request: Request) -> Response:
        route = "/v1/chat/completions"
        return await self._answer(request, route, parse_chat_request, self.model.chat_completions)

    async def responses(self, request: Request) -> Response:
        return await self._answer(request, "/v1/responses", parse_responses_request, self.model.responses)

    async def _answer(self, request: Request, route: str, parse: Parse, answer: Answer) -> Response:
        try:
            call, rollout = self._begin(request, route)
        except Refusal as refusal:
            return JsonAnswer(refusal.status, refusal.body)
        try:
            raw = call.raw = await read_body(request)
            call.request = {"undecodable": raw[:2000].decode("utf-8", "replace")}
            call.attempt = rollout.next_attempt(raw)
            call.request = body = parse(raw)
            call.streamed = body.get("stream") is True
            return await answer(request, call, rollout, body)
        except Refusal as refusal:
            return json_answer(call, rollout, refusal.status, refusal.body)
        except ClientDisconnect:
            call.finish(status=None, response=None, outcome="client_gone")
            return Response(status_code=CLIENT_GONE_STATUS)

    async def list_models(self, request: Request) -> Response:
        try:
            call, rollout = self._begin(request, "/v1/models")
        except Refusal as refusal:
            return JsonAnswer(refusal.status, refusal.body)
        # Harnesses ask for the models at times of their own; that is no model call, and leaves no record.
        call.finished = True
        return await self.model.list_models(request, call, rollout)

    async def no_such_route(self, request: Request) -> Response:
        path = request.url.path
        if path.startswith("/ng-rollout/"):
            advice = "served are POST .../v1/chat/completions, POST .../v1/responses and GET .../v1/models"
        else:
            if request.method != "HEAD":  # Who only tries whether the server is reached calls no model.
                self.capture.record_stray(path)
            advice = "a model call must carry its rollout: the base URL is /ng-rollout/<rollout key>/v1"
        message = f"{request.method} {path[:200]}: {advice}"
        return JsonAnswer(404, openai_error(message, type_="invalid_request_error", code="not_found"))

    def _begin(self, request: Request, route: str) -> tuple[CallInProgress, Rollout]:
        """Open the record of a call.

        Raises:
            Refusal: The call has no right to be answered; it is not recorded as the rollout's, since
                nobody proved that it is.
        """
        key = request.path_params["key"]
        if not ROLLOUT_KEY.fullmatch(key):
            raise Refusal(404, f"{key[:80]!r} is not a rollout key")
        if self.lookup is not None and not _authorized(request, self.lookup(key)):
            self.capture.unauthorized_calls += 1
            refusal = Refusal(401, "Incorrect API key provided.")
            refusal.body["error"]["code"] = "invalid_api_key"
            raise refusal
        rollout = self.rollouts.setdefault(key, Rollout(key))
        rollout.calls += 1
        returned = None if rollout.calls == 1 else request.cookies.get(COOKIE) == rollout.cookie
        call = CallInProgress(
            capture=self.capture,
            rollout_key=key,
            route=route,
            token_capture="/training-token-capture/" in request.url.path,
            started_at=time.time(),
            started=time.monotonic(),
            cookie_returned=returned,
        )
        return call, rollout


def _authorized(request: Request, key: str | None) -> bool:
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    # A rollout without a key is compared too, so that the time does not tell whether it exists.
    matches = hmac.compare_digest(given.strip().encode(), (key or secrets.token_hex(16)).encode())
    return matches and key is not None and scheme.lower() == "bearer"
