"""The explorer's model of everything outside the machine: what was ordered, what was answered, what is true.

The world is told the same events as the machine and sees its effects, and keeps a book of its own. It never
reads the machine's facts, so that a machine that fools itself is found out.
"""

from enum import Enum

from attrs import evolve, frozen

from inspan_core.effects import (
    AwaitReceipt,
    CancelPending,
    Collect,
    ConnectSandbox,
    CreateSandbox,
    Disconnect,
    Effect,
    Install,
    Launch,
    Parse,
    ReleaseExec,
    RemoveFiles,
    Reply,
    Stage,
    StartTimer,
    StopHarness,
    StopSandbox,
    TakeSlot,
    Timer,
)
from inspan_core.events import (
    ANSWER_TYPES,
    Answer,
    Collected,
    CollectResult,
    Event,
    ExecReturned,
    ExpiryReached,
    InstallFailed,
    NeverLaunched,
    Outcome,
    Parsed,
    Restarted,
    RetryDue,
    SandboxGone,
    SandboxReady,
    SandboxUnavailable,
    SeedRequested,
    Staged,
    StageFailed,
    StepFailed,
    StepTimedOut,
    TerminationConfirmed,
    TerminationRefuted,
    WindowEnded,
)

_ANSWERS = frozenset(ANSWER_TYPES)


class Truth(Enum):
    """What the sandbox really is, as far as anybody was told."""

    NONE = "none"
    CREATING = "creating"
    MAYBE = "maybe"
    LIVE = "live"
    GONE = "gone"


@frozen(kw_only=True)
class Fault:
    """A failure as the world told it: the status that it deserves, and words that its answer must hold."""

    status: int
    words: str


@frozen(kw_only=True)
class World:
    """The world's own book.

    Attributes:
        order: The kind of order in flight, or None.
        pending: The kind of order under cancellation, or None.
        owned: Whose the sandbox is.
        sandbox: What it really is.
        installed: The installation was answered well.
        files: Session files lie in the sandbox.
        slot: A concurrency slot is ours, and nothing is staged yet.
        staged: Staging was answered well.
        launches: How often a launch was ordered.
        exec_held: A provider's exec is open.
        exec_released: The release of an exec was confirmed.
        evidence: The kind of final evidence that was told, or None.
        collected: Whether the recorded collection was good, or None.
        parsed: Whether the recorded parse was good, or None.
        setup: The first failure of the set-up, or None.
        execution: The first failure of the run, or None.
        capture: The first failure of collecting, or None.
        timer: The timer that runs, or None.
    """

    order: type | None = None
    pending: type | None = None
    owned: bool = False
    sandbox: Truth = Truth.NONE
    installed: bool = False
    files: bool = False
    slot: bool = False
    staged: bool = False
    launches: int = 0
    exec_held: bool = False
    exec_released: bool = False
    evidence: type | None = None
    collected: bool | None = None
    parsed: bool | None = None
    setup: Fault | None = None
    execution: Fault | None = None
    capture: Fault | None = None
    timer: Timer | None = None

    @property
    def may_end_well(self) -> bool:
        """Whether the run, if it is let, can still be answered 200."""
        return (
            self.execution is None
            and self.sandbox is Truth.LIVE
            and self.evidence in (None, TerminationConfirmed)
            and self.collected is not False
            and self.parsed is not False
        )


def told(world: World, event: Event, answers_pending: bool) -> World:
    """Write into the book what the machine was told.

    Args:
        world: The book before.
        event: What the machine was told.
        answers_pending: Whether the event answers the order under cancellation.
    """
    if type(event) in _ANSWERS:
        return _answered(world, event, answers_pending)  # type: ignore[arg-type]
    if isinstance(event, Restarted):
        return _restarted(world)
    if isinstance(event, SeedRequested):
        return evolve(world, owned=event.owned)
    if isinstance(event, WindowEnded | RetryDue | ExpiryReached):
        return evolve(world, timer=None)
    return world


def ordered(world: World, effects: tuple[Effect, ...]) -> World:
    """Write into the book what the machine ordered."""
    for effect in effects:
        if isinstance(effect, StartTimer):
            world = evolve(world, timer=effect.kind)
        elif not isinstance(effect, Reply):
            world = _ordered(world, effect)
    return world


def _ordered(world: World, effect: Effect) -> World:
    match effect:
        case CancelPending():
            pending = world.pending if world.order in (None, CancelPending) else world.order
            return evolve(world, order=CancelPending, pending=pending)
        case CreateSandbox():
            return evolve(world, order=CreateSandbox, sandbox=Truth.CREATING)
        case Install() | Stage():
            return evolve(world, order=type(effect), files=True)
        case Launch():
            return evolve(world, order=Launch, launches=world.launches + 1, exec_held=True)
        case _:
            return evolve(world, order=type(effect))


def _restarted(world: World) -> World:
    sandbox = world.sandbox
    if sandbox is Truth.CREATING:
        sandbox = Truth.MAYBE
    return evolve(
        world, order=None, pending=None, sandbox=sandbox, slot=False, exec_held=False, setup=None, timer=None
    )


