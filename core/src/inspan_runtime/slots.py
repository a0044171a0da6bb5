"""Concurrency slots: how many runs of a server may be under way at once."""

from __future__ import annotations

import anyio


class SlotPool:
    """A bounded number of slots, given out in the order of asking.

    Args:
        total: How many there are, at least 1.
    """

    def __init__(self, total: int) -> None:
        self._total = total
        self._limiter: anyio.CapacityLimiter | None = None

    async def take(self, holder: object) -> None:
        """Wait for a slot for `holder`."""
        if self._limiter is None:
            self._limiter = anyio.CapacityLimiter(self._total)
        await self._limiter.acquire_on_behalf_of(holder)

    @property
    def taken(self) -> int:
        """How many are given out."""
        return 0 if self._limiter is None else self._limiter.borrowed_tokens

    def give_back(self, holder: object) -> None:
        """Return the slot of `holder`."""
        if self._limiter is not None:
            self._limiter.release_on_behalf_of(holder)
