"""A plan as files: Kafka reassignment documents, written all or not at all.

``plan.json`` is the whole plan and ``rollback.json`` the present assignment of the same partitions,
both as ``kafka-reassign-partitions --execute`` takes them. ``waves/0001.json`` and on are the parts
of the plan to carry out one after the other, ``summary.json`` what the job said.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from core.model import BrokerId
from jobs.planning.model import Change


def write_plan(
    target: Path, changes: Sequence[Change], wave_of: Sequence[int], summary: Mapping[str, Any]
) -> None:
    """Write a plan into a new directory, which may be there already if it is empty."""
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        rows = [_row(change, change.after) for change in changes]
        _write_document(unfinished / "plan.json", rows)
        _write_document(
            unfinished / "rollback.json", (_row(change, change.before) for change in changes)
        )
        _write_waves(unfinished / "waves", rows, wave_of)
        summary_json = orjson.dumps(summary, option=orjson.OPT_INDENT_2)
        (unfinished / "summary.json").write_bytes(summary_json + b"\n")
        unfinished.chmod(0o777 & ~_umask())
        unfinished.rename(target)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise


def _write_waves(directory: Path, rows: Sequence[bytes], wave_of: Sequence[int]) -> None:
    waves: list[list[bytes]] = [[] for _ in range(max(wave_of, default=-1) + 1)]
    for row, wave in zip(rows, wave_of, strict=True):
        waves[wave].append(row)
    directory.mkdir()
    width = max(4, len(str(len(waves))))  # so that they sort as they follow each other
    for number, of_wave in enumerate(waves, 1):
        _write_document(directory / f"{number:0{width}d}.json", of_wave)


def _write_document(path: Path, rows: Iterable[bytes]) -> None:
    with path.open("wb") as file:
        file.write(b'{"version":1,"partitions":[\n')
        file.write(b",\n".join(rows))
        file.write(b"\n]}\n")


def _row(change: Change, replicas: Sequence[BrokerId]) -> bytes:
    return orjson.dumps(
        {"topic": change.topic, "partition": change.partition, "replicas": replicas}
    )


def _umask() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return umask
