"""How the controller waits for a receipt: without a busy loop, and concluding nothing too soon."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import sys

import anyio
import pytest

from inspan_core.errors import EvidenceMissing
from inspan_core.harness import SandboxCommand
from inspan_core.receipts import CleanupReceipt
from inspan_core.sandbox import SandboxSpec
from inspan_runtime import supervisor_client as client
from inspan_runtime.providers.local import LocalProvider

pytestmark = pytest.mark.anyio

TOOLS = ("sh", "env", "sleep", "flock", "mkdir", "rm", "mv", "rmdir", "cat", "setsid", "touch", "seq")


@pytest.fixture
def anyio_backend():
    return "asyncio"


class Place:
    """A sandbox whose PATH holds chosen programs, a session's folder in it, and a log of its sleeps."""

    def __init__(self, root):
        self.root = root
        self.work = root / "work"
        self.dir = str(root / "sessions" / "one")
        self.bin = root / "bin"
        self.sleeps = root / "sleeps"

    def fill_path(self, names):
        self.bin.mkdir()
        self.sleeps.touch()
        for name in names:
            if name == "sleep":
                log = (
                    f'#!/bin/sh\necho >> {shlex.quote(str(self.sleeps))}\nexec {shutil.which("sleep")} "$@"\n'
                )
                (self.bin / name).write_text(log)
                (self.bin / name).chmod(0o755)
            else:
                (self.bin / name).symlink_to(shutil.which(name))

    async def stage(self, script, **budgets):
        command = SandboxCommand(argv=["/bin/sh", "-c", script], python=sys.executable, env={"D": self.dir})
        budgets = {"timeout_s": 30.0, "grace_s": 0.2, "cleanup_timeout_s": 8.0, **budgets}
        await client.write_command(self.sandbox, self.dir, command, cwd=str(self.work), **budgets)

    async def launch(self):
        return await self.sandbox.exec(
            client.supervised_launch_command(sys.executable, self.dir), timeout_s=40
        )

    async def until(self, name):
        with anyio.fail_after(15):
            while not (self.work / name).exists():
                await anyio.sleep(0.01)

    def counted_sleeps(self):
        return self.sleeps.read_text().count("\n")


@pytest.fixture
async def make_place(tmp_path):
    providers = []

    async def make(names=TOOLS):
        place = Place(tmp_path)
        place.fill_path(names)
        provider = LocalProvider({"runtime_dir": str(tmp_path / "run")})
        env = {"PATH": str(place.bin)}
        place.sandbox = await provider.create(SandboxSpec(workdir=str(place.work), env=env), key="k")
        providers.append((provider, place.sandbox))
        return place

    yield make
    for provider, sandbox in providers:
        await sandbox.stop()
        await provider.aclose()


async def test_a_stop_waits_for_the_supervisors_lock_and_does_not_loop(make_place):
    """Two seconds of grace pass while hardly anything is looked at: no one-second loop, no busy loop."""
    place = await make_place()
    await place.stage("trap '' TERM; touch up; while :; do read -r x < /dev/zero; done", grace_s=2.0)
    async with anyio.create_task_group() as group:
        group.start_soon(place.launch)
        await place.until("up")
        receipt = await client.stop_and_confirm_cleanup(place.sandbox, place.dir, timeout_s=20)
    assert (receipt.cleanup_confirmed, receipt.return_code) == (True, -9)
    assert place.counted_sleeps() <= 2


async def test_without_a_flock_command_the_pauses_grow(make_place):
    place = await make_place([name for name in TOOLS if name != "flock"])
    await place.stage("trap '' TERM; touch up; while :; do read -r x < /dev/zero; done", grace_s=2.0)
    async with anyio.create_task_group() as group:
        group.start_soon(place.launch)
        await place.until("up")
        receipt = await client.stop_and_confirm_cleanup(place.sandbox, place.dir, timeout_s=20)
    assert (receipt.cleanup_confirmed, receipt.return_code) == (True, -9)
    # Two seconds and what a busy machine adds; a loop of the shortest pause would look 400 times.
    assert 5 <= place.counted_sleeps() <= 40


@pytest.mark.parametrize("names", [TOOLS, [n for n in TOOLS if n != "flock"]], ids=["flock", "no flock"])
async def test_a_supervisor_that_dies_while_it_is_waited_for_is_noticed(make_place, names):
    """SIGKILL to the supervisor only: unknown evidence, said at once and not after the whole budget."""
    place = await make_place(names)
    await place.stage("trap '' TERM; touch up; while :; do read -r x < /dev/zero; done", grace_s=7.0)

    async def kill():
        with anyio.fail_after(15):
            while not os.path.exists(f"{place.dir}/stop.request"):
                await anyio.sleep(0.01)
        os.kill(int(await client.read_text(place.sandbox, path=f"{place.dir}/supervisor.pid")), 9)

    async with anyio.create_task_group() as group:
        group.start_soon(place.launch)
        await place.until("up")
        group.start_soon(kill)
        with anyio.fail_after(20), pytest.raises(EvidenceMissing, match="died without a receipt"):
            await client.stop_and_confirm_cleanup(place.sandbox, place.dir, timeout_s=60)


