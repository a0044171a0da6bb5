"""A container sees the host's unpacked runtimes read-only; where it does not, it needs a Python."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from inspan_core.errors import UnsupportedTarget
from inspan_core.harness import RuntimeKey
from inspan_core.sandbox import SandboxSpec
from inspan_runtime.install import SandboxInstaller
from inspan_runtime.install_cache import RuntimeCache
from inspan_runtime.install_shared import SHARED_PATH, create_with_runtimes
from inspan_runtime.providers.docker.provider import DockerProvider

pytestmark = [pytest.mark.anyio, pytest.mark.docker, pytest.mark.full, pytest.mark.timeout(240)]
KEY = RuntimeKey(harness="tiny", version="1.2", os="linux", arch="x86_64", libc="glibc")
HEALTH = ["sh", "{prefix}/bin/tiny"]


@pytest.fixture
def anyio_backend():
    return "asyncio"


async def build(folder):
    tool = Path(folder.path) / "bin" / "tiny"
    tool.parent.mkdir()
    tool.write_text("echo tiny 1.2\n")


async def test_a_container_uses_the_hosts_runtime_and_cannot_change_it(
    docker_engine, mounted_interpreters, tmp_path
):
    options = {
        "engine_options": list(docker_engine.options),
        "image": "inspan-busybox",
        "runtime_dir": str(tmp_path / "run"),
        "cache_dir": mounted_interpreters,
    }
    provider, said = DockerProvider(options), []
    cache = RuntimeCache(tmp_path / "cache", client_env={"PATH": os.defpath}, report=said.append)
    spec = SandboxSpec(workdir="/task", ttl_s=200.0)
    sandbox = await create_with_runtimes(provider, spec, cache.shared, key="k", timeout_s=120.0)
    try:
        installer = SandboxInstaller(sandbox, cache, workdir="/task")
        await installer.target()
        archive = await installer.archive(KEY, build)
        prefix = await installer.publish(KEY, archive, health=HEALTH, expect="tiny 1.2")
        assert prefix == f"{SHARED_PATH}/{KEY}"
        assert said == [f"building {KEY}", f"unpacking {KEY}"]
        harm = f"echo evil > {prefix}/bin/tiny || chmod 777 {prefix} || mount -o remount,rw {SHARED_PATH}"
        assert (await sandbox.exec(["sh", "-c", harm], timeout_s=30, cwd="/")).exit_code != 0
        assert cache.shared.is_intact(str(KEY))
    finally:
        await sandbox.stop()
        await provider.aclose()


async def test_a_container_that_sees_nothing_and_has_no_python_is_unsupported(
    docker_engine, mounted_interpreters, tmp_path
):
    options = {
        "engine_options": list(docker_engine.options),
        "image": "inspan-busybox",
        "runtime_dir": str(tmp_path / "run"),
        "cache_dir": mounted_interpreters,
    }
    provider = DockerProvider(options)
    cache = RuntimeCache(tmp_path / "cache", client_env={"PATH": os.defpath})
    sandbox = await provider.create(SandboxSpec(workdir="/task", ttl_s=200.0), key="k", timeout_s=120.0)
    try:
        installer = SandboxInstaller(sandbox, cache, workdir="/task")
        archive = await installer.archive(KEY, build)
        with pytest.raises(UnsupportedTarget, match=r"no Python 3\.8 or newer"):
            await installer.publish(KEY, archive, health=HEALTH, expect="tiny 1.2")
    finally:
        await sandbox.stop()
        await provider.aclose()
