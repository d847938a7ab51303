"""Decommissioning and replacing brokers: moved replicas, targets, and impossible cases."""

import pytest

from regent.client.moves import Move
from regent.jobs.planning.goals import Decommission, Replace
from regent.jobs.planning.model import InfeasibleError
from tests.support.planned_clusters import (
    PlannedCluster,
    check_changes,
    cluster_of,
    known_racks,
    loads_after,
    random_cluster,
    ring_cluster,
)


def plan_decommission(cluster: PlannedCluster, *leaving: int, seed: int = 0) -> list[Move]:
    """Return the changes, and check that no other replica is moved."""
    layout = cluster.layout()
    Decommission(leaving).plan(layout, seed)
    changes = list(layout.changes())
    check_changes(changes, cluster, takers=set(cluster.racks) - set(leaving))
    for change in changes:
        assert set(change.before) - set(change.target) == set(change.before) & set(leaving)
        assert len(change.target) == len(change.before)
    held = [cluster.brokers.replicas[b] for b in cluster.brokers.indexes(leaving)]
    assert sum(len(change.added) for change in changes) == sum(held)
    after = loads_after(changes, cluster)
    assert all(after[b] == 0 for b in leaving if b in after)
    return changes


@pytest.mark.parametrize("seed", range(150))
def test_only_replicas_of_the_leaving_brokers_move(seed: int):
    cluster = random_cluster(seed)
    leaving = [b for b in cluster.brokers.ids if b not in cluster.racks]  # the dead ones
    if seed % 3 == 0:
        leaving.append(cluster.brokers.ids[0])
    if is_feasible(cluster, set(leaving)):
        plan_decommission(cluster, *leaving, seed=seed)
    else:
        with pytest.raises(InfeasibleError):
            plan_decommission(cluster, *leaving, seed=seed)


def is_feasible(cluster: PlannedCluster, leaving: set[int]) -> bool:
    """Return whether every partition by itself could keep its racks; there are no capacities."""
    for replicas in cluster.replicas:
        before = [cluster.brokers.ids[b] for b in replicas]
        stay = [b for b in before if b not in leaving]
        others = [b for b in cluster.racks if b not in leaving and b not in stay]
        missing = len(before) - len(stay)
        racks = {cluster.racks[b] for b in before if b in cluster.racks}
        possible = {cluster.racks[b] for b in stay if b in cluster.racks}
        fresh = {cluster.racks[b] for b in others} - possible
        if len(others) < missing or len(possible) + min(missing, len(fresh)) < len(racks):
            return False
    return True


@pytest.mark.parametrize("seed", range(30))
def test_loads_differ_by_at_most_one_without_constraints(seed: int):
    cluster = ring_cluster(brokers=20 + seed, partitions=600, factor=3)
    changes = plan_decommission(cluster, 0, 7, seed=seed)
    after = loads_after(changes, cluster)
    left = [load for broker, load in after.items() if broker not in (0, 7)]
    assert max(left) - min(left) <= 1


def test_racks_are_kept_and_if_possible_added():
    cluster = cluster_of([[1, 2], [1, 3]], {1: 0, 2: 0, 3: 1, 4: 0, 5: 2})
    assert [c.target for c in plan_decommission(cluster, 1)] == [(5, 2), (4, 3)]


@pytest.mark.parametrize("seed", range(40))
def test_capacities_hold_and_a_possible_plan_is_found(seed: int):
    cluster = random_cluster(seed, max_brokers=6, max_partitions=12)
    leaving = cluster.brokers.ids[0]
    load = dict(zip(cluster.brokers.ids, cluster.brokers.replicas, strict=True))
    takers = [b for b in cluster.racks if b != leaving]
    spare = load[leaving] // len(takers) + seed % 2
    cluster = with_capacities(cluster, {b: load[b] + spare for b in takers})
    if not fits_by_matching(cluster, leaving):
        with pytest.raises(InfeasibleError):
            plan_decommission(cluster, leaving, seed=seed)
        return
    changes = plan_decommission(cluster, leaving, seed=seed)
    after = loads_after(changes, cluster)
    assert all(after[b] <= load[b] + spare for b in takers)


