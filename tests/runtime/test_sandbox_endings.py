"""A sandbox that ended without being stopped says why; what nobody can find any more ends by itself."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import anyio
import pytest

from inspan_core.errors import SandboxError, SandboxGone
from inspan_core.sandbox import SandboxSpec
from inspan_runtime.providers import boot, state_folder
from inspan_runtime.providers.bubblewrap import BubblewrapProvider
from inspan_runtime.providers.keeper.obituary import KEPT, write_obituary
from inspan_runtime.providers.local import LocalProvider
from inspan_runtime.testing.sandbox_check_support import becomes_true, opened, out

pytestmark = [pytest.mark.anyio, pytest.mark.sandbox]


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
def run_dir(tmp_path):
    return tmp_path / "run"


@pytest.fixture(params=["local", "bubblewrap"])
def provider(request, run_dir):
    kinds = {"local": LocalProvider, "bubblewrap": BubblewrapProvider}
    return kinds[request.param]({"runtime_dir": str(run_dir)})


@pytest.fixture
def make_spec(provider, tmp_path):
    workdir = str(tmp_path / "work") if provider.name == "local" else "/task"
    return partial(SandboxSpec, workdir=workdir, ttl_s=120.0)


def keeper_of(sandbox):
    for entry in Path("/proc").iterdir():
        try:
            is_keeper = entry.name.isdigit() and (entry / "comm").read_text() == "inspan-keeper\n"
            if is_keeper and os.readlink(entry / "cwd") == sandbox.descriptor["state"]:
                return int(entry.name)
        except OSError:
            continue
    raise AssertionError("no keeper")


def child_of(pid):
    for entry in Path("/proc").iterdir():
        try:
            if (
                entry.name.isdigit()
                and int((entry / "stat").read_bytes().rsplit(b")", 1)[1].split()[1]) == pid
            ):
                return int(entry.name)
        except OSError:
            continue
    raise AssertionError("no child")


async def ended(sandbox):
    async def is_over():
        return not await sandbox.is_alive()

    await becomes_true(is_over, "the sandbox lives on")


async def said_of(provider, sandbox):
    """What an operation and a connection say about it."""
    said = []
    for call in (lambda: sandbox.exec(["true"], timeout_s=9), lambda: provider.connect(sandbox.descriptor)):
        with pytest.raises(SandboxGone) as raised:
            await call()
        said.append(str(raised.value))
    return said


async def test_killed_agent_is_told(provider, make_spec):
    sandbox = await provider.create(make_spec(), key="k")
    os.kill(child_of(keeper_of(sandbox)), signal.SIGKILL)
    await ended(sandbox)
    for said in await said_of(provider, sandbox):
        assert "ended by itself: its first process" in said and ("signal 9" in said or "with 137" in said)


async def test_end_in_time_is_told(provider, make_spec):
    sandbox = await provider.create(make_spec(ttl_s=0.5), key="k")
    await ended(sandbox)
    for said in await said_of(provider, sandbox):
        assert "its time to live of 0.5 s is over" in said


async def test_keeper_that_was_told_to_end_says_so(provider, make_spec):
    sandbox = await provider.create(make_spec(), key="k")
    os.kill(keeper_of(sandbox), signal.SIGTERM)
    await ended(sandbox)
    assert "SIGTERM" in (await said_of(provider, sandbox))[0]


async def test_agents_last_words_are_told(provider, make_spec, monkeypatch):
    """An agent with a defect: what it raised and where."""
    original = boot._code

    def broken(name):
        if not name.endswith("exec_agent.connections"):
            return original(name)
        source = boot._source(name).replace('[b"ok"])', '[b"ok"], None)', 1)
        return compile(source, name, "exec")

    monkeypatch.setattr(boot, "_code", broken)
    sandbox = await provider.create(make_spec(), key="k")
    with pytest.raises(SandboxError):
        await sandbox.ping(timeout_s=20)
    await ended(sandbox)
    for said in await said_of(provider, sandbox):
        assert "exited with 70" in said and "TypeError" in said and "finish:" in said


async def test_what_was_stopped_leaves_no_words(provider, make_spec, run_dir):
    sandbox = await provider.create(make_spec(ttl_s=0.5), key="k")
    await ended(sandbox)
    async with opened(provider, make_spec, key="k") as again:
        assert again.sandbox_id == sandbox.sandbox_id
        assert await out(again, "echo on") == b"on\n"
    assert all(said.endswith("no longer exists") for said in await said_of(provider, sandbox))
    assert list((run_dir / "ended").iterdir()) == []


async def test_sandbox_ends_with_its_folder(provider, make_spec, run_dir):
    """Whoever removes a test's or a user's temporary folder has not to know of keepers."""
    sandbox = await provider.create(make_spec(ttl_s=None), key="k")
    keeper = keeper_of(sandbox)
    shutil.rmtree(run_dir)
    deadline = time.monotonic() + 20
    while Path(f"/proc/{keeper}").exists() and time.monotonic() < deadline:
        await anyio.sleep(0.02)
    assert not Path(f"/proc/{keeper}").exists(), "a keeper lives that nobody can find"


async def test_mode_of_no_file_harms_nobody(provider, make_spec):
    spec = make_spec()
    async with opened(provider, lambda: spec) as sandbox:
        for mode in (-1, 10**30):
            with pytest.raises(SandboxError, match="mode"):
                await sandbox.upload(f"{spec.workdir}/file", b"x", mode=mode)
        assert await out(sandbox, "ls -A") == b""


DIES_AT = """
import anyio, json, os, signal, subprocess, sys
from inspan_core.sandbox import SandboxSpec
from inspan_core.plugins import load_plugins
from inspan_runtime.providers import birth, builtin
kind, options, workdir, point = json.loads(sys.argv[1])
step = getattr(birth.Birth, point)
def die_then(*arguments):
    os.kill(os.getpid(), signal.SIGKILL)
