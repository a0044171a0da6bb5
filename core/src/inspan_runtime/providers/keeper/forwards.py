"""Forward connections from a listener in the sandbox's network namespace to the same port of the host."""

import select

# The public module `socket` imports enum and selectors: 8 ms of every sandbox's start.
import _socket

BUFFER_BYTES = 256 * 1024


def open_forward(loop, listener, address):
    """Serve a listener.

    Args:
        loop: The keeper's `Loop`.
        listener: The socket that the agent bound inside.
        address: (host, port) on this side.
    """
    listener.setblocking(False)

    def on_client(_events):
        try:
            fd, _ = listener._accept()
        except OSError:
            return
        Forward(loop, _socket.socket(fileno=fd), address)

    loop.watch(listener.fileno(), select.EPOLLIN, on_client)


class Forward:
    """Two sockets and a buffer each way."""

    def __init__(self, loop, inner, address):
        self._loop = loop
        family = _socket.AF_INET6 if ":" in address[0] else _socket.AF_INET
        outer = _socket.socket(family, _socket.SOCK_STREAM)
        self._socks = (inner, outer)
        self._buffers = [
            memoryview(b""),
            memoryview(b""),
        ]  # [n]: read from socket n, to be written to the other
        self._ended = [False, False]  # Nothing more comes from socket n.
        self._connected = False
        for index, sock in enumerate(self._socks):
            sock.setblocking(False)
            sock.setsockopt(_socket.IPPROTO_TCP, _socket.TCP_NODELAY, 1)
            loop.watch(sock.fileno(), 0, lambda events, index=index: self._on_event(index, events))
        try:
            outer.connect(address)
        except BlockingIOError:
            pass
        except OSError:
            self._close()
            return
        self._update()

    def _update(self):
        for index, sock in enumerate(self._socks):
            mask = 0
            if not self._buffers[index] and not self._ended[index] and (self._connected or index == 0):
                mask |= select.EPOLLIN
            if self._buffers[1 - index] or (index == 1 and not self._connected):
                mask |= select.EPOLLOUT
            self._loop.change(sock.fileno(), mask)

    def _on_event(self, index, events):
        try:
            if index == 1 and not self._connected:
                if not events & (select.EPOLLOUT | select.EPOLLERR | select.EPOLLHUP):
                    return
                failed = self._socks[1].getsockopt(_socket.SOL_SOCKET, _socket.SO_ERROR)
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
            self._close()
            return
        if self._ended == [True, True] and not (self._buffers[0] or self._buffers[1]):
            self._close()
            return
        self._update()

    def _read(self, index):
        if self._ended[index]:
            raise OSError(104, "hung up both ways")
        data = self._socks[index].recv(BUFFER_BYTES)
        if data:
            self._buffers[index] = memoryview(data)
            if self._connected:
                self._write(index)
        else:
            self._ended[index] = True
            self._finish(index)

    def _write(self, index):
        """Write what was read from socket `index` to the other."""
        if self._buffers[index]:
            sent = self._socks[1 - index].send(self._buffers[index])
            self._buffers[index] = self._buffers[index][sent:]
        self._finish(index)

    def _finish(self, index):
        if self._ended[index] and not self._buffers[index] and (self._connected or index == 1):
            try:
                self._socks[1 - index].shutdown(_socket.SHUT_WR)
            except OSError:  # The other side is gone already.
                pass

    def _close(self):
        for sock in self._socks:
            self._loop.close(sock.detach())
