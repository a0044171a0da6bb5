"""The explorer: what it finds of the machine, and that it can find mistakes."""

import json
import subprocess
import sys

import pytest

from inspan_core.events import Cookie, SeedRequested
from inspan_core.machine import new_session, step
from inspan_core.session import Phase
from inspan_core.tables import LADDERS, LEARN, SESSION
from inspan_core.testing.coverage import places
from inspan_core.testing.explorer import Report, explore
from inspan_core.testing.mutants import MUTANTS, Mutant, mechanical
from inspan_core.testing.stories import told

EQUAL_MACHINES = {
    f"{ladder}, swapped with the next"
    for ladder in (
        "finalize, rung 1 (the step failed)",
        "finalize, rung 2 (the sandbox is gone)",
        "finalize, rung 6 (not launched)",
        "finalize, rung 7 (its end unknown)",
        "finalize, rung 8 (confirmed and uncollected)",
        "release, borrowed, rung 3 (no sandbox)",
        "release, borrowed, rung 5 (launched, and its end unknown)",
        "release, borrowed, rung 6 (confirmed and uncollected)",
        "release, owned, rung 2 (any other step failed)",
        "release, owned, rung 6 (launched, and its end unknown)",
        "release, owned, rung 7 (confirmed and uncollected)",
    )
}
"""Swaps that change nothing: the two rungs lead to the same end, or never hold together."""


@pytest.fixture(scope="module")
def report() -> Report:
    return explore(waiters=2)


def test_every_promise_holds_in_every_reachable_state(report: Report) -> None:
    assert [str(finding) for finding in report.findings] == []


def test_everything_in_the_tables_is_reached(report: Report) -> None:
    assert report.unreached == []


def test_the_exploration_is_not_a_small_one(report: Report) -> None:
    assert report.states > 3000
    assert report.transitions > 10 * report.states
    assert report.probes > 10 * report.states


def test_recording_leaves_the_tables_as_they_were() -> None:
    before = [dict(table) for table in (SESSION, LEARN, LADDERS)]
    explore(waiters=1, stop_at_first=True)
    assert [dict(table) for table in (SESSION, LEARN, LADDERS)] == before
    assert len(set(places())) == len(list(places()))


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_a_wrong_machine_is_found_out(mutant: Mutant) -> None:
    with mutant.applied():
        found = explore(waiters=1, stop_at_first=True, cover=False)
        assert found.findings, "the explorer sees nothing wrong"
        finding = found.findings[0]
    assert finding.invariant in mutant.breaks, str(finding)
    assert finding.story, "a finding tells how it came about"


def test_a_mutant_lives_only_in_its_context() -> None:
    before = [dict(table) for table in (SESSION, LEARN, LADDERS)]
    for mutant in (*MUTANTS, *mechanical()):
        with mutant.applied():
            assert mutant.table[mutant.key] is mutant.value
    assert [dict(table) for table in (SESSION, LEARN, LADDERS)] == before


def test_a_story_is_short_and_can_be_replayed() -> None:
    mutant = next(mutant for mutant in MUTANTS if mutant.name == "a restart launches the harness again")
    with mutant.applied():
        story = explore(waiters=1, stop_at_first=True, cover=False).findings[0].story
        session = new_session("story")
        launches = []
        for chapter in story:
            session, effects = step(session, chapter.event)
            launches.extend(effect for effect in effects if type(effect).__name__ == "Launch")
    assert len(launches) == 2, "the story shows the harness launched twice"
    assert len(story) <= 8
    assert session.phase is Phase.ACTIVE
    assert told(story).splitlines()[0] == "  1. " + str(
        SeedRequested(at=0.0, waiter=1, body_digest="A", owned=False, cookie=Cookie.ABSENT)
    )


@pytest.mark.full
@pytest.mark.timeout(600)
def test_mechanical_mutants_are_found_out_unless_they_are_equal_machines() -> None:
    survivors = set()
    for mutant in mechanical():
        with mutant.applied():
            if (
                not explore(waiters=1, stop_at_first=True, cover=False).findings
                and not explore(waiters=1).unreached
            ):
                survivors.add(mutant.name)
    assert survivors == EQUAL_MACHINES


def _command(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "inspan_core", *arguments],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )


def test_the_command_prints_one_json_object() -> None:
    done = _command("check", "--json", "--waiters", "1")
    assert (done.returncode, done.stderr) == (0, "")
    answer = json.loads(done.stdout)
    assert answer["violations"] == []
    assert answer["unreached"] == []
    assert answer["states"] > 2000
    assert answer["transitions"] > answer["states"]
    assert answer["seconds"] > 0


@pytest.mark.parametrize("waiters", ["0", "10", "two"])
def test_the_command_refuses_a_number_of_waiters_that_makes_no_sense(waiters: str) -> None:
    done = _command("check", "--waiters", waiters)
    assert done.returncode == 2
    assert waiters in done.stderr