def with_capacities(cluster: PlannedCluster, capacities: dict[int, int]) -> PlannedCluster:
    """Return the cluster with limits on its brokers."""
    ids = cluster.brokers.ids
    return cluster_of(
        [[ids[b] for b in replicas] for replicas in cluster.replicas],
        cluster.racks,
        capacities,
    )


def fits_by_matching(cluster: PlannedCluster, leaving: int) -> bool:
    """Return whether every replica of the broker can be matched with a broker that has room."""
    ids, capacities = cluster.brokers.ids, cluster.brokers.capacities
    rows = [[ids[b] for b in row] for row in cluster.replicas]
    rows = [row for row in rows if leaving in row]
    places = [
        (taker, number)
        for taker, capacity, held in zip(ids, capacities, cluster.brokers.replicas, strict=True)
        if taker in cluster.racks and taker != leaving
        for number in range(capacity - held)
    ]
    holder: dict[tuple[int, int], int] = {}

    def match(row: int, tried: set[tuple[int, int]]) -> bool:
        for place in places:
            if place in tried or not may_take(rows[row], leaving, place[0], cluster):
                continue
            tried.add(place)
            if place not in holder or match(holder[place], tried):
                holder[place] = row
                return True
        return False

    return all(match(row, set()) for row in range(len(rows)))


def may_take(row: list[int], leaving: int, taker: int, cluster: PlannedCluster) -> bool:
    """Return whether a broker may replace the leaving one."""
    after = [taker if b == leaving else b for b in row]
    return taker not in row and known_racks(after, cluster) >= known_racks(row, cluster)


@pytest.mark.parametrize("seed", range(60))
def test_a_broker_replaces_another_wherever_possible(seed: int):
    cluster = random_cluster(seed)
    old, *others = cluster.brokers.ids[: cluster.brokers.usable]
    to = others[0]
    layout = cluster.layout()
    [leaving] = cluster.brokers.indexes([old])
    holding = [[cluster.brokers.ids[b] for b in r] for r in cluster.replicas]
    if any(old in row and not may_take(row, old, to, cluster) for row in holding):
        with pytest.raises(InfeasibleError):
            Replace([old], [to]).plan(layout, seed)
        return
    Replace([old], [to]).plan(layout, seed)
    changes = list(layout.changes())
    check_changes(changes, cluster, takers=[to])
    assert sum(len(c.added) for c in changes) == cluster.brokers.replicas[leaving]
    for change in changes:
        assert change.target == tuple(to if b == old else b for b in change.before)
        assert may_take(list(change.before), old, to, cluster)


def test_a_slot_that_its_counterpart_cannot_take_goes_to_another_of_the_new_brokers():
    cluster = cluster_of([[0, 1], [2, 0], [1, 3]], dict.fromkeys(range(5), 0))
    layout = cluster.layout()
    Replace([0, 1], [2, 4]).plan(layout, seed=0)
    assert layout.after.tolist() == [[2, 4], [2, 4], [4, 3]]


def test_an_impossible_plan_names_the_reason():
    full = cluster_of([[1, 2], [1, 2]], {1: 0, 2: 0, 3: 0, 4: 0}, {2: 2, 3: 0, 4: 1})
    with pytest.raises(InfeasibleError, match=r"^capacity: 2 replicas .* have room for 1$"):
        plan_decommission(full, 1)
    few = cluster_of([[1, 2]], {1: 0, 2: 0})
    with pytest.raises(
        InfeasibleError, match=r"t-0: 2 replicas need as many brokers.* than 2 \(plan replic"
    ):
        plan_decommission(few, 1)
    racks = cluster_of([[1, 2]], {1: 0, 2: 1, 3: 1})
    with pytest.raises(InfeasibleError, match=r"^racks: t-0 has replicas in 2 racks"):
        plan_decommission(racks, 1)
    tight = cluster_of([[1, 2], [1, 2]], {1: 0, 2: 0, 3: 0}, {2: 9, 3: 1})
    with pytest.raises(InfeasibleError, match=r"capacity: the brokers .* of t-1 are full \(3\)"):
        plan_decommission(tight, 1)
