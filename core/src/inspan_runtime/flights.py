"""An order in flight, and a request that waits for its reply."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import anyio

from inspan_core.effects import Order, Reply
from inspan_runtime.waiting import Bell, Gone


class Flight:
    """An order in flight; what is due (see `inspan_runtime.alarms`) is the end of its budget.

    Attributes:
        scope: What is cancelled to cut it off: once it is performed, its chain's.
        at: When its budget ends.
        is_off: It has ended.
        dropped: Nobody waits for its answer any more.
        is_cut: It is cut off, which is not the end of its budget.
    """

    __slots__ = ("_ended", "at", "dropped", "is_cut", "is_off", "order", "scope")

    def __init__(self, order: Order) -> None:
        self.order = order
        self.at = inf
        self.scope: anyio.CancelScope | None = None
        self.is_off = self.dropped = self.is_cut = False
        self._ended: anyio.Event | None = None

    def cut(self) -> None:
        """Cancel its performance: not its budget has ended."""
        self.is_cut = True
        self.ring()

    def ring(self) -> None:
        """Cancel its performance."""
        if self.scope is not None and not self.is_off:
            self.scope.cancel()

    def end(self) -> None:
        """It has ended."""
        self.is_off = True
        if self._ended is not None:
            self._ended.set()

    async def ended(self) -> None:
        """Wait for its end."""
        if not self.is_off:
            if self._ended is None:
                self._ended = anyio.Event()
            await self._ended.wait()


class Waiter:
    """A request that waits for its reply.

    Attributes:
        bind: Called when the request was taken: just before its event is journalled.
        reply: The reply, once it is there.
        error: Why there will be none.
    """

    __slots__ = ("_wake", "bind", "error", "reply")

    def __init__(self, bind: Callable[[], object] | None = None) -> None:
        self.bind = bind
        self.reply: Reply | None = None
        self.error: Exception | None = None
        self._wake: Callable[[], object] | None = None

    @property
    def is_answered(self) -> bool:
        """Whether there is a reply, or will be none."""
        return self.reply is not None or self.error is not None

    def answer(self, reply: Reply) -> None:
        """Give the reply."""
        self.reply = reply
        if self._wake is not None:
            self._wake()

    def fail(self, error: Exception) -> None:
        """There will be no reply."""
        self.error = error
        if self._wake is not None:
            self._wake()

    async def wait(self, gone: Gone | None) -> None:
        """Wait until it is answered, or nobody waits any more."""
        if callable(gone):
            with anyio.CancelScope() as scope:
                self._wake = scope.cancel
                await gone()
            return
        bell = Bell()
        self._wake = bell.ring
        if gone is None:
            await bell.wait()
            return
        gone.watch(bell.ring)
        try:
            await bell.wait()
        finally:
            gone.unwatch()
