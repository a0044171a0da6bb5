"""What a process in a bubblewrap sandbox can reach over the network, tried from inside."""

import json
import secrets
import socket
import threading

import pytest

from inspan_core.errors import ConfigError
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
