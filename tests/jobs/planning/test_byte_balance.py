"""Bytes become even by swaps: the numbers of replicas stay, few moves are added, racks are kept."""

from collections.abc import Sequence
from random import Random

import numpy as np
import pytest

from regent.jobs.planning.byte_balance import ByteBalance
from regent.jobs.planning.goals import Decommission, Rebalance
from regent.jobs.planning.model import Layout
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


def moves(layout: Layout) -> int:
    return sum(len(change.added) for change in layout.changes())


def run(layout: Layout, left: Sequence[int], spare: int, tolerance: float = 0.02) -> ByteBalance:
    """Balance bytes; check the number of moves and the sums that are kept incrementally."""
    before, loads = moves(layout), list(layout.load)
    balance = ByteBalance(layout, left, left, tolerance, spare)
    balance.run()
    assert moves(layout) <= before + spare
    assert layout.load == loads
    assert balance.now.tolist() == layout.bytes_held(layout.after).tolist()
    return balance


@pytest.mark.parametrize("seed", range(10))
def test_decommissioned_brokers_are_spread_by_size_without_one_move_more(seed: int):
    cluster = uneven_cluster(seed)
    layout, counted = cluster.layout(), cluster.layout()
    for each in (layout, counted):
        Decommission([3]).plan(each, seed)
    left = [b for b in range(8) if b != 3]
    unswapped = ByteBalance(counted, left, left, 0.0, 0).now[left]
    balance = run(layout, left, spare=0)
    check_changes(list(layout.changes()), cluster, takers=left)
    assert balance.now[left].std() <= unswapped.std()
    assert moves(layout) == moves(counted) == cluster.brokers.replicas[3]


@pytest.mark.parametrize("seed", range(10))
def test_some_moves_more_make_the_bytes_even(seed: int):
    cluster = uneven_cluster(seed)
    layout = cluster.layout()
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
    cluster = cluster_of(cluster.replicas, dict.fromkeys(ids, 0), sizes=cluster.sizes)
    layout = cluster.layout()
    assert Rebalance([6, 7]).plan(layout, seed=0)[:2] == (300, 0)
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
    layout = cluster.layout()
    run(layout, range(4), spare=10, tolerance=0.05)
    assert list(layout.changes()) == []
