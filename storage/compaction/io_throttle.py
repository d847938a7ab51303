"""Limits how many bytes a second a background task reads and writes. Mirrors ``Throttler``."""

from __future__ import annotations

from collections.abc import Callable

_WINDOW_S = 0.3


class IoThrottle:
    """Not thread-safe. ``clock`` returns seconds; ``wait`` waits for some."""

    def __init__(
        self, bytes_per_s: float, clock: Callable[[], float], wait: Callable[[float], object]
    ) -> None:
        self.bytes_per_s = bytes_per_s
        self._clock = clock
        self._wait = wait
        self._begun = clock()
        self._bytes = 0

    def note(self, size: int) -> None:
        """Count bytes. After each window of 300 ms, wait for as long as they were too many."""
        self._bytes += size
        now = self._clock()
        elapsed = now - self._begun
        if elapsed < _WINDOW_S and self._bytes < self.bytes_per_s * _WINDOW_S:
            return
        excess_s = self._bytes / self.bytes_per_s - elapsed
        if excess_s > 0:
            self._wait(excess_s)
        self._begun, self._bytes = self._clock(), 0
