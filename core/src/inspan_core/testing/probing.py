"""What must change nothing in a state: requests that are refused, late events, and events that cannot be."""

from collections.abc import Iterator

from inspan_core.errors import InspanError, NotAllowed
from inspan_core.events import Event, ExpiryReached, RetryDue, WindowEnded
from inspan_core.machine import step
from inspan_core.session import Session
from inspan_core.testing.moves import impossible_events, late_events, refused_requests
from inspan_core.testing.states import State
from inspan_core.testing.transitions import Violation


def refusals(state: State) -> Iterator[tuple[Event, Violation | None]]:
    """Feed each refused request and each late event.

    Yields:
        The event, and the broken promise or None.
    """
    session = state.session
    for event in refused_requests(state):
        yield event, _refused(session, event)
    for event in late_events(state):
        yield event, _changes_nothing(session, event)


def impossibilities(state: State) -> Iterator[tuple[Event, Violation | None]]:
    """Feed each event that no world can tell.

    Yields:
        The event, and the broken promise or None.
    """
    for event in impossible_events(state):
        yield event, _not_taken(state.session, event)


def _refused(session: Session, event: Event) -> Violation | None:
    try:
        after, effects = step(session, event)
    except InspanError as error:
        return Violation(0, f"{event}: {type(error).__name__}: {error}")
    status = getattr(effects[0], "status", None) if len(effects) == 1 else None
    if after is not session or status != 409:
        return Violation(14, f"{event} is not refused: {effects}")
    return None


def _changes_nothing(session: Session, event: Event) -> Violation | None:
    try:
        unchanged = step(session, event) == (session, ())
    except InspanError as error:
        return Violation(2, f"{event} is late, and was taken: {type(error).__name__}: {error}")
    return None if unchanged else Violation(2, f"{event} is late, and changed something")


def _not_taken(session: Session, event: Event) -> Violation | None:
    try:
        unchanged = step(session, event) == (session, ())
    except NotAllowed:
        return None
    except InspanError as error:
        return Violation(0, f"{event}: {type(error).__name__}: {error}")
    if unchanged and isinstance(event, WindowEnded | RetryDue | ExpiryReached):
        return None
    return Violation(14, f"{event} cannot be, and was taken")
