"""What is simulated: the latency of commits, a replica that stalls, pauses, and deaths."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from regent.designs.votes.analysis import Condition
from regent.designs.votes.model_cluster import ModelCluster
from regent.designs.votes.replication_model import ModelTimes, ReplicationScheme

_APART_MS: Final = 500.0  # records so far apart do not delay each other
_LONG_FOR_A_COMMIT_MS: Final = 30.0
_RECORDS_OF_A_LIFE: Final = 10


@dataclass(frozen=True)
class LatencyTrial:
    """The latencies of commits as the producer sees them, in ascending sequence.

    ``at_risk`` is the share of records that, when they were acknowledged, no replica had beyond
    those that the commit waited for.
    """

    latencies_ms: tuple[float, ...]
    at_risk: float

    def quantile(self, share: float) -> float:
        """Return the time in which ``share`` of the records were acknowledged."""
        return self.latencies_ms[int(share * len(self.latencies_ms))]


@dataclass(frozen=True)
class DeathTrial:
    """Replicas die, each in the moment of an acknowledgement; then they come back.

    Losses are acknowledged records that cannot be read; None: nothing can be read. ``writes`` says
    whether records were acknowledged then.
    """

    lost: int | None
    writes: bool
    lost_after_one_more: int | None
    writes_after_one_more: bool
    acknowledged: int
    lost_if_none_comes_back: int
    lost_when_first_is_back: int | None
    writes_when_first_is_back: bool
    lost_when_all_are_back: int | None


def measure_latency(
    scheme: ReplicationScheme, times: ModelTimes, seed: int, records: int, condition: Condition
) -> LatencyTrial | None:
    """Write records one after the other; None if they are not acknowledged."""
    with ModelCluster(scheme, times, seed) as cluster:
        if condition is Condition.ONE_SLOW:
            cluster.network.slow.add(scheme.replicas - 1)
        elif condition is Condition.ONE_STALLED:
            _let_one_stall(cluster)
        written = [cluster.write(_APART_MS) for _ in range(records)]
        waits = [cluster.wait_of(record) for record in written]
        latencies_ms = sorted(wait for wait in waits if wait is not None)
        if len(latencies_ms) < records:
            return None
        copies = [cluster.journal.copies[record] for record in written]
        at_risk = sum(count <= scheme.acknowledgements for count in copies)
        return LatencyTrial(tuple(latencies_ms), at_risk / records)


def measure_stall(scheme: ReplicationScheme, times: ModelTimes, seed: int) -> float | None:
    """Let a follower stall, and return how long the next record waits; None: until it goes on."""
    with ModelCluster(scheme, times, seed) as cluster:
        return cluster.wait_of(_let_one_stall(cluster))


def measure_death(
    scheme: ReplicationScheme, times: ModelTimes, seed: int, *, is_leader: bool
) -> float | None:
    """Kill the leader, or a follower, and return how long the next record waits.

    None: until the replica is back.
    """
    with ModelCluster(scheme, times, seed) as cluster:
        cluster.network.run_for(cluster.dice.uniform(0, times.silence_ms))
        cluster.network.kill(0 if is_leader else scheme.replicas - 1)
        return cluster.wait_of(cluster.write(5 * times.silence_ms))


def let_replicas_die(
    scheme: ReplicationScheme, times: ModelTimes, seed: int, failures: int, *, at_once: bool = False
) -> DeathTrial:
    """Kill ``failures`` replicas while records are written, then one more; start all again.

    They die one by one, or ``at_once``; the one more is always by itself.
    """
    with ModelCluster(scheme, times, seed) as cluster:
        dead: list[int] = []
        for _ in range(failures):
            if not (dead and at_once):
                _live(cluster)
            dead.append(cluster.kill_one())
        writes, lost = _live(cluster), cluster.lost()
        dead.append(cluster.kill_one())
        writes_after, lost_after = _live(cluster), cluster.lost()
        acknowledged = len(cluster.journal.acknowledged_ms)
        lost_if_none_comes_back = cluster.missing_on_living()
        cluster.start(dead[0])
        writes_with_first, lost_with_first = _live(cluster), cluster.lost()
        for number in dead[1:]:
            cluster.start(number)
        _live(cluster)
        return DeathTrial(
            lost=lost,
            writes=writes,
            lost_after_one_more=lost_after,
            writes_after_one_more=writes_after,
            acknowledged=acknowledged,
            lost_if_none_comes_back=lost_if_none_comes_back,
            lost_when_first_is_back=lost_with_first,
            writes_when_first_is_back=writes_with_first,
            lost_when_all_are_back=cluster.lost(),
        )


def _let_one_stall(cluster: ModelCluster) -> int:
    """Stall a follower, write a record, and wait until the follower is out of the ISR."""
    lag_ms = cluster.network.times.lag_ms
    cluster.network.run_for(cluster.dice.uniform(0, lag_ms))
    cluster.network.stalled.add(cluster.scheme.replicas - 1)
    return cluster.write(2 * lag_ms)


def _live(cluster: ModelCluster) -> bool:
    """Write records, in a time in which the dead are noticed.

    End in the moment in which the last record is acknowledged, and return whether it was.
    """
    for _ in range(_RECORDS_OF_A_LIFE - 1):
        cluster.write(cluster.network.times.silence_ms / 2)
    return cluster.is_acknowledged_within(cluster.write(0), _LONG_FOR_A_COMMIT_MS)
