"""Names of the directories and files of logs, and logs that are renamed to be deleted.

Mirrors ``kafka.log.UnifiedLog``.

``topic-3`` is a log; ``topic-3.<32 hex digits>-delete`` waits for its deletion, ``…-stray`` is not
assigned to this broker (Kafka has these from 3.6 on, see ``stray_logs``), ``…-future`` is the copy
of a log that is being moved to this directory.

A log that is deleted is renamed at once and deleted after a delay. The modification time of the
directory is the time it was renamed, so the delay survives a restart.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from regent.core.model import TopicPartition

LOG_SUFFIX = ".log"
INDEX_SUFFIXES = (".index", ".timeindex", ".txnindex")
DELETED_SUFFIX = ".deleted"
CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"

TO_DELETE = "-delete"
STRAY = "-stray"
FUTURE = "-future"

_MAX_NAME_BYTES = 255
_LOG = re.compile(r"(?P<topic>[a-zA-Z0-9._-]{1,249})-(?P<partition>0|[1-9][0-9]{0,9})", re.ASCII)
_MOVED = re.compile(r".+-[0-9]+\.[0-9a-f]{32}-(?P<kind>delete|stray|future)", re.ASCII)
_FUTURE = re.compile(rf"(?P<log>{_LOG.pattern})\.[0-9a-f]{{32}}-future", re.ASCII)
_SEGMENT = re.compile(r"(?P<base_offset>[0-9]{20})\.log", re.ASCII)


def log_of_directory(name: str) -> TopicPartition | None:
    """Return the partition of a directory name; None: it does not name a log in use."""
    if is_moved(name):
        return None
    match = _LOG.fullmatch(name)
    return TopicPartition(match["topic"], int(match["partition"])) if match else None


def log_of_future_directory(name: str) -> TopicPartition | None:
    """Return the partition of a ``-future`` log; None: it is not such a name."""
    match = _FUTURE.fullmatch(name)
    return TopicPartition(match["topic"], int(match["partition"])) if match else None


def future_name(topic_partition: TopicPartition) -> str:
    """Return a unique name for a future log."""
    return f"{topic_partition}.{uuid4().hex}{FUTURE}"


def is_moved(name: str) -> bool:
    """Whether a directory name is that of a ``-delete``, ``-stray`` or ``-future`` log."""
    return _MOVED.fullmatch(name) is not None


def out_of_use(topic_partition: TopicPartition, suffix: str) -> str:
    """Return a unique name for a log that is no longer used.

    ``suffix`` is ``TO_DELETE`` or ``STRAY``. A long topic is shortened, as in Kafka (KAFKA-8022).
    """
    end = f"-{topic_partition.partition}.{uuid4().hex}{suffix}"
    return topic_partition.topic[: _MAX_NAME_BYTES - len(end)] + end


def is_name_of(topic_partition: TopicPartition, name: str) -> bool:
    """Whether a directory name is that of a ``-delete`` or ``-stray`` log of a partition."""
    stem, _, end = name.rpartition(".")
    cut = _MAX_NAME_BYTES - len(f"-{topic_partition.partition}.{end}")
    return stem == f"{topic_partition.topic[:cut]}-{topic_partition.partition}"


def base_offset_of(file_name: str) -> int | None:
    """Return the base offset of a segment's ``.log`` file; None: it is not such a name."""
    match = _SEGMENT.fullmatch(file_name)
    return int(match["base_offset"]) if match else None


def rename_log(
    path: Path, topic_partition: TopicPartition, suffix: str, now_ms: int
) -> Path | None:
    """Rename the directory of a log so that it is not loaded.

    Return its new path; None: it was absent. Raises ``OSError``.
    """
    moved = path.with_name(out_of_use(topic_partition, suffix))
    try:
        move_log(path, moved, now_ms)
    except FileNotFoundError:
        return None
    return moved


def move_log(path: Path, moved: Path, now_ms: int) -> None:
    """Rename the directory of a log, and note when. Raises ``OSError``."""
    path.rename(moved)
    os.utime(moved, ns=(now_ms * 1_000_000, now_ms * 1_000_000))


def delete_renamed_logs(
    directory: Path, now_ms: int, file_delete_delay_ms: int, give_up: Callable[[Path], bool]
) -> tuple[int, list[int]]:
    """Delete the logs whose delay is over. Raises ``OSError``.

    ``give_up`` is called before the files of a log are deleted; it returns whether the log is
    still there. Return how many they were, and when each of the others is due.
    """
    purged, left_ms = 0, []
    with os.scandir(directory) as entries:
        deleted = [e for e in entries if e.name.endswith(TO_DELETE) and is_moved(e.name)]
    for entry in deleted:
        try:
            due_ms = entry.stat().st_mtime_ns // 1_000_000 + file_delete_delay_ms
        except FileNotFoundError:
            continue  # it came back into use
        if due_ms > now_ms:
            left_ms.append(due_ms)
        elif give_up(Path(entry.path)):
            with suppress(FileNotFoundError):  # an operator has removed it
                shutil.rmtree(entry.path)
                purged += 1
    return purged, left_ms
