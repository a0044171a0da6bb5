"""Ask a keeper for a way from inside to a URL of the host, and hold it by the connection."""

from __future__ import annotations

import os
import socket
import weakref
from pathlib import Path

import anyio
from anyio.abc import SocketAttribute

from inspan_core.errors import ReachUnavailable, SandboxTransportError
from inspan_runtime.providers.agent_client import RECEIVE_BYTES, Call, connect_to
from inspan_runtime.providers.exec_agent.frames import encode
from inspan_runtime.providers.reach import at_port, loopback_address

CLOSE_LIMIT_S = 10.0


class Way:
    """Implements `inspan_core.sandbox.Reached`.

    Args:
        url: As it is used inside.
        fd: The connection that holds it; hung up with this object.
    """

    def __init__(self, url: str, fd: int) -> None:
        self.url = url
        self._fd = fd
        self._hang_up = weakref.finalize(self, os.close, fd)

    def __repr__(self) -> str:
        return f"<way to {self.url}>"

    async def close(self) -> None:
        """See `inspan_core.sandbox.Reached.close`."""
        if self._hang_up.detach() is not None:
            await let_go(socket.socket(fileno=self._fd))


async def let_go(sock: socket.socket) -> None:
    """Close a way by its connection, and wait until it is closed; one that is gone is success."""
    with sock, anyio.move_on_after(CLOSE_LIMIT_S, shield=True):
        sock.setblocking(False)
        try:
            sock.send(encode([b"close"]))
            while True:  # The listener inside is closed before the connection.
                await anyio.wait_readable(sock)
                if not sock.recv(RECEIVE_BYTES):
                    break
        except OSError:  # Its keeper has ended, and the way with it.
            pass


async def open_way(
    folder: Path, name: str, url: str, *, what: str, holder: str, timeout_s: float
) -> Way | None:
    """Ask for a way.

    Args:
        folder: Where the socket of who opens it is.
        name: The socket's.
        url: A URL of the host.
        what: Of what messages speak.
        holder: Who holds the way.
        timeout_s: Seconds until it is given up.

    Returns:
        The way; None where nothing has to be opened.

    Raises:
        ReachUnavailable: It cannot be opened; says why.
        SandboxGone: Nobody listens at the socket.
        SandboxTransportError: There was no answer.
    """
    address = loopback_address(url)
    if address is None:
        return None
    try:
        with anyio.fail_after(timeout_s):
            async with await connect_to(folder, name, what) as stream:
                fd = os.dup(stream.extra(SocketAttribute.raw_socket).fileno())
                try:
                    call = Call(stream)
                    await call.send([b"reach", holder.encode(), address[0].encode(), b"%d" % address[1]])
                    port = _port(await call.fields(), what, url)
                except BaseException:
                    await let_go(socket.socket(fileno=fd))
                    raise
    except TimeoutError as error:
        raise SandboxTransportError(f"{what} to {url}: no answer within {timeout_s:g} s") from error
    except (anyio.EndOfStream, anyio.BrokenResourceError, ConnectionError) as error:
        raise SandboxTransportError(f"{what} to {url}: the connection broke") from error
    if port == 0:
        os.close(fd)
        return None
    return Way(url if port == address[1] else at_port(url, port), fd)


def _port(reply: list[bytes], what: str, url: str) -> int:
    words = b" ".join(reply[1:]).decode("utf-8", "replace")
    if reply[0] == b"error":
        raise ReachUnavailable(f"{what} to {url} cannot be opened: {words}")
    if reply[0] != b"ok" or not words.isdigit():
        raise ReachUnavailable(f"{what} to {url} cannot be opened: its keeper is of another version")
    return int(words)
