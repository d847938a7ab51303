"""Timers for metrics: how often something happened and how long it took, as Yammer's in Kafka.

One thread writes, any thread reads. A reader may see a count before the time that belongs to it,
but never an invalid value.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

BUCKETS_MS: Sequence[float] = (1, 5, 10, 50, 100, 500, 1_000, 5_000, 30_000)


class Timer:
    """Durations in milliseconds: how many, their sum, the extremes, and how many up to each bound.

    ``minimum_ms`` and ``maximum_ms`` are 0 while nothing was recorded.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self.count = 0
        self.total_ms = 0.0
        self.minimum_ms = 0.0
        self.maximum_ms = 0.0
        self._buckets = [0] * (len(BUCKETS_MS) + 1)

    def record(self, duration_ms: float) -> None:
        """Add one duration."""
        self.minimum_ms = min(self.minimum_ms, duration_ms) if self.count else duration_ms
        self.maximum_ms = max(self.maximum_ms, duration_ms)
        self.count += 1
        self.total_ms += duration_ms
        self._buckets[bisect_left(BUCKETS_MS, duration_ms)] += 1

    def cumulative(self) -> list[tuple[str, float]]:
        """Return Prometheus buckets: the bound, and how many were not longer."""
        bounds = [*map(str, BUCKETS_MS), "+Inf"]
        total, cumulative = 0, []
        for bound, count in zip(bounds, list(self._buckets), strict=True):
            total += count
            cumulative.append((bound, float(total)))
        return cumulative
