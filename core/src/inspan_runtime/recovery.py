"""What a dead server left: until it is taken over or reaped, new work waits, but never without an end."""

from __future__ import annotations

import logging
from collections.abc import Hashable
from math import inf

import anyio

from inspan_core.session import Phase, RunPhase, Session

REAPING = frozenset({Phase.UNWINDING, Phase.CLOSING})
"""Where a restarted session is when its sandbox is being given back."""

log = logging.getLogger(__name__)


class Recovery:
    """Counts what is left. One that hangs holds up nobody else longer than the given time.

    Args:
        timeout_s: How long new work waits at most, in seconds.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._until = inf
        self._left: set[Hashable] = set()
        self._changed: anyio.Event | None = None

    def begin(self) -> None:
        """The time runs from now on."""
        self._until = anyio.current_time() + self._timeout_s

    def add(self, what: Hashable) -> None:
        """Wait for this too."""
        self._left.add(what)

    def done(self, what: Hashable) -> None:
        """It is taken over, or reaped, or not to be had now: its retries hold up nobody else."""
        if what in self._left:
            self._left.discard(what)
            if not self._left and self._changed is not None:
                self._changed.set()

    def follow(self, session: Session) -> None:
        """Look at a session after a transition."""
        if self._left and not is_owed(session):
            self.done(session.name)

    @property
    def left(self) -> int:
        """How many are left, also of those that nobody waits for any more."""
        return len(self._left)

    @property
    def is_over(self) -> bool:
        """Whether new work is let in."""
        return not self._left or anyio.current_time() >= self._until

    async def over(self) -> None:
        """Wait until new work is let in."""
        if self.is_over:
            return
        if self._changed is None:
            self._changed = anyio.Event()
        with anyio.CancelScope(deadline=self._until):
            await self._changed.wait()
            return
        log.warning("%d of a dead server's sandboxes are neither taken over nor reaped yet", len(self._left))


def is_owed(session: Session) -> bool:
    """Whether a restarted session's sandbox is neither taken over nor reaped."""
    if session.phase in REAPING:
        return True
    return session.phase is Phase.ACTIVE and session.run.phase not in (RunPhase.REST, RunPhase.QUEUED)
