"""A placement as one document, in the format of ``kafka-reassign-partitions``."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

import pyarrow
import pyarrow.compute as pc

NAME: Final = "placement.json"
MAX_PARTITIONS: Final = 10_000_000
"""The tools that read such a document have all of it in memory."""

_HEAD, _BETWEEN, _TAIL = b'{"version":1,"partitions":[\n', b",\n", b"\n]}\n"


def write_document(batches: Iterable[pyarrow.RecordBatch], directory: Path) -> None:
    """Write batches of (topic, partition, replicas) into one file. Raises OSError."""
    with (directory / NAME).open("wb") as file:
        for batch in batches:
            file.write(_BETWEEN if file.tell() else _HEAD)
            file.write(_objects(batch)[: -len(_BETWEEN)])
        file.write(_TAIL)


def _objects(rows: pyarrow.RecordBatch) -> memoryview:
    """Return a JSON object for each row; the names of topics need no escapes."""
    topics, partitions, replicas = rows.columns
    lines = pc.binary_join_element_wise(
        '{"topic":"',
        topics,
        '","partition":',
        pc.cast(partitions, pyarrow.string()),
        ',"replicas":[',
        pc.binary_join(pc.cast(replicas, pyarrow.list_(pyarrow.string())), ","),
        "]}" + _BETWEEN.decode(),
        "",
    )
    return memoryview(lines.buffers()[2])  # the texts, one after another
