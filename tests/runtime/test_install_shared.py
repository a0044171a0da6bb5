"""Runtimes that stand unpacked on the host and that sandboxes see read-only: copied into none."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import anyio
import pytest
from attrs import evolve

from inspan_core.errors import InstallError
from inspan_core.harness import RuntimeKey
from inspan_core.sandbox import Mount, SandboxSpec
from inspan_runtime.install import SandboxInstaller
from inspan_runtime.install_cache import RuntimeCache
from inspan_runtime.install_shared import SHARED_PATH, create_with_runtimes
from inspan_runtime.install_unpacker import MARKER
from inspan_runtime.providers.bubblewrap import BubblewrapProvider
from inspan_runtime.providers.local import LocalProvider

pytestmark = [pytest.mark.anyio, pytest.mark.sandbox]

KEY = RuntimeKey(harness="tiny", version="1.2", os="linux", arch="x86_64", libc="glibc")
HEALTH = ["sh", "{prefix}/bin/tiny"]
SPEC = SandboxSpec(workdir="/app", ttl_s=120.0)


@pytest.fixture
def anyio_backend():
    return "asyncio"


class Host:
    """A host with a cache, and sandboxes that see its runtimes."""

    def __init__(self, tmp_path):
        self.tmp_path = tmp_path
        self.said: list[str] = []
        self.cache = RuntimeCache(
            tmp_path / "cache", client_env={"PATH": os.defpath}, report=self.said.append
        )
        self.providers = {}
        self.made = []

    def provider(self, kind="bubblewrap"):
        if kind not in self.providers:
            options = {"runtime_dir": str(self.tmp_path / "run" / kind)}
            if kind == "read-only":
                options["writable_root"] = False
            provider = (LocalProvider if kind == "local" else BubblewrapProvider)(options)
            self.providers[kind] = provider
        return self.providers[kind]

    async def sandbox(self, spec=SPEC, kind="bubblewrap"):
        number = str(len(self.made))
        sandbox = await create_with_runtimes(
            self.provider(kind), spec, self.cache.shared, key=number, timeout_s=30.0
        )
        self.made.append(sandbox)
        return sandbox

    def installer(self, sandbox, cache=None, **where):
        return SandboxInstaller(sandbox, cache or self.cache, workdir="/app", **where)

    async def seed(self, installer, *, key=KEY, expect="tiny 1.2", script="echo tiny 1.2\n"):
        """As a plugin installs."""
        await installer.target()
        prefix = installer.prefix(key)
        if await installer.healthy(prefix, health=HEALTH, expect=expect):
            return prefix

        async def build(folder):
            tool = Path(folder.path) / "bin" / "tiny"
            tool.parent.mkdir()
            tool.write_text(script)
            tool.chmod(0o700)
            (Path(folder.path) / "bin" / "alias").symlink_to("tiny")

        archive = await installer.archive(key, build)
        return await installer.publish(key, archive, health=HEALTH, expect=expect)

    @property
    def place(self):
        return self.cache.shared.folder / str(KEY)


@pytest.fixture
async def host(tmp_path):
    made = Host(tmp_path)
    yield made
    for sandbox in made.made:
        await sandbox.stop()


async def sh(sandbox, script):
    result = await sandbox.exec(["sh", "-c", script], timeout_s=20, cwd="/")
    return result.exit_code, (result.stdout + result.stderr).decode()


WORK = [f"building {KEY}", f"unpacking {KEY}"]


@pytest.mark.parametrize("kind", ["bubblewrap", "read-only"])
async def test_sandboxes_share_one_unpacked_runtime_and_hold_no_copy(host, kind):
    assert not host.cache.root.exists()
    first, second = await host.sandbox(kind=kind), await host.sandbox(kind=kind)
    prefixes = {await host.seed(host.installer(each)) for each in (first, second, first)}
    assert prefixes == {f"{SHARED_PATH}/{KEY}"}
    assert host.said == WORK
    for sandbox in (first, second):
        code, found = await sh(sandbox, "find / -xdev -name tiny 2>/dev/null; true")
        assert (code, found) == (0, ""), "there is a copy inside"


async def test_sixteen_seeds_into_one_sandbox_unpack_once_and_a_reader_never_sees_a_broken_one(host):
    sandbox = await host.sandbox()
    prefix, seen, done = f"{SHARED_PATH}/{KEY}", [], anyio.Event()
    script = (
        f'if [ -d "{prefix}" ]; then sh "{prefix}/bin/tiny" && test -f "{prefix}/{MARKER}"; else exit 7; fi'
    )

    async def read():
        while not done.is_set():
            seen.append(await sh(sandbox, script))

    with anyio.fail_after(50):
        async with anyio.create_task_group() as readers:
            readers.start_soon(read)
            async with anyio.create_task_group() as seeds:
                for _ in range(16):
                    seeds.start_soon(host.seed, host.installer(sandbox))
            done.set()
    assert host.said == WORK
    assert {code for code, _ in seen} <= {0, 7}
    assert {said for code, said in seen if code == 0} <= {"tiny 1.2\n"}


HARM = (
    "echo evil > P/bin/tiny",
    "echo evil >> P/bin/tiny",
    "chmod 777 P/bin/tiny",
    "rm -rf P",
    "mv P /tmp/stolen",
    "touch P/new",
    "ln -s /etc P/bin/link",
    "mount -o remount,rw S",
    "mount --bind /tmp S",
    "umount S",
    "mkdir S/another",
    "echo x > S/.inspan-host",
)


async def test_root_inside_cannot_change_it(host):
    sandbox = await host.sandbox()
    prefix = await host.seed(host.installer(sandbox))
    before = sorted((path, path.lstat().st_mtime_ns) for path in host.cache.shared.folder.rglob("*"))
    for harm in HARM:
        code, said = await sh(sandbox, "id -u; " + harm.replace("P", prefix).replace("S", SHARED_PATH))
        assert (said.startswith("0\n"), code != 0) == (True, True), (harm, said)
    after = sorted((path, path.lstat().st_mtime_ns) for path in host.cache.shared.folder.rglob("*"))
    assert after == before
    assert await sh(sandbox, f"sh {prefix}/bin/tiny") == (0, "tiny 1.2\n")


@pytest.mark.parametrize(
    "harm",
    [
        lambda place: (place / "bin" / "tiny").write_text("echo tiny 9.9\n"),
        lambda place: (place / "bin" / "tiny").unlink(),
        lambda place: (place / "bin" / "tiny").chmod(0o600),
        lambda place: (place / MARKER).unlink(),
        lambda place: (place / MARKER).write_text('{"runtime": "another"}'),
        lambda place: (place / "bin" / "alias").unlink() or (place / "bin" / "alias").symlink_to("gone"),
        lambda place: shutil.rmtree(place),
        lambda place: shutil.rmtree(place) or place.symlink_to("nowhere"),
        lambda place: shutil.rmtree(place) or place.write_text("a file"),
    ],
    ids=["byte", "file", "mode", "no marker", "marker", "dangling", "gone", "link", "a file"],
)
async def test_a_damaged_runtime_is_made_anew_once(host, harm):
    sandbox = await host.sandbox()
    await host.seed(host.installer(sandbox))
    harm(host.place)
    assert await host.seed(host.installer(sandbox)) == f"{SHARED_PATH}/{KEY}"
    assert host.said == [*WORK, WORK[1]]
    assert await sh(sandbox, f"sh {SHARED_PATH}/{KEY}/bin/alias") == (0, "tiny 1.2\n")
    assert not [path for path in host.cache.shared.folder.iterdir() if path.name.endswith(".old")]


async def test_damage_that_time_and_size_do_not_show_is_found_when_it_does_not_run(host):
    sandbox = await host.sandbox()
    await host.seed(host.installer(sandbox))
    tool = host.place / "bin" / "tiny"
    was = tool.stat()
    tool.write_text("exit 77 # 1234\n"[: was.st_size])
    os.utime(tool, ns=(was.st_atime_ns, was.st_mtime_ns))
    assert host.cache.shared.is_intact(str(KEY))
    await host.seed(host.installer(sandbox))
    assert host.said == [*WORK, WORK[1]]
    assert await sh(sandbox, f"sh {SHARED_PATH}/{KEY}/bin/tiny") == (0, "tiny 1.2\n")


async def test_a_sandbox_that_cannot_run_it_says_why_and_spoils_it_for_nobody(host):
    good, bad = await host.sandbox(), await host.sandbox(evolve(SPEC, env={"LACKS": "library"}))
    script = 'if [ -n "$LACKS" ]; then echo "no $LACKS" >&2; exit 127; fi; echo tiny 1.2\n'
    await host.seed(host.installer(good), script=script)
    inode = host.place.stat().st_ino
    with pytest.raises(InstallError) as caught:
        await host.seed(host.installer(bad), script=script)
    assert (caught.value.exit_code, caught.value.output.strip()) == (127, "no library")
    assert f"{SHARED_PATH}/{KEY}/bin/tiny" in str(caught.value.command)
    assert host.place.stat().st_ino == inode
    assert await host.seed(host.installer(good)) == f"{SHARED_PATH}/{KEY}"
    assert host.said == WORK


async def test_a_folder_of_another_host_at_that_path_is_not_taken_for_ours(host, tmp_path):
    elsewhere = RuntimeCache(tmp_path / "elsewhere", client_env={})
    elsewhere.shared.word()
    (elsewhere.shared.folder / str(KEY)).mkdir()
    spec = evolve(SPEC, mounts=(Mount(source=str(elsewhere.shared.folder), target=SHARED_PATH),))
    sandbox = await host.sandbox(spec)
    assert await host.seed(host.installer(sandbox)) == f"/opt/inspan/runtimes/{KEY}"


async def test_a_borrowed_sandbox_that_sees_nothing_gets_an_upload(host):
    sandbox = await host.provider().create(SPEC, key="borrowed")
    host.made.append(sandbox)
    assert await host.seed(host.installer(sandbox)) == f"/opt/inspan/runtimes/{KEY}"
    assert host.said == WORK[:1]


@pytest.mark.parametrize("workdir", [SHARED_PATH, f"{SHARED_PATH}/task", "/opt/inspan"])
async def test_a_task_that_lives_at_that_path_keeps_it(host, workdir):
    sandbox = await host.sandbox(evolve(SPEC, workdir=workdir))
    before = await sh(sandbox, f"ls {workdir}")
    prefix = await host.seed(SandboxInstaller(sandbox, host.cache, workdir=workdir))
    assert not f"{prefix}/".startswith((f"{workdir}/", f"{SHARED_PATH}/"))
    assert await sh(sandbox, f"ls {workdir}") == before
    assert await sh(sandbox, f"sh {prefix}/bin/tiny") == (0, "tiny 1.2\n")


async def test_a_cache_that_cannot_be_made_costs_nobody_a_sandbox(host, tmp_path):
    (tmp_path / "cache").write_text("a file")
    assert await sh(await host.sandbox(), "echo up") == (0, "up\n")


async def test_a_runtime_that_the_sandbox_brings_is_used_before_anything_is_built(host, tmp_path):
    """Mounted read-only, as an image may hold it: no folder beside it can be written."""
    brought = tmp_path / "brought" / str(KEY)
    (brought / "bin").mkdir(parents=True)
    (brought / "bin" / "tiny").write_text("echo tiny 1.2\n")
    (brought / MARKER).write_text("{}")
    spec = evolve(SPEC, mounts=(Mount(source=str(brought.parent), target="/opt/inspan/runtimes"),))
    sandbox = await host.sandbox(spec)
    assert await host.seed(host.installer(sandbox)) == f"/opt/inspan/runtimes/{KEY}"
    assert host.said == []
    (brought / "bin" / "tiny").write_text("echo of another version\n")
    assert await host.seed(host.installer(sandbox)) == f"{SHARED_PATH}/{KEY}"


@pytest.mark.parametrize("change", [{"version": "1.3"}, {"arch": "aarch64"}, {"libc": "musl"}])
async def test_what_stands_there_for_another_target_or_version_is_never_used(host, change):
    sandbox = await host.sandbox()
    await host.seed(host.installer(sandbox))
    other = evolve(KEY, **change)
    prefix = await host.seed(host.installer(sandbox), key=other)
    assert prefix == f"{SHARED_PATH}/{other}"
    assert host.said == [*WORK, f"building {other}", f"unpacking {other}"]


async def test_without_isolation_the_hosts_own_folder_is_used_and_nothing_is_uploaded(host, tmp_path):
    sandbox = await host.sandbox(evolve(SPEC, workdir=str(tmp_path / "work")), kind="local")
    installer = SandboxInstaller(sandbox, host.cache, workdir=str(tmp_path / "work"))
    assert await host.seed(installer) == str(host.place)
    assert host.said == WORK


async def test_a_stopped_sandbox_takes_nothing_with_it(host):
    first, second = await host.sandbox(), await host.sandbox()
    await host.seed(host.installer(first))
    inode = host.place.stat().st_ino
    await first.stop()
    await host.seed(host.installer(second))
    assert (host.place.stat().st_ino, host.said) == (inode, WORK)


async def test_the_umask_of_the_server_does_not_hide_it_from_other_users(host):
    before = os.umask(0o077)
    try:
        sandbox = await host.sandbox()
        await host.seed(host.installer(sandbox))
    finally:
        os.umask(before)
    assert host.cache.shared.folder.stat().st_mode & 0o022 == 0
    for path in (host.place, host.place / "bin", host.place / "bin" / "tiny", host.place / MARKER):
        assert path.stat().st_mode & 0o777 == (0o644 if path.name == MARKER else 0o755), path


async def test_a_lease_that_cannot_be_written_costs_nobody_a_seed(host):
    sandbox = await host.sandbox()
    await host.seed(host.installer(sandbox))
    shutil.rmtree(host.cache.root / "leases")
    (host.cache.root / "leases").write_text("a file")
    assert await host.seed(host.installer(sandbox)) == f"{SHARED_PATH}/{KEY}"
    assert host.said == WORK
