"""What a fuzz run is made of, as values: requests, faults, kills, the harness's manners, the schedule."""

from __future__ import annotations

from enum import Enum

from attrs import field, frozen
from hypothesis import strategies as st

from inspan_runtime.testing.fake_supervisor import HarnessPlan
from inspan_runtime.testing.faults import POSSIBLE, CallKind, Fault, FaultKind
from inspan_runtime.testing.schedules import Delay, Schedule

CALLS_OF_A_SESSION = 24
RECORDS_OF_A_SESSION = 30
DECISIONS_OF_A_SESSION = 80
DELAYS_S = (0.0, 0.05, 1.0, 25.0, 100.0)
RUNS_S = (0.0, 0.05, 1.0, 30.0, 500.0)


class Ask(Enum):
    """What a client asks for."""

    SEED = "seed"
    OTHER_SEED = "seed with another body"
    ACTIVATE = "activate"
    OTHER_ACTIVATE = "activate with another body"
    CLOSE = "close"


@frozen(kw_only=True)
class Visit:
    """A request of one more client, who knows the session's cookie.

    Attributes:
        ask: What for.
        at_call: It comes when so many calls into the world were made.
        beside: It comes at the same moment as this request of the main client instead.
        stays: The client goes away after so many more calls; None: it waits for its answer.
    """

    ask: Ask
    at_call: int = 0
    beside: Ask | None = None
    stays: int | None = None


@frozen(kw_only=True)
class Scenario:
    """One world and what happens in it. The same scenario always ends in the same way.

    Attributes:
        owned: Whether the server makes the session's sandbox, or is given one.
        harness: How the harness behaves.
        visits: Requests beside the main client's, who seeds, activates and closes.
        faults: What goes wrong.
        kills: The server dies as soon as it has made so many journal records.
        latency_s: How long a call travels.
        thinks_s: How long a main client does nothing between an answer and its next request.
        lease_s: How long an owned sandbox may live before its session is closed, or None.
        neighbour: Whether another session shares the server and its one concurrency slot.
        schedule: Which ready task goes first.
    """

    owned: bool = False
    harness: HarnessPlan = field(factory=HarnessPlan)
    visits: tuple[Visit, ...] = ()
    faults: tuple[Fault, ...] = ()
    kills: tuple[int, ...] = ()
    latency_s: float = 0.01
    thinks_s: float = 0.0
    lease_s: float | None = None
    neighbour: bool = False
    schedule: Schedule = field(factory=Schedule)


def _tuples(one: st.SearchStrategy[object], most: int) -> st.SearchStrategy[tuple[object, ...]]:
    return st.lists(one, max_size=most).map(tuple)


def _fault(call: CallKind) -> st.SearchStrategy[Fault]:
    return st.builds(
        Fault,
        call=st.just(call),
        nth=st.integers(0, 4),
        kind=st.sampled_from([kind for kind in FaultKind if kind in POSSIBLE[call]]),
        delay_s=st.sampled_from(DELAYS_S),
    )


def harness_plans() -> st.SearchStrategy[HarnessPlan]:
    """Mostly harnesses that end well."""
    return st.builds(
        HarnessPlan,
        loads_s=st.sampled_from((0.02, 3.0)),
        runs_s=st.sampled_from(RUNS_S),
        return_code=st.sampled_from((0, 1)),
        heeds_term=st.booleans(),
        is_proven=st.sampled_from((True, True, True, False)),
        dies_after_s=st.sampled_from((None, None, None, 0.5)),
    )


def schedules() -> st.SearchStrategy[Schedule]:
    """A few delays, or a shuffle."""
    delay = st.builds(
        Delay, decision=st.integers(1, DECISIONS_OF_A_SESSION), turns=st.sampled_from((1, 2, 4, 8, 20))
    )
    ordered = st.builds(Schedule, delays=_tuples(delay, 4))
    shuffled = st.builds(Schedule, shuffle=st.integers(1, 2**32))
    return st.one_of(ordered, shuffled)


def scenarios(*, kills: bool = True) -> st.SearchStrategy[Scenario]:
    """Every scenario that a fuzz run plays; simple ones first, and shrunk to simple ones."""
    stays = st.one_of(st.none(), st.integers(1, 6))
    asks = st.sampled_from(list(Ask))
    visit = st.one_of(
        st.builds(Visit, ask=asks, at_call=st.integers(0, CALLS_OF_A_SESSION), stays=stays),
        st.builds(Visit, ask=asks, beside=st.sampled_from((Ask.SEED, Ask.ACTIVATE, Ask.CLOSE)), stays=stays),
    )
    fault = st.sampled_from(list(CallKind)).flatmap(_fault)
    return st.builds(
        Scenario,
        owned=st.booleans(),
        harness=st.one_of(st.builds(HarnessPlan), harness_plans()),
        visits=_tuples(visit, 4),
        faults=_tuples(fault, 3),
        kills=_tuples(st.integers(1, RECORDS_OF_A_SESSION), 2) if kills else st.just(()),
        latency_s=st.sampled_from((0.01, 0.0)),
        thinks_s=st.sampled_from((0.0, 1.0)),
        lease_s=st.sampled_from((None, None, None, 0.1, 15.0)),
        neighbour=st.booleans(),
        schedule=schedules(),
    )
