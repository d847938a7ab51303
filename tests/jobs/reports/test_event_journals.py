"""The journals of all brokers become one table; lines that are not events are counted."""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from pyspark.sql import SparkSession

from regent.jobs.command import InputError
from regent.jobs.reports import event_journals
from regent.jobs.reports.event_journals import (
    Period,
    find_journals,
    read_journals,
    read_lines,
)
from regent.jobs.tables import write_files
from tests.jobs.journals import Event, GeneratedHistory, Leadership, write_journals
from tests.jobs.local_files import LOCAL_FILES

TORN = b'{"ts_ms":1795000000000,"broker_id":1,"contr'
NO_EVENTS = (
    b"nonsense",
    b"null",
    b"17",
    b'"ts_ms"',
    b"{}",
    b'{"ts_ms":"soon","broker_id":1}',
    next(GeneratedHistory(1).events(1, 0))
    .line()
    .replace("179500", "179500000000", 1)
    .encode(),  # year 58,851
    b"\x00\x00\x00",
    b'{"event":"\xe2\x86',  # half a character
    TORN,
)


def partition(led: Leadership) -> dict[str, Any]:
    """Return the record of a change of a partition."""
    then = led.before
    return {
        "topic": led.topic,
        "partition": led.partition,
        "leader_before": then.leader if then else None,
        "isr_before": then.isr if then else None,
        "leader": led.leader,
        "isr": led.isr,
        "leader_epoch": led.leader_epoch,
    }


def row(event: Event) -> dict[str, Any]:
    """Return the table's row of an event."""
    return {
        "ts_ms": event.ts_ms,
        "broker_id": event.broker_id,
        "event_id": event.event_id,
        "event": event.event,
        "cause": event.cause,
        "broker": event.broker,
        "queue_ms": event.queue_ms,
        "handling_ms": event.handling_ms,
        "answered_ms": event.answered_ms,
        "named_changes": len(event.sentences) + len(event.named),
        "change_count": len(event.sentences) + len(event.leaderships),
        "elected": event.typed.get("elected"),
        "resigned": event.typed.get("resigned"),
        "started": event.typed.get("started", []),
        "failed": event.typed.get("failed", []),
        "partitions": [partition(led) for led in event.named],
        "changes": event.changes,
        "controller_epoch": event.controller_epoch,
    }


def found_in(*places: Path | str) -> list[str]:
    return [entry.location for entry in find_journals(map(str, places), LOCAL_FILES)]


def rows_of(table: pyarrow.Table) -> list[dict[str, Any]]:
    """Return the rows with empty lists in place of absent ones, without what is never there."""
    never = ("topic", "partition", "trigger")
    assert all(table[name].null_count == len(table) for name in never)
    lists = ("started", "failed", "partitions")
    rows = table.drop_columns(never).to_pylist()
    return [row | {name: row[name] or [] for name in lists} for row in rows]


def journal_of(events: Sequence[Event], *others: bytes) -> bytes:
    """Return a journal that has ``others`` in the middle, and a torn line at the end."""
    lines = [event.line().encode() for event in events]
    middle = len(lines) // 2
    return b"\n".join([*lines[:middle], *others, *lines[middle:], TORN])


def batches_of(data: bytes) -> Iterator[pyarrow.RecordBatch]:
    """Yield the lines of a journal as Spark does, seven at a time."""
    lines = pyarrow.array(data.split(b"\n"), pyarrow.binary()).view(pyarrow.string())
    for first in range(0, len(lines), 7):
        part = lines[first : first + 7]
        paths = pyarrow.array(["file:///events.jsonl"] * len(part))
        yield pyarrow.record_batch({"value": part, "file_path": paths})


