"""The time of the event loop that runs."""

from __future__ import annotations

import asyncio

import anyio


def now() -> float:
    """Monotonic seconds, as `anyio.current_time`; asked some thirty times a session, so without a search."""
    try:
        return asyncio.get_running_loop().time()
    except RuntimeError:
        return anyio.current_time()
