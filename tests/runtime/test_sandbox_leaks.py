"""Whatever becomes of a sandbox's creator or keeper, nothing that nobody can find is left."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import anyio
import pytest

from inspan_core.errors import ConfigError, SandboxCreateError, SandboxError, SandboxGone
from inspan_core.sandbox import Mount, SandboxSpec
from inspan_runtime.providers import state_folder
from inspan_runtime.providers.birth import Birth
from inspan_runtime.providers.bubblewrap import BubblewrapProvider
from inspan_runtime.providers.local import LocalProvider
from inspan_runtime.testing.processes import is_dead, lives
from inspan_runtime.testing.sandbox_check_support import opened, out, sh

pytestmark = [pytest.mark.anyio, pytest.mark.sandbox]
PATIENCE_S = 15.0


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
def run_dir(tmp_path):
    return tmp_path / "run"


@pytest.fixture(params=["local", "bubblewrap"])
def kind(request):
    return request.param


@pytest.fixture
def provider(kind, run_dir):
    return {"local": LocalProvider, "bubblewrap": BubblewrapProvider}[kind]({"runtime_dir": str(run_dir)})


@pytest.fixture
def spec(kind, tmp_path):
    return SandboxSpec(workdir=str(tmp_path / "work") if kind == "local" else "/task", ttl_s=120.0)


def processes_of(run_dir):
    """Living processes that came from a sandbox of this runtime folder: by cwd, environment or host name."""
    found = {}
    folder = str(run_dir).encode()
    names = {path.name for path in run_dir.glob("*/*")}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            stat = (entry / "stat").read_bytes()
            words = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            where = os.readlink(entry / "cwd").encode()
        except OSError:
            continue
        if is_dead(stat):
            continue
        if folder in where or folder in words or any(name.encode() in words for name in names):
            found[int(entry.name)] = (entry / "cmdline").read_bytes()
    return found


def children_of(pid):
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_bytes()
            except OSError:
                continue
            if int(stat.rsplit(b")", 1)[1].split()[1]) == pid and not is_dead(stat):
                found.append(int(entry.name))
    return found


def keeper_of(sandbox):
    """The keeper: the process whose working directory is the state folder and that has the lock open."""
    state = sandbox.descriptor["state"]
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                is_keeper = (entry / "comm").read_text() == "inspan-keeper\n"
                if is_keeper and os.readlink(entry / "cwd") == state:
                    return int(entry.name)
            except OSError:
                continue
    raise AssertionError("no keeper")


def mounts_of(run_dir):
    return [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(run_dir) in line]


async def becomes(claim, what):
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if claim():
            return
        await anyio.sleep(0.01)
    raise AssertionError(f"{what}, after {PATIENCE_S} s")


async def host_pids(sandbox, spec):
    """Start processes in several ways; return their pids as the host knows them, by a mark in their argv."""
    mark = f"9{int.from_bytes(os.urandom(5), 'big')}"
    script = f"sleep {mark} & setsid sleep {mark} & (setsid setsid sleep {mark} &) ; "
    script += f"env -i setsid sleep {mark} & echo ok"
    assert await out(sandbox, script) == b"ok\n"

    def found():
        pids = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    words = (entry / "cmdline").read_bytes()
                    if lives(entry.name) and words == b"sleep\0" + mark.encode() + b"\0":
                        pids.append(int(entry.name))
                except OSError:
                    continue
        return pids

    await becomes(lambda: len(found()) == 4, "four processes were not started")
    return found


async def test_stop_leaves_no_process_no_mount_no_folder(provider, kind, spec, run_dir):
    sandbox = await provider.create(spec, key="k")
    found = await host_pids(sandbox, spec)
    await sandbox.stop()
    assert found() == []
    assert list((run_dir / kind).iterdir()) == []
    await becomes(lambda: processes_of(run_dir) == {}, "the keeper lives")
    assert mounts_of(run_dir) == []


async def test_keepers_death_ends_all(provider, kind, spec, run_dir):
    """SIGKILL of the keeper: the lifeline ends the agent, and the rest is swept by whoever looks next."""
    sandbox = await provider.create(spec, key="k")
    found = await host_pids(sandbox, spec)
    os.kill(keeper_of(sandbox), signal.SIGKILL)
    await becomes(lambda: found() == [], "processes outlived their keeper")
    await becomes(lambda: processes_of(run_dir) == {}, "the agent outlived its keeper")
    assert mounts_of(run_dir) == []
    with pytest.raises(SandboxGone):
        await sandbox.exec(["true"], timeout_s=5)
    assert not await sandbox.is_alive()
    assert await provider.list({}) == []
    assert list((run_dir / kind).iterdir()) == []
    again = await provider.create(spec, key="k")
    assert await out(again, "echo on") == b"on\n"
    await again.stop()


async def test_stopping_a_sandbox_whose_keeper_died_sweeps_it(provider, kind, spec, run_dir):
    sandbox = await provider.create(spec, key="k")
    os.kill(keeper_of(sandbox), signal.SIGKILL)
    await becomes(lambda: processes_of(run_dir) == {}, "the agent outlived its keeper")
    await sandbox.stop()
    assert list((run_dir / kind).iterdir()) == []


async def test_death_of_keeper_and_agent_at_once(provider, kind, spec, run_dir):
    """Without isolation only the environment marker is left to find the processes by."""
    sandbox = await provider.create(spec, key="k")
    found = await host_pids(sandbox, spec)
    keeper = keeper_of(sandbox)
    children = children_of(keeper)
    assert children
    for pid in (keeper, *children):
        os.kill(pid, signal.SIGSTOP)
    for pid in (*children, keeper):
        os.kill(pid, signal.SIGKILL)
    await provider.stop("k")
    # The one that also emptied its environment is out of reach where nothing isolates it.
    left = found()
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert len(left) == (1 if kind == "local" else 0)
    assert list((run_dir / kind).iterdir()) == []


async def test_agents_death_ends_all(provider, kind, spec, run_dir):
    sandbox = await provider.create(spec, key="k")
    found = await host_pids(sandbox, spec)
    for pid in children_of(keeper_of(sandbox)):
        os.kill(pid, signal.SIGKILL)
    await becomes(lambda: found() == [], "processes outlived their agent")
    await becomes(lambda: list((run_dir / kind).iterdir()) == [], "the folder outlived the agent")
    assert not await sandbox.is_alive()


SERVER = """
import anyio, json, os, sys
from inspan_core.sandbox import SandboxSpec
from inspan_runtime.providers.bubblewrap import BubblewrapProvider
from inspan_runtime.providers.local import LocalProvider
async def main():
    kind, run_dir, workdir, ttl_s = sys.argv[1:5]
    provider = {"local": LocalProvider, "bubblewrap": BubblewrapProvider}[kind]({"runtime_dir": run_dir})
    async def create(number):
        spec = SandboxSpec(workdir=workdir, ttl_s=float(ttl_s), labels={"n": str(number)})
        sandbox = await provider.create(spec, key=f"k{number}")
        await sandbox.exec(["sh", "-c", "echo mark >made"], timeout_s=20)
        print(json.dumps(dict(sandbox.descriptor)), flush=True)
    async with anyio.create_task_group() as group:
        for number in range(int(sys.argv[5])):
            group.start_soon(create, number)
    await anyio.sleep(600)
