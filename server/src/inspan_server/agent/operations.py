"""The endpoints for those who run the server: readiness, metrics, and the verbs on single sessions."""

from __future__ import annotations

from attrs import define
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from inspan_core.errors import NotAllowed
from inspan_runtime.journal import JournalError
from inspan_runtime.service import AgentService, Answer
from inspan_server.agent.bodies import JsonResponse
from inspan_server.agent.metrics import AgentMetrics
from inspan_server.agent.routes import AgentRoutes

SESSIONS = "/admin/sessions"


@define
class Operations:
    """The endpoints over one service."""

    service: AgentService
    sessions: AgentRoutes
    metrics: AgentMetrics

    def routes(self) -> list[Route]:
        """The routes, for an application."""
        return [
            Route("/readyz", self.readyz, methods=["GET"]),
            Route("/metrics", self.metrics.endpoint, methods=["GET"]),
            Route(SESSIONS, self.list_sessions, methods=["GET"]),
            Route(SESSIONS + "/{session_id:path}/close", self.close, methods=["POST"]),
            Route(SESSIONS + "/{session_id:path}/abandon", self.abandon, methods=["POST"]),
            Route(SESSIONS + "/{session_id:path}", self.show, methods=["GET"]),
        ]

    async def readyz(self, _: Request) -> Response:
        """Whether new seeds are let in."""
        recovery = self.service.recovery
        draining = self.sessions.is_draining
        ready = recovery.is_over and not draining
        status = "draining" if draining else "ready" if ready else "recovering"
        return JsonResponse(200 if ready else 503, {"status": status, "left": recovery.left})

    async def list_sessions(self, _: Request) -> Response:
        """All sessions that are kept."""
        return JsonResponse(200, {"sessions": self.service.views()})

    async def show(self, request: Request) -> Response:
        """One session."""
        found = self.service.view(request.path_params["session_id"])
        return _unknown(request) if found is None else JsonResponse(200, found)

    async def close(self, request: Request) -> Response:
        """Close a session as its client would, and wait for it."""
        answer = await self.service.close_by_operator(request.path_params["session_id"])
        return _unknown(request) if answer is None else _answer(answer)

    async def abandon(self, request: Request) -> Response:
        """Give a session up whose release can never be proven."""
        name = request.path_params["session_id"]
        try:
            is_known = self.service.abandon(name)
        except NotAllowed as error:
            return JsonResponse(409, {"detail": str(error)})
        except JournalError as error:
            return JsonResponse(503, {"detail": str(error)})
        return JsonResponse(200, self.service.view(name) or {}) if is_known else _unknown(request)


def _answer(answer: Answer) -> Response:
    return JsonResponse(answer.status, answer.body)


def _unknown(request: Request) -> Response:
    return JsonResponse(404, {"detail": f"no session {request.path_params['session_id']!r} is kept here"})
