"""Waves: each keeps the limits, no change is lost, and there are few more than necessary."""

from collections import Counter
from random import Random

import pytest

from regent.jobs.planning.model import Change
from regent.jobs.planning.waves import number_waves


def random_changes(seed: int, count: int, brokers: int) -> list[Change]:
    """Return changes of three replicas, of which one to three are moved."""
    dice = Random(seed)
    changes = []
    for partition in range(count):
        replicas = dice.sample(range(brokers), 6)
        before = tuple(replicas[:3])
        moved = dice.choice([1, 1, 1, 2, 3])
        after = (*replicas[3 : 3 + moved], *before[moved:])
        changes.append(Change("t", partition, before, after, dice.choice(before)))
    return changes


@pytest.mark.parametrize("seed", range(20))
def test_no_broker_exceeds_its_limit_in_a_wave(seed: int):
    changes = random_changes(seed, 300, 10 + seed)
    per_broker, total = 3 + seed % 3, 15 + seed
    waves = number_waves(changes, per_broker, total)
    assert set(waves) == set(range(max(waves) + 1))
    for wave in range(max(waves) + 1):
        chosen = [c for c, w in zip(changes, waves, strict=True) if w == wave]
        assert sum(len(c.added) for c in chosen) <= total
        for broker in range(10 + seed):
            received = sum(broker in c.added for c in chosen)
            sent = sum(len(c.added) if broker == c.sender else 0 for c in chosen)
            given_up = sum(broker in c.removed and broker != c.sender for c in chosen)
            assert received + sent + given_up <= per_broker


def test_one_busy_broker_makes_as_many_waves_as_it_needs():
    changes = [Change("t", p, (0, 1 + p % 7), (8 + p % 9, 1 + p % 7), 0) for p in range(500)]
    waves = number_waves(changes, per_broker=5, total=250)
    assert Counter(waves) == dict.fromkeys(range(100), 5)


def test_the_cluster_has_a_limit_of_its_own():
    changes = [Change("t", p, (p,), (1000 + p,), p) for p in range(100)]
    assert Counter(number_waves(changes, 5, 30)) == {0: 30, 1: 30, 2: 30, 3: 10}


def test_a_change_that_exceeds_a_limit_is_a_wave_of_its_own():
    large = Change("t", 0, (1,), (1, 2, 3, 4), 1)
    small = Change("t", 1, (1,), (5,), 1)
    waves = number_waves([large, small], per_broker=2, total=2)
    assert sorted(waves) == [0, 1]


def test_dropping_a_replica_sends_nothing():
    changes = [Change("t", p, (0, 1 + p), (0,), 0) for p in range(10)]
    assert number_waves(changes, 1, 100) == [0] * 10
