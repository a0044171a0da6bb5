"""Make a failing scenario simpler by leaving things out, after hypothesis has shrunk its choices.

Hypothesis shrinks the numbers that a scenario was drawn from. A surprise that only shifts when another one
strikes stays in its way: leaving it out also moves the other. Here the two happen together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import attrs

from inspan_runtime.testing.scenarios import CALLS_OF_A_SESSION, RECORDS_OF_A_SESSION, Scenario
from inspan_runtime.testing.schedules import Schedule

MOST_TRIES = 2000
DECISIONS_TRIED = 60


def surprises(scenario: Scenario) -> list[object]:
    """Everything that does not happen in a calm world, one by one."""
    return [*scenario.visits, *scenario.faults, *scenario.kills, *scenario.schedule.delays]


def reduced(scenario: Scenario, fails: Callable[[Scenario], bool], *, tries: int = MOST_TRIES) -> Scenario:
    """The simplest scenario that is found to fail as well.

    Args:
        scenario: One that fails.
        fails: Whether another one fails in the same way.
        tries: Most calls of `fails`.
    """
    left = tries
    progress = True
    while progress and left:
        progress = False
        for simpler in _simpler(scenario):
            left -= 1
            if fails(simpler):
                scenario, progress = simpler, True
                break
            if not left:
                break
    return scenario


def _simpler(scenario: Scenario) -> Iterator[Scenario]:
    """Candidates, each with less in it: first plainly less, then less with what is left moved."""
    shorter = list(_shorter(scenario))
    yield from shorter
    yield from _calmer(scenario)
    for candidate in shorter:
        yield from _moved(candidate)


def _shorter(scenario: Scenario) -> Iterator[Scenario]:
    """One surprise fewer."""
    for name in ("visits", "faults", "kills"):
        for rest in _without_one(getattr(scenario, name)):
            shorter: dict[str, Any] = {name: rest}
            yield attrs.evolve(scenario, **shorter)
    if scenario.schedule.shuffle:
        yield attrs.evolve(scenario, schedule=Schedule())
    for rest in _without_one(scenario.schedule.delays):
        yield attrs.evolve(scenario, schedule=Schedule(delays=rest))


def _calmer(scenario: Scenario) -> Iterator[Scenario]:
    """One property back at its default."""
    calm = Scenario()
    for name in ("harness", "latency_s", "thinks_s", "lease_s", "neighbour", "owned"):
        if getattr(scenario, name) != getattr(calm, name):
            yield attrs.evolve(scenario, **{name: getattr(calm, name)})


def _moved(scenario: Scenario) -> Iterator[Scenario]:
    """The same surprises, one of them at another moment."""
    for index, visit in enumerate(scenario.visits):
        if visit.beside is None:
            for at in range(CALLS_OF_A_SESSION):
                moved = attrs.evolve(visit, at_call=at)
                yield attrs.evolve(scenario, visits=_with(scenario.visits, index, moved))
    for index in range(len(scenario.kills)):
        for record in range(1, RECORDS_OF_A_SESSION):
            yield attrs.evolve(scenario, kills=_with(scenario.kills, index, record))
    for index, delay in enumerate(scenario.schedule.delays):
        for decision in range(1, DECISIONS_TRIED):
            delays = _with(scenario.schedule.delays, index, attrs.evolve(delay, decision=decision))
            yield attrs.evolve(scenario, schedule=Schedule(delays=delays))


def _without_one(items: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    for index in range(len(items)):
        yield items[:index] + items[index + 1 :]


def _with(items: tuple[Any, ...], index: int, item: object) -> tuple[Any, ...]:
    return (*items[:index], item, *items[index + 1 :])
