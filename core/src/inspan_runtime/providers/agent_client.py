"""Talk to a sandbox's agent and keeper over their sockets."""

from __future__ import annotations

import os
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
from anyio.abc import SocketStream

from inspan_core.errors import SandboxGone, SandboxTransportError
from inspan_runtime.providers.exec_agent.frames import decode, encode
from inspan_runtime.providers.state_folder import ending_of, is_held

RECEIVE_BYTES = 256 * 1024
ANSWER_SLACK_S = 10.0
KILL_WAIT_S = 5.0
GONE_WAIT_S = 2.0
POLL_S = 0.002


class Call:
    """One operation on an open connection."""

    def __init__(self, stream: SocketStream) -> None:
        self._stream = stream
        self._buffer = bytearray()

    async def send(self, fields: Sequence[bytes]) -> None:
        """Send the request's fields."""
        await self._stream.send(encode(fields))

    async def send_body(self, data: bytes | memoryview) -> None:
        """Send a part of the body."""
        await self._stream.send(data)  # type: ignore[arg-type]  # a memoryview is sent without a copy

    async def fields(self) -> list[bytes]:
        """Receive the reply's fields."""
        while (frame := decode(self._buffer)) is None:
            self._buffer += await self._receive()
        del self._buffer[: frame[1]]
        return list(frame[0])

    async def exactly(self, size_bytes: int) -> bytes:
        """Receive a part of known size."""
        while len(self._buffer) < size_bytes:
            self._buffer += await self._receive()
        data = bytes(self._buffer[:size_bytes])
        del self._buffer[:size_bytes]
        return data

    async def chunks(self, limit_bytes: int) -> bytes:
        """Receive chunks up to the empty one; the sender is not trusted to keep the limit."""
        parts = bytearray()
        while size := struct.unpack(">I", await self.exactly(4))[0]:
            if len(parts) + size > limit_bytes:
                raise SandboxTransportError(f"the agent sent more than {limit_bytes} bytes")
            parts += await self.exactly(size)
        return bytes(parts)

    async def end(self) -> None:
        """Wait until the other side is gone."""
        try:
            while True:
                await self._receive()
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            pass

    async def hang_up(self) -> None:
        """Say that the operation is given up, and wait until what it started is dead."""
        with anyio.move_on_after(KILL_WAIT_S, shield=True):
            try:
                await self._stream.send_eof()
            except OSError:
                pass
            await self.end()

    async def _receive(self) -> bytes:
        return await self._stream.receive(RECEIVE_BYTES)


@asynccontextmanager
async def open_call(state: Path, name: str, *, what: str, timeout_s: float) -> AsyncIterator[Call]:
    """Connect to a socket of a sandbox; leaving by an exception hangs up.

    Args:
        state: The state folder.
        name: ``agent.sock`` or ``control.sock``.
        what: Of what the message speaks, for example ``exec in inspan-0123``.
        timeout_s: Seconds until the whole call is given up.

    Raises:
        SandboxGone: Nobody listens any more.
        SandboxTransportError: The connection broke, or the answer did not come in time.
    """
    try:
        with anyio.fail_after(timeout_s):
            stream = await connect_to(state, name, what)
            async with stream:
                call = Call(stream)
                try:
                    yield call
                except anyio.get_cancelled_exc_class():
                    await call.hang_up()
                    raise
    except TimeoutError as error:
        raise SandboxTransportError(f"{what}: no answer within {timeout_s:g} s") from error
    except (anyio.EndOfStream, anyio.BrokenResourceError, ConnectionError) as error:
        if await _is_gone(state):
            raise SandboxGone(f"{what}: the sandbox ended meanwhile{ending_of(state)}") from error
        raise SandboxTransportError(f"{what}: the connection broke") from error


async def _is_gone(state: Path) -> bool:
    """Whether a connection broke because the sandbox ends: its keeper follows within milliseconds."""
    with anyio.move_on_after(GONE_WAIT_S):
        while await anyio.to_thread.run_sync(is_held, state):  # noqa: ASYNC110  # another process ends it
            await anyio.sleep(POLL_S)
        return True
    return False


async def connect_to(state: Path, name: str, what: str) -> SocketStream:
    """Connect through an open folder: a socket's path may have 107 bytes only.

    Raises:
        SandboxGone: Nobody listens any more.
    """
    try:
        folder = os.open(state, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise SandboxGone(f"{what}: the sandbox no longer exists{ending_of(state)}") from error
    try:
        return await anyio.connect_unix(f"/proc/self/fd/{folder}/{name}")
    except (FileNotFoundError, ConnectionRefusedError) as error:
        await _is_gone(state)  # Its keeper is about to say why.
        raise SandboxGone(f"{what}: the sandbox no longer exists{ending_of(state)}") from error
    finally:
        os.close(folder)
