"""Commands inside that turn against the agent and others' operations, and names that are no names."""

import os
import resource
import socket
import struct
import time
from pathlib import Path

import anyio
import pytest

from inspan_core.errors import (
    ConfigError,
    MountConflict,
    SandboxConnectError,
    SandboxError,
    UnsafePath,
    UsageError,
)
from inspan_core.sandbox import Mount, SandboxSpec
from inspan_runtime.providers.bubblewrap import BubblewrapProvider, has_mapped_ids
from inspan_runtime.providers.exec_agent.files import open_folder
from inspan_runtime.providers.exec_agent.frames import encode
from inspan_runtime.testing.sandbox_check_support import opened, out

pytestmark = [pytest.mark.anyio, pytest.mark.sandbox]
WORKDIR = "/task"
PATIENCE_S = 15.0
QUIET_FDS = (
    9  # Of the agent: three for what it says, keeper, clients, nothing, events, and the pair that wakes it.
)
SURROGATE = "\ud800"
F_SETLEASE = 1024
LEASE = f"""
import fcntl, os, signal, time
signal.signal(signal.SIGIO, signal.SIG_IGN)
fd = os.open("leased", os.O_RDWR | os.O_CREAT)
fcntl.fcntl(fd, {F_SETLEASE}, fcntl.F_WRLCK)
print("held", flush=True)
time.sleep(600)
"""


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
def run_dir(tmp_path):
    return tmp_path / "run"


@pytest.fixture
def provider(run_dir):
    return BubblewrapProvider({"runtime_dir": str(run_dir)})


def make_spec(**changes):
    return SandboxSpec(**{"workdir": WORKDIR, "ttl_s": 120.0, **changes})


async def test_lease_on_a_file_holds_nobody_up(provider):
    """The kernel lets whoever opens such a file wait for 45 s, and the agent has one thread."""
    async with opened(provider, make_spec) as sandbox:
        hold = f"exec {sandbox.descriptor['python']} -I -c '{LEASE}' >said 2>&1 &"
        hold += " until grep -q . said; do sleep 0.01; done; cat said"
        assert await out(sandbox, hold) == b"held\n"
        with pytest.raises(SandboxError, match="temporarily unavailable"):
            await sandbox.download(f"{WORKDIR}/leased", limit_bytes=10)
        assert await out(sandbox, "echo on") == b"on\n"


async def test_path_of_many_folders_is_made(provider):
    """As deep as a path may be; also deeper than functions may call themselves."""
    deep = f"{WORKDIR}" + "/d" * 2000 + "/file"
    async with opened(provider, make_spec) as sandbox:
        await sandbox.upload(deep, b"deep")
        assert (await sandbox.download(deep, limit_bytes=10)).data == b"deep"
        with pytest.raises(SandboxError, match="File name too long"):
            await sandbox.upload(f"{WORKDIR}" + "/d" * 4000 + "/file", b"deeper")
        assert await out(sandbox, "echo on") == b"on\n"


async def test_folders_are_made_through_links_and_not_over_files(tmp_path):
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "real").mkdir()
    (tmp_path / "file").write_bytes(b"")
    for _ in range(2):
        fd = open_folder(bytes(tmp_path / "link" / "a" / ".." / "b"))
        assert os.path.samestat(os.fstat(fd), os.stat(tmp_path / "real" / "b"))
        os.close(fd)
    for refused in ("file", "file/below"):
        with pytest.raises(NotADirectoryError):
            open_folder(bytes(tmp_path / refused))
    (tmp_path / "dangling").symlink_to("nothing")
    with pytest.raises(FileNotFoundError):
        open_folder(bytes(tmp_path / "dangling" / "below"))


def children_of(pid):
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if int((entry / "stat").read_bytes().rsplit(b")", 1)[1].split()[1]) == pid:
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def connect(sock, sandbox, name="agent.sock"):
    """By the open folder: the name of a socket has 107 bytes at most."""
    folder = os.open(sandbox.descriptor["state"], os.O_PATH)
    sock.connect(f"/proc/self/fd/{folder}/{name}")
    os.close(folder)


def keeper_of(sandbox):
    """Whoever listened for the agent."""
    with socket.socket(socket.AF_UNIX) as asking:
        connect(asking, sandbox)
        return struct.unpack_from("i", asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]


