"""What the root file system of a bubblewrap sandbox is made of."""

import io
import json
import os
import secrets
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import anyio
import pytest

from inspan_core.errors import ConfigError, SandboxCreateError
from inspan_core.sandbox import Mount, SandboxSpec
from inspan_runtime.providers.bubblewrap import BubblewrapProvider, has_mapped_ids, say_read_only
from inspan_runtime.testing.sandbox_check_support import opened, out, sh

pytestmark = [pytest.mark.anyio, pytest.mark.sandbox]
WORKDIR = "/task/repository"


@pytest.fixture
def anyio_backend():
    return "asyncio"


ROOTS = ["writable", "read-only"] if has_mapped_ids() else ["read-only"]


@pytest.fixture(params=ROOTS)
def provider(request, tmp_path):
    writable = request.param == "writable"
    return BubblewrapProvider({"runtime_dir": str(tmp_path / "run"), "writable_root": writable})


def make_spec(**changes):
    return SandboxSpec(**{"workdir": WORKDIR, "ttl_s": 120.0, **changes})


async def is_read_only(provider):
    async with opened(provider, make_spec) as sandbox:
        return sandbox.descriptor["root"] == "read-only"


async def test_root_is_writable_and_private(tmp_path):
    """As root: packages can be installed and users made, and nothing of it is on the host."""
    if not has_mapped_ids():
        assert ROOTS == ["read-only"]
        return
    name = f"inspan-{secrets.token_hex(6)}"
    async with opened(BubblewrapProvider({"runtime_dir": str(tmp_path / "run")}), make_spec) as sandbox:
        await out(
            sandbox, f"echo x >/etc/{name} && rm -r /usr/share/doc && mkdir -p /{name} /usr/local/lib/{name}"
        )
        await out(
            sandbox, f"chown 1234:1234 /etc/{name} && su -s /bin/sh nobody -c 'id -un' | grep -q nobody"
        )
        await out(
            sandbox, "chmod 1777 /dev/shm && su -s /bin/sh nobody -c 'touch /tmp/x /dev/shm/x /var/tmp/x'"
        )
        assert sandbox.descriptor["root"] == "writable" and "notice" not in sandbox.descriptor
    assert os.path.isdir("/usr/share/doc")
    assert not any(os.path.exists(f"{folder}{name}") for folder in ("/etc/", "/", "/usr/local/lib/"))


async def test_read_only_root_is_said(tmp_path, caplog):
    say_read_only.cache_clear()
    provider = BubblewrapProvider({"runtime_dir": str(tmp_path / "run"), "writable_root": False})
    async with opened(provider, make_spec):
        assert caplog.text.count("the root is read-only") == 1
    async with opened(provider, make_spec) as sandbox:
        assert caplog.text.count("the root is read-only") == 1, "once is enough"
        assert sandbox.descriptor["root"] == "read-only"
        assert WORKDIR in sandbox.descriptor["notice"]
        assert (await sh(sandbox, "echo x >/etc/passwd")).exit_code != 0
        assert (await sh(sandbox, "touch /usr/local/x")).exit_code != 0
        await out(sandbox, f"touch {WORKDIR}/x /root/x /tmp/x; mkdir /new")


CREATE = """
import anyio, json, sys
from inspan_core.sandbox import SandboxSpec
from inspan_runtime.providers.bubblewrap import BubblewrapProvider
async def main():
    provider = BubblewrapProvider({"runtime_dir": sys.argv[1]})
    sandbox = await provider.create(SandboxSpec(workdir="/task"), key="k")
    try:
        result = await sandbox.exec(["sh", "-c", "touch x && ls"], timeout_s=20)
        print(json.dumps([sandbox.descriptor["root"], result.stdout.decode()]))
    finally:
        await sandbox.stop()
anyio.run(main)
"""


async def test_root_that_may_not_mount_gets_a_read_only_root(tmp_path):
    """As in many containers; an ordinary user may not either."""
    lesser = ["setpriv", "--bounding-set", "-sys_admin"] if os.geteuid() == 0 else []
    with anyio.fail_after(50):
        run = await anyio.run_process(
            [*lesser, sys.executable, "-c", CREATE, str(tmp_path / "run")], check=False
        )
    assert run.returncode == 0, run.stderr.decode()
    assert json.loads(run.stdout) == ["read-only", "x\n"]
    assert b"the root is read-only" in run.stderr, "it was not logged"
    assert list((tmp_path / "run/bubblewrap").iterdir()) == []


