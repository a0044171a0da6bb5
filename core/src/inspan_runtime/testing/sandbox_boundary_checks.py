"""Checks of what a sandbox sees of its host, and of what it may use: files, network, mounts, limits."""

from __future__ import annotations

import secrets
import socket
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import cast

from inspan_core.errors import ConfigError, MountConflict, SandboxError
from inspan_core.sandbox import MeteredSandbox, Mount, Reached, ReachingSandbox, Sandbox, SandboxProvider
from inspan_runtime.testing.sandbox_check_support import (
    EXEC_TIMEOUT_S,
    Check,
    MakeSpec,
    becomes_true,
    capabilities_of,
    expect,
    fresh_key,
    needing,
    opened,
    out,
    refused,
    sh,
)

HUNGRY = "head -c 200000000 /dev/zero | tail -c 190000000 | wc -c"
MANY_PROCESSES = "for n in 1 2 3 4 5 6 7 8; do for m in 1 2 3 4 5 6 7 8; do sleep 2 & done; done; wait"
BURN = "n=0; while [ $n -lt 200000 ]; do n=$((n + 1)); done"
# Whatever the sandbox has to connect with: the address's answer, or nothing.
GREET = """
if command -v nc >/dev/null 2>&1; then nc -w 5 127.0.0.1 "$1" </dev/null
elif command -v bash >/dev/null 2>&1; then bash -c 'head -n 1 <>"/dev/tcp/127.0.0.1/$0"' "$1"
else "$2" -I -c 'import socket, sys
print(socket.create_connection(("127.0.0.1", int(sys.argv[1])), 5).recv(100).decode())' "$1"; fi
"""


@contextmanager
def greeting() -> Iterator[tuple[str, bytes]]:
    """A server on this host's loopback that says a word to everybody: (URL, word)."""
    word = secrets.token_hex(8).encode()
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                connection.sendall(word + b"\n")

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", word
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(EXEC_TIMEOUT_S)


async def _greeted(sandbox: Sandbox, url: str) -> bytes:
    python = str(sandbox.descriptor.get("python") or "python3")
    argv = ["sh", "-c", GREET, "sh", url.rpartition(":")[2], python]
    return (await sandbox.exec(argv, timeout_s=EXEC_TIMEOUT_S)).stdout.strip()


@needing("isolation")
async def hosts_files_are_not_there(provider: SandboxProvider, make_spec: MakeSpec) -> None:
    """Temporary files, and the program that made the sandbox."""
    with tempfile.NamedTemporaryFile(prefix="inspan-check-") as file:
        async with opened(provider, make_spec) as sandbox:
            for path in (file.name, __file__, sys.prefix + "/pyvenv.cfg"):
                found = (await sandbox.exec(["cat", path], timeout_s=EXEC_TIMEOUT_S)).exit_code
                expect(found != 0, f"the host's {path} is seen inside")


@needing("isolation")
async def hosts_processes_are_not_there(provider: SandboxProvider, make_spec: MakeSpec) -> None:
    """Neither by their numbers nor by their words, and no signal reaches them."""
    async with opened(provider, make_spec) as sandbox:
        count = await out(sandbox, "ls /proc | grep -c '^[0-9]*$'")
        expect(int(count) < 20, f"{int(count)} processes are seen inside")
        status = await out(sandbox, "cat /proc/self/status")
        expect(b"NoNewPrivs:\t1" in status, "commands may gain privileges")
        able = int(status.split(b"CapEff:\t")[1].split()[0], 16)
        expect(not able >> 21 & 1, "commands have the capability SYS_ADMIN")


@needing("isolation")
async def hosts_network_is_not_there(provider: SandboxProvider, make_spec: MakeSpec) -> None:
    """A server on the host's loopback that nobody declared is not reached."""
    with greeting() as (url, word):
        async with opened(provider, make_spec) as sandbox:
            expect(word not in await _greeted(sandbox, url), "an undeclared server of the host is reached")


