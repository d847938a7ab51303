"""How soon followers ask a leader again after its answers: what a slow broker shows first.

A healthy follower fetches again within milliseconds, also when nothing is written. A broker whose
process is stopped for a moment, whose disk is slow or whose machine is overloaded does not, long
before it leaves an ISR. The leader's own pauses would look the same. So the leader calls ``tick``
every ``TICK_S``, and what was measured around a late tick does not count. Late ticks are pauses of
this process: no leader sees those that are shorter than the wait of a fetch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from math import ceil
from typing import Final

from regent.core.model import BrokerId
from regent.core.protocol.broker import FollowerPace
from regent.core.timers import RecentDurations, count_beyond, quantile, time_beyond

TICK_S: Final = 0.25
SLOW_FETCH_MS: Final = 500
"""A follower that takes longer to ask again is slow: others take milliseconds."""
_ABSENT_MS: Final = 200
"""Shorter gaps are its work: a follower that fetches much does nothing else."""
_LATE_S: Final = 0.2  # a tick, because this process could not run
_IDLE_S: Final = 5.0  # without any fetch: there is nothing to measure


@dataclass(slots=True)
class _Follower:
    """``answered_s``: when its last fetch was answered; None: a fetch waits for its answer."""

    gaps: RecentDurations = field(default_factory=RecentDurations)
    answered_s: float | None = None


class FollowerTimes:
    """The followers of one leader. Times are monotonic seconds.

    One thread writes, any thread reads.
    """

    def __init__(self) -> None:
        self._followers: dict[BrokerId, _Follower] = {}
        self._ticks = False
        self._ticked_s = 0.0
        self._pauses = RecentDurations()
        self._woke_s = 0.0  # the last late tick
        self._fetched_s = 0.0

    def tick(self, now_s: float) -> bool:
        """Note that this process runs; return whether there is still something to measure."""
        late_s = now_s - self._ticked_s - TICK_S
        if late_s > _LATE_S:
            self._woke_s = now_s
            if self._ticks:
                self._pauses.record(late_s * 1000, now_s)
        self._ticked_s = now_s
        self._ticks = now_s - self._fetched_s < _IDLE_S
        return self._ticks

    def paused_ms(self, now_s: float) -> int:
        """Return how much of the last minute this process could not run, in pauses above 0.2 s."""
        return round(time_beyond(self._pauses.counts(now_s), 0.0))

    def on_fetch(self, follower: BrokerId, now_s: float, *, goes_on: bool) -> None:
        """Note a fetch; ``goes_on``: it belongs to the session of the one before."""
        self._fetched_s = now_s
        of_follower = self._followers.setdefault(follower, _Follower())
        answered_s, of_follower.answered_s = of_follower.answered_s, None
        runs = now_s - self._ticked_s <= TICK_S + _LATE_S
        if goes_on and runs and answered_s is not None and answered_s > self._woke_s:
            of_follower.gaps.record((now_s - answered_s) * 1000, now_s)

    def on_answer(self, follower: BrokerId, now_s: float) -> None:
        """Note the answer to a fetch."""
        self._followers.setdefault(follower, _Follower()).answered_s = now_s

    def paces(self, followers: Collection[BrokerId], now_s: float) -> Iterator[FollowerPace]:
        """Yield what is known of those brokers, which follow this one now."""
        for broker_id in sorted(followers):
            of_follower = self._followers.get(broker_id)
            if of_follower is None:
                continue
            counts = of_follower.gaps.counts(now_s)
            answered_s, fetches = of_follower.answered_s, sum(counts)
            median_ms, slowest_ms = (
                ceil(quantile(counts, share)) if fetches else 0 for share in (0.5, 0.99)
            )
            silent_ms = 0 if answered_s is None else round((now_s - answered_s) * 1000)
            slow = count_beyond(counts, SLOW_FETCH_MS)
            yield FollowerPace(
                broker_id,
                fetches,
                median_ms,
                slowest_ms,
                slow,
                max(silent_ms, 0),
                absent_ms=round(time_beyond(counts, _ABSENT_MS)),
            )
