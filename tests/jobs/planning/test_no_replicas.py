"""Brokers with ``no_replicas`` get no replicas, and keep those that they have: they are alive."""

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from regent.jobs.brokers_file import PlannedBroker
from regent.jobs.planning.goals import Decommission, Goal, Rebalance, Replace, ReplicationFactor
from regent.jobs.planning.model import InfeasibleError
from tests.jobs.planning.test_hosts import planned_for
from tests.support.planned_clusters import PlannedCluster, check_changes, cluster_of, loads_after

TAKERS, BARRED = range(9), range(9, 12)
GOALS: dict[str, Callable[[], Goal]] = {
    "decommission": lambda: Decommission([2]),
    "rebalance": Rebalance,
    "add-brokers": lambda: Rebalance([7, 8]),
    "factor-up": lambda: ReplicationFactor(3),
    "factor-down": lambda: ReplicationFactor(1),
    "replace": lambda: Replace([0], [6]),
}


def host_of(broker: int) -> int:
    return broker % 6


def cluster_with_barred(seed: int) -> PlannedCluster:
    """Return brokers of three racks on six hosts, of which some take no replicas and have some."""
    dice = Random(seed)
    racks = {b: b % 3 for b in [*TAKERS, *BARRED]}
    rows: list[list[int]] = []
    while len(rows) < 60:
        row = dice.sample([0, 1, 2, 3, 4, 5, *BARRED], 2)
        if len({host_of(b) for b in row}) == len(row):
            rows.append(row)
    cluster = cluster_of(rows, racks, no_replicas=BARRED)
    hosts = [host_of(b) for b in cluster.brokers.ids]
    return cluster._replace(brokers=replace(cluster.brokers, hosts=hosts))


def listed(cluster: PlannedCluster) -> list[PlannedBroker]:
    return [
        PlannedBroker(b, str(rack), 0, None, f"m{host_of(b)}", no_replicas=b in BARRED)
        for b, rack in cluster.racks.items()
    ]


@pytest.mark.parametrize("goal", GOALS)
@pytest.mark.parametrize("seed", range(6))
def test_they_get_and_lose_none_and_their_racks_and_hosts_count(goal: str, seed: int):
    cluster = cluster_with_barred(seed)
    layout = planned_for(cluster, GOALS[goal](), listed(cluster))
    changes = list(layout.changes())
    check_changes(changes, cluster, takers=TAKERS)
    for change in changes:
        hosts = [host_of(b) for b in change.target]
        assert len(set(hosts)) == len(hosts)
    if goal != "factor-down":
        held = dict(zip(cluster.brokers.ids, cluster.brokers.replicas, strict=True))
        assert all(loads_after(changes, cluster)[b] == held[b] for b in BARRED)


def test_what_they_have_moves_when_they_are_named():
    cluster = cluster_with_barred(0)
    layout = planned_for(cluster, Decommission([*BARRED]), listed(cluster))
    changes = list(layout.changes())
    check_changes(changes, cluster, takers=TAKERS)
    assert all(loads_after(changes, cluster)[b] == 0 for b in BARRED)


def test_a_lower_factor_drops_the_replica_on_a_dead_broker_before_theirs():
    cluster = cluster_of([[1, 9, 5], [5, 9, 1]], {1: 0, 2: 0, 5: 1}, no_replicas=[5])
    layout = cluster.layout()
    ReplicationFactor(2).plan(layout, seed=0)
    assert [c.target for c in layout.changes()] == [(1, 5), (5, 1)]


def test_a_rack_that_only_they_are_in_is_not_lost():
    cluster = cluster_of([[1, 5]], {1: 0, 2: 1, 5: 1}, no_replicas=[5])
    with pytest.raises(InfeasibleError, match=r"^racks: t-0 has replicas in 2 racks"):
        Decommission([1]).plan(cluster.layout(), seed=0)


def test_a_rack_in_which_no_broker_takes_replicas_limits_no_other():
    cluster = cluster_of([[0, 5]] * 4, {0: 0, 1: 1, 5: 2}, no_replicas=[5])
    layout = cluster.layout()
    Rebalance().plan(layout, seed=0)
    assert loads_after(list(layout.changes()), cluster) == {0: 2, 1: 2, 5: 4}


def test_fair_shares_are_of_what_the_others_hold():
    # Each partition is in every rack; 5 has the replica of the second rack of half of them.
    rows = [[0, 5], [0, 1]] * 6
    racks = {0: 0, 1: 1, 2: 1, 3: 0, 5: 1}
    cluster = cluster_of(rows, racks, no_replicas=[5])
    layout = cluster.layout()
    done = Rebalance().plan(layout, seed=0)
    assert done.left == 0
    changes = list(layout.changes())
    check_changes(changes, cluster, takers=[0, 1, 2, 3])
    assert loads_after(changes, cluster) == {0: 6, 3: 6, 1: 3, 2: 3, 5: 6}
    assert sum(len(change.added) for change in changes) == done.lower_bound == 9
