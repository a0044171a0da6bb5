"""The recorded histories that the benchmark replays are what the machine says of real sessions."""

import json

import pytest

from inspan_core.effects import GapCode
from inspan_core.journal import decode_event
from inspan_core.machine import fold, new_session
from inspan_core.session import Phase


@pytest.fixture(scope="module")
def sessions(root):
    stored = json.loads((root / "benchmarks/data/histories.json").read_text())
    return {
        each["name"]: fold(new_session(each["name"]), [decode_event(event) for event in each["events"]])
        for each in stored
    }


def test_the_recorded_sessions_end_as_they_did(sessions):
    assert {name: session.phase for name, session in sessions.items()} == dict.fromkeys(
        ["owned", "borrowed", "cut", "no-model"], Phase.CLOSED
    )
    assert {name for name, session in sessions.items() if session.gradable} == {"owned", "borrowed"}
    assert sessions["no-model"].answer.status == 503
    assert sessions["cut"].answer is None


def test_what_they_lack_is_named(sessions):
    codes = {name: [gap.code for gap in session.close_answer.body.gaps] for name, session in sessions.items()}
    assert codes["owned"] == codes["borrowed"] == []
    assert GapCode.NEVER_ACTIVATED not in codes["cut"]
