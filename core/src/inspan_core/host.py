"""Sessions by name, for a program that drives the machine from a loop of its own.

    host = Host()
    for effect in host.deliver("s1", event):
        ...obey it; feed what became of it with host.deliver("s1", answer)

`inspan_core.machine.step` trusts its caller to feed each session its own events in their order. `Host` does
not: it keeps a book of the orders, timers and clients of each session, and refuses what cannot be. Numbers of
orders and timers begin elsewhere for each session, so an answer that was meant for another one is found out.
"""

import zlib
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, cast

from attrs import define, evolve, field

from inspan_core.effects import AwaitReceipt, CancelPending, Effect, Launch, Reply, StartTimer, Timer
from inspan_core.errors import NotAllowed
from inspan_core.events import (
    ANSWER_TYPES,
    EVENT_TYPES,
    REQUEST_TYPES,
    Event,
    ExpiryReached,
    Restarted,
    RetryDue,
    WindowEnded,
)
from inspan_core.machine import new_session, step
from inspan_core.session import Phase, Session, Settings
from inspan_core.tables import ANSWERS

NUMBERS_PER_SESSION = 2**20
"""How far apart the numbers of two sessions begin. Numbers stay exact in JSON: below 2**53."""

_EVENTS = frozenset(EVENT_TYPES)
_ANSWERS = frozenset(ANSWER_TYPES)
_REQUESTS = frozenset(REQUEST_TYPES)
_MAY_STAY_UNANSWERED = frozenset({Launch, AwaitReceipt})
"""`StopHarness` takes the place of these; nobody need wait for their answers any more."""
_TIMERS: dict[type, Timer] = {
    WindowEnded: Timer.WINDOW,
    RetryDue: Timer.RETRY,
    ExpiryReached: Timer.LEASE,
}


@define
class _Record:
    """One session and the book of what is owed to it.

    Attributes:
        session: The session as it is.
        at: The time of its last event (monotonic seconds).
        orders: The kind of each order without an answer, by number.
        timers: The kind of each timer that was started and has not fired, by number.
    """

    session: Session
    at: float
    orders: dict[int, type] = field(factory=dict[int, type])
    timers: dict[int, Timer] = field(factory=dict[int, Timer])

    def waits(self, waiter: int) -> bool:
        session = self.session
        return waiter in (*session.seed_waiters, *session.activation_waiters, *session.close_waiters)


class Host:
    """Holds sessions, and feeds each only what can be.

    Args:
        settings: The budgets of every session.
    """

    def __init__(self, settings: Settings | None = None) -> None:
        self._settings = settings
        self._records: dict[str, _Record] = {}

    @property
    def sessions(self) -> Mapping[str, Session]:
        """The sessions that have a record, by name."""
        return MappingProxyType({name: record.session for name, record in self._records.items()})

    def session(self, name: str) -> Session:
        """The session of this name; one without a record is NEW."""
        return self._record(name).session

    def deliver(self, name: str, event: Event) -> tuple[Effect, ...]:
        """Feed a session one event.

        Args:
            name: The session that the event is about.
            event: What became known. Each session has a clock of its own, which `Restarted` sets anew.

        Returns:
            The effects, in the order in which they are to be obeyed.

        Raises:
            NotAllowed: The event is none, is older than the last one, answers an order or a timer that is not
                this session's or was answered already, takes the number of a client that still waits, or
                cannot happen in the session's phase. Nothing changed.
        """
        record = self._record(name)
        reason = _objection(record, event) or self._owner_of(name, record, event)
        if reason is not None:
            session = record.session
            raise NotAllowed(
                session=name, phase=session.phase.value, event=type(event).__name__, reason=reason
            )
        record.session, effects = step(record.session, event)
        self._note(name, record, event, effects)
        return effects

    def restore(self, name: str, events: Iterable[Event]) -> None:
        """Fold a session from the events that `deliver` took of it before; `Restarted` is to be fed next.

        Raises:
            NotAllowed: The name is in use, or one of the events could not be.
        """
        if name in self._records:
            phase = self._records[name].session.phase.value
            raise NotAllowed(session=name, phase=phase, event="Restarted", reason="the name is in use")
        try:
            for event in events:
                self.deliver(name, event)
        except NotAllowed:
            self._records.pop(name, None)
            raise

    def _record(self, name: str) -> _Record:
        record = self._records.get(name)
        if record is not None:
            return record
        first = (zlib.crc32(name.encode("utf-8", "surrogatepass")) + 1) * NUMBERS_PER_SESSION
        return _Record(evolve(new_session(name, self._settings), number=first), float("-inf"))

    def _owner_of(self, name: str, record: _Record, event: Event) -> str | None:
        """Say why an answer or timer is not this session's, and whose it is if that is known."""
        number = _number(event)
        if number is None or number in (record.orders if type(event) in _ANSWERS else record.timers):
            return None
        word = "order" if type(event) in _ANSWERS else "timer"
        for other, kept in self._records.items():
            if other != name and (number in kept.orders or number in kept.timers):
                return f"{word} {number} is of session {other}"
        return f"{word} {number} was never given, or is over already"

    def _note(self, name: str, record: _Record, event: Event, effects: tuple[Effect, ...]) -> None:
        record.at = event.at
        if isinstance(event, Restarted):
            record.orders.clear()
            record.timers.clear()
        number = _number(event)
        if number is not None:
            record.orders.pop(number, None)
            record.timers.pop(number, None)
        for effect in effects:
            if isinstance(effect, StartTimer):
                record.timers = {effect.number: effect.kind}
            elif not isinstance(effect, Reply):
                record.orders[effect.number] = type(effect)
        current = record.session.run.order
        # A cancellation that its order's own answer has ended is never answered itself.
        for over in [n for n, kind in record.orders.items() if kind is CancelPending and n != current]:
            del record.orders[over]
        if record.session.phase is Phase.NEW and _MAY_STAY_UNANSWERED.issuperset(record.orders.values()):
            self._records.pop(name, None)
        else:
            self._records[name] = record


def _objection(record: _Record, event: Any) -> str | None:
    """Say why the event cannot be, as far as one session's book tells, or None."""
    kind = type(cast(object, event))
    if kind not in _EVENTS:
        return "it is not an event"
    if not isinstance(event.at, int | float):
        return f"its time is {event.at!r}, and no number of seconds"
    if kind is not Restarted and not event.at >= record.at:
        return f"time goes backwards from {record.at} to {event.at}"
    if kind in _REQUESTS and event.waiter is not None and record.waits(event.waiter):
        return f"client {event.waiter} waits already"
    if kind in _ANSWERS:
        order = record.orders.get(event.order)
        if order is not None and kind not in ANSWERS[order]:
            return f"it is no answer to order {event.order}, which is {order.__name__}"
    timer = _TIMERS.get(kind)
    if timer is not None and record.timers.get(event.timer, timer) is not timer:
        return f"timer {event.timer} is a {record.timers[event.timer].value} timer"
    return None


def _number(event: Event) -> int | None:
    number: int | None = getattr(event, "order" if type(event) in _ANSWERS else "timer", None)
    return number
