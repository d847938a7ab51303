"""The checkpoints of one log directory, each with an offset of every log."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Mapping

from regent.core.errors import BadDataError, StorageError
from regent.core.model import TopicPartition
from regent.storage.checkpoints import (
    CLEANED_OFFSETS,
    HIGH_WATERMARKS,
    LOG_START_OFFSETS,
    NEVER_CLEANED,
    RECOVERY_POINTS,
    read_offsets,
    write_offsets,
)
from regent.storage.log.unified_log import UnifiedLog
from regent.storage.log_directory import LogDirectory

_log = logging.getLogger(__name__)


class DirectoryCheckpoints:
    """Knows what the files have, and writes only what has changed. Thread-safe.

    It reads the offsets of ``logs`` and ``futures``; of a partition there is a current or a future
    log, not both. ``refused``: the logs that could not be opened. Every ``write_…`` raises
    ``StorageError``.
    """

    def __init__(
        self,
        directory: LogDirectory,
        logs: Mapping[TopicPartition, UnifiedLog],
        futures: Mapping[TopicPartition, UnifiedLog],
        refused: Collection[TopicPartition],
    ) -> None:
        self._directory = directory
        self._logs = logs
        self._futures = futures
        self._refused = refused
        self._written: dict[str, Mapping[TopicPartition, int]] = {}
        self._has_lowered = False  # a high watermark, and it is not written yet
        # These two are held while a file is written: older offsets must not follow newer ones.
        self._high_watermarks_lock = threading.Lock()
        self._cleaned_lock = threading.Lock()
        self._lock = threading.Lock()  # no other lock is taken while holding it

    def all_logs(self) -> list[UnifiedLog]:
        """Return the current and the future logs."""
        return [*list(self._logs.values()), *list(self._futures.values())]

    # --- the files ---

    def read(self, checkpoint: str) -> Mapping[TopicPartition, int]:
        """Read a file; an incomplete one counts as empty, which is safe."""
        path = self._directory.path / checkpoint
        offsets: Mapping[TopicPartition, int] = {}
        if not path.exists() or path.stat().st_size > 0:  # Kafka creates it before it writes to it
            try:
                offsets = read_offsets(path)
            except BadDataError as error:
                _log.warning("%s; the checkpoint is ignored: every offset in it counts as 0", error)
        self._written[checkpoint] = offsets
        return offsets

    def _write(self, checkpoint: str, offsets: Mapping[TopicPartition, int]) -> None:
        with self._lock, self._directory:
            if self._written.get(checkpoint) != offsets:
                write_offsets(self._directory.path / checkpoint, offsets)
                self._written[checkpoint] = offsets

    def has_noted_start(self, log: UnifiedLog) -> bool:
        """Whether the log start offset of a log is in the checkpoint."""
        noted = self._written.get(LOG_START_OFFSETS, {}).get(log.topic_partition, 0)
        return noted == log.log_start_offset

    # --- what the logs have ---

    def write_high_watermarks(self) -> None:
        """Write the high watermarks that the logs have for the checkpoint."""
        with self._high_watermarks_lock:
            self._write_high_watermarks()

    def note_lowered(self) -> None:
        """A log has a lower high watermark for the checkpoint than before."""
        self._has_lowered = True

    def write_lowered(self) -> None:
        """Write the high watermarks if one was lowered: one write covers all of them.

        Call before records are appended to a log whose high watermark was lowered. After a crash
        the former one would count the new records as committed.
        """
        with self._high_watermarks_lock:
            if self._has_lowered:
                self._write_high_watermarks()

    def _write_high_watermarks(self) -> None:
        self._has_lowered = False  # first: a log may lower its own before the end
        logs = list(self._logs.values())
        high_watermarks = {log.topic_partition: log.checkpointed_high_watermark for log in logs}
        try:
            self._write(HIGH_WATERMARKS, high_watermarks)
        except StorageError:
            self._has_lowered = True
            raise

    def write_recovery_points(self) -> None:
        """Write the recovery points."""
        self._write(
            RECOVERY_POINTS, {log.topic_partition: log.recovery_point for log in self.all_logs()}
        )

    def write_log_start_offsets(self) -> None:
        """Write the log start offsets."""
        self._write(
            LOG_START_OFFSETS,
            {log.topic_partition: log.log_start_offset for log in self.all_logs()},
        )

    def write_cleaned_offsets(self) -> None:
        """Write up to where the logs were cleaned.

        Logs that could not be opened keep their entry, which explains gaps in them.
        """
        with self._cleaned_lock:
            former = self._written.get(CLEANED_OFFSETS, {})
            offsets = {name: former[name] for name in list(self._refused) if name in former}
            for log in self.all_logs():
                if log.first_dirty != NEVER_CLEANED:
                    offsets[log.topic_partition] = log.first_dirty
            self._write(CLEANED_OFFSETS, offsets)

    def write_after_truncation(self) -> None:
        """Write what a truncation may have lowered, except for high watermarks."""
        self.write_recovery_points()
        self.write_log_start_offsets()
        self.write_cleaned_offsets()

    def forget_former(self, topic_partition: TopicPartition) -> None:
        """Remove the entries of an earlier log of that name from all files.

        Otherwise, after a crash, the new log would get the log start offset of the earlier one, and
        its records before that offset would be dropped. One write covers all removed logs.
        """
        for checkpoint, write in (
            (RECOVERY_POINTS, self.write_recovery_points),
            (LOG_START_OFFSETS, self.write_log_start_offsets),
            (HIGH_WATERMARKS, self.write_high_watermarks),
        ):
            if self._written.get(checkpoint, {}).get(topic_partition, 0) > 0:
                write()
        if topic_partition in self._written.get(CLEANED_OFFSETS, {}):
            self.write_cleaned_offsets()
