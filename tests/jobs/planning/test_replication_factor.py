"""Plans that raise or lower the replication factor."""

import pytest

from regent.jobs.planning.goals import ReplicationFactor
from tests.support.planned_clusters import (
    check_changes,
    cluster_of,
    known_racks,
    loads_after,
    random_cluster,
    ring_cluster,
)


@pytest.mark.parametrize("seed", range(150))
def test_each_partition_changes_by_the_difference_and_no_more(seed: int):
    cluster = random_cluster(seed)
    factor = 1 + seed % 4
    layout = cluster.layout()
    ReplicationFactor(factor).plan(layout, seed)
    changes = list(layout.changes())
    check_changes(changes, cluster, takers=list(cluster.racks))
    lengths = [len(row) for row in cluster.replicas]
    assert sum(c.replicas_changed for c in changes) == sum(
        abs(factor - length) for length in lengths
    )
    every_rack = len(set(cluster.racks.values()))
    for change in changes:
        assert len(change.target) == factor
        kept = [b for b in change.before if b in change.target]
        if change.before[0] in kept:
            assert kept == list(change.target[: len(kept)])
        if len(change.before) < factor and all(b in cluster.racks for b in change.before):
            assert known_racks(change.target, cluster) == min(
                every_rack, known_racks(change.before, cluster) + len(change.added)
            )


def test_new_replicas_go_to_brokers_with_few():
    cluster = ring_cluster(brokers=15, partitions=1000, factor=2)
    layout = cluster.layout()
    ReplicationFactor(4).plan(layout, seed=3)
    after = loads_after(list(layout.changes()), cluster)
    assert max(after.values()) - min(after.values()) <= 1


def test_replicas_on_dead_brokers_and_in_crowded_racks_are_removed_first():
    racks = {1: 0, 2: 0, 3: 1}
    cluster = cluster_of([[1, 2, 3], [3, 9, 2], [9, 1, 2]], racks)
    layout = cluster.layout()
    ReplicationFactor(2).plan(layout, seed=0)
    after = [c.target for c in layout.changes()]
    assert after == [(1, 3), (3, 2), (1, 2)]
