"""Stories: lists of events that lead somewhere, in real numbers, so that anybody can replay them."""

from collections.abc import Sequence

from attrs import evolve, frozen

from inspan_core.effects import Effect
from inspan_core.errors import InspanError
from inspan_core.events import ANSWER_TYPES, ClientGone, Event, ExpiryReached, RetryDue, WindowEnded
from inspan_core.machine import new_session, step
from inspan_core.session import Session, Settings
from inspan_core.testing.states import FIRST_ACTIVATION, FIRST_CLOSE, FIRST_SEED, ORDER_NUMBER, PENDING_NUMBER

_ANSWERS = frozenset(ANSWER_TYPES)


@frozen
class Chapter:
    """One event of a story, what the machine ordered upon it, and the phase that it came to."""

    event: Event
    effects: tuple[Effect, ...]
    phase: str


def retell(events: Sequence[Event], settings: Settings) -> list[Chapter]:
    """Turn events in canonical numbers into a story in real ones, by playing them from the beginning.

    Args:
        events: What was fed, each in the canonical numbers of its state.
        settings: The session's budgets.

    Returns:
        The chapters. The last has no effects when the machine raises there.
    """
    session = new_session("story", settings)
    story: list[Chapter] = []
    next_waiter = 1
    for event in events:
        real = renumbered(session, event, next_waiter)
        next_waiter += 1
        try:
            session, effects = step(session, real)
        except InspanError as error:
            story.append(Chapter(real, (), f"{type(error).__name__}: {error}"))
            break
        story.append(Chapter(real, effects, session.phase.value))
    return story


def told(story: Sequence[Chapter]) -> str:
    """Print a story: one line for each event, and what came of it."""
    lines: list[str] = []
    for number, chapter in enumerate(story, start=1):
        lines.append(f"{number:3}. {chapter.event}")
        lines.extend(f"       -> {effect}" for effect in chapter.effects)
        lines.append(f"       == {chapter.phase}")
    return "\n".join(lines)


def renumbered(session: Session, event: Event, next_waiter: int) -> Event:
    """Turn an event in canonical numbers into one in the numbers of a real session."""
    run = session.run
    if type(event) in _ANSWERS:
        order = event.order  # type: ignore[union-attr]
        if order == ORDER_NUMBER:
            return evolve(event, order=run.order)  # type: ignore[arg-type]
        if order == PENDING_NUMBER and run.pending is not None:
            return evolve(event, order=run.pending.number)  # type: ignore[arg-type]
        return event
    if isinstance(event, WindowEnded | RetryDue | ExpiryReached):
        return event if event.timer < 0 else evolve(event, timer=session.timer)
    if isinstance(event, ClientGone):
        return evolve(event, waiter=_waiting(session, event.waiter))
    if getattr(event, "waiter", None) is not None:
        return evolve(event, waiter=next_waiter)  # type: ignore[arg-type]
    return event


def _waiting(session: Session, canonical: int) -> int:
    for first, waiters in (
        (FIRST_CLOSE, session.close_waiters),
        (FIRST_ACTIVATION, session.activation_waiters),
        (FIRST_SEED, session.seed_waiters),
    ):
        if canonical >= first:
            return waiters[canonical - first]
    raise ValueError(f"{canonical} is no canonical waiter")
