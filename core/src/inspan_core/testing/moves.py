"""What may happen next: every event that a bounded world may feed to a session in a given state.

States are canonical (`inspan_core.testing.states`), so the events here carry canonical numbers.
"""

from collections.abc import Callable, Iterator

from inspan_core.effects import Timer
from inspan_core.events import (
    ANSWER_TYPES,
    Abandoned,
    ActivateRequested,
    Answer,
    ClientGone,
    CloseRequested,
    Collected,
    CollectResult,
    Cookie,
    Event,
    EvidenceMissing,
    ExecLost,
    ExecReturned,
    ExpiryReached,
    InstallFailed,
    Outcome,
    Parsed,
    Path,
    Restarted,
    RetryDue,
    SandboxUnavailable,
    SeedRequested,
    StageFailed,
    StepFailed,
    TerminationConfirmed,
    TerminationRefuted,
    WindowEnded,
)
from inspan_core.session import Phase, Session
from inspan_core.tables import ANSWERS
from inspan_core.testing.states import (
    FIRST_ACTIVATION,
    FIRST_CLOSE,
    FIRST_SEED,
    ORDER_NUMBER,
    PENDING_NUMBER,
    TIMER_NUMBER,
    State,
)

BODY_A, BODY_B = "A", "B"
RUN_TIMEOUT_S = 60.0

_TIMER_EVENTS: dict[Timer, type[WindowEnded] | type[RetryDue] | type[ExpiryReached]] = {
    Timer.WINDOW: WindowEnded,
    Timer.RETRY: RetryDue,
    Timer.LEASE: ExpiryReached,
}
_RETRYABLE = frozenset({SandboxUnavailable, InstallFailed, StageFailed})
_DETAILED = frozenset({ExecLost, EvidenceMissing, StepFailed})


def seed(
    session: Session, *, owned: bool, body: str = BODY_A, cookie: Cookie = Cookie.ABSENT
) -> SeedRequested:
    """Make a seed of one more client."""
    waiter = FIRST_SEED + len(session.seed_waiters)
    return SeedRequested(at=0.0, waiter=waiter, body_digest=body, owned=owned, cookie=cookie)


def activation(
    session: Session, *, body: str = BODY_A, cookie: Cookie = Cookie.SAME, path: Path = Path.MATCHES
) -> ActivateRequested:
    """Make an activation of one more client."""
    waiter = FIRST_ACTIVATION + len(session.activation_waiters)
    return ActivateRequested(
        at=0.0, waiter=waiter, body_digest=body, cookie=cookie, path=path, run_timeout_s=RUN_TIMEOUT_S
    )


def close(
    session: Session, *, client: bool = True, cookie: Cookie = Cookie.ABSENT, same_episode: bool = True
) -> CloseRequested:
    """Make a close of one more client, or of the embedding program."""
    waiter = FIRST_CLOSE + len(session.close_waiters) if client else None
    return CloseRequested(at=0.0, waiter=waiter, cookie=cookie, same_episode=same_episode)


def variants(kind: type, order: int) -> Iterator[Answer]:
    """Make the answers of one kind that differ in what they may lead to."""
    make: Callable[..., Answer] = kind
    if kind in _RETRYABLE:
        for retryable, words in ((True, "for now"), (False, "for good")):
            yield make(at=0.0, order=order, detail=f"{kind.__name__} {words}", retryable=retryable)
    elif kind in _DETAILED:
        yield make(at=0.0, order=order, detail=f"{kind.__name__} as told")
    elif kind is TerminationConfirmed:
        yield TerminationConfirmed(at=0.0, order=order, return_code=1, timed_out=False, error=None)
        yield TerminationConfirmed(at=0.0, order=order, return_code=None, timed_out=False, error="no program")
    elif kind is TerminationRefuted:
        yield TerminationRefuted(at=0.0, order=order, error="unreadable process state")
    elif kind is ExecReturned:
        yield ExecReturned(at=0.0, order=order, exit_code=0)
    elif kind is Collected:
        for result in CollectResult:
            well = result in (CollectResult.OK, CollectResult.LIMIT)
            yield Collected(
                at=0.0, order=order, result=result, detail=None if well else f"capture {result.value}"
            )
    elif kind is Parsed:
        for outcome in Outcome:
            well = outcome in (Outcome.COMPLETED, Outcome.INCOMPLETE)
            yield Parsed(
                at=0.0, order=order, outcome=outcome, detail=None if well else f"run {outcome.value}"
            )
    else:
        yield make(at=0.0, order=order)


