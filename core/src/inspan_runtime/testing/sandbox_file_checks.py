"""Checks of `upload` and `download`: bytes, bounds, and things that are no files."""

from __future__ import annotations

import os
import tempfile

import anyio

from inspan_core.errors import SandboxError, TooLarge, UnsafePath
from inspan_core.sandbox import Sandbox, SandboxProvider
from inspan_runtime.testing.sandbox_check_support import (
    Check,
    MakeSpec,
    becomes_true,
    expect,
    needing,
    opened,
    out,
    refused,
    sh,
)

MIB = 1024 * 1024
LARGE_MIB = 48
CANCELLED_MIB = 400
CANCEL_AFTER_S = (0.005, 0.03)
CONCURRENT_TRANSFERS = 12
SPARSE = f"truncate -s {2**40}"
NAMES = (
    "with space",
    "-dash",
    "quote'\"",
    "new\nline",
    "ümläut",
    "*",
    os.fsdecode(b"\xff"),
    ".hidden",
    "x" * 200,
)


async def files_come_back_unchanged(provider: SandboxProvider, make_spec: MakeSpec) -> None:
    """Empty, every byte value, and megabytes."""
    spec = make_spec()
    async with opened(provider, lambda: spec) as sandbox:
        for number, data in enumerate((b"", bytes(range(256)), os.urandom(5 * MIB))):
            path = f"{spec.workdir}/file{number}"
            await sandbox.upload(path, data)
            found = await sandbox.download(path, limit_bytes=6 * MIB)
            expect(found.data == data, f"{len(data)} bytes came back as {len(found.data)} other ones")
            expect(
                found.size_bytes == len(data) and not found.truncated,
                f"the size of {len(data)} bytes was wrong",
            )


async def odd_names_are_names(provider: SandboxProvider, make_spec: MakeSpec) -> None:
    """No shell and no pattern ever sees a path."""
    spec = make_spec()
    async with opened(provider, lambda: spec) as sandbox:
        for name in NAMES:
            await sandbox.upload(f"{spec.workdir}/{name}", os.fsencode(name))
        for name in NAMES:
            found = await sandbox.download(f"{spec.workdir}/{name}", limit_bytes=1000)
            expect(found.data == os.fsencode(name), f"the file {name!r} came back as {found.data!r}")


async def upload_makes_parents_and_sets_the_mode(provider: SandboxProvider, make_spec: MakeSpec) -> None:
    """Whatever the umask."""
    spec = make_spec()
    async with opened(provider, lambda: spec) as sandbox:
        for mode in (0o600, 0o755, 0o666):
            path = f"{spec.workdir}/some/new folder/{mode:o}"
            await sandbox.upload(path, b"x", mode=mode)
            found = await _mode(sandbox, path)
            expect(found == mode, f"mode {mode:o} became {found:o}")


async def _mode(sandbox: Sandbox, path: str) -> int:
    result = await sandbox.exec(["stat", "-c", "%a", path], timeout_s=10.0)
    return int(result.stdout, 8)


@needing("processes")
async def upload_replaces_and_leaves_nothing_else(provider: SandboxProvider, make_spec: MakeSpec) -> None:
    """A file that was there has the new content; no temporary file stays, also after a refusal."""
    spec = make_spec()
    async with opened(provider, lambda: spec) as sandbox:
        folder = f"{spec.workdir}/f"
        await sandbox.upload(f"{folder}/file", b"old and longer")
        await sandbox.upload(f"{folder}/file", b"new")
        await out(sandbox, "ln -s file f/link")
        async with refused(UnsafePath, "upload onto a link"):
            await sandbox.upload(f"{folder}/link", b"x")
        expect(await out(sandbox, "cat f/file") == b"new", "a file was not replaced")
        found = await out(sandbox, "ls -A f")
        expect(found == b"file\nlink\n", f"beside the file there is {found!r}")


@needing("processes")
async def replacing_is_atomic(provider: SandboxProvider, make_spec: MakeSpec) -> None:
    """Who has the old file open goes on reading it whole: it is another file."""
    spec = make_spec()
    async with opened(provider, lambda: spec) as sandbox:
        path = f"{spec.workdir}/file"
        await sandbox.upload(path, b"old")
        before = await out(sandbox, "ls -i file; ln file kept")
        await sandbox.upload(path, b"new")
        expect(
            await out(sandbox, "cat kept file") == b"oldnew", f"the old file was written into ({before!r})"
        )


