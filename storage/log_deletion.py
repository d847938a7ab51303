"""Asynchronous deletion of logs: a log is renamed at once and deleted after a delay.

The modification time of the directory is the time it was renamed, so the delay survives a restart.
Kafka uses the same suffixes: ``-delete``, and from 3.6 on ``-stray`` (see ``stray_logs``).
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from regent.core.model import TopicPartition
from regent.storage.log_names import TO_DELETE, is_moved, out_of_use


def rename_log(
    path: Path, topic_partition: TopicPartition, suffix: str, now_ms: int
) -> Path | None:
    """Rename the directory of a log so that it is not loaded.

    Return its new path; None: it was absent. Raises ``OSError``.
    """
    moved = path.with_name(out_of_use(topic_partition, suffix))
    try:
        path.rename(moved)
    except FileNotFoundError:
        return None
    os.utime(moved, ns=(now_ms * 1_000_000, now_ms * 1_000_000))
    return moved


def delete_renamed_logs(directory: Path, now_ms: int, file_delete_delay_ms: int) -> int:
    """Delete the logs whose delay is over; return how many. Raises ``OSError``."""
    purged = 0
    with os.scandir(directory) as entries:
        deleted = [e for e in entries if e.name.endswith(TO_DELETE) and is_moved(e.name)]
    for entry in deleted:
        since_ms = entry.stat().st_mtime_ns // 1_000_000
        if now_ms - since_ms >= file_delete_delay_ms:
            shutil.rmtree(entry.path)
            purged += 1
    return purged
