"""The server is killed at every record of its journal, started again, and the client retries.

In every cell at most one launch takes effect, one collection is completed, one sandbox exists at a time, the
client gets one response, the close succeeds, and nothing is left. It is counted from outside: by a file that
the harness's own command writes to the host, by the model's server, by sandboxes' folders and processes.
"""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.sandbox, pytest.mark.timeout(180)]
RECORDS = [
    "SeedRequested", "SandboxReady", "Installed", "ActivateRequested", "SlotGranted", "Staged",
    "ExecReturned", "TerminationConfirmed", "Collected", "Parsed", "CloseRequested", "SandboxStopped",
]  # fmt: skip
EITHER = {"ExecReturned", "ExecReleased"}
FULL = pytest.mark.full


def test_without_a_kill_the_journal_has_these_records(worlds):
    world = worlds(kill_at=0)
    assert [answer.status_code for answer in world.episode()] == [200, 200, 200]
    # Where the receipt is seen before the end of the exec, that is told later.
    told = [record for record in world.records() if record not in EITHER]
    assert told == [record for record in RECORDS if record not in EITHER]


@pytest.mark.parametrize("moment", [pytest.param("before", marks=FULL), "after"])
@pytest.mark.parametrize("record", RECORDS)
def test_killed_at_a_record(worlds, played, record, moment):
    world = worlds(kill_at=record, moment=moment)
    played(world)
    assert world.kills == 1 or record == "ExecReturned"


QUICK_FULL_SYNC = [("Staged", "after"), ("ExecReturned", "before"), ("CloseRequested", "after")]


@pytest.mark.parametrize(
    ("record", "moment"),
    [
        pytest.param(record, moment, marks=() if (record, moment) in QUICK_FULL_SYNC else FULL)
        for record in RECORDS
        for moment in ("before", "after")
    ],
)
def test_killed_at_a_record_that_waits_for_the_disk(worlds, played, record, moment):
    world = worlds(kill_at=record, moment=moment, journal_sync="full")
    played(world)
    assert world.kills == 1 or record == "ExecReturned"


QUICK_TWICE = [
    ("SandboxReady", 1, "after"),
    ("SlotGranted", 2, "after"),
    ("Staged", 1, "before"),
    ("ExecReturned", 2, "after"),
    ("CloseRequested", 1, "after"),
]


@pytest.mark.parametrize(
    ("record", "second", "moment"),
    [
        pytest.param(record, second, moment, marks=() if (record, second, moment) in QUICK_TWICE else FULL)
        for record in RECORDS
        for second in (1, 2, 3)
        for moment in ("before", "after")
    ],
)
def test_the_next_server_is_killed_as_well_while_it_recovers(worlds, played, record, second, moment):
    """At the first, second or third record that the second server writes: a third one goes on."""
    world = worlds(kill_at=record, then=[(second, moment)])
    played(world)
    assert world.kills >= 1 + (second == 1)


@pytest.mark.full
@pytest.mark.registry
@pytest.mark.timeout(600)
@pytest.mark.parametrize("record", ["Installed", "ActivateRequested", "Staged", "ExecReturned", "Collected"])
def test_pi_goes_on_as_well(worlds, played, record):
    world = worlds(kill_at=record, harness="pi")
    played(world)
    assert world.kills == 1 or record == "ExecReturned"
