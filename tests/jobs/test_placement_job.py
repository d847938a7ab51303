"""The Spark job against the pure functions, case by case, many cases in one job."""

import random

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.functions import spark_partition_id

import regent.jobs.placement_job
from regent.core.placement.replica_placer import PlacementError, place, runs
from regent.core.protocol.placement import PlacementBroker, PlacementSpec, PlaceTopicsRequest
from regent.jobs.placement_job import place_with_spark, placement_frame

pytestmark = pytest.mark.spark


def request(
    topics: list[PlacementSpec],
    racks: list[str | None],
    *,
    strategy: str = "ring",
    start: str = "0",
    index: str = "batch",
) -> PlaceTopicsRequest:
    brokers = tuple(PlacementBroker(b, rack, b % 3) for b, rack in enumerate(racks))
    return PlaceTopicsRequest(tuple(topics), brokers, strategy, start, index, seed=len(racks))


def every_factor_and_growth(n: int) -> list[PlacementSpec]:
    """Topics of every replication factor, new and growing from around multiples of ``n``."""
    return [
        PlacementSpec(f"rf{factor}-from{first}-{copy}", 2 * n + 1, factor, first)
        for factor in range(1, n + 1)
        for first in sorted({0, 1, n - 1, n, 2 * n + 1})
        for copy in range(6)
    ]


def test_four_partitions_with_three_replicas_on_four_brokers(spark: SparkSession):
    topics = [PlacementSpec("orders", 4, 3, 0)]
    placed = place_with_spark(spark, request(topics, [None] * 4))
    assert [p.replicas for p in placed] == [(0, 1, 2), (1, 2, 3), (2, 3, 0), (3, 0, 1)]


def test_payments_with_twelve_partitions_on_three_brokers(spark: SparkSession):
    payments = PlacementSpec("payments", 12, 3, 0)
    placed = place_with_spark(spark, request([payments], [None] * 3))
    assert placed == [("payments", i, tuple((i + j) % 3 for j in range(3))) for i in range(12)]


@pytest.mark.parametrize("strategy", ["ring", "kafka"])
@pytest.mark.parametrize("n", range(1, 9))
def test_it_equals_the_function_for_every_small_cluster(spark: SparkSession, strategy: str, n: int):
    # With a start for each topic, every topic draws a start and a shift: one job covers them all.
    cases = request(
        every_factor_and_growth(n),
        [None] * n,
        strategy=strategy,
        start="random",
        index="per-topic",
    )
    assert {run.start for run in runs(cases)} == {run.shift for run in runs(cases)} == {*range(n)}
    assert place_with_spark(spark, cases) == place(cases)


@pytest.mark.parametrize(
    "layout", ["a", "aa", "ab", "aab", "abc", "aabb", "abcd", "aaaab", "abcabc", "abcabcab", "aaaa"]
)
def test_it_equals_the_rack_aware_function_for_every_layout(spark: SparkSession, layout: str):
    cases = request(
        every_factor_and_growth(len(layout)),
        list(layout),
        strategy="rack-aware",
        start="random",
        index="per-topic",
    )
    assert place_with_spark(spark, cases) == place(cases)


@pytest.mark.parametrize("strategy", ["ring", "kafka", "rack-aware", "copyset"])
@pytest.mark.parametrize("start", ["0", "2147483647", "least-loaded", "random"])
def test_it_counts_a_batch_as_the_function_does(spark: SparkSession, strategy: str, start: str):
    dice = random.Random(start)
    topics = [
        PlacementSpec(f"t{number}", dice.randint(1, 9), dice.randint(1, 5), dice.choice([0, 3, 14]))
        for number in range(100)
    ]
    batch = request(topics, ["a", "b", "c", "a", "b"], strategy=strategy, start=start)
    assert place_with_spark(spark, batch) == place(batch)


def test_it_equals_the_copysets_of_every_factor(spark: SparkSession):
    cases = request(
        every_factor_and_growth(7),
        list("abcabca"),
        strategy="copyset",
        start="random",
        index="per-topic",
    )
    assert place_with_spark(spark, cases) == place(cases)


@pytest.mark.parametrize("strategy", ["rack-aware", "copyset"])
def test_many_partitions_are_spread_over_tasks_and_stay_in_sequence(
    spark: SparkSession, strategy: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(regent.jobs.placement_job, "_ONE_TASK", 1_000)
    topics = [PlacementSpec(f"t{number}", 5_001, 2, 0) for number in range(3)]
    large = request(topics, ["a", "b", "c"], strategy=strategy, start="1")
    tasks = placement_frame(spark, large).select(spark_partition_id()).distinct().count()
    assert tasks > 1
    assert place_with_spark(spark, large) == place(large)


def test_an_empty_request_is_accepted(spark: SparkSession):
    assert place_with_spark(spark, request([], [None])) == []


def test_an_impossible_placement_is_refused_with_the_reason(spark: SparkSession):
    with pytest.raises(PlacementError, match="larger than the 3 available brokers"):
        place_with_spark(spark, request([PlacementSpec("t", 1, 4, 0)], [None] * 3))
