"""Old versions go from the host's cache, and nothing that may be in use."""

from __future__ import annotations

import os
import time
from pathlib import Path

import anyio
import pytest

from inspan_core.harness import RuntimeKey
from inspan_core.sandbox import SandboxSpec
from inspan_runtime.install_cache import KEPT_VERSIONS, STALE_BUILD_S, RuntimeCache
from inspan_runtime.install_shared import shown_in

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
def cache(tmp_path):
    return RuntimeCache(tmp_path / "cache", client_env={})


def key_of(version, harness="tiny", libc="musl"):
    return RuntimeKey(harness=harness, version=version, os="linux", arch="x86_64", libc=libc)


async def build(folder):
    Path(folder.path, "file").write_text("hello\n")


async def have(cache, key, *, used_s_ago=0.0, unpacked=True):
    archive = await cache.archive(key, build)
    if unpacked:
        await cache.unpacked(key, archive)
    age(cache, key, used_s_ago)


def age(cache, key, used_s_ago):
    then = time.time() - used_s_ago
    for path in (cache.root / "archives" / f"{key}.json", cache.root / "manifests" / f"{key}.json"):
        if path.exists():
            os.utime(path, (then, then))


async def test_the_versions_used_last_stay_of_each_harness_and_target(cache):
    day_s = 24 * 3600.0
    kept, old = [], []
    for harness, libc in (("tiny", "musl"), ("tiny", "glibc"), ("tiny-two", "musl")):
        for number in reversed(range(KEPT_VERSIONS + 2)):
            key = key_of(f"1.{number}-abcdef01", harness, libc)
            await have(cache, key, used_s_ago=day_s * (number + 1))
            (kept if number < KEPT_VERSIONS else old).append(str(key))
    assert set(cache.prune()) <= set(old)  # Each new archive has pruned already.
    assert cache.known() == cache.shared.keys() == sorted(kept)
    assert not [path for path in cache.root.rglob("*") if any(key in str(path) for key in old)
                if path.parent.name != "locks"]  # fmt: skip


async def test_what_was_just_used_stays_however_many_there_are(cache):
    keys = [key_of(f"1.{number}") for number in range(KEPT_VERSIONS + 2)]
    for key in keys:
        await have(cache, key)
    assert cache.prune() == []
    assert len(cache.known()) == len(keys)


async def test_a_runtime_that_a_sandbox_may_use_stays_until_it_is_let_go_or_cannot_live_any_more(cache):
    leased, lapsed, free = key_of("1.0"), key_of("1.1"), key_of("1.2")
    for key in (leased, lapsed, free):
        await have(cache, key)
    cache.shared.lease(str(leased), "box", None)
    cache.shared.lease(str(lapsed), "box", 0.0)
    for key in (leased, lapsed, free):
        age(cache, key, 7200.0)
    assert cache.prune(kept=0) == [str(lapsed), str(free)]
    cache.shared.let_go("another")
    assert cache.prune(kept=0) == []
    cache.shared.let_go("box")
    assert cache.prune(kept=0) == [str(leased)]
    assert (cache.known(), cache.shared.keys()) == ([], [])


async def test_use_is_what_counts_and_not_when_it_was_made(cache):
    first, second = key_of("1.0"), key_of("1.1")
    for key in (first, second):
        await have(cache, key, used_s_ago=7200.0)
    await cache.archive(first, build)
    assert cache.prune(kept=1) == [str(second)]


async def test_one_that_is_being_built_is_left_alone(cache):
    key = key_of("1.0")
    await have(cache, key, used_s_ago=7200.0)
    building, go = anyio.Event(), anyio.Event()
    (cache.root / "archives" / f"{key}.json").unlink()

    async def slow(folder):
        building.set()
        await go.wait()
        await build(folder)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(cache.archive, key, slow)
        with anyio.fail_after(20):
            await building.wait()
        age(cache, key, 7200.0)
        assert cache.prune(kept=0) == []
        go.set()
    assert cache.known() == cache.shared.keys() == [str(key)]


async def test_what_killed_builds_left_goes_after_a_day(cache):
    await have(cache, key_of("1.0"))
    old, young = (cache.root / "build" / name for name in ("old", "young"))
    for folder in (old, young):
        folder.mkdir()
    os.utime(old, (time.time() - STALE_BUILD_S - 60,) * 2)
    cache.prune()
    assert [path.name for path in (cache.root / "build").iterdir()] == ["young"]


def test_nobody_else_may_write_to_the_folder_and_nobody_elses_is_used(cache):
    word = cache.shared.word()
    cache.shared.folder.chmod(0o777)
    assert cache.shared.word() == word
    assert cache.shared.folder.stat().st_mode & 0o777 == 0o755


def test_a_folder_of_another_user_is_not_used(cache, monkeypatch):
    cache.shared.word()
    if os.geteuid() == 0:
        os.chown(cache.shared.folder, 1, 1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 4711)
    with pytest.raises(PermissionError, match="belongs to another user"):
        cache.shared.word()
    spec = SandboxSpec(workdir="/app")
    assert shown_in(spec, cache.shared) is spec
