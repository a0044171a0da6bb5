"""The kill matrix of a borrowed sandbox: it is never stopped, and what the session put into it is gone."""

from __future__ import annotations

import anyio
import pytest

from inspan_core.sandbox import Mount, SandboxSpec
from inspan_runtime.providers.bubblewrap import BubblewrapProvider

pytestmark = [pytest.mark.sandbox, pytest.mark.timeout(180)]
RECORDS = [
    "SeedRequested", "SandboxReady", "Installed", "ActivateRequested", "SlotGranted", "Staged",
    "ExecReturned", "TerminationConfirmed", "Collected", "Parsed", "CloseRequested", "FilesRemoved",
    "Disconnected",
]  # fmt: skip
QUICK = {("SandboxReady", "after"), ("ExecReturned", "after"), ("FilesRemoved", "before")}
FIND = "find / -xdev -newer /task/mark -not -path '/proc/*' -not -type d 2>/dev/null; ls -A /tmp /task"
EITHER = {"ExecReturned", "ExecReleased"}


class Theirs:
    """A sandbox that somebody else made."""

    def __init__(self, world):
        self.world = world
        self.descriptor = anyio.run(self.make)

    def provider(self):
        return BubblewrapProvider({"runtime_dir": str(self.world.folder / "run")})

    async def make(self):
        counts = Mount(source=str(self.world.folder / "counts"), target="/counts", read_only=False)
        spec = SandboxSpec(workdir="/task", mounts=(counts,), ttl_s=300.0)
        made = await self.provider().create(spec, key="theirs")
        await made.exec(["touch", "/task/mark"], timeout_s=20)
        return dict(made.descriptor)

    def access(self):
        connection = {"kind": "direct", "provider_config_ref": "box", "descriptor": self.descriptor}
        return {"connection": connection, "workdir": "/task"}

    async def ask(self, command):
        sandbox = await self.provider().connect(self.descriptor)
        return (await sandbox.exec(["sh", "-c", command], timeout_s=30)).stdout.decode()

    def asked(self, command):
        return anyio.run(self.ask, command)


def test_without_a_kill_the_journal_has_these_records(worlds):
    world = worlds()
    theirs = Theirs(world)
    answers = world.episode(sandbox_access=theirs.access())
    assert [answer.status_code for answer in answers] == [200] * 3, answers[0].text
    # Where the receipt is seen before the end of the exec, that is told later.
    told = [record for record in world.records() if record not in EITHER]
    assert told == [record for record in RECORDS if record not in EITHER]


@pytest.mark.parametrize(
    ("record", "moment"),
    [
        pytest.param(record, moment, marks=() if (record, moment) in QUICK else pytest.mark.full)
        for record in RECORDS
        for moment in ("before", "after")
    ],
)
def test_killed_at_a_record(worlds, record, moment):
    world = worlds(kill_at=record, moment=moment)
    theirs = Theirs(world)
    before = theirs.asked(FIND)
    seeded, activated, closed = world.episode(sandbox_access=theirs.access())
    assert (seeded.status_code, closed.status_code) == (200, 200), seeded.text + closed.text
    assert world.kills == 1 or record == "ExecReturned"
    launches = 0 if (record, moment) == ("Staged", "after") else 1
    assert activated.status_code == (200 if launches else 503), activated.text
    assert ("it is done" if launches else "never launched") in activated.text
    assert (world.launches(), world.model_calls()) == (launches, 2 * launches)
    for once in ("TerminationConfirmed", "Collected", "Parsed"):
        assert world.records().count(once) <= 1
    assert world.closes_again() == closed.json()
    assert len(world.sandboxes()) == 1, "it is theirs, and goes on"
    assert theirs.asked(FIND) == before
