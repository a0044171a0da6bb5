"""One ``exec`` of the engine: its client process, what it is fed and what it says."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

import anyio
from anyio.abc import ByteReceiveStream, Process

from inspan_runtime.providers.docker.marked import MarkedStream

CHUNK_BYTES = 256 * 1024
READ_BYTES = 1024 * 1024

Body = Callable[[], AsyncGenerator[bytes, None]]


def body_of(data: bytes) -> Body | None:
    """Return what feeds bytes; None for none."""
    if not data:
        return None

    async def chunks() -> AsyncGenerator[bytes, None]:
        for start in range(0, len(data), READ_BYTES):
            yield data[start : start + READ_BYTES]

    return chunks


async def follow(process: Process, body: Body | None, out: MarkedStream, err: MarkedStream) -> None:
    """Feed a command and read what it says, until both streams have told its end."""
    async with anyio.create_task_group() as group:
        if body is not None:
            group.start_soon(_feed, process, body)
        async with anyio.create_task_group() as readers:
            readers.start_soon(read, process.stdout, out)
            readers.start_soon(read, process.stderr, err)
        group.cancel_scope.cancel()  # Whatever it did not read is dropped.


async def _feed(process: Process, body: Body) -> None:
    assert process.stdin is not None
    try:
        async with aclosing(body()) as chunks:
            async for chunk in chunks:
                await process.stdin.send(chunk)
        await process.stdin.aclose()
    except (anyio.BrokenResourceError, anyio.ClosedResourceError):  # The command does not read.
        pass


async def read(stream: ByteReceiveStream | None, into: MarkedStream) -> None:
    """Read a stream of a command to the end of what it says."""
    assert stream is not None
    try:
        while into.word is None:
            into.add(await stream.receive(CHUNK_BYTES))
    except (anyio.EndOfStream, anyio.BrokenResourceError):
        pass


async def read_more(process: Process, into: MarkedStream) -> bool:
    """Read what a command says next on its standard error; False at the end."""
    assert process.stderr is not None
    try:
        into.add(await process.stderr.receive(CHUNK_BYTES))
    except (anyio.EndOfStream, anyio.BrokenResourceError):
        return False
    return True


def handle_of(process: Process) -> int | None:
    """Return a descriptor that stands for the client itself; None when it has ended."""
    try:
        return os.pidfd_open(process.pid)
    except ProcessLookupError:  # It has ended already.
        return None


async def discard(process: Process, handle: int | None) -> None:
    """End the engine's client: nothing that runs inside depends on it."""
    if handle is not None:
        try:
            # Popen's own `kill` may reap a process that the event loop waits for.
            signal.pidfd_send_signal(handle, signal.SIGKILL)
        except ProcessLookupError:
            pass
        os.close(handle)
    await process.aclose()
