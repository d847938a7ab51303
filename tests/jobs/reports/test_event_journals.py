"""The journals of all brokers become one table; lines that are not events are counted."""

from pathlib import Path

import pyarrow.parquet
import pytest
from pyspark.sql import SparkSession

from regent.jobs.command import InputError
from regent.jobs.reports.event_journals import (
    COLUMNS,
    Period,
    Unreadable,
    find_journals,
    read_events,
    write_events,
)
from tests.jobs.journals import Event, World, write_journals

TORN = b'{"ts_ms":1795000000000,"broker_id":1,"contr'
NO_EVENTS = (
    b"nonsense",
    b"null",
    b"[]",
    b"17",
    b'"ts_ms"',
    b"{}",
    b'{"ts_ms":"soon","broker_id":1}',
    b"\x00\x00\x00",
    b'{"event":"\xe2\x86',  # half a character
    TORN,
)


def row(event: Event) -> dict[str, object]:
    """Return the table's row of an event."""
    return {
        "ts_ms": event.ts_ms,
        "broker_id": event.broker_id,
        "event_id": event.event_id,
        "event": event.event,
        "cause": event.cause,
        "queue_ms": event.queue_ms,
        "handling_ms": event.handling_ms,
        "answered_ms": event.answered_ms,
        "changes": [*event.sentences, *map(str, event.named)],
        "unnamed_changes": event.unnamed,
        "controller_epoch": event.controller_epoch,
    }


def in_order(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    return sorted(rows, key=lambda row: (row["ts_ms"], row["broker_id"], row["event_id"]))


@pytest.mark.spark
def test_every_event_is_a_row_and_other_lines_are_counted(spark: SparkSession, tmp_path: Path):
    cluster = tmp_path / "a b{c}[1]%20*"  # special characters of globs and URIs
    events = list(World(3).events(3, 100))
    write_journals(cluster, events)
    bad = cluster / "broker-1" / "events.jsonl"
    whole = bad.read_bytes().splitlines(keepends=True)
    bad.write_bytes(b"\n".join([*NO_EVENTS[:-1], b"", b"".join(whole) + TORN]))
    torn = cluster / "broker-2" / "events.jsonl"
    torn.write_bytes(torn.read_bytes() + TORN)
    journals = find_journals([cluster])
    table = tmp_path / "table ü"
    assert write_events(spark, journals, Period(), table) == [
        Unreadable(bad, len(NO_EVENTS)),
        Unreadable(torn, 1),
    ]
    frame = read_events(spark, table)
    assert frame.columns == list(COLUMNS)
    assert in_order(frame.toArrow().to_pylist()) == in_order([row(event) for event in events])
    assert any(event.unnamed for event in events)


@pytest.mark.spark
def test_the_table_is_compressed_and_has_a_folder_for_each_controller_epoch(
    spark: SparkSession, tmp_path: Path
):
    events = list(World(4).events(3, 10))
    write_journals(tmp_path, events)
    since_ms, until_ms = events[5].ts_ms, events[-5].ts_ms
    table = tmp_path / "table"
    assert not write_events(spark, find_journals([tmp_path]), Period(since_ms, until_ms), table)
    wanted = [event for event in events if since_ms <= event.ts_ms < until_ms]
    folders = {path.name for path in table.iterdir() if path.is_dir()}
    assert folders == {f"controller_epoch={event.controller_epoch}" for event in wanted}
    parts = [pyarrow.parquet.read_metadata(path) for path in table.rglob("*.parquet")]
    assert sum(part.num_rows for part in parts) == len(wanted)
    assert {part.row_group(0).column(0).compression for part in parts} == {"ZSTD"}


def test_journals_are_found_in_a_cluster_a_broker_or_by_name(tmp_path: Path):
    write_journals(tmp_path, list(World(5).events(2, 20)))
    first = tmp_path / "broker-0"
    earlier, later = first / "events.jsonl.1", first / "events.jsonl"
    assert find_journals([first]) == (earlier, later)
    assert find_journals([later, first]) == (later, earlier)
    found = find_journals([tmp_path])
    assert found[:2] == (earlier, later)
    assert set(found) == set(tmp_path.rglob("events.jsonl*"))


def test_a_folder_without_journals_is_refused(tmp_path: Path):
    (tmp_path / "broker-0").mkdir()
    with pytest.raises(InputError, match=r"no events\.jsonl in .*: name the folder of a cluster"):
        find_journals([tmp_path])
