"""Properties that hold along every walk through the machine's states, in real numbers."""

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from inspan_core.effects import Effect, Reply, StartTimer
from inspan_core.errors import NotAllowed
from inspan_core.events import ClientGone, Event, Restarted
from inspan_core.machine import fold, new_session, step
from inspan_core.session import Session
from inspan_core.testing.explorer import SETTINGS
from inspan_core.testing.invariants import check_transition
from inspan_core.testing.moves import impossible_events, late_events, refused_requests
from inspan_core.testing.states import canonical
from inspan_core.testing.walks import Walk

CHOICES = st.lists(st.integers(min_value=0, max_value=10**6), max_size=60)


def waiting(session: Session) -> set[int]:
    return {*session.seed_waiters, *session.activation_waiters, *session.close_waiters}


@settings(deadline=None)
@given(CHOICES)
def test_a_fold_of_the_events_gives_the_same_session(choices: list[int]) -> None:
    walk = Walk()
    walk.follow(choices)
    assert fold(new_session("walk", SETTINGS), walk.events) == walk.session


@settings(deadline=None)
@given(CHOICES, st.integers(min_value=0, max_value=60))
def test_a_fold_may_begin_anywhere(choices: list[int], cut: int) -> None:
    walk = Walk()
    walk.follow(choices)
    halfway = fold(new_session("walk", SETTINGS), walk.events[:cut])
    assert fold(halfway, walk.events[cut:]) == walk.session


@settings(deadline=None)
@given(CHOICES)
def test_numbers_and_waiters_are_names_only(choices: list[int]) -> None:
    walk = Walk()
    for choice in choices:
        move = walk.go(choice)
        assert canonical(walk.session) == walk.state.session
        assert [_shape(effect) for effect in walk.effects[-1]] == [_shape(effect) for effect in move.effects]


def _shape(effect: Effect) -> object:
    if isinstance(effect, Reply):
        return (effect.status, type(effect.body))
    return effect.kind if isinstance(effect, StartTimer) else type(effect)


@settings(deadline=None)
@given(CHOICES)
def test_order_and_timer_numbers_only_grow(choices: list[int]) -> None:
    walk = Walk()
    walk.follow(choices)
    numbers = [
        effect.number for effects in walk.effects for effect in effects if not isinstance(effect, Reply)
    ]
    assert numbers == sorted(set(numbers))


@settings(deadline=None)
@given(CHOICES)
def test_what_is_refused_or_late_changes_nothing(choices: list[int]) -> None:
    walk = Walk()
    walk.follow(choices)
    session = walk.state.session
    for event in refused_requests(walk.state):
        assert step(session, event)[0] is session
    for event in late_events(walk.state):
        assert step(session, event) == (session, ())
    for event in impossible_events(walk.state):
        _changes_nothing(session, event)


def _changes_nothing(session: Session, event: Event) -> None:
    before = hash(session)
    try:
        after, effects = step(session, event)
    except NotAllowed as error:
        assert error.phase == session.phase.value
        assert error.event == type(event).__name__
    else:
        assert (after, effects) == (session, ())
    assert hash(session) == before


class Clients(RuleBasedStateMachine):
    """Clients who come, go and wait while the world does what it may: each is answered exactly once."""

    @initialize()
    def begin(self) -> None:
        self.walk = Walk(waiters=3)
        self.owed: set[int] = set()
        self.answered: set[int] = set()

    @rule(choice=st.integers(min_value=0, max_value=10**6))
    def anything(self, choice: int) -> None:
        check_transition(self.walk.go(choice))
        event = self.walk.events[-1]
        waiter = getattr(event, "waiter", None)
        if isinstance(event, Restarted):
            self.owed.clear()
        elif isinstance(event, ClientGone):
            self.owed.discard(event.waiter)
        elif waiter is not None:
            self.owed.add(waiter)
        for effect in self.walk.effects[-1]:
            if isinstance(effect, Reply):
                assert effect.waiter in self.owed, "answered, but nobody waits"
                assert effect.waiter not in self.answered, "answered twice"
                self.owed.remove(effect.waiter)
                self.answered.add(effect.waiter)

    @invariant()
    def nobody_is_forgotten(self) -> None:
        if hasattr(self, "walk"):
            assert waiting(self.walk.session) == self.owed


Clients.TestCase.settings = settings(max_examples=100, stateful_step_count=60, deadline=None)
test_each_client_is_answered_exactly_once = Clients.TestCase
