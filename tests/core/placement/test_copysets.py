"""Copysets: their properties, for every small cluster."""

import random
from collections import Counter
from itertools import product

import pytest

from regent.core.placement.copysets import Copyset, rota, rota_length

NO_RACKS: dict[int, str] = {}


def peers(entries: list[Copyset]) -> dict[int, set[int]]:
    """Return the brokers that share partitions with each broker."""
    found: dict[int, set[int]] = {}
    for entry in entries:
        for broker in entry:
            found.setdefault(broker, set()).update(set(entry) - {broker})
    return found


def copysets(entries: list[Copyset]) -> set[frozenset[int]]:
    return {frozenset(entry) for entry in entries}


def spread(loads: Counter[int], brokers: int) -> int:
    counts = [loads[broker] for broker in range(brokers)]
    return max(counts) - min(counts)


def test_six_brokers_in_one_permutation_have_two_alternating_copysets():
    entries = rota(range(6), NO_RACKS, 3, 2, seed=1)
    assert len(copysets(entries)) == 2
    assert set(entries[0]).isdisjoint(entries[1])
    assert [frozenset(entry) for entry in entries] == [*map(frozenset, entries[:2])] * 3
    assert {entry[0] for entry in entries} == set(range(6))


@pytest.mark.parametrize("width", [1, 4, 10])
def test_all_brokers_hold_and_lead_equally_many_partitions(width: int):
    for n in range(1, 16):
        for factor in range(1, n + 1):
            entries = rota(range(n), NO_RACKS, factor, width, seed=n)
            assert len(entries) == rota_length(n, factor, width)
            assert all(len(set(entry)) == factor for entry in entries)
            assert spread(Counter(broker for entry in entries for broker in entry), n) == 0
            assert spread(Counter(entry[0] for entry in entries), n) == 0


@pytest.mark.parametrize("factor", [2, 3, 4])
def test_loads_are_even_after_any_number_of_partitions(factor: int):
    for n in range(factor, 24):
        loads: Counter[int] = Counter()
        for entry in rota(range(n), NO_RACKS, factor, 9, seed=n):
            loads.update(entry)
            assert spread(loads, n) <= (1 if n % factor == 0 else 2)


def test_the_scatter_width_is_as_requested_with_few_copysets():
    entries = rota(range(999), NO_RACKS, 3, 10, seed=5)
    widths = [len(others) for others in peers(entries).values()]
    assert len(widths) == 999
    assert max(widths) == 10
    assert sum(widths) / 999 > 9.9  # sometimes two permutations pair the same brokers
    assert len(copysets(entries)) == 5 * 333


def test_remaining_brokers_need_a_few_more_copysets():
    entries = rota(range(1000), NO_RACKS, 3, 10, seed=5)
    widths = [len(others) for others in peers(entries).values()]
    assert max(widths) <= 15
    assert len(copysets(entries)) == 5 * (332 + 4)


def test_no_copyset_has_two_brokers_of_a_rack_if_there_are_enough_racks():
    dice = random.Random(3)
    for n, names in product(range(3, 20), ["abc", "abcd", "aaabc", "aabbccdef"]):
        racks = {broker: dice.choice(names) for broker in range(n)}
        for factor in range(1, len(set(racks.values())) + 1):
            entries = rota(range(n), racks, factor, 4, seed=n)
            assert all(len({racks[broker] for broker in entry}) == factor for entry in entries)
            assert {broker for entry in entries for broker in entry} == set(range(n))


def test_small_racks_do_not_disturb_the_balance():
    racks = {broker: "abcde"[broker % 5] for broker in range(47)}
    entries = rota(range(47), racks, 3, 8, seed=0)
    assert spread(Counter(broker for entry in entries for broker in entry), 47) == 0
    assert spread(Counter(entry[0] for entry in entries), 47) == 0


def test_a_rack_that_is_too_large_gives_one_broker_to_every_copyset():
    racks = {broker: "a" if broker < 40 else "bcd"[broker % 3] for broker in range(70)}
    entries = rota(range(70), racks, 3, 4, seed=0)
    holds = Counter(broker for entry in entries for broker in entry)
    assert all(sum(racks[broker] == "a" for broker in entry) == 1 for entry in entries)
    assert len({holds[broker] for broker in range(40, 70)}) == 1
    assert max(holds[b] for b in range(40)) < min(holds[b] for b in range(40, 70))
    of_each = Counter(broker for copyset in copysets(entries) for broker in copyset)
    assert min(of_each.values()) >= 2
    assert spread(Counter(entry[0] for entry in entries), 70) <= 2


@pytest.mark.parametrize("layout", ["aabb", "aaabb", "aaabbb", "aaaabbbb", "ababababa"])
def test_all_racks_are_used_if_there_are_fewer_than_replicas(layout: str):
    racks = dict(enumerate(layout))
    entries = rota(range(len(layout)), racks, 3, 4, seed=0)
    assert all(len({racks[broker] for broker in entry}) == 2 for entry in entries)


def test_the_seed_decides_and_not_the_sequence_of_brokers():
    brokers = [7, 300, 12, 5, 91, 40, 8]
    racks = {broker: f"rack-{broker % 3}" for broker in brokers}
    chosen = rota(brokers, racks, 3, 6, seed=4)
    backwards = {broker: racks[broker] for broker in reversed(brokers)}
    assert rota(sorted(brokers), backwards, 3, 6, seed=4) == chosen
    assert rota(brokers, racks, 3, 6, seed=5) != chosen


def test_there_are_fewer_copysets_than_on_a_ring_of_the_same_scatter_width():
    n = 30
    ring = {frozenset({i, (i + 1) % n, (i + 2) % n}) for i in range(n)}
    assert len(copysets(rota(range(n), NO_RACKS, 3, 4, seed=0))) == 20 < len(ring)
