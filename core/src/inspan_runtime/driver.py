"""The driver of one session: event in, `step`, journal, then effects out.

Nothing is decided here. `deliver` is synchronous, so what a request binds is bound before anything is
awaited; events that arrive while one is handled wait in the mailbox. Each order is performed by one
coroutine, in a place that outlives the caller (`spawn`), and posts exactly one answer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from math import inf
from typing import Any, Protocol

import anyio

from inspan_core.answers import Answer, StepTimedOut
from inspan_core.effects import (
    CancelPending,
    CreateSandbox,
    Effect,
    Order,
    Reply,
    StartTimer,
    StopHarness,
    Timer,
)
from inspan_core.events import (
    ClientGone,
    Event,
    ExpiryReached,
    Request,
    RetryDue,
    WindowEnded,
)
from inspan_core.machine import step
from inspan_core.session import Session
from inspan_runtime.alarms import Alarm, Alarms
from inspan_runtime.journal import Journal, JournalError
from inspan_runtime.room import Spawn
from inspan_runtime.waiting import Gone, WaiterGone

TIMER_EVENTS: Mapping[Timer, Callable[..., Event]] = {
    Timer.WINDOW: WindowEnded,
    Timer.RETRY: RetryDue,
    Timer.LEASE: ExpiryReached,
}

FIRST_JOURNAL_PAUSE_S, LAST_JOURNAL_PAUSE_S = 0.1, 5.0
log = logging.getLogger(__name__)


class Performs(Protocol):
    """Whoever carries out orders: one coroutine for each type of order."""

    async def perform(self, order: Order) -> Answer:
        """Carry out the order and say what became of it. Raises nothing but cancellation."""
        ...

    def cancelled(self, order: Order) -> Answer:
        """The answer of an order that was cut off by `CancelPending` and has ended."""
        ...

    def settled(self, session: Session) -> None:
        """Called after each transition: give back what the session no longer needs."""
        ...


Observer = Callable[[Mapping[str, Any]], object]
Prepare = Callable[[Session], object]
Follow = Callable[[Session, Event, Session, tuple[Effect, ...]], object]
"""Called with each committed transition: the session before, the event, the session after, the effects."""


class _Waiter:
    __slots__ = ("reply", "scope")

    def __init__(self) -> None:
        self.reply: Reply | None = None
        self.scope: anyio.CancelScope | None = None

    def answer(self, reply: Reply) -> None:
        self.reply = reply
        if self.scope is not None:
            self.scope.cancel()


class _Flight:
    """An order in flight."""

    __slots__ = ("_ended", "dropped", "is_cut", "is_over", "order", "scope")

    def __init__(self, order: Order) -> None:
        self.order = order
        self.scope: anyio.CancelScope | None = None
        self.is_over = self.dropped = self.is_cut = False
        self._ended: anyio.Event | None = None

    def cut(self) -> None:
        """Cancel its performance: not its budget has ended."""
        self.is_cut = True
        if self.scope is not None:
            self.scope.cancel()

    def end(self) -> None:
        self.is_over = True
        if self._ended is not None:
            self._ended.set()

    async def ended(self) -> None:
        if not self.is_over:
            if self._ended is None:
                self._ended = anyio.Event()
            await self._ended.wait()


class SessionDriver:
    """Holds one session's state and carries out what its machine orders.

    Args:
        session: The state to start from.
        performs: Carries out orders.
        spawn: Starts a task that outlives the caller.
        journal: Where events are kept, or None.
        prepare: Called with a session that is about to change its phase: what it keeps is committed with it.
        follow: Called with each committed transition, before the observers.
        observers: Told of each committed transition.
        timers: Whether timers run; without them the embedding program retries and forgets by itself.
        alarms: Where timers run; by default in alarms of its own.
    """

    __slots__ = (
        "_alarm",
        "_alarms",
        "_chain",
        "_flights",
        "_follow",
        "_journal",
        "_mailbox",
        "_next_waiter",
        "_observers",
        "_performs",
        "_prepare",
        "_spawn",
        "_stepping",
        "_waiters",
        "session",
    )

    def __init__(
        self,
        session: Session,
        performs: Performs,
        *,
        spawn: Spawn,
        journal: Journal | None = None,
        prepare: Prepare | None = None,
        follow: Follow | None = None,
        observers: tuple[Observer, ...] = (),
        timers: bool = True,
        alarms: Alarms | None = None,
    ) -> None:
        self.session = session
        self._performs = performs
        self._spawn = spawn
        self._journal = journal
        self._prepare = prepare
        self._follow = follow
        self._observers = observers
        self._alarms = (alarms if alarms is not None else Alarms(spawn)) if timers else None
        self._mailbox: tuple[Event, ...] = ()
        self._stepping = False
        self._waiters: dict[int, _Waiter] | None = None
        self._next_waiter = 1
        self._flights: dict[int, _Flight] = {}
        self._chain: list[_Flight] | None = None
        self._alarm: Alarm | None = None

    async def ask(self, request: Callable[[int, float], Request], *, gone: Gone | None = None) -> Reply:
        """Deliver a request and wait for its reply. Being cancelled only forgets this waiter.

        Args:
            request: Makes the event from the waiter's number and the time.
            gone: Watches the waiter's connection.

        Raises:
            WaiterGone: `gone` returned before there was a reply.
        """
        number, waiter = self._next_waiter, _Waiter()
        self._next_waiter += 1
        waiters = self._waiters = self._waiters if self._waiters is not None else {}
        waiters[number] = waiter
        try:
            self.deliver(request(number, anyio.current_time()))
            if waiter.reply is None:
                with anyio.CancelScope() as waiter.scope:
                    await (gone or anyio.sleep_forever)()
        finally:
            del waiters[number]
            if not waiters:
                self._waiters = None
            if waiter.reply is None and self._knows(number):
                with suppress(JournalError):  # Then the reply goes to nobody, which does no harm.
                    self.deliver(ClientGone(at=anyio.current_time(), waiter=number))
        if waiter.reply is None:
            raise WaiterGone(f"nobody waits for the reply of session {self.session.name} any more")
        return waiter.reply

    def deliver(self, event: Event) -> None:
        """Take one event; its effects are under way when this returns, unless another is being handled.

        Raises:
            NotAllowed: The event cannot happen now; nothing changed.
            JournalError: The event could not be journalled; nothing changed.
        """
        if self._stepping:
            self._mailbox = (*self._mailbox, event)
            return
        self._stepping = True
        try:
            self._handle(event)
            while self._mailbox:
                event, self._mailbox = self._mailbox[0], self._mailbox[1:]
                self._handle(event)
        finally:
            self._stepping = False

    async def post(self, event: Event) -> None:
        """Take one event that nobody would bring again, however long the journal cannot be written."""
        pause_s = FIRST_JOURNAL_PAUSE_S
        while True:
            try:
                self.deliver(event)
                return
            except JournalError as error:
                log.error("session %s waits for its journal: %s", self.session.name, error)
            await anyio.sleep(pause_s)
            pause_s = min(pause_s * 2, LAST_JOURNAL_PAUSE_S)

    @property
    def busy(self) -> bool:
        """Whether an order is in flight."""
        return bool(self._flights)

    def _handle(self, event: Event) -> None:
        before = self.session
        session, effects = step(before, event)
        if self._prepare is not None and session.phase is not before.phase:
            self._prepare(session)
        if self._journal is not None and session is not before:
            self._journal.append(session.name, event)
        self.session = session
        for effect in effects:
            self._start(effect)
        self._performs.settled(session)
        if self._follow is not None:
            self._follow(before, event, session, effects)
        if self._observers:
            transition = _transition(before, event, session, effects)
            for observe in self._observers:
                observe(transition)

    def _knows(self, waiter: int) -> bool:
        session = self.session
        return any(
            waiter in waiters
            for waiters in (session.seed_waiters, session.activation_waiters, session.close_waiters)
        )

    def _start(self, effect: Effect) -> None:
        if isinstance(effect, Reply):
            waiter = None if self._waiters is None else self._waiters.get(effect.waiter)
            if waiter is not None:
                waiter.answer(effect)
        elif isinstance(effect, StartTimer):
            self._start_timer(effect)
        else:
            if isinstance(effect, StopHarness):
                self._drop_flights()
            flight = _Flight(effect)
            self._flights[effect.number] = flight
            if self._chain is not None:
                self._chain.append(flight)
            else:
                self._spawn(partial(self._fly, flight))

    def _drop_flights(self) -> None:
        # The waiting for the run's end is over; the exec itself is kept until it is released.
        for flight in self._flights.values():
            flight.dropped = True
            flight.cut()

    async def _fly(self, flight: _Flight) -> None:
        """Perform an order, and in the same task those that follow from its answer, one after the other."""
        following: _Flight | None = flight
        while following is not None:
            answer = await self._answer(following)
            if answer is None or following.dropped:
                return
            following = await self._post_answer(answer)

    async def _post_answer(self, answer: Answer) -> _Flight | None:
        chain: list[_Flight] = []
        self._chain = chain
        try:
            self.deliver(answer)
        except JournalError:
            self._chain = None
            await self.post(answer)
        finally:
            self._chain = None
        for other in chain[1:]:
            self._spawn(partial(self._fly, other))
        return chain[0] if chain else None

    async def _answer(self, flight: _Flight) -> Answer | None:
        order, answer = flight.order, None
        try:
            deadline = inf if order.timeout_s is None else anyio.current_time() + order.timeout_s
            with anyio.CancelScope(deadline=deadline) as flight.scope:
                if flight.is_cut:
                    flight.scope.cancel()
                if isinstance(order, CancelPending):
                    await self._cancel(order)
                    return None
                answer = await self._performs.perform(order)
            if answer is None:
                answer = self._cut_short(flight)
        finally:
            del self._flights[order.number]
            if not self._flights:
                self._flights = {}  # An emptied one keeps its memory.
            flight.end()
        return answer

    def _cut_short(self, flight: _Flight) -> Answer | None:
        if not flight.is_cut:
            return StepTimedOut(at=anyio.current_time(), order=flight.order.number)
        return None if flight.dropped else self._performs.cancelled(flight.order)

    async def _cancel(self, order: CancelPending) -> None:
        pending = self._flights.get(order.pending)
        if pending is None:
            return
        if not isinstance(pending.order, CreateSandbox):
            pending.cut()
        await pending.ended()

    def _start_timer(self, timer: StartTimer) -> None:
        self.stop_timer()
        if self._alarms is not None:
            self._alarm = self._alarms.set(timer.delay_s, partial(self._ring, timer))

    def _ring(self, timer: StartTimer) -> None:
        self._alarm = None
        event = TIMER_EVENTS[timer.kind](at=anyio.current_time(), timer=timer.number)
        try:
            self.deliver(event)
        except JournalError:
            self._spawn(partial(self.post, event))

    def stop_timer(self) -> None:
        """Forget the timer: for a session whose record is dropped."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None


def _transition(before: Session, event: Event, after: Session, effects: tuple[Effect, ...]) -> dict[str, Any]:
    return {
        "session": after.name,
        "phase": after.phase.name,
        "run": after.run.phase.name,
        "before": before.phase.name,
        "event": type(event).__name__,
        "effects": [type(effect).__name__ for effect in effects],
        "at": event.at,
    }
