"""The journals of all brokers become one table; lines that are not events are counted."""

from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from pyspark.sql import DataFrame, SparkSession

from regent.jobs.command import InputError
from regent.jobs.reports.event_journals import (
    Period,
    Unreadable,
    events_of,
    find_journals,
    read_journals,
    unreadable_of,
    write_events,
)
from tests.jobs.journals import Event, Leadership, World, write_journals
from tests.jobs.local_files import LOCAL_FILES

TORN = b'{"ts_ms":1795000000000,"broker_id":1,"contr'
NO_EVENTS = (
    b"nonsense",
    b"null",
    b"17",
    b'"ts_ms"',
    b"{}",
    b'{"ts_ms":"soon","broker_id":1}',
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


def told(led: Leadership) -> dict[str, Any]:
    """Return what can be known from a sentence."""
    record, then = partition(led), led.before
    if then and then.leader != led.leader:
        others = [broker for broker in led.isr if broker != then.leader]
        record["isr_before"] = [then.leader, *others] if then.leader >= 0 else None
    if then and then.leader_epoch == led.leader_epoch:
        record["leader_epoch"] = None
    return record


def row(event: Event, *, is_old: bool) -> dict[str, Any]:
    """Return the table's row of an event."""
    partitions = [told(led) if is_old else partition(led) for led in event.named]
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
        "partitions": partitions,
        "changes": event.changes,
        "controller_epoch": event.controller_epoch,
    }


def found_in(*places: Path | str) -> list[str]:
    return [entry.location for entry in find_journals(map(str, places), LOCAL_FILES)]


def in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: (row["ts_ms"], row["broker_id"], row["event_id"]))


def rows_of(frame: DataFrame) -> list[dict[str, Any]]:
    """Return the rows with empty lists in place of absent ones, without what is never there."""
    assert frame.filter("coalesce(topic, partition, trigger) IS NOT NULL").isEmpty()
    lists = ("started", "failed", "partitions")
    rows = frame.drop("topic", "partition", "trigger").toArrow().to_pylist()
    return [row | {name: row[name] or [] for name in lists} for row in rows]


@pytest.mark.spark
@pytest.mark.parametrize("old", [0, 150])
def test_every_event_is_a_row_and_other_lines_are_counted(
    spark: SparkSession, tmp_path: Path, old: int
):
    cluster = tmp_path / "a b{c}[1]%20*"  # special characters of globs and URIs
    events = list(World(3).events(3, 100))
    write_journals(cluster, events, old=old)
    bad = cluster / "broker-1" / "events.jsonl"
    whole = bad.read_bytes().splitlines(keepends=True)
    bad.write_bytes(b"\n".join([*NO_EVENTS[:-1], b"", b"".join(whole) + TORN]))
    torn = cluster / "broker-2" / "events.jsonl"
    torn.write_bytes(torn.read_bytes() + TORN)
    lines = read_journals(spark, found_in(cluster), Period(), with_sentences=True)
    unreadable = [Unreadable(str(bad), len(NO_EVENTS)), Unreadable(str(torn), 1)]
    assert unreadable_of(lines) == unreadable
    expected = [row(event, is_old=number < old) for number, event in enumerate(events)]
    assert in_order(rows_of(events_of(lines))) == in_order(expected)
    assert any(event.unnamed for event in events)


@pytest.mark.spark
def test_the_table_is_compressed_and_has_a_folder_for_each_controller_epoch(
    spark: SparkSession, tmp_path: Path
):
    events = list(World(4).events(3, 10))
    write_journals(tmp_path, events)
    since_ms, until_ms = events[5].ts_ms, events[-5].ts_ms
    table = tmp_path / "table"
    lines = read_journals(spark, found_in(tmp_path), Period(since_ms, until_ms))
    write_events(events_of(lines), str(table))
    wanted = [event for event in events if since_ms <= event.ts_ms < until_ms]
    folders = {path.name for path in table.iterdir() if path.is_dir()}
    assert folders == {f"controller_epoch={event.controller_epoch}" for event in wanted}
    parts = [pyarrow.parquet.read_metadata(path) for path in table.rglob("*.parquet")]
    assert sum(part.num_rows for part in parts) == len(wanted)
    assert {part.row_group(0).column(0).compression for part in parts} == {"ZSTD"}


def test_journals_are_found_in_a_cluster_a_broker_or_by_name(tmp_path: Path):
    write_journals(tmp_path, list(World(5).events(2, 20)))
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
