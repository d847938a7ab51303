"""How fast a client uses what its quota limits.

Mirrors ``org.apache.kafka.common.metrics.stats.Rate`` and ``TokenBucket``, and
``kafka.utils.QuotaUtils``. Times are of one monotonic clock, in milliseconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from regent.core.quota.quota_config import QuotaWindow


@dataclass(slots=True)
class _Sample:
    """What was recorded from ``begin_ms`` to ``last_ms``."""

    begin_ms: int
    last_ms: int
    sum: float


class Rate:
    """Amounts a second, over the samples of a window. Not thread-safe."""

    __slots__ = ("_samples", "_sum", "_window")

    def __init__(self, window: QuotaWindow) -> None:
        self._window = window
        self._samples: deque[_Sample] = deque()
        self._sum = 0.0

    def record(self, amount: float, now_ms: int) -> None:
        """Count an amount. A negative one takes back what was recorded."""
        samples = self._samples
        if not samples or now_ms - samples[-1].begin_ms >= self._window.sample_ms:
            samples.append(_Sample(now_ms, now_ms, 0.0))
        samples[-1].sum += amount
        samples[-1].last_ms = now_ms
        self._sum += amount

    def throttle_time_ms(self, bound: float, now_ms: int) -> int:
        """Return how long nothing must be recorded until the rate is ``bound``; 0: it is below."""
        self._drop_old(now_ms)
        window_ms = self._window_ms(now_ms, self._samples)
        excess = self._sum * 1_000 / window_ms - bound
        return round(excess / bound * window_ms) if excess > 0 else 0

    def a_second(self, now_ms: int) -> float:
        """Return the rate. It changes nothing, so that any thread may ask."""
        # Without the GIL ``copy`` is atomic, and ``list`` of a deque is not.
        samples = [sample for sample in self._samples.copy() if not self._is_old(sample, now_ms)]
        return sum(sample.sum for sample in samples) * 1_000 / self._window_ms(now_ms, samples)

    def _drop_old(self, now_ms: int) -> None:
        while self._samples and self._is_old(self._samples[0], now_ms):
            self._sum -= self._samples.popleft().sum
        if not self._samples:
            self._sum = 0.0  # without the rounding errors of a long time

    def _is_old(self, sample: _Sample, now_ms: int) -> bool:
        return now_ms - sample.last_ms >= self._window.samples * self._window.sample_ms

    def _window_ms(self, now_ms: int, samples: Sequence[_Sample]) -> int:
        """Return the time that samples stand for: all samples of a window but one at least."""
        count, sample_ms = self._window
        elapsed_ms = now_ms - samples[0].begin_ms if samples else 0
        missing = max(count - 1 - elapsed_ms // sample_ms, 0)
        return elapsed_ms + missing * sample_ms


class TokenBucket:
    """Permits, of which ``bound`` come a second, up to those of a window. Not thread-safe."""

    __slots__ = ("_tokens", "_updated_ms", "_window")

    def __init__(self, window: QuotaWindow) -> None:
        self._window = window
        self._tokens: float | None = None  # the bucket is full
        self._updated_ms = 0

    def record(self, permits: float, bound: float, now_ms: int) -> None:
        """Take permits. There may be fewer than none afterwards."""
        self._tokens = self._refilled(bound, now_ms) - permits

    def throttle_time_ms(self, bound: float, now_ms: int) -> int:
        """Return how long it takes until there are not fewer than no permits."""
        return max(round(-self._refilled(bound, now_ms) / bound * 1_000), 0)

    def _refilled(self, bound: float, now_ms: int) -> float:
        burst = bound * self._window.samples * self._window.sample_ms / 1_000
        if self._tokens is not None:
            new = bound * (now_ms - self._updated_ms) / 1_000
            burst = min(burst, self._tokens + new)
        self._tokens, self._updated_ms = burst, now_ms
        return burst
