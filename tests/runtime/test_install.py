"""The installer against a real sandbox of the local provider, with a runtime of one shell script."""

from __future__ import annotations

import json
import os
from pathlib import Path

import anyio
import pytest

from inspan_core.errors import InstallError, UnsupportedTarget
from inspan_core.harness import RuntimeKey
from inspan_runtime.install import SandboxInstaller
from inspan_runtime.install_cache import RuntimeCache
from inspan_runtime.install_unpacker import MARKER

pytestmark = pytest.mark.anyio

KEY = RuntimeKey(harness="tiny", version="1.2", os="linux", arch="x86_64", libc="glibc")
HEALTH = ["sh", "{prefix}/bin/tiny"]


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request):
    return request.param


@pytest.fixture
def sandbox(local_sandbox):
    return local_sandbox


@pytest.fixture
def cache(tmp_path):
    return RuntimeCache(tmp_path / "cache", client_env={"PATH": os.defpath})


@pytest.fixture
def installer(sandbox, cache, tmp_path):
    return SandboxInstaller(
        sandbox, cache, workdir=str(tmp_path / "work"), roots=[str(tmp_path / "runtimes")]
    )


def recipe(script="echo tiny 1.2\n"):
    builds = []

    async def build(folder):
        builds.append(folder.path)
        tool = Path(folder.path) / "bin" / "tiny"
        tool.parent.mkdir()
        tool.write_text(script)
        tool.chmod(0o700)
        (Path(folder.path) / "bin" / "alias").symlink_to("tiny")

    return build, builds


async def install(installer, build, expect="tiny 1.2"):
    archive = await installer.archive(KEY, build)
    return await installer.publish(KEY, archive, health=HEALTH, expect=expect)


def leftovers(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir() if path.name not in (str(KEY), ".lock"))


async def test_a_runtime_is_published_where_prefix_said_with_its_modes_links_and_marker(installer, tmp_path):
    build, _ = recipe()
    target = await installer.target()
    assert (target.os, target.arch) == ("linux", os.uname().machine)
    assert os.access(target.python, os.X_OK)
    prefix = await install(installer, build)
    assert prefix == installer.prefix(KEY) == str(tmp_path / "runtimes" / str(KEY))
    assert os.access(f"{prefix}/bin/tiny", os.X_OK)
    assert os.readlink(f"{prefix}/bin/alias") == "tiny"
    assert json.loads((Path(prefix) / MARKER).read_text())["runtime"] == str(KEY)
    assert await installer.healthy(prefix, health=HEALTH, expect="tiny 1.2")
    assert leftovers(tmp_path / "runtimes") == []


async def test_a_healthy_runtime_is_reused_and_nothing_is_built_or_unpacked_again(installer):
    build, builds = recipe()
    prefix = await install(installer, build)
    inode = os.stat(f"{prefix}/bin/tiny").st_ino
    assert await install(installer, build) == prefix
    assert os.stat(f"{prefix}/bin/tiny").st_ino == inode
    assert len(builds) == 1


async def test_sixteen_seeds_at_once_build_once_and_no_reader_sees_a_broken_runtime(
    installer, sandbox, cache, tmp_path
):
    build, builds = recipe()
    roots = [str(tmp_path / "runtimes")]
    seen: list[tuple[int, bytes]] = []
    script = f'if [ -d "$1" ]; then sh "$1/bin/tiny"; test -f "$1/{MARKER}"; else exit 7; fi'

    async def seed():
        own = SandboxInstaller(sandbox, cache, workdir=str(tmp_path / "work"), roots=roots)
        prefixes.append(await install(own, build))

    async def read(prefix, done):
        while not done.is_set():
            result = await sandbox.exec(["sh", "-c", script, "sh", prefix], timeout_s=10)
            seen.append((result.exit_code, result.stdout))

    await installer.target()
    prefix = installer.prefix(KEY)
    prefixes: list[str] = []
    done = anyio.Event()
    with anyio.fail_after(50):
        async with anyio.create_task_group() as readers:
            readers.start_soon(read, prefix, done)
            async with anyio.create_task_group() as seeds:
                for _ in range(16):
                    seeds.start_soon(seed)
            seen.append((0, b"tiny 1.2\n"))
            done.set()
    assert prefixes == [prefix] * 16
    assert len(builds) == 1
    assert set(seen) <= {(7, b""), (0, b"tiny 1.2\n")}
    assert leftovers(tmp_path / "runtimes") == []


