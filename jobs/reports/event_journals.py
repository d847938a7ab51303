"""The event journals of all brokers: found, and read by Spark's tasks into tables of Arrow.

A line of a journal is one event that a controller handled; ``actors/event_journal.py`` writes it.
Unreadable lines (a crash leaves the last one incomplete) are counted, and skipped.

Spark reads lines, and its tasks parse a block of them at a time. They hand small tables to the
driver. If the events are to be kept, they are rows of a table that executors write.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json
from pyspark import Accumulator, AccumulatorParam
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from regent.core.controller.effects import MAX_NAMED_CHANGES
from regent.jobs.command import InputError
from regent.jobs.files import Entry, JobFiles, is_remote, local_path, path_to_read
from regent.jobs.reports.event_parts import Parts, merged, parts_of
from regent.jobs.tables import Batches, mapped

JOURNAL: Final = "events.jsonl"
_NAMES: Final = (f"{JOURNAL}.1", JOURNAL)  # the first has the older events
_END_OF_TIME_MS: Final = 250_000_000_000_000  # dates end with the year 9999
_BLOCK_BYTES: Final = 16 << 20  # of lines that are in memory at a time

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
_PARTITION: Final = pa.struct(
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
_LINE: Final = pa.schema(  # as actors/event_journal.py explains it
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
        "partitions": pa.list_(_PARTITION),
        "changes": pa.list_(pa.string()),
    }
)
EVENT: Final = _LINE.append(pa.field("named_changes", pa.int32()))
"""The columns of an event: the fields of a line, and how many changes have a sentence."""
_WITHOUT_SENTENCES: Final = pa.schema([field for field in _LINE if field.name != "changes"])


class Period(NamedTuple):
    """The events to report, by the wall clock: from ``since_ms`` to before ``until_ms``."""

    since_ms: int | None = None
    until_ms: int | None = None


class Block(NamedTuple):
    """The events of some lines of a journal, and how many of the lines are unreadable."""

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


def read_lines(data: bytes, period: Period, *, has_sentences: bool) -> Block:
    """Return the events of the period in some lines.

    The table has the fields of a line, of which ``change_count`` is never null, and
    ``named_changes``, which have a sentence. ``has_sentences``: the field ``changes`` is there.
    """
    return _block(data, period, _LINE if has_sentences else _WITHOUT_SENTENCES)


def _block(data: bytes, period: Period, schema: pa.Schema) -> Block:
    tables, unreadable = _parsed(data.strip(b"\n"), schema)
    lines = pa.concat_tables([schema.empty_table(), *tables])
    ts_ms = lines["ts_ms"]
    is_event = pc.and_(pc.greater_equal(ts_ms, 0), pc.less(ts_ms, _END_OF_TIME_MS))
    for name in _REQUIRED:
        is_event = pc.and_(is_event, pc.is_valid(lines[name]))
    events = lines.filter(is_event)
    unreadable += len(lines) - len(events)
    if period.since_ms is not None:
        events = events.filter(pc.greater_equal(events["ts_ms"], period.since_ms))
    if period.until_ms is not None:
        events = events.filter(pc.less(events["ts_ms"], period.until_ms))
    count = pc.fill_null(events["change_count"], 0)
    named = pc.min_element_wise(count, pa.scalar(MAX_NAMED_CHANGES, pa.int32()))
    column = events.schema.get_field_index("change_count")
    events = events.set_column(column, "change_count", count)
    return Block(events.append_column("named_changes", named), unreadable)


def _parsed(data: bytes, schema: pa.Schema) -> tuple[list[pa.Table], int]:
    """Parse lines; when some are unreadable, find and count them by halving the text."""
    if not data.strip():
        return [], 0
    with suppress(pa.ArrowInvalid):
        # Arrow crashes when the first line is `null`.
        if data.startswith(b"{") and data.count(b"\n{") == data.count(b"\n"):
            return [_read_lines(data, schema)], 0
    middle = data.rfind(b"\n", 0, len(data) // 2)
    if middle < 0:
        middle = data.find(b"\n")
    if middle < 0:
        return [], 1
    (before, bad), (after, bad_too) = (
        _parsed(part, schema) for part in (data[:middle], data[middle + 1 :])
    )
    return [*before, *after], bad + bad_too


def _read_lines(data: bytes, schema: pa.Schema) -> pa.Table:
    table = pa.json.read_json(
        pa.BufferReader(data),
        pa.json.ReadOptions(use_threads=False, block_size=len(data) + 1),
        pa.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
    )
    table.validate(full=True)  # texts are UTF-8
    return table


# --- the tasks of Spark ---------------------------------------------------------------------------


class JournalsFound(NamedTuple):
    """What journals have: ``parts`` is empty without an event of the period.

    ``unreadable`` has the number of unreadable lines of each journal that has some.
    """

    parts: Parts
    unreadable: dict[str, int]


class _Sum(AccumulatorParam[JournalsFound]):
    """Adds what tasks found. Spark counts each task once, also if it runs again."""

    def __init__(self, top: int) -> None:
        self._top = top

    def zero(self, value: JournalsFound) -> JournalsFound:
        """Return nothing."""
        return JournalsFound({}, {})

    def addInPlace(self, value1: JournalsFound, value2: JournalsFound) -> JournalsFound:  # noqa: N802
        """Return the sum."""
        unreadable = dict(value1.unreadable)
        for location, lines in value2.unreadable.items():
            unreadable[location] = unreadable.get(location, 0) + lines
        return JournalsFound(merged([value1.parts, value2.parts], self._top), unreadable)


def read_journals(
    spark: SparkSession,
    locations: Sequence[str],
    period: Period,
    *,
    top: int,
    write: Callable[[DataFrame], None] | None,
) -> JournalsFound:
    """Read the journals once; if the events are to be kept, ``write`` gets them as a frame."""
    reader = spark.read.options(lineSep="\n", recursiveFileLookup="true")
    lines = reader.text([path_to_read(location) for location in locations])
    found = spark.sparkContext.accumulator(JournalsFound({}, {}), _Sum(top))
    read = partial(_read, period, top, write is not None, found)
    events = mapped(lines.select("value", "_metadata.file_path"), read, from_arrow_schema(EVENT))
    if write is None:
        events.write.format("noop").mode("append").save()
    else:
        write(events)
    return found.value


def _read(
    period: Period, top: int, keeps: bool, found: Accumulator[JournalsFound], batches: Batches
) -> Batches:
    """Read lines on an executor; yield the events if they are to be kept."""
    for location, lines in _blocks(batches):
        block = read_lines(lines, period, has_sentences=keeps)
        unreadable = {location: block.unreadable} if block.unreadable else {}
        found.add(
            JournalsFound(parts_of(block.events, top) if len(block.events) else {}, unreadable)
        )
        if keeps:
            yield from block.events.select(EVENT.names).to_batches()


def _blocks(batches: Batches) -> Iterator[tuple[str, bytes]]:
    """Yield a location and some of its lines."""
    waiting: dict[str, list[bytes]] = defaultdict(list)
    for batch in batches:
        lines, paths = batch.columns
        for path in pc.unique(paths).to_pylist():
            of_path = lines.filter(pc.equal(paths, path)).cast(pa.binary())
            whole = pa.ListArray.from_arrays([0, len(of_path)], of_path)
            waiting[path].append(pc.binary_join(whole, b"\n")[0].as_py())
            if sum(map(len, waiting[path])) >= _BLOCK_BYTES:
                yield _location(path), b"\n".join(waiting.pop(path))
    for path, of_file in waiting.items():
        yield _location(path), b"\n".join(of_file)


def _location(uri: str) -> str:
    """Return the location of what is Spark's ``_metadata.file_path``."""
    location = unquote(uri)
    return location if is_remote(location) else str(local_path(location))