DELETES = 'while :; do rm -rf "$D"; done'


async def test_a_tool_that_deletes_the_folder_over_and_over_hides_neither_claim_nor_receipt(make_place):
    """A stop that sees no claim in such a moment must not conclude that nothing was launched."""
    place = await make_place()
    await place.stage(f"setsid sh -c 'touch up; {DELETES}' & wait")
    async with anyio.create_task_group() as group:
        group.start_soon(place.launch)
        await place.until("up")
        receipt = await client.stop_and_confirm_cleanup(place.sandbox, place.dir, timeout_s=25)
    assert receipt == CleanupReceipt(cleanup_confirmed=True, return_code=-15, error=None, timed_out=False)


async def test_a_tool_that_goes_on_deleting_after_a_natural_exit_leaves_the_outcome_unknown(make_place):
    """The receipt may be read in between, or is gone with the claim; a false conclusion there may not be."""
    place = await make_place()
    await place.stage(f"setsid sh -c 'touch up; {DELETES}' & while [ ! -e up ]; do :; done; exit 3")
    await place.launch()
    try:
        found = await client.await_receipt(place.sandbox, place.dir, timeout_s=2, launch_over=False)
    except EvidenceMissing:
        return
    assert found == CleanupReceipt(cleanup_confirmed=True, return_code=3, error=None, timed_out=False)


async def running(place, group, script="touch up; exec sleep 1000"):
    """Launch `script`; returns the supervisor's pid."""
    await place.stage(script)
    group.start_soon(place.launch)
    await place.until("up")
    return int(await client.read_text(place.sandbox, path=f"{place.dir}/supervisor.pid"))


@pytest.mark.parametrize("deleted", [[], ["launch.claim", "supervisor.pid"]], ids=["", "without a trace"])
async def test_a_supervisor_that_a_tool_has_stopped_is_told_to_go_on(make_place, deleted):
    """Without its claim, which it cannot make again, it must not pass for one that never was."""
    place = await make_place((*TOOLS, "ls", "grep"))
    async with anyio.create_task_group() as group:
        pid = await running(place, group)
        os.kill(pid, signal.SIGSTOP)
        for name in deleted:
            os.unlink(f"{place.dir}/{name}")
        receipt = await client.stop_and_confirm_cleanup(place.sandbox, place.dir, timeout_s=30)
    assert receipt == CleanupReceipt(cleanup_confirmed=True, return_code=-15, error=None, timed_out=False)


@pytest.mark.parametrize("put", ["mkfifo", "ln -s $PWD/file", "ln -s /nowhere/x"])
async def test_what_a_tool_puts_in_the_place_of_a_request_is_neither_opened_nor_followed(make_place, put):
    """Anything by the name of a stop is a stop; a FIFO would hang who writes, a link lead to another file."""
    place = await make_place((*TOOLS, "mkfifo", "ln"))
    script = f"echo task > file; {put} $D.retired; {put} $D/stop.request; sleep 1000"
    await place.stage(script)
    await place.launch()
    with anyio.fail_after(20):
        receipt = await client.stop_and_confirm_cleanup(place.sandbox, place.dir, timeout_s=60)
        await client.remove_session_directory(place.sandbox, place.dir)
    assert receipt == CleanupReceipt(cleanup_confirmed=True, return_code=-15, error=None, timed_out=False)
    assert (place.work / "file").read_text() == "task\n"
    assert not os.path.exists(place.dir)


async def test_removing_follows_no_link_that_lies_in_wait(make_place):
    place = await make_place()
    await place.sandbox.upload(f"{place.dir}/file", b"")
    os.symlink(place.work, f"{place.dir}.removed")
    await client.remove_session_directory(place.sandbox, place.dir)
    assert os.listdir(place.work) == [] and os.listdir(os.path.dirname(place.dir)) == ["one.retired"]


class Hung:
    """A sandbox whose every call, whatever it was granted, never returns."""

    async def never(self, *_, **__):
        await anyio.sleep_forever()

    exec = upload = download = never


@pytest.mark.parametrize("request_", ["stop", "await"])
async def test_a_sandbox_that_hangs_does_not_outlast_the_budget(request_):
    with anyio.fail_after(20), pytest.raises(EvidenceMissing, match="no receipt within"):
        if request_ == "stop":
            await client.stop_and_confirm_cleanup(Hung(), "/s/one", timeout_s=0.2)
        else:
            await client.await_receipt(Hung(), "/s/one", timeout_s=0.2, launch_over=True)


async def test_a_shell_that_a_tool_has_broken_so_that_it_hangs_does_not_cost_the_receipt(make_place):
    place = await make_place()
    await place.stage("exit 3")
    await place.launch()
    (place.bin / "sh").unlink()
    (place.bin / "sh").write_text("#!/bin/sleep 1000\n")
    (place.bin / "sh").chmod(0o755)
    receipt = await client.stop_and_confirm_cleanup(place.sandbox, place.dir, timeout_s=11)
    assert receipt.return_code == 3
