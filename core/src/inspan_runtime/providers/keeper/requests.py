"""Take requests at a socket: one frame a connection."""

from __future__ import annotations

import select

from inspan_runtime.providers.exec_agent.frames import decode
from inspan_runtime.providers.exec_agent.lean import TYPE_CHECKING, socket

RECEIVE_BYTES = 4096

if TYPE_CHECKING:
    from collections.abc import Callable

    from inspan_runtime.providers.exec_agent.loop import Loop

    Take = Callable[[socket.socket, list[bytes]], object]


def take_requests(loop: Loop, listener: socket.socket, take: Take) -> None:
    """Serve a listener.

    Args:
        loop: Where it is served.
        listener: It listens already.
        take: Called with a connection, which is its own from then on, and the request's fields. Who sends
            anything else is hung up on.
    """
    loop.listen(listener, lambda sock: _read(loop, sock, take))


def _read(loop: Loop, sock: socket.socket, take: Take) -> None:
    fd = sock.fileno()
    sock.setblocking(False)
    received = bytearray()

    def on_data(_events: int) -> None:
        try:
            data = sock.recv(RECEIVE_BYTES)
            received.extend(data)
            frame = decode(received)
        except BlockingIOError:
            return
        except (OSError, ValueError):
            data, frame = b"", None
        if frame is not None:
            loop.mute(fd)
            take(sock, frame[0])
        elif not data:
            loop.close(sock.detach())

    loop.watch(fd, select.EPOLLIN, on_data)
