"""What is computed: order statistics of exponential times, and means of the pauses.

A commit waits for the k-th fastest of n replicas, each of which appends in an exponentially
distributed time. A leader appends first, and adds two trips. Records are far apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from math import comb, exp
from typing import Final

from regent.designs.votes.replication_model import ElectedBy, ModelTimes, ReplicationScheme

_STEPS: Final = 100  # of the numeric integration, in the average time of an append
_TAIL: Final = 1e-6


class Condition(StrEnum):
    """The state of the replicas: all are well, or one follower is slow, or appends nothing."""

    HEALTHY = "all healthy"
    ONE_SLOW = "one slow"
    ONE_STALLED = "one stalled"


@dataclass(frozen=True)
class CommitLatency:
    """The distribution of the time from a write to its acknowledgement.

    The leader and ``followers`` (without a leader: no leader, and the replicas) append;
    ``needed`` of the followers are waited for.
    """

    times: ModelTimes
    condition: Condition
    has_leader: bool
    followers: int
    needed: int

    def quantile(self, share: float) -> float:
        """Return the time in which ``share`` of the records are acknowledged."""
        return next(ms for ms, done in self._curve() if done >= share)

    def mean(self) -> float:
        """Return the average time."""
        before_ms, done_before, area = 0.0, 0.0, 0.0
        for ms, done in self._curve():
            area += (ms - before_ms) * (1 - (done_before + done) / 2)
            before_ms, done_before = ms, done
            if done > 1 - _TAIL:
                break
        return area

    def _curve(self) -> Iterator[tuple[float, float]]:
        """Yield times and the shares of records that are acknowledged by then."""
        trips = 2 * (self.has_leader + (self.needed > 0))
        step_ms = self.times.append_ms / _STEPS
        keep = exp(-1 / _STEPS)
        ms, done = 0.0, 0.0
        while True:
            yield trips * self.times.trip_ms + ms, done
            if self.has_leader:
                # Its append delays all others: d(done)/dt = (answered - done) / append_ms.
                answered = self._answered(ms + step_ms / 2)
                done = answered + (done - answered) * keep
            else:
                done = self._answered(ms + step_ms)
            ms += step_ms

    def _answered(self, ms: float) -> float:
        """Return the probability that ``needed`` followers append in ``ms``."""
        done = 1 - exp(-ms / self.times.append_ms)
        if self.condition is Condition.HEALTHY:
            return _at_least(self.needed, self.followers, done)
        others = self.followers - 1
        without = _at_least(self.needed, others, done)
        if self.condition is Condition.ONE_STALLED:
            return without
        slow_done = 1 - exp(-ms / (self.times.append_ms * self.times.slow_factor))
        return without + slow_done * (_at_least(self.needed - 1, others, done) - without)


def commit_latency(
    scheme: ReplicationScheme, times: ModelTimes, condition: Condition
) -> CommitLatency | None:
    """Return the latency, or None if nothing is committed.

    A stalled replica has left the ISR already, if the scheme has one.
    """
    leaders = int(scheme.has_leader)
    followers, needed = scheme.replicas - leaders, scheme.acknowledgements - leaders
    if condition is Condition.ONE_STALLED:
        needed -= scheme.shrinks
        if needed > followers - 1:
            return None
    return CommitLatency(times, condition, scheme.has_leader, followers, needed)


def stall_wait_ms(scheme: ReplicationScheme, times: ModelTimes) -> float | None:
    """Return how long a record waits on average when a follower stalls; None: until it goes on."""
    if scheme.shrinks:
        return 1.25 * times.lag_ms  # lag_ms, and half the time between two checks
    return _mean_without_one(scheme, times)


def death_wait_ms(scheme: ReplicationScheme, times: ModelTimes, *, is_leader: bool) -> float | None:
    """Return how long a record waits on average when the leader, or a follower, dies.

    A silence is shorter than ``lag_ms``. The milliseconds of messages are left out beside it. The
    last sign of life was half the time between two signs ago.
    """
    if scheme.shrinks:
        return times.silence_ms - times.sign_of_life_ms / 2
    if scheme.elected_by is ElectedBy.VOTES and is_leader:
        # The first of n - 1 silences, each of one to two times silence_ms, ends it.
        return times.silence_ms * (1 + 1 / scheme.replicas) - times.sign_of_life_ms / 2
    return _mean_without_one(scheme, times)


def risk_of_newest_record(scheme: ReplicationScheme, times: ModelTimes) -> float:
    """Return the probability that a record that was just acknowledged has no further copies.

    The others do not append it while the acknowledgement travels to the leader and the producer.
    """
    others = scheme.replicas - scheme.acknowledgements
    trips = 2 if scheme.has_leader else 1
    return exp(-others * trips * times.trip_ms / times.append_ms)


def loss_probability(scheme: ReplicationScheme, at_risk: float) -> float:
    """Return the probability of losing the newest record with as many replicas as it waited for.

    They are destroyed at once; every set of them is as likely. ``at_risk`` is the probability that
    no other replica has the record.
    """
    return at_risk / comb(scheme.replicas, scheme.acknowledgements)


def _mean_without_one(scheme: ReplicationScheme, times: ModelTimes) -> float | None:
    latency = commit_latency(scheme, times, Condition.ONE_STALLED)
    return None if latency is None else latency.mean()


def _at_least(needed: int, replicas: int, probability: float) -> float:
    """Return the probability that ``needed`` of ``replicas`` have done what each does by itself."""
    return sum(
        comb(replicas, k) * probability**k * (1 - probability) ** (replicas - k)
        for k in range(max(0, needed), replicas + 1)
    )
