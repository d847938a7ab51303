"""Placement in Spark's tasks: the rows arrive complete, in sequence and in every format."""

import json
from collections import Counter
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from pyspark.sql import SparkSession

import regent.jobs.placement_job
from regent.core.placement.replica_placer import PlacementError, place
from regent.core.protocol.placement import PlacementBroker, PlacementSpec, PlaceTopicsRequest
from regent.jobs.placement_arrays import placement_arrays
from regent.jobs.placement_job import place_with_spark, placement_frame, placement_loads
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
    frame = placement_frame(spark, placement_arrays(large))
    for file_format in ("parquet", "json"):
        write_files(frame, str(tmp_path / file_format), file_format)
        assert (tmp_path / file_format / "_SUCCESS").exists()
    write_document(frame.toArrow().to_batches(), tmp_path)

    expected = place(large)
    replicas = Counter(broker for row in expected for broker in row.replicas)
    leaders = Counter(row.replicas[0] for row in expected)
    loads = placement_loads(spark, placement_arrays(large))
    assert loads == {broker: (count, leaders[broker]) for broker, count in replicas.items()}
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


def test_an_empty_request_is_accepted(spark: SparkSession):
    assert place_with_spark(spark, request([], 1)) == []


def test_an_impossible_placement_is_refused_with_the_reason(spark: SparkSession):
    with pytest.raises(PlacementError, match="larger than the 3 available brokers"):
        place_with_spark(spark, request([PlacementSpec("t", 1, 4, 0)], 3))
