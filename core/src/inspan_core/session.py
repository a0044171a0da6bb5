"""A session as one frozen, hashable value: its phase, its run's facts, who waits, and what is retained.

Nothing here decides. `inspan_core.machine.step` alone makes a new `Session` from an old one.
"""

from enum import Enum

from attrs import frozen

from inspan_core.effects import Body
from inspan_core.findings import CollectResult, Outcome


class Phase(Enum):
    """Where a session is. The page in `inspan_core.tables` says what each phase waits for."""

    # Members are singletons, so identity will do; Enum's own is a Python function, dear in table look-ups.
    __hash__ = object.__hash__

    NEW = "NEW"
    SEEDING = "SEEDING"
    UNWINDING = "UNWINDING"
    READY = "READY"
    ACTIVE = "ACTIVE"
    FINISHED = "FINISHED"
    SETUP_FAILED = "SETUP_FAILED"
    CLOSE_FAILED = "CLOSE_FAILED"
    CLOSING = "CLOSING"
    CLOSED = "CLOSED"
    FENCED = "FENCED"


class RunPhase(Enum):
    """The one order in flight, or none (``REST``)."""

    # Members are singletons, so identity will do; Enum's own is a Python function, dear in table look-ups.
    __hash__ = object.__hash__

    REST = "REST"
    CONNECTING = "CONNECTING"
    INSTALLING = "INSTALLING"
    QUEUED = "QUEUED"
    STAGING = "STAGING"
    RUNNING = "RUNNING"
    AWAITING = "AWAITING"
    STOPPING = "STOPPING"
    COLLECTING = "COLLECTING"
    PARSING = "PARSING"
    RELEASING_EXEC = "RELEASING_EXEC"
    CANCELLING = "CANCELLING"
    REMOVING_FILES = "REMOVING_FILES"
    DISCONNECTING = "DISCONNECTING"
    STOPPING_SANDBOX = "STOPPING_SANDBOX"


class SandboxFact(Enum):
    """What is known of the sandbox: ``MAYBE`` means that a create was ordered and its result is not known."""

    NONE = "none"
    MAYBE = "maybe"
    LIVE = "live"
    GONE = "gone"


class Evidence(Enum):
    """What is known of the harness's end. ``NONE`` after a launch means: unknown."""

    NONE = "none"
    CONFIRMED = "confirmed"
    NEGATIVE = "negative"
    NEVER_LAUNCHED = "never_launched"


@frozen(kw_only=True)
class Settings:
    """Budgets in seconds, each above zero.

    Attributes:
        create_timeout_s: For creating our own sandbox.
        connect_timeout_s: For connecting to a supplied one.
        install_timeout_s: For installing the harness runtime.
        stage_timeout_s: For uploading an activation's input.
        run_margin_s: What `Launch` and `AwaitReceipt` get beyond the run's own deadline.
        parse_timeout_s: For parsing the artifacts.
        close_step_timeout_s: For each step of finalization and release, by itself.
        retry_window_s: How long a close answer or a fence is retained.
        retry_delay_s: Until a failed close is tried again; doubled after each failure.
        retry_delay_limit_s: Where the doubling ends.
        lease_s: How long an owned sandbox may live before the session is closed, or None for no such bound.
    """

    create_timeout_s: float = 600.0
    connect_timeout_s: float = 60.0
    install_timeout_s: float = 900.0
    stage_timeout_s: float = 120.0
    run_margin_s: float = 60.0
    parse_timeout_s: float = 60.0
    close_step_timeout_s: float = 30.0
    retry_window_s: float = 300.0
    retry_delay_s: float = 5.0
    retry_delay_limit_s: float = 300.0
    lease_s: float | None = None


@frozen(kw_only=True)
class Failure:
    """Why something failed: retryable failures are answered 503, others 422."""

    detail: str
    retryable: bool

    @property
    def status(self) -> int:
        """The HTTP status that tells a client whether to try again."""
        return 503 if self.retryable else 422


@frozen(kw_only=True)
class Pending:
    """An order under cancellation: which kind of work it is, and the number that its answer will carry."""

    phase: RunPhase
    number: int


