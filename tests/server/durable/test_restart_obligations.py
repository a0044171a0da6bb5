"""Over many generated sessions: what a restarted server owes follows from the events alone.

Stories are random walks of the machine itself. Killed after any event, the fold of what was kept, told of the
restart, orders what the session still owes: never a second launch, a set-up undone.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inspan_core.effects import (
    AwaitReceipt,
    Collect,
    ConnectSandbox,
    CreateSandbox,
    Disconnect,
    Install,
    Launch,
    Order,
    Parse,
    Reply,
    Stage,
    StartTimer,
    StopHarness,
    StopSandbox,
    TakeSlot,
)
from inspan_core.events import (
    ActivateRequested,
    CloseRequested,
    Collected,
    Cookie,
    ExecReturned,
    Installed,
    Parsed,
    Path,
    Restarted,
    SandboxReady,
    SeedRequested,
    SlotGranted,
    Staged,
    TerminationConfirmed,
)
from inspan_core.journal import decode_event, encode_event
from inspan_core.machine import fold, new_session, step
from inspan_core.session import Evidence, Phase, SandboxFact
from inspan_core.tables import ANSWERS
from inspan_core.testing.moves import variants

SILENT = frozenset({Phase.NEW, Phase.READY, Phase.FINISHED})
RETAINED = frozenset({Phase.CLOSED, Phase.FENCED})
STEPS = 24
GOOD = frozenset(
    {SandboxReady, Installed, SlotGranted, Staged, ExecReturned, TerminationConfirmed, Collected, Parsed}
)
"""Deep places lie behind many good answers."""


def requests(at, owned):
    yield SeedRequested(at=at, waiter=1, body_digest="A", owned=owned, cookie=Cookie.ABSENT)
    yield ActivateRequested(
        at=at, waiter=2, body_digest="A", cookie=Cookie.SAME, path=Path.MATCHES, run_timeout_s=5.0
    )
    yield CloseRequested(at=at, waiter=3, cookie=Cookie.ABSENT, same_episode=True)


def story(seed):
    """The events of a session that goes somewhere: requests in order, and any answer to each order."""
    chance = random.Random(seed)
    owned, session, events, orders, asked = chance.random() < 0.5, new_session("s"), [], [], []
    for at in range(STEPS):
        choices = []
        if orders and chance.random() < 0.85:
            order = orders[-1]
            kinds = sorted(ANSWERS[type(order)], key=lambda kind: kind.__name__)
            choices = [each for kind in kinds for each in variants(kind, order.number)]
        if not choices:
            left = [each for each in requests(float(at), owned) if type(each) not in asked]
            choices = left[:1] if chance.random() < 0.8 else left
        if not choices:
            break
        good = [each for each in choices if type(each) in GOOD]
        event = chance.choice(good if good and chance.random() < 0.8 else choices)
        after, effects = step(session, event)
        if isinstance(event, SeedRequested | ActivateRequested | CloseRequested):
            asked.append(type(event))
        if after is not session:
            events.append(event)
        session = after
        orders = [each for each in effects if isinstance(each, Order)] or (
            orders if session.run.order and orders and orders[-1].number == session.run.order else []
        )
    return events


def owed(session):
    """The type of the one order that is owed with these facts; None for none, "later" for a late step."""
    run, phase = session.run, session.phase
    if phase in SILENT or phase in RETAINED:
        return None
    if phase is Phase.ACTIVE:
        if run.sandbox is SandboxFact.GONE or (run.execution_error is not None and not run.launched):
            return None
        if not run.staged:
            return TakeSlot
        if not run.launched:
            return Launch
        if run.evidence is Evidence.NONE:
            return AwaitReceipt
    else:
        if run.sandbox is SandboxFact.NONE or (not run.owned and phase is Phase.SEEDING and not run.installed
                                               and run.sandbox is not SandboxFact.LIVE):  # fmt: skip
            return None
        if run.sandbox is not SandboxFact.LIVE:
            return StopSandbox if run.owned else Disconnect
        if run.launched and run.evidence is Evidence.NONE:
            return StopHarness
    if run.evidence is Evidence.CONFIRMED and run.collect is None:
        return Collect
    return "later"


@settings(max_examples=400, deadline=None)
@given(seed=st.integers(0, 2**32), cut=st.integers(0, STEPS))
def test_what_is_owed_after_a_kill_follows_from_what_was_kept(seed, cut):
    kept = [decode_event(encode_event(event)) for event in story(seed)[:cut]]
    before = fold(new_session("s"), kept)
    assert before == fold(new_session("s"), kept), "the fold is a function of the events"
    after, effects = step(before, Restarted(at=100.0))
    orders = [each for each in effects if isinstance(each, Order)]
    assert not [each for each in effects if isinstance(each, Reply)], "nobody waits any more"
    assert len(orders) <= 1
    if before.run.launched:
        assert not any(isinstance(each, Launch | Stage | Install) for each in orders)
    if before.run.collect is not None:
        assert not any(isinstance(each, Collect) for each in orders)
    assert not any(isinstance(each, CreateSandbox | ConnectSandbox) for each in orders)
    expected = owed(before)
    if expected is None:
        assert orders == []
    elif expected != "later":
        assert [type(each) for each in orders] == [expected]
    else:
        assert not any(isinstance(each, AwaitReceipt | Collect) for each in orders)
    timers = [each for each in effects if isinstance(each, StartTimer)]
    assert len(timers) == (after.phase in RETAINED)
    # A second kill right after the restart owes the same once more.
    again = step(fold(new_session("s"), [*kept, Restarted(at=100.0)]), Restarted(at=200.0))[1]
    assert [type(each) for each in again if isinstance(each, Order)] == [type(each) for each in orders]


def test_the_stories_go_everywhere():
    """Otherwise the property above would say nothing."""
    phases, orders = set(), set()
    for seed in range(600):
        session = new_session("s")
        for event in story(seed):
            session, _ = step(session, event)
            phases.add(session.phase)
            restarted = step(session, Restarted(at=1.0))[1]
            orders |= {type(each) for each in restarted if isinstance(each, Order)}
    assert phases >= set(Phase) - {Phase.NEW}
    assert orders >= {TakeSlot, AwaitReceipt, StopHarness, Collect, Parse, StopSandbox}


@pytest.mark.parametrize("owned", [True, False])
def test_a_cut_off_set_up_lets_the_same_seed_begin_afresh(owned):
    seed = next(requests(1.0, owned))
    session, _ = step(new_session("s"), seed)
    session, effects = step(session, Restarted(at=2.0))
    assert [type(each) for each in effects if isinstance(each, Order)] == ([StopSandbox] if owned else [])
