"""Preferred leaders are as even as the replicas allow, and as few as possible change."""

from itertools import product
from random import Random

import numpy as np
import pytest

from regent.jobs.planning.goals import Decommission, Replace
from regent.jobs.planning.leadership import LeaderBalance, choose_leaders
from tests.support.planned_clusters import PlannedCluster, cluster_of, random_cluster, ring_cluster


def leaders_of(rows: list[list[int]], former: list[int], others: list[int]) -> LeaderBalance:
    """Return the leaders of rows, at first the former ones; ``others`` lead other rows.

    A row without a former leader (-1) begins with its first replica.
    """
    replicas = np.full((len(rows), max(map(len, rows))), -1, np.int32)
    for number, row in enumerate(rows):
        replicas[number, : len(row)] = row
    first = np.where(np.array(former) < 0, replicas[:, 0], former)
    count = np.array(others) + np.bincount(first, minlength=len(others))
    may_lead = np.ones(len(others), np.bool_)
    return LeaderBalance(replicas, first, np.array(former), count, may_lead)


@pytest.mark.parametrize("seed", range(80))
def test_no_choice_is_more_even_and_of_those_none_changes_fewer_leaders(seed: int):
    dice = Random(seed)
    brokers = dice.randint(2, 5)
    rows = [
        dice.sample(range(brokers), dice.randint(1, min(3, brokers)))
        for _ in range(dice.randint(1, 7))
    ]
    former = [dice.choice(row) if dice.random() < 0.8 else -1 for row in rows]
    others = [dice.choice([0, 0, 1, 3]) for _ in range(brokers)]
    check_best(rows, former, others)


def test_a_partition_gets_its_former_leader_back_if_that_is_as_even():
    check_best([[0], [1, 3, 2], [0, 3], [3], [0, 3, 2]], [0, 2, -1, 3, 0], [0, 0, 1, 0])


def check_best(rows: list[list[int]], former: list[int], others: list[int]) -> None:
    """Compare the leaders with all possible ones."""
    found = leaders_of(rows, former, others)
    found.balance()

    def worth(leaders: list[int] | tuple[int, ...]) -> tuple[int, int]:
        count = np.array(others) + np.bincount(leaders, minlength=len(others))
        changed = sum(b != f for b, f in zip(leaders, former, strict=True) if f >= 0)
        return int((count**2).sum()), changed

    chosen = found.leader.tolist()
    assert worth(chosen) == min(map(worth, product(*rows)))
    assert (
        found.count.tolist()
        == (np.array(others) + np.bincount(chosen, minlength=len(others))).tolist()
    )


def plan(cluster: PlannedCluster, *, evenly: bool = True, leaving: int | None = None) -> list[int]:
    """Decommission a broker, if one is given, and return the leaders by broker after the plan.

    Checks that nothing else than the sequence of replicas changes.
    """
    layout = cluster.layout()
    left = [b for b in range(cluster.brokers.usable) if b != leaving]
    if leaving is not None:
        Decommission([leaving]).plan(layout, seed=1)
    held = [sorted(replicas) for replicas in layout.after.tolist()]
    led = choose_leaders(layout, left, evenly=evenly)
    assert [sorted(replicas) for replicas in layout.after.tolist()] == held
    assert np.bincount(layout.after[:, 0], minlength=len(cluster.brokers.ids)).tolist() == led
    if not evenly:
        for before, after in zip(cluster.replicas, layout.after.tolist(), strict=True):
            assert before[0] == after[0] or before[0] not in after
    return led


def test_leaders_of_a_skewed_cluster_become_even():
    dice = Random(7)
    rows = [sorted(dice.sample(range(9), 3)) for _ in range(900)]  # small ids lead
    counts = plan(cluster_of(rows, dict.fromkeys(range(9), 0)))
    assert counts == [100] * 9


@pytest.mark.parametrize("seed", range(30))
def test_brokers_that_are_not_listed_keep_their_leaderships_and_get_no_new_ones(seed: int):
    cluster = random_cluster(seed)
    before = cluster.brokers.leaders
    counts = plan(cluster)
    usable = cluster.brokers.usable
    assert counts[usable:] == before[usable:]
    assert max(counts[:usable]) <= max(before[:usable])
    assert min(counts[:usable]) >= min(before[:usable])


def test_leaderships_of_a_leaving_broker_are_spread_and_no_others_change_unless_wanted():
    cluster = ring_cluster(brokers=12, partitions=1200, factor=3)
    few = plan(cluster, leaving=4, evenly=False)
    assert (few[4], sum(few), max(few)) == (0, 1200, 112)
    even = plan(cluster, leaving=4)
    assert sorted(even) == [0, *[109] * 10, 110]


def test_a_broker_that_replaces_another_leads_in_its_place():
    cluster = cluster_of([[0, 1], [1, 0], [0, 2], [2, 0]], {0: 0, 1: 0, 2: 0, 3: 0})
    layout = cluster.layout()
    Replace([0], [3]).plan(layout, seed=0)
    led = choose_leaders(layout, [1, 2, 3], evenly=False, keeps_places=True)
    assert layout.after.tolist() == [[3, 1], [1, 3], [3, 2], [2, 3]]
    assert led == [0, 1, 1, 2]
