"""Plans never put two replicas of a partition on one host."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

import pytest

from regent.jobs.assignment_source import AssignmentSource
from regent.jobs.brokers_file import PlannedBroker
from regent.jobs.planning.goals import Decommission, Goal, Rebalance, Replace, ReplicationFactor
from regent.jobs.planning.model import InfeasibleError, Layout
from regent.jobs.planning.planner import Request, plan_layout
from regent.jobs.planning.selection import hosts_of
from tests.jobs.planning.test_plans_with_sizes import KNOWN, TOLERANCE
from tests.support.planned_clusters import PlannedCluster, cluster_of

HOSTS, EACH = 4, 3
BROKERS = range(HOSTS * EACH)
GOALS: dict[str, Callable[[], Goal]] = {
    "decommission": lambda: Decommission([2]),
    "rebalance": Rebalance,
    "add-brokers": lambda: Rebalance([9, 10, 11]),
    "factor-up": lambda: ReplicationFactor(3),
    "factor-down": lambda: ReplicationFactor(1),
    "replace": lambda: Replace([0], [9]),
}


def host_of(broker: int) -> int:
    return broker // EACH


def crowded_cluster(seed: int, *, racks: int = 1) -> PlannedCluster:
    """Return four hosts of three brokers; the last host is empty, and low ids hold the most."""
    dice = Random(seed)
    rows: list[list[int]] = []
    for _ in range(60):
        hosts = dice.sample(range(HOSTS - 1), 2)
        rows.append(
            [EACH * host + min(dice.randrange(EACH), dice.randrange(EACH)) for host in hosts]
        )
    sizes = [int(10 ** dice.uniform(3, 6)) for _ in rows]
    cluster = cluster_of(
        rows, {b: (host_of(b) in (1, 2)) * (racks - 1) for b in BROKERS}, sizes=sizes
    )
    hosts_of_all = [host_of(b) for b in BROKERS]
    return cluster._replace(brokers=replace(cluster.brokers, hosts=hosts_of_all))


def planned(cluster: PlannedCluster, goal: Goal, *, sizes: bool) -> Layout:
    listed = [PlannedBroker(b, str(cluster.racks[b]), 0, None, f"m{host_of(b)}") for b in BROKERS]
    return planned_for(cluster, goal, listed, sizes=sizes)


def planned_for(
    cluster: PlannedCluster, goal: Goal, listed: Sequence[PlannedBroker], *, sizes: bool = False
) -> Layout:
    """Return the layout after a whole plan."""
    layout = cluster.layout()
    request = Request(
        goal,
        AssignmentSource("a file", is_small=True, load=None),
        listed,
        rack_aware=len(set(cluster.racks.values())) > 1,
        topics=(),
        exclude=(),
        leaders=True,
        sizes=KNOWN if sizes else None,
        bytes_tolerance=TOLERANCE,
        max_extra_moves=None,
        seed=0,
    )
    plan_layout(layout, request)
    return layout


@pytest.mark.parametrize("goal", GOALS)
@pytest.mark.parametrize("sizes", [False, True])
@pytest.mark.parametrize("racks", [1, 2])
def test_no_plan_puts_two_replicas_on_one_host(goal: str, sizes: bool, racks: int):
    for seed in range(4):
        layout = planned(crowded_cluster(seed, racks=racks), GOALS[goal](), sizes=sizes)
        assert len(layout.changed_rows())
        for row in range(len(layout.after)):
            hosts = [host_of(broker) for broker in layout.replicas_of(row)]
            assert len(set(hosts)) == len(hosts)


def test_a_plan_that_would_need_another_host_names_that():
    cluster = crowded_cluster(0)
    with pytest.raises(
        InfeasibleError, match=r"^hosts: t-0 has a replica on the host of each brok"
    ):
        planned(cluster, ReplicationFactor(HOSTS + 1), sizes=False)


def test_a_partition_that_cannot_leave_its_host_stays():
    cluster = cluster_of([[0, 2]] * 6, {0: 0, 1: 0, 2: 0, 3: 0})
    cluster = cluster._replace(brokers=replace(cluster.brokers, hosts=[0, 0, 1, 1]))
    layout = cluster.layout()
    Rebalance().plan(layout, seed=0)
    assert all({b // 2 for b in layout.replicas_of(row)} == {0, 1} for row in range(6))
    assert layout.load[:4] == [3, 3, 3, 3]
    stuck = cluster._replace(brokers=replace(cluster.brokers, hosts=[0, 1, 1, 0]))
    assert stuck.layout().fits((0, 0), 3)
    assert not stuck.layout().fits((0, 0), 1)


def on_hosts(rows: list[list[int]], hosts: list[int], racks: list[int]) -> PlannedCluster:
    cluster = cluster_of(rows, dict(enumerate(racks)))
    return cluster._replace(brokers=replace(cluster.brokers, hosts=hosts))


@pytest.mark.parametrize("racks", [[0, 0, 0, 0], [0, 1, 1, 1], [0, 1, 1, 0]])
def test_brokers_of_a_host_share_one_replica_of_each_partition_at_most(racks: list[int]):
    hosts = [0, 1, 1, 1] if racks[3] == racks[1] else [0, 1, 1, 0]
    rows = [[0, 1]] * 12
    layout = on_hosts(rows, hosts, racks).layout()
    done = Rebalance().plan(layout, seed=0)
    fewest = [12, 4, 4, 4] if hosts[3] else [6, 6, 6, 6]
    assert layout.load[:4] == fewest
    assert (done.left, done.lower_bound) == (0, sum(fewest[2:]))
    assert list(done.full_hosts) == ([1] if hosts[3] else [])
    again = on_hosts([layout.replicas_of(row) for row in range(12)], hosts, racks).layout()
    assert "its fair share already" in Rebalance().plan(again, seed=0).is_reached


@pytest.mark.parametrize("seed", range(60))
def test_a_rebalance_reaches_the_shares_that_hosts_allow(seed: int):
    dice = Random(seed)
    hosts = sorted(dice.randrange(5) for _ in range(10))
    named = sorted(set(hosts))
    factor = dice.randint(1, min(3, len(named)))
    rows = []
    for _ in range(60):
        on = dice.sample(named, factor)
        rows.append([dice.choice([b for b in range(10) if hosts[b] == host][:2]) for host in on])
    layout = on_hosts(rows, hosts, [0] * 10).layout()
    done = Rebalance().plan(layout, seed)
    assert done.left == 0
    of_host = {host: sum(layout.load[b] for b in range(10) if hosts[b] == host) for host in named}
    assert max(of_host.values()) <= 60
    others = [layout.load[b] for b in range(10) if of_host[hosts[b]] < 60]
    assert not others or max(others) - min(others) <= 1


def test_a_replica_beside_another_one_on_its_host_is_dropped_first():
    cluster = cluster_of([[0, 1, 2], [2, 0, 1]], {0: 0, 1: 0, 2: 0})
    cluster = cluster._replace(brokers=replace(cluster.brokers, hosts=[0, 0, 1]))
    layout = cluster.layout()
    ReplicationFactor(2).plan(layout, seed=0)
    assert [layout.replicas_of(row) for row in range(2)] == [[0, 2], [2, 1]]


def test_hosts_are_numbered_only_where_brokers_share_them():
    named = [PlannedBroker(b, None, 0, None, host) for b, host in ((4, "m"), (5, None), (7, "m"))]
    assert list(hosts_of(named, [4, 5, 7, 9])) == [0, 1, 0, 3]
    assert not hosts_of(named[:2], [4, 5, 9])
