"""Installation on the host, killed at any moment, and over a cache that is damaged or cannot be used."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from inspan_core.errors import InstallError
from inspan_core.harness import RuntimeKey
from inspan_core.sandbox import SandboxSpec
from inspan_runtime.install import SandboxInstaller
from inspan_runtime.install_cache import RuntimeCache
from inspan_runtime.install_unpacker import MARKER
from inspan_runtime.providers.local import LocalProvider

pytestmark = pytest.mark.anyio

KEY = RuntimeKey(harness="tiny", version="1", os="linux", arch="x86_64", libc="musl")
NAME = str(KEY)
MOMENTS = 20
PROCESS = """
import os, signal, sys, anyio
from pathlib import Path
from inspan_core.harness import RuntimeKey
from inspan_runtime.install_cache import RuntimeCache

root, fatal = Path(sys.argv[1]), int(sys.argv[2])
key = RuntimeKey(harness="tiny", version="1", os="linux", arch="x86_64", libc="musl")
cache = RuntimeCache(root, client_env={})
steps = 0

def watch(event, arguments):
    global steps
    if event == "open" or event.startswith("os."):
        if any(str(root) in str(each) for each in arguments):
            steps += 1
            if steps == fatal:
                os.kill(os.getpid(), signal.SIGKILL)

async def build(folder):
    for number in range(4):
        Path(folder.path, f"file-{number}").write_text("x" * 100)

async def main():
    archive = await cache.archive(key, build)
    await cache.unpacked(key, archive)
    cache.shared.lease(str(key), "box", 60.0)

