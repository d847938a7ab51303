"""Bytes become even by swaps: the numbers of replicas stay, few moves are added, racks are kept."""

from collections.abc import Sequence
from random import Random

import numpy as np
import pytest

from regent.jobs.planning.byte_balance import ByteBalance
from regent.jobs.planning.fair_share import fair_share
from regent.jobs.planning.model import Layout
from regent.jobs.planning.replacement import decommission
from regent.jobs.planning.transfer import Transfer
from tests.support.planned_clusters import (
    PlannedCluster,
    check_changes,
    cluster_of,
    loads_after,
)


def uneven_cluster(seed: int, brokers: int = 8, partitions: int = 400) -> PlannedCluster:
    """Return a cluster with three racks and sizes of partitions over three orders of magnitude."""
    dice = Random(seed)
    racks = {b: b % 3 for b in range(brokers)}
    rows = [dice.sample(range(brokers), 2) for _ in range(partitions)]
    sizes = [int(10 ** dice.uniform(3, 6)) for _ in range(partitions)]
    return cluster_of(rows, racks, sizes=sizes)


def layout_of(cluster: PlannedCluster) -> Layout:
    held = cluster.partitions().bytes_of(len(cluster.brokers.ids))
    return Layout(cluster.brokers, cluster.rows, held)


def moves(layout: Layout) -> int:
    return sum(change.moves for change in layout.changes())


def run(layout: Layout, left: Sequence[int], spare: int, tolerance: float = 0.02) -> ByteBalance:
    """Balance bytes; check the number of moves and the sums that are kept incrementally."""
    before, loads = moves(layout), list(layout.load)
    balance = ByteBalance(layout, left, left, tolerance, spare)
    balance.run()
    assert moves(layout) <= before + spare
    assert layout.load == loads
    held = [0] * len(layout.brokers.ids)
    for replicas, size in zip(layout.replicas, layout.rows.sizes, strict=True):
        for broker in replicas:
            held[broker] += size
    assert balance.now.tolist() == held
    return balance


@pytest.mark.parametrize("seed", range(10))
def test_decommissioned_brokers_are_spread_by_size_without_one_move_more(seed: int):
    cluster = uneven_cluster(seed)
    layout, counted = layout_of(cluster), layout_of(cluster)
    for each in (layout, counted):
        decommission(each, {3}, seed)
    left = [b for b in range(8) if b != 3]
    unswapped = ByteBalance(counted, left, left, 0.0, 0).now[left]
    balance = run(layout, left, spare=0)
    check_changes(list(layout.changes()), cluster, takers=left)
    assert balance.now[left].std() <= unswapped.std()
    assert moves(layout) == moves(counted) == cluster.brokers.replicas[3]


@pytest.mark.parametrize("seed", range(10))
def test_some_moves_more_make_the_bytes_even(seed: int):
    cluster = uneven_cluster(seed)
    layout = layout_of(cluster)
    balance = run(layout, range(8), spare=60, tolerance=0.03)
    check_changes(list(layout.changes()), cluster, takers=range(8))
    mean = balance.now.mean()
    assert np.abs(balance.now - mean).max() <= 0.03 * mean
    assert set(loads_after(list(layout.changes()), cluster).values()) <= set(
        cluster.brokers.replicas
    )


def test_replicas_that_move_for_the_numbers_are_chosen_by_size():
    cluster = uneven_cluster(1, brokers=6, partitions=600)
    ids = range(8)  # two are new
    cluster = cluster_of(cluster.rows.replicas, dict.fromkeys(ids, 0), sizes=cluster.rows.sizes)
    layout = layout_of(cluster)
    share = fair_share([0] * 8, [2**40] * 8, [0] * 8, {}, 1200)
    assert Transfer(layout, share, [6, 7], seed=0).run() == 0
    few = moves(layout)
    balance = ByteBalance(layout, ids, [6, 7], 0.05, spare=0)
    balance.run()
    assert moves(layout) == few == 300
    mean = balance.now.mean()
    assert np.abs(balance.now[6:] - mean).max() <= 0.05 * mean
    for change in layout.changes():
        assert set(change.added) <= {6, 7}


def test_nothing_is_swapped_within_the_tolerance():
    cluster = cluster_of([[0, 1], [2, 3]], dict.fromkeys(range(4), 0), sizes=[105, 95])
    layout = layout_of(cluster)
    run(layout, range(4), spare=10, tolerance=0.05)
    assert list(layout.changes()) == []
