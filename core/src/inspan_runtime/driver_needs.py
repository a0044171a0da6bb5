"""What a driver asks of others: who carries out its orders, and who is told of each transition."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from inspan_core.answers import Answer
from inspan_core.effects import Effect, Order
from inspan_core.events import Event
from inspan_core.session import Session


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


def transition(before: Session, event: Event, after: Session, effects: tuple[Effect, ...]) -> dict[str, Any]:
    """What observers are told, as a JSON object."""
    return {
        "session": after.name,
        "phase": after.phase.name,
        "run": after.run.phase.name,
        "before": before.phase.name,
        "event": type(event).__name__,
        "effects": [type(effect).__name__ for effect in effects],
        "at": event.at,
    }
