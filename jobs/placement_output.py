"""The files of a placement: tasks give Parquet, and the driver writes every format and reads it.

A task hands its rows to the driver as bytes, so that executors need no disk that the driver sees.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import pyarrow
import pyarrow.compute as pc
import pyarrow.parquet as pq

from regent.core.protocol.placement import PlacedPartition
from regent.jobs.placement_arrays import Loads

FORMATS: Final = ("json", "jsonl", "parquet")
JSON_DOCUMENT: Final = "placement.json"

_ROWS_AT_ONCE: Final = 2**18
_TOPIC: Final = "topic"
_HEAD, _BETWEEN, _TAIL = b'{"version":1,"partitions":[\n', b",\n", b"\n]}\n"


class Part(NamedTuple):
    """Rows of (topic, partition, replicas) as a Parquet file, and what they add to the loads."""

    table: bytes
    loads: Loads


def encoded(rows: pyarrow.RecordBatch) -> bytes:
    """Return rows as a Parquet file."""
    file = io.BytesIO()
    # zstd finds the patterns of the replicas; with a dictionary they would be larger.
    options = {"compression": "zstd", "use_dictionary": [_TOPIC], "store_schema": False}
    with pq.ParquetWriter(file, rows.schema, **options) as writer:
        writer.write_batch(rows)
    return file.getvalue()


def decoded(part: Part) -> pyarrow.Table:
    """Return the rows of a part; its topics are a dictionary."""
    return pq.read_table(pyarrow.BufferReader(part.table), read_dictionary=[_TOPIC])


def write_parts(parts: Iterable[Part], directories: Mapping[str, Path], brokers: int) -> Loads:
    """Write the parts into the directory of each format, as they come; return the sum of the loads.

    ``json`` is the format of ``kafka-reassign-partitions``: one document. Raises OSError.
    """
    loads = Loads(np.zeros(brokers, np.int64), np.zeros(brokers, np.int64))
    for number, part in enumerate(parts):
        for file_format, directory in directories.items():
            match file_format:
                case "parquet":
                    (directory / f"part-{number:05d}.parquet").write_bytes(part.table)
                case "jsonl":
                    with (directory / f"part-{number:05d}.json").open("wb") as file:
                        file.writelines(_json_lines(part, b"\n"))
                case _:
                    with (directory / JSON_DOCUMENT).open("ab") as file:
                        for lines in _json_lines(part, _BETWEEN):
                            file.write(_BETWEEN if file.tell() else _HEAD)
                            file.write(lines[: -len(_BETWEEN)])
        for total, added in zip(loads, part.loads, strict=True):
            total += added
    if "json" in directories:
        with (directories["json"] / JSON_DOCUMENT).open("ab") as file:
            file.write(_TAIL)
    return loads


def _json_lines(part: Part, end: bytes) -> Iterator[memoryview]:
    """Yield JSON objects, one for each row; the names of topics need no escapes."""
    for batch in decoded(part).to_batches():
        topics, partitions, replicas = batch.columns
        heads = pc.binary_join_element_wise('{"topic":"', topics.dictionary, '","partition":', "")
        lines = pc.binary_join_element_wise(
            heads.take(topics.indices),
            pc.cast(partitions, pyarrow.string()),
            ',"replicas":[',
            pc.binary_join(pc.cast(replicas, pyarrow.list_(pyarrow.string())), ","),
            "]}" + end.decode(),
            "",
        )
        yield memoryview(lines.buffers()[2])  # the texts, one after another


def placed_partitions(
    tables: Iterable[pyarrow.Table | pyarrow.RecordBatch],
) -> Iterator[PlacedPartition]:
    """Yield the rows of tables of (topic, partition, replicas)."""
    for table in tables:
        columns = (column.to_pylist() for column in table.columns)
        for topic, partition, replicas in zip(*columns, strict=True):
            yield PlacedPartition(topic, partition, tuple(replicas))


def read_placement(directory: Path) -> Iterator[pyarrow.RecordBatch]:
    """Yield the rows that were written as Parquet, sorted by (topic, partition)."""
    for part in sorted(directory.glob("part-*.parquet")):
        with pq.ParquetFile(part) as file:
            yield from file.iter_batches(batch_size=_ROWS_AT_ONCE)
