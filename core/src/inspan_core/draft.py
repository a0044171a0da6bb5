"""The scratch paper of one step: a session's values, laid flat and open to change, until they are frozen.

`inspan_core.machine.step` thaws a session once, lets the tables' functions write, and freezes the result.
That is cheaper than evolving frozen values one by one, and the functions read like sentences.
"""

from collections.abc import Iterable
from typing import Any

from inspan_core.effects import Body, Effect, Reply, StartTimer, Timer
from inspan_core.findings import CollectResult, Outcome
from inspan_core.session import (
    Evidence,
    Failure,
    Pending,
    Phase,
    Retained,
    Run,
    RunPhase,
    SandboxFact,
    Session,
    Settings,
)


def _open(frozen: type) -> Any:
    """A class laid out like a frozen one: its objects become frozen ones by a change of their class.

    To set an attribute of an object that is frozen already costs several times as much, and a session has
    some forty.
    """
    return type(f"_Open{frozen.__name__}", (), {"__slots__": frozen.__slots__})  # type: ignore[attr-defined]


_OpenRun = _open(Run)
_OpenSession = _open(Session)


class Draft:
    """A session in the making. The attributes are those of `Session` and `Run`, and what one step needs:

    Attributes:
        at: The time of the event (monotonic seconds).
        effects: What goes out, in order.
        climb: Whether the ladder of the new phase is to be climbed.
        failed: The step that failed with this answer, or None.
        detail: How it failed.
    """

    __slots__ = (
        "activation_digest",
        "activation_waiters",
        "answer",
        "at",
        "capture_error",
        "climb",
        "close_answer",
        "close_waiters",
        "collect",
        "deadline_at",
        "detail",
        "effects",
        "evidence",
        "evidence_detail",
        "exec_held",
        "exec_returned",
        "execution_error",
        "failed",
        "failures",
        "files",
        "generation",
        "installed",
        "launched",
        "name",
        "number",
        "order",
        "outcome",
        "owned",
        "pending",
        "phase",
        "run_phase",
        "run_timeout_s",
        "sandbox",
        "seed_digest",
        "seed_waiters",
        "settings",
        "setup_error",
        "slot",
        "staged",
        "timer",
    )

    def __init__(self, session: Session, at: float) -> None:
        self.at = at
        self.effects: list[Effect] = []
        self.climb = False
        self.failed: RunPhase | None = None
        self.detail = ""
        self.name: str = session.name
        self.settings: Settings = session.settings
        self.phase: Phase = session.phase
        self.number: int = session.number
        self.timer: int = session.timer
        self.generation: int = session.generation
        self.seed_digest: str | None = session.seed_digest
        self.activation_digest: str | None = session.activation_digest
        self.run_timeout_s: float = session.run_timeout_s
        self.deadline_at: float | None = session.deadline_at
        self.seed_waiters: tuple[int, ...] = session.seed_waiters
        self.activation_waiters: tuple[int, ...] = session.activation_waiters
        self.close_waiters: tuple[int, ...] = session.close_waiters
        self.answer: Retained | None = session.answer
        self.setup_error: Failure | None = session.setup_error
        self.close_answer: Retained | None = session.close_answer
        self.failures: int = session.failures
        self.take_run(session.run)

    def take_run(self, run: Run) -> None:
        """Lay the run's facts flat."""
        self.run_phase: RunPhase = run.phase
        self.order: int = run.order
        self.pending: Pending | None = run.pending
        self.owned: bool = run.owned
        self.sandbox: SandboxFact = run.sandbox
        self.installed: bool = run.installed
        self.files: bool = run.files
        self.slot: bool = run.slot
        self.staged: bool = run.staged
        self.launched: bool = run.launched
        self.exec_held: bool = run.exec_held
        self.exec_returned: bool = run.exec_returned
        self.evidence: Evidence = run.evidence
        self.evidence_detail: str | None = run.evidence_detail
        self.collect: CollectResult | None = run.collect
        self.outcome: Outcome | None = run.outcome
        self.execution_error: Failure | None = run.execution_error
        self.capture_error: str | None = run.capture_error

    def freeze(self) -> Session:
        """Make the new session."""
        run = _OpenRun()
        run.phase = self.run_phase
        run.order = self.order
        run.pending = self.pending
        run.owned = self.owned
        run.sandbox = self.sandbox
        run.installed = self.installed
        run.files = self.files
        run.slot = self.slot
        run.staged = self.staged
        run.launched = self.launched
        run.exec_held = self.exec_held
        run.exec_returned = self.exec_returned
        run.evidence = self.evidence
        run.evidence_detail = self.evidence_detail
        run.collect = self.collect
        run.outcome = self.outcome
        run.execution_error = self.execution_error
        run.capture_error = self.capture_error
        run.__class__ = Run
        session = _OpenSession()
        session.run = run
        session.name = self.name
        session.settings = self.settings
        session.phase = self.phase
        session.number = self.number
        session.timer = self.timer
        session.generation = self.generation
        session.seed_digest = self.seed_digest
        session.activation_digest = self.activation_digest
        session.run_timeout_s = self.run_timeout_s
        session.deadline_at = self.deadline_at
        session.seed_waiters = self.seed_waiters
        session.activation_waiters = self.activation_waiters
        session.close_waiters = self.close_waiters
        session.answer = self.answer
        session.setup_error = self.setup_error
        session.close_answer = self.close_answer
        session.failures = self.failures
        session.__class__ = Session
        frozen: Session = session
        return frozen

    @property
    def sandbox_key(self) -> str:
        """The key of our own sandbox, as `Session.sandbox_key`."""
        return f"{self.name}.{self.generation}"

    def next_number(self) -> int:
        """Give out the next number for an order or timer."""
        self.number += 1
        return self.number

    def reply(self, waiters: Iterable[int], status: int, body: Body) -> None:
        """Answer each of the waiters."""
        for waiter in waiters:
            self.effects.append(Reply(waiter=waiter, status=status, body=body))

    def start_timer(self, kind: Timer, delay_s: float) -> None:
        """Start the timer that counts from now on."""
        self.timer = self.next_number()
        self.effects.append(StartTimer(number=self.timer, kind=kind, delay_s=delay_s))

    def rest(self) -> None:
        """Await no order any more."""
        self.run_phase = RunPhase.REST
        self.order = 0

    def note_execution_error(self, detail: str, *, retryable: bool) -> None:
        """Keep the first failure of the run itself."""
        if self.execution_error is None:
            self.execution_error = Failure(detail=detail, retryable=retryable)

    def note_setup_error(self, detail: str, *, retryable: bool) -> None:
        """Keep the first failure of the set-up."""
        if self.setup_error is None:
            self.setup_error = Failure(detail=detail, retryable=retryable)

    def note_capture_error(self, detail: str) -> None:
        """Keep the first failure to collect or parse."""
        if self.capture_error is None:
            self.capture_error = detail
