"""The server is killed within the journal's own work: in the middle of a record, of a flush, of a take-over.

The database takes over after every third record, so that one episode goes through all of it several times; so
does the server that comes next.
"""

from __future__ import annotations

import itertools

import pytest

pytestmark = [pytest.mark.sandbox, pytest.mark.timeout(180)]
CALLS = 34
"""As many as an episode has, and some more: then nothing is killed."""

FULL = pytest.mark.full
QUICK = {("normal", 5, "half"), ("normal", 14, "after"), ("full", 12, "before")}
MOMENTS = ("before", "half", "after")


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    monkeypatch.setenv("INSPAN_TEST_BATCH", "3")


@pytest.mark.parametrize(
    ("sync", "number", "moment"),
    [
        pytest.param(*cell, marks=() if cell in QUICK else FULL)
        for cell in itertools.product(("normal", "full"), range(1, CALLS + 1), MOMENTS)
    ],
)
def test_killed_within_the_journals_work(worlds, played, sync, number, moment):
    world = worlds(kill_at=f"call:{number}", moment=moment, journal_sync=sync)
    played(world, knows_records=False)
    assert world.kills == 1 or number > 20


@FULL
@pytest.mark.parametrize("number", range(1, 13))
@pytest.mark.parametrize("moment", MOMENTS)
def test_the_next_server_is_killed_within_it_as_well(worlds, played, number, moment):
    """While it takes over what the first one left in the log, and writes that it was restarted."""
    world = worlds(kill_at="Collected", then=[(f"call:{number}", moment)])
    played(world, knows_records=False)
    assert world.kills >= 1
