"""The server and what holds its sandbox alive are killed together: the sandbox is gone, and provably so.

Nobody can go on with such a run: it is answered as a failure that another episode may cure, its close
succeeds, a finished result stays what it was, and nothing is left.
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import pytest

pytestmark = [pytest.mark.sandbox, pytest.mark.timeout(180)]
RECORDS = [
    "SeedRequested", "SandboxReady", "Installed", "ActivateRequested", "SlotGranted", "Staged",
    "ExecReturned", "TerminationConfirmed", "Collected", "Parsed", "CloseRequested", "SandboxStopped",
]  # fmt: skip
QUICK = {"SandboxReady", "Installed", "ExecReturned", "Parsed"}
SET_UP_ANEW = {"SeedRequested", "SandboxReady"}
IS_FINISHED = {"Parsed", "CloseRequested", "SandboxStopped"}


def parent_of(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]


def kill_keepers(world):
    """Of all processes that hold a sandbox, those that no other of them began."""
    with contextlib.suppress(OSError):
        found = {pid for pid, _ in world.processes()}
        for pid in [pid for pid in found if parent_of(pid) not in found]:
            os.kill(int(pid), signal.SIGKILL)


@pytest.mark.parametrize(
    "record", [each if each in QUICK else pytest.param(each, marks=pytest.mark.full) for each in RECORDS]
)
def test_killed_with_the_keeper_at_a_record(worlds, wait_for, record):
    world = worlds(kill_at=record)
    world.at_death = lambda: kill_keepers(world)
    seeded, activated, closed = world.episode()
    assert (seeded.status_code, closed.status_code) == (200, 200), closed.text
    assert world.kills == 1 or record == "ExecReturned"
    if record in SET_UP_ANEW or record in IS_FINISHED:
        assert activated.status_code == 200, activated.text
    if activated.status_code == 200:
        assert "it is done" in activated.text and world.launches() == 1
    else:
        assert activated.status_code == 503 and world.launches() <= 1, activated.text
    for once in ("TerminationConfirmed", "Collected", "Parsed"):
        assert world.records().count(once) <= 1
    assert world.closes_again() == closed.json()
    wait_for(lambda: not world.processes() and not world.sandboxes(), "the end of the sandbox")
    world.at_death = None
    launches = world.launches()
    assert [answer.status_code for answer in world.episode("another", "another")] == [200] * 3
    assert world.launches() == launches + 1
    assert world.sandboxes() == set() and world.processes() == []
