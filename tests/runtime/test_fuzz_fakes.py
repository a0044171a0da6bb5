"""The fakes are verified: the sandbox by the checks of real ones, the supervisor by the real one."""

from __future__ import annotations

import itertools
import sys

import anyio
import pytest

from inspan_core.answers import Staged
from inspan_core.events import CloseRequested, Cookie, SeedRequested
from inspan_core.harness import SandboxCommand
from inspan_core.sandbox import Sandbox, SandboxProvider, SandboxSpec
from inspan_runtime.journal_sqlite import SqliteJournal
from inspan_runtime.providers.local import LocalProvider
from inspan_runtime.supervisor_client import (
    NeverLaunched,
    await_receipt,
    remove_session_directory,
    stop_and_confirm_cleanup,
    supervised_launch_command,
    write_command,
)
from inspan_runtime.testing.fake_provider import FakeProvider
from inspan_runtime.testing.fake_supervisor import HarnessPlan
from inspan_runtime.testing.fake_world import FakeWorld
from inspan_runtime.testing.memory_journal import MemoryJournal
from inspan_runtime.testing.sandbox_checks import SANDBOX_CHECKS, checks_for, needs_of
from inspan_runtime.testing.scheduler import SteppedLoop

PLAYABLE = [check for check in SANDBOX_CHECKS if not needs_of(check)]
"""The others need a shell, processes, links or a host, which a fake sandbox does not have and says so."""


def test_fake_declares_what_it_cannot_do():
    assert checks_for(FakeProvider(FakeWorld())) == PLAYABLE
    assert len(PLAYABLE) >= 30


@pytest.mark.parametrize("latency_s", [0.0, 0.01])
@pytest.mark.parametrize("check", PLAYABLE, ids=lambda check: check.__name__)
def test_fake_sandbox_keeps_the_contract(check, latency_s):
    world, numbers = FakeWorld(latency_s=latency_s), itertools.count()
    provider = FakeProvider(world)
    assert isinstance(provider, SandboxProvider)

    def make(**changes):
        return SandboxSpec(**{"workdir": f"/task/{next(numbers)}", "ttl_s": 120.0, **changes})

    async def run():
        await check(provider, make)
        assert await provider.list({}) == []
        assert isinstance(await provider.create(make(), key="k"), Sandbox)

    SteppedLoop(world.clock, until_s=world.clock.now + 10_000).run_until_complete(run())


# --- the supervisor -----------------------------------------------------------------------------------

SLEEPS = "import time; time.sleep(60)"
STUBBORN = "import signal, time; signal.signal(15, signal.SIG_IGN); print('on', flush=True); time.sleep(60)"
ENDS = "raise SystemExit(3)"
NAMES = ("command.json", "launch.claim", "supervisor.pid", "stop.request", "processes.json", "cleanup.json")


class Stage:
    """A sandbox, fake or real, in which a supervisor is told to run something."""

    def __init__(self, sandbox, folder):
        self.sandbox, self.folder = sandbox, folder

    async def prepare(self, program, timeout_s=30.0, grace_s=5.0):
        command = SandboxCommand(argv=[sys.executable, "-c", program], python=sys.executable)
        await write_command(
            self.sandbox,
            self.folder,
            command,
            cwd="/",
            timeout_s=timeout_s,
            grace_s=grace_s,
            cleanup_timeout_s=grace_s + 5.0,
        )

    async def launch(self):
        argv = supervised_launch_command(sys.executable, self.folder)
        return (await self.sandbox.exec(argv, timeout_s=60.0)).exit_code

    async def stop(self):
        return await stop_and_confirm_cleanup(self.sandbox, self.folder, timeout_s=30.0)

    async def wait_for(self, name):
        with anyio.fail_after(20.0):
            while name not in await self.names():
                await anyio.sleep(0.01)

    async def names(self):
        found = []
        for name in NAMES:
            try:
                await self.sandbox.download(f"{self.folder}/{name}", limit_bytes=1024 * 1024)
                found.append(name)
            except FileNotFoundError:
                pass
        return found


async def ends_by_itself(stage):
    await stage.prepare(ENDS)
    code = await stage.launch()
    receipt = await await_receipt(stage.sandbox, stage.folder, timeout_s=20.0, launch_over=True)
    return [code, receipt, await stage.names()]


async def second_launch_is_refused(stage):
    await stage.prepare(ENDS)
    first = await stage.launch()
    await stage.prepare(ENDS)
    return [first, await stage.launch(), await stage.names()]


async def stopped_before_the_launch(stage):
    await stage.prepare(ENDS)
    found = await stage.stop()
    return [found, await stage.launch(), await stage.names()]


async def fenced_where_nothing_was_launched(stage):
    await stage.prepare(ENDS)
    found = await await_receipt(stage.sandbox, stage.folder, timeout_s=20.0, launch_over=True)
    return [found, await stage.launch(), await stage.names()]


