"""`inspan machine check` passes on what it is asked, and prints what the core prints."""

import json

import pytest

from inspan_core.testing.mutants import MUTANTS
from inspan_server.cli.main import main


@pytest.mark.timeout(300)
def test_the_machine_is_checked_without_mutants(capsys) -> None:
    assert main(["machine", "check", "--json", "--waiters", "1", "--no-mutants"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["violations"] == []
    assert answer["states"] > 2000
    assert answer["mutants"]["killed"] is None


@pytest.mark.full
@pytest.mark.timeout(900)
def test_mutants_are_tried_by_default(capsys) -> None:
    assert main(["machine", "check", "--json", "--waiters", "3"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["mutants"] == {"killed": len(MUTANTS), "survived": 0, "equivalent": 0}
