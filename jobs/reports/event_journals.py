"""The event journals of all brokers: found, and read by Spark into a frame of events.

A line of a journal is one event that a controller handled; ``actors/event_journal.py`` writes it.
A crash leaves the last one incomplete: such lines are no events.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from regent.config.cluster_location import number_of_folder
from regent.core.controller.effects import MAX_NAMED_CHANGES
from regent.jobs.command import InputError
from regent.jobs.files import Entry, JobFiles, path_to_read
from regent.storage.journal_reader import JOURNAL, PREVIOUS

_NEEDED: Final = (
    "ts_ms long, broker_id int, event_id long, event string, cause string, queue_ms double,"
    " handling_ms double, controller_epoch int"
)
_LINE: Final = (  # as actors/event_journal.py explains it
    f"{_NEEDED}, broker int, topic string, partition int, trigger string, answered_ms double,"
    " change_count int, elected int, resigned int, started array<int>, failed array<int>,"
    " partitions array<struct<topic:string, partition:int, leader_before:int,"
    " isr_before:array<int>, leader:int, isr:array<int>, leader_epoch:int>>, changes array<string>"
)
_DAMAGED: Final = "damaged"
_END_OF_TIME_MS: Final = 250_000_000_000_000  # dates end with the year 9999
_IS_EVENT: Final = " AND ".join(
    [
        f"{_DAMAGED} IS NULL AND ts_ms >= 0 AND ts_ms < {_END_OF_TIME_MS}",
        *(f"{column.split()[0]} IS NOT NULL" for column in _NEEDED.split(", ")),
    ]
)


def find_journals(places: Iterable[str], files: JobFiles) -> tuple[Entry, ...]:
    """Return the journals at each place: a file, a broker's folder, or the folder of a cluster.

    Raises ``InputError`` when there is none.
    """
    found: dict[Entry, None] = {}
    for place in places:
        journals = _journals_at(place, files)
        if not journals:
            raise InputError(
                f"no {JOURNAL} in {place} nor in its broker-N folders: name the folder of a"
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
    folders = [
        e for e in inside if e.is_directory and number_of_folder(e.name, "broker") is not None
    ]
    entries = [*inside, *(e for folder in folders for e in files.entries(folder.location))]
    return [e for e in entries if e.name in (PREVIOUS, JOURNAL) and not e.is_directory]


def journal_lines(spark: SparkSession, locations: Sequence[str]) -> DataFrame:
    """Return the lines of journals: columns value, and path, a URI."""
    reader = spark.read.options(lineSep="\n", recursiveFileLookup="true")
    lines = reader.text([path_to_read(location) for location in locations])
    return lines.select("value", F.col("_metadata.file_path").alias("path"))


def parsed(lines: DataFrame) -> DataFrame:
    """Return the fields of lines, the other columns of ``lines``, and ``is_event``."""
    schema, options = f"{_LINE}, {_DAMAGED} string", {"columnNameOfCorruptRecord": _DAMAGED}
    others = [name for name in lines.columns if name != "value"]
    # A generator: Spark would parse a line again for each field in a condition.
    fields = F.inline(F.array(F.from_json("value", schema, options)))
    found = lines.where("trim(value) <> ''").select(*others, fields)
    return found.withColumn("is_event", F.coalesce(F.expr(_IS_EVENT), F.lit(False)))


def events_in(lines: DataFrame) -> DataFrame:
    """Return a row for each event of ``parsed`` lines: its fields, and how many changes it names.

    ``change_count`` and ``named_changes``, which have a sentence, are never null.
    """
    events = lines.where("is_event").drop("path", _DAMAGED, "is_event")
    return events.withColumn("change_count", F.expr("coalesce(change_count, 0)")).withColumn(
        "named_changes", F.expr(f"least(change_count, {MAX_NAMED_CHANGES})")
    )
