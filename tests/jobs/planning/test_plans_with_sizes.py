"""Plans of every kind with sizes beside those without: never fuller, and good where they can be.

"Fuller" compares the fullest of the brokers that remain after the plan, as a multiple of their mean
bytes. For a decommission the leaving broker counts neither before nor after; a new broker counts as
empty before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, NamedTuple

import numpy as np
import pyarrow
import pytest

from regent.jobs.assignment_source import AssignmentSource
from regent.jobs.brokers_file import PlannedBroker
from regent.jobs.planning.goals import (
    Decommission,
    Goal,
    Rebalance,
    Replace,
    ReplicationFactor,
)
from regent.jobs.planning.model import InfeasibleError, Layout, NotImprovingError
from regent.jobs.planning.partition_sizes import Sizes
from regent.jobs.planning.planner import Request, plan_layout
from tests.support.planned_clusters import (
    PlannedCluster,
    check_changes,
    cluster_of,
    known_racks,
    loads_after,
    random_cluster,
)

TOLERANCE = 0.1
NOT_MET = "--bytes-tolerance"
FULLER = "the fullest broker will have"
NONE = {"topic": pyarrow.string(), "partition": pyarrow.int32(), "bytes": pyarrow.int64()}
KNOWN = Sizes(pyarrow.schema(NONE).empty_table())  # the layout has the sizes already

GoalOf = Callable[[PlannedCluster], Goal]
GOALS: dict[str, GoalOf] = {
    "decommission": lambda cluster: Decommission([cluster.brokers.ids[0]]),
    "rebalance": lambda _: Rebalance(),
    "add-brokers": lambda cluster: Rebalance(_new(cluster)),
    "factor-up": lambda _: ReplicationFactor(3),
    "factor-down": lambda _: ReplicationFactor(1),
    "replace": lambda cluster: Replace([cluster.brokers.ids[1]], _new(cluster)[:1]),
}


def _new(cluster: PlannedCluster) -> list[int]:
    return [b for b in cluster.racks if b >= 1000]


class Plan(NamedTuple):
    """A plan with its summary, in the layout that it has changed."""

    layout: Layout
    left: Sequence[int]
    summary: dict[str, Any]

    def fullest(self, *, before: bool = False) -> float:
        held = self.layout.bytes_held(self.layout.before if before else self.layout.after)
        share = held[self.left] / max(held[self.left].mean(), 1)
        return float(share.max())

    @property
    def warnings(self) -> list[str]:
        found: list[str] = self.summary["warnings"]
        return found


def plan(
    cluster: PlannedCluster, goal: Goal, *, sizes: bool, extra_moves: int | None = None
) -> Plan:
    """Plan with or without sizes; check that the plan is valid."""
    layout = cluster.layout()
    request = Request(
        goal,
        AssignmentSource("a file", is_small=True, load=None),
        [PlannedBroker(b, str(rack), 0, None) for b, rack in cluster.racks.items()],
        rack_aware=True,
        topics=(),
        exclude=(),
        leaders=True,
        sizes=KNOWN if sizes else None,
        bytes_tolerance=TOLERANCE,
        max_extra_moves=extra_moves,
        seed=0,
    )
    changes, summary = plan_layout(layout, request)
    takers = [cluster.brokers.ids[b] for b in goal.takers(layout.brokers)]
    check_changes(changes, cluster, takers=takers)
    if isinstance(goal, ReplicationFactor):
        for change in changes:
            assert len(change.target) == goal.factor
    return Plan(layout, goal.left_brokers(layout.brokers), summary)


def with_two_new_brokers(cluster: PlannedCluster, sizes: Sequence[int]) -> PlannedCluster:
    rows = [[cluster.brokers.ids[b] for b in row] for row in cluster.replicas]
    rack = next(iter(cluster.racks.values()))
    return cluster_of(rows, cluster.racks | {1000: rack, 1001: rack}, sizes=sizes)


@pytest.mark.parametrize("name", GOALS)
@pytest.mark.parametrize("seed", range(25))
def test_sizes_never_make_the_fullest_broker_fuller(name: str, seed: int):
    dice = Random(seed)
    cluster = random_cluster(seed)
    sizes = [int(1000 * dice.paretovariate(0.8)) for _ in cluster.replicas]
    if name in ("add-brokers", "replace"):
        cluster = with_two_new_brokers(cluster, sizes)
    else:
        cluster = cluster._replace(sizes=sizes)
    try:
        without = plan(cluster, GOALS[name](cluster), sizes=False)
    except (InfeasibleError, NotImprovingError):
        return
    aware = plan(cluster, GOALS[name](cluster), sizes=True)
    assert aware.fullest() <= without.fullest()
    if aware.fullest() > aware.fullest(before=True):
        assert any(FULLER in warning for warning in aware.warnings)
    held = aware.layout.bytes_held(aware.layout.after)[aware.left]
    is_met = np.abs(held - held.mean()).max() <= TOLERANCE * held.mean()
    assert is_met is not any(NOT_MET in warning for warning in aware.warnings)
    assert loads(aware) == loads(without), "the numbers of replicas are the same"
    for counts in ("replicas_per_broker", "lower_bound", "removals"):
        assert aware.summary[counts] == without.summary[counts]


def loads(found: Plan) -> list[int]:
    return [found.layout.load[b] for b in found.left]


@pytest.mark.parametrize("name", GOALS)
@pytest.mark.parametrize("seed", range(8))
def test_without_a_spare_move_sizes_cost_none(name: str, seed: int):
    dice = Random(seed)
    cluster = random_cluster(seed)
    sizes = [int(1000 * dice.paretovariate(0.8)) for _ in cluster.replicas]
    cluster = with_two_new_brokers(cluster, sizes)
    try:
        without = plan(cluster, GOALS[name](cluster), sizes=False)
    except (InfeasibleError, NotImprovingError):
        return
    aware = plan(cluster, GOALS[name](cluster), sizes=True, extra_moves=0)
    assert aware.summary["moves"] <= without.summary["moves"]


# --- large enough that the bytes can be even ------------------------------------------------------

SHAPES = ((12, 3, 400), (9, 0, 600), (30, 5, 1000), (7, 2, 500))


def skewed_cluster(brokers: int, racks: int, partitions: int, new: int = 0) -> PlannedCluster:
    """Return a cluster whose topics, sizes and placement are uneven, and ``new`` empty brokers."""
    dice = Random(brokers)
    rack_of = {b: b % racks if racks else 0 for b in range(brokers)}
    rows: list[list[int]] = []
    sizes: list[int] = []
    while len(rows) < partitions:
        scale = 10 ** dice.uniform(6, 8)
        for _ in range(dice.choice([3, 6, 12, 24])):
            row: list[int] = []
            while len(row) < 3:
                broker = min(dice.randrange(brokers), dice.randrange(brokers))  # low ids have more
                is_taken = {rack_of[b] for b in row} if racks >= 3 else set()
                if broker not in row and rack_of[broker] not in is_taken:
                    row.append(broker)
            rows.append(row)
            sizes.append(int(scale * dice.paretovariate(2)))
    added = {1000 + n: n % racks if racks else 0 for n in range(new)}
    return cluster_of(rows, rack_of | added, sizes=sizes)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ["decommission", "rebalance", "factor-down"])
def test_sizes_make_the_bytes_even_where_every_broker_may_take(
    name: str, shape: tuple[int, int, int]
):
    cluster = skewed_cluster(*shape)
    goal = ReplicationFactor(2) if name == "factor-down" else GOALS[name](cluster)
    without = plan(cluster, goal, sizes=False)
    aware = plan(cluster, goal, sizes=True)
    assert aware.fullest() <= max(1 + TOLERANCE, (1 + 2 * without.fullest()) / 3)
    assert aware.summary["moves"] <= without.summary["moves"] + 100 + without.summary["moves"] // 10
    spreads = [p.summary["leaders_per_broker"]["after"] for p in (aware, without)]
    aware_spread, spread = (found["max"] - found["min"] for found in spreads)
    assert name == "factor-down" or aware_spread <= max(1, spread)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_new_broker_does_not_get_the_largest_replicas(shape: tuple[int, int, int]):
    cluster = skewed_cluster(*shape, new=3)
    without = plan(cluster, Rebalance(_new(cluster)), sizes=False)
    aware = plan(cluster, Rebalance(_new(cluster)), sizes=True)
    held = aware.layout.bytes_held(aware.layout.after)[aware.left]
    old = len(aware.left) - 3
    assert held[old:].max() <= max((1 + TOLERANCE) * held.mean(), held[:old].max())
    assert aware.fullest() <= without.fullest()
    assert aware.summary["moves"] == without.summary["moves"] == without.summary["lower_bound"]
    assert aware.summary["bytes_moved"] <= 1.3 * bytes_moved(without)


def bytes_moved(found: Plan) -> int:
    return int((found.layout.new_replicas().sum(axis=1) * found.layout.sizes).sum())


def test_racks_that_a_plan_gains_are_not_given_up_for_bytes():
    cluster = skewed_cluster(12, 3, 300)
    alone = cluster_of([row[:1] for row in cluster.replicas], cluster.racks, sizes=cluster.sizes)
    found = plan(alone, ReplicationFactor(3), sizes=True)
    for row in found.layout.after.tolist():
        assert known_racks(row, alone) == 3


def test_a_removed_replica_is_not_a_move():
    cluster = skewed_cluster(9, 0, 300)
    found = plan(cluster, ReplicationFactor(2), sizes=False)
    partitions = len(cluster.replicas)
    assert (found.summary["moves"], found.summary["removals"]) == (0, partitions)
    assert found.summary["lower_bound"] == found.summary["reordered"] == 0
    after = loads_after(list(found.layout.changes()), cluster)
    assert sum(after.values()) == 2 * partitions


def test_the_bytes_of_removed_replicas_are_not_moved():
    cluster = skewed_cluster(9, 0, 300)
    found = plan(cluster, ReplicationFactor(1), sizes=True, extra_moves=0)
    assert (found.summary["moves"], found.summary["bytes_moved"]) == (0, 0)