@needing("processes")
async def upload_refuses_what_is_no_file(provider: SandboxProvider, make_spec: MakeSpec) -> None:
    """A link, also a dangling one, a folder, a FIFO, a relative path, a path that ends in a slash."""
    spec = make_spec()
    async with opened(provider, lambda: spec) as sandbox:
        await out(sandbox, "mkdir d; echo x >target; ln -s target link; ln -s nowhere dangling; mkfifo fifo")
        for name in ("link", "dangling", "d", "fifo", "d/", "d/.."):
            async with refused(UnsafePath, f"upload to {name}"):
                await sandbox.upload(f"{spec.workdir}/{name}", b"y")
        async with refused(UnsafePath, "upload to a relative path"):
            await sandbox.upload("relative", b"y")
        found = await out(sandbox, "cat target; ls")
        expect(
            found == b"x\nd\ndangling\nfifo\nlink\ntarget\n", f"a refused upload changed something: {found!r}"
        )


async def failed_upload_is_an_error(provider: SandboxProvider, make_spec: MakeSpec) -> None:
    """A parent that is a file."""
    spec = make_spec()
    async with opened(provider, lambda: spec) as sandbox:
        await sandbox.upload(f"{spec.workdir}/file", b"x")
        async with refused((SandboxError, OSError), "upload below a file"):
            await sandbox.upload(f"{spec.workdir}/file/below", b"y")


@needing("processes")
async def download_refuses_what_is_no_file(provider: SandboxProvider, make_spec: MakeSpec) -> None:
    """A link, a folder, a FIFO, a device, a relative path: none is followed, none blocks."""
    spec = make_spec()
    async with opened(provider, lambda: spec) as sandbox:
        await out(sandbox, "mkdir d; echo x >target; ln -s target link; ln -s nowhere dangling; mkfifo fifo")
        for path in (*(f"{spec.workdir}/{one}" for one in ("link", "dangling", "d", "fifo")), "/dev/zero"):
            async with refused(UnsafePath, f"download of {path}"):
                await sandbox.download(path, limit_bytes=1000, timeout_s=10.0)
        async with refused(UnsafePath, "download of a relative path"):
            await sandbox.download("target", limit_bytes=1000)


async def missing_file_is_not_found(provider: SandboxProvider, make_spec: MakeSpec) -> None:
    """The builtin error."""
    spec = make_spec()
    async with opened(provider, lambda: spec) as sandbox:
        for name in ("missing", "missing/below"):
            async with refused(FileNotFoundError, f"download of {name}"):
                await sandbox.download(f"{spec.workdir}/{name}", limit_bytes=1000)


async def download_is_bounded(provider: SandboxProvider, make_spec: MakeSpec) -> None:
    """One byte more than the limit is too large; with `tail` it gives the tail."""
    spec = make_spec()
    async with opened(provider, lambda: spec) as sandbox:
        path = f"{spec.workdir}/file"
        await sandbox.upload(path, b"x" + b"y" * 999 + b"z")
        async with refused(TooLarge, "download over the limit"):
            await sandbox.download(path, limit_bytes=1000)
        found = await sandbox.download(path, limit_bytes=1000, tail=True)
        expect(found.data == b"y" * 999 + b"z", "the tail is not the file's end")
        expect(found.truncated and found.size_bytes == 1001, "the tail was not reported as such")
        whole = await sandbox.download(path, limit_bytes=1001, tail=True)
        expect(len(whole.data) == 1001 and not whole.truncated, "a file of the limit's size was cut")


@needing("processes")
async def huge_sparse_file_is_bounded(provider: SandboxProvider, make_spec: MakeSpec) -> None:
    """A terabyte of nothing costs nothing."""
    spec = make_spec()
    async with opened(provider, lambda: spec) as sandbox:
        await out(sandbox, f"{SPARSE} huge")
        path = f"{spec.workdir}/huge"
        async with refused(TooLarge, "download of a terabyte"):
            await sandbox.download(path, limit_bytes=MIB, timeout_s=20.0)
        found = await sandbox.download(path, limit_bytes=MIB, tail=True, timeout_s=20.0)
        expect(found.data == bytes(MIB) and found.size_bytes == 2**40, "the tail of a terabyte is wrong")


@needing("processes")
async def growing_file_is_bounded(provider: SandboxProvider, make_spec: MakeSpec) -> None:
    """A file that somebody writes to while it is read ends at the limit."""
    spec = make_spec()
    async with opened(provider, lambda: spec) as sandbox:
        await out(sandbox, "echo x >grows; setsid sh -c 'timeout 10 yes >>grows' >/dev/null 2>&1 &")
        await out(sandbox, "until [ $(stat -c %s grows) -gt 1000000 ]; do sleep 0.02; done")
        for _ in range(5):
            found = await sandbox.download(
                f"{spec.workdir}/grows", limit_bytes=100_000, tail=True, timeout_s=20.0
            )
            expect(len(found.data) <= 100_000, f"{len(found.data)} bytes came, the limit was 100000")
        await sh(sandbox, "pkill yes; rm grows")


