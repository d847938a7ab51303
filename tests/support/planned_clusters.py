"""Random clusters to plan for, and a checker that is independent of the planners."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from itertools import cycle, islice
from random import Random
from typing import NamedTuple

import numpy as np
import pyarrow

from regent.client.moves import Move
from regent.jobs.planning.model import NO_RACK, UNLIMITED, VACANT, Brokers, Layout


class PlannedCluster(NamedTuple):
    """Brokers, and the replicas of partitions as indexes; ``racks`` is by id of listed brokers."""

    brokers: Brokers
    replicas: list[list[int]]
    racks: dict[int, int]
    sizes: Sequence[int] = ()

    def layout(self) -> Layout:
        """Return a layout to plan in, of one topic."""
        width = max(map(len, self.replicas))
        return Layout(
            self.brokers,
            pyarrow.chunked_array([["t"] * len(self.replicas)]),
            np.arange(len(self.replicas), dtype=np.int32),
            np.array([[*row, *[VACANT] * (width - len(row))] for row in self.replicas], np.int32),
            np.array(self.sizes or [0] * len(self.replicas), np.int64),
        )


def cluster_of(
    assignment: Sequence[Sequence[int]],
    racks: dict[int, int],
    capacities: dict[int, int] | None = None,
    sizes: Sequence[int] = (),
    no_replicas: Collection[int] = (),
) -> PlannedCluster:
    """Return a cluster with one topic; brokers without a rack are dead."""
    listed = sorted(racks, key=lambda b: (b in no_replicas, b))
    dead = sorted({b for replicas in assignment for b in replicas} - set(listed))
    ids = listed + dead
    index = {broker_id: number for number, broker_id in enumerate(ids)}
    held = Counter(b for replicas in assignment for b in replicas)
    led = Counter(replicas[0] for replicas in assignment)
    limit = capacities or {}
    brokers = Brokers(
        ids,
        len(listed) - len(no_replicas),
        [racks.get(b, NO_RACK) for b in ids],
        [limit.get(b, UNLIMITED) for b in ids],
        [held[b] for b in ids],
        [led[b] for b in ids],
        no_takers=len(no_replicas),
    )
    replicas = [[index[b] for b in row] for row in assignment]
    return PlannedCluster(brokers, replicas, racks, sizes)


def random_cluster(
    seed: int, *, max_brokers: int = 12, max_partitions: int = 60, is_rack_aware: bool = True
) -> PlannedCluster:
    """Return a cluster with uneven racks, mixed factors, some dead brokers and uneven load."""
    dice = Random(seed)
    listed = sorted(dice.sample(range(100), dice.randint(4, max_brokers)))
    names = list(range(dice.randint(1, 4))) if is_rack_aware else [0]
    racks = {b: dice.choice([*names, 0]) for b in listed}
    dead = [100 + i for i in range(dice.choice([0, 0, 1, 2]))]
    holders = dice.sample(listed, dice.randint(3, len(listed))) + dead
    assignment = []
    for _ in range(dice.randint(1, max_partitions)):
        wanted = min(dice.choice([1, 2, 3, 3]), len(holders))
        order = dice.sample(holders, len(holders))
        fresh = [
            b
            for i, b in enumerate(order)
            if rack(racks, b) not in {rack(racks, other) for other in order[:i]}
        ]
        rest = [b for b in order if b not in fresh]
        assignment.append(list(islice([*fresh, *rest], wanted)))
    return cluster_of(assignment, racks)


def rack(racks: dict[int, int], broker: int) -> int:
    """Return a broker's rack; each dead broker has its own."""
    return racks.get(broker, 1000 + broker)


def ring_cluster(brokers: int, partitions: int, factor: int, racks: int = 1) -> PlannedCluster:
    """Return a cluster placed in a ring, with alternating racks."""
    ids = list(range(brokers))
    ring = list(islice(cycle(ids), brokers + factor))
    assignment = [ring[p % brokers : p % brokers + factor] for p in range(partitions)]
    return cluster_of(assignment, {b: b % racks for b in ids})


def check_changes(
    changes: Sequence[Move], cluster: PlannedCluster, *, takers: Collection[int]
) -> None:
    """Assert what holds for every plan: valid, and racks kept."""
    ids = cluster.brokers.ids
    present = [tuple(ids[b] for b in replicas) for replicas in cluster.replicas]
    seen = set()
    for partition, before, after, _ in changes:
        assert partition not in seen
        seen.add(partition)
        assert present[partition.partition] == before != after
        assert len(set(after)) == len(after) > 0
        assert set(after) - set(before) <= set(takers)
        if len(after) >= len(before):
            assert known_racks(after, cluster) >= known_racks(before, cluster)


def known_racks(replicas: Collection[int], cluster: PlannedCluster) -> int:
    """Return the number of known racks with replicas."""
    return len({cluster.racks[b] for b in replicas if b in cluster.racks})


def loads_after(changes: Sequence[Move], cluster: PlannedCluster) -> dict[int, int]:
    """Return the final number of replicas of each listed broker."""
    loads = Counter(dict(zip(cluster.brokers.ids, cluster.brokers.replicas, strict=True)))
    for change in changes:
        loads.update(change.target)
        loads.subtract(change.before)
    return {broker: loads[broker] for broker in cluster.racks}
