"""The logs of one log directory, and its checkpoints."""

from __future__ import annotations

import logging
import os
import shutil
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

from regent.core.errors import BadDataError, ShortageError, StorageError
from regent.core.log_config import LogConfig
from regent.core.model import TopicPartition
from regent.core.protocol.control import TopicId
from regent.storage.checkpoints import (
    CLEANED_OFFSETS,
    HIGH_WATERMARKS,
    LOG_START_OFFSETS,
    RECOVERY_POINTS,
    read_offsets,
    read_topic_id,
    write_offsets,
    write_topic_id,
)
from regent.storage.cleanable_logs import NEVER_CLEANED
from regent.storage.log_contents import LogContents
from regent.storage.log_deletion import delete_renamed_logs, rename_log
from regent.storage.log_directory import LogDirectory
from regent.storage.log_end_offset_file import LogEndOffsetFile
from regent.storage.log_file import CorruptSegmentError
from regent.storage.log_loader import CheckpointedOffsets, LoadedLog, load_log
from regent.storage.log_names import STRAY, TO_DELETE, is_moved, log_of_directory, out_of_use
from regent.storage.log_segment import LogSegment
from regent.storage.stray_logs import (
    StrayLogCheckpoint,
    StrayLogs,
    read_checkpoint,
    remove_checkpoint,
    write_checkpoint,
)
from regent.storage.suspect_logs import FoundLogs, SuspectLogs
from regent.storage.unified_log import UnifiedLog

_FLUSHING_THREADS = 8  # they wait for the disk; the file system merges concurrent flushes
_T = TypeVar("_T")
_R = TypeVar("_R")
_log = logging.getLogger(__name__)


class LogSettings(NamedTuple):
    """Settings and callbacks that logs get from the broker."""

    config_of: Callable[[str], LogConfig]  # by topic
    wall_clock_ms: Callable[[], int]
    on_damaged: Callable[[UnifiedLog], None]
    on_unverified_read: Callable[[UnifiedLog, LogSegment], None]
    recovery_threads: int
    make_log: Callable[..., UnifiedLog] = UnifiedLog


