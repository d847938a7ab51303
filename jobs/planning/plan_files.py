"""Writes a plan as files: Kafka reassignment documents, all or none.

``plan.json`` is the plan, in the sequence of execution; its entries have the ``bytes`` of the
partition if they are known, which Kafka's tools ignore. ``rollback.json`` has the present
assignment of the same partitions. Both are as ``kafka-reassign-partitions --execute`` takes them.
``summary.json`` is the output of the job.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import orjson

from regent.core.model import BrokerId
from regent.jobs.planning.model import Change

_ROWS_AT_ONCE: Final = 1000


def write_plan(directory: Path, changes: Sequence[Change], summary: Mapping[str, Any]) -> None:
    """Write a plan into an empty directory."""
    _write_document(directory / "plan.json", changes, _after)
    _write_document(directory / "rollback.json", changes, _before)
    summary_json = orjson.dumps(summary, option=orjson.OPT_INDENT_2)
    (directory / "summary.json").write_bytes(summary_json + b"\n")


def _write_document(path: Path, changes: Sequence[Change], row: Callable[[Change], bytes]) -> None:
    """Write one row a line; few are in memory at a time, because each takes a kilobyte."""
    with path.open("wb") as file:
        file.write(b'{"version":1,"partitions":[')
        for first in range(0, len(changes), _ROWS_AT_ONCE):
            file.write(b",\n" if first else b"\n")
            file.write(b",\n".join(map(row, changes[first : first + _ROWS_AT_ONCE])))
        file.write(b"\n]}\n")


def _before(change: Change) -> bytes:
    return _row(change, change.before)


def _after(change: Change) -> bytes:
    return _row(change, change.after, **({"bytes": change.bytes} if change.bytes else {}))


def _row(change: Change, replicas: Sequence[BrokerId], **more: int) -> bytes:
    topic, partition = change.topic, change.partition
    return orjson.dumps({"topic": topic, "partition": partition, "replicas": replicas, **more})
