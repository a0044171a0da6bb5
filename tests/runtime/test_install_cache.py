"""The host's archive cache: one build per key across tasks and processes, verified at use."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path

import anyio
import pytest

from inspan_core.errors import InstallError
from inspan_core.harness import RuntimeKey
from inspan_runtime.install_cache import RuntimeCache, default_cache_dir, sha256_of

pytestmark = pytest.mark.anyio

KEY = RuntimeKey(harness="tiny", version="1", os="linux", arch="x86_64", libc="musl")


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request):
    return request.param


def recipe(text="hello\n"):
    builds = []

    async def build(folder):
        builds.append(folder.path)
        await anyio.lowlevel.checkpoint()
        Path(folder.path, "file").write_text(text)

    return build, builds


def fresh(tmp_path, **kwargs):
    return RuntimeCache(tmp_path / "cache", client_env={"PATH": os.defpath}, **kwargs)


async def test_the_archive_holds_what_the_build_left_and_only_that(tmp_path):
    build, _ = recipe()
    archive = await fresh(tmp_path).archive(KEY, build)
    assert sha256_of(Path(archive.path)) == archive.sha256
    with tarfile.open(archive.path) as tar:
        assert [(m.name, m.mode, m.uid, m.mtime) for m in tar] == [("file", 0o644, 0, 0)]
    assert os.listdir(tmp_path / "cache" / "build") == []


async def test_the_same_content_gives_the_same_digest(tmp_path):
    build, _ = recipe()
    first = await fresh(tmp_path / "a").archive(KEY, build)
    second = await fresh(tmp_path / "b").archive(KEY, build)
    assert first.sha256 == second.sha256


async def test_many_tasks_build_once_and_a_second_cache_object_finds_it(tmp_path):
    build, builds = recipe()
    cache = fresh(tmp_path)
    found = []

    async def ask():
        found.append(await cache.archive(KEY, build))

    async with anyio.create_task_group() as tasks:
        for _ in range(8):
            tasks.start_soon(ask)
    assert len(builds) == 1
    assert len({(archive.path, archive.sha256) for archive in found}) == 1
    assert await fresh(tmp_path).archive(KEY, build) == found[0]
    assert len(builds) == 1
    assert cache.known() == [str(KEY)]


PROCESS = """
import os, sys, anyio
from pathlib import Path
from inspan_core.harness import RuntimeKey
from inspan_runtime.install_cache import RuntimeCache
key = RuntimeKey(harness="tiny", version="1", os="linux", arch="x86_64", libc="musl")
async def build(folder):
    with open(sys.argv[2], "a") as log:
        log.write("built\\n")
    Path(folder.path, "file").write_text("hello\\n")
async def main():
    archive = await RuntimeCache(Path(sys.argv[1]), client_env={}).archive(key, build)
    print(archive.sha256)
anyio.run(main)
"""


def test_several_processes_build_once(tmp_path):
    log = tmp_path / "log"
    command = [sys.executable, "-c", PROCESS, str(tmp_path / "cache"), str(log)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(4)]
    answers = [process.communicate(timeout=50)[0] for process in running]
    assert [process.returncode for process in running] == [0] * 4
    assert len(set(answers)) == 1
    assert log.read_text() == "built\n"


@pytest.mark.parametrize("harm", ["flipped byte", "cut", "gone", "record malformed", "record points outside"])
async def test_a_corrupted_archive_is_built_again_once(tmp_path, harm):
    build, builds = recipe()
    cache = fresh(tmp_path)
    archive = await cache.archive(KEY, build)
    path, record = Path(archive.path), tmp_path / "cache" / "archives" / f"{KEY}.json"
    if harm == "flipped byte":
        data = bytearray(path.read_bytes())
        data[600] ^= 1
        path.write_bytes(data)
    elif harm == "cut":
        path.write_bytes(path.read_bytes()[:100])
    elif harm == "gone":
        path.unlink()
    elif harm == "record malformed":
        record.write_text("{")
    else:
        (tmp_path / path.name).write_bytes(path.read_bytes())
        record.write_text(f'{{"archive": "../../{path.name}", "sha256": "{archive.sha256}"}}')
    again = await cache.archive(KEY, build)
    assert again.sha256 == archive.sha256 == sha256_of(Path(again.path))
    assert len(builds) == 2
    await cache.archive(KEY, build)
    assert len(builds) == 2


async def test_a_failed_build_leaves_no_archive_and_the_next_one_may_succeed(tmp_path):
    async def broken(folder):
        Path(folder.path, "half").write_text("x")
        raise InstallError("no registry", command="pip", exit_code=1, output="could not resolve")

    cache = fresh(tmp_path)
    with pytest.raises(InstallError, match="could not resolve"):
        await cache.archive(KEY, broken)
    assert cache.known() == []
    assert os.listdir(tmp_path / "cache" / "build") == []
    build, builds = recipe()
    await cache.archive(KEY, build)
    assert len(builds) == 1


@pytest.mark.parametrize("link", ["/etc/passwd", "../../../x", "nowhere"])
async def test_a_link_that_dangles_or_leads_out_is_refused(tmp_path, link):
    async def build(folder):
        Path(folder.path, "link").symlink_to(link)

    with pytest.raises(InstallError, match="does not stay inside"):
        await fresh(tmp_path).archive(KEY, build)


async def test_waiting_for_another_builder_is_bounded(tmp_path):
    entered, leave = anyio.Event(), anyio.Event()

    async def slow(folder):
        entered.set()
        await leave.wait()
        Path(folder.path, "file").write_text("x")

    build, builds = recipe()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(fresh(tmp_path).archive, KEY, slow)
        await entered.wait()
        with pytest.raises(InstallError, match="has been building"):
            await fresh(tmp_path, lock_wait_s=0.2).archive(KEY, build)
        leave.set()
    assert builds == []


def test_the_cache_folder_follows_xdg(tmp_path):
    assert default_cache_dir({"XDG_CACHE_HOME": "/x", "HOME": "/h"}) == Path("/x/inspan")
    assert default_cache_dir({"XDG_CACHE_HOME": "relative", "HOME": "/h"}) == Path("/h/.cache/inspan")
    assert default_cache_dir({"HOME": "/h"}) == Path("/h/.cache/inspan")
