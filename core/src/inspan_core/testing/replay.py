"""Play a story anew, in its real numbers, and hold every promise and the contract over each of its steps."""

from collections.abc import Sequence

from attrs import evolve

from inspan_core.errors import InspanError
from inspan_core.events import (
    ANSWER_TYPES,
    ActivateRequested,
    ClientGone,
    CloseRequested,
    Event,
    ExpiryReached,
    RetryDue,
    SeedRequested,
    WindowEnded,
)
from inspan_core.machine import new_session, step
from inspan_core.session import Session, Settings
from inspan_core.testing.contract_judge import judge
from inspan_core.testing.contract_oracle import Standing
from inspan_core.testing.invariants import check_transition
from inspan_core.testing.moves import moves
from inspan_core.testing.probing import impossibilities, refusals
from inspan_core.testing.prospects import Prospects
from inspan_core.testing.states import (
    FIRST_ACTIVATION,
    FIRST_CLOSE,
    FIRST_SEED,
    ORDER_NUMBER,
    PENDING_NUMBER,
    State,
    canonical,
)
from inspan_core.testing.transitions import Violation, transition
from inspan_core.testing.world import World

_ANSWERS = frozenset(ANSWER_TYPES)
_MANY = 1_000_000


def fault_of(story: Sequence[Event], settings: Settings) -> str | None:
    """Play a story, and say what is wrong with the machine that shows in it.

    Args:
        story: The events, in the numbers of a session that begins with the first of them.
        settings: The session's budgets.

    Returns:
        A sentence that begins with the number of the event, or None when every promise is kept. A story that
        cannot go on, because the machine orders something else by now, is kept as far as it goes.
    """
    session = new_session("story", settings)
    state, standing = State(canonical(session), World()), Standing()
    for number, event in enumerate(story, start=1):
        fault = _fault_in(state)
        if fault is not None:
            return f"before event {number}: {fault}"
        common = _canonical(session, event)
        before = session
        try:
            session, effects = step(before, event)
            standing, problems = judge(standing, before, event, session, effects)
            if problems:
                return f"event {number}: {problems[0]}"
            if common not in set(moves(state, _MANY)):
                return None
            move = transition(state, common)
            check_transition(move)
        except Violation as violation:
            return f"event {number}: {violation}"
        except InspanError as error:
            if common not in set(moves(state, _MANY)):
                return None
            return f"event {number}: {type(error).__name__}: {error}"
        state = move.after
    fault = _fault_in(state)
    return None if fault is None else f"after the last event: {fault}"


def _fault_in(state: State) -> str | None:
    """Hold what must hold in a state whatever comes next."""
    for probes in (refusals, impossibilities):
        for _, violation in probes(state):
            if violation is not None:
                return str(violation)
    try:
        Prospects().check(state)
    except Violation as violation:
        return str(violation)
    except InspanError as error:
        return f"{type(error).__name__}: {error}"
    return None


def _canonical(session: Session, event: Event) -> Event:
    """Turn an event in the numbers of a real session into one in those of its canonical state."""
    run = session.run
    if type(event) in _ANSWERS:
        order = event.order  # type: ignore[union-attr]  # asked only of answers
        if order and order == run.order:
            return evolve(event, order=ORDER_NUMBER)  # type: ignore[arg-type]
        if run.pending is not None and order == run.pending.number:
            return evolve(event, order=PENDING_NUMBER)  # type: ignore[arg-type]
        return evolve(event, order=0)  # type: ignore[arg-type]
    if isinstance(event, WindowEnded | RetryDue | ExpiryReached):
        awaited = canonical(session).timer
        return evolve(event, timer=awaited if event.timer == session.timer else -1)
    if isinstance(event, ClientGone):
        return evolve(event, waiter=_canonical_waiter(session, event.waiter))
    if isinstance(event, SeedRequested):
        return evolve(event, waiter=FIRST_SEED + len(session.seed_waiters))
    if isinstance(event, ActivateRequested):
        return evolve(event, waiter=FIRST_ACTIVATION + len(session.activation_waiters))
    if isinstance(event, CloseRequested) and event.waiter is not None:
        return evolve(event, waiter=FIRST_CLOSE + len(session.close_waiters))
    return event


def _canonical_waiter(session: Session, waiter: int) -> int:
    for first, waiters in (
        (FIRST_SEED, session.seed_waiters),
        (FIRST_ACTIVATION, session.activation_waiters),
        (FIRST_CLOSE, session.close_waiters),
    ):
        if waiter in waiters:
            return first + waiters.index(waiter)
    return -1
