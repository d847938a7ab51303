"""The log directories of one broker, as requests about them see them.

``storage.log_manager`` implements this on disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from regent.core.errors import Errors
from regent.core.model import TopicPartition
from regent.core.replica_logs import PartitionLog

UNKNOWN_BYTES = -1


class LogInDirectory(NamedTuple):
    """A log; ``is_future``: it will replace the current log, which is in another directory."""

    topic_partition: TopicPartition
    size: int
    log_end_offset: int
    is_future: bool


class LogDirectoryState(NamedTuple):
    """A log directory, and the size of its file system in bytes, -1 if unknown."""

    path: str  # absolute
    is_offline: bool
    logs: Sequence[LogInDirectory] = ()
    total_bytes: int = UNKNOWN_BYTES
    usable_bytes: int = UNKNOWN_BYTES


class LocalLogDirectories(Protocol):
    """All log directories of a broker."""

    def describe(self) -> Sequence[LogDirectoryState]:
        """Return what is in each directory. It may take long: there may be many logs."""
        ...


class MovableLog(PartitionLog, Protocol):
    """A log that is copied to another directory, or the copy."""

    @property
    def truncations(self) -> int:
        """How often records were cut off at the end."""
        ...


class MovedLog(NamedTuple):
    """A log on its way to another directory: the current log, and the copy."""

    current: MovableLog
    future: MovableLog


class LogMoves(Protocol):
    """The logs that are on their way to another directory. Thread-safe."""

    def check_directory(self, path: str) -> Errors:
        """Return LOG_DIR_NOT_FOUND or KAFKA_STORAGE_ERROR unless logs can be moved to a path."""
        ...

    def prefer(self, topic_partition: TopicPartition, path: str) -> None:
        """Remember where to create a log; no-op if there is one already."""
        ...

    def begin(self, topic_partition: TopicPartition, path: str) -> None:
        """Create the future log of a log, unless it is in that directory already.

        A move to another directory ends. Raises ``StorageError``.
        """
        ...

    def moving(self) -> Sequence[TopicPartition]:
        """Return the logs that have a future log in a directory that works."""
        ...

    def get(self, topic_partition: TopicPartition) -> MovedLog | None:
        """Return a log and its copy; None: one of them cannot be used."""
        ...

    def cancel(self, topic_partition: TopicPartition) -> None:
        """Remove the future log. No-op if there is none."""
        ...

    def flush_segments(self, topic_partition: TopicPartition) -> None:
        """Flush the complete segments of a future log. Raises ``StorageError``."""
        ...

    def prepare(self, topic_partition: TopicPartition) -> None:
        """Flush and checkpoint a future log as far as the current one. Raises ``StorageError``."""
        ...

    def replace_current_with_future(self, topic_partition: TopicPartition) -> bool:
        """Let the future log be the current one; delete the files of the former one later.

        The caller keeps the current log from changing at its end. False: nothing is done, because
        the two differ, or ``prepare`` must be called again. Raises ``StorageError``.
        """
        ...