def die_after(*arguments):
    step(*arguments)
    os.kill(os.getpid(), signal.SIGKILL)
setattr(birth.Birth, point, die_after if point == "launch" else die_then)
async def main():
    provider = load_plugins([builtin], entry_points=False).provider_factory(kind)(options)
    await provider.create(SandboxSpec(workdir=workdir, ttl_s=None), key="k")
anyio.run(main)
"""
POINTS = {
    "launch": "the keeper has its orders",
    "_release_handed_over": "the keeper's process was started and has no orders",
    "_collect_starter": "the keeper has a sandbox, and nobody took it",
}


@pytest.mark.parametrize("point", POINTS)
async def test_creator_killed_at_a_bad_moment_leaves_nothing(provider, make_spec, run_dir, point):
    given = json.dumps([provider.name, provider.options, make_spec().workdir, point])
    with anyio.fail_after(40):
        run = await anyio.run_process([sys.executable, "-c", DIES_AT, given], check=False)
    assert run.returncode == -signal.SIGKILL, run.stderr.decode()

    async def nothing_is_left():
        assert await provider.list({}) == []
        return list((run_dir / provider.name).iterdir()) == [] and processes_in(run_dir) == []

    await becomes_true(nothing_is_left, f"something is left of a creator that died when {POINTS[point]}")


def processes_in(folder):
    """Processes whose working directory is below a folder, or that have a file below it open."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                links = [entry / "cwd", *(entry / "fd").iterdir()]
                if any(os.readlink(link).startswith(str(folder)) for link in links):
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


HOLDER = """
import anyio, json, sys
from inspan_core.plugins import load_plugins
from inspan_runtime.providers import builtin
async def main():
    kind, options, descriptor = json.loads(sys.argv[1])
    provider = load_plugins([builtin], entry_points=False).provider_factory(kind)(options)
    await provider.connect(descriptor)
    print("connected", flush=True)
    await anyio.sleep(600)
anyio.run(main)
"""


def start_holder(given):
    return subprocess.Popen([sys.executable, "-c", HOLDER, given], stdout=subprocess.PIPE)


async def test_holders_are_the_processes_that_live(provider, make_spec):
    async with opened(provider, make_spec) as sandbox:
        state = Path(sandbox.descriptor["state"])
        assert state_folder.living_holders(state) == [os.getpid()]
        given = json.dumps([provider.name, provider.options, sandbox.descriptor])
        other = start_holder(given)
        try:
            assert await anyio.to_thread.run_sync(other.stdout.readline) == b"connected\n"
            assert state_folder.living_holders(state) == sorted([os.getpid(), other.pid])
        finally:
            other.kill()
            other.wait()
            other.stdout.close()
        assert state_folder.living_holders(state) == [os.getpid()]
    assert not state.exists()


def test_words_are_few_and_of_the_newest(tmp_path):
    for number in range(KEPT + 3):
        write_obituary(os.fsencode(tmp_path / "bubblewrap" / f"inspan-{number}"), "x" * 10_000)
        os.utime(tmp_path / "ended" / f"inspan-{number}", (number, number))
    kept = list((tmp_path / "ended").iterdir())
    assert len(kept) == KEPT and not (tmp_path / "ended/inspan-0").exists()
    assert {path.stat().st_size for path in kept} == {2000}


async def test_key_of_a_sandbox_that_died_is_free_at_once(provider, make_spec):
    """Its keeper may still be clearing up: nobody gets the dead one."""
    spec = make_spec()
    for _ in range(5):
        sandbox = await provider.create(spec, key="k")
        os.kill(child_of(keeper_of(sandbox)), signal.SIGKILL)
        async with opened(provider, lambda: spec, key="k") as again:
            assert await out(again, "echo on") == b"on\n"
