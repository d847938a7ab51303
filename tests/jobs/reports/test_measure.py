"""What Spark measures of an assignment equals plain counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from random import Random
from typing import Any

import numpy as np
import pytest
from pyspark.sql import DataFrame, SparkSession

from regent.jobs.brokers_file import PlannedBroker
from regent.jobs.reports.measure import measure
from tests.jobs.reports.plain_balance import Row, plain_balance

SCHEMA = (
    "topic string, partition int, replicas array<int>, leader int, isr array<int>,"
    " adding_replicas array<int>, min_isr int"
)


OF_NO_USE = [(10, "d"), (2**31 - 1, "a")]
"""Brokers that take no replicas, without and with some."""


def frame_of(spark: SparkSession, rows: Sequence[Row]) -> DataFrame:
    return spark.createDataFrame([tuple(row) for row in rows], SCHEMA).repartition(3)


def as_lists(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value


def some_rows(rng: Random, brokers: Sequence[int]) -> list[Row]:
    """Return partitions in any state: without a leader, out of sync, being moved, unknown."""
    rows = []
    for number in range(300):
        replicas = rng.sample(brokers, rng.choice([1, 2, 3, 3, 4]))
        isr = rng.sample(replicas, rng.randrange(len(replicas) + 1))
        leader = rng.choice([None, -1, replicas[0], *isr])
        row = Row(f"t{number % 7}", number, replicas, leader, rng.choice([None, isr, isr]))
        adding = replicas[-1:] if rng.random() < 0.2 else None
        rows.append(row._replace(adding_replicas=adding, min_isr=rng.choice([None, 1, 2, 3])))
    return rows


@pytest.mark.spark
@pytest.mark.parametrize("racks", ["", "aab-cb", "aabbce"])
def test_spark_counts_what_plain_counts_do(spark: SparkSession, racks: str):
    rng = Random(7)
    brokers = [0, 1, 2, 5, 1001, 70_000, 2**31 - 1]
    listed = [
        PlannedBroker(b, None if rack == "-" else rack, 0, None, no_replicas=rack == "e")
        for b, rack in zip(brokers, racks, strict=False)
    ]
    listed.append(PlannedBroker(9, "c", 0, 12))
    listed += [PlannedBroker(b, rack, 0, None, no_replicas=True) for b, rack in OF_NO_USE]
    if racks.endswith("e"):
        listed = [b._replace(node_host=f"m{b.broker_id % 5}") for b in listed]
    rows = some_rows(rng, brokers)
    found = measure(spark, frame_of(spark, rows), listed if racks else ())
    expected = plain_balance(rows, listed if racks else ())
    for field in fields(found):
        have, want = (getattr(balance, field.name) for balance in (found, expected))
        if field.name in ("fair", "loads"):
            np.testing.assert_equal(have, want)
        elif field.name == "leaders":
            for of_leaders in fields(want):
                have_it, want_it = (getattr(each, of_leaders.name) for each in (have, want))
                assert as_lists(have_it) == as_lists(want_it), of_leaders.name
        elif field.name == "racks":
            assert have.names == want.names
            assert have.of_broker.tolist() == want.of_broker.tolist()
        else:
            assert as_lists(have) == as_lists(want), field.name


@pytest.mark.spark
def test_a_source_without_leaders_and_isrs_has_no_bad_states(spark: SparkSession):
    rows = [Row("t", 0, [0, 1]), Row("t", 1, [1, 2])]
    found = measure(spark, frame_of(spark, rows))
    assert found.leaders is None
    assert [state.partitions for state in found.states.values()] == [0, 0, 0]
    assert found.out_of_sync.tolist() == [0, 0, 0]
