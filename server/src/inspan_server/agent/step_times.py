"""How long steps took: a histogram that costs a look-up and an addition for each step."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import accumulate

from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

BUCKETS_S = (0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 60.0, 600.0, 3600.0, 21600.0)
_BOUNDS = [*map(str, BUCKETS_S), "+Inf"]


class StepTimes(Collector):
    """Counts steps by kind and duration; everything happens on one event loop."""

    def __init__(self, kinds: Iterable[type]) -> None:
        self._counts = {kind: [0] * len(_BOUNDS) for kind in kinds}
        self._sums_s = dict.fromkeys(self._counts, 0.0)

    def add(self, kind: type, seconds: float) -> None:
        """One step of a kind took so long."""
        self._counts[kind][bisect_left(BUCKETS_S, seconds)] += 1
        self._sums_s[kind] += seconds

    def collect(self) -> Iterator[Metric]:
        """Tell them."""
        family = HistogramMetricFamily("inspan_step_seconds", "From an order to its answer.", labels=["step"])
        for kind, counts in self._counts.items():
            buckets = list(zip(_BOUNDS, accumulate(counts), strict=True))
            family.add_metric([kind.__name__], buckets, self._sums_s[kind])
        yield family
