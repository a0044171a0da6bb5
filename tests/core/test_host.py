"""The embedding API refuses what cannot be: a typed error that names session, phase and event."""

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from inspan_core.answers import ANSWER_TYPES, Installed, SandboxReady, Staged
from inspan_core.effects import ConnectSandbox, Install
from inspan_core.errors import NotAllowed, UsageError
from inspan_core.events import ClientGone, CloseRequested, Cookie, Restarted, SeedRequested, WindowEnded
from inspan_core.host import Host
from inspan_core.machine import new_session, step
from inspan_core.session import Phase, Settings
from inspan_core.testing.moves import moves, variants
from inspan_core.testing.states import State, canonical
from inspan_core.testing.stories import renumbered
from inspan_core.testing.transitions import transition
from inspan_core.testing.world import World

SETTINGS = Settings(lease_s=3600.0)
NAMES = ("a", "b")


def seed(*, waiter=1, at=1.0, body="A"):
    return SeedRequested(at=at, waiter=waiter, body_digest=body, owned=False, cookie=Cookie.ABSENT)


def refused(host, name, event, reason):
    before = dict(host.sessions)
    phase = host.session(name).phase.value
    with pytest.raises(NotAllowed, match=reason) as caught:
        host.deliver(name, event)
    error = caught.value
    assert (error.session, error.phase, error.event) == (name, phase, type(event).__name__)
    assert isinstance(error, UsageError)
    assert dict(host.sessions) == before


def test_a_session_is_driven_by_its_name():
    host = Host()
    (connect,) = host.deliver("a", seed())
    assert isinstance(connect, ConnectSandbox)
    (install,) = host.deliver("a", SandboxReady(at=1.0, order=connect.number))
    assert isinstance(install, Install)
    assert host.sessions["a"].phase is Phase.SEEDING
    assert host.session("b").phase is Phase.NEW
    assert set(host.sessions) == {"a"}


def test_an_answer_to_an_effect_never_ordered_is_an_error():
    host = Host()
    (connect,) = host.deliver("a", seed())
    refused(host, "a", SandboxReady(at=1.0, order=connect.number + 1), "never given")
    refused(host, "a", SandboxReady(at=1.0, order=0), "never given")
    refused(host, "a", WindowEnded(at=1.0, timer=77), "timer 77 was never given")
    refused(host, "b", Staged(at=1.0, order=1), "never given")
    host.deliver("a", SandboxReady(at=1.0, order=connect.number))
    refused(host, "a", SandboxReady(at=1.0, order=connect.number), "is over already")


def test_an_event_for_another_session_is_an_error_that_names_it():
    host = Host()
    (ours,) = host.deliver("a", seed())
    (theirs,) = host.deliver("b", seed())
    assert ours.number != theirs.number
    refused(host, "a", SandboxReady(at=1.0, order=theirs.number), f"order {theirs.number} is of session b")


def test_a_wrong_answer_is_an_error_that_names_the_order():
    host = Host()
    (connect,) = host.deliver("a", seed())
    refused(host, "a", Installed(at=1.0, order=connect.number), "which is ConnectSandbox")


def test_time_does_not_go_backwards_but_a_restart_sets_it_anew():
    host = Host()
    (connect,) = host.deliver("a", seed(at=10.0))
    refused(host, "a", SandboxReady(at=9.0, order=connect.number), "time goes backwards from 10.0 to 9.0")
    refused(host, "a", SandboxReady(at=float("nan"), order=connect.number), "time goes backwards")
    refused(host, "a", SandboxReady(at=None, order=connect.number), "no number of seconds")
    host.deliver("b", seed(at=1.0))
    host.deliver("a", Restarted(at=2.0))
    refused(host, "a", SandboxReady(at=2.0, order=connect.number), "is over already")


@pytest.mark.parametrize("thing", [object(), None, "Staged", Phase.NEW])
def test_what_is_no_event_is_an_error(thing):
    host = Host()
    host.deliver("a", seed())
    refused(host, "a", thing, "it is not an event")
    with pytest.raises(NotAllowed, match=r"session s1: .* it is not an event"):
        step(new_session("s1"), thing)


def test_a_client_that_waits_cannot_ask_again_under_its_number():
    host = Host()
    host.deliver("a", seed())
    refused(host, "a", seed(), "client 1 waits already")
    host.deliver("a", ClientGone(at=1.0, waiter=1))
    host.deliver("a", seed())
    assert host.session("a").seed_waiters == (1,)


