"""The future logs of one directory: copies of logs of other directories, which they will replace.

Their directories have names that end with ``-future``, as in Kafka. ``storage.log_moves`` says how
a log is moved.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from pathlib import Path

from regent.core.model import TopicPartition
from regent.core.protocol.control import TopicId
from regent.storage.files import synced_afterwards
from regent.storage.log.log_contents import LogContents
from regent.storage.log.log_loader import LoadedLog
from regent.storage.log.unified_log import UnifiedLog
from regent.storage.log_directory import LogDirectory
from regent.storage.log_names import TO_DELETE, future_name, rename_log

_log = logging.getLogger(__name__)


class FutureLogs:
    """Callers that add or remove logs must hold a lock.

    ``found``: the directories that were there at the start. ``create`` makes the files of an empty
    log, ``open_log`` opens a log.
    """

    def __init__(
        self,
        directory: LogDirectory,
        wall_clock_ms: Callable[[], int],
        create: Callable[[TopicPartition, str, TopicId | None], LogContents],
        open_log: Callable[[TopicPartition, LogContents, TopicId | None], UnifiedLog],
    ) -> None:
        self.logs: dict[TopicPartition, UnifiedLog] = {}
        self.found: dict[TopicPartition, Path] = {}
        self._directory = directory
        self._wall_clock_ms = wall_clock_ms
        self._create = create
        self._open_log = open_log

    def complete(self, topic_partition: TopicPartition) -> None:
        """Let a future log that was found, and not loaded yet, be a current one.

        Raises ``StorageError``.
        """
        with self._directory, synced_afterwards(self._directory.path):
            self.found[topic_partition].rename(self._directory.path / str(topic_partition))
        del self.found[topic_partition]

    def ignore(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Do not open these future logs, because their current logs are in this directory."""
        for topic_partition in topic_partitions:
            path = self.found.pop(topic_partition)
            _log.warning("ignoring %s: there is a log of this partition beside it", path)

    def add(
        self, topic_partition: TopicPartition, outcome: tuple[LoadedLog, TopicId | None] | str
    ) -> None:
        """Add a future log that was loaded; delete one that cannot be used. Raises ``OSError``."""
        if isinstance(outcome, str):
            text = "%s: the move to %s is cancelled, because the copy cannot be used: %s"
            _log.error(text, topic_partition, self._directory.path, outcome)
            path = self.found[topic_partition]
            rename_log(path, topic_partition, TO_DELETE, self._wall_clock_ms())
        else:
            (contents, _), topic_id = outcome
            self.logs[topic_partition] = self._open_log(topic_partition, contents, topic_id)

    def create(
        self, topic_partition: TopicPartition, topic_id: TopicId | None, *, has_gaps: bool
    ) -> None:
        """Create an empty future log. Raises ``StorageError``.

        ``has_gaps``: a log cleaner takes records out of the current log.
        """
        contents = self._create(topic_partition, future_name(topic_partition), topic_id)
        if has_gaps:
            contents.first_dirty, contents.is_compacted = 0, True
        self.logs[topic_partition] = self._open_log(topic_partition, contents, topic_id)

    def remove(self, topic_partition: TopicPartition) -> None:
        """Close a future log and delete its files later. No-op if absent.

        It stays if the directory is offline. Raises ``StorageError``.
        """
        log = self.logs.pop(topic_partition, None)
        if log is not None:
            log.retire()
            with self._directory:
                rename_log(log.path, topic_partition, TO_DELETE, self._wall_clock_ms())
