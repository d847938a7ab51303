"""Logs on their way out: renamed at once, deleted when their time has come.

The modification time of the directory says since when, so that it outlives the process. Kafka knows
both names: ``-delete`` always, ``-stray`` from 3.6 on.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from core.model import TopicPartition
from storage.log_names import STRAY, TO_DELETE, is_moved, out_of_use

STRAY_KEPT_MS = 24 * 60 * 60 * 1000
"""How long a log nobody assigned to us is kept: time for a person to wonder."""


def take_out(directory: Path, topic_partition: TopicPartition, suffix: str, now_ms: int) -> None:
    """Rename a log so that nobody will load it; absent is fine. Raises ``OSError``."""
    moved = directory / out_of_use(topic_partition, suffix)
    try:
        (directory / str(topic_partition)).rename(moved)
    except FileNotFoundError:
        return
    os.utime(moved, ns=(now_ms * 1_000_000, now_ms * 1_000_000))


def purge(directory: Path, now_ms: int, file_delete_delay_ms: int) -> int:
    """Delete the logs whose time has come; return how many. Raises ``OSError``."""
    kept_ms = {TO_DELETE: file_delete_delay_ms, STRAY: STRAY_KEPT_MS}
    purged = 0
    with os.scandir(directory) as entries:
        moved = [entry for entry in entries if is_moved(entry.name)]
    for entry in moved:
        delay_ms = kept_ms.get("-" + entry.name.rpartition("-")[2])
        since_ms = entry.stat().st_mtime_ns // 1_000_000
        if delay_ms is not None and now_ms - since_ms >= delay_ms:
            shutil.rmtree(entry.path)
            purged += 1
    return purged
