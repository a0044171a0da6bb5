"""Pauses between attempts, spread so that many who wait do not ask all at once."""

from __future__ import annotations

import zlib

FIRST_RETRY_S, LONGEST_RETRY_S = 0.1, 5.0
PARTS = 1000


def spread(pause_s: float, name: str) -> float:
    """A pause of half to the whole length, always the same for a name: what is replayed goes the same way."""
    return pause_s * (0.5 + zlib.crc32(name.encode()) % PARTS / (2 * PARTS))
