"""Stray logs: set aside because their topic is gone from ZooKeeper, or assigned to others.

Their deletion was not requested, so they are kept. A log whose topic comes back with the same id is
taken into use again. One whose topic is there, but assigned to other brokers, is deleted after
24 hours; one of an unknown topic stays until a person, or the deletion of that very topic,
takes it away. Damaged logs are set aside too, and are not taken into use again.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from regent.core.errors import BadDataError, ShortageError, StorageError
from regent.core.model import TopicPartition
from regent.core.protocol.control import TopicId
from regent.storage.checkpoints import parse_numbers, read_rows, read_topic_id, write_rows
from regent.storage.log_names import STRAY, is_moved, is_name_of

STRAY_KEPT_MS = 24 * 60 * 60 * 1000
"""How long a stray log is kept whose partition other brokers have."""

_CHECKPOINT = "set-aside-checkpoint"


class StrayLogCheckpoint(NamedTuple):
    """The offsets of a log when it was set aside."""

    log_start_offset: int = 0
    recovery_point: int = 0
    high_watermark: int = 0


class StrayLogs:
    """The stray logs of one log directory. Thread-safe; the caller owns a log that it takes out."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock = threading.Lock()
        self._topic_ids: dict[str, TopicId | None] = {}  # by the names of their directories

    def load(self) -> None:
        """Find those that an earlier process set aside. Raises ``OSError``, ``ShortageError``."""
        with os.scandir(self._directory) as entries:
            names = [e.name for e in entries if e.name.endswith(STRAY) and is_moved(e.name)]
        for name in names:
            try:
                topic_id = read_topic_id(self._directory / name)
            except ShortageError:
                raise
            except (BadDataError, StorageError):
                topic_id = None
            self.add(self._directory / name, topic_id)

    def add(self, path: Path, topic_id: TopicId | None) -> None:
        """Note one that has been set aside."""
        with self._lock:
            self._topic_ids[path.name] = topic_id

    @property
    def names(self) -> list[str]:
        """The names of their directories."""
        with self._lock:
            return sorted(self._topic_ids)

    def take_usable(self, topic_partition: TopicPartition, topic_id: TopicId | None) -> Path | None:
        """Take the one out that was set aside last and can be used again; None: there is none."""
        with self._lock:
            usable = [
                path
                for path in self._of(topic_partition, topic_id)
                if (path / _CHECKPOINT).exists()
            ]
            if not usable:
                return None
            newest = max(usable, key=_modified_ns)
            del self._topic_ids[newest.name]
            return newest

    def take_all(self, topic_partition: TopicPartition, topic_id: TopicId | None) -> list[Path]:
        """Take all out of a partition of that very topic."""
        with self._lock:
            found = self._of(topic_partition, topic_id)
            for path in found:
                del self._topic_ids[path.name]
            return found

    def take_due(self, now_ms: int, is_known: Callable[[TopicId], bool]) -> list[Path]:
        """Take those out that other brokers have and that were kept for long enough."""
        with self._lock:
            due = [
                path
                for name, topic_id in self._topic_ids.items()
                if topic_id is not None
                and is_known(topic_id)
                and now_ms - _modified_ns(path := self._directory / name) // 1_000_000
                >= STRAY_KEPT_MS
            ]
            for path in due:
                del self._topic_ids[path.name]
            return due

    def _of(self, topic_partition: TopicPartition, topic_id: TopicId | None) -> list[Path]:
        if topic_id is None or not self._topic_ids:
            return []
        return [
            self._directory / directory
            for directory, its_id in self._topic_ids.items()
            if its_id == topic_id and is_name_of(topic_partition, directory)
        ]


def write_checkpoint(path: Path, progress: StrayLogCheckpoint) -> None:
    """Note in the directory of a log what makes it usable again. Raises ``StorageError``."""
    write_rows(path / _CHECKPOINT, [" ".join(map(str, progress))])


def read_checkpoint(path: Path) -> StrayLogCheckpoint:
    """Return what was noted. Raises ``StorageError``."""
    checkpoint = path / _CHECKPOINT
    try:
        [row] = read_rows(checkpoint, columns=len(StrayLogCheckpoint._fields)) or [["0", "0", "0"]]
        return StrayLogCheckpoint(*parse_numbers(checkpoint, row))
    except (BadDataError, ValueError):
        return StrayLogCheckpoint()  # it costs time, never records


def remove_checkpoint(path: Path) -> None:
    """Note nothing any more. Raises ``OSError``."""
    (path / _CHECKPOINT).unlink(missing_ok=True)


def _modified_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0  # a person took it away
