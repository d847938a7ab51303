"""Writes a placement, and counts the loads of brokers."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

import numpy
import numpy.typing
import pyarrow
import pyarrow.parquet
from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from regent.core.errors import RegentError
from regent.core.model import BrokerId
from regent.jobs.files import path_to_write
from regent.jobs.java_errors import innermost_cause

FORMATS: Final = ("json", "jsonl", "parquet")
JSON_DOCUMENT: Final = "placement.json"

_BLOCK_BYTES: Final = 2**20
_ROWS_AT_ONCE: Final = 2**18
_SMALL_ID: Final = 2**22

Counts: TypeAlias = numpy.typing.NDArray[numpy.int64]


class WriteFailedError(RegentError):
    """Spark could not write the placement."""


class Loads(NamedTuple):
    """The replicas and leaders of each broker, sorted by id."""

    replicas: Counts
    leaders: Counts


def write_placement(frame: DataFrame, directory: Path, file_format: str) -> None:
    """Write rows of topic, partition and replicas into an empty directory, in one of ``FORMATS``.

    ``json`` is the format of ``kafka-reassign-partitions``. Raises ``WriteFailedError``.
    """
    writer = frame.write.mode("append")  # the directory exists, and it is ours
    try:
        match file_format:
            case "parquet":
                writer.parquet(path_to_write(directory))
            case "jsonl":
                writer.json(path_to_write(directory))
            case _:
                _write_document(frame, directory)
    except Py4JJavaError as error:
        raise WriteFailedError(f"writing failed: {innermost_cause(error)}") from error


def _write_document(frame: DataFrame, directory: Path) -> None:
    parts = directory / "parts"
    frame.write.json(path_to_write(parts))
    with (directory / JSON_DOCUMENT).open("wb") as document:
        document.write(b'{"version":1,"partitions":[\n')
        for part in sorted(parts.glob("part-*")):
            with part.open("rb") as rows:
                while block := rows.read(_BLOCK_BYTES):
                    document.write(block.replace(b"\n", b",\n"))
            part.unlink()
        document.seek(-len(b",\n"), os.SEEK_CUR)  # the last row has no comma
        document.write(b"\n]}\n")
    shutil.rmtree(parts)


def read_placement(directory: Path, columns: Sequence[str]) -> Iterator[pyarrow.RecordBatch]:
    """Yield the rows that were written as Parquet, sorted by (topic, partition)."""
    for part in sorted(directory.glob("part-*.parquet")):
        with pyarrow.parquet.ParquetFile(part) as file:
            yield from file.iter_batches(batch_size=_ROWS_AT_ONCE, columns=list(columns))


def count_written(directory: Path, broker_ids: Sequence[BrokerId]) -> Loads:
    """Count the rows that were written as Parquet, which is much cheaper than to place again."""
    ids = numpy.array(sorted(broker_ids))
    replicas, leaders = numpy.zeros(len(ids), numpy.int64), numpy.zeros(len(ids), numpy.int64)
    for batch in read_placement(directory, ["replicas"]):
        placed = batch.column("replicas")
        holders = placed.flatten().to_numpy()
        firsts = placed.offsets.to_numpy()[:-1] - placed.offsets[0].as_py()
        replicas += _count(holders, ids)
        leaders += _count(holders[firsts], ids)
    return Loads(replicas, leaders)


def _count(values: numpy.typing.NDArray[numpy.int32], ids: Counts) -> Counts:
    if ids[-1] < _SMALL_ID:
        return numpy.bincount(values, minlength=int(ids[-1]) + 1)[ids]
    return numpy.bincount(numpy.searchsorted(ids, values), minlength=len(ids))


def count_placed(frame: DataFrame, broker_ids: Sequence[BrokerId]) -> Loads:
    """Count by evaluating the placement."""
    table = (
        frame.selectExpr("posexplode(replicas) AS (position, broker)")
        .groupBy("broker")
        .agg(F.count("*").alias("replicas"), F.count_if(F.col("position") == 0).alias("leaders"))
        .toArrow()
    )
    ids = numpy.array(sorted(broker_ids))
    at = numpy.searchsorted(ids, table["broker"].to_numpy())
    replicas, leaders = numpy.zeros(len(ids), numpy.int64), numpy.zeros(len(ids), numpy.int64)
    replicas[at] = table["replicas"].to_numpy()
    leaders[at] = table["leaders"].to_numpy()
    return Loads(replicas, leaders)
