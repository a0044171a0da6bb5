"""`step`: the only function that changes a session. It is pure: the tables decide, this file follows them.

    session, effects = step(session, event)

Feed every event in the order in which it became known; obey every effect in the order in which it is given.
"""

from collections.abc import Iterable

from inspan_core.checks import CHECKS
from inspan_core.draft import Draft
from inspan_core.effects import Effect, ErrorBody, Reply
from inspan_core.errors import NotAllowed, TableError
from inspan_core.events import ANSWER_TYPES, Answer, Event, ExpiryReached, RetryDue, Signal, WindowEnded
from inspan_core.handlers import note_failed_step
from inspan_core.orders import ORDERS
from inspan_core.rules import Ignored, Learn, Refused, Rule
from inspan_core.session import Phase, RunPhase, Session, Settings
from inspan_core.tables import LADDERS, LEARN, SESSION, Goal

_ANSWERS = frozenset(ANSWER_TYPES)
_TIMED = frozenset({WindowEnded, ExpiryReached, RetryDue})
_NOTHING: tuple[Effect, ...] = ()


def new_session(name: str, settings: Settings | None = None) -> Session:
    """Make the session of an id of which nothing is known yet.

    Args:
        name: The session's id. Sandbox keys are made from it.
        settings: Its budgets.
    """
    return Session(name=name) if settings is None else Session(name=name, settings=settings)


def step(session: Session, event: Event) -> tuple[Session, tuple[Effect, ...]]:
    """Work one event.

    Args:
        session: The session as it is.
        event: What became known.

    Returns:
        The new session, and the effects in the order in which they are to be obeyed: replies, then a timer,
        then at most one order. The very same session object when the event changes nothing.

    Raises:
        NotAllowed: The event cannot happen in this phase, is no answer to the order whose number it carries,
            answers an order that was not given yet, or is no event at all. The session is unchanged.
        TableError: The tables contradict themselves.
    """
    kind = type(event)
    if kind in _ANSWERS:
        return _work_answer(session, event)  # type: ignore[arg-type]  # the set is the union's members
    row = SESSION[session.phase].get(kind)
    if row is None:
        raise _not_allowed(session, event, "it is not an event")
    for check in CHECKS.get(kind, ()):
        if check.when(session, event):
            return _refuse(session, event, check.refusal)
    if kind in _TIMED and event.timer != session.timer:  # type: ignore[union-attr]
        return session, _NOTHING
    if isinstance(row, Rule):
        draft = Draft(session, event.at)
        _follow(draft, row, event)
        return draft.freeze(), tuple(draft.effects)
    if isinstance(row, Ignored):
        return session, _NOTHING
    return _refuse(session, event, row)


def fold(session: Session, events: Iterable[Event]) -> Session:
    """Work events that were worked before, for example those of a journal, and drop their effects."""
    for event in events:
        session, _ = step(session, event)
    return session


def _refuse(session: Session, event: Event, row: Refused) -> tuple[Session, tuple[Effect, ...]]:
    reason = row.reason.format(name=session.name)
    waiter: int | None = getattr(event, "waiter", None)
    if row.status is None or waiter is None:
        raise _not_allowed(session, event, reason)
    return session, (Reply(waiter=waiter, status=row.status, body=ErrorBody(detail=reason)),)


def _work_answer(session: Session, event: Answer) -> tuple[Session, tuple[Effect, ...]]:
    run = session.run
    if event.order == run.order and run.order:
        draft = Draft(session, event.at)
        _learn(draft, _lesson(session, run.phase, event), run.phase, event)
        _climb(draft)
    elif run.pending is not None and event.order == run.pending.number:
        draft = Draft(session, event.at)
        _learn(draft, _lesson(session, run.pending.phase, event), run.pending.phase, event)
        draft.pending = None
        if run.phase is RunPhase.CANCELLING:
            _climb(draft)
        elif run.phase is RunPhase.REST:
            _signal(draft, Signal.STRAGGLER_ENDED)
    elif event.order > session.number:
        reason = f"order {event.order} was never given; the last number was {session.number}"
        raise _not_allowed(session, event, reason)
    else:
        return session, _NOTHING
    return draft.freeze(), tuple(draft.effects)


def _lesson(session: Session, phase: RunPhase, event: Answer) -> Learn:
    lesson = LEARN[phase].get(type(event))
    if lesson is None:
        raise _not_allowed(session, event, f"it is no answer to order {event.order}, which is {phase.value}")
    return lesson


def _not_allowed(session: Session, event: object, reason: str) -> NotAllowed:
    return NotAllowed(
        session=session.name, phase=session.phase.value, event=type(event).__name__, reason=reason
    )


def _learn(draft: Draft, lesson: Learn, phase: RunPhase, event: Answer) -> None:
    for name, value in lesson.facts.items():
        setattr(draft, name, value)
    if lesson.note is not None:
        lesson.note(draft, event)
    if lesson.fails:
        note_failed_step(draft, phase, event)


def _goal(draft: Draft) -> Goal:
    phase = draft.phase
    if phase is Phase.ACTIVE:
        return Goal.FINALIZE
    if phase is Phase.CLOSING or phase is Phase.UNWINDING:
        return Goal.RELEASE_OWNED if draft.owned else Goal.RELEASE_BORROWED
    if phase is Phase.SEEDING:
        return Goal.SETUP
    raise TableError(f"session {draft.name}: there is no ladder to climb in phase {phase.value}")


def _climb(draft: Draft) -> None:
    goal = _goal(draft)
    for rung in LADDERS[goal]:
        if rung.when(draft):
            break
    else:
        raise TableError(f"session {draft.name}: no rung of the ladder {goal.value!r} holds")
    then = rung.then
    if isinstance(then, Signal):
        draft.rest()
        _signal(draft, then)
        return
    draft.run_phase = then
    draft.order = draft.next_number()
    draft.effects.append(ORDERS[then](draft, draft.order))


def _signal(draft: Draft, signal: Signal) -> None:
    row = SESSION[draft.phase][signal]
    if not isinstance(row, Rule):
        raise TableError(f"session {draft.name}: {signal.value} in phase {draft.phase.value}: {row.reason}")
    _follow(draft, row, signal)


def _follow(draft: Draft, rule: Rule, event: Event | Signal) -> None:
    before = draft.phase
    draft.climb = False
    rule.handler(draft, event)
    if draft.phase not in rule.to if rule.to else draft.phase is not before:
        raise TableError(
            f"session {draft.name}: {rule.handler.__name__} led from {before.value} to {draft.phase.value}"
        )
    if draft.climb:
        draft.failed = None if isinstance(event, Signal) else draft.failed
        _climb(draft)
