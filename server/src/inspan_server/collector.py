"""Python's collector of cycles, set for a server that holds many sessions for long."""

from __future__ import annotations

import gc

THRESHOLDS = (20_000, 20, 20)
"""Sessions are freed without it. The usual thresholds have it look at all of them again and again."""


def tune_collector() -> None:
    """Leave what is loaded by now out of every collection, and collect less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
