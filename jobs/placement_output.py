"""The files of a placement: tasks encode rows, and the driver writes and reads them.

A task hands its rows to the driver as bytes, so that executors need no disk that the driver sees.
"""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import pyarrow
import pyarrow.compute as pc
import pyarrow.parquet as pq

from regent.jobs.placement_arrays import Numbers

FORMATS: Final = ("json", "jsonl", "parquet")
JSON_DOCUMENT: Final = "placement.json"

_CODEC: Final = "zstd"
_ROWS_AT_ONCE: Final = 2**18
_TOPIC: Final = "topic"
_HEAD, _TAIL = b'{"version":1,"partitions":[\n', b"\n]}\n"


class Loads(NamedTuple):
    """The replicas and leaders of each broker, in the order of the broker ids."""

    replicas: Numbers
    leaders: Numbers


class Part(NamedTuple):
    """Rows in each of the formats that the driver asked for, and what they add to the loads."""

    encoded: tuple[bytes, ...]
    loads: Loads


# --- in tasks -------------------------------------------------------------------------------------


def encode(rows: pyarrow.RecordBatch, file_format: str, *, is_first: bool, is_last: bool) -> bytes:
    """Return rows of (topic, partition, replicas) in one of ``FORMATS``.

    ``json`` is the format of ``kafka-reassign-partitions``: one document over all parts. It and
    ``jsonl`` are compressed.
    """
    match file_format:
        case "parquet":
            return _parquet(rows)
        case "jsonl":
            return _compressed(_json_lines(rows, "\n"))
        case _:
            lines = _json_lines(rows, ",\n")
            body = lines.slice(0, lines.size - len(",\n")) if is_last else lines
            return _compressed(_HEAD if is_first else b"", body, _TAIL if is_last else b"")


def _parquet(rows: pyarrow.RecordBatch) -> bytes:
    file = io.BytesIO()
    # zstd finds the patterns of the replicas; with a dictionary they would be larger.
    options = {"compression": _CODEC, "use_dictionary": [_TOPIC], "store_schema": False}
    with pq.ParquetWriter(file, rows.schema, **options) as writer:
        writer.write_batch(rows)
    return file.getvalue()


def _json_lines(rows: pyarrow.RecordBatch, end: str) -> pyarrow.Buffer:
    """Return a JSON object for each row; the names of topics need no escapes."""
    topics, partitions, replicas = rows.columns
    names = pc.binary_join_element_wise('{"topic":"', topics.dictionary, '","partition":', "")
    brokers = pc.binary_join(pc.cast(replicas, pyarrow.list_(pyarrow.string())), ",")
    lines = pc.binary_join_element_wise(
        names.take(topics.indices),
        pc.cast(partitions, pyarrow.string()),
        ',"replicas":[',
        brokers,
        "]}" + end,
        "",
    )
    return lines.buffers()[2]  # the texts, one after another


def _compressed(*texts: bytes | pyarrow.Buffer) -> bytes:
    buffer = pyarrow.BufferOutputStream()
    with pyarrow.CompressedOutputStream(buffer, _CODEC) as stream:
        for text in texts:
            stream.write(text)
    compressed: bytes = buffer.getvalue().to_pybytes()
    return compressed


# --- on the driver --------------------------------------------------------------------------------


def write_parts(parts: Iterable[Part], directories: Mapping[str, Path], brokers: int) -> Loads:
    """Write each part into the directory of each format, as the parts come; return the loads.

    Raises OSError.
    """
    loads = Loads(np.zeros(brokers, np.int64), np.zeros(brokers, np.int64))
    for number, part in enumerate(parts):
        for (file_format, directory), data in zip(directories.items(), part.encoded, strict=True):
            _write(directory, number, file_format, data)
        for total, added in zip(loads, part.loads, strict=True):
            total += added
    return loads


def _write(directory: Path, number: int, file_format: str, data: bytes) -> None:
    if file_format == "parquet":
        (directory / f"part-{number:05d}.parquet").write_bytes(data)
        return
    name = JSON_DOCUMENT if file_format == "json" else f"part-{number:05d}.json"
    with (directory / name).open("ab") as file:
        shutil.copyfileobj(pyarrow.CompressedInputStream(pyarrow.BufferReader(data), _CODEC), file)


def read_placement(directory: Path) -> Iterator[pyarrow.RecordBatch]:
    """Yield the rows that were written as Parquet, sorted by (topic, partition)."""
    for part in sorted(directory.glob("part-*.parquet")):
        with pq.ParquetFile(part) as file:
            yield from file.iter_batches(batch_size=_ROWS_AT_ONCE)
