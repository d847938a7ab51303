"""The simulation of loss, against all possible failures and against formulas."""

from __future__ import annotations

from itertools import combinations
from math import comb
from random import Random

import numpy as np
import pytest

from regent.jobs.reports.loss_simulation import default_failures, loss_curve, rack_losses
from regent.jobs.reports.replica_arrays import Copysets, copysets


def ring(brokers: int, partitions: int, factor: int) -> Copysets:
    rows = [[(i + j) % brokers for j in range(factor)] for i in range(partitions)]
    return copysets(np.array(rows, np.int32), brokers)


def random_sets(rng: Random, brokers: int) -> tuple[list[Copysets], list[list[int]]]:
    rows: list[list[int]] = []
    sets = []
    for factor in rng.sample([2, 3, 4], rng.randint(1, 3)):
        some = [rng.sample(range(brokers), factor) for _ in range(rng.randint(1, 12))]
        sets.append(copysets(np.array(some, np.int32), brokers))
        rows += some
    return sets, rows


def lost(rows: list[list[int]], failed: tuple[int, ...]) -> int:
    return sum(set(row) <= set(failed) for row in rows)


@pytest.mark.parametrize("seed", range(8))
def test_the_simulation_agrees_with_all_possible_failures(seed: int):
    brokers = 9
    sets, rows = random_sets(Random(seed), brokers)
    exact = loss_curve(sets, brokers, brokers, trials=10**6, seed=0)
    few = loss_curve(sets, brokers, brokers, trials=50, seed=seed)
    assert all(point.is_exact for point in exact)
    assert not all(point.is_exact for point in few)
    for k in range(1, brokers + 1):
        ways = [lost(rows, failed) for failed in combinations(range(brokers), k)]
        probability = sum(n > 0 for n in ways) / len(ways)
        assert exact[k - 1].probability == pytest.approx(probability)
        assert exact[k - 1].expected_partitions == pytest.approx(sum(ways) / len(ways))
        # All of 8 seeds x 9 points within 5 standard deviations of 50 trials.
        limit = 5 * (probability * (1 - probability) / 50) ** 0.5 + 1e-9
        assert abs(few[k - 1].probability - probability) <= limit


def test_the_interval_of_a_simulated_point_includes_the_calculated_value():
    """Loss by two adjacent failures in a ring of 40 brokers, which has 40 adjacent pairs."""
    brokers = 40
    points = loss_curve([ring(brokers, brokers, 2)], brokers, 12, trials=2000, seed=1)
    for point in points[2:]:
        k = point.failures
        apart = brokers / (brokers - k) * comb(brokers - k, k)  # ways to fail without neighbours
        probability = 1 - apart / comb(brokers, k)
        assert not point.is_exact
        assert abs(point.probability - probability) < 0.05
        assert point.low - 0.02 <= probability <= point.high + 0.02
    assert points[0].probability == 0
    assert points[1].probability == pytest.approx(40 / comb(40, 2))
    assert [p.probability for p in points] == sorted(p.probability for p in points)


def test_rare_losses_are_distinguished_from_none():
    """Two groups of overlapping copysets among 100 brokers, against all possible failures."""
    rows = [[0, 1, 2], [0, 1, 3], [1, 2, 3], [50, 51], [50, 51, 52, 53]]
    sets = [
        copysets(np.array([row for row in rows if len(row) == factor], np.int32), 100)
        for factor in (2, 3, 4)
    ]
    points = loss_curve(sets, 100, 5, trials=4000, seed=2)
    concerned = [0, 1, 2, 3, 50, 51, 52, 53]
    for k in (3, 4, 5):
        # Only these eight matter: count the sets of k by the brokers of these eight in them.
        ways = sum(
            comb(100 - len(concerned), k - size)
            for size in range(2, k + 1)
            for failed in combinations(concerned, size)
            if lost(rows, failed)
        )
        point, probability = points[k - 1], ways / comb(100, k)
        assert point.probability == pytest.approx(probability, rel=0.05)
        assert point.low <= probability * 1.000001
        assert point.high >= probability * 0.999999
        assert not point.is_exact


def test_the_same_seed_gives_the_same_curve_and_more_copysets_a_higher_one():
    brokers = 60
    rng = np.random.default_rng(3)
    spread = np.array([rng.permutation(brokers)[:3] for _ in range(2000)], np.int32)
    many = loss_curve([copysets(spread, brokers)], brokers, 6, trials=400, seed=5)
    few = loss_curve([ring(brokers, 2000, 3)], brokers, 6, trials=400, seed=5)
    assert many == loss_curve([copysets(spread, brokers)], brokers, 6, trials=400, seed=5)
    assert many[-1].probability > 2 * few[-1].probability
    assert many[-1].expected_partitions == pytest.approx(few[-1].expected_partitions)


def test_one_replica_is_lost_with_its_broker():
    sets = [copysets(np.array([[0], [3], [3]], np.int32), 4), ring(4, 4, 3)]
    [one, two] = loss_curve(sets, 4, 2, trials=1, seed=0)
    assert (one.probability, one.expected_partitions) == (0.5, 0.75)
    assert two.expected_partitions == pytest.approx(1.5)


def test_a_rack_takes_the_partitions_that_are_in_it_only():
    rack_of = np.array([0, 0, 0, 1, 1, -1], np.int32)
    three = copysets(np.array([[0, 1, 2], [2, 1, 0], [0, 1, 3], [3, 4, 5]], np.int32), 6)
    one = copysets(np.array([[5], [4]], np.int32), 6)
    assert rack_losses([three, one], rack_of, 3).tolist() == [2, 1, 0]


@pytest.mark.parametrize(
    ("brokers", "factor", "failures"), [(3, 3, 3), (5, 2, 4), (100, 3, 5), (10_000, 3, 100)]
)
def test_one_percent_of_the_brokers_fail_or_a_few(brokers: int, factor: int, failures: int):
    assert default_failures(brokers, factor) == failures