class DirectoryLogs:
    """The logs of one directory. Callers that add or remove logs must hold a lock.

    ``logs``: the open logs; those that are not ``is_usable`` are damaged. ``refused``: the logs
    that could not be opened, with the reason.
    """

    def __init__(self, directory: LogDirectory, settings: LogSettings) -> None:
        self.directory = directory
        self.logs: dict[TopicPartition, UnifiedLog] = {}
        self.refused: dict[TopicPartition, str] = {}
        self.high_watermarks: dict[TopicPartition, int] = {}
        self.strays = StrayLogs(directory.path)
        self._settings = settings
        self._written: dict[str, Mapping[TopicPartition, int]] = {}
        self.suspects = SuspectLogs(directory.path)
        self._ends = LogEndOffsetFile(directory.path)
        self._cleaned_lock = threading.Lock()  # taken before the next one only
        self._checkpoint_lock = threading.Lock()  # no other lock is taken while holding it

    @property
    def is_offline(self) -> bool:
        """Whether the directory has failed."""
        return self.directory.is_offline

    def why_unusable(self, topic_partition: TopicPartition) -> str:
        """Return why a log of this directory cannot be used."""
        log = self.logs.get(topic_partition)
        if log is not None and log.why_unusable:
            return f"the log is {log.why_unusable}"
        return self.refused.get(topic_partition, "its log directory failed")

    def topic_id(self, topic_partition: TopicPartition) -> TopicId | None:
        """Return the id of the topic that a log was created for; None: unknown."""
        log = self.logs.get(topic_partition)
        if log is not None:
            return log.topic_id
        try:
            return read_topic_id(self.directory.path / str(topic_partition))
        except (BadDataError, StorageError):
            return None

    # --- opening ---

    def load(self) -> None:
        """Open every log. If the directory cannot be read, take it offline and raise nothing.

        Raises ``ShortageError``.
        """
        try:
            with self.directory:
                self.suspects.load()
                was_clean = self.directory.was_closed_cleanly() and not self.suspects.lost_power
                self._load(was_closed_cleanly=was_clean)
                self.suspects.begin()
                self._ends.begin(
                    {
                        topic_partition: log.log_end_offset
                        for topic_partition, log in self.logs.items()
                    }
                )
                self.directory.mark_in_use()
        except ShortageError:
            raise
        except StorageError:
            return  # the directory is offline already

    def _load(self, *, was_closed_cleanly: bool) -> None:
        recovery_points = self._read(RECOVERY_POINTS)
        starts = self._read(LOG_START_OFFSETS)
        high_watermarks = self._read(HIGH_WATERMARKS)
        self._written = {
            RECOVERY_POINTS: recovery_points,
            LOG_START_OFFSETS: starts,
            HIGH_WATERMARKS: high_watermarks,
            CLEANED_OFFSETS: (cleaned := self._read(CLEANED_OFFSETS)),
        }
        self.strays.load()
        now_ms = self._settings.wall_clock_ms()

        def load(topic_partition: TopicPartition) -> tuple[LoadedLog, TopicId | None] | str:
            path = self.directory.path / str(topic_partition)
            try:
                loaded = load_log(
                    path,
                    self._settings.config_of(topic_partition.topic),
                    CheckpointedOffsets(
                        starts.get(topic_partition, 0),
                        recovery_points.get(topic_partition, 0),
                        cleaned.get(topic_partition, NEVER_CLEANED),
                    ),
                    was_closed_cleanly=was_closed_cleanly,
                    now_ms=now_ms,
                )
            except (BadDataError, CorruptSegmentError) as error:
                return str(error)
            try:
                return loaded, read_topic_id(path)
            except BadDataError:  # incomplete after a crash; the first LeaderAndIsr sets the id
                return loaded, None

        topic_partitions = self._find()
        cut: dict[TopicPartition, int] = {}
        outcomes = _each(topic_partitions, load, threads=self._settings.recovery_threads)
        for topic_partition, outcome in zip(topic_partitions, outcomes, strict=True):
            if isinstance(outcome, str):
                self.refused[topic_partition] = outcome
                continue
            (contents, cut_bytes), topic_id = outcome
            if cut_bytes:
                cut[topic_partition] = cut_bytes
            self.logs[topic_partition] = self._add(topic_partition, contents, topic_id)
            high_watermark = min(high_watermarks.get(topic_partition, 0), contents.log_end_offset)
            self.high_watermarks[topic_partition] = high_watermark
            self.logs[topic_partition].retention_limit = high_watermark
        self._examine(high_watermarks, was_closed_cleanly=was_closed_cleanly)
        self._report(cut, high_watermarks, was_closed_cleanly=was_closed_cleanly)

    def _examine(
        self, high_watermarks: Mapping[TopicPartition, int], *, was_closed_cleanly: bool
    ) -> None:
        """Find out which logs may have lost committed records."""
        is_empty = not self.logs and not self.refused
        self.suspects.examine(
            FoundLogs(
                {topic_partition: log.log_end_offset for topic_partition, log in self.logs.items()},
                self.refused,
                high_watermarks,
                self._ends.read(),
                is_clean=was_closed_cleanly,
                is_new=self.directory.cluster_id is None and is_empty,
                is_set_back=self.directory.cluster_id is not None
                and not self.directory.seen_file.exists(),
            )
        )

    def _find(self) -> list[TopicPartition]:
        """Return the partitions that have a log here."""
        found, foreign = [], []
        with os.scandir(self.directory.path) as entries:
            for entry in entries:
                if is_moved(entry.name) or not entry.is_dir():
                    continue
                topic_partition = log_of_directory(entry.name)
                if topic_partition is None:
                    foreign.append(entry.name)
                else:
                    found.append(topic_partition)
        if foreign:
            text = "%s: ignoring %d directories that are not logs, the first is %s"
            _log.warning(text, self.directory.path, len(foreign), min(foreign))
        return sorted(found)

    def _report(
        self,
        cut: Mapping[TopicPartition, int],
        high_watermarks: Mapping[TopicPartition, int],
        *,
        was_closed_cleanly: bool,
    ) -> None:
        """Log one line for the normal result and one line for each kind of problem."""
        path = self.directory.path
        if self.logs:
            how = "closed cleanly" if was_closed_cleanly else "recovered after an unclean shutdown"
            _log.info("%s: %d logs, %s", path, len(self.logs), how)
        if cut:
            first = next(iter(cut))
            text = "%s: %d logs had incomplete ends; cut off %d bytes, %d of them from %s"
            _log.warning(text, path, len(cut), sum(cut.values()), cut[first], first)
        lost = [
            topic_partition
            for topic_partition in cut
            if self.logs[topic_partition].log_end_offset < high_watermarks.get(topic_partition, 0)
        ]
        if lost:
            text = "%s: %d logs lost committed records that only other replicas have, first: %s"
            _log.error(text, path, len(lost), lost[0])
        if self.suspects.names:
            text = "%s: %d logs may have lost committed records, first: %s; until they are in sync"
            text += " again they lead only if no replica with all records can come back"
            _log.error(text, path, len(self.suspects.names), min(self.suspects.names))
        if self.refused:
            topic_partition, reason = next(iter(self.refused.items()))
            text = "%s: %d logs cannot be used, first: %s: %s"
            _log.error(text, path, len(self.refused), topic_partition, reason)

    def _read(self, checkpoint: str) -> Mapping[TopicPartition, int]:
        """Return a checkpoint; an empty one, which is safe, if the file is incomplete."""
        path = self.directory.path / checkpoint
        if path.exists() and path.stat().st_size == 0:
            return {}  # Kafka creates the file before it has anything to write
        try:
            return read_offsets(path)
        except BadDataError as error:
            _log.warning("%s; the checkpoint is ignored: every offset in it counts as 0", error)
            return {}

    # --- creating and removing logs ---

    def create(self, topic_partition: TopicPartition, topic_id: TopicId | None) -> UnifiedLog:
        """Create an empty log. Raises ``StorageError``."""
        path = self.directory.path / str(topic_partition)
        config = self._settings.config_of(topic_partition.topic)
        self._forget_former(topic_partition)
        with self.directory:
            self._ends.add(topic_partition)
            path.mkdir()
            try:
                if topic_id is not None:
                    write_topic_id(path, topic_id, is_synced=False)
                contents = LogContents.create(path, config, self._settings.wall_clock_ms())
            except ShortageError:
                rename_log(
                    self.directory.path, topic_partition, TO_DELETE, self._settings.wall_clock_ms()
                )
                raise
        log = self.logs[topic_partition] = self._add(topic_partition, contents, topic_id)
        return log

    def reuse_stray(
        self, topic_partition: TopicPartition, topic_id: TopicId | None
    ) -> UnifiedLog | None:
        """Use a stray log with the same topic id again; None: there is none, or it is damaged.

        A damaged log is ``refused`` from then on. Raises ``StorageError``.
        """
        stray = self.strays.take_usable(topic_partition, topic_id)
        if stray is None:
            return None
        path = self.directory.path / str(topic_partition)
        self._forget_former(topic_partition)
        with self.directory:
            self._ends.add(topic_partition)
            stray.rename(path)
            try:
                contents, progress = self._load_stray(path, topic_partition)
            except ShortageError:
                path.rename(stray)
                self.strays.add(stray, topic_id)
                raise
            except (BadDataError, CorruptSegmentError) as error:
                remove_checkpoint(path)
                self.refused[topic_partition] = str(error)
                _log.error("%s: cannot use the stray log again: %s", topic_partition, error)
                return None
            remove_checkpoint(path)
        log = self.logs[topic_partition] = self._add(topic_partition, contents, topic_id)
        with self.directory:
            self._ends.note(topic_partition, contents.log_end_offset)
        self.checkpoint_cleaned_offsets()
        committed = min(progress.high_watermark, contents.log_end_offset)
        log.stray_high_watermark = log.retention_limit = self.high_watermarks[topic_partition] = (
            committed
        )
        text = "%s: the stray log is in use again, offsets %d to %d"
        _log.warning(text, topic_partition, log.log_start_offset, log.log_end_offset)
        return log

    def _load_stray(
        self, path: Path, topic_partition: TopicPartition
    ) -> tuple[LogContents, StrayLogCheckpoint]:
        with self.directory:
            progress = read_checkpoint(path)
            contents, _ = load_log(
                path,
                self._settings.config_of(topic_partition.topic),
                CheckpointedOffsets(
                    progress.log_start_offset,
                    progress.recovery_point,
                    0 if progress.is_compacted else NEVER_CLEANED,
                ),
                was_closed_cleanly=False,
                now_ms=self._settings.wall_clock_ms(),
            )
            return contents, progress

    def delete_strays(self, topic_partition: TopicPartition, topic_id: TopicId | None) -> None:
        """Delete the stray logs of a deleted topic. Raises ``StorageError``."""
        for path in self.strays.take_all(topic_partition, topic_id):
            with self.directory, suppress(FileNotFoundError):
                path.rename(self.directory.path / out_of_use(topic_partition, TO_DELETE))

    def _forget_former(self, topic_partition: TopicPartition) -> None:
        """Remove the entries of an earlier log of that name from all checkpoints.

        Otherwise, after a crash, the new log would get the log start offset of the earlier one, and
        its records before that offset would be dropped. One write covers all removed logs.
        """
        for checkpoint, write in (
            (RECOVERY_POINTS, self.checkpoint_recovery_points),
            (LOG_START_OFFSETS, self.checkpoint_log_start_offsets),
            (HIGH_WATERMARKS, self.checkpoint_high_watermarks),
        ):
            if self._written.get(checkpoint, {}).get(topic_partition, 0) > 0:
                write()
        if topic_partition in self._written.get(CLEANED_OFFSETS, {}):
            self.checkpoint_cleaned_offsets()

    def remove(self, topic_partition: TopicPartition, suffix: str) -> None:
        """Close a log and rename its directory. Raises ``StorageError``."""
        with self.directory:
            log, topic_id = self.logs.get(topic_partition), self.topic_id(topic_partition)
            if log is not None:
                if suffix == STRAY and log.is_usable:
                    self._note_progress(log)
                log.retire()
            self._ends.remove(topic_partition)
            moved = rename_log(
                self.directory.path, topic_partition, suffix, self._settings.wall_clock_ms()
            )
            if moved is not None and suffix == STRAY:
                self.strays.add(moved, topic_id)
        self.logs.pop(topic_partition, None)
        self.refused.pop(topic_partition, None)
        self.high_watermarks.pop(topic_partition, None)

    def _note_progress(self, log: UnifiedLog) -> None:
        watermark = self.high_watermarks.get(log.topic_partition, 0)
        try:
            is_compacted = int(log.first_dirty != NEVER_CLEANED)
            progress = StrayLogCheckpoint(
                log.log_start_offset, log.recovery_point, watermark, is_compacted
            )
            write_checkpoint(log.path, progress)
        except ShortageError:
            raise
        except StorageError:
            return  # the log is kept without the checkpoint

    def _add(
        self, topic_partition: TopicPartition, contents: LogContents, topic_id: TopicId | None
    ) -> UnifiedLog:
        return self._settings.make_log(
            topic_partition,
            self.directory,
            contents,
            topic_id,
            wall_clock_ms=self._settings.wall_clock_ms,
            on_damaged=self._settings.on_damaged,
            on_unverified_read=self._settings.on_unverified_read,
            on_truncated=self._on_truncated,
            note_end=partial(self._ends.note, topic_partition),
        )

    def _on_truncated(self, log: UnifiedLog) -> None:
        del log
        self.checkpoint_recovery_points()
        self.checkpoint_log_start_offsets()
        self.checkpoint_cleaned_offsets()

    # --- checkpoints ---

    def checkpoint_high_watermarks(self) -> None:
        """Write ``high_watermarks`` as they are. Raises ``StorageError``."""
        self._write(HIGH_WATERMARKS, dict(self.high_watermarks))

    def checkpoint_recovery_points(self) -> None:
        """Write the recovery points of the logs. Raises ``StorageError``."""
        logs = list(self.logs.values())
        self._write(RECOVERY_POINTS, {log.topic_partition: log.recovery_point for log in logs})

    def checkpoint_log_start_offsets(self) -> None:
        """Write the log start offsets. Raises ``StorageError``."""
        logs = list(self.logs.values())
        self._write(LOG_START_OFFSETS, {log.topic_partition: log.log_start_offset for log in logs})

    def checkpoint_cleaned_offsets(self) -> None:
        """Write up to where the logs were cleaned. Raises ``StorageError``.

        Logs that could not be opened keep their entry, which explains gaps in them.
        """
        with self._cleaned_lock:  # the offsets of a truncation must not be followed by older ones
            former = self._written.get(CLEANED_OFFSETS, {})
            offsets = {name: former[name] for name in list(self.refused) if name in former}
            for log in list(self.logs.values()):
                if log.first_dirty != NEVER_CLEANED:
                    offsets[log.topic_partition] = log.first_dirty
            self._write(CLEANED_OFFSETS, offsets)

    def _write(self, checkpoint: str, offsets: Mapping[TopicPartition, int]) -> None:
        with self._checkpoint_lock, self.directory:
            if self._written.get(checkpoint) != offsets:
                write_offsets(self.directory.path / checkpoint, offsets)
                self._written[checkpoint] = offsets

    def save_suspects(self) -> None:
        """Save which logs are suspect. Raises ``StorageError``."""
        with self.directory:
            self.suspects.save()

    # --- in the background ---

    def clean_up(self) -> None:
        """Drop old segments; ``purge`` deletes their files later. Raises ``StorageError``."""
        now_ms = self._settings.wall_clock_ms()
        dropped: dict[TopicPartition, int] = {}
        for log in self.usable():
            with suppress(StorageError):  # it took its directory offline already
                count = log.delete_old_segments(now_ms)
                if count:
                    dropped[log.topic_partition] = count
        if dropped:
            text = "%s: retention dropped %d segments of %d logs, first: %s"
            first = next(iter(dropped))
            _log.info(text, self.directory.path, sum(dropped.values()), len(dropped), first)

    def purge(self, file_delete_delay_ms: int, is_known: Callable[[TopicId], bool]) -> None:
        """Delete the files of dropped segments and of removed logs after their delay.

        ``file_delete_delay_ms`` is that of removed logs; each log has its own for its segments.

        Delete a stray log only if its topic is known, because then other brokers have its records.
        Raises ``StorageError``.
        """
        now_ms = self._settings.wall_clock_ms()
        for log in self.usable():
            with suppress(StorageError):  # it took its directory offline already
                log.delete_dropped_files(now_ms)
        with self.directory:
            purged = delete_renamed_logs(self.directory.path, now_ms, file_delete_delay_ms)
            for path in self.strays.take_due(now_ms, is_known):
                shutil.rmtree(path)
                purged += 1
        if purged:
            _log.info("%s: deleted the files of %d removed logs", self.directory.path, purged)

    def flush(self) -> None:
        """Flush the logs that are due."""
        now_ms = self._settings.wall_clock_ms()
        for log in self.usable():
            with suppress(StorageError):  # it took its directory offline already
                log.flush_if_due(now_ms)

    def close(self, *, is_clean: bool) -> None:
        """Flush everything, checkpoint, and unlock the directory. Raises ``StorageError``.

        If ``is_clean``, mark the directory as cleanly closed, so that the next start recovers no
        log. It is not marked if a log could not be closed, or is not flushed up to its end.
        """
        try:
            outcomes = _each(list(self.usable()), _has_closed, threads=_FLUSHING_THREADS)
            self.checkpoint_recovery_points()
            self.checkpoint_log_start_offsets()
            self.checkpoint_high_watermarks()
            with self.directory:
                self.suspects.save()
                if is_clean and all(outcomes) and self._is_flushed():
                    self.directory.mark_clean()
                    self.suspects.close()
        finally:
            self._ends.close()
            self.directory.close()

    def _is_flushed(self) -> bool:
        """Whether every log is flushed up to its end."""
        return all(log.recovery_point >= log.log_end_offset for log in self.logs.values())

    def usable(self) -> Iterator[UnifiedLog]:
        """Yield the logs that can be used."""
        return (log for log in list(self.logs.values()) if log.is_usable)


def _has_closed(log: UnifiedLog) -> bool:
    """Close a log; return whether that succeeded."""
    try:
        log.close()
    except StorageError:
        return False
    return True


def _each(items: Collection[_T], act: Callable[[_T], _R], *, threads: int) -> list[_R]:
    """Return the results of ``act`` for each item, in order; raises what ``act`` raises."""
    if threads == 1:
        return [act(item) for item in items]
    with ThreadPoolExecutor(threads, "logs") as executor:
        return list(executor.map(act, items))
