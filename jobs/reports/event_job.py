"""Reads event journals in the tasks of Spark: one task reads a journal, a block at a time.

A task hands tables of few rows to the driver and, if the events are to be kept, Parquet: executors
need no disk that the driver sees, and the driver none that has room for the journals.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark import RDD, SparkContext
from pyspark.sql import SparkSession

from regent.jobs.command import InputError
from regent.jobs.files import is_remote, local_path, path_to_read
from regent.jobs.reports.event_journals import Period, read_journal
from regent.jobs.reports.event_parts import Parts, merged, parts_of

_JOURNALS_OF_JOB: Final = 64  # their results are in the driver's memory
_EPOCH: Final = "controller_epoch"


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
