"""An epoll loop: descriptors, timers and dead children, on one thread."""

from __future__ import annotations

import os
import select
import time

from inspan_runtime.providers.exec_agent.lean import TYPE_CHECKING, accept, signal, socket

if TYPE_CHECKING:
    from collections.abc import Callable


REST_S = 0.05
LONGEST_WAIT_S = 3600.0  # The kernel's milliseconds have 31 bits.


class Loop:
    """Call handlers; descriptors are closed after a batch, so that no event reaches a number's next owner."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._handlers: dict[int, Callable[[int], object]] = {}
        self._doomed: list[int] = []
        self._timers: dict[object, tuple[float, Callable[[], object]]] = {}
        self.children: dict[int, Callable[[int], object]] = {}
        self._woken, wakes = os.pipe()
        os.set_blocking(self._woken, False)
        os.set_blocking(wakes, False)
        signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        self.watch(self._woken, select.EPOLLIN, self._on_signal)

    def watch(self, fd: int, mask: int, handler: Callable[[int], object]) -> None:
        self._handlers[fd] = handler
        self._epoll.register(fd, mask)

    def change(self, fd: int, mask: int) -> None:
        self._epoll.modify(fd, mask)

    def listen(self, listener: socket.socket, handler: Callable[[socket.socket], object]) -> None:
        """Call `handler` with each connection; where there is no descriptor for one, it waits a moment."""
        fd = listener.fileno()
        listener.setblocking(False)

        def on_client(_events: int) -> None:
            try:
                sock = accept(listener)
            except OSError:  # It would be reported without end.
                self.change(fd, 0)
                self.call_at(time.monotonic() + REST_S, go_on)
                return
            if sock is not None:
                handler(sock)

        def go_on() -> None:
            if self._handlers.get(fd) is on_client:
                self.change(fd, select.EPOLLIN)

        self.watch(fd, select.EPOLLIN, on_client)

    def mute(self, fd: int) -> None:
        """No more events of it: a peer that hung up would be reported without end."""
        if self._handlers.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def close(self, fd: int) -> None:
        self.mute(fd)
        self._doomed.append(fd)

    def call_at(self, when: float, action: Callable[[], object]) -> object:
        """Call `action` at the monotonic second `when`; `cancel` takes what this returns."""
        token = object()
        self._timers[token] = (when, action)
        return token

    def cancel(self, token: object) -> None:
        self._timers.pop(token, None)

    def turn(self) -> None:
        """Wait for something, and serve it."""
        wait_s = -1.0
        if self._timers:
            earliest = min(when for when, _ in self._timers.values())
            wait_s = min(max(0.0, earliest - time.monotonic()), LONGEST_WAIT_S)
        for fd, events in self._epoll.poll(wait_s):
            handler = self._handlers.get(fd)
            if handler is not None:
                handler(events)
        for fd in self._doomed:
            os.close(fd)
        self._doomed = []
        now = time.monotonic()
        for token, (when, action) in list(self._timers.items()):
            if when <= now and self._timers.pop(token, None) is not None:
                action()

    def _on_signal(self, _events: int) -> None:
        try:
            os.read(self._woken, 4096)
        except BlockingIOError:
            pass
        self.reap()

    def reap(self) -> None:
        """Collect every dead child; of those in `children` (pid: action) the action gets the status."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            action = self.children.pop(pid, None)
            if action is not None:
                action(status)
