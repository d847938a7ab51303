"""Stray logs: logs on this broker that ZooKeeper does not assign to it.

Nobody requested their deletion, so they are renamed and kept. If the topic returns with the same
id, its stray log is used again. If the topic exists on other brokers, the stray log is deleted
after 24 hours. If the topic is unknown, the stray log stays until an operator removes it or that
topic is deleted. Damaged logs become stray too, but are never used again.
"""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from regent.core.errors import BadDataError, ShortageError, StorageError
from regent.core.model import TopicPartition
from regent.core.protocol.control import TopicId
from regent.storage.checkpoints import parse_numbers, read_rows, read_topic_id, write_rows
from regent.storage.files import sync_path, synced_afterwards
from regent.storage.log_names import STRAY, TO_DELETE, is_moved, is_name_of

STRAY_KEPT_MS = 24 * 60 * 60 * 1000
"""How long to keep a stray log if other brokers have its partition."""

_CHECKPOINT = "set-aside-checkpoint"
_HELD = "held-for-undelete"


class StrayLogCheckpoint(NamedTuple):
    """The offsets of a log when it became stray.

    ``is_compacted``: 1 if segments may have gaps between them, because the log was compacted.
    ``log_end_offset``: 0 in a checkpoint of an earlier version, which did not note it.
    """

    log_start_offset: int = 0
    recovery_point: int = 0
    high_watermark: int = 0
    is_compacted: int = 0
    log_end_offset: int = 0


class StrayLogs:
    """The stray logs of one log directory. Thread-safe. The ``take`` methods also remove them."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock = threading.Lock()
        self._topic_ids: dict[str, TopicId | None] = {}  # by the names of their directories

    def load(self) -> None:
        """Find the stray logs of earlier processes. Raises ``OSError``, ``ShortageError``."""
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
        """Add a stray log."""
        with self._lock:
            self._topic_ids[path.name] = topic_id

    @property
    def names(self) -> list[str]:
        """The names of their directories, without those that an operator has removed."""
        with self._lock:
            names = sorted(self._topic_ids)
        return [name for name in names if (self._directory / name).exists()]

    def take_usable(self, topic_partition: TopicPartition, topic_id: TopicId | None) -> Path | None:
        """Take the newest stray log that can be used again; None: there is none."""
        with self._lock:
            usable = list(filter(can_be_used_again, self._of(topic_partition, topic_id)))
            if not usable:
                return None
            newest = max(usable, key=_modified_ns)
            del self._topic_ids[newest.name]
            return newest

    def of(self, topic_partition: TopicPartition, topic_id: TopicId | None) -> list[Path]:
        """Return the stray logs of a partition with a topic id."""
        with self._lock:
            return self._of(topic_partition, topic_id)

    def forget(self, path: Path) -> None:
        """Remove a stray log."""
        with self._lock:
            self._topic_ids.pop(path.name, None)

    def take_due(self, now_ms: int, is_complete: Callable[[TopicId], bool]) -> list[Path]:
        """Take the stray logs that were kept long enough and that other brokers have.

        Not those that are held for a topic that returns. Raises ``OSError``.
        """
        with self._lock:
            due = [
                path
                for name, topic_id in self._topic_ids.items()
                if topic_id is not None
                and now_ms - _modified_ns(path := self._directory / name) // 1_000_000
                >= STRAY_KEPT_MS
                and not is_held(path)
                and is_complete(topic_id)  # looks at all topics, so it is asked last
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


def write_checkpoint(path: Path, progress: StrayLogCheckpoint, *, is_synced: bool = True) -> None:
    """Write the offsets needed to use a log again into its directory. Raises ``StorageError``."""
    write_rows(path / _CHECKPOINT, [" ".join(map(str, progress))], is_synced=is_synced)


def can_be_used_again(path: Path) -> bool:
    """Whether a log that is out of use has the offsets that are needed to use it again."""
    return (path / _CHECKPOINT).exists()


def mark_held(path: Path, name: str) -> None:
    """Note that a log is kept until its topic returns, once it is renamed to ``name``.

    Its files must be flushed. So they are whole if it has the note and the name, whatever happens;
    in a log with another name the note is what a crash has left. Raises ``OSError``,
    ``StorageError``.
    """
    note = path / _HELD
    note.write_text(name)
    sync_path(note)
    progress = read_checkpoint(path)
    flushed_to = max(progress.recovery_point, progress.log_end_offset)
    write_checkpoint(path, progress._replace(recovery_point=flushed_to))
    sync_path(path)


def is_held(path: Path) -> bool:
    """Whether a stray log is kept until its topic returns. Raises ``OSError``."""
    try:
        return (path / _HELD).read_bytes() == path.name.encode()
    except FileNotFoundError:
        return False


def end_hold(path: Path) -> None:
    """Remove the note of a log that will be used; a loss of power does not bring it back.

    Raises ``OSError``.
    """
    if is_held(path):
        with synced_afterwards(path):
            (path / _HELD).unlink()


def read_checkpoint(path: Path) -> StrayLogCheckpoint:
    """Return the offsets of a stray log. Raises ``StorageError``."""
    checkpoint = path / _CHECKPOINT
    for columns in (5, 4, 3):  # of this version, and of earlier ones
        with suppress(BadDataError, ValueError):
            [row] = read_rows(checkpoint, columns) or [["0"]]
            return StrayLogCheckpoint(*parse_numbers(checkpoint, row))
    return StrayLogCheckpoint()  # recovery takes longer, but loses no records


def remove_checkpoint(path: Path) -> None:
    """Remove the offsets of a stray log. Raises ``OSError``."""
    (path / _CHECKPOINT).unlink(missing_ok=True)


def move_strays(directory: Path, target: Path) -> list[Path]:
    """Move the stray logs of a directory that no broker uses to a folder; return what they are now.

    Kafka does not start with them before 3.6. Raises ``OSError``, ``StorageError``.
    """
    with os.scandir(directory) as entries:
        names = sorted(e.name for e in entries if e.name.endswith(STRAY) and is_moved(e.name))
    if names:
        target.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name in names:
        _move_stray(directory / name, target / name)
    return [target / name for name in names]


def _move_stray(path: Path, moved: Path) -> None:
    """Move a stray log, to another disk as well.

    What is copied has the name of a deleted log before its first file is removed: so a broker of
    either kind, or this command again, ends what a crash has interrupted.
    """
    if not moved.exists():
        try:
            path.rename(moved)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
        else:
            return
        copy = moved.with_name(f"{moved.name}.part")
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(path, copy)
        for file in copy.iterdir():
            sync_path(file)
        sync_path(copy)
        with synced_afterwards(moved.parent):
            copy.rename(moved)
    elif not _files(path) <= _files(moved):
        raise FileExistsError(errno.EEXIST, "is there already, with other files", str(moved))
    remove_checkpoint(path)
    deleted = path.rename(path.with_name(path.name.removesuffix(STRAY) + TO_DELETE))
    shutil.rmtree(deleted)


def _files(path: Path) -> set[tuple[str, int]]:
    return {(file.name, file.stat().st_size) for file in path.iterdir()}


def _modified_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0  # an operator removed it