def read(data: bytes, period: Period = Period()) -> tuple[list[dict[str, Any]], int]:  # noqa: B008
    """Return the rows of all blocks, and the number of unreadable lines."""
    parts = event_journals._blocks(batches_of(data))
    blocks = [read_lines(lines, period, has_sentences=True) for _, lines in parts]
    rows = [row for block in blocks for row in rows_of(block.events)]
    return sorted(rows, key=lambda row: row["event_id"]), sum(b.unreadable for b in blocks)


@pytest.mark.parametrize("block_bytes", [1, 3_000, event_journals._BLOCK_BYTES])
def test_every_event_is_a_row_and_other_lines_are_counted(
    block_bytes: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(event_journals, "_BLOCK_BYTES", block_bytes)
    events = [event for event in GeneratedHistory(3).events(3, 100) if event.broker_id == 1]
    rows, unreadable = read(journal_of(events, *NO_EVENTS[:-1], b""))
    assert unreadable == len(NO_EVENTS)
    assert rows == sorted(map(row, events), key=lambda row: row["event_id"])
    assert any(event.unnamed for event in events)


def test_sentences_can_be_omitted():
    [event, *_] = GeneratedHistory(3).events(1, 1)
    block = read_lines(event.line().encode(), Period(), has_sentences=False)
    assert "changes" not in block.events.column_names
    assert block.events["change_count"].to_pylist() == [1]


@pytest.mark.parametrize("data", [b"", b"\n", b"\n \n"])
def test_an_empty_journal_has_no_events(data: bytes):
    assert read(data) == ([], 0)


def test_only_events_of_the_period_are_read():
    events = list(GeneratedHistory(4).events(3, 10))
    since_ms, until_ms = events[5].ts_ms, events[-5].ts_ms
    rows, unreadable = read(journal_of(events), Period(since_ms, until_ms))
    wanted = [event for event in events if since_ms <= event.ts_ms < until_ms]
    assert sorted(row["ts_ms"] for row in rows) == [event.ts_ms for event in wanted]
    assert unreadable == 1


@pytest.mark.spark
def test_the_table_is_compressed_and_has_a_folder_for_each_controller_epoch(
    spark: SparkSession, tmp_path: Path
):
    cluster, table = tmp_path / "a b{c}[1]%20*,d", tmp_path / "table"  # of globs and URIs
    events = list(GeneratedHistory(4).events(3, 10))
    write_journals(cluster, events)
    torn = cluster / "broker-2" / "events.jsonl"
    torn.write_bytes(torn.read_bytes() + TORN)
    write = partial(
        write_files,
        location=str(table),
        file_format="parquet",
        partition_by=["controller_epoch"],
    )
    found = read_journals(spark, found_in(cluster), Period(), top=1, write=write)
    assert found.unreadable == {str(torn): 1}
    assert (table / "_SUCCESS").exists()
    folders = {path.name for path in table.iterdir() if path.is_dir()}
    assert folders == {f"controller_epoch={event.controller_epoch}" for event in events}
    parts = [pyarrow.parquet.read_metadata(path) for path in table.rglob("*.parquet")]
    assert sum(part.num_rows for part in parts) == len(events)
    assert {part.row_group(0).column(0).compression for part in parts} == {"ZSTD"}
    assert spark.read.parquet(str(table)).count() == len(events)


def test_journals_are_found_in_a_cluster_a_broker_or_by_name(tmp_path: Path):
    write_journals(tmp_path, list(GeneratedHistory(5).events(2, 20)))
    first = tmp_path / "broker-0"
    later, earlier = str(first / "events.jsonl"), str(first / "events.jsonl.1")
    assert found_in(first) == [later, earlier]
    assert found_in(later, first) == [later, earlier]
    found = found_in(tmp_path)
    assert found[:2] == [later, earlier]
    assert set(found) == {str(path) for path in tmp_path.rglob("events.jsonl*")}


def test_a_folder_without_journals_is_refused(tmp_path: Path):
    (tmp_path / "broker-0").mkdir()
    with pytest.raises(InputError, match=r"no events\.jsonl in .*: name the folder of a cluster"):
        found_in(tmp_path)