def agent_of(sandbox):
    (bubblewrap,) = children_of(keeper_of(sandbox))
    (agent,) = children_of(bubblewrap)
    return agent


async def test_descriptors_that_ran_out_come_back(provider):
    """A command that could not be started for want of descriptors leaves none of its own open."""
    async with opened(provider, make_spec) as sandbox:
        agent = agent_of(sandbox)

        def count():
            return len(os.listdir(f"/proc/{agent}/fd"))

        deadline = time.monotonic() + PATIENCE_S
        while (before := count()) != QUIET_FDS and time.monotonic() < deadline:  # keeper_of() was a client.
            await anyio.sleep(0.01)
        assert before == QUIET_FDS
        soft, hard = resource.prlimit(agent, resource.RLIMIT_NOFILE)
        for room in range(1, 7):  # One is the connection's.
            resource.prlimit(agent, resource.RLIMIT_NOFILE, (before + room, hard))
            with pytest.raises(SandboxError, match="Too many open files"):
                await sandbox.exec(["cat"], timeout_s=20, stdin=b"x" * 2**22)
        resource.prlimit(agent, resource.RLIMIT_NOFILE, (soft, hard))
        assert await out(sandbox, "echo on") == b"on\n"
        deadline = time.monotonic() + PATIENCE_S
        while count() != before and time.monotonic() < deadline:
            await anyio.sleep(0.01)
        assert count() == before


def ticks_of(pid):
    """The processor time that a process has used, in clock ticks."""
    return sum(int(one) for one in Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13])


async def test_agent_without_descriptors_rests_and_serves_who_waited(provider):
    async with opened(provider, make_spec) as sandbox:
        agent = agent_of(sandbox)
        soft, hard = resource.prlimit(agent, resource.RLIMIT_NOFILE)
        resource.prlimit(agent, resource.RLIMIT_NOFILE, (3, hard))
        with socket.socket(socket.AF_UNIX) as waiting:
            connect(waiting, sandbox)
            waiting.sendall(encode([b"ping"]))
            before, began = ticks_of(agent), time.process_time()
            while time.process_time() - began < 1.0:
                pass
            assert ticks_of(agent) - before < os.sysconf("SC_CLK_TCK") / 5
            resource.prlimit(agent, resource.RLIMIT_NOFILE, (soft, hard))
            waiting.settimeout(PATIENCE_S)
            assert waiting.recv(100) == encode([b"ok"])


LIMITS = """
import resource
for name in ("NOFILE", "NPROC", "CPU", "AS", "FSIZE"):
    kind = getattr(resource, "RLIMIT_" + name)
    try:
        resource.prlimit(1, kind, (1, 1))
        print(name, "was limited")
    except PermissionError:
        pass
"""


@pytest.mark.skipif(not has_mapped_ids(), reason="the sandbox of an ordinary user has one id")
async def test_command_may_not_limit_the_agent(provider):
    """Who has all ids of a process takes away its descriptors, and for good."""
    async with opened(provider, make_spec) as sandbox:
        for ids in ("", "setpriv --reuid=65533 --regid=65533 --clear-groups "):
            said = await out(sandbox, f"{ids}{sandbox.descriptor['python']} -I -c '{LIMITS}'")
            assert said == b"", said
        assert await out(sandbox, "id -u; grep -E ^[UG]id: /proc/self/status | tr -d '\\t '") == (
            b"0\nUid:0000\nGid:0000\n"
        )


async def test_closed_input_does_not_keep_the_agent_busy(provider):
    """A pipe that nobody reads is ready without end, while more of the input is on its way."""
    async with opened(provider, make_spec) as sandbox:
        agent = agent_of(sandbox)
        head = [
            b"exec",
            b"60.0",
            b"1000",
            b"2000",
            b"/",
            b"3",
            b"sh",
            b"-c",
            b"exec <&-; echo $$ >closed; read x </fifo",
        ]
        await sandbox.exec(["mkfifo", "/fifo"], timeout_s=20)
        with socket.socket(socket.AF_UNIX) as half:
            connect(half, sandbox)
            half.sendall(encode(head))
            assert await out(sandbox, "until [ -s /closed ]; do sleep 0.01; done; echo on") == b"on\n"

            before = ticks_of(agent)
            await out(sandbox, "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done")
            assert ticks_of(agent) - before < 3


