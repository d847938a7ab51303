"""Writes a plan as files: Kafka reassignment documents, all or none.

``plan.json`` is the whole plan and ``rollback.json`` the present assignment of the same partitions,
both as ``kafka-reassign-partitions --execute`` takes them. ``waves/0001.json`` and on are the parts
of the plan to execute in sequence; ``summary.json`` is the output of the job.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import orjson

from regent.core.model import BrokerId
from regent.jobs.planning.model import Change

_ROWS_AT_ONCE: Final = 1000


def write_plan(
    directory: Path, changes: Sequence[Change], wave_of: Sequence[int], summary: Mapping[str, Any]
) -> None:
    """Write a plan into an empty directory."""
    _write_document(directory / "plan.json", changes, _after)
    _write_document(directory / "rollback.json", changes, _before)
    _write_waves(directory / "waves", changes, wave_of)
    summary_json = orjson.dumps(summary, option=orjson.OPT_INDENT_2)
    (directory / "summary.json").write_bytes(summary_json + b"\n")


def _write_waves(directory: Path, changes: Sequence[Change], wave_of: Sequence[int]) -> None:
    waves: list[list[Change]] = [[] for _ in range(max(wave_of, default=-1) + 1)]
    for change, wave in zip(changes, wave_of, strict=True):
        waves[wave].append(change)
    directory.mkdir()
    width = max(4, len(str(len(waves))))  # so that names sort in the sequence of the waves
    for number, of_wave in enumerate(waves, 1):
        _write_document(directory / f"{number:0{width}d}.json", of_wave, _after)


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
    return _row(change, change.after)


def _row(change: Change, replicas: Sequence[BrokerId]) -> bytes:
    return orjson.dumps(
        {"topic": change.topic, "partition": change.partition, "replicas": replicas}
    )