anyio.run(main)
"""


def start_server(kind, run_dir, spec, *, ttl_s, count=1):
    return start(SERVER, kind, run_dir, spec, ttl_s, count)


def start(script, kind, run_dir, spec, *arguments):
    argv = [sys.executable, "-c", script, kind, str(run_dir), spec.workdir, *map(str, arguments)]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, start_new_session=True)


async def test_sandbox_outlives_its_killed_server(provider, kind, spec, run_dir):
    server = start_server(kind, run_dir, spec, ttl_s=120)
    try:
        descriptor = json.loads(await anyio.to_thread.run_sync(server.stdout.readline))
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()
        server.stdout.close()
    sandbox = await provider.connect(descriptor)
    assert await out(sandbox, "cat made") == b"mark\n"
    assert [one["sandbox_id"] for one in await provider.list({"n": "0"})] == [sandbox.sandbox_id]
    await provider.stop("k0")
    assert not await sandbox.is_alive()
    assert list((run_dir / kind).iterdir()) == [] and processes_of(run_dir) == {}


RUNNING_SERVER = """
import anyio, sys
from inspan_core.sandbox import SandboxSpec
from inspan_runtime.providers.bubblewrap import BubblewrapProvider
from inspan_runtime.providers.local import LocalProvider
async def main():
    kind, run_dir, workdir = sys.argv[1:4]
    provider = {"local": LocalProvider, "bubblewrap": BubblewrapProvider}[kind]({"runtime_dir": run_dir})
    sandbox = await provider.create(SandboxSpec(workdir=workdir, ttl_s=120.0), key="k")
    async def run(script, timeout_s):
        await sandbox.exec(["sh", "-c", script], timeout_s=timeout_s, stdin=b"input")
    async with anyio.create_task_group() as group:
        wait = "until [ -e go ]; do sleep 0.01; done"
        group.start_soon(run, f"cat >given; {wait}; echo end; echo end >ended", 60)
        group.start_soon(run, "echo $$ >late; sleep 600", 3)
        while (await sandbox.exec(["sh", "-c", "test -s given -a -s late"], timeout_s=9)).exit_code:
            await anyio.sleep(0.01)
        print("started", flush=True)
