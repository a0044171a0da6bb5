"""What must still come of a state if the world answers at last: invariant 9, and the obligations of 14."""

from collections.abc import Callable

from inspan_core.effects import (
    AwaitReceipt,
    CancelPending,
    Collect,
    ConnectSandbox,
    CreateSandbox,
    Disconnect,
    Install,
    Launch,
    Parse,
    ReleaseExec,
    RemoveFiles,
    Stage,
    StopHarness,
    StopSandbox,
    TakeSlot,
)
from inspan_core.events import (
    Answer,
    Collected,
    CollectResult,
    Disconnected,
    Event,
    ExecReleased,
    ExecReturned,
    FilesRemoved,
    Installed,
    Outcome,
    Parsed,
    RetryDue,
    SandboxGone,
    SandboxReady,
    SandboxStopped,
    SlotGranted,
    Staged,
    TerminationConfirmed,
)
from inspan_core.session import Phase
from inspan_core.tables import ANSWERS
from inspan_core.testing.moves import close
from inspan_core.testing.states import ORDER_NUMBER, PENDING_NUMBER, TIMER_NUMBER, State
from inspan_core.testing.transitions import Transition, Violation, transition

LONGEST_WALK = 60
"""More steps than any session needs to its end: a walk that takes longer goes round in circles."""

_ENDED = frozenset({Phase.NEW, Phase.CLOSED, Phase.FENCED})

BEST: dict[type, Callable[[int], Answer]] = {
    CreateSandbox: lambda n: SandboxReady(at=0.0, order=n),
    ConnectSandbox: lambda n: SandboxReady(at=0.0, order=n),
    Install: lambda n: Installed(at=0.0, order=n),
    TakeSlot: lambda n: SlotGranted(at=0.0, order=n),
    Stage: lambda n: Staged(at=0.0, order=n),
    Launch: lambda n: ExecReturned(at=0.0, order=n, exit_code=0),
    AwaitReceipt: lambda n: TerminationConfirmed(at=0.0, order=n, return_code=0, timed_out=False, error=None),
    StopHarness: lambda n: TerminationConfirmed(
        at=0.0, order=n, return_code=-15, timed_out=False, error=None
    ),
    Collect: lambda n: Collected(at=0.0, order=n, result=CollectResult.OK, detail=None),
    Parse: lambda n: Parsed(at=0.0, order=n, outcome=Outcome.COMPLETED, detail=None),
    ReleaseExec: lambda n: ExecReleased(at=0.0, order=n),
    RemoveFiles: lambda n: FilesRemoved(at=0.0, order=n),
    Disconnect: lambda n: Disconnected(at=0.0, order=n),
    StopSandbox: lambda n: SandboxStopped(at=0.0, order=n),
}
"""The best answer to each order; that to `CancelPending` is the best answer to what it cancels."""


def best_answer(state: State) -> Answer | None:
    """Answer what is in flight as well as can be, or None when nothing is."""
    order, number = state.world.order, ORDER_NUMBER
    if order is CancelPending:
        order, number = state.world.pending, PENDING_NUMBER
    return None if order is None else BEST[order](number)


def gone_answer(state: State) -> Answer | None:
    """Answer that the sandbox is gone, wherever that is an answer."""
    order, number = state.world.order, ORDER_NUMBER
    if order is CancelPending:
        order, number = state.world.pending, PENDING_NUMBER
    if order is not None and SandboxGone in ANSWERS[order]:
        return SandboxGone(at=0.0, order=number)
    return best_answer(state)


class Prospects:
    """Walks from states with the best answers, and remembers which states lead to a good end."""

    def __init__(self) -> None:
        self._can_end: dict[Callable[[State], Answer | None], set[State]] = {
            best_answer: set(),
            gone_answer: set(),
        }
        self._ends_well: set[State] = set()
        self._seeds_well: set[State] = set()

    def check(self, state: State) -> None:
        """Hold invariant 9 and the obligations over one state.

        Raises:
            Violation: A promise that this state gives is not kept.
        """
        for answer, known in self._can_end.items():
            self._walk_to_end(state, answer, known)
        world, session = state.world, state.session
        if session.phase is Phase.ACTIVE and world.may_end_well:
            self._walk(state, self._ends_well, _ended_well, "a run that can still end well")
        if session.seed_waiters and session.phase in (Phase.SEEDING, Phase.UNWINDING) and world.setup is None:
            self._walk(state, self._seeds_well, _seeded_well, "a seed that can still succeed")

    def _walk_to_end(self, state: State, answer: Callable[[State], Answer | None], known: set[State]) -> None:
        passed: list[State] = []
        for _ in range(LONGEST_WALK):
            if state.session.phase in _ENDED or state in known:
                known.update(passed)
                return
            passed.append(state)
            event: Event | None = answer(state)
            if event is None and state.session.phase in (Phase.CLOSE_FAILED, Phase.SETUP_FAILED):
                event = RetryDue(at=0.0, timer=TIMER_NUMBER)
            state = transition(state, event or close(state.session, client=False)).after
        raise Violation(9, f"a session in phase {passed[0].session.phase.value} never ends")

    def _walk(
        self, state: State, known: set[State], good: Callable[[Transition], bool | None], what: str
    ) -> None:
        passed: list[State] = []
        for _ in range(LONGEST_WALK):
            if state in known:
                known.update(passed)
                return
            passed.append(state)
            answer = best_answer(state)
            if answer is None:
                break
            move = transition(state, answer)
            verdict = good(move)
            if verdict:
                known.update(passed)
                return
            if verdict is False:
                break
            state = move.after
        raise Violation(14, f"{what}, from phase {passed[0].session.phase.value}, is not answered 200")


def _ended_well(move: Transition) -> bool | None:
    if move.session.phase is Phase.ACTIVE:
        return None
    answer = move.session.answer
    return answer is not None and answer.status == 200


def _seeded_well(move: Transition) -> bool | None:
    if move.session.phase in (Phase.SEEDING, Phase.UNWINDING):
        return None
    return move.session.phase is Phase.READY and all(reply.status == 200 for reply in move.replies)
