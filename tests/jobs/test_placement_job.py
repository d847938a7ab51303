"""Placement in Spark's tasks: the rows arrive complete, in sequence and in every format."""

import json
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from pyspark.sql import SparkSession

import regent.jobs.placement_job
from regent.core.placement.replica_placer import PlacementError, place
from regent.core.protocol.placement import PlacementBroker, PlacementSpec, PlaceTopicsRequest
from regent.jobs.placement_arrays import placement_arrays
from regent.jobs.placement_job import (
    batches_of,
    place_with_spark,
    placement_loads,
    placement_table,
)
from regent.jobs.placement_output import write_document
from regent.jobs.tables import write_files

pytestmark = pytest.mark.spark


def request(
    topics: list[PlacementSpec], brokers: int, strategy: str = "ring"
) -> PlaceTopicsRequest:
    hosts = tuple(PlacementBroker(b, f"rack-{b % 3}", 0) for b in range(brokers))
    return PlaceTopicsRequest(tuple(topics), hosts, strategy, "1", "batch", seed=0)


def test_payments_with_twelve_partitions_on_three_brokers(spark: SparkSession):
    payments = request([PlacementSpec("payments", 12, 3, 0)], 3)
    assert place_with_spark(spark, payments) == place(payments)


@pytest.mark.parametrize("strategy", ["kafka", "copyset"])
def test_many_tasks_write_one_sequence_of_rows_in_every_format(
    spark: SparkSession, strategy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(regent.jobs.placement_job, "_ROWS_OF_TASK", 500)
    monkeypatch.setattr(regent.jobs.placement_job, "_REPLICAS_AT_ONCE", 300)
    topics = [PlacementSpec(f"t{number}", 700, 1 + number, number) for number in range(3)]
    large = request(topics, 5, strategy)
    arrays = placement_arrays(large)
    shared = spark.sparkContext.broadcast(arrays)
    found = [placement_loads(spark, shared)]
    for file_format in ("parquet", "json"):
        table, loads = placement_table(spark, shared)
        write_files(table, str(tmp_path / file_format), file_format)
        found.append(loads.value)
        assert (tmp_path / file_format / "_SUCCESS").exists()
    write_document(batches_of(arrays, range(arrays.rows), lambda _: None), tmp_path)

    expected = place(large)
    rows = [{"topic": t, "partition": p, "replicas": list(r)} for t, p, r in expected]
    parts = sorted((tmp_path / "parquet").glob("part-*.parquet"))
    assert len(parts) == 5
    read = pyarrow.concat_tables(pyarrow.parquet.read_table(part) for part in parts)
    assert read.to_pylist() == rows
    assert read.schema.types[0] == pyarrow.string()
    document = json.loads((tmp_path / "placement.json").read_text())
    assert document == {"version": 1, "partitions": rows}
    lines = [
        json.loads(line)
        for part in sorted((tmp_path / "json").glob("part-*.json"))
        for line in part.read_text().splitlines()
    ]
    assert lines == rows
    brokers = np.bincount([broker for row in expected for broker in row.replicas])
    leaders = np.bincount([row.replicas[0] for row in expected])
    for each in found:
        assert each.replicas.tolist() == brokers.tolist()
        assert each.leaders.tolist() == leaders.tolist()


def test_an_empty_request_is_accepted(spark: SparkSession):
    assert place_with_spark(spark, request([], 1)) == []


def test_an_impossible_placement_is_refused_with_the_reason(spark: SparkSession):
    with pytest.raises(PlacementError, match="larger than the 3 available brokers"):
        place_with_spark(spark, request([PlacementSpec("t", 1, 4, 0)], 3))
