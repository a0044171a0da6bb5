"""Which fact each of the machine's timers states when it rings."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from inspan_core.effects import Timer
from inspan_core.events import Event, ExpiryReached, RetryDue, WindowEnded

TIMER_EVENTS: Mapping[Timer, Callable[..., Event]] = {
    Timer.WINDOW: WindowEnded,
    Timer.RETRY: RetryDue,
    Timer.LEASE: ExpiryReached,
}
