"""What operators watch, in the text format of Prometheus, from a registry of this application's own.

Counts come from committed transitions and answered requests, the numbers of now are read when somebody asks.
"""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from inspan_core.effects import ORDER_TYPES, CloseBody, Effect
from inspan_core.events import ANSWER_TYPES, Abandoned, Event, Restarted
from inspan_core.session import Phase, RunPhase, Session
from inspan_runtime.service import AgentService
from inspan_server.agent.step_times import StepTimes

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_ORDERS = frozenset(ORDER_TYPES)
_ANSWERS = frozenset(ANSWER_TYPES)


class AgentMetrics:
    """Counts for one service.

    Attributes:
        requests: Answered requests by what was asked for and by status; those from 400 on are refusals.
    """

    def __init__(self, service: AgentService) -> None:
        self._service = service
        self.registry = CollectorRegistry()
        self.requests: Counts[tuple[str, int]] = Counts()
        self._steps = StepTimes(ORDER_TYPES)
        self.registry.register(self._steps)
        self._seeded = self._counter("inspan_sessions_seeded", "Sessions that were opened.")
        self._closed = self._counter("inspan_sessions_closed", "Sessions whose close succeeded.")
        self._failed = self._counter("inspan_close_failures", "Attempts to close that failed.")
        self._abandoned = self._counter("inspan_sessions_abandoned", "Sessions given up by the operator.")
        self._recovered = self._counter("inspan_sessions_recovered", "Sessions taken over after a restart.")
        self._gaps = Counter(
            "inspan_gaps", "Gaps in the observations of closed sessions.", ("code",), registry=self.registry
        )
        self._under_way: dict[str, tuple[int, type, float]] = {}
        self.registry.register(_Now(service, self.requests))
        self._abandoned.inc(service.abandoned_before)
        service.follow(self._follow)

    def _counter(self, name: str, what: str) -> Counter:
        return Counter(name, what, registry=self.registry)

    def _follow(self, before: Session, event: Event, after: Session, effects: tuple[Effect, ...]) -> None:
        kind = type(event)
        if kind in _ANSWERS:
            begun = self._under_way.pop(after.name, None)
            if begun is not None and begun[0] == event.order:  # type: ignore[union-attr]  # answers have one
                self._steps.add(begun[1], max(event.at - begun[2], 0.0))
        # Replies and a timer come before the order, of which there is one at most.
        if effects and type(order := effects[-1]) in _ORDERS:
            self._under_way[after.name] = (order.number, type(order), event.at)  # type: ignore[union-attr]
        if after.phase is not before.phase:
            self._count_phase(before, after)
        if kind is Abandoned and after is not before:
            self._abandoned.inc()
        elif kind is Restarted and after is not before:
            self._recovered.inc()

    def _count_phase(self, before: Session, after: Session) -> None:
        match after.phase:
            case Phase.SEEDING if before.phase is Phase.NEW:
                self._seeded.inc()
            case Phase.CLOSE_FAILED | Phase.SETUP_FAILED:
                self._failed.inc()
            case Phase.CLOSED:
                self._under_way.pop(after.name, None)
                if after.close_answer is not None and isinstance(after.close_answer.body, CloseBody):
                    self._closed.inc()
                for code in self._service.gap_codes(after.name):
                    self._gaps.labels(code).inc()
            case Phase.NEW:
                self._under_way.pop(after.name, None)

    async def endpoint(self, _: Request) -> Response:
        """Answer ``GET /metrics``."""
        return Response(generate_latest(self.registry), headers={"content-type": CONTENT_TYPE})


class _Now(Collector):
    """The numbers of now."""

    def __init__(self, service: AgentService, requests: Counts[tuple[str, int]]) -> None:
        self._service = service
        self._requests = requests

    def collect(self) -> Iterator[Metric]:
        """Read them."""
        service = self._service
        requests = CounterMetricFamily("inspan_requests", "Answered requests.", labels=("request", "status"))
        for (what, status), count in self._requests.items():
            requests.add_metric((what, str(status)), count)
        yield requests
        sessions = GaugeMetricFamily("inspan_sessions", "Kept sessions, by phase.", labels=("phase",))
        counts, runs = Counts(service.phases.values()), service.run_phases()
        for phase in Phase:
            if phase is not Phase.NEW:
                sessions.add_metric((phase.name,), counts[phase.name])
        yield sessions
        yield GaugeMetricFamily(
            "inspan_runs_queued", "Runs that wait for a concurrency slot.", runs[RunPhase.QUEUED]
        )
        yield GaugeMetricFamily("inspan_runs_active", "Runs that hold a slot.", service.slots_taken)
        yield GaugeMetricFamily("inspan_runs_limit", "Concurrency slots.", service.settings.concurrency)
        yield GaugeMetricFamily(
            "inspan_recovery_left", "Sandboxes of a dead server not taken over yet.", service.recovery.left
        )
        yield GaugeMetricFamily("inspan_ready", "Whether new seeds are let in.", service.recovery.is_over)


class CountRequests:
    """Counts the answers of the session API."""

    def __init__(self, app: ASGIApp, metrics: AgentMetrics) -> None:
        self._app = app
        self._requests = metrics.requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See the ASGI specification."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        what = _request_kind(scope["path"])

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._requests[what, message["status"]] += 1
            await send(message)

        await self._app(scope, receive, counted)


def _request_kind(path: str) -> str:
    match path:
        case "/v1/agent_sessions":
            return "seed"
        case "/v1/agent_sessions/close":
            return "close"
        case "/run":
            return "run"
    return "activate" if path.endswith("/v1/responses") else "other"
