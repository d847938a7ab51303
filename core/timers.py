"""Durations for metrics: how often something happened and how long it took, as Yammer's in Kafka.

One thread writes, any thread reads. A reader may see a count before the time that belongs to it,
but never an invalid value.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

_GROWTH: Final = 1.25
BOUNDS_MS: Final[Sequence[float]] = tuple(0.01 * _GROWTH**n for n in range(71))
"""The upper bounds of the counted ranges, from 10 microseconds to one minute; more is beyond."""

HALF_S: Final = 30.0


class Durations:
    """Durations in milliseconds: how many in each range, and their sum."""

    __slots__ = ("counts", "total_ms")

    def __init__(self) -> None:
        self.total_ms = 0.0
        self.counts = [0] * (len(BOUNDS_MS) + 1)
        """How many in each range; the last one has no bound."""

    @property
    def count(self) -> int:
        """How many."""
        return sum(self.counts)

    def record(self, duration_ms: float) -> None:
        """Add one duration."""
        self.total_ms += duration_ms
        self.counts[bisect_left(BOUNDS_MS, duration_ms)] += 1


class Timer(Durations):
    """Durations with their extremes, which are 0 while nothing was recorded."""

    __slots__ = ("maximum_ms", "minimum_ms")

    def __init__(self) -> None:
        super().__init__()
        self.minimum_ms = 0.0
        self.maximum_ms = 0.0

    def clear(self) -> None:
        """Forget everything."""
        self.counts = [0] * len(self.counts)
        self.total_ms = self.minimum_ms = self.maximum_ms = 0.0

    def record(self, duration_ms: float) -> None:
        """Add one duration."""
        self.minimum_ms = min(self.minimum_ms, duration_ms) if self.count else duration_ms
        self.maximum_ms = max(self.maximum_ms, duration_ms)
        super().record(duration_ms)


class RecentDurations:
    """The durations of about the last minute: of the present half minute and the one before.

    Times are monotonic seconds. One thread writes, any thread reads.
    """

    __slots__ = ("_halves",)

    def __init__(self) -> None:
        self._halves: tuple[float, Durations, Durations] = (0.0, Durations(), Durations())
        """When the present half began, it, and the one before."""

    def record(self, duration_ms: float, now_s: float) -> None:
        """Add one duration."""
        began_s, present, _ = self._halves
        if now_s - began_s >= HALF_S:
            before = present if now_s - began_s < 2 * HALF_S else Durations()
            present = Durations()
            self._halves = (now_s, present, before)
        present.record(duration_ms)

    def counts(self, now_s: float) -> Sequence[int]:
        """Return how many are in each range of ``BOUNDS_MS``."""
        began_s, present, before = self._halves
        if now_s - began_s >= 2 * HALF_S:
            return (0,) * len(present.counts)
        if now_s - began_s >= HALF_S:
            return tuple(present.counts)
        return tuple(a + b for a, b in zip(present.counts, before.counts, strict=True))


def count_beyond(counts: Sequence[int], limit_ms: float) -> int:
    """Return how many are certainly longer than ``limit_ms``."""
    return sum(counts[bisect_left(BOUNDS_MS, limit_ms) + 1 :])


def time_beyond(counts: Sequence[int], limit_ms: float) -> float:
    """Return how long those that are certainly longer than ``limit_ms`` took together, at least."""
    first = bisect_left(BOUNDS_MS, limit_ms) + 1
    return sum(n * bound for n, bound in zip(counts[first:], BOUNDS_MS[first - 1 :], strict=True))


def quantile(counts: Sequence[float], share: float) -> float:
    """Return the duration that ``share`` of the counted ones do not exceed; NaN if there are none.

    It is interpolated between the bounds of its range, so it may be wrong by a tenth.
    """
    rank = share * sum(counts)
    if not rank:
        return float("nan")
    below = 0.0
    for number, count in enumerate(counts[:-1]):
        if below + count >= rank:
            first = BOUNDS_MS[number - 1] if number else 0.0
            return first + (BOUNDS_MS[number] - first) * (rank - below) / count
        below += count
    return BOUNDS_MS[-1]
