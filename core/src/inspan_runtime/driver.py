"""The driver of one session: event in, `step`, journal, then effects out.

Nothing is decided here. `deliver` is synchronous, so what a request binds is bound before anything is
awaited; events that arrive while one is handled, or while its record is on its way to the disk, wait in the
mailbox. Each order is performed by one coroutine, in a place that outlives the caller (`spawn`), and posts
exactly one answer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from math import inf

import anyio

from inspan_core.answers import Answer, StepTimedOut
from inspan_core.effects import (
    CancelPending,
    CreateSandbox,
    Effect,
    Reply,
    StartTimer,
    StopHarness,
)
from inspan_core.errors import NotAllowed
from inspan_core.events import ClientGone, Event, Request
from inspan_core.machine import step
from inspan_core.session import Phase, Session
from inspan_runtime.alarms import Alarm, Alarms
from inspan_runtime.driver_needs import Follow, Observer, Performs, Prepare, transition
from inspan_runtime.flights import Flight, Waiter
from inspan_runtime.journal import Journal, JournalError, Ticket
from inspan_runtime.room import Spawn
from inspan_runtime.timer_events import TIMER_EVENTS
from inspan_runtime.times import now
from inspan_runtime.waiting import Gone, WaiterGone

FIRST_JOURNAL_PAUSE_S, LAST_JOURNAL_PAUSE_S = 0.1, 5.0
log = logging.getLogger(__name__)


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
        alarms: Where timers and the budgets of orders run; by default timers run in alarms of its own, and
            budgets by the event loop's.
    """

    __slots__ = (
        "_alarm",
        "_alarms",
        "_chain",
        "_flights",
        "_follow",
        "_is_working",
        "_journal",
        "_mailbox",
        "_next_waiter",
        "_observers",
        "_performs",
        "_prepare",
        "_shared_alarms",
        "_spawn",
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
        self._shared_alarms = alarms
        self._alarms = (alarms if alarms is not None else Alarms(spawn)) if timers else None
        self._mailbox: tuple[Event, ...] = ()
        self._is_working = False
        self._waiters: dict[int, Waiter] | None = None
        self._next_waiter = 1
        self._flights: dict[int, Flight] = {}
        self._chain: list[Flight] | None = None
        self._alarm: Alarm | None = None

    async def ask(
        self,
        request: Callable[[int, float], Request],
        *,
        gone: Gone | None = None,
        bind: Callable[[], object] | None = None,
    ) -> Reply:
        """Deliver a request and wait for its reply. Being cancelled only forgets this waiter.

        Args:
            request: Makes the event from the waiter's number and the time.
            gone: Watches the waiter's connection.
            bind: Called when the request changes the session's phase, before its event is journalled.

        Raises:
            WaiterGone: `gone` returned before there was a reply.
            JournalError: The request could not be journalled; nothing changed.
        """
        number, waiter = self._next_waiter, Waiter(bind)
        self._next_waiter += 1
        waiters = self._waiters = self._waiters if self._waiters is not None else {}
        waiters[number] = waiter
        try:
            self.deliver(request(number, now()))
            if not waiter.is_answered:
                await waiter.wait(gone)
        finally:
            del waiters[number]
            if not waiters:
                self._waiters = None
            if not waiter.is_answered and self._knows(number):
                with suppress(JournalError):  # Then the reply goes to nobody, which does no harm.
                    self.deliver(ClientGone(at=now(), waiter=number))
        if waiter.error is not None:
            raise waiter.error
        if waiter.reply is None:
            raise WaiterGone(f"nobody waits for the reply of session {self.session.name} any more")
        return waiter.reply

    def deliver(self, event: Event) -> None:
        """Take one event; its effects are under way when this returns, unless another is being handled.

        Raises:
            NotAllowed: The event cannot happen now; nothing changed.
            JournalError: The event could not be journalled; nothing changed.
        """
        if self._is_working:
            self._mailbox = (*self._mailbox, event)
            return
        try:
            self._handle(event)
        finally:
            if self._mailbox:
                self._work_mailbox()

    async def post(self, event: Event, problem: JournalError | None = None) -> None:
        """Take one event that nobody would bring again, however long the journal cannot be written."""
        pause_s = FIRST_JOURNAL_PAUSE_S
        while True:
            if problem is not None:
                log.error("session %s waits for its journal: %s", self.session.name, problem)
                await anyio.sleep(pause_s)
                pause_s = min(pause_s * 2, LAST_JOURNAL_PAUSE_S)
            try:
                self.deliver(event)
                return
            except JournalError as error:
                problem = error

    @property
    def busy(self) -> bool:
        """Whether an order is in flight."""
        return bool(self._flights)

    @property
    def is_working(self) -> bool:
        """Whether an event is being handled: its record may still be on its way to the disk."""
        return self._is_working

    def _handle(self, event: Event) -> None:
        self._is_working = True
        ticket = None
        try:
            before = self.session
            session, effects = step(before, event)
            if session is not before:
                if session.phase is not before.phase:
                    self._bind(event, session)
                if self._journal is not None:
                    ticket = self._journal.append(session.name, event)
            if ticket is None:
                self._commit(before, event, session, effects)
            else:
                self._spawn(partial(self._hold, ticket, before, event, session, effects))
        finally:
            self._is_working = ticket is not None

    def _bind(self, event: Event, session: Session) -> None:
        if isinstance(event, Request):
            waiter = self._waiter(event.waiter)
            if waiter is not None and waiter.bind is not None:
                waiter.bind()
        if self._prepare is not None:
            self._prepare(session)

    def _commit(self, before: Session, event: Event, session: Session, effects: tuple[Effect, ...]) -> None:
        self.session = session
        for effect in effects:
            self._start(effect)
        self._performs.settled(session)
        if self._follow is not None:
            self._follow(before, event, session, effects)
        if self._observers:
            told = transition(before, event, session, effects)
            for observe in self._observers:
                observe(told)

    async def _hold(
        self, ticket: Ticket, before: Session, event: Event, session: Session, effects: tuple[Effect, ...]
    ) -> None:
        """Commit an event once its record is durable; what comes meanwhile waits in the mailbox."""
        chain: list[Flight] = []
        try:
            await ticket.durable()
            self._chain = chain
            self._commit(before, event, session, effects)
        except JournalError as error:
            self._refuse(event, error)
        finally:
            self._chain = None
            self._is_working = False
        self._work_mailbox()
        for flight in chain:  # There is one at most.
            await self._fly(flight)

    def _work_mailbox(self) -> None:
        while self._mailbox and not self._is_working:
            event, self._mailbox = self._mailbox[0], self._mailbox[1:]
            try:
                self._handle(event)
            except (JournalError, NotAllowed) as error:
                self._refuse(event, error)

    def _refuse(self, event: Event, error: JournalError | NotAllowed) -> None:
        """Whoever delivered the event has left: its waiter is told, and an answer is brought again."""
        if isinstance(event, Request):
            waiter = self._waiter(event.waiter)
            if waiter is not None:
                waiter.fail(error)
        elif isinstance(error, JournalError):
            self._spawn(partial(self.post, event, error))
        else:
            log.warning("%s", error)
        if isinstance(error, JournalError) and self.session.phase is Phase.NEW:
            self.retire(error)  # They would go on with the contents of the one that never was.

    def retire(self, error: JournalError) -> None:
        """Refuse the requests that wait to be handled: for a session whose record is dropped."""
        waiting, self._mailbox = self._mailbox, ()
        for event in waiting:
            if isinstance(event, Request):
                self._refuse(event, error)

    def _waiter(self, number: int | None) -> Waiter | None:
        return None if self._waiters is None or number is None else self._waiters.get(number)

    def _knows(self, waiter: int) -> bool:
        session = self.session
        return (
            self._is_working
            or waiter in session.seed_waiters
            or waiter in session.activation_waiters
            or waiter in session.close_waiters
        )

    def _start(self, effect: Effect) -> None:
        kind = type(effect)
        if kind is Reply:
            waiter = self._waiter(effect.waiter)  # type: ignore[union-attr]  # it is a Reply
            if waiter is not None:
                waiter.answer(effect)  # type: ignore[arg-type]
        elif kind is StartTimer:
            self._start_timer(effect)  # type: ignore[arg-type]
        else:
            if kind is StopHarness:
                self._drop_flights()
            flight = Flight(effect)  # type: ignore[arg-type]
            self._flights[flight.order.number] = flight
            if self._chain is not None:
                self._chain.append(flight)
            else:
                self._spawn(partial(self._fly, flight))

    def _drop_flights(self) -> None:
        # The waiting for the run's end is over; the exec itself is kept until it is released.
        for flight in self._flights.values():
            flight.dropped = True
            flight.cut()

    async def _fly(self, flight: Flight) -> None:
        """Perform an order, and in the same task those that follow from its answer, one after the other."""
        following: Flight | None = flight
        while following is not None:
            answer, is_over = None, False
            # One scope for all of them; one that was cancelled is of no use for the next.
            with anyio.CancelScope() as scope:
                while following is not None:
                    flight, is_over = following, False
                    answer = await self._answer(flight, scope)
                    is_over = True
                    if scope.cancel_called:
                        break
                    following = await self._post_answer(flight, answer)
            if following is not None:
                following = await self._post_answer(flight, answer if is_over else self._cut_short(flight))

    async def _post_answer(self, flight: Flight, answer: Answer | None) -> Flight | None:
        if answer is None or flight.dropped:
            return None
        chain: list[Flight] = []
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

    async def _answer(self, flight: Flight, scope: anyio.CancelScope) -> Answer | None:
        order, flight.scope = flight.order, scope
        try:
            if flight.is_cut:
                scope.cancel()
            if order.timeout_s is not None:
                flight.at = now() + order.timeout_s
                if self._shared_alarms is not None:
                    self._shared_alarms.add(flight)
                else:
                    scope.deadline = flight.at
            if type(order) is CancelPending:
                await self._cancel(order)
                return None
            return await self._performs.perform(order)
        finally:
            del self._flights[order.number]
            if not self._flights:
                self._flights = {}  # An emptied one keeps its memory.
            flight.end()
            if self._shared_alarms is None:
                scope.deadline = inf

    def _cut_short(self, flight: Flight) -> Answer | None:
        if not flight.is_cut:
            return StepTimedOut(at=now(), order=flight.order.number)
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
        event = TIMER_EVENTS[timer.kind](at=now(), timer=timer.number)
        try:
            self.deliver(event)
        except JournalError:
            self._spawn(partial(self.post, event))

    def stop_timer(self) -> None:
        """Forget the timer: for a session whose record is dropped."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
