"""Ways from inside to addresses of the host, opened after the creation, while somebody holds them.

A client sends ``["reach", holder, host, port]`` on a connection of its own and gets ``["ok", port inside]``:
another port than the host's where that one is taken inside, 0 where nothing had to be opened; or
``["error", words]``. It holds the way until it sends ``["close"]``. One whose connection ends without that
was killed: its way stays for `LINGER_S`, for whoever comes in its place, by the holder's name.
"""

from __future__ import annotations

import errno
import select
import time

from inspan_runtime.providers.exec_agent.frames import encode
from inspan_runtime.providers.exec_agent.lean import TYPE_CHECKING, socket
from inspan_runtime.providers.keeper.forwards import Forwarding
from inspan_runtime.providers.keeper.namespaces import bind_inside, has_own_network

LINGER_S = 300.0
WAYS_LIMIT = 256

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from inspan_runtime.providers.exec_agent.loop import Loop

    Address = tuple[str, int]


class Way:
    """One forwarding and its holders, each with the connection by which it holds it."""

    def __init__(self, forwarding: Forwarding, port: int) -> None:
        self.forwarding = forwarding
        self.port = port
        self.holders: dict[bytes, socket.socket] = {}


class Ways:
    """The ways into one network namespace.

    Args:
        loop: Where they are served.
        pid_inside: Returns a process of the sandbox, as this host knows it.
        declared: Addresses that are reached for as long as the sandbox lives.
        on_last_closed: Called when none is open after a request or a close.
    """

    def __init__(
        self,
        loop: Loop,
        pid_inside: Callable[[], int],
        declared: Sequence[Address] = (),
        on_last_closed: Callable[[], object] = lambda: None,
    ) -> None:
        self._loop = loop
        self._pid_inside = pid_inside
        self._declared = {(host, port) for host, port in declared}
        self._on_last_closed = on_last_closed
        self._ways: dict[Address, Way] = {}

    @property
    def are_open(self) -> bool:
        """Whether there is one."""
        return bool(self._ways)

    def take(self, sock: socket.socket, fields: Sequence[bytes]) -> None:
        """Answer a request and keep its connection.

        Args:
            sock: The connection; closed here.
            fields: Holder, host and port.
        """
        try:
            holder, address = fields[0], (fields[1].decode("ascii"), int(fields[2]))
            port = self._open(holder, address, sock)
            reply = [b"ok", b"%d" % port]
        except (OSError, ValueError, IndexError) as error:
            port, reply = 0, [b"error", str(error).encode("utf-8", "replace")[:1000]]
        self._tell(sock, reply)
        if port == 0:
            self._loop.close(sock.detach())
            if not self._ways:
                self._on_last_closed()
            return

        def on_data(_events: int) -> None:
            try:
                said = sock.recv(4096)
            except BlockingIOError:
                return
            except OSError:
                said = b""
            self._loop.mute(sock.fileno())
            if said:
                self._release(holder, address, sock)
                self._tell(sock, [b"ok"])
            else:
                self._loop.call_at(time.monotonic() + LINGER_S, lambda: self._release(holder, address, sock))
            self._loop.close(sock.detach())

        self._loop.watch(sock.fileno(), select.EPOLLIN, on_data)

    def _open(self, holder: bytes, address: Address, sock: socket.socket) -> int:
        """Return the port inside, 0 for one that is reached anyway."""
        way = self._ways.get(address)
        if way is None:
            pid = self._pid_inside()
            if address in self._declared or not has_own_network(pid):
                return 0
            if len(self._ways) >= WAYS_LIMIT:
                raise OSError(errno.EMFILE, f"more than {WAYS_LIMIT} ways are open")
            listener = _listener(pid, address)
            port = listener.getsockname()[1]
            way = self._ways[address] = Way(Forwarding(self._loop, listener, address), port)
        way.holders[holder] = sock
        return way.port

    def _release(self, holder: bytes, address: Address, sock: socket.socket) -> None:
        """Let go of a way, unless its holder has come again by another connection."""
        way = self._ways.get(address)
        if way is None or way.holders.get(holder) is not sock:
            return
        del way.holders[holder]
        if not way.holders:
            del self._ways[address]
            way.forwarding.close()
            if not self._ways:
                self._on_last_closed()

    def _tell(self, sock: socket.socket, reply: Sequence[bytes]) -> None:
        try:
            sock.send(encode(reply))
        except OSError:  # It did not wait for the answer.
            pass


def _listener(pid: int, address: Address) -> socket.socket:
    """Listen inside under the host's address, or where that is taken at another port."""
    try:
        return bind_inside(pid, [address])[0]
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
    return bind_inside(pid, [(address[0], 0)])[0]
