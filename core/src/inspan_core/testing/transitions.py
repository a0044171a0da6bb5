"""One move of the explorer: what it started from, what was fed, what came of it."""

from attrs import field, frozen

from inspan_core.effects import Effect, Order, Reply, StartTimer
from inspan_core.events import ANSWER_TYPES, Answer, Event
from inspan_core.machine import step
from inspan_core.session import Phase, Session
from inspan_core.testing.states import PENDING_NUMBER, State, canonical, canonical_world
from inspan_core.testing.world import World, ordered, told

_ANSWERS = frozenset(ANSWER_TYPES)
RELEASING = frozenset({Phase.UNWINDING, Phase.CLOSING})


class Violation(Exception):
    """An invariant does not hold.

    Attributes:
        invariant: Its number.
        reason: One sentence.
    """

    def __init__(self, invariant: int, reason: str) -> None:
        super().__init__(f"invariant {invariant}: {reason}")
        self.invariant = invariant
        self.reason = reason


def require(holds: bool, invariant: int, reason: str) -> None:
    """Raise unless it holds."""
    if not holds:
        raise Violation(invariant, reason)


@frozen
class Transition:
    """One event fed to one state.

    Attributes:
        before: The state before.
        event: What was fed.
        effects: What the machine ordered, in its own numbers.
        session: The session after, in its own numbers.
        told: The world's book after the event and before the orders.
        after: The state after, in canonical numbers.
        orders: The orders among the effects.
        replies: The replies among the effects.
    """

    before: State
    event: Event
    effects: tuple[Effect, ...]
    session: Session
    told: World
    after: State
    orders: tuple[Order, ...] = field(repr=False)
    replies: tuple[Reply, ...] = field(repr=False)

    @property
    def joins_attempt(self) -> bool:
        """Whether an attempt to release goes on that had begun before this event."""
        was, now = self.before.session.phase, self.session.phase
        return was in RELEASING and now in RELEASING


def transition(before: State, event: Event) -> Transition:
    """Feed one event to a state."""
    session, effects = step(before.session, event)
    orders = tuple(effect for effect in effects if not isinstance(effect, Reply | StartTimer))
    replies = tuple(effect for effect in effects if isinstance(effect, Reply))
    is_pending = type(event) in _ANSWERS and _order(event) == PENDING_NUMBER
    middle = told(before.world, event, is_pending)
    phase, was = session.phase, before.session.phase
    world = middle
    if was is Phase.UNWINDING and phase is Phase.SEEDING:
        world = World(owned=middle.owned)
    world = ordered(world, effects)
    if phase is Phase.NEW:
        world = World()
    elif phase in (Phase.CLOSED, Phase.FENCED):
        world = World(owned=world.owned, timer=world.timer)
    after = State(
        canonical(session), canonical_world(world, phase), _tried(before, session, world, event, orders)
    )
    return Transition(before, event, effects, session, middle, after, orders, replies)


def _order(event: Event) -> int:
    answer: Answer = event  # type: ignore[assignment]  # asked only of answers
    return answer.order


def _tried(
    before: State, session: Session, world: World, event: Event, orders: tuple[Order, ...]
) -> frozenset[type]:
    phase, was = session.phase, before.session.phase
    if phase not in RELEASING:
        return frozenset()
    given = frozenset(type(order) for order in orders)
    restarted = type(event).__name__ == "Restarted"
    if was in RELEASING and not restarted:
        return before.tried | given
    if world.order is not None and not given and not restarted:
        return frozenset({world.order})
    return given
