"""Installing the real harnesses where they cannot run: said at once, and said to be final where it is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from inspan_codex import runtime as codex
from inspan_core.errors import InstallError, UnsupportedTarget
from inspan_pi import runtime as pi
from inspan_runtime.install import SandboxInstaller
from inspan_runtime.install_cache import RuntimeCache

pytestmark = pytest.mark.anyio

PROGRAMS = {"pi": (pi, "bin/node", pi.PI_VERSION), "codex": (codex, codex.PROGRAM, codex.EXPECTED)}


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
def sandbox(local_sandbox):
    return local_sandbox


@pytest.fixture
def installer(sandbox, tmp_path):
    """A function that makes an installer with a cache of the test's."""

    def make(**more):
        cache = RuntimeCache(tmp_path / "cache", client_env={"PATH": os.defpath})
        roots = [str(tmp_path / "rt")]
        return SandboxInstaller(sandbox, cache, workdir=str(tmp_path / "work"), roots=roots, **more)

    return make


@pytest.fixture
def install(installer):
    """Installs with an archive in the cache whose program is a shell script."""

    async def run(name, script):
        module, program, _ = PROGRAMS[name]
        here = installer()

        async def build(folder):
            path = Path(folder.path) / program
            path.parent.mkdir()
            path.write_text("#!/bin/sh\n" + script)
            path.chmod(0o755)

        await here.archive(module.runtime_key(await here.target()), build)
        return await module.install(here)

    return run


@pytest.mark.parametrize("name", PROGRAMS)
async def test_what_it_returns_is_what_staging_needs(install, tmp_path, name):
    _, _, expected = PROGRAMS[name]
    found = await install(name, f"echo {expected}\n")
    assert found["prefix"].startswith(str(tmp_path / "rt" / f"{name}-{found[name]}-"))
    assert os.access(found["python"], os.X_OK)


LOADER = "echo 'node: error while loading shared libraries: libstdc++.so.6: cannot open' >&2; exit 127\n"
OLD_LIBC = 'echo "node: /lib/libc.so.6: version \\`GLIBC_2.28\' not found" >&2; exit 1\n'


@pytest.mark.parametrize(
    ("name", "script"),
    [
        ("pi", LOADER),
        ("pi", OLD_LIBC),
        ("pi", "exit 126\n"),
        ("codex", "echo 'cannot execute binary file: Exec format error' >&2; exit 1\n"),
        ("codex", "exit 126\n"),
    ],
)
async def test_a_program_that_no_retry_makes_run_is_unsupported(install, name, script):
    with pytest.raises(UnsupportedTarget, match=r"does not run in this sandbox .*supported: "):
        await install(name, script)


@pytest.mark.parametrize("name", PROGRAMS)
async def test_any_other_failure_may_be_tried_again(install, name):
    with pytest.raises(InstallError, match="out of memory"):
        await install(name, "echo out of memory >&2; exit 134\n")


@pytest.mark.parametrize("name", PROGRAMS)
async def test_no_python_is_unsupported_before_anything_is_fetched(installer, tmp_path, name):
    (tmp_path / "nothing").mkdir()
    here = installer(pythons=[str(tmp_path / "nothing")])
    with pytest.raises(UnsupportedTarget, match=r"no Python 3.8"):
        await PROGRAMS[name][0].install(here)
    assert not (tmp_path / "cache" / "archives").exists()
