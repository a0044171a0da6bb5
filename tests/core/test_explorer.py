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
from inspan_core.testing.mechanical import EQUIVALENT, mechanical
from inspan_core.testing.mutants import MUTANTS
from inspan_core.testing.stories import told
from inspan_core.testing.trials import try_mechanical


@pytest.fixture(scope="module")
def report() -> Report:
    return explore(waiters=2)


def test_every_promise_holds_in_every_reachable_state(report: Report) -> None:
    assert [str(finding) for finding in report.findings] == []


def test_everything_in_the_tables_is_reached(report: Report) -> None:
    assert report.unreached == []


@pytest.mark.full
@pytest.mark.timeout(1200)
def test_every_promise_holds_with_three_waiters_of_each_kind() -> None:
    report = explore(waiters=3)
    assert [str(finding) for finding in report.findings] == []
    assert report.unreached == []
    assert report.states > 5000


def test_the_exploration_is_not_a_small_one(report: Report) -> None:
    assert report.states > 3000
    assert report.transitions > 10 * report.states
    assert report.probes > 10 * report.states
    assert report.depth > 10


def test_recording_leaves_the_tables_as_they_were() -> None:
    before = [dict(table) for table in (SESSION, LEARN, LADDERS)]
    explore(waiters=1, stop_at_first=True)
    assert [dict(table) for table in (SESSION, LEARN, LADDERS)] == before
    assert len(set(places())) == len(list(places()))


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
@pytest.mark.timeout(3000)
def test_mechanical_mutants_are_found_out_unless_they_are_equal_machines() -> None:
    tally = try_mechanical(mechanical(), EQUIVALENT)
    assert tally.survived == []
    assert set(tally.equivalent) == set(EQUIVALENT), "each equal machine is still made, and still survives"
    assert all(EQUIVALENT.values()), "each has a reason"
    assert tally.killed > 150


def _command(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "inspan_core", *arguments],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


@pytest.mark.timeout(300)
def test_the_command_prints_one_json_object() -> None:
    done = _command("check", "--json", "--waiters", "1", "--no-mutants")
    assert (done.returncode, done.stderr) == (0, "")
    answer = json.loads(done.stdout)
    assert answer["violations"] == []
    assert answer["unreached"] == []
    assert answer["states"] > 2000
    assert answer["transitions"] > answer["states"]
    assert answer["depth"] > 10
    assert answer["contract"]["requests"] > answer["contract"]["transitions"]
    assert answer["seconds"] > 0
    assert answer["mutants"] == {"killed": None, "survived": None, "equivalent": None}


@pytest.mark.parametrize("waiters", ["0", "10", "two"])
def test_the_command_refuses_a_number_of_waiters_that_makes_no_sense(waiters: str) -> None:
    done = _command("check", "--waiters", waiters)
    assert done.returncode == 2
    assert waiters in done.stderr


def test_the_command_does_not_take_all_mutants_and_none() -> None:
    assert _command("check", "--mutants", "--no-mutants").returncode == 2
