"""What must be true whenever an order goes out, by the world's own book, numbered as in the design."""

from collections.abc import Callable

from inspan_core.effects import (
    CancelPending,
    Collect,
    ConnectSandbox,
    CreateSandbox,
    Disconnect,
    Install,
    Launch,
    Order,
    Parse,
    ReleaseExec,
    RemoveFiles,
    Stage,
    StopHarness,
    StopSandbox,
)
from inspan_core.events import (
    ANSWER_TYPES,
    NeverLaunched,
    Restarted,
    TerminationConfirmed,
    TerminationRefuted,
)
from inspan_core.session import Phase
from inspan_core.testing.oracle import (
    is_released,
)
from inspan_core.testing.transitions import Transition, require
from inspan_core.testing.world import Truth, World

_CLOSING_ORDERS = frozenset(
    {StopHarness, Collect, Parse, ReleaseExec, CancelPending, RemoveFiles, Disconnect, StopSandbox}
)
_ANSWERS = frozenset(ANSWER_TYPES)


def launch_once(t: Transition, order: Order, world: World) -> None:
    """1 and 12: one launch, staged, and never once a close was accepted."""
    if isinstance(order, Launch):
        require(world.launches == 0, 1, "the harness is launched a second time")
        require(world.staged, 1, "the harness is launched before staging was answered")
        require(t.session.phase is Phase.ACTIVE, 1, "the harness is launched after a close was accepted")


def stage_in_turn(t: Transition, order: Order, world: World) -> None:
    """1: a run takes up sandbox and model only once it has a concurrency slot."""
    if isinstance(order, Stage):
        require(world.slot, 1, "the input is staged without a concurrency slot")


def collect_once(t: Transition, order: Order, world: World) -> None:
    """2: one collection, after a confirmed receipt, and never after its answer or the exec's release."""
    if isinstance(order, Collect):
        require(
            world.evidence is TerminationConfirmed, 2, "artifacts are collected without a confirmed receipt"
        )
        require(world.collected is None, 2, "artifacts are collected although a collection was recorded")
        require(not world.exec_released, 2, "artifacts are collected after the exec was released")


def release_in_order(t: Transition, order: Order, world: World) -> None:
    """3: the exec goes only after final evidence and the attempt to collect, files and connection later."""
    if isinstance(order, ReleaseExec):
        require(world.exec_held, 3, "an exec is released that nobody holds")
        require(world.evidence is not None, 3, "the exec is released while the harness may be running")
        tried = world.evidence is not TerminationConfirmed or world.collected is not None
        require(tried, 3, "the exec is released before the artifacts were collected")
    if isinstance(order, RemoveFiles | Disconnect):
        require(not world.exec_held, 3, f"{type(order).__name__} is ordered while the exec is held")


def sandbox_by_owner(t: Transition, order: Order, world: World) -> None:
    """4, 10: only an owned sandbox is stopped, after the graceful way was tried, never while created."""
    if isinstance(order, RemoveFiles | Disconnect):
        require(not world.owned, 4, "an owned sandbox is merely left")
    if not isinstance(order, StopSandbox):
        return
    require(world.owned, 4, "a supplied sandbox is stopped")
    require(world.sandbox is not Truth.CREATING, 10, "a sandbox is stopped while it is being created")
    if world.sandbox is not Truth.LIVE:
        return
    joined = t.before.world.order
    tried = t.before.tried if joined is None else t.before.tried | {joined}
    if world.launches and world.evidence is None:
        require(StopHarness in tried, 4, "a sandbox is stopped before the harness was asked to stop")
        return
    if world.evidence is TerminationConfirmed:
        require(world.collected is not None, 4, "a sandbox is stopped before its artifacts were collected")
    if world.exec_held:
        require(ReleaseExec in tried, 4, "a sandbox is stopped before its exec was released")


def files_last(t: Transition, order: Order, world: World) -> None:
    """5: files go only when nothing can need them any more, and nothing is writing them."""
    if not isinstance(order, RemoveFiles):
        return
    needless = world.collected is not None or not world.launches
    final = world.evidence in (TerminationRefuted, NeverLaunched)
    require(needless or final, 5, "session files are removed before they were collected")
    require(
        world.pending not in (Install, Stage), 5, "session files are removed while they are being written"
    )


def nothing_in_a_gone_sandbox(t: Transition, order: Order, world: World) -> None:
    """10: a sandbox that is gone is left, or its end confirmed, and nothing else is tried in it."""
    if world.sandbox is Truth.GONE and t.session.phase is not Phase.SEEDING:
        leaving = isinstance(order, Parse | Disconnect | StopSandbox | CancelPending)
        require(leaving, 10, f"{type(order).__name__} is ordered in a sandbox that is gone")


def never_again_at_once(t: Transition, order: Order, world: World) -> None:
    """13: no order is given again upon its own answer, so that every attempt comes to an end."""
    answered = t.before.world.order if type(t.event) in _ANSWERS else None
    require(type(order) is not answered, 13, f"{type(order).__name__} is ordered again upon its own answer")


def one_sandbox(t: Transition, order: Order, world: World) -> None:
    """12: at most one sandbox of a session exists."""
    if isinstance(order, CreateSandbox | ConnectSandbox):
        fresh = t.after.world if t.session.phase is Phase.SEEDING else world
        begun = t.before.session.phase in (Phase.NEW, Phase.UNWINDING)
        none = world.sandbox is Truth.NONE or (begun and is_released(world))
        require(none, 12, "a second sandbox is made while the first may live")
        require(
            isinstance(order, CreateSandbox) is fresh.owned, 12, "the sandbox is not the one that was agreed"
        )


def bounded_close(t: Transition, order: Order, world: World) -> None:
    """13: a close gives bounded orders only, and none twice in an attempt."""
    if t.session.phase is not Phase.CLOSING:
        return
    require(type(order) in _CLOSING_ORDERS, 13, f"{type(order).__name__} is ordered while closing")
    require(order.timeout_s is not None, 13, f"{type(order).__name__} has no bound while closing")
    again = t.joins_attempt and not isinstance(t.event, Restarted) and type(order) in t.before.tried
    require(not again, 13, f"{type(order).__name__} is ordered twice in one attempt to close")


ORDER_CHECKS: tuple[Callable[[Transition, Order, World], None], ...] = (
    launch_once,
    stage_in_turn,
    collect_once,
    release_in_order,
    sandbox_by_owner,
    files_last,
    nothing_in_a_gone_sandbox,
    never_again_at_once,
    one_sandbox,
    bounded_close,
)
"""One function for each promise; ``world`` is the book after the event and before the order."""