sys.addaudithook(watch)
anyio.run(main)
print(steps)
"""


@pytest.fixture
def anyio_backend():
    return "asyncio"


async def build(folder):
    for number in range(4):
        Path(folder.path, f"file-{number}").write_text("x" * 100)


def install(root, fatal=0):
    """Install in another process, which kills itself at one of its steps."""
    command = [sys.executable, "-c", PROCESS, str(root), str(fatal)]
    return subprocess.run(command, capture_output=True, text=True, timeout=50)


def contents(folder):
    return {path.name: path.read_text() for path in folder.glob("file-*")}


WHOLE = {f"file-{number}": "x" * 100 for number in range(4)}


async def killed_at(root, fatal):
    """What a killed installation left is no runtime or a whole one, and goes in time."""
    assert install(root, fatal).returncode == -signal.SIGKILL
    cache = RuntimeCache(root, client_env={})
    place = cache.shared.folder / NAME
    assert not place.exists() or contents(place) == WHOLE
    if cache.shared.is_intact(NAME):
        assert contents(place) == WHOLE
    assert cache.known() in ([], [NAME])
    for path in root.rglob("*"):
        os.utime(path, (1, 1), follow_symlinks=False)
    archive = await cache.archive(KEY, build)
    await cache.unpacked(KEY, archive)
    cache.shared.unpack(NAME, Path(archive.path), archive.sha256)
    cache.prune()
    assert cache.shared.is_intact(NAME) and contents(place) == WHOLE
    hidden = {path.name for path in root.rglob(".*")} - {MARKER, ".inspan-host"}
    assert {name for name in hidden if not name.startswith(".inspan-host.")} == set()
    assert list((root / "build").iterdir()) == []
    assert len(list((root / "archives").iterdir())) == 2


@pytest.mark.full
async def test_killed_at_any_moment_it_is_repaired_and_leaves_nothing(tmp_path):
    steps = int(install(tmp_path / "whole").stdout)
    assert steps > MOMENTS
    for moment in range(MOMENTS):
        await killed_at(tmp_path / str(moment), 1 + moment * (steps - 1) // (MOMENTS - 1))


async def test_killed_while_it_publishes_it_is_repaired_and_leaves_nothing(tmp_path):
    steps = int(install(tmp_path / "whole").stdout)
    for moment in (steps // 2, steps - 8):
        await killed_at(tmp_path / str(moment), moment)


DEEP = "[" * 100_000
NONSENSE = ("", "{", "[]", "null", DEEP, '"\\ud800"', '{"archive": 1}', "\udcff")


@pytest.mark.parametrize("nonsense", NONSENSE, ids=range(len(NONSENSE)))
async def test_records_that_say_nothing_are_made_anew(tmp_path, nonsense):
    cache = RuntimeCache(tmp_path, client_env={})
    archive = await cache.archive(KEY, build)
    await cache.unpacked(KEY, archive)
    for record in (
        tmp_path / "archives" / f"{NAME}.json",
        tmp_path / "manifests" / f"{NAME}.json",
        tmp_path / "runtimes" / NAME / MARKER,
    ):
        record.write_text(nonsense, errors="surrogateescape")
        again = await cache.archive(KEY, build)
        await cache.unpacked(KEY, again)
        assert again.sha256 == archive.sha256
        assert cache.is_sound(NAME) and cache.shared.is_intact(NAME)


async def test_a_marker_that_the_task_wrote_cannot_break_a_seed(tmp_path):
    """It lies in the sandbox, where anybody can write it."""
    provider = LocalProvider({})
    (tmp_path / "work").mkdir()
    sandbox = await provider.create(SandboxSpec(workdir=str(tmp_path / "work")), key="deep", timeout_s=20)
    cache = RuntimeCache(tmp_path / "cache", client_env={})
    roots = [str(tmp_path / "inside")]
    installer = SandboxInstaller(sandbox, cache, workdir=str(tmp_path / "work"), roots=roots)
    health = {"health": ["cat", "{prefix}/file-1"], "expect": "xxx"}
    try:
        await installer.target()
        prefix = Path(installer.prefix(KEY))
        prefix.mkdir(parents=True)
        (prefix / MARKER).write_text("[" * 4000)
        assert not await installer.healthy(str(prefix), **health)
        archive = await cache.archive(KEY, build)
        assert await installer.publish(KEY, archive, **health) == str(prefix)
        assert await installer.healthy(str(prefix), **health)
    finally:
        await sandbox.stop()


def broken_file(root):
    (root / "archives").write_text("no folder")


def broken_link(root):
    (root / "archives").symlink_to("nowhere")


def broken_lock(root):
    (root / "locks" / f"{NAME}.lock").mkdir(parents=True)


@pytest.mark.parametrize("harm", [broken_file, broken_link, broken_lock])
async def test_a_cache_that_cannot_be_used_is_an_error_that_names_it(tmp_path, harm):
    root = tmp_path / "cache"
    root.mkdir()
    harm(root)
    cache = RuntimeCache(root, client_env={})
    with pytest.raises(InstallError, match=f"the cache {root} cannot hold {NAME}: "):
        await cache.archive(KEY, build)
    if harm is not broken_lock:
        with pytest.raises(OSError):
            cache.require()


async def test_a_full_disk_is_an_error_that_names_the_cache_and_leaves_nothing(tmp_path):
    cache = RuntimeCache(tmp_path, client_env={})

    async def fill(folder):
        Path("/dev/full").write_text("x")

    with pytest.raises(InstallError, match="No space left on device"):
        await cache.archive(KEY, fill)
    assert list((tmp_path / "build").iterdir()) == []
    assert cache.known() == []


async def test_archives_of_another_user_are_not_run(tmp_path, monkeypatch):
    cache = RuntimeCache(tmp_path, client_env={})
    await cache.archive(KEY, build)
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    if os.getuid() == 0:  # Whose folders everybody trusts.
        os.chown(tmp_path / "archives", 4243, 4243)
    with pytest.raises(InstallError, match="belongs to another user"):
        await RuntimeCache(tmp_path, client_env={}).archive(KEY, build)


async def test_a_clock_that_was_ahead_keeps_nothing_for_ever(tmp_path):
    cache = RuntimeCache(tmp_path, client_env={})
    keys = [RuntimeKey(harness="t", version=f"{n}", os="linux", arch="a", libc="musl") for n in range(2)]
    for key in keys:
        await cache.unpacked(key, await cache.archive(key, build))
    future = time.time() + 40 * 365 * 86400
    left = cache.shared.folder / f".{'0' * 32}"
    left.mkdir()
    for path in (tmp_path / "archives" / f"{keys[0]}.json", tmp_path / "manifests" / f"{keys[0]}.json", left):
        os.utime(path, (future, future))
    assert cache.prune(kept=1, idle_s=0.0) == [str(keys[0])]
    cache.shared.unpack(str(keys[1]), Path((await cache.archive(keys[1], build)).path), "0")
    assert not left.exists()


async def test_a_cache_behind_a_link_serves(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    cache = RuntimeCache(tmp_path / "link", client_env={})
    archive = await cache.archive(KEY, build)
    assert await cache.unpacked(KEY, archive)
    assert (
        json.loads((tmp_path / "real" / "archives" / f"{NAME}.json").read_text())["sha256"] == archive.sha256
    )