async def stopped_while_it_runs(stage):
    await stage.prepare(SLEEPS)
    results = []

    async def launch():
        results.append(await stage.launch())

    async with anyio.create_task_group() as group:
        group.start_soon(launch)
        await stage.wait_for("supervisor.pid")
        results.append(await stage.stop())
    return [*sorted(results, key=str), await stage.names()]


async def past_its_deadline(stage):
    await stage.prepare(SLEEPS, timeout_s=0.5)
    code = await stage.launch()
    receipt = await await_receipt(stage.sandbox, stage.folder, timeout_s=20.0, launch_over=True)
    return [code, receipt, await stage.names()]


async def stubborn_past_its_deadline(stage):
    await stage.prepare(STUBBORN, timeout_s=1.0, grace_s=0.3)
    code = await stage.launch()
    receipt = await await_receipt(stage.sandbox, stage.folder, timeout_s=20.0, launch_over=True)
    return [code, receipt, await stage.names()]


async def retired_before_the_launch(stage):
    await stage.prepare(ENDS)
    await remove_session_directory(stage.sandbox, stage.folder, keep_fence=True)
    return [await stage.launch(), await stage.names()]


async def removed_without_a_fence(stage):
    await stage.prepare(ENDS)
    await stage.launch()
    await remove_session_directory(stage.sandbox, stage.folder, keep_fence=False)
    await stage.prepare(ENDS)
    return [await stage.launch(), await stage.names()]


STORIES = {
    ends_by_itself: HarnessPlan(runs_s=0.1, return_code=3),
    second_launch_is_refused: HarnessPlan(runs_s=0.1, return_code=3),
    stopped_before_the_launch: HarnessPlan(runs_s=0.1, return_code=3),
    fenced_where_nothing_was_launched: HarnessPlan(runs_s=0.1, return_code=3),
    stopped_while_it_runs: HarnessPlan(runs_s=60.0),
    past_its_deadline: HarnessPlan(runs_s=60.0),
    stubborn_past_its_deadline: HarnessPlan(runs_s=60.0, heeds_term=False),
    retired_before_the_launch: HarnessPlan(runs_s=0.1, return_code=3),
    removed_without_a_fence: HarnessPlan(runs_s=0.1, return_code=3),
}


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_fake_supervisor_does_what_the_real_one_does(story, tmp_path):
    world = FakeWorld(plan=STORIES[story])

    async def fake():
        sandbox = await FakeProvider(world).create(SandboxSpec(workdir="/work"), key="k")
        return await story(Stage(sandbox, "/tmp/sessions/1"))

    async def real():
        provider = LocalProvider({"runtime_dir": str(tmp_path / "run")})
        sandbox = await provider.create(SandboxSpec(workdir=str(tmp_path / "work")), key="k")
        try:
            return await story(Stage(sandbox, str(tmp_path / "sessions" / "1")))
        finally:
            await provider.stop("k")

    played = SteppedLoop(world.clock, until_s=world.clock.now + 1000).run_until_complete(fake())
    assert played == anyio.run(real)
    assert "a harness wrote after its confirmed receipt" not in [broken.rule for broken in world.broken]


def test_never_launched_is_what_the_stories_are_about():
    world = FakeWorld()

    async def fake():
        sandbox = await FakeProvider(world).create(SandboxSpec(workdir="/work"), key="k")
        return await stopped_before_the_launch(Stage(sandbox, "/tmp/sessions/1"))

    found, code, _ = SteppedLoop(world.clock).run_until_complete(fake())
    assert isinstance(found, NeverLaunched)
    assert code == 125


# --- the journal --------------------------------------------------------------------------------------


def write_something(journal):
    seed = SeedRequested(at=1.0, waiter=1, body_digest="x", owned=False, cookie=Cookie.ABSENT)
    journal.keep("never", "place", b"{}")
    for name in ("one", "two"):
        journal.keep(name, "place", b"{}")
        journal.keep(name, "seed", b"secret", secret=True)
        journal.append(name, seed)
    journal.append("one", CloseRequested(at=2.0, waiter=None, cookie=Cookie.SAME, same_episode=True))
    journal.append("two", Staged(at=3.0, order=4))
    journal.keep("one", "sandbox", b"a")
    journal.keep("one", "sandbox", None)
    journal.keep("three", "place", b"{}")
    journal.append("three", seed)
    journal.forget("three")


def test_memory_journal_keeps_what_the_file_keeps(tmp_path):
    memory, file = MemoryJournal(), SqliteJournal(tmp_path / "journal")
    write_something(memory)
    write_something(file)
    assert list(memory.load()) == list(file.load())
    assert memory.names == ("one", "two")
    file.close()


def test_killed_servers_journal_writes_no_more():
    records = []
    first = MemoryJournal(lambda *record: records.append(record))
    write_something(first)
    second = first.successor()
    count = len(records)
    write_something(first)
    assert len(records) == count
    assert [stored.name for stored in second.load()] == ["one", "two"]
    assert second.records == count
