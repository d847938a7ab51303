"""The event journals of all brokers: found, and read by Spark's tasks into tables of Arrow.

A line of a journal is one event that a controller handled; ``actors/event_journal.py`` writes it.
Unreadable lines (a crash leaves the last one incomplete) are counted, and skipped.

One task reads a journal, a block at a time. It hands tables of few rows to the driver and, if the
events are to be kept, Parquet: executors need no disk that the driver sees, and the driver none
that has room for the journals.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json
import pyarrow.parquet as pq
from pyspark import RDD, SparkContext
from pyspark.sql import SparkSession

from regent.core.controller.effects import MAX_NAMED_CHANGES
from regent.jobs.command import InputError
from regent.jobs.files import Entry, JobFiles, is_remote, local_path, path_to_read
from regent.jobs.reports.earlier_journals import typed_fields
from regent.jobs.reports.event_parts import Parts, merged, parts_of

JOURNAL: Final = "events.jsonl"
_NAMES: Final = (f"{JOURNAL}.1", JOURNAL)  # the first has the older events
_END_OF_TIME_MS: Final = 250_000_000_000_000  # dates end with the year 9999
_BLOCK_BYTES: Final = 16 << 20  # of lines that are in memory at a time
_JOURNALS_OF_JOB: Final = 64  # their results are in the driver's memory
_EPOCH: Final = "controller_epoch"

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
_EARLIER: Final = (
    (b'"changes":["', b'"change_count":'),
    (b'"cause":"answer of broker ', b'"broker":'),
)
"""What lines of earlier versions have, and the field that lines of today have with it."""
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


def read_journal(file: IO[bytes], period: Period, *, has_sentences: bool) -> Iterator[Block]:
    """Yield the events of the period, in no particular order, a block of lines at a time.

    The tables have the fields of a line, of which ``change_count`` is never null, and
    ``named_changes``, which have a sentence. ``has_sentences``: the field ``changes`` is there.
    """
    schema = _LINE if has_sentences else _WITHOUT_SENTENCES
    while lines := file.read(_BLOCK_BYTES):
        yield _block(lines + file.readline(), period, schema)


def _block(data: bytes, period: Period, schema: pa.Schema) -> Block:
    has_earlier = any(data.count(old) > data.count(new) for old, new in _EARLIER)
    read = _LINE if has_earlier else schema
    tables, unreadable = _parsed(data.strip(b"\n"), read)
    lines = pa.concat_tables([read.empty_table(), *tables])
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
    if has_earlier:
        is_later = pc.is_valid(events["change_count"])
        earlier = map(typed_fields, events.filter(pc.invert(is_later)).to_pylist())
        typed = pa.Table.from_pylist(list(earlier), _LINE)
        events = pa.concat_tables([events.filter(is_later), typed]).select(schema.names)
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


class JournalResult(NamedTuple):
    """What a task returns for a journal; ``parts`` is empty if it has no event of the period.

    ``tables`` has the events as Parquet, each with its controller epoch, if they are to be kept.
    """

    location: str
    unreadable: int
    parts: Parts
    tables: list[tuple[int, bytes]]


def read_journals(
    spark: SparkSession, locations: Sequence[str], period: Period, *, top: int, keeps: bool
) -> Iterator[list[JournalResult]]:
    """Yield the results of some journals after the other; ``keeps``: with the events themselves.

    Raises ``InputError`` for a name with a comma on a remote file system.
    """
    for location in filter(is_remote, locations):
        if "," in location:
            raise InputError(
                f"{location}: Hadoop takes the comma for the end of the name: rename it"
            )
    for first in range(0, len(locations), _JOURNALS_OF_JOB):
        files = _contents(spark.sparkContext, locations[first : first + _JOURNALS_OF_JOB])
        yield files.map(partial(_read, period, top, keeps)).collect()


def _contents(context: SparkContext, locations: Sequence[str]) -> RDD[tuple[str, bytes | None]]:
    """Return the content of remote journals. Local ones need not pass through the JVM."""
    local = [(location, None) for location in locations if not is_remote(location)]
    remote = [location for location in locations if is_remote(location)]
    contents: list[RDD[tuple[str, bytes | None]]] = []
    if local:
        contents.append(context.parallelize(local, len(local)))
    if remote:
        contents.append(context.binaryFiles(",".join(map(path_to_read, remote)), len(remote)))
    return context.union(contents)


def _read(period: Period, top: int, keeps: bool, file: tuple[str, bytes | None]) -> JournalResult:
    """Read a journal on an executor."""
    location, content = file
    unreadable, parts, tables = 0, Parts(), list[tuple[int, bytes]]()
    with local_path(location).open("rb") if content is None else io.BytesIO(content) as lines:
        for block in read_journal(lines, period, has_sentences=keeps):
            unreadable += block.unreadable
            if len(block.events):
                parts = merged([parts, parts_of(block.events, top)], top)
                tables += _parquet(block.events) if keeps else ()
    return JournalResult(location, unreadable, parts, tables)


def _parquet(events: pa.Table) -> Iterator[tuple[int, bytes]]:
    for epoch in pc.unique(events[_EPOCH]).to_pylist():
        file = io.BytesIO()
        of_epoch = events.filter(pc.equal(events[_EPOCH], epoch)).drop_columns([_EPOCH])
        pq.write_table(of_epoch, file, compression="zstd", store_schema=False)
        yield epoch, file.getvalue()


def write_tables(directory: Path, number: int, result: JournalResult) -> None:
    """Write the events of a journal into a table with a folder for each controller epoch."""
    for block, (epoch, table) in enumerate(result.tables):
        folder = directory / f"{_EPOCH}={epoch}"
        folder.mkdir(exist_ok=True)
        (folder / f"part-{number:05d}-{block:03d}.parquet").write_bytes(table)
