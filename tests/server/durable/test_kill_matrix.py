"""The server is killed at every record of its journal, started again, and the client retries.

In every cell at most one launch takes effect, one collection is completed, one sandbox exists at a time, the
client gets one response, the close succeeds, and nothing is left. It is counted from outside: by a file that
the harness's own command writes to the host, by the model's server, by sandboxes' folders and processes.
"""

from __future__ import annotations

import threading

import pytest

pytestmark = [pytest.mark.sandbox, pytest.mark.timeout(180)]
RECORDS = [
    "SeedRequested", "SandboxReady", "Installed", "ActivateRequested", "SlotGranted", "Staged",
    "ExecReturned", "TerminationConfirmed", "Collected", "Parsed", "CloseRequested", "SandboxStopped",
]  # fmt: skip
NEVER_LAUNCHED = ("Staged", "after")
"""The launch was ordered and nobody knows whether it was taken: it is fenced, and not ordered again."""


class Census:
    """Looks again and again how many sandboxes there are, while an episode goes on."""

    def __init__(self, world):
        self.world, self.most, self.seen = world, 0, set()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def _look(self):
        while not self._over.wait(0.01):
            now = self.world.sandboxes()
            self.most, self.seen = max(self.most, len(now)), self.seen | now

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self._thread.join(10)


def test_without_a_kill_the_journal_has_these_records(worlds):
    world = worlds(kill_at=0)
    assert [answer.status_code for answer in world.episode()] == [200, 200, 200]
    assert world.records() == RECORDS


def play(world, record, moment):
    with Census(world) as census:
        seeded, activated, closed = world.episode()
    assert world.kills == 1
    assert (seeded.status_code, closed.status_code) == (200, 200), closed.text
    launches = 0 if (record, moment) == NEVER_LAUNCHED else 1
    if launches:
        assert activated.status_code == 200 and "it is done" in activated.text
    else:
        assert activated.status_code == 503 and "never launched" in activated.json()["detail"]
    assert world.launches() == launches
    assert world.model_calls() == 2 * launches
    written = world.records()
    assert written.count("Staged") <= 1 + (record == "Staged")
    for once in ("TerminationConfirmed", "Collected", "Parsed"):
        assert written.count(once) <= 1
    assert census.most == 1
    # A set-up that was cut off is undone before another one begins; a later kill makes no second one.
    assert len(census.seen) <= (2 if is_set_up_cut(record, moment) else 1)
    assert world.closes_again() == closed.json()
    assert world.sandboxes() == set() and world.processes() == []


def is_set_up_cut(record, moment):
    """Whether the kill came between the order to make a sandbox and the record of what was installed."""
    return record in ("SeedRequested", "SandboxReady") or (record, moment) == ("Installed", "before")


@pytest.mark.parametrize("moment", [pytest.param("before", marks=pytest.mark.full), "after"])
@pytest.mark.parametrize(("kill_at", "record"), list(enumerate(RECORDS, start=1)), ids=RECORDS)
def test_killed_at_a_record(worlds, kill_at, record, moment):
    play(worlds(kill_at=kill_at, moment=moment), record, moment)


@pytest.mark.full
@pytest.mark.registry
@pytest.mark.timeout(600)
@pytest.mark.parametrize("record", ["Installed", "ActivateRequested", "Staged", "ExecReturned", "Collected"])
def test_pi_goes_on_as_well(worlds, record):
    world = worlds(kill_at=RECORDS.index(record) + 1, moment="after", harness="pi")
    play(world, record, "after")
