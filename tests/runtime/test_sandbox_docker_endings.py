"""How containers end, and what is left of them; which image a borrowed one was made from."""

import os
import shutil
import signal
from functools import partial
from pathlib import Path

import anyio
import pytest

from inspan_core.errors import ExecTimeout, SandboxConnectError, SandboxError, SandboxGone, UsageError
from inspan_core.sandbox import MeteredSandbox, SandboxSpec
from inspan_runtime.providers.state_folder import is_held
from inspan_runtime.testing.sandbox_check_support import becomes_true, opened, out

pytestmark = [pytest.mark.anyio, pytest.mark.docker, pytest.mark.timeout(240)]
SPEC = partial(SandboxSpec, workdir="/task", ttl_s=120.0)


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
def make_provider(docker_engine, docker_provider):
    yield partial(docker_provider, docker_engine, image="inspan-busybox")
    docker_engine.remove_all()


async def ended(sandbox):
    async def is_over():
        return not await sandbox.is_alive()

    await becomes_true(is_over, "the sandbox lives on")


@pytest.mark.parametrize("mode", ["always", "never"])
async def test_killed_container_is_explained(make_provider, docker_engine, mode):
    provider = make_provider(agent=mode)
    sandbox = await provider.create(SPEC(), key="k")
    docker_engine.run("kill", sandbox.sandbox_id)
    await ended(sandbox)
    state = Path(sandbox.descriptor["state"])

    async def is_over():
        return not is_held(state)

    await becomes_true(is_over, "the keeper of a killed container lives on")
    with pytest.raises(SandboxGone, match=r'container ended: .*"exitCode":"137"'):
        await provider.connect(sandbox.descriptor)


async def test_end_in_time_is_told(make_provider):
    provider = make_provider()
    sandbox = await provider.create(SPEC(ttl_s=1.0), key="k")
    await ended(sandbox)
    with pytest.raises(SandboxGone, match="time to live of 1 s is over"):
        await sandbox.exec(["true"], timeout_s=20)


async def test_container_without_folder_is_held_and_removed(make_provider, docker_engine):
    provider = make_provider(agent="never")
    async with opened(make_provider(), SPEC) as other:
        sandbox = await provider.create(SPEC(), key="k")
        state = Path(sandbox.descriptor["state"])
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and os.readlink(entry / "cwd") == str(state):
                    os.kill(int(entry.name), signal.SIGKILL)
            except OSError:
                continue
        with anyio.fail_after(20):
            while is_held(state):
                await anyio.sleep(0.01)
        shutil.rmtree(state)
        held = {one.sandbox_id: one for one in await provider.held()}
        assert held[sandbox.sandbox_id].what == "its container has no state folder"
        assert held[sandbox.sandbox_id].holders == ()
        assert held[other.sandbox_id].what == "runs"
        assert held[other.sandbox_id].holders == (os.getpid(),)
        await provider.remove(held[sandbox.sandbox_id])
        assert docker_engine.names() == [other.sandbox_id]


async def test_image_of_a_borrowed_container_is_compared(make_provider, docker_engine):
    image = docker_engine.said("image", "inspect", "--format={{.Id}}", "inspan-busybox")
    docker_engine.run("run", "--detach", "--name=theirs", "--network=none", "inspan-busybox", "sleep", "300")
    provider = make_provider()
    borrowed = await provider.connect({"sandbox_id": "theirs", "image": image})
    assert borrowed.descriptor["image"] == image
    assert (await provider.connect({"sandbox_id": "theirs"})).descriptor["image"] == image
    with pytest.raises(SandboxConnectError, match=f"made from image {image}"):
        await provider.connect({"sandbox_id": "theirs", "image": "sha256:" + "0" * 64})
    await borrowed.disconnect()
    assert docker_engine.names() == ["theirs"]


async def test_usage_is_told_with_the_agent_only(make_provider):
    async with opened(make_provider(agent="always"), SPEC) as sandbox:
        await out(sandbox, "n=0; while [ $n -lt 20000 ]; do n=$((n + 1)); done")
        used = await sandbox.usage()
        assert used.cpu_time_s > 0 and used.peak_memory_mib > 0 and used.source == "processes"
    async with opened(make_provider(agent="never"), SPEC) as sandbox:
        assert not isinstance(sandbox, MeteredSandbox)


@pytest.mark.parametrize("made", ["rm -f /dev/null", "rm -f /dev/null; mkfifo /dev/null"])
async def test_commands_need_no_null_device_any_more(make_provider, made):
    """A task's root may remove it, or put there what whoever opens it waits for."""
    async with opened(make_provider(agent="always"), SPEC) as sandbox:
        assert await out(sandbox, made) == b""
        assert await out(sandbox, "cat; echo on") == b"on\n"


async def test_times_and_arguments_that_do_not_fit_are_told_without_the_agent(make_provider):
    async with opened(make_provider(agent="never"), SPEC) as sandbox:
        with pytest.raises(UsageError, match="timeout_s is nan"):
            await sandbox.exec(["true"], timeout_s=float("nan"))
        with pytest.raises(ExecTimeout):
            await sandbox.exec(["sleep", "60"], timeout_s=-1.0)
        for timeout_s in (float("inf"), 1e300):
            assert (await sandbox.exec(["sh", "-c", "sleep 0.2; exit 7"], timeout_s=timeout_s)).exit_code == 7
        with pytest.raises(SandboxError, match="Argument list too long"):
            await sandbox.exec(["echo", "x" * 2**18], timeout_s=9.0)
