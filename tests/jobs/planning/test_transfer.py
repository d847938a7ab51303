"""Rebalancing and growing: fair shares, few moves, and constraints."""

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from itertools import permutations, product

import pytest

from regent.client.moves import Move
from regent.jobs.planning.fair_share import Groups, fair_share, group_limits, nested
from regent.jobs.planning.goals import Rebalance
from regent.jobs.planning.model import NotImprovingError
from tests.support.planned_clusters import (
    PlannedCluster,
    check_changes,
    cluster_of,
    loads_after,
    random_cluster,
    ring_cluster,
)


def plan(
    cluster: PlannedCluster, new: Sequence[int] | None = None, seed: int = 0
) -> tuple[list[Move], int, int]:
    """Return the changes, the minimal number of moves, and the number of misplaced replicas.

    Only ``new`` brokers get more, if given.
    """
    layout = cluster.layout()
    with suppress(NotImprovingError):
        planned = Rebalance(new).plan(layout, seed)
        changes = list(layout.changes())
        check_changes(changes, cluster, takers=list(cluster.racks) if new is None else new)
        return changes, planned.lower_bound, planned.left
    assert not list(layout.changes())
    return [], 0, 0


@pytest.mark.parametrize("seed", range(150))
def test_rebalancing_without_racks_needs_no_move_more_than_the_bound(seed: int):
    cluster = random_cluster(seed, is_rack_aware=False)
    changes, bound, left = plan(cluster, seed=seed)
    loads = loads_after(changes, cluster).values()
    assert left == 0
    assert max(loads) - min(loads) <= 1
    assert sum(len(change.added) for change in changes) == bound


@pytest.mark.parametrize("seed", range(150))
def test_rebalancing_with_racks_is_valid_and_balances_the_load(seed: int):
    cluster = random_cluster(seed)
    changes, bound, left = plan(cluster, seed=seed)
    before = [cluster.brokers.replicas[b] for b in range(cluster.brokers.usable)]
    after = list(loads_after(changes, cluster).values())
    assert sum(after) == sum(before)
    assert max(after) <= max(before)
    assert min(after) >= min(before)
    if not left:
        assert sum(len(change.added) for change in changes) >= bound