def _answered(world: World, event: Answer, answers_pending: bool) -> World:
    kind = world.pending if answers_pending else world.order
    if answers_pending:
        order = None if world.order is CancelPending else world.order
        world = evolve(world, order=order, pending=None)
    else:
        world = evolve(world, order=None)
    if isinstance(event, SandboxGone):
        world = evolve(world, sandbox=Truth.GONE, files=False, exec_held=False)
    if kind in _EVIDENCE_FROM:
        world = _evidence(world, event)
    told = _TOLD.get(kind) if kind is not None else None
    return world if told is None else told(world, event)


def _evidence(world: World, event: Answer) -> World:
    match event:
        case TerminationConfirmed(return_code=None, error=error):
            world = _execution_fault(world, Fault(status=503, words=str(error)))
            return evolve(world, evidence=TerminationConfirmed)
        case TerminationConfirmed() | TerminationRefuted() | NeverLaunched():
            return evolve(world, evidence=type(event))
        case ExecReturned():
            return evolve(world, exec_held=False)
        case _:
            return world


def _setup_fault(world: World, fault: Fault) -> World:
    return world if world.setup is not None else evolve(world, setup=fault)


def _execution_fault(world: World, fault: Fault) -> World:
    return world if world.execution is not None else evolve(world, execution=fault)


def _capture_fault(world: World, fault: Fault) -> World:
    return world if world.capture is not None else evolve(world, capture=fault)


def _fault(event: Answer) -> Fault:
    match event:
        case StepTimedOut():
            return Fault(status=503, words="budget")
        case SandboxGone():
            return Fault(status=503, words="gone")
        case SandboxUnavailable() | InstallFailed() | StageFailed():
            return Fault(status=503 if event.retryable else 422, words=event.detail)
        case StepFailed():
            return Fault(status=503, words=event.detail)
        case _:
            raise AssertionError(f"{event} is no failure")


def _created(world: World, event: Answer) -> World:
    if isinstance(event, SandboxReady):
        return evolve(world, sandbox=Truth.LIVE)
    sandbox = Truth.NONE if isinstance(event, SandboxUnavailable) else Truth.MAYBE
    return _setup_fault(evolve(world, sandbox=sandbox), _fault(event))


def _connected(world: World, event: Answer) -> World:
    if isinstance(event, SandboxReady):
        return evolve(world, sandbox=Truth.LIVE)
    return _setup_fault(evolve(world, sandbox=Truth.NONE), _fault(event))


def _installed(world: World, event: Answer) -> World:
    if isinstance(event, InstallFailed | SandboxGone | StepFailed | StepTimedOut):
        return _setup_fault(world, _fault(event))
    return evolve(world, installed=True)


def _staged(world: World, event: Answer) -> World:
    if isinstance(event, Staged):
        return evolve(world, staged=True, slot=False)
    return _execution_fault(world, _fault(event))


def _slot(world: World, event: Answer) -> World:
    if isinstance(event, StepFailed):
        return _execution_fault(world, _fault(event))
    return evolve(world, slot=True)


def _collected(world: World, event: Answer) -> World:
    if not isinstance(event, Collected):
        return _capture_fault(evolve(world, collected=False), _fault(event))
    if event.result in (CollectResult.OK, CollectResult.LIMIT):
        return evolve(world, collected=True)
    fault = Fault(status=503, words=str(event.detail))
    return _capture_fault(evolve(world, collected=False), fault)


def _parsed(world: World, event: Answer) -> World:
    if not isinstance(event, Parsed):
        return _execution_fault(evolve(world, parsed=False), _fault(event))
    if event.outcome in (Outcome.COMPLETED, Outcome.INCOMPLETE):
        return evolve(world, parsed=True)
    status = 503 if event.outcome is Outcome.FAILED else 422
    fault = Fault(status=status, words=str(event.detail))
    return _execution_fault(evolve(world, parsed=False), fault)


def _exec_released(world: World, event: Answer) -> World:
    if isinstance(event, StepFailed | StepTimedOut | SandboxGone):
        return world
    return evolve(world, exec_held=False, exec_released=True)


def _files_removed(world: World, event: Answer) -> World:
    return world if isinstance(event, StepFailed | StepTimedOut) else evolve(world, files=False)


def _ended(world: World, event: Answer) -> World:
    if isinstance(event, StepFailed | StepTimedOut):
        return world
    return evolve(world, sandbox=Truth.NONE)


def _stopped(world: World, event: Answer) -> World:
    world = _ended(world, event)
    if world.sandbox is not Truth.NONE:
        return world
    # What ran in a sandbox ends with it, an order under cancellation included.
    return evolve(world, files=False, exec_held=False, pending=None)


_EVIDENCE_FROM: frozenset[type | None] = frozenset({Launch, AwaitReceipt, StopHarness})
_TOLD = {
    CreateSandbox: _created,
    ConnectSandbox: _connected,
    Install: _installed,
    TakeSlot: _slot,
    Stage: _staged,
    Collect: _collected,
    Parse: _parsed,
    ReleaseExec: _exec_released,
    RemoveFiles: _files_removed,
    Disconnect: _ended,
    StopSandbox: _stopped,
}