async def host_file_is_streamed(provider: SandboxProvider, make_spec: MakeSpec) -> None:
    """`upload_file`, of some megabytes."""
    spec = make_spec()
    data = os.urandom(9 * MIB + 1)
    with tempfile.NamedTemporaryFile(prefix="inspan-check-") as file:
        file.write(data)
        file.flush()
        async with opened(provider, lambda: spec) as sandbox:
            path = f"{spec.workdir}/new/file"
            await sandbox.upload_file(path, file.name, mode=0o755)
            found = await sandbox.download(path, limit_bytes=10 * MIB)
            expect(found.data == data, "a host file came back changed")
            expect(await _mode(sandbox, path) == 0o755, "the mode was not set")
            async with refused(UnsafePath, "upload of a host file onto a folder"):
                await sandbox.upload_file(f"{spec.workdir}/new", file.name)


async def large_file_comes_back(provider: SandboxProvider, make_spec: MakeSpec) -> None:
    """As large as a download is by default."""
    spec = make_spec()
    data = os.urandom(MIB) * LARGE_MIB
    async with opened(provider, lambda: spec) as sandbox:
        await sandbox.upload(f"{spec.workdir}/large", data, timeout_s=120.0)
        found = await sandbox.download(f"{spec.workdir}/large", limit_bytes=len(data), timeout_s=120.0)
        expect(found.data == data, f"{len(data)} bytes came back as {len(found.data)} other ones")


async def transfers_do_not_mix(provider: SandboxProvider, make_spec: MakeSpec) -> None:
    """Many files at the same time, and one file from many sides: it is one of them, whole."""
    spec = make_spec()
    async with opened(provider, lambda: spec) as sandbox:

        async def one(number: int) -> None:
            data = b"%03d" % number * 30_000
            await sandbox.upload(f"{spec.workdir}/file{number}", data)
            await sandbox.upload(f"{spec.workdir}/shared", data)
            found = await sandbox.download(f"{spec.workdir}/file{number}", limit_bytes=MIB)
            expect(found.data == data, f"file {number} came back as another")

        async with anyio.create_task_group() as group:
            for number in range(CONCURRENT_TRANSFERS):
                group.start_soon(one, number)
        shared = (await sandbox.download(f"{spec.workdir}/shared", limit_bytes=MIB)).data
        expect(shared == shared[:3] * 30_000, "a file that many wrote is a mixture of theirs")


@needing("processes")
async def cancelled_upload_leaves_the_old_file(provider: SandboxProvider, make_spec: MakeSpec) -> None:
    """And no part of the new one, under any name."""
    spec = make_spec()
    with tempfile.NamedTemporaryFile(prefix="inspan-check-") as file:
        file.truncate(CANCELLED_MIB * MIB)
        async with opened(provider, lambda: spec) as sandbox:
            await sandbox.upload(f"{spec.workdir}/f/file", b"old")
            for delay_s in CANCEL_AFTER_S:
                with anyio.move_on_after(delay_s) as scope:
                    await sandbox.upload_file(f"{spec.workdir}/f/file", file.name)
                if not scope.cancelled_caught:
                    break

                async def is_clean() -> bool:
                    return await out(sandbox, "ls -A f; head -c 10 f/file") == b"file\nold"

                await becomes_true(is_clean, f"an upload cancelled after {delay_s} s left something")


@needing("processes")
async def linked_folder_leads_nowhere_else(provider: SandboxProvider, make_spec: MakeSpec) -> None:
    """A link in the middle of a path is the sandbox's own, absolute or not: what a command sees."""
    spec = make_spec()
    async with opened(provider, lambda: spec) as sandbox:
        await out(sandbox, f"mkdir real; ln -s real near; ln -s '{spec.workdir}/real' far; ln -s /etc etc")
        for name in ("near", "far"):
            await sandbox.upload(f"{spec.workdir}/{name}/file", name.encode())
            seen = await out(sandbox, "cat real/file")
            expect(seen == name.encode(), f"an upload through the link {name} wrote something else: {seen!r}")
        seen = await out(sandbox, "cat /etc/passwd")
        found = await sandbox.download(f"{spec.workdir}/etc/passwd", limit_bytes=MIB)
        expect(found.data == seen, "a download through a link came from outside of the sandbox")


FILE_CHECKS: list[Check] = [
    files_come_back_unchanged,
    odd_names_are_names,
    upload_makes_parents_and_sets_the_mode,
    upload_replaces_and_leaves_nothing_else,
    replacing_is_atomic,
    upload_refuses_what_is_no_file,
    failed_upload_is_an_error,
    download_refuses_what_is_no_file,
    missing_file_is_not_found,
    download_is_bounded,
    huge_sparse_file_is_bounded,
    growing_file_is_bounded,
    host_file_is_streamed,
    large_file_comes_back,
    transfers_do_not_mix,
    cancelled_upload_leaves_the_old_file,
    linked_folder_leads_nowhere_else,
]
