"""The log directories of one broker, as requests about them see them.

``storage.log_manager`` implements this on disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from regent.core.model import TopicPartition

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
