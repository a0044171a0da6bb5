"""What operators watch, in the text format of Prometheus, from a registry of this application's own.

Counts come from committed transitions and answered requests, the numbers of now are read when somebody asks.
"""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Iterator
from functools import cache

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from inspan_core.effects import ORDER_TYPES, CloseBody, Effect
from inspan_core.events import ANSWER_TYPES, Abandoned, Event, Restarted
from inspan_core.session import Phase, RunPhase, Session
from inspan_runtime.service import AgentService

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
BUCKETS_S = (0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 60.0, 600.0, 3600.0, 21600.0)
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
        self.requests = Counter(
            "inspan_requests", "Answered requests.", ("request", "status"), registry=self.registry
        )
        self._steps = Histogram(
            "inspan_step_seconds",
            "From an order to its answer.",
            ("step",),
            buckets=BUCKETS_S,
            registry=self.registry,
        )
        self._seeded = self._counter("inspan_sessions_seeded", "Sessions that were opened.")
        self._closed = self._counter("inspan_sessions_closed", "Sessions whose close succeeded.")
        self._failed = self._counter("inspan_close_failures", "Attempts to close that failed.")
        self._abandoned = self._counter("inspan_sessions_abandoned", "Sessions given up by the operator.")
        self._recovered = self._counter("inspan_sessions_recovered", "Sessions taken over after a restart.")
        self._gaps = Counter(
            "inspan_gaps", "Gaps in the observations of closed sessions.", ("code",), registry=self.registry
        )
        # Looked up once: labels are dear, and there are a dozen orders to a session.
        self._observers = {kind.__name__: self._steps.labels(kind.__name__).observe for kind in ORDER_TYPES}
        self._under_way: dict[str, tuple[int, str, float]] = {}
        self.registry.register(_Now(service))
        self._abandoned.inc(service.abandoned_before)
        service.follow(self._follow)

    def _counter(self, name: str, what: str) -> Counter:
        return Counter(name, what, registry=self.registry)

    def _follow(self, before: Session, event: Event, after: Session, effects: tuple[Effect, ...]) -> None:
        kind = type(event)
        if kind in _ANSWERS:
            number, step, began_at = self._under_way.pop(after.name, (0, "", 0.0))
            if number == event.order:  # type: ignore[union-attr]  # answers have one
                self._observers[step](max(event.at - began_at, 0.0))
        for effect in effects:
            if type(effect) in _ORDERS:
                self._under_way[after.name] = (effect.number, type(effect).__name__, event.at)  # type: ignore[union-attr]
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

    def __init__(self, service: AgentService) -> None:
        self._service = service

    def collect(self) -> Iterator[Metric]:
        """Read them."""
        service = self._service
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
        self._count = cache(lambda what, status: metrics.requests.labels(what, status).inc)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See the ASGI specification."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        what = _request_kind(scope["path"])

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._count(what, message["status"])()
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
