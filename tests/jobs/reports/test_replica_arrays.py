"""Assignments as arrays, against counts with dictionaries."""

from __future__ import annotations

from collections import Counter
from random import Random

import numpy as np
import pyarrow
import pytest

from regent.jobs.reports.replica_arrays import (
    ReplicaArrays,
    copysets,
    pair_counts,
    replica_arrays,
    scatter_widths,
)


def random_assignment(rng: Random, ids: list[int], partitions: int) -> list[list[int]]:
    return [rng.sample(ids, rng.randint(1, min(4, len(ids)))) for _ in range(partitions)]


def arrays(assignment: list[list[int]], known: list[int]) -> ReplicaArrays:
    column = pyarrow.chunked_array(
        [assignment[:1], assignment[1:]], type=pyarrow.list_(pyarrow.int32())
    )
    return replica_arrays(column, known)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("largest", [30, 2**31 - 1])
def test_the_counts_equal_those_of_dictionaries(seed: int, largest: int):
    rng = Random(seed)
    ids = sorted(rng.sample(range(min(largest, 40) + 1), 12))
    if largest > 40:
        ids[-1] = largest  # too large for a table
    assignment = random_assignment(rng, ids[2:], 60)
    found = arrays(assignment, ids[:3])
    names = found.broker_ids.tolist()
    assert names == sorted({*ids[:3], *(b for r in assignment for b in r)})
    assert found.brokers == len(names)
    assert found.partitions == 60
    replicas = Counter(b for r in assignment for b in r)
    preferred = Counter(r[0] for r in assignment)
    assert found.replicas_per_broker().tolist() == [replicas[b] for b in names]
    assert found.preferred_per_broker().tolist() == [preferred[b] for b in names]

    sets = [copysets(replicas, len(names)) for replicas in found.by_factor.values()]
    counted = {
        frozenset(names[p] for p in row): n
        for members, partitions in sets
        for row, n in zip(members.tolist(), partitions.tolist(), strict=True)
    }
    assert counted == Counter(frozenset(r) for r in assignment)
    peers = [set().union(*(r for r in assignment if b in r)) - {b} for b in names]
    assert scatter_widths(sets, len(names)).tolist() == [len(p) for p in peers]


def test_copysets_too_large_for_one_number_are_distinguished():
    rng = Random(1)
    brokers = 100_000
    rows = [rng.sample(range(brokers), 6) for _ in range(50)] * 2 + [[1, 2, 3, 4, 5, 6]]
    members, partitions = copysets(np.array(rows, np.int32), brokers)
    expected = Counter(tuple(sorted(row)) for row in rows)
    assert [tuple(row) for row in members.tolist()] == sorted(expected)
    assert partitions.tolist() == [expected[row] for row in sorted(expected)]


def test_pairs_are_counted_in_blocks(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("regent.jobs.reports.replica_arrays._BLOCK", 20)
    rng = np.random.default_rng(0)
    one, other = rng.integers(0, 9, (2, 500), np.int32)
    blocks = list(pair_counts([(one, other), (other, one)], 9))
    assert [low for low, _ in blocks] == [0, 2, 4, 6, 8]
    counted = np.concatenate([rows for _, rows in blocks])
    expected = Counter([*zip(one, other, strict=True), *zip(other, one, strict=True)])
    assert {(a, b): n for (a, b), n in np.ndenumerate(counted) if n} == expected
