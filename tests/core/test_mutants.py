"""Wrong machines are found out by the promise that they break, and their stories are tests that fail."""

import subprocess
import sys

import pytest

from inspan_core.testing import SETTINGS, fault_of, pytest_case
from inspan_core.testing.checkup import Checkup, as_json, as_text
from inspan_core.testing.contract_walk import Comparison
from inspan_core.testing.explorer import Report
from inspan_core.testing.mutant import Mutant
from inspan_core.testing.mutants import MUTANTS
from inspan_core.testing.trials import Tally, trial, try_by_hand


def named(name: str) -> Mutant:
    return next(mutant for mutant in MUTANTS if mutant.name == name)


def test_there_are_many_and_each_is_another() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 34
    assert all(mutant.breaks for mutant in MUTANTS)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_a_wrong_machine_is_found_out_and_its_pasted_story_fails(mutant: Mutant) -> None:
    finding = trial(mutant)
    assert finding is not None, "the explorer sees nothing wrong"
    assert finding.invariant in mutant.breaks, str(finding)
    story = [chapter.event for chapter in finding.story]
    case = _pasted(pytest_case(finding.reason, story))
    with mutant.applied(), pytest.raises(AssertionError):
        case()
    case()


def _pasted(source):
    names: dict = {}
    exec(compile(source, "pasted", "exec"), names)
    (case,) = (value for name, value in names.items() if name.startswith("test_"))
    return case


def test_a_case_is_run_by_pytest_as_it_is_pasted(tmp_path) -> None:
    mutant = named("a restart launches the harness again")
    finding = trial(mutant)
    assert finding is not None
    (tmp_path / "test_pasted.py").write_text(
        pytest_case(finding.reason, [chapter.event for chapter in finding.story])
    )
    arguments = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    good = subprocess.run(arguments, capture_output=True, text=True, timeout=50, check=False, cwd=tmp_path)
    assert good.returncode == 0, good.stdout
    (tmp_path / "conftest.py").write_text(
        "import pytest\n"
        "from inspan_core.testing.mutants import MUTANTS\n"
        "@pytest.fixture(autouse=True)\n"
        "def wrong():\n"
        f"    with next(each for each in MUTANTS if each.name == {mutant.name!r}).applied():\n"
        "        yield\n"
    )
    wrong = subprocess.run(arguments, capture_output=True, text=True, timeout=50, check=False, cwd=tmp_path)
    assert wrong.returncode == 1, wrong.stdout
    assert "the harness is launched a second time" in wrong.stdout


def test_a_violation_is_told_as_a_list_and_as_a_case() -> None:
    finding = trial(named("a restart launches the harness again"))
    assert finding is not None
    found = Checkup(report=Report(findings=[finding]), comparison=Comparison())
    assert not found.is_good
    text = as_text(found, 1.0)
    assert "  1. SeedRequested(" in text
    assert "def test_the_harness_is_launched_a_second_time() -> None:" in text
    assert "mutants: not run" in text
    assert '"case": "from inspan_core.events import' in as_json(found, 1.0)


def test_a_mutant_that_gets_away_is_told_and_makes_the_check_fail() -> None:
    tally = try_by_hand([Mutant("nothing is wrong", {1: 1}, 1, 1, (1,))])
    assert tally == Tally(survived=["nothing is wrong"])
    found = Checkup(report=Report(), comparison=Comparison(), tally=tally)
    assert not found.is_good
    assert "not found out: nothing is wrong" in as_text(found, 1.0)
    assert '"mutants": {"killed": 0, "survived": 1, "equivalent": 0}' in as_json(found, 1.0)


def test_an_empty_story_is_kept() -> None:
    assert fault_of((), SETTINGS) is None
