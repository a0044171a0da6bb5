"""Concurrency slots: how many runs of a server may be under way at once."""

from __future__ import annotations

from collections import OrderedDict

import anyio


class SlotPool:
    """A bounded number of slots, given out in the order of asking.

    Args:
        total: How many there are, at least 1.
    """

    def __init__(self, total: int) -> None:
        self._total = total
        self._holders: set[object] = set()
        self._queue: OrderedDict[object, anyio.Event] = OrderedDict()

    async def take(self, holder: object) -> None:
        """Wait for a slot for `holder`, which has none. One that is free is taken without waiting."""
        if len(self._holders) < self._total:
            self._holders.add(holder)
            return
        self._queue[holder] = given = anyio.Event()
        try:
            await given.wait()
        except BaseException:
            # It may have been given at the very moment in which nobody waited for it any more.
            if self._queue.pop(holder, None) is None:
                self.give_back(holder)
            raise

    @property
    def taken(self) -> int:
        """How many are given out."""
        return len(self._holders)

    def give_back(self, holder: object) -> None:
        """Return the slot of `holder`, to whoever has waited longest."""
        self._holders.remove(holder)
        if self._queue:
            successor, given = self._queue.popitem(last=False)
            self._holders.add(successor)
            given.set()