def test_the_machine_itself_knows_an_order_that_it_has_not_given_yet():
    session, (connect,) = step(new_session("s1"), seed())
    for kind in ANSWER_TYPES:
        event = next(variants(kind, connect.number + 1))
        with pytest.raises(NotAllowed, match=r"session s1: \w+ is not allowed .* was never given") as caught:
            step(session, event)
        assert (caught.value.session, caught.value.phase) == ("s1", "SEEDING")


def test_a_session_that_is_over_leaves_nothing():
    host = Host()
    close = CloseRequested(at=0.0, waiter=1, cookie=Cookie.ABSENT, same_episode=True)
    timer = host.deliver("a", close)[0]
    host.deliver("a", WindowEnded(at=300.0, timer=timer.number))
    assert dict(host.sessions) == {}


class Play:
    """Two sessions of one host, each beside the explorer's world."""

    def __init__(self):
        self.host = Host(SETTINGS)
        self.states = {name: State(canonical(new_session(name, SETTINGS)), World()) for name in NAMES}
        self.events = {name: [] for name in NAMES}
        self.owed = {name: {} for name in NAMES}
        self.now = 0.0
        self.waiter = 0

    def go(self, name, choice):
        """Make one of the moves that are open."""
        open_moves = list(moves(self.states[name], 2))
        move = open_moves[choice % len(open_moves)]
        self.now += 1.0
        self.waiter += 1
        event = evolve(renumbered(self.host.session(name), move, self.waiter), at=self.now)
        effects = self.host.deliver(name, event)
        self.states[name] = transition(self.states[name], move).after
        if name not in self.host.sessions:
            self.events[name], self.owed[name] = [], {}
            return
        self.events[name].append(event)
        if isinstance(event, Restarted):
            self.owed[name] = {}
        self.owed[name].pop(getattr(event, "order", None), None)
        for effect in effects:
            if hasattr(effect, "timeout_s"):
                self.owed[name][effect.number] = type(effect)

    def bad(self, name, kind, choice):
        """Make an event that cannot be."""
        other = NAMES[1 - NAMES.index(name)]
        answer = ANSWER_TYPES[choice % len(ANSWER_TYPES)]
        if kind == "never ordered":
            return evolve(next(variants(answer, self.host.session(name).number + 1 + choice)), at=self.now)
        if kind == "of another" and self.owed[other]:
            number = sorted(self.owed[other])[choice % len(self.owed[other])]
            return evolve(next(variants(answer, number)), at=self.now)
        if kind == "backwards" and name in self.host.sessions:
            return ClientGone(at=-1.0, waiter=self.waiter)
        return object()


CHOICES = st.tuples(st.sampled_from(NAMES), st.integers(0, 10_000))
BAD = st.sampled_from(["never ordered", "of another", "backwards", "no event"])


@settings(max_examples=60, deadline=None)
@given(st.lists(CHOICES, min_size=1, max_size=40), st.lists(st.tuples(BAD, st.integers(0, 1000)), max_size=6))
def test_whatever_happened_bad_input_is_refused_and_changes_nothing(choices, attempts):
    play = Play()
    for at, (name, choice) in enumerate(choices):
        play.go(name, choice)
        for kind, number in attempts[at % 7 : at % 7 + 1]:
            before = dict(play.host.sessions)
            event = play.bad(name, kind, number)
            with pytest.raises(NotAllowed) as caught:
                play.host.deliver(name, event)
            assert caught.value.session == name
            assert caught.value.phase == play.host.session(name).phase.value
            assert caught.value.event == type(event).__name__
            assert dict(play.host.sessions) == before


@settings(max_examples=60, deadline=None)
@given(st.lists(CHOICES, min_size=1, max_size=40))
def test_a_host_is_restored_from_what_it_took(choices):
    play = Play()
    for name, choice in choices:
        play.go(name, choice)
    restored = Host(SETTINGS)
    for name in play.host.sessions:
        restored.restore(name, play.events[name])
    assert dict(restored.sessions) == dict(play.host.sessions)
    for name in NAMES:
        if name in play.host.sessions:
            assert play.host.deliver(name, Restarted(at=play.now)) == restored.deliver(
                name, Restarted(at=play.now)
            )


def test_a_name_in_use_cannot_be_restored():
    host = Host()
    host.deliver("a", seed())
    with pytest.raises(NotAllowed, match="the name is in use"):
        host.restore("a", [seed()])
    with pytest.raises(NotAllowed, match="never given"):
        host.restore("b", [seed(), Installed(at=1.0, order=99)])
    assert set(host.sessions) == {"a"}
