"""Simulates a placement scheme: its costs when a broker fails, and when brokers are added."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow
from pyspark.sql import SparkSession

from regent.core.placement.replica_placer import RANDOM, IndexScope, Strategy
from regent.core.protocol.placement import PlacementBroker, PlacementSpec, PlaceTopicsRequest
from regent.jobs.placement_job import placed_tables
from regent.jobs.reports.balance import Balance
from regent.jobs.reports.replica_arrays import (
    Counts,
    Positions,
    ReplicaArrays,
    pair_counts,
    replica_arrays,
)

UNIFORM: Final = "random"
"""A scheme for comparison only: random brokers, without racks."""

INTERLEAVED: Final = "interleaved"
BLOCKS: Final = "blocks"

# The usual form of each scheme: Kafka's tools begin every topic at a random broker.
_COUNTED_FROM: Final = {
    Strategy.RING: ("0", IndexScope.BATCH),
    Strategy.COPYSET: ("0", IndexScope.BATCH),
    Strategy.KAFKA: (RANDOM, IndexScope.PER_TOPIC),
    Strategy.RACK_AWARE: (RANDOM, IndexScope.PER_TOPIC),
}


class TrialSetting(NamedTuple):
    """The partitions to place, and the brokers 0, 1, 2 …, in ``racks`` racks, 0 for none.

    ``rack_layout``: with ``interleaved`` neighbouring ids are in different racks, with ``blocks``
    in the same one. ``scatter_width`` None: the default.
    """

    brokers: int
    partitions: int
    factor: int
    racks: int
    rack_layout: str
    partitions_per_topic: int
    scatter_width: int | None
    seed: int


class FailureLoad(NamedTuple):
    """The load of the others after the failure of one broker; by position of that broker.

    ``heirs``: the number of brokers that take over its leaderships. ``busiest_leader``: the largest
    number of partitions that one of them leads then. ``sources``: the number of leaders from which
    new followers copy its replicas. ``busiest_source``: the most replicas copied from one.
    """

    heirs: Counts
    busiest_leader: Counts
    sources: Counts
    busiest_source: Counts


class GrowthCost(NamedTuple):
    """Replicas that move when brokers are added: if placed again, and the minimum."""

    added: int
    recomputed: int
    minimum: int


class Trial(NamedTuple):
    """The results for one strategy."""

    balance: Balance
    failure: FailureLoad | None
    growth: GrowthCost | None
    seconds: float

    @property
    def fullest(self) -> float:
        """The replicas of the fullest broker, times the mean."""
        replicas = self.balance.loads["replicas"]
        return times_the_mean(replicas.max(), replicas)

    @property
    def busiest_leader(self) -> float:
        """The partitions of the busiest leader after one failure, times the mean before."""
        assert self.failure is not None
        most = self.failure.busiest_leader.max()
        return times_the_mean(most, self.balance.loads["preferred leaders"])


def times_the_mean(value: np.int64, loads: Counts) -> float:
    """Return a load by the mean one; 0 if there is none."""
    mean = float(loads.mean())
    return int(value) / mean if mean else 0.0


def rack_names(setting: TrialSetting, added: int = 0) -> list[str | None]:
    """Return the rack of each broker; ``added`` ones are distributed over the racks."""
    if not setting.racks:
        return [None] * (setting.brokers + added)
    width = len(str(setting.racks - 1))
    numbers = [
        broker % setting.racks
        if setting.rack_layout == INTERLEAVED or broker >= setting.brokers
        else broker * setting.racks // setting.brokers
        for broker in range(setting.brokers + added)
    ]
    return [f"rack-{number:0{width}d}" for number in numbers]


def placement_request(
    setting: TrialSetting, strategy: Strategy, added: int = 0
) -> PlaceTopicsRequest:
    """Return the request of the placement job; the last topic may be smaller."""
    size = setting.partitions_per_topic
    topics = tuple(
        PlacementSpec(f"t{n // size:08d}", min(size, setting.partitions - n), setting.factor, 0)
        for n in range(0, setting.partitions, size)
    )
    start_index, index = _COUNTED_FROM[strategy]
    width = setting.scatter_width if strategy is Strategy.COPYSET else None
    return PlaceTopicsRequest(
        topics,
        tuple(PlacementBroker(b, rack, 0) for b, rack in enumerate(rack_names(setting, added))),
        strategy,
        start_index,
        index,
        setting.seed,
        scatter_width=width or 0,
        copyset_seed=setting.seed,
    )


def place_on_paper(
    spark: SparkSession, setting: TrialSetting, strategy: str, added: int = 0
) -> ReplicaArrays:
    """Place all partitions; their sequence is the same for every strategy."""
    brokers = setting.brokers + added
    if strategy == UNIFORM:
        rng = np.random.default_rng(setting.seed)
        replicas = place_uniformly(rng, setting.partitions, setting.factor, brokers)
        return ReplicaArrays(np.arange(brokers), {setting.factor: replicas})
    request = placement_request(setting, Strategy(strategy), added)
    chunks = [c for table in placed_tables(spark, request) for c in table["replicas"].chunks]
    return replica_arrays(pyarrow.chunked_array(chunks), range(brokers))


def place_uniformly(
    rng: np.random.Generator, partitions: int, factor: int, brokers: int
) -> Positions:
    """Draw ``factor`` different brokers for each partition, all choices equally likely."""
    replicas = np.empty((partitions, factor), np.int32)
    for j in range(factor):
        # One of the free brokers: skip the taken ones, the smallest first.
        drawn = rng.integers(0, brokers - j, partitions, np.int32)
        for taken in np.sort(replicas[:, :j], axis=1).T:
            drawn += drawn >= taken
        replicas[:, j] = drawn
    return replicas


def failure_load(replicas: Positions, brokers: int) -> FailureLoad | None:
    """Let each broker fail alone; the second replica leads then. None: there is none."""
    if replicas.shape[1] < 2:
        return None
    columns = np.ascontiguousarray(replicas.T)
    first, second, *_ = columns
    leading = np.bincount(first, minlength=brokers)
    copied = [(first, second), *((follower, first) for follower in columns[1:])]
    heirs, busiest_leader, sources, busiest_source = [], [], [], []
    for low, rows in pair_counts([(first, second)], brokers):
        heirs.append((rows > 0).sum(axis=1))
        after = rows + leading
        after[np.arange(len(rows)), np.arange(low, low + len(rows))] = 0  # the one that failed
        busiest_leader.append(after.max(axis=1))
    for _, rows in pair_counts(copied, brokers):
        sources.append((rows > 0).sum(axis=1))
        busiest_source.append(rows.max(axis=1))
    return FailureLoad(*map(np.concatenate, (heirs, busiest_leader, sources, busiest_source)))


def growth_cost(before: ReplicaArrays, after: ReplicaArrays) -> GrowthCost:
    """Compare two placements of the same partitions, the second on more brokers."""
    moved = sum(
        replicas_moved(before.by_factor[factor], replicas)
        for factor, replicas in after.by_factor.items()
    )
    loads = np.zeros(after.brokers, np.int64)
    loads[: before.brokers] = before.replicas_per_broker()
    return GrowthCost(after.brokers - before.brokers, moved, fewest_moves(loads))


def replicas_moved(before: Positions, after: Positions) -> int:
    """Count the replicas on brokers that did not hold their partition before."""
    moved = 0
    for column in after.T:
        is_new = np.ones(len(column), bool)
        for old in before.T:
            is_new &= column != old
        moved += int(is_new.sum())
    return moved


def fewest_moves(loads: Counts) -> int:
    """Return the fewest moves until loads differ by at most one."""
    floor, left = divmod(int(loads.sum()), len(loads))
    above = int((loads > floor).sum())  # of these, as many as are left keep one more
    return int(loads.sum()) - int(np.minimum(loads, floor).sum()) - min(left, above)


def strategies_to_compare(setting: TrialSetting) -> Sequence[str]:
    """Return the schemes that differ in this setting."""
    return [s for s in (*Strategy, UNIFORM) if setting.racks or s != Strategy.RACK_AWARE]
