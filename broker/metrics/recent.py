"""What counters have grown by in the last minute, for rates and quantiles.

Counters are remembered when they are read. So nothing is measured between two reads, and what is
counted costs no more than before.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from regent.core.timers import Durations, quantile

if TYPE_CHECKING:
    from regent.broker.metrics.metric_table import Family

WINDOW_S: Final = 60.0
_BETWEEN_S: Final = 5.0  # what is read more often is not remembered more often
QUANTILES: Final = ("0.50", "0.75", "0.95", "0.98", "0.99", "0.999")


class Recent:
    """Counters as they were in the last minute, or at the last read before. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._began = clock()
        self._seen: dict[str, deque[tuple[float, Sequence[float]]]] = {}

    def growth(self, name: str, counts: Sequence[float]) -> tuple[float, Sequence[float]]:
        """Return what the counts ``name`` have grown by, after the seconds that this took.

        They were zero when this object was made.
        """
        now, present = self._clock(), tuple(counts)
        with self._lock:
            seen = self._seen.get(name)
            if seen is None:
                seen = self._seen[name] = deque([(self._began, (0.0,) * len(present))])
            while len(seen) > 1 and seen[1][0] <= now - WINDOW_S:
                seen.popleft()
            since, before = seen[0]
            if now - seen[-1][0] >= _BETWEEN_S:
                seen.append((now, present))
        return now - since, [max(0, b - a) for a, b in zip(before, present, strict=True)]

    def rate(self, name: str, count: float) -> float:
        """Return what a counter has grown by in a second."""
        seconds, (grown,) = self.growth(name, (count,))
        return grown / seconds if seconds > 0 else 0.0

    def add_summary(self, family: Family, durations: Durations, labels: str = "") -> None:
        """Add the quantiles of the last minute, and count and sum since the start.

        Quantiles are NaN if there was nothing in the last minute.
        """
        counts = list(durations.counts)
        _, grown = self.growth(family.name + labels, counts)
        more = f"{labels[:-1]}," if labels else "{"
        for each in QUANTILES:
            value = round(quantile(grown, float(each)), 3)
            family.add(value, f'{more}quantile="{each}"}}')
        family.add(sum(counts), labels, "_count")
        family.add(round(durations.total_ms, 3), labels, "_sum")
