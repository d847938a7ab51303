"""How fast readers and writers move in partitions, and when the readers have read everything."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Hashable, Mapping
from time import monotonic
from typing import Final, NamedTuple, TypeAlias

from regent.core.model import TopicPartition
from regent.core.quantities import span_text

_RATE_S: Final = 10.0  # most consumers commit every five seconds
_PAIR: Final = 2
_WITHOUT_MEMBERS: Final = ("Empty", "Dead")

Positions: TypeAlias = Mapping[TopicPartition, tuple[int, int]]
"""The committed offset and the end of each partition."""


class _Sample(NamedTuple):
    """Positions at a monotonic moment."""

    at_s: float
    told: Positions


class LagPace(NamedTuple):
    """The lag in records, and the rates in a second; None: unknown."""

    lag: int | None
    read_per_s: float | None
    written_per_s: float | None

    @property
    def seconds_to_clear(self) -> float | None:
        """How long until all is read at these rates; None: never, or unknown."""
        if self.lag is None or self.read_per_s is None or self.written_per_s is None:
            return 0.0 if self.lag == 0 else None
        gained = self.read_per_s - self.written_per_s
        return 0.0 if not self.lag else self.lag / gained if gained > 0 else None

    @property
    def time_to_clear(self) -> str | None:
        """When all is read, in words; None: unknown."""
        seconds = self.seconds_to_clear
        if seconds is None:
            return None if self.lag is None or self.read_per_s is None else "never at this rate"
        return "now" if not self.lag else span_text(max(seconds, 1.0))


class LagPaces:
    """Remembers the positions of readers; rates are those of the last ten seconds, if it can.

    A reader is a group, or a part of one. What was seen ``forget_s`` before a look is no measure.
    """

    def __init__(self, forget_s: float = math.inf) -> None:
        self._forget_s = forget_s
        self._lock = threading.Lock()
        self._samples: dict[Hashable, deque[_Sample]] = {}

    def look(self, reader: Hashable, told: Positions, *, is_whole: bool, state: str) -> LagPace:
        """Return the pace of a reader; not ``is_whole``: some of its positions are unknown.

        ``state`` is that of its group.
        """
        lag = sum(max(end - offset, 0) for offset, end in told.values()) if is_whole else None
        with self._lock:
            now_s = monotonic()
            samples = self._samples.setdefault(reader, deque())
            if samples and samples[-1].at_s < now_s - self._forget_s:
                samples.clear()
            samples.append(_Sample(now_s, told))
            while len(samples) > _PAIR and samples[1].at_s <= now_s - _RATE_S:
                samples.popleft()
            return LagPace(lag, *_rates(samples[0], samples[-1], state))

    def keep(self, readers: set[Hashable]) -> None:
        """Forget all other readers."""
        with self._lock:
            for reader in self._samples.keys() - readers:
                del self._samples[reader]


def _rates(before: _Sample, now: _Sample, state: str) -> tuple[float | None, float | None]:
    """Return rates in a second. Without a commit that of members is unknown for ten seconds."""
    seconds = now.at_s - before.at_s
    if seconds <= 0 or now.told.keys() != before.told.keys():
        return None, None
    read, written = (
        sum(pair[i] for pair in now.told.values()) - sum(pair[i] for pair in before.told.values())
        for i in (0, 1)
    )
    is_early = read == 0 and seconds < _RATE_S and state not in _WITHOUT_MEMBERS
    return None if is_early else max(read, 0) / seconds, max(written, 0) / seconds
