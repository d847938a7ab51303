"""Journals are followed line by line, through torn lines and rotations."""

import os
from pathlib import Path
from typing import Any

import orjson
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType

from regent.jobs.source import RegentDataSource
from regent.jobs.source.journal_source import JournalStreamReader, Offset
from regent.jobs.source.options import DataLossError, OptionError
from regent.spark import events
from tests.jobs.journals import START_MS
from tests.support.file_races import between_two_opens


def line(number: int, **more: Any) -> bytes:
    """Return the line of an event, whose time is its number."""
    fields = {
        "ts_ms": number,
        "broker_id": 1,
        "event_id": number,
        "event": "BrokerChange",
        "cause": "/brokers/ids",
        "queue_ms": 0.5,
        "handling_ms": 1.5,
        "controller_epoch": 3,
        "change_count": 0,
        "changes": [],
        **more,
    }
    return orjson.dumps(fields) + b"\n"


class Journal:
    """The journal of a broker; ``rotate`` does what the broker does with a full file."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "events.jsonl"

    def add(self, *numbers: int) -> None:
        self.add_bytes(b"".join(map(line, numbers)))

    def add_bytes(self, data: bytes) -> None:
        with self.path.open("ab") as file:
            file.write(data)

    def rotate(self) -> None:
        os.replace(self.path, f"{self.path}.1")


class Follower:
    """Does what Spark does with the reader of a stream."""

    def __init__(self, place: Path | str, **options: str) -> None:
        self.stream = JournalStreamReader({"journals": str(place), **options})
        self.offset = self.stream.initialOffset()

    def plan(self) -> tuple[Offset, Offset]:
        before, self.offset = self.offset, self.latest()
        return before, self.offset

    def latest(self) -> Offset:
        return self.stream.latestOffset(self.offset, ReadAllAvailable())

    def rows(self, start: Offset, end: Offset) -> list[int]:
        parts = self.stream.partitions(start, end)
        batches = [batch for part in parts for batch in self.stream.read(part)]
        lines = [line for batch in batches for line in batch["value"].to_pylist()]
        return [orjson.loads(line)["ts_ms"] for line in lines]

    def read(self) -> list[int]:
        return self.rows(*self.plan())


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "broker-1")


def test_each_batch_has_the_lines_since_the_last_one(tmp_path: Path, journal: Journal):
    journal.add(1, 2)
    follower = Follower(tmp_path)
    assert follower.read() == [1, 2]
    assert follower.read() == []
    journal.add(3)
    assert follower.read() == [3]


def test_a_line_is_read_when_it_is_whole(tmp_path: Path, journal: Journal):
    third = line(3)
    journal.add(1, 2)
    journal.add_bytes(third[:40])
    follower = Follower(tmp_path)
    assert follower.read() == [1, 2]
    journal.add_bytes(third[40:])
    assert follower.read() == [3]


def test_the_first_line_too_is_read_when_it_is_whole(tmp_path: Path, journal: Journal):
    journal.add_bytes(line(1)[:9])
    follower = Follower(tmp_path)
    assert follower.read() == []
    journal.add_bytes(line(1)[9:])
    assert follower.read() == [1]


def test_lines_of_a_file_that_was_renamed_meanwhile_are_read_once(tmp_path: Path, journal: Journal):
    journal.add(1, 2)
    follower = Follower(tmp_path)
    assert follower.read() == [1, 2]
    journal.add(3)
    journal.rotate()
    assert follower.read() == [3]  # there is no new file yet
    journal.add(4)
    assert follower.read() == [4]
    journal.rotate()
    journal.add(5, 6)
    assert follower.read() == [5, 6]


def test_a_planned_batch_is_the_same_after_a_rotation(tmp_path: Path, journal: Journal):
    journal.add(1, 2)
    follower = Follower(tmp_path)
    planned = follower.plan()
    journal.add(3)
    journal.rotate()
    journal.add(4)
    assert follower.rows(*planned) == [1, 2]
    assert follower.read() == [3, 4]


@pytest.mark.parametrize("is_planned", [False, True])
@pytest.mark.parametrize("has_new_file", [False, True])
def test_a_file_that_is_renamed_while_a_journal_is_opened_is_read_once(
    tmp_path: Path,
    journal: Journal,
    monkeypatch: pytest.MonkeyPatch,
    is_planned: bool,
    has_new_file: bool,
):
    def rotate() -> None:
        journal.rotate()
        if has_new_file:
            journal.add(4)

    journal.add(1)
    journal.rotate()
    journal.add(2)
    follower = Follower(tmp_path)
    assert follower.read() == [1, 2]
    journal.add(3)
    planned = follower.plan() if is_planned else None
    between_two_opens(monkeypatch, rotate)
    found = follower.rows(*planned) if planned is not None else []
    while more := follower.read():
        found += more
    if not has_new_file:
        journal.add(4)
        found += follower.read()
    assert found == [3, 4]


def test_the_older_file_comes_first_at_the_start(tmp_path: Path, journal: Journal):
    journal.add(1)
    journal.rotate()
    journal.add(2)
    assert Follower(tmp_path).read() == [1, 2]
    assert Follower(journal.path.parent).read() == [1, 2]


def test_lines_that_two_rotations_have_removed_are_an_error_or_skipped(
    tmp_path: Path, journal: Journal
):
    strict, lenient = Follower(tmp_path), Follower(tmp_path, failOnDataLoss="false")
    journal.add(1)
    assert strict.read() == lenient.read() == [1]
    for number in (2, 3, 4):
        journal.rotate()
        journal.add(number)
    with pytest.raises(DataLossError, match=r"broker-1: events.jsonl was replaced more than once"):
        strict.read()
    assert lenient.read() == [3, 4]


def test_a_file_that_is_gone_before_it_is_read_is_an_error_or_skipped(
    tmp_path: Path, journal: Journal
):
    journal.add(1)
    strict, lenient = Follower(tmp_path), Follower(tmp_path, failOnDataLoss="false")
    planned = strict.plan()
    journal.rotate()
    journal.path.with_name("events.jsonl.1").unlink()
    with pytest.raises(DataLossError, match="broker-1: a file of the journal is gone"):
        strict.rows(*planned)
    assert lenient.rows(*planned) == []


def test_brokers_that_are_added_are_found(tmp_path: Path, journal: Journal):
    follower = Follower(tmp_path)
    assert follower.read() == []
    journal.add(1)
    assert follower.read() == [1]
    other = Journal(tmp_path / "broker-2")
    other.add(7)
    Journal(tmp_path / "broker-2.bak").add(7)
    journal.add(2)
    assert sorted(follower.read()) == [2, 7]


def test_what_is_no_folder_is_not_followed(tmp_path: Path, journal: Journal):
    journal.add(1)
    for place in (tmp_path / "nothing", journal.path, "hdfs://host/journals"):
        with pytest.raises(OptionError, match="is no folder of this machine: a stream follows"):
            Follower(place)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"subscribe": "orders"}, "regent has no option 'subscribe'; it has journals, failOnData"),
        ({"kafka.bootstrap.servers": "h:1"}, "kafka.bootstrap.servers has no meaning for journals"),
    ],
)
def test_options_without_a_meaning_are_refused(options: dict[str, str], complaint: str):
    with pytest.raises(OptionError) as raised:
        RegentDataSource({"journals": "x", **options}).schema()
    assert complaint in str(raised.value)


def test_a_batch_is_refused():
    with pytest.raises(
        OptionError, match=r"journals are followed by a stream: regent.spark.events"
    ):
        RegentDataSource({"journals": "x"}).reader(StructType())


@pytest.mark.spark
def test_spark_follows_failovers_and_goes_on_after_a_restart(
    spark: SparkSession, tmp_path: Path, journal: Journal
):
    def run(name: str) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = []

        def add(frame: DataFrame, _: int) -> None:
            found.extend(map(tuple, frame.collect()))

        failovers.writeStream.foreachBatch(add).trigger(availableNow=True).option(
            "checkpointLocation", str(tmp_path / name)
        ).start().awaitTermination(60)
        return found

    changes = events(spark, str(tmp_path), follows=True).select(
        F.timestamp_millis("ts_ms").alias("time"), F.explode("partitions")
    )
    failovers = changes.where("col.leader <> col.leader_before").selectExpr(
        "unix_millis(time)", "col.topic", "col.partition", "col.leader"
    )
    moved = {"topic": "t", "partition": 0, "leader_before": 2, "leader": 1, "isr": [1]}
    same = {**moved, "partition": 1, "leader": 2}
    journal.add_bytes(line(START_MS, partitions=[moved, same], change_count=2))
    assert run("first") == [(START_MS, "t", 0, 1)]
    journal.add_bytes(line(START_MS + 5, partitions=[moved], change_count=1))
    journal.rotate()
    journal.add(START_MS + 6)
    assert run("first") == [(START_MS + 5, "t", 0, 1)]
    assert sorted(run("second")) == [(START_MS, "t", 0, 1), (START_MS + 5, "t", 0, 1)]
