"""Admits episodes at the rate that the agents can take; waiting comes before an episode's deadline."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from attrs import define, field


class QueueTimeout(Exception):
    """No place became free in time."""


@define
class Admission:
    """Places for episodes.

    Attributes:
        max_concurrent_episodes: How many run at once; None: any number.
        queue_timeout_s: How long one waits for a place, in seconds; None: for ever.
    """

    max_concurrent_episodes: int | None = None
    queue_timeout_s: float | None = None
    _places: anyio.CapacityLimiter | None = field(default=None, init=False)

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Hold a place.

        Raises:
            QueueTimeout: None became free.
        """
        if self.max_concurrent_episodes is None:
            yield
            return
        if self._places is None:
            self._places = anyio.CapacityLimiter(self.max_concurrent_episodes)
        holder = object()
        try:
            with anyio.fail_after(self.queue_timeout_s):
                await self._places.acquire_on_behalf_of(holder)
        except TimeoutError as error:
            raise QueueTimeout(
                f"all {self.max_concurrent_episodes} places were taken for {self.queue_timeout_s:g} s"
            ) from error
        try:
            yield
        finally:
            self._places.release_on_behalf_of(holder)
