"""The Model Server of scripted runs: Chat Completions under a rollout prefix, every call recorded.

Routes, with or without the ``/training-token-capture`` segment after the key::

    POST /ng-rollout/<rollout key>/v1/chat/completions     streaming (SSE) and plain
    GET  /ng-rollout/<rollout key>/v1/models

A call without the prefix belongs to no rollout: it is answered 404 and counted as a stray. A script that
has no more replies is answered 400, which no harness retries, of type ``script_exhausted``.
"""

from __future__ import annotations

import hmac
import re
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import anyio
from attrs import define, field
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from inspan_server.model.adapt import NoFittingTool
from inspan_server.model.answers import JsonAnswer, StreamAnswer
from inspan_server.model.call import CallInProgress, Refusal, parse_chat_request, read_body
from inspan_server.model.capture import CallOutcome, Capture
from inspan_server.model.chat import completion, completion_chunks, openai_error
from inspan_server.model.script import Reply, Script

ROLLOUT_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,255}")
COOKIE = "inspan_rollout"
CLIENT_GONE_STATUS = 499
KeyLookup = Callable[[str], str | None]


def create_gateway(
    script: Script,
    capture: Capture,
    *,
    keys: Mapping[str, str] | KeyLookup | None = None,
    models: Sequence[str] = ("policy",),
) -> Starlette:
    """Build the gateway's application.

    Args:
        script: What to answer.
        capture: Receives a record of every call.
        keys: The API key of each rollout, as a mapping or a function (asked at every call); a rollout
            without one is refused. None: no key is asked for.
        models: Names for ``GET /models``; a call for any other name is answered too.
    """
    lookup = keys.get if isinstance(keys, Mapping) else keys
    gateway = _Gateway(script=script, capture=capture, lookup=lookup, models=tuple(models))
    routes = []
    for prefix in ("/ng-rollout/{key}", "/ng-rollout/{key}/training-token-capture"):
        routes += [
            Route(f"{prefix}/v1/chat/completions", gateway.chat_completions, methods=["POST"]),
            Route(f"{prefix}/v1/models", gateway.list_models, methods=["GET"]),
        ]
    every_method = ["GET", "POST", "PUT", "PATCH", "DELETE"]
    routes.append(Route("/{path:path}", gateway.no_such_route, methods=every_method))
    return Starlette(routes=routes)


@define
class _Rollout:
    """What the gateway remembers of a rollout between its calls."""

    cookie: str = field(factory=lambda: secrets.token_hex(16))
    calls: int = 0
    replies_taken: int = 0
    last_body: bytes = b""
    last_was_good: bool = True
    attempt: int = 0

    def next_attempt(self, raw: bytes) -> int:
        repeated = raw == self.last_body and not self.last_was_good
        self.attempt = self.attempt + 1 if repeated else 1
        self.last_body = raw
        self.last_was_good = False
        return self.attempt


