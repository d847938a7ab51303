"""Placement by numpy against the pure functions, case by case."""

import pickle
import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import pytest

from regent.core.placement.replica_placer import PlacementError, place, runs
from regent.core.protocol.placement import (
    PlacedPartition,
    PlacementBroker,
    PlacementHost,
    PlacementSpec,
    PlaceTopicsRequest,
)
from regent.jobs.placement_arrays import PlacementArrays, placement_arrays


def request(
    topics: list[PlacementSpec],
    racks: Sequence[str | None],
    *,
    strategy: str = "ring",
    start: str = "0",
    index: str = "batch",
) -> PlaceTopicsRequest:
    brokers = tuple(PlacementBroker(3 * b + 1, rack, b % 3) for b, rack in enumerate(racks))
    return PlaceTopicsRequest(tuple(topics), brokers[::-1], strategy, start, index, seed=len(racks))


def placed(arrays: PlacementArrays, low: int = 0, high: int | None = None) -> list[PlacedPartition]:
    rows = arrays.place(low, arrays.rows if high is None else high).to_pylist()
    return [PlacedPartition(r["topic"], r["partition"], tuple(r["replicas"])) for r in rows]


def every_factor_and_growth(n: int) -> list[PlacementSpec]:
    """Topics of every replication factor, new and growing from around multiples of ``n``."""
    return [
        PlacementSpec(f"rf{factor}-from{first}-{copy}", 2 * n + 1, factor, first)
        for factor in range(1, n + 1)
        for first in sorted({0, 1, n - 1, n, 2 * n + 1})
        for copy in range(6)
    ]


@pytest.mark.parametrize("strategy", ["ring", "kafka"])
@pytest.mark.parametrize("n", range(1, 9))
def test_it_equals_the_function_for_every_small_cluster(strategy: str, n: int):
    # With a start for each topic, every topic draws a start and a shift: one request covers all.
    cases = request(
        every_factor_and_growth(n),
        [None] * n,
        strategy=strategy,
        start="random",
        index="per-topic",
    )
    assert {run.start for run in runs(cases)} == {run.shift for run in runs(cases)} == {*range(n)}
    assert placed(placement_arrays(cases)) == place(cases)


@pytest.mark.parametrize(
    "layout", ["a", "aa", "ab", "aab", "abc", "aabb", "abcd", "aaaab", "abcabc", "abcabcab", "aaaa"]
)
@pytest.mark.parametrize("strategy", ["rack-aware", "copyset"])
def test_it_equals_the_function_for_every_layout_of_racks(layout: str, strategy: str):
    cases = request(
        every_factor_and_growth(len(layout)),
        list(layout),
        strategy=strategy,
        start="random",
        index="per-topic",
    )
    assert placed(placement_arrays(cases)) == place(cases)


@pytest.mark.parametrize("strategy", ["ring", "kafka", "rack-aware", "copyset"])
@pytest.mark.parametrize("index", ["batch", "per-topic"])
@pytest.mark.parametrize("start", ["0", "2147483647", "least-loaded", "random"])
def test_it_counts_as_the_function_does(strategy: str, index: str, start: str):
    dice = random.Random(start)
    topics = [
        PlacementSpec(f"t{number}", dice.randint(1, 9), dice.randint(1, 5), dice.choice([0, 3, 14]))
        for number in range(100)
    ]
    racks = ["a", "b", "c", "a", "b"]
    cases = request(topics, racks, strategy=strategy, start=start, index=index)
    assert placed(placement_arrays(cases)) == place(cases)


@pytest.mark.parametrize("strategy", ["ring", "kafka", "rack-aware", "copyset"])
def test_any_range_is_placed_as_in_the_whole_by_a_copy_of_the_arrays(strategy: str):
    topics = [PlacementSpec(f"t{n}", 1 + n % 4, 1 + n % 5, n % 3) for n in range(12)]
    cases = request(topics, ["a", "b", "c", "a", "b"], strategy=strategy, start="2")
    whole, arrays = place(cases), pickle.loads(pickle.dumps(placement_arrays(cases)))
    for low in range(len(whole)):
        for high in range(low + 1, len(whole) + 1):
            assert placed(arrays, low, high) == whole[low:high]


def test_the_largest_partition_ids_and_broker_ids_are_placed():
    last = PlacementSpec("t", 5, 2, 2**31 - 6)
    brokers = tuple(PlacementBroker(2**31 - 1 - b, None, 0) for b in range(3))
    for strategy in ("ring", "kafka", "copyset"):
        cases = PlaceTopicsRequest((last,), brokers, strategy, "2147483647", "batch", 0)
        assert placed(placement_arrays(cases)) == place(cases)


def test_an_empty_request_has_no_rows():
    assert placement_arrays(request([], [None])).rows == 0


def test_an_impossible_placement_is_refused_with_the_reason():
    with pytest.raises(PlacementError, match="larger than the 3 available brokers"):
        placement_arrays(request([PlacementSpec("t", 1, 4, 0)], [None] * 3))


@pytest.mark.parametrize("strategy", ["ring", "kafka", "rack-aware", "copyset"])
def test_it_equals_the_function_where_brokers_share_hosts(strategy: str):
    for host_of, racks in product(("aabb", "abbbc", "aabbccdd", "cabcab"), (None, 2)):
        hosts = len(set(host_of))
        topics = [topic for topic in every_factor_and_growth(hosts) if topic.topic.endswith("-0")]
        names = [f"r{ord(host) % racks}" if racks else None for host in host_of]
        for start, index in product(("3", "random"), ("batch", "per-topic")):
            asked = request(topics, names, strategy=strategy, start=start, index=index)
            named = (PlacementHost(3 * b + 1, host) for b, host in enumerate(host_of))
            asked = replace(asked, hosts=tuple(named))
            assert placed(placement_arrays(asked)) == place(asked)
