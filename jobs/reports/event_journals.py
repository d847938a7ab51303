"""The event journals of all brokers: found, and read into tables of Arrow.

A line of a journal is one event that a controller handled; ``actors/event_journal.py`` writes it.
Unreadable lines (a crash leaves the last one incomplete) are counted, and skipped. A journal is at
most 64 MiB, and a task reads it as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from regent.jobs.command import InputError
from regent.jobs.files import Entry, JobFiles
from regent.jobs.reports.earlier_journals import BROKER_OF_CAUSE, MORE, typed_fields

JOURNAL: Final = "events.jsonl"
_NAMES: Final = (f"{JOURNAL}.1", JOURNAL)  # the first has the older events

_REQUIRED: Final = {
    "ts_ms": pa.int64(),
    "broker_id": pa.int32(),
    "event_id": pa.int64(),
    "event": pa.string(),
    "cause": pa.string(),
    "queue_ms": pa.float64(),
    "handling_ms": pa.float64(),
    "controller_epoch": pa.int32(),
}
_BROKERS: Final = pa.list_(pa.int32())
PARTITION: Final = pa.struct(
    {
        "topic": pa.string(),
        "partition": pa.int32(),
        "leader_before": pa.int32(),
        "isr_before": _BROKERS,
        "leader": pa.int32(),
        "isr": _BROKERS,
        "leader_epoch": pa.int32(),
    }
)
_LINE: Final = pa.schema(
    {
        **_REQUIRED,
        "broker": pa.int32(),
        "topic": pa.string(),
        "partition": pa.int32(),
        "trigger": pa.string(),
        "answered_ms": pa.float64(),
        "change_count": pa.int32(),
        "elected": pa.int32(),
        "resigned": pa.int32(),
        "started": _BROKERS,
        "failed": _BROKERS,
        "partitions": pa.list_(PARTITION),
        "changes": pa.list_(pa.string()),
    }
)
"""The fields of a line, which ``actors/event_journal.py`` explains."""

EVENTS: Final = _LINE.append(pa.field("named_changes", pa.int32()))
"""The table of events; ``named_changes`` have a sentence, and ``change_count`` is never null."""


class Period(NamedTuple):
    """The events to report, by the wall clock: from ``since_ms`` to before ``until_ms``."""

    since_ms: int | None = None
    until_ms: int | None = None


class Journal(NamedTuple):
    """The events of a journal, and the number of its unreadable lines."""

    events: pa.Table
    unreadable: int


def find_journals(places: Iterable[str], files: JobFiles) -> tuple[Entry, ...]:
    """Return the journals at each place: a file, a broker's folder, or the folder of a cluster.

    Raises ``InputError`` when there is none.
    """
    found: dict[Entry, None] = {}
    for place in places:
        journals = _journals_at(place, files)
        if not journals:
            raise InputError(
                f"no {JOURNAL} in {place} nor in its broker-* folders: name the folder of a"
                " cluster, or journals, with --journals"
            )
        found |= dict.fromkeys(journals)
    return tuple(found)


def _journals_at(place: str, files: JobFiles) -> list[Entry]:
    entry = files.entry(place)
    if entry is None:
        return []
    if not entry.is_directory:
        return [entry]
    inside = files.entries(place)
    folders = [e for e in inside if e.is_directory and e.name.startswith("broker-")]
    entries = [*inside, *(e for folder in folders for e in files.entries(folder.location))]
    return [entry for entry in entries if entry.name in _NAMES and not entry.is_directory]


def read_journal(data: bytes, period: Period) -> Journal:
    """Return the events of the period, in no particular order, from the content of a journal."""
    tables, unreadable = _parsed(data.strip(b"\n"))
    lines = pa.concat_tables([_LINE.empty_table(), *tables])
    is_event = pc.is_valid(lines["ts_ms"])
    for name in _REQUIRED:
        is_event = pc.and_(is_event, pc.is_valid(lines[name]))
    events = lines.filter(is_event)
    unreadable += len(lines) - len(events)
    if period.since_ms is not None:
        events = events.filter(pc.greater_equal(events["ts_ms"], period.since_ms))
    if period.until_ms is not None:
        events = events.filter(pc.less(events["ts_ms"], period.until_ms))
    sentences = pc.fill_null(pc.list_value_length(events["changes"]), 0)
    is_earlier = pc.and_(pc.is_null(events["change_count"]), pc.greater(sentences, 0))
    earlier = [typed_fields(line) for line in events.filter(is_earlier).to_pylist()]
    later = _counted(events.filter(pc.invert(is_earlier)))
    return Journal(pa.concat_tables([later, pa.Table.from_pylist(earlier, EVENTS)]), unreadable)


def _parsed(data: bytes) -> tuple[list[pa.Table], int]:
    """Parse lines; when some are unreadable, find and count them by halving the text."""
    if not data.strip():
        return [], 0
    with suppress(pa.ArrowInvalid):
        # Arrow crashes when the first line is `null`.
        if data.startswith(b"{") and data.count(b"\n{") == data.count(b"\n"):
            return [_read_lines(data)], 0
    middle = data.rfind(b"\n", 0, len(data) // 2)
    if middle < 0:
        middle = data.find(b"\n")
    if middle < 0:
        return [], 1
    (before, bad), (after, bad_too) = _parsed(data[:middle]), _parsed(data[middle + 1 :])
    return [*before, *after], bad + bad_too


def _read_lines(data: bytes) -> pa.Table:
    table = pa.json.read_json(
        pa.BufferReader(data),
        pa.json.ReadOptions(use_threads=False, block_size=len(data) + 1),
        pa.json.ParseOptions(explicit_schema=_LINE, unexpected_field_behavior="ignore"),
    )
    table.validate(full=True)  # texts are UTF-8
    return table


def _counted(events: pa.Table) -> pa.Table:
    """Complete lines with typed fields, and those of earlier versions that have no changes."""
    changes = events["changes"].combine_chunks()
    sentences = pc.fill_null(pc.list_value_length(changes), 0)
    at = pc.if_else(pc.greater(sentences, 0), pc.subtract(changes.offsets[1:], 1), None)
    more = pc.fill_null(pc.match_substring_regex(changes.values.take(at), MORE), False)
    count = pc.fill_null(events["change_count"], 0)
    column = events.schema.get_field_index("change_count")
    named = pc.subtract(sentences, pc.cast(more, pa.int32()))
    events = events.set_column(column, "change_count", count).append_column("named_changes", named)
    has_broker = pc.match_substring(events["cause"], "broker ")
    if not pc.any(pc.and_(has_broker, pc.is_null(events["broker"]))).as_py():
        return events
    found = pc.struct_field(pc.extract_regex(events["cause"], BROKER_OF_CAUSE), "id")
    column = events.schema.get_field_index("broker")
    brokers = pc.coalesce(events["broker"], pc.cast(found, pa.int32()))
    return events.set_column(column, "broker", brokers)