@define(kw_only=True)
class _Gateway:
    script: Script
    capture: Capture
    lookup: KeyLookup | None
    models: tuple[str, ...]
    rollouts: dict[str, _Rollout] = field(factory=dict)

    async def chat_completions(self, request: Request) -> Response:
        try:
            call, rollout = self._begin(request, "/v1/chat/completions")
        except Refusal as refusal:
            return JsonAnswer(refusal.status, refusal.body)
        try:
            raw = await read_body(request)
            call.request = {"undecodable": raw[:2000].decode("utf-8", "replace")}
            call.attempt = rollout.next_attempt(raw)
            call.request = body = parse_chat_request(raw)
            call.streamed = body.get("stream") is True
            reply = self._take_reply(call.rollout_key, rollout)
            if reply.delay_s and await _client_gone_within(request, reply.delay_s):
                raise ClientDisconnect
            if reply.error is not None:
                return self._scripted_error(call, rollout, reply)
            return self._answer(call, rollout, reply, body)
        except Refusal as refusal:
            return self._json(call, rollout, refusal.status, refusal.body)
        except ClientDisconnect:
            call.finish(status=None, response=None, outcome="client_gone")
            return Response(status_code=CLIENT_GONE_STATUS)

    async def list_models(self, request: Request) -> Response:
        try:
            call, rollout = self._begin(request, "/v1/models")
        except Refusal as refusal:
            return JsonAnswer(refusal.status, refusal.body)
        data = [{"id": name, "object": "model", "created": 0, "owned_by": "inspan"} for name in self.models]
        return self._json(call, rollout, 200, {"object": "list", "data": data})

    async def no_such_route(self, request: Request) -> Response:
        path = request.url.path
        if path.startswith("/ng-rollout/"):
            advice = "served are POST .../v1/chat/completions and GET .../v1/models"
        else:
            self.capture.record_stray(path)
            advice = "a model call must carry its rollout: the base URL is /ng-rollout/<rollout key>/v1"
        message = f"{request.method} {path[:200]}: {advice}"
        return JsonAnswer(404, openai_error(message, type_="invalid_request_error", code="not_found"))

    def _begin(self, request: Request, route: str) -> tuple[CallInProgress, _Rollout]:
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
        rollout = self.rollouts.setdefault(key, _Rollout())
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

    def _take_reply(self, key: str, rollout: _Rollout) -> Reply:
        """The next reply; nothing is awaited here, so two calls at once get successive ones."""
        replies = self.script.replies(key)
        if replies is None:
            raise Refusal(400, f"the script has neither rollout {key} nor '*'", type_="script_exhausted")
        taken = rollout.replies_taken
        rollout.replies_taken += 1
        if taken >= len(replies):
            message = f"script for rollout {key} has {len(replies)} replies; call {taken + 1} has none"
            raise Refusal(400, message, type_="script_exhausted")
        return replies[taken]

    def _scripted_error(self, call: CallInProgress, rollout: _Rollout, reply: Reply) -> Response:
        assert reply.error is not None
        body = reply.error.body
        if body is None:
            body = openai_error(f"scripted error {reply.error.status}", type_="scripted_error")
        return self._json(call, rollout, reply.error.status, body)

    def _answer(
        self, call: CallInProgress, rollout: _Rollout, reply: Reply, body: Mapping[str, Any]
    ) -> Response:
        try:
            answer = completion(
                reply,
                body,
                response_id=f"chatcmpl-{secrets.token_hex(12)}",
                created=int(call.started_at),
                new_call_id=lambda: f"call_{secrets.token_hex(8)}",
            )
        except NoFittingTool as error:
            raise Refusal(400, str(error), type_="script_mismatch") from error
        if not call.streamed:
            return self._json(call, rollout, 200, answer, drop=reply.drop_after_chunks is not None)
        rollout.last_was_good = reply.drop_after_chunks is None
        options = body.get("stream_options")
        include_usage = isinstance(options, Mapping) and options.get("include_usage") is True
        return StreamAnswer(
            completion_chunks(answer, include_usage=include_usage),
            drop_after_chunks=reply.drop_after_chunks,
            headers=_cookie_header(call.rollout_key, rollout),
            done=lambda outcome: call.finish(status=200, response=answer, outcome=outcome),
        )

    def _json(
        self, call: CallInProgress, rollout: _Rollout, status: int, body: Any, *, drop: bool = False
    ) -> Response:
        """Record an answer that is whole, and give it."""
        rollout.last_was_good = status < 400 and not drop
        outcome: CallOutcome = "dropped" if drop else "answered" if status < 400 else "refused"
        call.finish(status=status, response=body, outcome=outcome)
        return JsonAnswer(status, body, drop=drop, headers=_cookie_header(call.rollout_key, rollout))


def _authorized(request: Request, key: str | None) -> bool:
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    # A rollout without a key is compared too, so that the time does not tell whether it exists.
    matches = hmac.compare_digest(given.strip().encode(), (key or secrets.token_hex(16)).encode())
    return matches and key is not None and scheme.lower() == "bearer"


def _cookie_header(key: str, rollout: _Rollout) -> dict[str, str]:
    return {"set-cookie": f"{COOKIE}={rollout.cookie}; Path=/ng-rollout/{key}; HttpOnly"}


async def _client_gone_within(request: Request, delay_s: float) -> bool:
    """Stay silent for `delay_s`; return early, with True, when the client disconnects."""
    with anyio.move_on_after(delay_s):
        while (await request.receive())["type"] != "http.disconnect":
            pass
        return True
    return False
