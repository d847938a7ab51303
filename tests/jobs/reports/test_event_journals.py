"""The journals of all brokers become one table; lines that are not events are counted."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from pyspark.sql import SparkSession

from regent.jobs.command import InputError
from regent.jobs.report_events import main
from regent.jobs.reports.event_journals import events_in, find_journals, journal_lines, parsed
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


def journal_of(events: Sequence[Event], *others: bytes) -> bytes:
    """Return a journal that has ``others`` in the middle, and a torn line at the end."""
    lines = [event.line().encode() for event in events]
    middle = len(lines) // 2
    return b"\n".join([*lines[:middle], *others, *lines[middle:], TORN])


def read(spark: SparkSession, path: Path, data: bytes) -> tuple[list[dict[str, Any]], int]:
    """Return the rows of a journal, without what is never there, and the number of other lines."""
    path.write_bytes(data)
    lines = parsed(journal_lines(spark, [str(path)]))
    table = events_in(lines).toArrow()
    never = ("topic", "partition", "trigger")
    assert all(table[name].null_count == len(table) for name in never)
    lists = ("started", "failed", "partitions")
    rows = [row | {name: row[name] or [] for name in lists} for row in table.to_pylist()]
    unreadable = lines.where("NOT is_event").count()
    return [{k: v for k, v in row.items() if k not in never} for row in rows], unreadable


@pytest.mark.spark
def test_every_event_is_a_row_and_other_lines_are_counted(spark: SparkSession, tmp_path: Path):
    events = [event for event in GeneratedHistory(3).events(3, 100) if event.broker_id == 1]
    data = journal_of(events, *NO_EVENTS[:-1], b"")
    rows, unreadable = read(spark, tmp_path / "events.jsonl", data)
    assert unreadable == len(NO_EVENTS)
    assert sorted(rows, key=lambda row: row["event_id"]) == sorted(
        map(row, events), key=lambda row: row["event_id"]
    )
    assert any(event.unnamed for event in events)


@pytest.mark.spark
@pytest.mark.parametrize("data", [b"", b"\n", b"\n \n"])
def test_an_empty_journal_has_no_events(spark: SparkSession, tmp_path: Path, data: bytes):
    assert read(spark, tmp_path / "events.jsonl", data) == ([], 0)


@pytest.mark.spark
def test_the_table_is_compressed_and_has_a_folder_for_each_controller_epoch(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    cluster, table = tmp_path / "a b{c}[1]%20*,d", tmp_path / "table"  # of globs and URIs
    events = list(GeneratedHistory(4).events(3, 10))
    write_journals(cluster, events)
    torn = cluster / "broker-2" / "events.jsonl"
    torn.write_bytes(torn.read_bytes() + TORN)
    arguments = ["--journals", str(cluster), "--out", str(table), "-o", "json"]
    assert main(arguments, spark) == 0
    assert json.loads(capsys.readouterr().out)["unreadable_lines"] == {str(torn): 1}
    assert (table / "_SUCCESS").exists()
    folders = {path.name for path in table.iterdir() if path.is_dir()}
    assert folders == {f"controller_epoch={event.controller_epoch}" for event in events}
    parts = [pyarrow.parquet.read_metadata(path) for path in table.rglob("*.parquet")]
    assert sum(part.num_rows for part in parts) == len(events)
    assert {part.row_group(0).column(0).compression for part in parts} == {"ZSTD"}
    assert spark.read.parquet(str(table)).count() == len(events)


@pytest.mark.spark
def test_a_line_is_parsed_once_also_where_events_are_filtered(spark: SparkSession, tmp_path: Path):
    write_journals(tmp_path, list(GeneratedHistory(5).events(1, 3)))
    events = events_in(parsed(journal_lines(spark, found_in(tmp_path))))
    wanted: Any = events.where("event_id > 1 AND handling_ms > 0").select("ts_ms", "changes")
    plan = wanted._jdf.queryExecution().executedPlan().toString()
    assert plan.count("from_json(") == 1


def test_journals_are_found_in_a_cluster_a_broker_or_by_name(tmp_path: Path):
    write_journals(tmp_path, list(GeneratedHistory(5).events(2, 20)))
    first = tmp_path / "broker-0"
    later, earlier = str(first / "events.jsonl"), str(first / "events.jsonl.1")
    assert found_in(first) == [later, earlier]
    assert found_in(later, first) == [later, earlier]
    found = found_in(tmp_path)
    assert found[:2] == [later, earlier]
    assert set(found) == {str(path) for path in tmp_path.rglob("events.jsonl*")}
    shutil.copytree(first, tmp_path / "broker-0.bak")
    assert found_in(tmp_path) == found


def test_a_folder_without_journals_is_refused(tmp_path: Path):
    (tmp_path / "broker-0").mkdir()
    with pytest.raises(InputError, match=r"no events\.jsonl in .*: name the folder of a cluster"):
        found_in(tmp_path)