async def test_names_that_no_file_can_have_are_unsafe(provider):
    async with opened(provider, make_spec) as sandbox:
        path = f"/task/{SURROGATE}"
        with pytest.raises(UnsafePath):
            await sandbox.upload(path, b"")
        with pytest.raises(UnsafePath):
            await sandbox.download(path, limit_bytes=1)
        with pytest.raises(UsageError):
            await sandbox.exec(["echo", path], timeout_s=5)


async def test_file_that_says_no_size_is_not_taken_for_whole(provider):
    """The kernel's own files say 0; so may one that grows while it is read."""
    async with opened(provider, make_spec) as sandbox:
        whole = await sandbox.download("/proc/self/status", limit_bytes=100_000)
        assert whole.data.endswith(b"\n") and (whole.size_bytes, whole.truncated) == (len(whole.data), False)
        cut = await sandbox.download("/proc/self/status", limit_bytes=100)
        assert (len(cut.data), cut.size_bytes, cut.truncated) == (100, 100, True)
        await sandbox.upload("/exact", b"x" * 100)
        assert not (await sandbox.download("/exact", limit_bytes=100)).truncated


async def test_odd_names_are_names(provider):
    async with opened(provider, make_spec) as sandbox:
        for name in ("a\nb", "\udcff\udcfe", "x" * 255, "-rf", "*", " ", "'\"$(id)`"):
            await sandbox.upload(f"{WORKDIR}/{name}", b"odd", mode=0o600)
            assert (await sandbox.download(f"{WORKDIR}/{name}", limit_bytes=3)).data == b"odd"
            size = len(name.encode("utf-8", "surrogateescape")) + 1
            assert await out(sandbox, "ls -A | wc -c; rm -- * ") == b"%d\n" % size, name


@pytest.mark.parametrize(
    "change",
    [
        {"sandbox_id": "inspan-\0"},
        {"sandbox_id": SURROGATE},
        {"sandbox_id": "x" * 300},
        {"sandbox_id": ".."},
        {"sandbox_id": "inspan-0123456789abcdef", "workdir": "relative"},
        {"sandbox_id": "inspan-0123456789abcdef", "workdir": "/\0"},
    ],
    ids=ascii,
)
async def test_descriptors_with_names_of_no_sandbox_are_refused(provider, run_dir, change):
    state = f"{run_dir}/bubblewrap/{change['sandbox_id']}"
    with pytest.raises(SandboxConnectError):
        await provider.connect({"provider": "bubblewrap", "state": state, "workdir": WORKDIR, **change})


async def test_key_may_be_any_text(provider):
    sandbox = await provider.create(make_spec(), key=SURROGATE)
    assert await sandbox.is_alive()
    await provider.stop(SURROGATE)
    assert not await sandbox.is_alive()


async def test_what_could_not_be_read_again_is_refused(provider, run_dir):
    """Otherwise a sandbox is there that nobody finds, nor stops by its key."""
    with pytest.raises(ConfigError, match="labels"):
        await provider.create(make_spec(labels={"long": "x" * 2**20}), key="k")
    assert list((run_dir / "bubblewrap").iterdir()) == []


@pytest.mark.parametrize(
    "change",
    [{"env": {"A": SURROGATE}}, {"workdir": f"/{SURROGATE}"}, {"root": "/"}, {"root": "/usr/.."}],
    ids=ascii,
)
async def test_specifications_that_no_sandbox_can_have_are_refused(provider, change):
    with pytest.raises(ConfigError):
        await provider.create(make_spec(**change), key="k")


async def test_mount_never_shows_the_sockets_of_sandboxes(provider, run_dir, tmp_path):
    other = await provider.create(make_spec(), key="other")
    (tmp_path / "link").symlink_to(run_dir)
    for source in (tmp_path, run_dir, tmp_path / "link", run_dir / "bubblewrap"):
        with pytest.raises(MountConflict, match="sockets of all sandboxes"):
            await provider.create(make_spec(mounts=(Mount(source=str(source), target="/shown"),)), key="k")
    await other.stop()