def answers(state: State) -> Iterator[Answer]:
    """Make every answer to the order in flight and to the one under cancellation."""
    world = state.world
    if world.order is not None:
        for kind in sorted(ANSWERS[world.order], key=lambda kind: kind.__name__):
            yield from variants(kind, ORDER_NUMBER)
    if world.pending is not None:
        for kind in sorted(ANSWERS[world.pending], key=lambda kind: kind.__name__):
            yield from variants(kind, PENDING_NUMBER)


def moves(state: State, waiters: int) -> Iterator[Event]:
    """Make every event that may come next and may change something.

    Args:
        state: Where session and world are.
        waiters: How many clients of a kind may wait at once.
    """
    session, world = state.session, state.world
    if len(session.seed_waiters) < waiters:
        yield from (seed(session, owned=owned) for owned in _ownerships(state))
    if len(session.activation_waiters) < waiters:
        yield activation(session)
    if len(session.close_waiters) < waiters:
        yield close(session)
    yield close(session, client=False)
    for waiter in (*session.seed_waiters, *session.activation_waiters, *session.close_waiters):
        yield ClientGone(at=0.0, waiter=waiter)
    if world.timer is not None and session.timer:
        yield _TIMER_EVENTS[world.timer](at=0.0, timer=TIMER_NUMBER)
    if session.phase in (Phase.CLOSE_FAILED, Phase.SETUP_FAILED):
        yield Abandoned(at=0.0)
    yield Restarted(at=0.0)
    yield from answers(state)


def _ownerships(state: State) -> tuple[bool, ...]:
    return (False, True) if state.session.phase is Phase.NEW else (state.world.owned,)


def refused_requests(state: State) -> Iterator[Event]:
    """Make requests whose findings refuse them wherever the session is."""
    session, owned = state.session, state.world.owned
    for cookie in (Cookie.OTHER, Cookie.MALFORMED):
        yield seed(session, owned=owned, cookie=cookie)
        yield activation(session, cookie=cookie)
        yield close(session, cookie=cookie)
    yield activation(session, cookie=Cookie.ABSENT)
    yield activation(session, path=Path.UNPREFIXED)
    yield activation(session, path=Path.OTHER_KEY)
    if session.phase is Phase.NEW:
        yield seed(session, owned=owned, cookie=Cookie.SAME)
        yield close(session, cookie=Cookie.SAME)
    else:
        yield close(session, same_episode=False)
        yield seed(session, owned=owned, body=BODY_B)
    if session.activation_digest is not None:
        yield activation(session, body=BODY_B)


def late_events(state: State) -> Iterator[Event]:
    """Make answers, timer events and lost clients whose number is not awaited any more."""
    for kind in ANSWER_TYPES:
        yield next(variants(kind, 0))
    for timer_event in (WindowEnded, RetryDue, ExpiryReached):
        yield timer_event(at=0.0, timer=-1)
    yield ClientGone(at=0.0, waiter=-1)


def impossible_events(state: State) -> Iterator[Event]:
    """Make what no world can tell: answers or timers of the wrong kind, abandoning a session that lives."""
    session, world = state.session, state.world
    for order, number in ((world.order, ORDER_NUMBER), (world.pending, PENDING_NUMBER)):
        if order is not None:
            for kind in ANSWER_TYPES:
                if kind not in ANSWERS[order]:
                    yield next(variants(kind, number))
    if session.phase not in (Phase.CLOSE_FAILED, Phase.SETUP_FAILED):
        yield Abandoned(at=0.0)
    for timer, timer_event in _TIMER_EVENTS.items():
        if timer is not world.timer and not (timer is Timer.LEASE and session.phase in _COUNTING):
            yield timer_event(at=0.0, timer=session.timer)


_COUNTING = frozenset({Phase.SEEDING, Phase.READY, Phase.ACTIVE, Phase.FINISHED})