async def test_workdir_below_a_shown_folder(provider):
    workdir = "/opt/inspan-test/repository"
    kept = {path.name for path in Path("/opt").iterdir() if path.stat().st_mode & 0o005 == 0o005}
    kept -= {name for name in kept if name.startswith("inspan-")}  # Other tests make and remove those.
    async with opened(provider, make_spec, workdir=workdir) as sandbox:
        assert await out(sandbox, "touch x; ls") == b"x\n"
        found = set((await out(sandbox, "ls -A /opt")).decode().splitlines())
        assert kept | {"inspan-test"} <= found
    assert not os.path.exists("/opt/inspan-test")


@pytest.mark.parametrize("root", ROOTS)
async def test_space_is_limited_when_said(tmp_path, root):
    options = {"runtime_dir": str(tmp_path / "run"), "space_limit_mib": 16}
    provider = BubblewrapProvider({**options, "writable_root": root == "writable"})
    async with opened(provider, make_spec) as sandbox:
        for folder in (WORKDIR, "/root", "/tmp", "/dev/shm"):
            result = await sh(sandbox, f"head -c 64000000 /dev/zero >{folder}/big")
            assert result.exit_code != 0 and b"No space left" in result.stderr, folder
            await out(sandbox, f"rm {folder}/big && echo x >{folder}/small")
        targets = "cut -d' ' -f2 /proc/self/mounts"
        find = f"for one in $({targets}); do [ ! -d $one ] || [ ! -w $one ] || echo $one; done"
        for folder in (await out(sandbox, find)).decode().split():
            result = await sh(sandbox, f"head -c 64000000 /dev/zero >{folder.rstrip('/')}/big")
            assert result.exit_code != 0, f"{folder} takes as much as is written"
            await out(sandbox, f"rm -f {folder}/big")


PROGRAMS = ("sh", "cat", "ls", "env", "touch", "id", "sleep", "head")


def copy_program(root, path):
    """Copy a program of the host and its libraries into a tree."""
    found = [path]
    found += [word for word in subprocess.getoutput(f"ldd {path}").split() if word.startswith("/")]
    for one in found:
        target = root / os.path.realpath(os.path.dirname(one)).lstrip("/") / os.path.basename(one)
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists():
            shutil.copy(one, target)


