"""An epoll loop: descriptors, timers and dead children, on one thread."""

import os
import select
import time

# The public module `signal` imports enum: 5 ms of every sandbox's start.
import _signal


class Loop:
    """Call handlers; descriptors are closed after a batch, so that no event reaches a number's next owner."""

    def __init__(self):
        self._epoll = select.epoll()
        self._handlers = {}
        self._doomed = []
        self._timers = {}
        self.children = {}
        self._woken, wakes = os.pipe()
        os.set_blocking(self._woken, False)
        os.set_blocking(wakes, False)
        _signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
        _signal.signal(_signal.SIGCHLD, lambda _number, _frame: None)
        self.watch(self._woken, select.EPOLLIN, self._on_signal)

    def watch(self, fd, mask, handler):
        self._handlers[fd] = handler
        self._epoll.register(fd, mask)

    def change(self, fd, mask):
        self._epoll.modify(fd, mask)

    def mute(self, fd):
        """No more events of it: a peer that hung up would be reported without end."""
        if self._handlers.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def close(self, fd):
        self.mute(fd)
        self._doomed.append(fd)

    def call_at(self, when, action):
        """Call `action` at the monotonic second `when`; `cancel` takes what this returns."""
        token = object()
        self._timers[token] = (when, action)
        return token

    def cancel(self, token):
        self._timers.pop(token, None)

    def turn(self):
        """Wait for something, and serve it."""
        wait = (
            min(self._timers.values(), key=lambda timer: timer[0])[0] - time.monotonic()
            if self._timers
            else -1
        )
        for fd, events in self._epoll.poll(max(0.0, wait) if self._timers else -1):
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

    def _on_signal(self, _events):
        try:
            os.read(self._woken, 4096)
        except BlockingIOError:
            pass
        self.reap()

    def reap(self):
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
