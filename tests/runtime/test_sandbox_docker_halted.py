"""Containers that stand still: nothing is said of them that is not known, and nobody waits for ever."""

from functools import partial

import anyio
import pytest

from inspan_core.errors import SandboxTransportError
from inspan_core.sandbox import SandboxSpec
from inspan_runtime.testing.sandbox_check_support import out

pytestmark = [pytest.mark.anyio, pytest.mark.docker, pytest.mark.timeout(240)]
SPEC = partial(SandboxSpec, workdir="/task", ttl_s=120.0)


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
def make_provider(any_engine, docker_provider):
    return partial(docker_provider, any_engine, image="inspan-busybox")


@pytest.fixture
def theirs(start_theirs):
    start_theirs("theirs")
    return {"sandbox_id": "theirs", "workdir": "/tmp"}


async def test_paused_container_of_others_is_not_gone(make_provider, any_engine, theirs):
    """Otherwise its session would be closed as one whose harness cannot go on."""
    sandbox = await make_provider().connect(theirs)
    any_engine.run("pause", "theirs")
    with anyio.fail_after(60):
        assert await sandbox.is_alive()
        with pytest.raises(SandboxTransportError, match="the container is paused"):
            await sandbox.exec(["true"], timeout_s=5)
        with pytest.raises(SandboxTransportError, match="the container is paused"):
            await sandbox.download("/etc/passwd", limit_bytes=1000)
        with pytest.raises(SandboxTransportError, match="theirs is paused: it can be connected to when"):
            await make_provider().connect(theirs)
    any_engine.run("unpause", "theirs")
    assert await out(sandbox, "echo on") == b"on\n"


async def test_paused_container_of_ours_is_told_in_time(make_provider, any_engine):
    provider = make_provider(agent="always")
    sandbox = await provider.create(SPEC(), key="k")
    any_engine.run("pause", sandbox.sandbox_id)
    with anyio.fail_after(60):
        with pytest.raises(SandboxTransportError, match="no answer within"):
            await provider.connect(sandbox.descriptor, timeout_s=1)
        with pytest.raises(SandboxTransportError, match="no answer within"):
            await sandbox.upload("/tmp/file", b"x", timeout_s=1)
    any_engine.run("unpause", sandbox.sandbox_id)
    assert await out(sandbox, "echo on") == b"on\n"
    await sandbox.stop()


@pytest.mark.parametrize("mode", ["always", pytest.param("never", marks=pytest.mark.full)])
async def test_paused_container_is_stopped(make_provider, any_engine, mode):
    provider = make_provider(agent=mode)
    sandbox = await provider.create(SPEC(), key="k")
    any_engine.run("pause", sandbox.sandbox_id)
    with anyio.fail_after(90):
        await provider.stop("k")
    assert any_engine.names() == [] and not await sandbox.is_alive()


async def test_output_of_the_first_process_is_not_kept(make_provider, any_engine):
    """Who may write to it would fill the disk of the engine's host."""
    sandbox = await make_provider(agent="never").create(SPEC(), key="k")
    assert await out(sandbox, "echo said >/proc/1/fd/1; echo on") == b"on\n"
    found = any_engine.run("inspect", "--format={{.HostConfig.LogConfig.Type}}", sandbox.sandbox_id)
    assert found.stdout.strip() == b"none"
    assert b"said" not in any_engine.run("logs", sandbox.sandbox_id, check=False).stdout
    await sandbox.stop()