@frozen(kw_only=True)
class Retained:
    """An answer that is kept and given again to identical requests."""

    status: int
    body: Body


@frozen(kw_only=True, weakref_slot=False)
class Run:
    """Everything that is known of a session's sandbox and of the run in it.

    Attributes:
        phase: The order in flight.
        order: Its number, or 0 at rest.
        pending: An earlier order that is being cancelled, or None.
        owned: Whether the sandbox is ours to create and stop.
        sandbox: What is known of the sandbox.
        installed: The runtime's installation was confirmed.
        files: Session files may lie in the sandbox.
        slot: A concurrency slot was granted.
        staged: Staging was confirmed.
        launched: A launch was ordered. It never is again.
        exec_held: The provider's exec is ours to release.
        exec_returned: The exec is known to be over, so its receipt must be there already.
        evidence: What is known of the harness's end.
        evidence_detail: What a negative receipt says, or why there is none, or None.
        collect: How the one collection ended, or None.
        outcome: What the parser found, or None.
        execution_error: The first failure of the run itself, or None.
        capture_error: The first failure to collect or parse, or None; kept apart from the other.
    """

    phase: RunPhase = RunPhase.REST
    order: int = 0
    pending: Pending | None = None
    owned: bool = False
    sandbox: SandboxFact = SandboxFact.NONE
    installed: bool = False
    files: bool = False
    slot: bool = False
    staged: bool = False
    launched: bool = False
    exec_held: bool = False
    exec_returned: bool = False
    evidence: Evidence = Evidence.NONE
    evidence_detail: str | None = None
    collect: CollectResult | None = None
    outcome: Outcome | None = None
    execution_error: Failure | None = None
    capture_error: str | None = None


@frozen(kw_only=True, weakref_slot=False)
class Session:
    """One session.

    Attributes:
        name: The session's id; sandbox keys are made from it.
        settings: Its budgets.
        phase: Where it is.
        run: What is known of its sandbox and run.
        number: The last number given to an order or timer.
        timer: The number of the timer that counts, or 0.
        generation: How many times a sandbox was set up under this name.
        seed_digest: The accepted seed's digest, or None.
        activation_digest: The bound activation's digest, or None.
        run_timeout_s: The bound activation's budget in seconds.
        deadline_at: When the run must be over (monotonic seconds), or None when not started or not known.
        seed_waiters: Clients that wait for the seed.
        activation_waiters: Clients that wait for the activation.
        close_waiters: Clients that wait for the close.
        answer: The retained answer to the activation, or None.
        setup_error: Why the set-up failed; None also when it was cut off by a restart.
        close_answer: The retained answer to close, or None.
        failures: Failed attempts to release, in a row.
    """

    name: str
    settings: Settings = Settings()
    phase: Phase = Phase.NEW
    run: Run = Run()
    number: int = 0
    timer: int = 0
    generation: int = 0
    seed_digest: str | None = None
    activation_digest: str | None = None
    run_timeout_s: float = 0.0
    deadline_at: float | None = None
    seed_waiters: tuple[int, ...] = ()
    activation_waiters: tuple[int, ...] = ()
    close_waiters: tuple[int, ...] = ()
    answer: Retained | None = None
    setup_error: Failure | None = None
    close_answer: Retained | None = None
    failures: int = 0

    @property
    def sandbox_key(self) -> str:
        """The key of our own sandbox: never used again once a set-up was undone."""
        return f"{self.name}.{self.generation}"

    @property
    def holds_slot(self) -> bool:
        """Whether the granted concurrency slot is still needed: the harness runs, or may while closing."""
        run = self.run
        if not run.slot:
            return False
        if self.phase is Phase.ACTIVE:
            return True
        return self.phase is Phase.CLOSING and run.launched and run.evidence is Evidence.NONE

    @property
    def gradable(self) -> bool:
        """Whether the episode may be verified: activation answered 200, and the close succeeded."""
        answer, closed = self.answer, self.close_answer
        return answer is not None and answer.status == 200 and closed is not None and closed.status == 200