@needing("reach")
async def declared_url_is_reached(provider: SandboxProvider, make_spec: MakeSpec) -> None:
    """Under the same address, again and again."""
    with greeting() as (url, word):
        async with opened(provider, make_spec, reach=(url,)) as sandbox:
            for _ in range(3):
                found = await _greeted(sandbox, url)
                expect(found == word, f"a declared server of the host answered {found!r}")


@needing("reach", "isolation")
async def only_declared_urls_are_reached(provider: SandboxProvider, make_spec: MakeSpec) -> None:
    """Each by itself: one declared server does not open the way to its neighbour."""
    with greeting() as (first, one), greeting() as (second, two), greeting() as (third, three):
        async with opened(provider, make_spec, reach=(first, second)) as sandbox:
            found = [await _greeted(sandbox, url) for url in (first, second, third)]
            expect(found[:2] == [one, two], f"declared servers of the host answered {found[:2]!r}")
            expect(three not in found[2], "a server beside the declared ones is reached")


@asynccontextmanager
async def _reached(sandbox: Sandbox, url: str, holder: str = "check") -> AsyncIterator[Reached | None]:
    """A way that is closed at the end; None where there need be none."""
    expect(hasattr(sandbox, "reach"), "the sandbox has no method reach()")
    way = await cast(ReachingSandbox, sandbox).reach(url, holder=holder)
    try:
        yield way
    finally:
        if way is not None:
            await way.close()


@needing("late_reach")
async def url_is_reached_later(provider: SandboxProvider, make_spec: MakeSpec) -> None:
    """By a borrower, under the URL that it is told; its neighbour is not reached."""
    with greeting() as (url, word), greeting() as (other, secret):
        async with opened(provider, make_spec) as made:
            sandbox = await provider.connect(made.descriptor)
            async with _reached(sandbox, url) as way:
                found = await _greeted(sandbox, url if way is None else way.url)
                expect(found == word, f"a server of the host answered {found!r} after reach()")
                if "isolation" in capabilities_of(provider):
                    found = await _greeted(sandbox, other)
                    expect(secret not in found, "a server that nobody asked for is reached")


@needing("late_reach", "isolation")
async def closed_way_is_closed(provider: SandboxProvider, make_spec: MakeSpec) -> None:
    """With its last holder: one that leaves does not disturb the other."""
    with greeting() as (url, word):
        async with opened(provider, make_spec) as made:
            async with _reached(made, url, "first") as first:
                async with _reached(made, url, "second"):
                    pass
                told = url if first is None else first.url
                found = await _greeted(made, told)
                expect(found == word, f"with one of two holders gone a server answered {found!r}")
            for one in {url, told}:
                expect(word not in await _greeted(made, one), "a closed way still leads to the host")


@needing("late_reach", "reach", "isolation")
async def declared_url_stays_reached(provider: SandboxProvider, make_spec: MakeSpec) -> None:
    """The owner's declaration holds, whoever asks for the same URL and leaves."""
    with greeting() as (url, word):
        async with opened(provider, make_spec, reach=(url,)) as made:
            async with _reached(made, url) as way:
                told = url if way is None else way.url
                expect(told == url, f"reach() of a declared URL tells another one, {told}")
            found = await _greeted(made, url)
            expect(found == word, f"a declared server answered {found!r} after a borrower had left")


@needing("mounts")
async def mounts_are_shown(provider: SandboxProvider, make_spec: MakeSpec) -> None:
    """A folder read-only, another to be written to."""
    with tempfile.TemporaryDirectory(prefix="inspan-check-") as folder:
        shown, written = Path(folder, "in"), Path(folder, "out")
        _prepare(shown, written)
        mounts = (
            Mount(source=str(shown), target="/inspan-check/in"),
            Mount(source=str(written), target="/inspan-check/out", read_only=False),
        )
        async with opened(provider, make_spec, mounts=mounts) as sandbox:
            expect(await out(sandbox, "cat /inspan-check/in/file") == b"shown", "a mount is not shown")
            for attempt in ("echo x >/inspan-check/in/file", "rm /inspan-check/in/file"):
                expect((await sh(sandbox, attempt)).exit_code != 0, f"a read-only mount allows: {attempt}")
            await out(sandbox, "echo written >/inspan-check/out/file")
        found = [_read(one) for one in (shown, written)]
        expect(found == ["shown", "written\n"], f"the host's files are {found} afterwards")


