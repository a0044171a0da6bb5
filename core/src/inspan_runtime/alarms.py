"""The timers of many sessions in one task: a closed session that waits for its window's end costs bytes."""

from __future__ import annotations

import heapq
import itertools
import logging
from collections.abc import Callable

import anyio

from inspan_runtime.room import Spawn

log = logging.getLogger(__name__)


class Alarm:
    """One timer; `cancel` makes it ring for nobody."""

    __slots__ = ("_ring",)

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring: Callable[[], None] | None = ring

    def cancel(self) -> None:
        """Forget it."""
        self._ring = None

    def ring(self) -> None:
        """Call, unless it was cancelled."""
        ring, self._ring = self._ring, None
        if ring is not None:
            ring()


class Alarms:
    """Rings alarms in the order of their times. Its task lives while there is any.

    Args:
        spawn: Starts that task.
    """

    __slots__ = ("_counter", "_heap", "_scope", "_spawn", "_wakes_at")

    def __init__(self, spawn: Spawn) -> None:
        self._spawn = spawn
        self._heap: list[tuple[float, int, Alarm]] = []
        self._counter = itertools.count()
        self._scope: anyio.CancelScope | None = None
        self._wakes_at: float | None = None

    def set(self, delay_s: float, ring: Callable[[], None]) -> Alarm:
        """Have `ring` called after so many seconds; it must not wait for anything."""
        alarm, at = Alarm(ring), anyio.current_time() + delay_s
        heapq.heappush(self._heap, (at, next(self._counter), alarm))
        if self._wakes_at is None:
            self._wakes_at = at
            self._spawn(self._run)
        elif at < self._wakes_at and self._scope is not None:
            self._scope.cancel()
        return alarm

    async def _run(self) -> None:
        try:
            while self._heap:
                self._ring_due()
                if self._heap:
                    self._wakes_at = self._heap[0][0]
                    with anyio.CancelScope() as self._scope:
                        await anyio.sleep_until(self._wakes_at)
        finally:
            self._wakes_at = self._scope = None

    def _ring_due(self) -> None:
        now = anyio.current_time()
        while self._heap and self._heap[0][0] <= now:
            _, _, alarm = heapq.heappop(self._heap)
            try:
                alarm.ring()
            except (
                Exception
            ):  # the fence between sessions: one whose alarm breaks must not silence the others
                log.exception("an alarm failed")
