"""What a process in a bubblewrap sandbox can see of its host, tried from inside."""

import json
import os
import secrets
import sys
from pathlib import Path

import anyio
import pytest

from inspan_core.sandbox import SandboxSpec
from inspan_runtime.providers.bubblewrap import BubblewrapProvider, has_mapped_ids
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


async def test_host_home_and_temporary_files_are_not_there(provider, tmp_path):
    (tmp_path / "secret").write_text("x")
    for home in {Path.home(), Path("/root")}:
        assert str(home).startswith(("/root", "/home"))
    async with opened(provider, make_spec) as sandbox:
        assert (
            await out(sandbox, "ls -A /root /home /mnt /media /srv /var/log /var/tmp | grep -v : | xargs")
            == b"\n"
        )
        for path in (
            tmp_path / "secret",
            tmp_path,
            Path(__file__),
            Path("/run/systemd"),
            Path("/sys/kernel"),
        ):
            assert (await sh(sandbox, f"ls '{path}'")).exit_code != 0, path
        found = (await out(sandbox, "ls -A /")).decode().split()
        shown = {"bin", "sbin", "lib", "lib32", "lib64", "libx32", "usr", "etc", "opt", "var", "nix"}
        made = {"dev", "home", "media", "mnt", "proc", "root", "run", "srv", "sys", "tmp", "task"}
        assert set(found) <= shown | made


async def test_secret_files_of_the_host_are_hidden(provider):
    """Of the root's view: what other users of the host may not read."""
    readable = {"/etc/shadow", "/etc/gshadow"}
    private = [
        path
        for folder in ("/etc", "/opt", "/var/lib")
        for path in map(str, Path(folder).rglob("*"))
        if path not in readable
        and path.count("/") <= 4
        and os.path.isfile(path)
        and not os.path.islink(path)
        and not os.stat(path).st_mode & 0o004
    ]
    assert private, "the host has no private file to look for"
    async with opened(provider, make_spec) as sandbox:
        listed = "\n".join(private).encode()
        assert (
            await out(sandbox, 'while read -r one; do [ -s "$one" ] && echo "$one"; done; true', stdin=listed)
            == b""
        )
        shadow = await out(sandbox, "cat /etc/shadow 2>/dev/null; true")
        assert all(line.split(b":")[1] == b"*" for line in shadow.splitlines())


@pytest.mark.parametrize("writable", [True, False])
async def test_hidden_option_hides(tmp_path, writable):
    marker = Path("/opt") / f"inspan-test-{secrets.token_hex(6)}"
    marker.mkdir()
    try:
        (marker / "file").write_text("secret")
        for options, is_seen in (({}, True), ({"hide": [str(marker)]}, False)):
            options = {"runtime_dir": str(tmp_path / "run"), "writable_root": writable, **options}
            async with opened(BubblewrapProvider(options), make_spec) as sandbox:
                assert ((await sh(sandbox, f"cat {marker}/file")).exit_code == 0) is is_seen
    finally:
        (marker / "file").unlink()
        marker.rmdir()


async def test_environment_of_the_server_is_nowhere(tmp_path):
    """A server with a secret in its environment makes a sandbox; nothing inside shows it."""
    canary = f"canary-{secrets.token_hex(12)}"
    script = """
import anyio, sys
from inspan_core.sandbox import SandboxSpec
from inspan_runtime.providers.bubblewrap import BubblewrapProvider, has_mapped_ids
async def main():
    provider = BubblewrapProvider({"runtime_dir": sys.argv[1]})
    sandbox = await provider.create(SandboxSpec(workdir="/task"), key="canary")
    try:
        grep = "env; cat /proc/*/environ; grep -rsa CANARY /proc/1/cmdline /etc /tmp /root /task; true"
        result = await sandbox.exec(["sh", "-c", grep.replace("CANARY", sys.argv[2][:10])], timeout_s=30)
        print(result.stdout.decode(errors="replace"))
    finally:
        await sandbox.stop()
anyio.run(main)
"""
    with anyio.fail_after(50):
        run = await anyio.run_process(
            [sys.executable, "-c", script, str(tmp_path / "run"), canary],
            env={**os.environ, "SECRET_TOKEN": canary},
            stderr=None,
        )
    found = run.stdout.decode(errors="replace")
    assert "HOME=/root" in found
    assert canary not in found and "SECRET_TOKEN" not in found


