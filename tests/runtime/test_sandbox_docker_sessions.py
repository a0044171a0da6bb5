"""A supervised harness in a container: it is proven stopped, with the agent, by exec, in a borrowed one."""

import os
import shutil

import anyio
import pytest

from inspan_core.harness import SandboxCommand
from inspan_core.sandbox import Mount, SandboxSpec
from inspan_runtime.perform import Supervision
from inspan_runtime.providers.docker.provider import DockerProvider
from inspan_runtime.sandbox_session import SandboxSession
from inspan_runtime.testing.sandbox_check_support import out, sh

pytestmark = [pytest.mark.anyio, pytest.mark.docker, pytest.mark.timeout(240)]
PYTHON = "/usr/bin/python3"
SCRIPT = """
echo started
setsid sh -c 'trap "" TERM; while :; do date >>/task/ticks; sleep 0.05; done' &
sleep 600
"""


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
def provider(docker_engine, tmp_path, mounted_interpreters, request):
    return DockerProvider(
        {
            "engine_options": list(docker_engine.options),
            "image": "inspan-busybox",
            "runtime_dir": str(tmp_path / "run"),
            "cache_dir": mounted_interpreters,
            "agent": getattr(request, "param", "auto"),
        }
    )


@pytest.fixture
def hosts_python():
    """Mounts that show the host's own Python, since the image has none."""
    if shutil.which(PYTHON) is None:
        pytest.skip(f"this host has no {PYTHON} to show inside")
    folders = [one for one in ("/lib", "/lib64") if os.path.isdir(one)]
    return (
        Mount(source="/usr", target="/usr"),
        *(Mount(source=os.path.realpath(one), target=one) for one in folders),
    )


async def run_to_its_deadline(sandbox):
    """Run a harness that ignores what it is told, and return the session and what was collected."""
    session = SandboxSession(
        sandbox=sandbox,
        session_dir="/tmp/session",
        workdir="/task",
        owns_sandbox=False,
        harness="script",
        supervision=Supervision(grace_s=0.5, cleanup_timeout_s=10.0),
    )

    async def stage():
        return SandboxCommand(argv=["/bin/sh", "-c", SCRIPT], python=PYTHON)

    async def collect():
        found = await sandbox.download("/tmp/session/output.log", limit_bytes=4096, tail=True)
        return found.data.decode()

    said = await session.execute(stage_activation=stage, collect=collect, timeout=4.0, close_timeout=60.0)
    return session, said


async def check_that_it_stopped(sandbox):
    session, said = await run_to_its_deadline(sandbox)
    assert said == "started\n"
    assert session.receipt.cleanup_confirmed and session.receipt.timed_out
    before = await out(sandbox, "wc -l <ticks")
    assert int(before) > 0, "the harness's child never ran"
    assert await out(sandbox, "sleep 0.3; wc -l <ticks") == before, "a child of the harness runs on"
    await session.close(timeout=60)
    assert (await sh(sandbox, "ls /tmp/session/cleanup.json")).exit_code != 0


@pytest.mark.parametrize("provider", ["always", pytest.param("never", marks=pytest.mark.full)], indirect=True)
async def test_harness_is_proven_stopped(provider, hosts_python):
    sandbox = await provider.create(SandboxSpec(workdir="/task", mounts=hosts_python, ttl_s=200.0), key="k")
    try:
        await check_that_it_stopped(sandbox)
    finally:
        with anyio.CancelScope(shield=True):
            await sandbox.stop()


async def test_harness_in_a_borrowed_container_is_proven_stopped(provider, docker_engine, hosts_python):
    """Its first process collects nobody: dead children stay as zombies, and are dead."""
    mounts = [f"--volume={one.source}:{one.target}:ro" for one in hosts_python]
    argv = ["run", "--detach", "--name=theirs", "--network=none", "--workdir=/task", *mounts]
    docker_engine.run(*argv, "inspan-busybox", "sleep", "600")
    try:
        sandbox = await provider.connect({"sandbox_id": "theirs"})
        await check_that_it_stopped(sandbox)
        assert await sandbox.is_alive()
    finally:
        docker_engine.run("rm", "--force", "theirs")