@pytest.mark.skipif(not has_mapped_ids(), reason="roots of one's own need a root with mapped ids")
@pytest.mark.parametrize("name", ["data", "tmp", "proc"])
@pytest.mark.parametrize("way", ["/oldroot", "../oldroot", ""])
async def test_links_of_a_root_lead_no_mount_to_the_host(provider, tmp_path, name, way):
    """bubblewrap, which is root while it mounts, sees the host below /oldroot and follows links."""
    tree, outside, shown = tmp_path / "tree", tmp_path / "outside", tmp_path / "shown"
    for one in (tree, outside, shown):
        one.mkdir()
    (tree / name).symlink_to(f"{way}{outside}")
    mounts = (Mount(source=str(shown), target="/data/in"),) if name == "data" else ()
    with pytest.raises(MountConflict, match=f"leads /{name}.* out of it"):
        await provider.create(make_spec(root=str(tree), mounts=mounts), key="k")
    assert list(outside.iterdir()) == []


MANY = """
import os, socket, sys, time
held = []
for _ in range(600):
    one = socket.socket()
    one.setblocking(False)
    try:
        one.connect(("127.0.0.1", int(sys.argv[1])))
    except BlockingIOError:
        pass
    held.append(one)
print("held", flush=True)
while not os.path.exists("release"):
    time.sleep(0.01)
"""


FLOOD = """
import os, socket, sys, time
held, left = [], []
for _ in range(250):
    one = socket.create_connection(("127.0.0.1", int(sys.argv[1])), 30)
    one.setblocking(False)
    held.append(one)
idle = 0
while idle < 20:
    sent = 0
    for one in held:
        try:
            sent += one.send(bytes(1 << 18))
        except BlockingIOError:
            pass
    idle = 0 if sent else idle + 1
    time.sleep(0.01)
print("full")
"""


async def test_what_nobody_reads_takes_little_of_the_hosts_memory(provider):
    with socket.create_server(("127.0.0.1", 0), backlog=2048) as listener:
        port = listener.getsockname()[1]
        async with opened(provider, make_spec, reach=(f"http://127.0.0.1:{port}",)) as sandbox:
            keeper = keeper_of(sandbox)

            def resident_kib():
                status = Path(f"/proc/{keeper}/status").read_text()
                return int(status.split("VmHWM:")[1].split()[0])

            before = resident_kib()
            argv = [sandbox.descriptor["python"], "-I", "-c", FLOOD, str(port)]
            assert (await sandbox.exec(argv, timeout_s=50)).stdout == b"full\n"
            assert resident_kib() - before < 32 * 1024


@pytest.mark.parametrize("limit", [101, None])
async def test_connections_of_a_sandbox_do_not_use_up_its_keeper(provider, limit):
    """Otherwise nobody could stop it any more; and each costs the server a descriptor too."""
    with socket.create_server(("127.0.0.1", 0), backlog=2048) as listener:
        port = listener.getsockname()[1]
        async with opened(provider, make_spec, reach=(f"http://127.0.0.1:{port}",)) as sandbox:
            keeper = keeper_of(sandbox)
            _, hard = resource.prlimit(keeper, resource.RLIMIT_NOFILE)
            if limit is not None:
                resource.prlimit(keeper, resource.RLIMIT_NOFILE, (limit, hard))
            argv = f"{sandbox.descriptor['python']} -I -c '{MANY}' {port} >said 2>&1 &"
            assert (
                await out(sandbox, argv + " until grep -q . said; do sleep 0.01; done; cat said") == b"held\n"
            )
            deadline = time.monotonic() + PATIENCE_S
            most = limit or 600
            while len(os.listdir(f"/proc/{keeper}/fd")) < most // 2 and time.monotonic() < deadline:
                await anyio.sleep(0.01)
            assert most // 2 <= len(os.listdir(f"/proc/{keeper}/fd")) < most
            with socket.socket(socket.AF_UNIX) as half:
                connect(half, sandbox, "control.sock")
                half.sendall(encode([b"look"]))
                half.settimeout(PATIENCE_S)
                assert half.recv(100) == encode([b"ok"])
            if limit is None:
                await out(sandbox, "touch release")
                listener.settimeout(PATIENCE_S)
                for _ in range(600):
                    listener.accept()[0].close()
                ask = f'import socket; socket.create_connection(("127.0.0.1", {port}), 9); print("in")'
                assert await out(sandbox, f"{sandbox.descriptor['python']} -I -c '{ask}'") == b"in\n"
                while len(os.listdir(f"/proc/{keeper}/fd")) > 100 and time.monotonic() < deadline:
                    await anyio.sleep(0.01)
                assert len(os.listdir(f"/proc/{keeper}/fd")) < 100