async def test_keeper_has_no_environment(provider, tmp_path):
    async with opened(provider, make_spec):
        for pid in keepers(tmp_path):
            assert Path(f"/proc/{pid}/environ").read_bytes() == b""
            assert b"python" not in Path(f"/proc/{pid}/comm").read_bytes()


def keepers(tmp_path):
    """The processes whose working directory is a state folder below tmp_path."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if os.readlink(entry / "cwd").startswith(str(tmp_path / "run")):
                    found.append(int(entry.name))
            except OSError:
                continue
    assert found
    return found


async def test_processes_of_the_host_are_invisible(provider):
    async with opened(provider, make_spec) as sandbox:
        pids = (await out(sandbox, "ls /proc | grep '^[0-9]*$'")).split()
        assert len(pids) <= 4 and b"1" in pids
        assert (await sh(sandbox, f"kill -0 {os.getpid()}")).exit_code != 0 or os.getpid() < 100


async def test_agent_withstands_its_sandbox(provider):
    """Nothing inside kills, traces or reads the agent; words that inspan chose find no process."""
    async with opened(provider, make_spec) as sandbox:
        await sh(sandbox, "kill -9 1; kill -9 -1")
        await sh(sandbox, "kill -TERM 1; kill -INT 1; kill -HUP 1; kill -STOP 1")
        for word in ("python", "inspan-", "exec", "agent"):
            for option in ("-f", "-x"):
                found = await sandbox.exec(["pgrep", option, word], timeout_s=20)
                assert (found.exit_code, found.stdout) == (1, b""), word
        for path in ("/proc/1/environ", "/proc/1/mem", "/proc/1/fd/3", "/proc/1/root/etc/passwd"):
            assert (await sh(sandbox, f"head -c 1 {path}")).exit_code != 0, path
        trace = "import ctypes, json; print(json.dumps(ctypes.CDLL(None).ptrace(16, 1, 0, 0)))"
        argv = [sandbox.descriptor["python"], "-I", "-c", trace]
        assert json.loads((await sandbox.exec(argv, timeout_s=20)).stdout) == -1
        assert await out(sandbox, "echo alive") == b"alive\n"


async def test_kernel_cannot_be_changed(provider):
    async with opened(provider, make_spec) as sandbox:
        for attempt in (
            "mount -t tmpfs x /mnt",
            "umount /proc",
            "mknod /tmp/disk b 254 0",
            "echo x >/proc/sys/kernel/hostname",
            "cat /proc/sys/kernel/panic >/tmp/panic && cat /tmp/panic >/proc/sys/kernel/panic",
            "cat /proc/sys/kernel/core_pattern >/tmp/core && cat /tmp/core >/proc/sys/kernel/core_pattern",
            "head -c 1 /proc/kcore",
            "cat /proc/irq/0/smp_affinity >/tmp/irq && cat /tmp/irq >/proc/irq/0/smp_affinity",
            "echo h >/proc/sysrq-trigger",
            "echo x >/sys/kernel/mm/ksm/run",
            "chroot / true",
            "unshare -n true",
            "hostname other",
            "ip link set lo down",
        ):
            assert (await sh(sandbox, attempt)).exit_code != 0, attempt
        own = "-path '/proc/[0-9]*' -prune -o -path '/proc/*self' -prune"
        find = f"find /proc {own} -o -type f -perm -200 -print"
        found = await out(
            sandbox, f"for one in $({find} 2>/dev/null); do ( : >>$one ) 2>/dev/null && echo $one; done; true"
        )
        assert found == b"", "writable kernel files"
        assert (await out(sandbox, f"{find} 2>/dev/null | wc -l")) != b"0\n", (
            "the search found nothing to try"
        )
        status = dict(
            line.split(":\t", 1)
            for line in (await out(sandbox, "cat /proc/self/status")).decode().split("\n")
            if ":\t" in line
        )
        assert status["NoNewPrivs"] == "1"
        forbidden = sum(1 << number for number in (12, 13, 16, 17, 18, 19, 21, 25, 27, 38, 39, 40))
        assert int(status["CapEff"], 16) & forbidden == 0 and int(status["CapBnd"], 16) & forbidden == 0
