"""The event journals of all brokers as one table.

A line of a journal is one event that a controller handled; ``actors/event_journal.py`` writes it.
Unreadable lines (a crash leaves the last one incomplete) are counted by file, and skipped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from pyspark.sql import DataFrame, SparkSession

from regent.jobs.command import InputError
from regent.jobs.files import Entry, JobFiles, location_from_spark, path_to_read
from regent.jobs.reports.earlier_journals import NAMED_CHANGES, TYPED_FIELDS

JOURNAL: Final = "events.jsonl"
_NAMES: Final = (f"{JOURNAL}.1", JOURNAL)  # the first has the older events

_REQUIRED: Final = {
    "ts_ms": "BIGINT",
    "broker_id": "INT",
    "event_id": "BIGINT",
    "event": "STRING",
    "cause": "STRING",
    "queue_ms": "DOUBLE",
    "handling_ms": "DOUBLE",
    "controller_epoch": "INT",
}
_PARTITION: Final = (
    "topic STRING, partition INT, leader_before INT, isr_before ARRAY<INT>, leader INT,"
    " isr ARRAY<INT>, leader_epoch INT"
)
_SCHEMA: Final = ", ".join(f"{name} {kind}" for name, kind in _REQUIRED.items()) + (
    ", broker INT, topic STRING, partition INT, trigger STRING, answered_ms DOUBLE,"
    " change_count INT, elected INT, resigned INT, started ARRAY<INT>, failed ARRAY<INT>,"
    f" partitions ARRAY<STRUCT<{_PARTITION}>>, changes ARRAY<STRING>"
)
"""The fields of a line, which ``actors/event_journal.py`` explains."""

_IS_EVENT: Final = " AND ".join(f"{name} IS NOT NULL" for name in _REQUIRED)


class Unreadable(NamedTuple):
    """The unreadable lines of a journal."""

    location: str
    lines: int


class Period(NamedTuple):
    """The events to report, by the wall clock: from ``since_ms`` to before ``until_ms``."""

    since_ms: int | None = None
    until_ms: int | None = None


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


def read_journals(
    spark: SparkSession, journals: Sequence[str], period: Period, *, with_sentences: bool = False
) -> DataFrame:
    """Return the events of the period, and the unreadable lines, in one pass over the journals.

    Of an unreadable line only ``unreadable_in`` is told, its file. Without ``with_sentences``
    ``changes`` is null in lines whose other fields have the same.
    """
    lines = spark.read.schema(_SCHEMA).json([path_to_read(path) for path in journals], lineSep="\n")
    # A small projection: the JVM does not compile large methods.
    events = lines.selectExpr(
        *(name for name in lines.columns if name != "changes"),
        "changes" if with_sentences else "IF(change_count IS NULL, changes, NULL) AS changes",
        f"{NAMED_CHANGES} AS named_changes",
        f"IF({_IS_EVENT}, NULL, _metadata.file_path) AS unreadable_in",
    )
    kept = [
        *([] if period.since_ms is None else [f"ts_ms >= {period.since_ms}"]),
        *([] if period.until_ms is None else [f"ts_ms < {period.until_ms}"]),
    ]
    return events.filter(f"unreadable_in IS NOT NULL OR ({' AND '.join(kept)})") if kept else events


def events_of(lines: DataFrame) -> DataFrame:
    """Return the events among the lines of ``read_journals``.

    Columns are the fields of ``actors/event_journal.py``, and ``named_changes``, the number of
    changes with a sentence; ``change_count`` is never null.
    """
    events = lines.filter("unreadable_in IS NULL").drop("unreadable_in")
    fields = {name: name for name in events.columns} | TYPED_FIELDS
    return events.selectExpr(*(f"{expression} AS {name}" for name, expression in fields.items()))


def unreadable_of(lines: DataFrame) -> list[Unreadable]:
    """Count the unreadable lines by file."""
    counts = lines.filter("unreadable_in IS NOT NULL").groupBy("unreadable_in").count()
    rows = counts.orderBy("unreadable_in").collect()
    return [Unreadable(location_from_spark(uri), count) for uri, count in rows]


def write_events(events: DataFrame, directory: str) -> None:
    """Write the table of events into an empty directory; ``directory`` is a path of Spark.

    It is compressed (zstd), and has one folder for each controller epoch.
    """
    writer = events.write.mode("append").partitionBy("controller_epoch")
    writer.option("compression", "zstd").parquet(directory)
