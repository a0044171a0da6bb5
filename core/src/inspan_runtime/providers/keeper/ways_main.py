"""Hold the ways into a container that has no keeper, for one holder; ends with the last of them."""

from __future__ import annotations

import os
import select
import time

from inspan_runtime.providers.exec_agent.lean import TYPE_CHECKING, signal, socket
from inspan_runtime.providers.exec_agent.loop import Loop
from inspan_runtime.providers.keeper.requests import take_requests
from inspan_runtime.providers.keeper.ways import Ways

FIRST_WAY_LIMIT_S = 30.0

if TYPE_CHECKING:
    from typing import Any


def main(server_fd: int, orders: dict[str, Any]) -> None:
    """Serve.

    Args:
        server_fd: The connected stream to the server: it gets "R" when its requests are served, or "E" and
            why they cannot be.
        orders: ``pid`` (the container's first process, as this host knows it), ``listen_fd`` (a listening
            socket, at ``path``).
    """
    if os.fork() != 0:  # The server need not wait for the end.
        os._exit(0)
    for one in (signal.SIGINT, signal.SIGHUP):
        signal.signal(one, signal.SIG_IGN)
    server = socket.socket(fileno=server_fd)
    status = 1
    try:
        try:
            serving = Serving(orders)
        except OSError as error:
            server.send(f"E{error.strerror or error}".encode("utf-8", "replace"))
        else:
            server.send(b"R")
            server.close()
            serving.run()
            status = 0
    finally:
        try:
            os.unlink(orders["path"])
        except OSError:  # Its folder is gone.
            pass
        os._exit(status)


class Serving:
    """One container's ways."""

    def __init__(self, orders: dict[str, Any]) -> None:
        self._loop = Loop()
        self._is_over = False
        pid = orders["pid"]
        os.set_inheritable(orders["listen_fd"], False)
        self._listener = socket.socket(fileno=orders["listen_fd"])
        self._ways = Ways(self._loop, lambda: pid, on_last_closed=self._end)
        self._loop.watch(os.pidfd_open(pid), select.EPOLLIN, self._end)  # Ready when the process has ended.
        take_requests(self._loop, self._listener, self._take)
        self._loop.call_at(time.monotonic() + FIRST_WAY_LIMIT_S, self._look_for_ways)

    def run(self) -> None:
        """Serve until the container or the last way has ended."""
        while not self._is_over:
            self._loop.turn()

    def _end(self, *_: object) -> None:
        self._is_over = True

    def _look_for_ways(self) -> None:
        if not self._ways.are_open:
            self._end()

    def _take(self, sock: socket.socket, fields: list[bytes]) -> None:
        if fields[:1] == [b"reach"]:
            self._ways.take(sock, fields[1:])
        else:
            self._loop.close(sock.detach())
