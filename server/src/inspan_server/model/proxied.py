"""A model behind an upstream server: calls are passed on, and answered with what it answers, unchanged."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any

import httpx
from attrs import define, field
from starlette.requests import Request
from starlette.responses import Response

from inspan_server.model.assembly import ChatAssembly, ResponsesAssembly
from inspan_server.model.call import CallInProgress, Refusal
from inspan_server.model.conversion import UnsupportedRequest, to_chat_request
from inspan_server.model.passing import ConvertedAnswer, Exchange, PassedAnswer
from inspan_server.model.responses import ResponseStream
from inspan_server.model.rollouts import Rollout
from inspan_server.model.upstream import CookieJars, Upstream


@define
class ProxiedModel:
    """Passes the calls of all rollouts on to one upstream."""

    upstream: Upstream
    jars: CookieJars = field(factory=CookieJars)
    _client: httpx.AsyncClient | None = field(default=None, repr=False)

    async def aclose(self) -> None:
        """Close the connections to the upstream."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def list_models(self, request: Request, call: CallInProgress, rollout: Rollout) -> Response:
        """The upstream's models."""
        exchange = self._exchange(request, call, rollout, "GET", "/models", b"")
        return PassedAnswer(exchange, ChatAssembly)

    async def chat_completions(
        self, request: Request, call: CallInProgress, rollout: Rollout, body: Mapping[str, Any]
    ) -> Response:
        """Pass a Chat Completions call on."""
        exchange = self._exchange(request, call, rollout, "POST", "/chat/completions", call.raw)
        return PassedAnswer(exchange, ChatAssembly)

    async def responses(
        self, request: Request, call: CallInProgress, rollout: Rollout, body: Mapping[str, Any]
    ) -> Response:
        """Pass a Responses call on, converted where the upstream has only Chat Completions.

        Raises:
            Refusal: The request holds what Chat Completions cannot say.
        """
        if self.upstream.api == "both":
            exchange = self._exchange(request, call, rollout, "POST", "/responses", call.raw)
            return PassedAnswer(exchange, ResponsesAssembly)
        try:
            asked, names = to_chat_request(body)
        except UnsupportedRequest as error:
            raise Refusal(400, str(error), param=error.field) from error
        raw = json.dumps(asked).encode("ascii")
        exchange = self._exchange(request, call, rollout, "POST", "/chat/completions", raw)
        stream = ResponseStream(
            request=body,
            names=names,
            response_id=f"resp_{secrets.token_hex(12)}",
            created_at=int(call.started_at),
            new_call_id=lambda: f"call_{secrets.token_hex(8)}",
        )
        return ConvertedAnswer(exchange, stream)

    def _exchange(
        self,
        request: Request,
        call: CallInProgress,
        rollout: Rollout,
        method: str,
        path: str,
        content: bytes,
    ) -> Exchange:
        headers = self.upstream.headers(request.headers, self.jars.header(rollout.key))
        return Exchange(
            client=self._connected(),
            method=method,
            url=self.upstream.url(path),
            headers=headers,
            content=content,
            call=call,
            rollout=rollout,
            jars=self.jars,
        )

    def _connected(self) -> httpx.AsyncClient:
        if self._client is None:
            upstream = self.upstream
            self._client = httpx.AsyncClient(
                timeout=httpx.Timeout(
                    upstream.silence_timeout_s, connect=upstream.connect_timeout_s, pool=None
                ),
                limits=httpx.Limits(max_connections=upstream.max_connections),
                # A jar of its own would carry cookies from one rollout to another.
                cookies=CookieJar(policy=DefaultCookiePolicy(allowed_domains=())),
                trust_env=False,
                follow_redirects=False,
            )
        return self._client