async def test_a_broken_runtime_is_repaired_once(installer, tmp_path):
    build, _ = recipe()
    prefix = await install(installer, build)
    Path(prefix, "bin", "tiny").write_text("echo something else\n")
    assert not await installer.healthy(prefix, health=HEALTH, expect="tiny 1.2")
    assert await install(installer, build) == prefix
    assert await installer.healthy(prefix, health=HEALTH, expect="tiny 1.2")
    assert leftovers(tmp_path / "runtimes") == []


@pytest.mark.parametrize("kind", ["empty folder", "file", "dangling link", "link to a folder outside"])
async def test_whatever_stands_in_its_place_without_a_marker_gives_way(installer, tmp_path, kind):
    await installer.target()
    place = tmp_path / "runtimes" / str(KEY)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("stays")
    place.parent.mkdir()
    if kind == "empty folder":
        place.mkdir()
    elif kind == "file":
        place.write_text("x")
    else:
        place.symlink_to("nowhere" if kind == "dangling link" else outside)
    build, _ = recipe()
    prefix = await install(installer, build)
    assert not os.path.islink(prefix)
    assert await installer.healthy(prefix, health=HEALTH, expect="tiny 1.2")
    assert (outside / "precious").read_text() == "stays"
    assert leftovers(tmp_path / "runtimes") == []


async def test_a_runtime_that_does_not_run_is_never_published_and_the_error_says_what_it_said(
    installer, tmp_path
):
    build, _ = recipe("echo no such instruction >&2; exit 132\n")
    with pytest.raises(InstallError) as caught:
        await install(installer, build)
    assert caught.value.exit_code == 132
    assert "no such instruction" in caught.value.output
    assert "bin/tiny" in str(caught.value.command)
    assert leftovers(tmp_path / "runtimes") == []
    assert not os.path.exists(installer.prefix(KEY))


async def test_another_version_than_expected_is_an_error(installer):
    build, _ = recipe()
    with pytest.raises(InstallError, match=r"did not print 'tiny 9'"):
        await install(installer, build, expect="tiny 9")


async def test_a_marker_alone_does_not_make_a_runtime(installer):
    await installer.target()
    prefix = Path(installer.prefix(KEY))
    prefix.mkdir(parents=True)
    (prefix / MARKER).write_text(json.dumps({"runtime": str(KEY)}))
    assert not await installer.healthy(str(prefix), health=HEALTH, expect="tiny")


async def test_a_root_that_cannot_be_used_is_passed_over_and_none_at_all_is_a_422(sandbox, cache, tmp_path):
    (tmp_path / "taken").write_text("a file")
    inside_workdir = str(tmp_path / "work" / "runtimes")
    good = str(tmp_path / "good")
    bad = [str(tmp_path / "taken" / "sub"), inside_workdir]
    build, _ = recipe()
    second = SandboxInstaller(sandbox, cache, workdir=str(tmp_path / "work"), roots=[*bad, good])
    await second.target()
    assert await install(second, build) == f"{good}/{KEY}"
    none = SandboxInstaller(sandbox, cache, workdir=str(tmp_path / "work"), roots=bad)
    with pytest.raises(UnsupportedTarget, match="inside the workdir"):
        await install(none, build)
    assert not os.path.exists(inside_workdir)


async def test_without_isolation_runtimes_live_in_the_hosts_cache_folder(sandbox, cache, tmp_path):
    build, _ = recipe()
    installer = SandboxInstaller(sandbox, cache, workdir=str(tmp_path / "work"))
    await installer.target()
    assert await install(installer, build) == str(tmp_path / "cache" / "runtimes" / str(KEY))


async def test_a_cancelled_installation_leaves_nothing(installer, tmp_path):
    build, _ = recipe("sleep 600\n")
    archive = await installer.archive(KEY, build)
    await installer.target()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(
            lambda: installer.publish(KEY, archive, health=HEALTH, expect="tiny"), name="publish"
        )
        with anyio.fail_after(30):
            while not any(tmp_path.glob("runtimes/*/bin")):
                await anyio.sleep(0.01)
        tasks.cancel_scope.cancel()
    assert leftovers(tmp_path / "runtimes") == []


async def test_what_killed_installations_left_is_swept_and_what_runs_now_is_not(installer, tmp_path):
    await installer.target()
    root = tmp_path / "runtimes"
    old, young = root / ("." + "a" * 32), root / ("." + "b" * 32)
    for folder in (old, young):
        (folder / "bin").mkdir(parents=True)
    os.utime(old, (1, 1))
    (root / f".{'c' * 32}.tar").write_text("x")
    os.utime(root / f".{'c' * 32}.tar", (1, 1))
    (root / "somebody-elses").mkdir()
    os.utime(root / "somebody-elses", (1, 1))
    build, _ = recipe()
    await install(installer, build)
    assert leftovers(root) == [young.name, "somebody-elses"]
