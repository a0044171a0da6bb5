"""The endpoints of the Agent Server: decode, ask the service, answer.

Every rule about sessions is the service's. Here are only: a body that does not fit is refused first; a client
that goes away is forgotten, and what it asked for goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from attrs import define
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from inspan_core.codec import normalised_digest
from inspan_core.errors import WireError
from inspan_core.findings import Cookie
from inspan_core.wire import CloseRequest, ResponsesRequest, SeedRequest
from inspan_runtime.journal import JournalError
from inspan_runtime.service import AgentService, Answer
from inspan_runtime.waiting import Gone, WaiterGone, unless_gone
from inspan_server.agent.bodies import JsonResponse, read_body, read_json_body, refusal
from inspan_server.agent.compat_run import CompatRuns, decode_run
from inspan_server.agent.cookie_middleware import marker_of, set_marker
from inspan_server.plain_exchange import CLIENT

CLIENT_GONE_STATUS = 499
"""Nobody reads it; it is what proxies log for a client that went away."""

Handler = Callable[[Request], Awaitable[Response]]
log = logging.getLogger(__name__)


@define
class AgentRoutes:
    """The endpoints over one service.

    Attributes:
        runs: For the compatibility endpoint ``/run``.
        is_draining: Set while the server shuts down: seeds and host calls are refused, so that clients go
            elsewhere.
    """

    service: AgentService
    runs: CompatRuns
    is_draining: bool = False

    def routes(self) -> list[Route]:
        """The routes, for an application."""
        prefix = "/ng-rollout/{capture_key}"
        return [
            Route("/v1/agent_sessions", _fenced(self.seed), methods=["POST"]),
            Route("/v1/agent_sessions/close", _fenced(self.close), methods=["POST"]),
            Route(f"{prefix}/v1/responses", _fenced(self.activate), methods=["POST"]),
            Route(
                f"{prefix}/training-token-capture/v1/responses",
                _fenced(self.activate_captured),
                methods=["POST"],
            ),
            Route("/v1/responses", _fenced(self.activate), methods=["POST"]),
            Route("/run", _fenced(self.run), methods=["POST"]),
            Route("/healthz", _fenced(self.healthz), methods=["GET"]),
        ]

    async def seed(self, request: Request) -> Response:
        """Open a session; the answer binds the client to it."""
        body = await read_body(request, SeedRequest)
        if self.is_draining:
            return _draining()
        finding = marker_of(request).finding(body.agent_session_id)
        answer = await _unless_gone(
            request, lambda gone: self.service.seed(body, normalised_digest(body), finding, gone=gone)
        )
        if answer.status == 200:
            set_marker(request, body.agent_session_id)
        return JsonResponse(answer.status, answer.body)

    async def activate(self, request: Request) -> Response:
        """Run the one activation of the session that the cookie names."""
        return await self._activate(request, token_capture=False)

    async def activate_captured(self, request: Request) -> Response:
        """The same, with the segment that asks for training tokens."""
        return await self._activate(request, token_capture=True)

    async def _activate(self, request: Request, *, token_capture: bool) -> Response:
        body = await read_body(request, ResponsesRequest)
        marker = marker_of(request)
        if self.is_draining and marker.own_finding is Cookie.ABSENT:
            return _draining()  # It would be a host call.
        answer = await _unless_gone(
            request,
            lambda gone: self.service.activate(
                request.path_params.get("capture_key"),
                token_capture,
                body.raw,
                normalised_digest(body),
                marker.session_id,
                marker.own_finding,
                gone=gone,
            ),
        )
        return JsonResponse(answer.status, answer.body)

    async def run(self, request: Request) -> Response:
        """Run one episode of the bound Resources Server on the host."""
        body = decode_run(await read_json_body(request))
        if self.is_draining:
            return _draining()
        answer = await _unless_gone(request, lambda gone: unless_gone(gone, lambda: self.runs.run(body)))
        return JsonResponse(answer.status, answer.body)

    async def close(self, request: Request) -> Response:
        """Close a session, seeded or not."""
        body = await read_body(request, CloseRequest)
        finding = marker_of(request).finding(body.agent_session_id)
        answer = await _unless_gone(request, lambda gone: self.service.close(body, finding, gone=gone))
        return JsonResponse(answer.status, answer.body)

    async def healthz(self, request: Request) -> Response:
        """Whether the server takes work, and how many sessions it holds."""
        spec = self.service.harness.spec
        status = "draining" if self.is_draining else "ok"
        harness = {"name": spec.name, "version": spec.version}
        return JsonResponse(200, {"status": status, "harness": harness, "sessions": len(self.service.phases)})


def _draining() -> Response:
    return JsonResponse(503, {"detail": "the server is shutting down"})


async def on_http_error(request: Request, error: Exception) -> Response:
    """The answer to an unknown path or method."""
    assert isinstance(error, HTTPException)
    answer = JsonResponse(error.status_code, {"detail": error.detail})
    answer.headers.update(error.headers or {})
    return answer


def _fenced(handler: Handler) -> Handler:
    """Turn what a handler raises into an answer: one request never takes the server with it."""

    async def endpoint(request: Request) -> Response:
        try:
            return await handler(request)
        except WireError as error:
            return refusal(error)
        except ClientDisconnect:
            return Response(status_code=CLIENT_GONE_STATUS)
        except Exception:
            log.exception("%s %s failed", request.method, request.url.path)
            return JsonResponse(500, {"detail": "internal error"})

    return endpoint


async def _unless_gone(request: Request, call: Callable[[Gone], Awaitable[Answer]]) -> Answer:
    """The service's answer. A client that goes away ends the wait for it, and nothing else.

    Raises:
        ClientDisconnect: The client is gone.
    """

    async def disconnected() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    try:
        return await call(request.scope.get("extensions", {}).get(CLIENT, disconnected))
    except WaiterGone as error:
        raise ClientDisconnect from error
    except JournalError as error:
        log.error("%s %s was refused: %s", request.method, request.url.path, error)
        return Answer(status=503, body={"detail": "the server's journal cannot be written now"})
