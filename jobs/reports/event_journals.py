"""The event journals of all brokers as one table: found, read, and kept as Parquet.

A line of a journal is one event that a controller handled; ``actors/event_journal.py`` writes it.
Unreadable lines (a crash leaves the last one incomplete) are counted by file, and skipped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Final, NamedTuple

from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from regent.jobs.command import InputError
from regent.jobs.files import location_from_spark, path_to_read, path_to_write

JOURNAL: Final = "events.jsonl"
_NAMES: Final = (f"{JOURNAL}.1", JOURNAL)  # the first has the older events

COLUMNS: Final[Mapping[str, str]] = {
    "ts_ms": "BIGINT",  # start of handling; the end is handling_ms later
    "broker_id": "INT",
    "event_id": "BIGINT",  # ascending within one run of the broker
    "event": "STRING",
    "cause": "STRING",
    "queue_ms": "DOUBLE",  # the wait before
    "handling_ms": "DOUBLE",
    "answered_ms": "DOUBLE",  # for a broker's answer: since the request was first sent; else null
    "changes": "ARRAY<STRING>",  # sentences, in sequence
    "unnamed_changes": "BIGINT",  # the number of changes without sentences
    "controller_epoch": "INT",  # of its term, 0 for none
}
"""The table of events; it is partitioned by the last one."""

_LINE: Final = ", ".join(f"{n} {kind}" for n, kind in COLUMNS.items() if n != "unnamed_changes")
_OPTIONAL: Final = {"answered_ms", "changes", "unnamed_changes"}
_REQUIRED: Final = [name for name in COLUMNS if name not in _OPTIONAL]
_MORE: Final = r"^and (\d{1,18}) more$"


class Unreadable(NamedTuple):
    """The unreadable lines of a journal."""

    path: Path
    lines: int


class Period(NamedTuple):
    """The events to report, by the wall clock: from ``since_ms`` to before ``until_ms``."""

    since_ms: int | None = None
    until_ms: int | None = None


def find_journals(places: Iterable[Path]) -> tuple[Path, ...]:
    """Return the journals at each place: a file, a broker's folder, or the folder of a cluster.

    Raises ``InputError`` when there is none.
    """
    found: dict[Path, None] = {}
    for place in places:
        journals = _journals_at(place)
        if not journals:
            raise InputError(
                f"no {JOURNAL} in {place} nor in its broker-* folders: name the folder of a"
                " cluster, or journals, with --journals"
            )
        found |= dict.fromkeys(journals)
    return tuple(found)


def _journals_at(place: Path) -> Sequence[Path]:
    try:
        if place.is_file():
            return [place]
        folders = [place, *sorted(place.glob("broker-*"))]
        return [path for folder in folders for name in _NAMES if (path := folder / name).is_file()]
    except OSError as error:
        raise InputError(f"{place} cannot be read: {error.strerror}") from None


def write_events(
    spark: SparkSession, journals: Sequence[Path], period: Period, directory: Path
) -> list[Unreadable]:
    """Write the events of the journals into an empty directory; return what was unreadable.

    The parts are compressed (zstd), in one folder for each controller epoch.
    """
    lines = _lines(spark, journals)
    # The observation prevents Spark from parsing every line a second time for an early filter.
    observed = Observation()
    parsed = _parsed(lines).observe(observed, F.count_if(~_is_event()).alias("unreadable"))
    writer = _table(parsed, period).write.mode("append").partitionBy("controller_epoch")
    writer.option("compression", "zstd").parquet(path_to_write(directory))
    return _unreadable(lines) if observed.get["unreadable"] else []


def read_events(spark: SparkSession, directory: Path) -> DataFrame:
    """Return the table that ``write_events`` wrote."""
    schema = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
    return spark.read.schema(schema).parquet(path_to_read(directory))


def _lines(spark: SparkSession, journals: Sequence[Path]) -> DataFrame:
    """Return the non-empty lines: after a failed write the journal begins a new line."""
    paths = [path_to_read(path) for path in journals]
    lines = spark.read.text(paths, lineSep="\n").filter("value <> ''")
    return lines.select("value", F.col("_metadata.file_path").alias("file"))


def _parsed(lines: DataFrame) -> DataFrame:
    """Return the fields of each line; missing or unreadable ones are null."""
    fields = lines.select("file", F.from_json("value", _LINE).alias("fields"))
    return fields.select("file", "fields.*")


def _is_event() -> Column:
    return reduce(Column.__and__, (F.col(name).isNotNull() for name in _REQUIRED))


def _table(parsed: DataFrame, period: Period) -> DataFrame:
    """Return the events of the period; a column has the number of changes without sentences."""
    events = parsed.filter(_is_event())
    if period.since_ms is not None:
        events = events.filter(F.col("ts_ms") >= period.since_ms)
    if period.until_ms is not None:
        events = events.filter(F.col("ts_ms") < period.until_ms)
    sentences = F.coalesce("changes", F.array().cast(COLUMNS["changes"]))
    last = F.try_element_at("changes", F.lit(-1))
    # NULL, not empty: a cast of that would throw and catch an exception in every row.
    more = F.when(last.rlike(_MORE), F.regexp_extract(last, _MORE, 1))
    without_last = F.expr("slice(changes, 1, size(changes) - 1)")
    return (
        events.withColumn("changes", sentences)
        .withColumn("more", more)
        .withColumn("unnamed_changes", F.coalesce(F.col("more").try_cast("BIGINT"), F.lit(0)))
        .withColumn("changes", F.when(F.col("more").isNotNull(), without_last).otherwise(sentences))
        .select(*COLUMNS)
    )


def _unreadable(lines: DataFrame) -> list[Unreadable]:
    """Count the unreadable lines by file."""
    counts = _parsed(lines).groupBy("file").agg(F.count_if(~_is_event()).alias("lines"))
    rows = counts.filter("lines > 0").orderBy("file").toArrow().to_pylist()
    return [Unreadable(Path(location_from_spark(row["file"])), row["lines"]) for row in rows]
