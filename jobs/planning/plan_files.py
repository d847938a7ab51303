"""Writes a plan as files: Kafka reassignment documents, all or none.

``plan.json`` is the plan, in the sequence of execution; its entries have the ``bytes`` of the
partition if they are known, which Kafka's tools ignore. ``rollback.json`` has the present
assignment of the same partitions. Both are as ``kafka-reassign-partitions --execute`` takes them.
``summary.json`` is the output of the job.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from regent.core.model import BrokerId
from regent.jobs.execution.planned_move import PlannedMove


def write_plan(directory: Path, changes: Sequence[PlannedMove], summary: Mapping[str, Any]) -> None:
    """Write a plan into an empty directory."""
    plan = (_row(c, c.target) | ({"bytes": c.bytes} if c.bytes else {}) for c in changes)
    _write_document(directory / "plan.json", plan)
    _write_document(directory / "rollback.json", (_row(c, c.before) for c in changes))
    summary_json = orjson.dumps(summary, option=orjson.OPT_INDENT_2)
    (directory / "summary.json").write_bytes(summary_json + b"\n")


def _write_document(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write one row a line; one is in memory at a time, because each takes a kilobyte."""
    with path.open("wb") as file:
        file.write(b'{"version":1,"partitions":[')
        for number, row in enumerate(rows):
            file.write((b",\n" if number else b"\n") + orjson.dumps(row))
        file.write(b"\n]}\n")


def _row(change: PlannedMove, replicas: Sequence[BrokerId]) -> dict[str, Any]:
    topic, number = change.partition
    return {"topic": topic, "partition": number, "replicas": replicas}