def _prepare(shown: Path, written: Path) -> None:
    for one, mode in ((shown.parent, 0o755), (shown, 0o755), (written, 0o777)):
        one.mkdir(exist_ok=True)
        one.chmod(mode)
    (shown / "file").write_text("shown", encoding="utf-8")


def _read(folder: Path) -> str:
    return (folder / "file").read_text(encoding="utf-8")


@needing("limits")
async def memory_limit_is_kept_and_told(provider: SandboxProvider, make_spec: MakeSpec) -> None:
    """Whoever takes more is killed, the result says so, and the sandbox goes on."""
    async with opened(provider, make_spec, memory_mib=64) as sandbox:
        expect(not (await sh(sandbox, "true")).out_of_memory, "memory ran out of a command that needs none")
        result = await sh(sandbox, HUNGRY, timeout_s=50.0)
        expect(result.stdout != b"190000000\n", "a command had three times the memory that there is")
        expect(result.out_of_memory, "it was not told that memory ran out")
        after = await sh(sandbox, "echo on")
        expect((after.stdout, after.out_of_memory) == (b"on\n", False), "the sandbox did not outlive it")


@needing("limits")
async def process_limit_is_kept(provider: SandboxProvider, make_spec: MakeSpec) -> None:
    """Whoever starts more cannot, and the sandbox goes on."""
    async with opened(provider, make_spec, pids=30) as sandbox:
        result = await sh(sandbox, MANY_PROCESSES, timeout_s=50.0)
        failed = result.exit_code != 0 or b"fork" in result.stdout + result.stderr
        expect(failed, "64 processes were made with a limit of 30")

        async def goes_on() -> bool:
            try:
                return (await sh(sandbox, "echo on")).stdout == b"on\n"
            except SandboxError:  # There is room for no process yet.
                return False

        await becomes_true(goes_on, "the sandbox did not outlive it")


@needing("usage")
async def usage_is_told(provider: SandboxProvider, make_spec: MakeSpec) -> None:
    """Processor time grows with work, and memory was taken."""
    async with opened(provider, make_spec) as sandbox:
        if not isinstance(sandbox, MeteredSandbox):
            expect(False, "the provider declares usage, and its sandboxes have no `usage`")
            return
        before = await sandbox.usage()
        await out(sandbox, BURN)
        after = await sandbox.usage()
        expect(bool(after.source), "it is not told where the figures come from")
        spent = (after.cpu_time_s or 0.0) - (before.cpu_time_s or 0.0)
        expect(spent > 0.01, f"a loop of 200000 rounds took {spent} s of processor time")
        expect((after.peak_memory_mib or 0.0) > 0.1, f"the most memory was {after.peak_memory_mib} MiB")


async def what_cannot_be_kept_is_refused(provider: SandboxProvider, make_spec: MakeSpec) -> None:
    """A provider that does not declare mounts or limits takes no specification that has them."""
    able = capabilities_of(provider)
    key = fresh_key()
    try:
        if "mounts" not in able:
            async with refused(MountConflict, "a mount, which the provider cannot make"):
                await provider.create(
                    make_spec(mounts=(Mount(source="/usr", target="/inspan-check"),)), key=key
                )
        if "limits" not in able:
            for limit in ({"memory_mib": 64}, {"cpu": 0.5}, {"pids": 30}):
                async with refused((ConfigError, SandboxError), f"{limit}, which the provider cannot keep"):
                    await provider.create(make_spec(**limit), key=key)
    finally:
        await provider.stop(key)


BOUNDARY_CHECKS: list[Check] = [
    hosts_files_are_not_there,
    hosts_processes_are_not_there,
    hosts_network_is_not_there,
    declared_url_is_reached,
    only_declared_urls_are_reached,
    url_is_reached_later,
    closed_way_is_closed,
    declared_url_stays_reached,
    mounts_are_shown,
    memory_limit_is_kept_and_told,
    process_limit_is_kept,
    usage_is_told,
    what_cannot_be_kept_is_refused,
]
