"""Each rule's test fails when the rule is switched off.

A supervisor that is broken on purpose lets processes escape. It runs only in a sandbox of its own, with a
limit of processes, which ends with all that is in it.
"""

import pytest

from inspan_supervisor import supervisor_source

from .bench import Violation
from .mutants import EQUIVALENT, MUTANTS
from .probes import BRIEF, CROWD, PROBES

pytestmark = [pytest.mark.sandbox, pytest.mark.timeout(120)]
SAMPLE_EVERY = 4  # Of the mutants, what `make test` runs.


@pytest.fixture
def cage(portal, make_sandbox):
    """A sandbox for one supervisor."""
    bench = make_sandbox("bubblewrap", pids=CROWD + 150)
    bench.budgets = BRIEF
    portal.call(bench.prepare)
    yield bench
    portal.call(bench.sandbox.stop)


@pytest.fixture(scope="module")
def shared(portal, make_sandbox):
    """A sandbox for supervisors that keep the rules."""
    bench = make_sandbox("bubblewrap", pids=CROWD + 150)
    portal.call(bench.prepare)
    return portal.call(bench.isolate)


def sampled(mutants):
    return [
        pytest.param(one, id=one.name, marks=[] if index % SAMPLE_EVERY == 0 else [pytest.mark.full])
        for index, one in enumerate(mutants)
    ]


@pytest.mark.parametrize("mutant", sampled(MUTANTS))
def test_a_supervisor_without_the_rule_is_found_out(portal, cage, mutant):
    with pytest.raises(Violation):
        for _ in range(mutant.tries):
            portal.call(mutant.asked, cage, mutant.source())


@pytest.mark.parametrize("mutant", sampled(EQUIVALENT))
def test_an_equivalent_one_is_not(portal, cage, mutant):
    portal.call(mutant.asked, cage, mutant.source())


@pytest.mark.parametrize("name", PROBES)
def test_ours_keeps_the_rule(portal, shared, name):
    """What kills the mutants does not kill everybody; the cells among it are the matrix's own."""
    portal.call(PROBES[name], shared, supervisor_source())


def test_every_edit_applies_and_gives_a_program():
    for one in (*MUTANTS, *EQUIVALENT):
        compile(one.source(), one.name, "exec")


def test_every_question_finds_out_at_least_one():
    asked = [one.asked for one in MUTANTS]
    assert [name for name, probe in PROBES.items() if probe not in asked] == []


def test_no_two_mutants_are_called_or_edited_alike():
    every = (*MUTANTS, *EQUIVALENT)
    assert len({one.name for one in every}) == len({one.edits for one in every}) == len(every)
