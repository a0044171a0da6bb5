"""Forward connections from a listener in the sandbox's network namespace to the same port of the host."""

from __future__ import annotations

import os
import select

from inspan_runtime.providers.exec_agent.lean import TYPE_CHECKING, socket

BUFFER_BYTES = 256 * 1024
SHARERS = 32  # So many are read by a whole buffer; more get less: what is not passed on is the host's memory.
MOST_OPEN = 256  # What a sandbox holds open costs its keeper two descriptors, and the server one.
RESERVED_FDS = 48  # For who stops it, and for what its end takes.

if TYPE_CHECKING:
    from collections.abc import Callable

    from inspan_runtime.providers.exec_agent.loop import Loop


class Forwarding:
    """What comes to a listener is forwarded, until it is closed; what is too much waits its turn.

    Args:
        loop: The keeper's `Loop`.
        listener: A socket that listens inside.
        address: (host, port) on this side.
    """

    def __init__(self, loop: Loop, listener: socket.socket, address: tuple[str, int]) -> None:
        self._loop = loop
        self._listener = listener
        self._address = address
        self._open: set[Forward] = set()
        loop.listen(listener, self._on_client)

    def _on_client(self, sock: socket.socket) -> None:
        if sock.fileno() > os.sysconf("SC_OPEN_MAX") - RESERVED_FDS:  # The kernel gives the lowest number.
            sock.close()
            return
        try:
            Forward(self._loop, sock, self._address, self)
        except OSError:  # No descriptor is left for the other side.
            if sock.fileno() >= 0:
                sock.close()

    @property
    def share_bytes(self) -> int:
        """How much may be read of a connection at once."""
        return BUFFER_BYTES // (1 + len(self._open) // SHARERS)

    def opened(self, one: Forward) -> None:
        """Count one, and let others wait when there are enough."""
        self._open.add(one)
        if len(self._open) == MOST_OPEN:
            self._loop.change(self._listener.fileno(), 0)

    def closed(self, one: Forward) -> None:
        """Forget one, and let others in again."""
        is_full = len(self._open) == MOST_OPEN
        self._open.discard(one)
        if is_full and len(self._open) < MOST_OPEN and self._listener.fileno() >= 0:
            self._loop.change(self._listener.fileno(), select.EPOLLIN)

    def close(self) -> None:
        """Listen no more, and cut what is connected."""
        self._loop.close(self._listener.detach())
        for one in list(self._open):
            one.close()


class Forward:
    """Two sockets and a buffer each way; its owner knows of it while it is open."""

    def __init__(self, loop: Loop, inner: socket.socket, address: tuple[str, int], owner: Forwarding) -> None:
        self._loop = loop
        self._owner = owner
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        outer = socket.socket(family, socket.SOCK_STREAM)
        self._socks = (inner, outer)
        self._buffers = [
            memoryview(b""),
            memoryview(b""),
        ]  # [n]: read from socket n, to be written to the other
        self._ended = [False, False]  # Nothing more comes from socket n.
        self._connected = False
        for index, sock in enumerate(self._socks):
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            loop.watch(sock.fileno(), 0, self._handler(index))
        owner.opened(self)
        try:
            outer.connect(address)
        except BlockingIOError:
            pass
        except OSError:
            self.close()
            return
        self._update()

    def _handler(self, index: int) -> Callable[[int], None]:
        return lambda events: self._on_event(index, events)

    def _update(self) -> None:
        for index, sock in enumerate(self._socks):
            mask = 0
            if not self._buffers[index] and not self._ended[index] and (self._connected or index == 0):
                mask |= select.EPOLLIN
            if self._buffers[1 - index] or (index == 1 and not self._connected):
                mask |= select.EPOLLOUT
            self._loop.change(sock.fileno(), mask)

    def _on_event(self, index: int, events: int) -> None:
        try:
            if index == 1 and not self._connected:
                if not events & (select.EPOLLOUT | select.EPOLLERR | select.EPOLLHUP):
                    return
                failed = self._socks[1].getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if failed:
                    raise OSError(failed, "cannot connect")
                self._connected = True
            if events & select.EPOLLERR:
                raise OSError(5, "socket error")
            if events & (select.EPOLLIN | select.EPOLLHUP) and not self._buffers[index]:
                self._read(index)
            if events & select.EPOLLOUT:
                self._write(1 - index)
        except BlockingIOError:
            pass
        except OSError:
            self.close()
            return
        if self._ended == [True, True] and not (self._buffers[0] or self._buffers[1]):
            self.close()
            return
        self._update()

    def _read(self, index: int) -> None:
        if self._ended[index]:
            raise OSError(104, "hung up both ways")
        data = self._socks[index].recv(self._owner.share_bytes)
        if data:
            self._buffers[index] = memoryview(data)
            if self._connected:
                self._write(index)
        else:
            self._ended[index] = True
            self._finish(index)

    def _write(self, index: int) -> None:
        """Write what was read from socket `index` to the other."""
        if self._buffers[index]:
            sent = self._socks[1 - index].send(self._buffers[index])
            self._buffers[index] = self._buffers[index][sent:]
        self._finish(index)

    def _finish(self, index: int) -> None:
        if self._ended[index] and not self._buffers[index] and (self._connected or index == 1):
            try:
                self._socks[1 - index].shutdown(socket.SHUT_WR)
            except OSError:  # The other side is gone already.
                pass

    def close(self) -> None:
        """Close both sides."""
        self._owner.closed(self)
        for sock in self._socks:
            self._loop.close(sock.detach())