def test_new_brokers_get_their_share_and_no_other_replica_moves():
    cluster = ring_cluster(brokers=40, partitions=4000, factor=3, racks=4)
    ids = dict.fromkeys(range(44))
    cluster = cluster_of(
        [[cluster.brokers.ids[b] for b in r] for r in cluster.replicas],
        {b: b % 4 for b in ids},
    )
    changes, bound, left = plan(cluster, new=[40, 41, 42, 43])
    assert left == 0
    assert sum(len(change.added) for change in changes) == bound == 4 * (12000 // 44)
    assert set(loads_after(changes, cluster).values()) <= {272, 273}


def test_racks_that_hold_every_partition_share_among_themselves():
    racks = {0: 0, 1: 0, 2: 1, 3: 1, 4: 1, 5: 0}
    cluster = cluster_of([[p % 2, 2 + p % 3] for p in range(60)], racks)
    changes, bound, left = plan(cluster, new=[5])
    assert left == 0
    assert sum(len(change.added) for change in changes) == bound == 20
    assert loads_after(changes, cluster) == dict.fromkeys(racks, 20)


def test_a_replica_may_move_in_two_steps_over_another_broker():
    # Broker 3 needs one, and has both replicas that broker 1 could give.
    cluster = cluster_of([[1, 3], [1, 3], [1, 2], [2, 1]], {1: 0, 2: 0, 3: 0, 4: 0})
    changes, bound, left = plan(cluster)
    assert (left, bound) == (0, 2)
    assert sum(len(change.added) for change in changes) == 2
    assert loads_after(changes, cluster) == {1: 2, 2: 2, 3: 2, 4: 2}


@pytest.mark.parametrize("seed", range(25))
def test_no_plan_for_a_small_cluster_is_shorter(seed: int):
    cluster = random_cluster(seed, max_brokers=4, max_partitions=4, is_rack_aware=False)
    changes, _, _ = plan(cluster, seed=seed)
    assert sum(len(change.added) for change in changes) == fewest_moves_by_trying_all(cluster)


def fewest_moves_by_trying_all(cluster: PlannedCluster) -> int:
    """Return the minimal number of moves for loads that differ by at most one."""
    ids = list(cluster.racks)
    rows = [[cluster.brokers.ids[b] for b in row] for row in cluster.replicas]
    fewest = 99
    choices = []
    for row in rows:
        dead = [b for b in row if b not in cluster.racks]
        live = len(row) - len(dead)
        choices.append([(*c, *dead) for c in permutations(ids, live) if list(c) == sorted(c)])
    for assignment in product(*choices):
        held = Counter(b for replicas in assignment for b in replicas)
        loads = [held[b] for b in ids]
        if max(loads) - min(loads) <= 1:
            pairs = zip(assignment, rows, strict=True)
            fewest = min(fewest, sum(len(set(a) - set(b)) for a, b in pairs))
    return fewest


def test_fair_shares_respect_limits_of_brokers_and_racks():
    even = fair_share([0] * 4, [100] * 4, [], 10)
    assert even == ([2] * 4, [3] * 4)
    exact = fair_share([0] * 4, [100] * 4, [], 8)
    assert exact.low == [2] * 4
    limited = fair_share([0, 0, 5, 0], [100, 1, 100, 100], [], 12)
    assert limited.low == [3, 1, 5, 3]
    in_racks = [Groups([0, 0, 1], {0: (10, 10), 1: (10, 10)})]
    assert fair_share([0] * 3, [100] * 3, in_racks, 20).low == [5, 5, 10]
    few = [Groups([0, 0, 0, 0, 1, 1], {0: (19, 28), 1: (19, 28)})]
    assert fair_share([0] * 6, [100] * 6, few, 47) == ([7, 7, 7, 7, 9, 9], [7, 7, 7, 7, 10, 10])
    expected = {0: (10, 14), 1: (17, 21), 2: (10, 14)}
    assert group_limits({(3, 3): 10, (2, 2): 4}, [0, 1, 2], {1: 7}) == expected


def test_fair_shares_respect_limits_of_hosts_in_racks():
    racks = Groups([0, 0, 0, 1, 1], {0: (12, 12)})
    hosts = Groups([0, 0, 1, 3, 3], {0: (0, 4), 3: (0, 7)})
    shares = fair_share([0] * 5, [100] * 5, nested([racks, hosts]), 18)
    assert shares == ([2, 2, 8, 3, 3], [2, 2, 8, 3, 3])
    shares = fair_share([0] * 5, [100] * 5, nested([hosts]), 18)
    assert shares.low == [2, 2, 7, 3, 3]
    divided = Groups([0, 0, 1, 1, 0], {0: (9, 9), 1: (0, 3)})  # host 0 is in both racks
    assert fair_share([0] * 5, [100] * 5, nested([racks, divided]), 18).low == [4, 4, 3, 3, 3]


@pytest.mark.parametrize("seed", range(40))
def test_no_broker_exceeds_its_capacity_and_overfull_ones_give_replicas_away(seed: int):
    cluster = random_cluster(seed, is_rack_aware=False)
    ids, held = cluster.brokers.ids, cluster.brokers.replicas
    usable = range(cluster.brokers.usable)
    even = -(-sum(held[b] for b in usable) // cluster.brokers.usable)
    fullest = max(usable, key=lambda b: held[b])
    limited = cluster_of(
        [[ids[b] for b in replicas] for replicas in cluster.replicas],
        cluster.racks,
        {ids[fullest]: even // 2},
    )
    changes, _, left = plan(limited, seed=seed)
    loads = loads_after(changes, limited)
    partitions = len(cluster.replicas)
    if partitions > max(loads.values()) + 1:  # else there may be no receivers
        assert left == 0
        assert loads[ids[fullest]] <= even // 2
