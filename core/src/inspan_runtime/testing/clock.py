"""Virtual time: it passes only when everything that could happen now has happened."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable

Happening = Callable[[], None]

START_S = 1000.0
"""Not zero: a session must not depend on where the clock began."""


class VirtualClock:
    """The time of a fuzzed world, and what is going to happen in it without any server.

    Attributes:
        now: Seconds; never goes back.
    """

    def __init__(self) -> None:
        self.now = START_S
        self._order = itertools.count()
        self._happenings: list[tuple[float, int, Happening]] = []

    def later(self, delay_s: float, happening: Happening) -> None:
        """Have something happen after `delay_s` seconds, whoever lives then."""
        heapq.heappush(self._happenings, (self.now + delay_s, next(self._order), happening))

    @property
    def next_at(self) -> float | None:
        """When something happens next, or None."""
        return self._happenings[0][0] if self._happenings else None

    def pass_to(self, at: float) -> None:
        """Let time pass to `at` without anything happening on the way."""
        self.now = max(self.now, at)

    def happen(self) -> None:
        """Let time pass to the next happening, and have it happen."""
        at, _, happening = heapq.heappop(self._happenings)
        self.pass_to(at)
        happening()
