"""The driver of one session: event in, `step`, journal, then effects out.

Nothing is decided here. `deliver` is synchronous, so what a request binds is bound before anything is
awaited; events that arrive while one is handled wait in the mailbox. Each order is performed by one
coroutine, in a place that outlives the caller (`spawn`), and posts exactly one answer.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
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
from inspan_runtime.journal import Journal, JournalError
from inspan_runtime.room import Spawn

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


class _Waiter:
    __slots__ = ("answered", "reply")

    def __init__(self) -> None:
        self.answered = anyio.Event()
        self.reply: Reply | None = None


class _Flight:
    """An order in flight."""

    __slots__ = ("dropped", "ended", "order", "scope")

    def __init__(self, order: Order) -> None:
        self.order = order
        self.scope = anyio.CancelScope()
        self.ended = anyio.Event()
        self.dropped = False


class SessionDriver:
    """Holds one session's state and carries out what its machine orders.

    Args:
        session: The state to start from.
        performs: Carries out orders.
        spawn: Starts a task that outlives the caller.
        journal: Where events are kept, or None.
        observers: Called with each committed transition.
        timers: Whether timers run; without them the embedding program retries and forgets by itself.
    """

    __slots__ = (
        "_flights",
        "_journal",
        "_mailbox",
        "_next_waiter",
        "_observers",
        "_performs",
        "_spawn",
        "_stepping",
        "_timer",
        "_timers",
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
        observers: tuple[Observer, ...] = (),
        timers: bool = True,
    ) -> None:
        self.session = session
        self._performs = performs
        self._spawn = spawn
        self._journal = journal
        self._observers = observers
        self._timers = timers
        self._mailbox: deque[Event] = deque()
        self._stepping = False
        self._waiters: dict[int, _Waiter] = {}
        self._next_waiter = 1
        self._flights: dict[int, _Flight] = {}
        self._timer: anyio.CancelScope | None = None

    async def ask(self, request: Callable[[int, float], Request]) -> Reply:
        """Deliver a request and wait for its reply. Being cancelled only forgets this waiter.

        Args:
            request: Makes the event from the waiter's number and the time.
        """
        number, waiter = self._next_waiter, _Waiter()
        self._next_waiter += 1
        self._waiters[number] = waiter
        try:
            self.deliver(request(number, anyio.current_time()))
            await waiter.answered.wait()
        finally:
            del self._waiters[number]
            if waiter.reply is None and self._knows(number):
                with suppress(JournalError):  # Then the reply goes to nobody, which does no harm.
                    self.deliver(ClientGone(at=anyio.current_time(), waiter=number))
        assert waiter.reply is not None  # answered is set only with a reply
        return waiter.reply

    def deliver(self, event: Event) -> None:
        """Take one event; its effects are under way when this returns, unless another is being handled.

        Raises:
            NotAllowed: The event cannot happen now; nothing changed.
            JournalError: The event could not be journalled; nothing changed.
        """
        self._mailbox.append(event)
        if self._stepping:
            return
        self._stepping = True
        try:
            while self._mailbox:
                self._handle(self._mailbox.popleft())
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
        if self._journal is not None and session is not before:
            self._journal.append(session.name, event)
        self.session = session
        for effect in effects:
            self._start(effect)
        self._performs.settled(session)
        for observe in self._observers:
            observe(_transition(before, event, session, effects))

    def _knows(self, waiter: int) -> bool:
        session = self.session
        return any(
            waiter in waiters
            for waiters in (session.seed_waiters, session.activation_waiters, session.close_waiters)
        )

    def _start(self, effect: Effect) -> None:
        if isinstance(effect, Reply):
            waiter = self._waiters.get(effect.waiter)
            if waiter is not None:
                waiter.reply = effect
                waiter.answered.set()
        elif isinstance(effect, StartTimer):
            if self._timers:
                self._start_timer(effect)
        else:
            if isinstance(effect, StopHarness):
                self._drop_flights()
            flight = _Flight(effect)
            self._flights[effect.number] = flight
            self._spawn(lambda: self._fly(flight))

    def _drop_flights(self) -> None:
        # The waiting for the run's end is over; the exec itself is kept until it is released.
        for flight in self._flights.values():
            flight.dropped = True
            flight.scope.cancel()

    async def _fly(self, flight: _Flight) -> None:
        order = flight.order
        answer: Answer | None = None
        try:
            with flight.scope, anyio.move_on_after(order.timeout_s) as budget:
                if isinstance(order, CancelPending):
                    await self._cancel(order)
                else:
                    answer = await self._performs.perform(order)
            if budget.cancelled_caught:
                answer = StepTimedOut(at=anyio.current_time(), order=order.number)
            elif answer is None and not isinstance(order, CancelPending) and not flight.dropped:
                answer = self._performs.cancelled(order)
        finally:
            del self._flights[order.number]
            flight.ended.set()
        if answer is not None and not flight.dropped:
            await self.post(answer)

    async def _cancel(self, order: CancelPending) -> None:
        pending = self._flights.get(order.pending)
        if pending is None:
            return
        if not isinstance(pending.order, CreateSandbox):
            pending.scope.cancel()
        await pending.ended.wait()

    def _start_timer(self, timer: StartTimer) -> None:
        if self._timer is not None:
            self._timer.cancel()
        scope = self._timer = anyio.CancelScope()

        async def run() -> None:
            with scope:
                await anyio.sleep(timer.delay_s)
                if self._timer is scope:
                    self._timer = None
                await self.post(TIMER_EVENTS[timer.kind](at=anyio.current_time(), timer=timer.number))

        self._spawn(run)

    def stop_timer(self) -> None:
        """Forget the timer: for a session whose record is dropped."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


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
