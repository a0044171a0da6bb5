"""Installation through a real installer and sandbox, with small archives in place of the pinned one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from inspan_core.errors import InstallError, UnsupportedTarget
from inspan_core.sandbox import SandboxSpec
from inspan_pi import runtime
from inspan_runtime.install import SandboxInstaller
from inspan_runtime.install_cache import RuntimeCache
from inspan_runtime.providers.local import LocalProvider

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
async def install(tmp_path):
    """A function that installs with an archive in the cache whose node is a shell script."""
    provider = LocalProvider({"runtime_dir": str(tmp_path / "run")})
    sandbox = await provider.create(SandboxSpec(workdir=str(tmp_path / "work"), ttl_s=120.0), key="k")
    cache = RuntimeCache(tmp_path / "cache", client_env={"PATH": os.defpath})

    async def run(node):
        installer = SandboxInstaller(
            sandbox, cache, workdir=str(tmp_path / "work"), roots=[str(tmp_path / "rt")]
        )

        async def build(folder):
            program = Path(folder.path) / "bin" / "node"
            program.parent.mkdir()
            program.write_text("#!/bin/sh\n" + node)
            program.chmod(0o755)

        await installer.archive(runtime.runtime_key(await installer.target()), build)
        return await runtime.install(installer)

    yield run
    await sandbox.stop()
    await provider.aclose()


async def test_what_it_returns_is_what_staging_needs(install, tmp_path):
    found = await install(f"echo {runtime.PI_VERSION}\n")
    assert found["prefix"].startswith(str(tmp_path / "rt" / "pi-1.6.0-"))
    assert os.access(found["python"], os.X_OK)
    assert (found["pi"], found["node"]) == ("1.6.0", "24.19.0")


@pytest.mark.parametrize(
    "node",
    [
        "echo 'node: error while loading shared libraries: libstdc++.so.6: cannot open' >&2; exit 127\n",
        'echo "node: /lib/libc.so.6: version \\`GLIBC_2.28\' not found" >&2; exit 1\n',
        "exit 126\n",
    ],
)
async def test_a_program_that_no_retry_makes_run_is_unsupported(install, node):
    with pytest.raises(UnsupportedTarget, match=r"supported: glibc >= 2\.28"):
        await install(node)


async def test_any_other_failure_may_be_tried_again(install):
    with pytest.raises(InstallError, match="out of memory"):
        await install("echo out of memory >&2; exit 134\n")


async def test_no_python_is_unsupported_before_anything_is_fetched(tmp_path):
    provider = LocalProvider({"runtime_dir": str(tmp_path / "run")})
    empty = tmp_path / "nothing"
    empty.mkdir()
    sandbox = await provider.create(SandboxSpec(workdir=str(tmp_path / "work"), ttl_s=120.0), key="k")
    try:
        cache = RuntimeCache(tmp_path / "cache", client_env={})
        installer = SandboxInstaller(
            sandbox, cache, workdir=str(tmp_path / "work"), roots=[str(tmp_path / "rt")], pythons=[str(empty)]
        )
        with pytest.raises(UnsupportedTarget, match=r"no Python 3.8"):
            await runtime.install(installer)
        assert cache.known() == []
    finally:
        await sandbox.stop()
        await provider.aclose()
