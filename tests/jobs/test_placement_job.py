"""Placement in Spark's tasks: the rows arrive complete, in sequence and in every format."""

import json
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from pyspark.sql import SparkSession

import regent.jobs.placement_job
from regent.core.placement.replica_placer import PlacementError, place
from regent.core.protocol.placement import PlacementBroker, PlacementSpec, PlaceTopicsRequest
from regent.jobs.placement_arrays import placement_arrays
from regent.jobs.placement_job import place_with_spark, placed_parts
from regent.jobs.placement_output import FORMATS, read_placement, write_parts

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
def test_many_tasks_in_many_jobs_give_one_sequence_of_rows(
    spark: SparkSession, strategy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(regent.jobs.placement_job, "_REPLICAS_OF_TASK", 1_000)
    monkeypatch.setattr(regent.jobs.placement_job, "_TASKS_OF_JOB", 3)
    topics = [PlacementSpec(f"t{number}", 700, 1 + number, number) for number in range(3)]
    large = request(topics, 5, strategy)
    directories = {file_format: tmp_path / file_format for file_format in FORMATS}
    for directory in directories.values():
        directory.mkdir()
    parts = list(placed_parts(spark, placement_arrays(large)))
    assert len(parts) == 7
    loads = write_parts(parts, directories, 5)

    expected = place(large)
    rows = [{"topic": t, "partition": p, "replicas": list(r)} for t, p, r in expected]
    table = pyarrow.Table.from_batches(read_placement(directories["parquet"]))
    assert table.to_pylist() == rows
    assert table.schema.types[0] == pyarrow.string()
    document = json.loads((directories["json"] / "placement.json").read_text())
    assert document == {"version": 1, "partitions": rows}
    lines = [
        json.loads(line)
        for part in sorted(directories["jsonl"].glob("part-*.json"))
        for line in part.read_text().splitlines()
    ]
    assert lines == rows
    brokers = [broker for row in expected for broker in row.replicas]
    assert loads.replicas.tolist() == np.bincount(brokers).tolist()
    assert loads.leaders.tolist() == np.bincount([row.replicas[0] for row in expected]).tolist()


def test_an_empty_request_is_accepted(spark: SparkSession):
    assert place_with_spark(spark, request([], 1)) == []


def test_an_impossible_placement_is_refused_with_the_reason(spark: SparkSession):
    with pytest.raises(PlacementError, match="larger than the 3 available brokers"):
        place_with_spark(spark, request([PlacementSpec("t", 1, 4, 0)], 3))
