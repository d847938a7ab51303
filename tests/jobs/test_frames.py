"""``regent.spark``: what Regent places and knows, as frames that executors compute."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from regent import spark as regent_spark
from regent.core.errors import RegentError
from regent.core.placement.replica_placer import place as reference
from regent.core.protocol.placement import PlacementBroker, PlacementSpec, PlaceTopicsRequest
from tests.jobs.journals import GeneratedHistory, write_journals

pytestmark = pytest.mark.spark

TOPICS = (("payments", 25, 3), ("audit", 7, 2), ("a", 1, 1))
BROKERS = (9, 3, 5, 7)


def rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(map(tuple, frame.collect()))


def expected(strategy: str = "ring", start_index: str = "0", index: str = "batch") -> list[Any]:
    brokers = tuple(PlacementBroker(b, "ab"[b % 4 == 1], 0) for b in BROKERS)
    specs = tuple(PlacementSpec(*topic, 0) for topic in TOPICS)
    request = PlaceTopicsRequest(specs, brokers, strategy, start_index, index, 4)
    return sorted((t, p, [*r]) for t, p, r in reference(request))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"strategy": "rack-aware", "start_index": "2"},
        {"strategy": "kafka", "start_index": "random", "index": "per-topic"},
    ],
)
def test_a_placement_is_that_of_the_rule(spark: SparkSession, options: dict[str, Any]):
    brokers = [{"id": b, "rack": "ab"[b % 4 == 1]} for b in BROKERS]
    frame = regent_spark.place(spark, TOPICS, brokers, seed=4, **options)
    assert frame.columns == ["topic", "partition", "replicas"]
    assert rows(frame) == expected(**options)
    assert rows(frame.where("topic = 'audit' and partition >= 5")) == [
        row for row in expected(**options) if row[0] == "audit" and row[1] >= 5
    ]


def test_a_placement_of_many_tasks_has_each_partition_once(spark: SparkSession):
    frame = regent_spark.place(spark, [("t", 150_000, 2), ("u", 60_001, 1)], [1, 2, 3])
    assert frame.rdd.getNumPartitions() == spark.sparkContext.defaultParallelism > 1
    counts = frame.groupBy("topic").agg({"partition": "sum", "*": "count"}).collect()
    assert sorted(map(tuple, counts)) == [
        ("t", sum(range(150_000)), 150_000),
        ("u", sum(range(60_001)), 60_001),
    ]


def test_topics_and_brokers_may_be_the_files_of_the_command(spark: SparkSession, tmp_path: Path):
    keys = ("topic", "partitions", "replication_factor")
    (tmp_path / "topics.json").write_text(
        json.dumps([dict(zip(keys, t, strict=True)) for t in TOPICS])
    )
    (tmp_path / "brokers.json").write_text(json.dumps(BROKERS))
    found = regent_spark.place(spark, str(tmp_path / "topics.json"), str(tmp_path / "brokers.json"))
    assert rows(found) == expected()


@pytest.mark.parametrize(
    ("topics", "brokers", "options", "complaint"),
    [
        ([], [1], {}, "topics must be a JSON list with at least one topic"),
        ([("a", 1)], [1], {}, r"topics: entry 0 must be an object, not \('a', 1\)"),
        ([("a", 1, "x")], [1], {}, "topics: entry 0: replication_factor must be a whole number"),
        ([("a", 1, 1)], [1, 1], {}, "brokers: entry 1: broker 1 is listed more than once"),
        ([("a", 1, 2)], [1], {}, "[Rr]eplication factor.* 2 "),
        ([("a", 1, 1)], [1], {"strategy": "best"}, "strategy must be one of ring, kafka"),
        ([("a", 1, 1)], [1], {"strategy": "rack-aware"}, "rack-aware needs the rack of each"),
        ([("a", 1, 1)], [1], {"start_index": -1}, "start index must be a number from 0"),
        ([("a", 1, 1)], "zookeeper", {}, "name the brokers, or zookeeper=HOST:PORT"),
        ("nothing.json", [1], {}, "nothing.json cannot be read: No such file"),
    ],
)
def test_what_is_wrong_with_a_placement_is_one_line(
    spark: SparkSession,
    topics: Sequence[Any],
    brokers: Sequence[Any],
    options: dict[str, Any],
    complaint: str,
):
    with pytest.raises(RegentError, match=complaint) as raised:
        regent_spark.place(spark, topics, brokers, **options)
    assert "\n" not in str(raised.value)


def test_an_assignment_is_that_of_a_file(spark: SparkSession, tmp_path: Path):
    placed = regent_spark.place(spark, TOPICS, BROKERS)
    placed.write.parquet(str(tmp_path / "placed"))
    found = regent_spark.assignment(spark, path=str(tmp_path / "placed"))
    assert rows(found.select("topic", "partition", "replicas")) == expected()
    assert found.where("leader is null and isr is null").count() == len(expected())
    with pytest.raises(RegentError, match="name one of zookeeper=HOST:PORT and path="):
        regent_spark.assignment(spark)
    with pytest.raises(RegentError, match="nowhere: no such file"):
        regent_spark.assignment(spark, path=str(tmp_path / "nowhere"))


def test_events_have_the_fields_of_the_lines(spark: SparkSession, tmp_path: Path):
    events = tuple(GeneratedHistory(11).events(3, 40))
    write_journals(tmp_path, events)
    torn = next(tmp_path.glob("broker-*/events.jsonl"))
    torn.write_bytes(torn.read_bytes() + b'{"ts_ms":17')
    frame = regent_spark.events(spark, str(tmp_path))
    found = frame.select("ts_ms", "broker_id", "event", "change_count")
    assert rows(found) == sorted(
        (e.ts_ms, e.broker_id, e.event, len(e.sentences) + len(e.leaderships)) for e in events
    )
    journal = regent_spark.events(spark, *map(str, sorted(tmp_path.glob("broker-*/events.jsonl*"))))
    assert journal.count() == len(events)
    with pytest.raises(RegentError, match="name the folder of a cluster, or journals"):
        regent_spark.events(spark)
    with pytest.raises(RegentError, match="a,b: a comma is the end of a name here"):
        regent_spark.events(spark, "a,b", follows=True)


def test_a_table_of_the_session_is_written_and_appended_to(spark: SparkSession):
    frame = regent_spark.place(spark, TOPICS, BROKERS)
    try:
        regent_spark.write_table(frame, "spark_catalog.default.placed")
        with pytest.raises(RegentError, match=r"table default.placed: .*already exists") as raised:
            regent_spark.write_table(frame, "default.placed")
        assert "\n" not in str(raised.value)
        regent_spark.write_table(frame, "default.placed", appends=True)
        assert rows(spark.table("default.placed")) == sorted(2 * expected())
        with pytest.raises(RegentError, match=r"table nowhere.a.b: .*nowhere"):
            regent_spark.write_table(frame, "nowhere.a.b")
    finally:
        spark.sql("DROP TABLE IF EXISTS default.placed")
