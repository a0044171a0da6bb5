"""What a process in a bubblewrap sandbox can see and reach, tried from inside."""

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path

import anyio
import pytest

from inspan_core.errors import ConfigError, SandboxCreateError
from inspan_core.sandbox import Mount, SandboxSpec
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


@pytest.fixture
def host_server():
    """A server on a loopback port of the host that answers every line with what it received."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve(connection):
        with connection:
            while data := connection.recv(65536):
                connection.sendall(data)

    def accept():
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    thread = threading.Thread(target=accept)
    thread.start()
    yield listener.getsockname()[1]
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join(10)


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


CONNECT = """
import json, socket, sys
family, kind, address = json.loads(sys.argv[1])
try:
    with socket.socket(getattr(socket, family), getattr(socket, kind)) as sock:
        sock.settimeout(5)
        sock.connect(tuple(address) if isinstance(address, list) else "\\0" + address)
        sock.sendall(b"ping")
        print(json.dumps(sock.recv(100).decode()))
except OSError as error:
    print(json.dumps({"errno": error.errno}))
"""


async def connects(sandbox, family, address, kind="SOCK_STREAM"):
    argv = [sandbox.descriptor["python"], "-I", "-c", CONNECT, json.dumps([family, kind, address])]
    result = await sandbox.exec(argv, timeout_s=30)
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


async def test_only_the_declared_port_is_reached(provider, host_server):
    with socket.create_server(("127.0.0.1", 0)) as other, socket.socket(socket.AF_UNIX) as abstract:
        abstract.bind("\0inspan-test-" + secrets.token_hex(8))
        abstract.listen()
        name = abstract.getsockname()[1:].decode()
        async with opened(provider, make_spec, reach=(f"http://127.0.0.1:{host_server}",)) as sandbox:
            assert await connects(sandbox, "AF_INET", ["127.0.0.1", host_server]) == "ping"
            refusals = [
                await connects(sandbox, "AF_INET", ["127.0.0.1", other.getsockname()[1]]),
                await connects(sandbox, "AF_UNIX", name),
                await connects(sandbox, "AF_INET", ["192.0.2.1", 80]),
                await connects(sandbox, "AF_INET", [host_address(), host_server]),
                await connects(sandbox, "AF_INET", ["169.254.169.254", 80]),
            ]
            assert all(isinstance(one, dict) and one["errno"] for one in refusals), refusals
            links = (await out(sandbox, "ls /proc/self/net/ >/dev/null; cat /proc/net/dev")).decode()
            assert [line.split(":")[0].strip() for line in links.splitlines() if ":" in line] == ["lo"]
        async with opened(provider, make_spec) as sandbox:
            assert isinstance(await connects(sandbox, "AF_INET", ["127.0.0.1", host_server]), dict)


def host_address():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.0.2"
        return probe.getsockname()[0]


PUMP = """
import json, socket, sys, threading
size = int(sys.argv[2])
with socket.create_connection(("127.0.0.1", int(sys.argv[1])), 20) as sock:
    got = 0
    def send():
        sock.sendall(bytes(range(256)) * (size // 256))
        sock.shutdown(socket.SHUT_WR)
    thread = threading.Thread(target=send)
    thread.start()
    whole = bytearray()
    while data := sock.recv(1 << 16):
        whole += data
    thread.join()
print(json.dumps([len(whole), bytes(whole) == bytes(range(256)) * (size // 256)]))
"""


async def test_forwarded_streams_are_whole_both_ways_and_many(provider, host_server):
    size = 8 * 1024 * 1024
    async with opened(provider, make_spec, reach=(f"http://localhost:{host_server}/v1",)) as sandbox:
        argv = [sandbox.descriptor["python"], "-I", "-c", PUMP, str(host_server), str(size)]
        result = await sandbox.exec(argv, timeout_s=30)
        assert json.loads(result.stdout or b"null") == [size, True], result.stderr
        script = f"for n in $(seq 20); do {argv[0]} -I -c '{PUMP}' {host_server} 256 & done; wait"
        results = (await out(sandbox, script)).split(b"\n")
        assert results.count(b"[256, true]") == 20


async def test_forward_to_a_port_that_nobody_serves_closes(provider):
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    async with opened(provider, make_spec, reach=(f"http://127.0.0.1:{port}",)) as sandbox:
        found = await connects(sandbox, "AF_INET", ["127.0.0.1", port])
        assert found == "" or found["errno"], found
        assert await out(sandbox, "echo alive") == b"alive\n"


async def test_reach_beyond_loopback_is_refused(provider):
    for url in (
        "http://192.0.2.7:80",
        "http://example.org",
        "ftp://127.0.0.1",
        "http://127.0.0.1:99999",
        "nonsense",
    ):
        with pytest.raises(ConfigError, match="reach"):
            await provider.create(make_spec(reach=(url,)), key="k")


async def test_two_sandboxes_do_not_see_one_another(provider):
    async with opened(provider, make_spec) as first, opened(provider, make_spec) as second:
        serve = "import socket; s = socket.create_server(('127.0.0.1', 7777)); s.accept()"
        argv = f'{first.descriptor["python"]} -I -c "{serve}"'
        await out(first, f"echo secret >/tmp/mark; setsid {argv} >/dev/null 2>&1 & sleep 300 & :")
        listening = "until grep -q ':1E61 ' /proc/net/tcp; do sleep 0.01; done"
        await out(first, listening)
        assert (await sh(second, "cat /tmp/mark")).exit_code != 0
        assert isinstance(await connects(second, "AF_INET", ["127.0.0.1", 7777]), dict)
        assert b"sleep 300" not in await out(second, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '; true")
        names = {await out(one, "hostname") for one in (first, second)}
        assert len(names) == 2 and socket.gethostname().encode() + b"\n" not in names


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
    provider = BubblewrapProvider({"runtime_dir": str(tmp_path / "run"), "writable_root": False})
    async with opened(provider, make_spec) as sandbox:
        assert sandbox.descriptor["root"] == "read-only"
        assert WORKDIR in sandbox.descriptor["notice"]
        assert sandbox.descriptor["notice"] in caplog.text
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


async def test_missing_root_is_refused(tmp_path):
    provider = BubblewrapProvider({"runtime_dir": str(tmp_path / "run")})
    with pytest.raises(ConfigError, match="root"):
        await provider.create(make_spec(root=str(tmp_path / "missing")), key="missing")