@pytest.fixture
def tree(tmp_path):
    """A small root file system: programs of the host, without any Python."""
    root = tmp_path / "root, with: odd name"
    for name in ("bin", "sbin", "lib", "lib64"):
        real = os.path.realpath(f"/{name}").lstrip("/")
        (root / real).mkdir(parents=True, exist_ok=True)
        if real != name:
            (root / name).symlink_to(real)
    for name in PROGRAMS:
        copy_program(root, shutil.which(name))
    (root / "etc").mkdir()
    (root / "etc/release").write_text("small tree\n")
    (root / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\n")
    return root


@pytest.mark.parametrize("has_python", [False, True])
async def test_root_may_be_a_folder(tmp_path, tree, has_python):
    """The tree's programs run, the agent brings what it needs; nothing is written into the tree."""
    spec = make_spec(root=str(tree))
    provider = BubblewrapProvider({"runtime_dir": str(tmp_path / "run")})
    if not has_mapped_ids():
        with pytest.raises(SandboxCreateError, match="needs a writable root"):
            await provider.create(spec, key="k")
        return
    if has_python:
        (tree / "usr/bin/python3.8").symlink_to("/run/inspan/not-there")
        with pytest.raises(SandboxCreateError, match="No such file"):
            await provider.create(spec, key="k")
        return
    async with opened(provider, lambda: spec) as sandbox:
        assert await out(sandbox, "cat /etc/release; pwd; id -u") == b"small tree\n/task/repository\n0\n"
        assert (await sh(sandbox, "ls /usr/share /usr/local /work /opt")).exit_code != 0
        await sandbox.upload("/etc/release", b"changed")
        assert (await sandbox.download("/etc/release", limit_bytes=100)).data == b"changed"
        assert sandbox.descriptor["python"] is None
        words = (await out(sandbox, "cat /proc/1/cmdline")).split(b"\0")
        assert not any(b"python" in word for word in words), words
    assert (tree / "etc/release").read_text() == "small tree\n" and not (tree / "task").exists()


def packed(tree, path, mode="w:gz", also=()):
    with tarfile.open(path, mode) as tar:
        tar.add(tree, ".")
        for member, data in also:
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path


async def test_root_may_be_a_tar(tmp_path, tree):
    """Unpacked once, shared, never written to; a changed tar is another tree."""
    if not has_mapped_ids():
        pytest.skip("only root has a writable root")
    device = tarfile.TarInfo("dev/disk")
    device.type = tarfile.BLKTYPE
    root = packed(tree, tmp_path / "root.tar.gz", also=[(device, b"")])
    options = {"runtime_dir": str(tmp_path / "run"), "cache_dir": str(tmp_path / "cache")}
    provider = BubblewrapProvider(options)
    spec = make_spec(root=str(root))
    async with opened(provider, lambda: spec) as sandbox, opened(provider, lambda: spec) as other:
        assert await out(sandbox, "cat /etc/release; pwd; id -u") == b"small tree\n/task/repository\n0\n"
        await sandbox.upload("/etc/release", b"changed")
        assert await out(other, "cat /etc/release") == b"small tree\n"
    assert len(list((tmp_path / "cache/trees").iterdir())) == 1
    (tree / "etc/release").write_text("another tree\n")
    packed(tree, root)
    async with opened(provider, lambda: spec) as sandbox:
        assert await out(sandbox, "cat /etc/release") == b"another tree\n"


@pytest.mark.parametrize("way", ["parent", "link", "cut"])
async def test_tar_that_leads_outside_or_is_cut_is_refused(tmp_path, tree, way):
    if not has_mapped_ids():
        pytest.skip("only root has a writable root")
    link = tarfile.TarInfo("out")
    link.type, link.linkname = tarfile.SYMTYPE, str(tmp_path)
    also = {"parent": [(tarfile.TarInfo("../outside"), b"x")], "cut": []}
    also["link"] = [(link, b""), (tarfile.TarInfo("out/outside"), b"x")]
    root = packed(tree, tmp_path / "root.tar", "w", also[way])
    if way == "cut":
        os.truncate(root, os.path.getsize(root) // 2)
    options = {"runtime_dir": str(tmp_path / "run"), "cache_dir": str(tmp_path / "cache")}
    with pytest.raises(SandboxCreateError, match="cannot be unpacked"):
        await BubblewrapProvider(options).create(make_spec(root=str(root)), key="k")
    assert not (tmp_path / "outside").exists() and not (tmp_path / "cache/outside").exists()
    assert list((tmp_path / "cache/trees").iterdir()) == []


async def test_missing_root_is_refused(tmp_path):
    provider = BubblewrapProvider({"runtime_dir": str(tmp_path / "run")})
    with pytest.raises(ConfigError, match="root"):
        await provider.create(make_spec(root=str(tmp_path / "missing")), key="missing")


async def test_mounts_are_read_only_unless_said(provider, tmp_path):
    shown, shared, single = tmp_path / "shown", tmp_path / "shared", tmp_path / "single"
    shown.mkdir()
    shared.mkdir()
    single.write_text("one file")
    (shown / "file").write_text("seen")
    mounts = (
        Mount(source=str(shown), target="/mnt/shown"),
        Mount(source=str(shared), target="/data/shared", read_only=False),
        Mount(source=str(single), target="/etc/inspan-single"),
    )
    if await is_read_only(provider):
        mounts = mounts[:2]
    async with opened(provider, make_spec, mounts=mounts) as sandbox:
        assert await out(sandbox, "cat /mnt/shown/file") == b"seen"
        assert (await sh(sandbox, "echo x >/mnt/shown/file")).exit_code != 0
        await out(sandbox, "echo written >/data/shared/file")
        if len(mounts) == 3:
            assert await out(sandbox, "cat /etc/inspan-single") == b"one file"
    assert (shared / "file").read_text() == "written\n"
    assert (shown / "file").read_text() == "seen"
