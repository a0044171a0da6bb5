"""What is due at a time, for many sessions in one task: retained answers, and the budgets of orders.

Nearly all that is set is over long before its time, so what is set waits in a list first: only what is still
wanted when the list is full, or when something is due, is sorted in.
"""

from __future__ import annotations

import heapq
import itertools
import logging
from collections.abc import Callable
from math import inf
from typing import Protocol

import anyio

from inspan_runtime.room import Spawn
from inspan_runtime.times import now

YOUNG_LIMIT = 256
SORTED_LEAST = 1024
"""So many stay sorted in without a look at how many of them are still wanted."""

log = logging.getLogger(__name__)


class Due(Protocol):
    """Something that is to happen at a time.

    Attributes:
        at: When, on the loop's clock in seconds; it never changes.
        is_off: Whether it is not wanted any more.
    """

    @property
    def at(self) -> float: ...

    @property
    def is_off(self) -> bool: ...

    def ring(self) -> None:
        """Let it happen; called once at most, and never when it is off. It must not wait for anything."""
        ...


class Alarm:
    """A call that is due at a time; `cancel` makes it ring for nobody."""

    __slots__ = ("_call", "at")

    def __init__(self, at: float, call: Callable[[], None]) -> None:
        self.at = at
        self._call: Callable[[], None] | None = call

    @property
    def is_off(self) -> bool:
        """Whether it was cancelled, or has rung."""
        return self._call is None

    def cancel(self) -> None:
        """Forget it."""
        self._call = None

    def ring(self) -> None:
        """Call."""
        call, self._call = self._call, None
        if call is not None:
            call()


class Alarms:
    """Rings what is due, in the order of times. Its task lives while anything is wanted.

    Args:
        spawn: Starts that task.
    """

    __slots__ = ("_counter", "_heap", "_heap_limit", "_scope", "_spawn", "_wakes_at", "_young")

    def __init__(self, spawn: Spawn) -> None:
        self._spawn = spawn
        self._young: list[Due] = []
        self._heap: list[tuple[float, int, Due]] = []
        self._heap_limit = SORTED_LEAST
        self._counter = itertools.count()
        self._scope: anyio.CancelScope | None = None
        self._wakes_at = inf

    def set(self, delay_s: float, call: Callable[[], None]) -> Alarm:
        """Have `call` called after so many seconds; it must not wait for anything."""
        alarm = Alarm(now() + delay_s, call)
        self.add(alarm)
        return alarm

    def add(self, due: Due) -> None:
        """Have something rung at its time."""
        self._young.append(due)
        if due.at < self._wakes_at:
            if self._wakes_at == inf:
                self._spawn(self._run)
            elif self._scope is not None:
                self._scope.cancel()
            self._wakes_at = due.at
        elif len(self._young) >= YOUNG_LIMIT:
            self._sort_in()

    def __len__(self) -> int:
        """How many are kept, those that are not wanted any more included."""
        return len(self._young) + len(self._heap)

    def _sort_in(self) -> None:
        young, self._young = self._young, []
        for due in young:
            if not due.is_off:
                heapq.heappush(self._heap, (due.at, next(self._counter), due))
        if len(self._heap) > self._heap_limit:
            self._heap = [entry for entry in self._heap if not entry[2].is_off]
            heapq.heapify(self._heap)
            self._heap_limit = max(2 * len(self._heap), SORTED_LEAST)

    async def _run(self) -> None:
        try:
            while self._wakes_at != inf:
                with anyio.CancelScope() as self._scope:
                    # What it was set for may be off by then; to sleep longer would be to be woken again.
                    await anyio.sleep_until(self._wakes_at)
                if now() >= self._wakes_at:
                    self._wakes_at = self._ring_due()
        finally:
            self._wakes_at, self._scope = inf, None

    def _ring_due(self) -> float:
        """Ring what is due; returns when the next is."""
        time = now()
        # While they ring others are set, which may be due before them all.
        self._wakes_at = -inf
        self._sort_in()
        while self._heap:
            at, _, due = self._heap[0]
            if at > time and not due.is_off:
                return at
            heapq.heappop(self._heap)
            if not due.is_off:
                try:
                    due.ring()
                except Exception:  # the fence between sessions: one that breaks must not silence the others
                    log.exception("an alarm failed")
            if not self._heap or self._young:
                self._sort_in()
        return inf