anyio.run(main)
"""


async def test_command_outlives_its_killed_server(provider, kind, spec, run_dir):
    """A crash is no cancellation: the command runs on, to its end or its deadline."""
    server = start(RUNNING_SERVER, kind, run_dir, spec)
    try:
        assert await anyio.to_thread.run_sync(server.stdout.readline) == b"started\n"
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()
        server.stdout.close()
    sandbox = await provider.connect((await provider.list({}))[0])
    await out(sandbox, "touch go; until [ -e ended ]; do sleep 0.01; done")
    assert await out(sandbox, "cat given ended") == b"inputend\n"
    await out(sandbox, "while kill -0 $(cat late) 2>/dev/null; do sleep 0.01; done")
    await sandbox.stop()


async def test_time_to_live_needs_no_server(kind, spec, run_dir):
    server = start_server(kind, run_dir, spec, ttl_s=2)
    await anyio.to_thread.run_sync(server.stdout.readline)
    os.killpg(server.pid, signal.SIGKILL)
    server.wait()
    server.stdout.close()
    await becomes(lambda: list((run_dir / kind).iterdir()) == [], "the sandbox outlived its time")
    await becomes(lambda: processes_of(run_dir) == {}, "a process outlived its sandbox")


@pytest.mark.parametrize("delay_s", [0.15, 0.2, 0.25, 0.3, 0.35, 0.4])
async def test_server_killed_while_creating(provider, kind, spec, run_dir, delay_s):
    """Each sandbox is undone or found by its key; none is half made."""
    server = start_server(kind, run_dir, spec, ttl_s=120, count=6)
    try:
        await anyio.sleep(delay_s)
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()
        server.stdout.close()
    for number in range(6):
        await provider.stop(f"k{number}")
    assert await provider.list({}) == []
    # Folders that were never more than claimed are swept when they are old; no process is behind them.
    left = list((run_dir / kind).iterdir()) if (run_dir / kind).exists() else []
    assert all(path.name.startswith(".new-") and not state_folder.is_held(path) for path in left)
    await becomes(lambda: processes_of(run_dir) == {}, "a process of a half-made sandbox lives")
    assert mounts_of(run_dir) == []


@pytest.mark.parametrize("many", [20, pytest.param(200, marks=[pytest.mark.full, pytest.mark.timeout(240)])])
async def test_many_sandboxes_at_once(provider, kind, spec, run_dir, many):
    made = []

    async def create(number):
        sandbox = await provider.create(spec, key=f"k{number}")
        made.append((number, sandbox, await out(sandbox, f"echo {number}")))

    async with anyio.create_task_group() as group:
        for number in range(many):
            group.start_soon(create, number)
    assert sorted((number, int(said)) for number, _, said in made) == [(n, n) for n in range(many)]
    assert len({sandbox.sandbox_id for _, sandbox, _ in made}) == many == len(await provider.list({}))
    async with anyio.create_task_group() as group:
        for _, sandbox, _ in made:
            group.start_soon(sandbox.stop)
    assert await provider.list({}) == []
    assert mounts_of(run_dir) == [] and list((run_dir / kind).iterdir()) == []
    await becomes(lambda: processes_of(run_dir) == {}, "a process of a stopped sandbox lives")


async def test_descriptors_do_not_leak_from_the_provider(provider, spec):
    async with opened(provider, lambda: spec):
        pass
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        async with opened(provider, lambda: spec) as sandbox:
            for _ in range(3):
                await sh(sandbox, "true")
            with anyio.move_on_after(0.05):
                await sh(sandbox, "sleep 60")
    assert len(os.listdir("/proc/self/fd")) <= before


async def test_descriptors_and_children_do_not_leak_in_the_agent(provider, spec):
    async with opened(provider, lambda: spec) as sandbox:
        agent = children_of(keeper_of(sandbox))[0]
        while below := children_of(agent):
            agent = below[0]
        before = len(os.listdir(f"/proc/{agent}/fd"))
        for _ in range(20):
            await sh(sandbox, "(sleep 0.01 &) ; true", stdin=b"x")
            with anyio.move_on_after(0.02):
                await sh(sandbox, "sleep 60")
            with pytest.raises(FileNotFoundError):
                await sandbox.download("/no/such", limit_bytes=10)
        await becomes(
            lambda: len(os.listdir(f"/proc/{agent}/fd")) == before, "descriptors are left in the agent"
        )
        await becomes(lambda: children_of(agent) == [], "children are left of the agent")
        descriptors = (await out(sandbox, "ls /proc/self/fd")).split()
        assert descriptors == [b"0", b"1", b"2", b"3"], "only standard streams, and the folder that ls reads"


@pytest.mark.parametrize("point", ["plan", "program", "interpreter"])
async def test_failed_create_leaves_nothing(run_dir, point, tmp_path):
    """Where the sandbox's root cannot be described, bubblewrap dies, or the keeper cannot start."""
    provider = BubblewrapProvider({"runtime_dir": str(run_dir)})
    spec = SandboxSpec(workdir="/task")
    if point == "plan":
        spec = SandboxSpec(workdir="/etc/passwd/below")
    elif point == "program":
        broken = tmp_path / "bwrap"
        broken.write_text("#!/bin/sh\necho it is broken >&2\nexit 1\n")
        broken.chmod(0o755)
        provider = BubblewrapProvider({"runtime_dir": str(run_dir), "bwrap": str(broken)})
    else:
        spec = SandboxSpec(workdir="/task", mounts=(Mount(source="/usr", target="/etc/passwd/below"),))
    with pytest.raises((SandboxError, ConfigError)) as raised:
        await provider.create(spec, key="k")
    assert isinstance(raised.value, SandboxCreateError) or re.search("mount|workdir", str(raised.value))
    if point == "program":
        assert "it is broken" in str(raised.value)
    assert list((run_dir / "bubblewrap").iterdir()) == [] and mounts_of(run_dir) == []
    await becomes(lambda: processes_of(run_dir) == {}, "a process of a failed creation lives")


async def test_a_create_cut_off_while_it_is_being_taken_leaves_nothing(
    provider, spec, run_dir, kind, monkeypatch
):
    """Between the keeper's two words: it has a sandbox, and does not know yet whether anybody has it."""
    collect = Birth._collect_starter
    with anyio.CancelScope() as scope:

        def collect_and_cancel(self):
            collect(self)
            scope.cancel()

        monkeypatch.setattr(Birth, "_collect_starter", collect_and_cancel)
        await provider.create(spec, key="k")
    assert scope.cancelled_caught
    assert await provider.list({}) == []
    assert list((run_dir / kind).iterdir()) == []
    await becomes(lambda: processes_of(run_dir) == {}, "the keeper lives")
