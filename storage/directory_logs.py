"""The logs of one log directory, and its checkpoints."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

from regent.config.threads import named_executor
from regent.core.errors import BadDataError, DamagedRecordsError, ShortageError, StorageError
from regent.core.log_config import LogConfig
from regent.core.log_dirs import LogDirectoryState, LogInDirectory
from regent.core.model import TopicPartition
from regent.core.protocol.control import TopicId
from regent.storage.checkpoints import (
    CLEANED_OFFSETS,
    HIGH_WATERMARKS,
    LOG_START_OFFSETS,
    NEVER_CLEANED,
    RECOVERY_POINTS,
    read_topic_id,
    write_topic_id,
)
from regent.storage.directory_checkpoints import DirectoryCheckpoints
from regent.storage.files import sync_path
from regent.storage.future_logs import FutureLogs
from regent.storage.log.log_contents import LogContents
from regent.storage.log.log_file import CorruptSegmentError
from regent.storage.log.log_loader import CheckpointedOffsets, LoadedLog, load_log
from regent.storage.log.log_segment import LogSegment
from regent.storage.log.open_files import OpenFiles
from regent.storage.log.unified_log import UnifiedLog
from regent.storage.log_directory import LogDirectory, LogEndOffsetFile
from regent.storage.log_names import (
    STRAY,
    TO_DELETE,
    delete_renamed_logs,
    is_moved,
    log_of_directory,
    log_of_future_directory,
    out_of_use,
    rename_log,
)
from regent.storage.recovery.deleted_logs import LACKS_RECORDS, DeletedLogs
from regent.storage.recovery.stray_logs import (
    StrayLogCheckpoint,
    StrayLogs,
    end_hold,
    is_held,
    read_checkpoint,
    remove_checkpoint,
    write_checkpoint,
)
from regent.storage.recovery.suspect_logs import FoundLogs, SuspectLogs

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
    files: OpenFiles
    make_log: Callable[..., UnifiedLog] = UnifiedLog


class DirectoryLogs:
    """The logs of one directory. Callers that add or remove logs must hold a lock.

    ``logs``: the open logs; those that are not ``is_usable`` are damaged. ``refused``: the logs
    that could not be opened, with the reason. ``futures``: the copies of logs of other
    directories. ``replaced``: logs that were found, and are in another directory now. ``ends``: the
    recorded ends of ``logs``.
    """

    def __init__(self, directory: LogDirectory, settings: LogSettings) -> None:
        self.directory = directory
        self.logs: dict[TopicPartition, UnifiedLog] = {}
        self.refused: dict[TopicPartition, str] = {}
        self.strays = StrayLogs(directory.path)
        self.deleted = DeletedLogs(directory.path, self.strays, settings.wall_clock_ms)
        self.futures = FutureLogs(directory, settings.wall_clock_ms, self._create, self._add)
        self.found: set[TopicPartition] = set()
        self.loaded: set[TopicPartition] = set()
        self.replaced: set[TopicPartition] = set()
        self._settings = settings
        self.checkpoints = DirectoryCheckpoints(
            directory, self.logs, self.futures.logs, self.refused
        )
        self.suspects = SuspectLogs(directory.path)
        self.ends = LogEndOffsetFile(directory.path)

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

    def now_ms(self) -> int:
        """Return the wall-clock time."""
        return self._settings.wall_clock_ms()

    def _path(self, topic_partition: TopicPartition) -> Path:
        return self.directory.path / str(topic_partition)

    def topic_id(self, topic_partition: TopicPartition) -> TopicId | None:
        """Return the id of the topic of a log; None: unknown. Raises ``ShortageError``."""
        log = self.logs.get(topic_partition)
        try:
            return read_topic_id(self._path(topic_partition)) if log is None else log.topic_id
        except ShortageError:
            raise
        except (BadDataError, StorageError):
            return None

    def describe(self) -> LogDirectoryState:
        """Return its logs, and the size of its file system."""
        path = self.directory.path.absolute()
        if self.is_offline:
            return LogDirectoryState(str(path), is_offline=True)
        logs = [
            LogInDirectory(topic_partition, log.size, log.log_end_offset, is_future)
            for found, is_future in ((self.logs, False), (self.futures.logs, True))
            for topic_partition, log in list(found.items())
        ]
        return LogDirectoryState(str(path), False, logs, *self.directory.space.room())

    # --- opening ---

    def load(self) -> None:
        """Open every log. If the directory cannot be read, take it offline and raise nothing.

        Raises ``ShortageError``.
        """
        try:
            with self.directory:
                self.suspects.load(self.directory)
                was_clean = self.directory.was_closed_cleanly() and not self.suspects.lost_power
                self._load(was_closed_cleanly=was_clean)
                self.suspects.begin()
                self.ends.begin(
                    {
                        topic_partition: log.log_end_offset
                        for topic_partition, log in self.logs.items()
                    }
                )
                self.directory.mark_in_use()  # now what was noted counts, also of a Kafka's logs
                self.checkpoints.write_lowered()  # only then: a log that ends below it is suspect
        except ShortageError:
            raise
        except StorageError:
            return  # the directory is offline already

    def _load(self, *, was_closed_cleanly: bool) -> None:
        recovery_points, starts, high_watermarks, cleaned = map(
            self.checkpoints.read,
            (RECOVERY_POINTS, LOG_START_OFFSETS, HIGH_WATERMARKS, CLEANED_OFFSETS),
        )
        self.strays.load()
        self.deleted.load(lost_power=self.suspects.lost_power)
        now_ms = self._settings.wall_clock_ms()

        def load(topic_partition: TopicPartition) -> tuple[LoadedLog, TopicId | None] | str:
            path = self.futures.found.get(topic_partition) or self._path(topic_partition)
            try:
                loaded = load_log(
                    *(path, self._settings.config_of(topic_partition.topic)),
                    CheckpointedOffsets(
                        *(starts.get(topic_partition, 0), recovery_points.get(topic_partition, 0)),
                        cleaned.get(topic_partition, NEVER_CLEANED),
                    ),
                    was_closed_cleanly=was_closed_cleanly,
                    now_ms=now_ms,
                    files=self._settings.files,
                )
            except (BadDataError, CorruptSegmentError) as error:
                return str(error)
            try:
                return loaded, read_topic_id(path)
            except BadDataError:  # incomplete after a crash; the first LeaderAndIsr sets the id
                return loaded, None
            finally:
                self.loaded.add(topic_partition)

        topic_partitions = sorted({*self.found, *self.futures.found})
        cut: dict[TopicPartition, int] = {}
        outcomes = _each(topic_partitions, load, threads=self._settings.recovery_threads)
        for topic_partition, outcome in zip(topic_partitions, outcomes, strict=True):
            if topic_partition in self.futures.found:
                self.futures.add(topic_partition, outcome)
            elif isinstance(outcome, str):
                self.refused[topic_partition] = outcome
            else:
                (contents, cut_bytes), topic_id = outcome
                if cut_bytes:
                    cut[topic_partition] = cut_bytes
                log = self.logs[topic_partition] = self._add(topic_partition, contents, topic_id)
                noted = high_watermarks.get(topic_partition, 0)
                log.checkpointed_high_watermark = min(noted, log.log_end_offset)
                if log.checkpointed_high_watermark < noted:
                    self.checkpoints.note_lowered()
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
                {*self.refused, *self.futures.logs, *self.replaced},
                high_watermarks,
                self.suspects.noted_in(self.ends),
                is_clean=was_closed_cleanly,
                is_new=self.directory.cluster_id is None and is_empty,
                is_set_back=self.directory.cluster_id is not None
                and not self.directory.seen_file.exists(),
            )
        )

    def find(self) -> None:
        """Find the logs by the names of their directories: ``found``, and the future logs.

        If the directory cannot be read, take it offline and raise nothing. Raises
        ``ShortageError``.
        """
        foreign = []
        try:
            with self.directory, os.scandir(self.directory.path) as entries:
                for entry in entries:
                    future = log_of_future_directory(entry.name)
                    if future is not None:
                        self.futures.found[future] = Path(entry.path)
                    if is_moved(entry.name) or not entry.is_dir():
                        continue
                    topic_partition = log_of_directory(entry.name)
                    if topic_partition is None:
                        foreign.append(entry.name)
                    else:
                        self.found.add(topic_partition)
        except ShortageError:
            raise
        except StorageError:
            return  # the directory is offline already
        self.futures.ignore(self.found & self.futures.found.keys())
        if foreign:
            text = "%s: ignoring %d directories that are not logs, the first is %s"
            _log.warning(text, self.directory.path, len(foreign), min(foreign))

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

    # --- creating and removing logs ---

    def create(
        self, topic_partition: TopicPartition, topic_id: TopicId | None, *, lacks_records: bool
    ) -> UnifiedLog:
        """Create an empty log. Raises ``StorageError``.

        ``lacks_records``: its replica is not new; no undeletion uses the log before ``mark_whole``.
        """
        with self.directory:
            self.ends.add(topic_partition)
        name = str(topic_partition)
        contents = self._create(topic_partition, name, topic_id, lacks_records=lacks_records)
        log = self.logs[topic_partition] = self._add(topic_partition, contents, topic_id)
        return log

    def _create(
        self,
        topic_partition: TopicPartition,
        name: str,
        topic_id: TopicId | None,
        *,
        lacks_records: bool = False,
    ) -> LogContents:
        path = self.directory.path / name
        config = self._settings.config_of(topic_partition.topic)
        self.checkpoints.forget_former(topic_partition)
        now_ms = self._settings.wall_clock_ms()
        with self.directory:
            path.mkdir()
            try:
                if topic_id is not None:
                    write_topic_id(path, topic_id, is_synced=False)
                if lacks_records:
                    with self.directory:
                        (path / LACKS_RECORDS).touch()
                return LogContents.create(path, config, now_ms, self._settings.files)
            except ShortageError:
                rename_log(path, topic_partition, TO_DELETE, now_ms)
                raise

    def reuse_stray(
        self, topic_partition: TopicPartition, topic_id: TopicId | None
    ) -> UnifiedLog | None:
        """Use a stray log with the same topic id again; None: there is none, or it is damaged.

        A damaged log is ``refused`` from then on. Raises ``StorageError``.
        """
        stray = self.strays.take_usable(topic_partition, topic_id)
        if stray is None:
            return None
        path = self._path(topic_partition)
        try:
            self.checkpoints.forget_former(topic_partition)
            with self.directory:
                self.ends.add(topic_partition)
                end_hold(stray)
                stray.rename(path)
        except ShortageError:
            self.strays.add(stray, topic_id)
            raise
        with self.directory:
            try:
                contents, progress = self._load_stray(path, topic_partition)
                log = self.logs[topic_partition] = self._add(topic_partition, contents, topic_id)
                self.ends.note(topic_partition, contents.log_end_offset)
                self.checkpoints.write_cleaned_offsets()
            except ShortageError:
                self.logs.pop(topic_partition, None)
                self.ends.remove(topic_partition)
                path.rename(stray)
                self.strays.add(stray, topic_id)
                raise
            except (BadDataError, CorruptSegmentError) as error:
                remove_checkpoint(path)
                self.refused[topic_partition] = str(error)
                _log.error("%s: cannot use the stray log again: %s", topic_partition, error)
                return None
            remove_checkpoint(path)
        committed = min(progress.high_watermark, contents.log_end_offset)
        log.stray_high_watermark = log.checkpointed_high_watermark = committed
        text = "%s: the stray log is in use again, offsets %d to %d"
        _log.warning(text, topic_partition, log.log_start_offset, log.log_end_offset)
        return log

    def _load_stray(
        self, path: Path, topic_partition: TopicPartition
    ) -> tuple[LogContents, StrayLogCheckpoint]:
        with self.directory:
            sync_path(self.directory.path)  # so that a loss of power does not undo the new name
            progress = read_checkpoint(path)
            first_dirty = 0 if progress.is_compacted else NEVER_CLEANED
            contents, _ = load_log(
                path,
                self._settings.config_of(topic_partition.topic),
                CheckpointedOffsets(*progress[:2], first_dirty),
                was_closed_cleanly=False,
                now_ms=self._settings.wall_clock_ms(),
                files=self._settings.files,
            )
            if contents.log_end_offset < progress.log_end_offset:
                # Recovery has cut it. If it is opened again at the next start, it is suspect.
                self.ends.note(topic_partition, progress.log_end_offset)
                ends = f"{contents.log_end_offset} instead of {progress.log_end_offset}"
                raise CorruptSegmentError(f"{path} is damaged: it ends at {ends}")
            return contents, progress

    def delete_strays(
        self, topic_partition: TopicPartition, topic_id: TopicId | None, *, also_held: bool
    ) -> None:
        """Delete the stray logs of a deleted topic. Raises ``StorageError``.

        Without ``also_held`` the log stays that is held: the request may be a late copy.
        """
        for path in self.strays.of(topic_partition, topic_id):
            with self.directory, suppress(FileNotFoundError):
                if also_held or not is_held(path):
                    self.strays.forget(path)
                    remove_checkpoint(path)  # the log that was in use is newer
                    path.rename(self.directory.path / out_of_use(topic_partition, TO_DELETE))

    def remove(
        self, topic_partition: TopicPartition, suffix: str, deleted_topic: TopicId | None = None
    ) -> None:
        """Close a log and rename its directory. Raises ``StorageError``.

        ``deleted_topic``: the topic is deleted; the log is offered in case that it comes back.
        """
        with self.directory:
            log, topic_id = self.logs.get(topic_partition), self.topic_id(topic_partition)
            may_return = topic_id is not None and topic_id == deleted_topic
            if log is not None:
                may_return &= log.is_usable and self._is_whole(topic_partition)
                if log.is_usable and (suffix == STRAY or may_return):
                    self._note_progress(log, is_synced=suffix == STRAY)
                log.retire()
            self.ends.remove(topic_partition)
            path, now_ms = self._path(topic_partition), self._settings.wall_clock_ms()
            moved = rename_log(path, topic_partition, suffix, now_ms)
            if moved is not None and suffix == STRAY:
                self.strays.add(moved, topic_id)
            if moved is not None and topic_id is not None and may_return and log is not None:
                self.deleted.add(moved, topic_partition, topic_id)
        self.logs.pop(topic_partition, None)
        self.refused.pop(topic_partition, None)

    def _is_whole(self, topic_partition: TopicPartition) -> bool:
        """Whether nothing is known of lost records of a log."""
        is_suspect = topic_partition in self.suspects.names
        return not is_suspect and not (self._path(topic_partition) / LACKS_RECORDS).exists()

    def _note_progress(self, log: UnifiedLog, *, is_synced: bool) -> None:
        if not self._is_whole(log.topic_partition):
            (log.path / LACKS_RECORDS).touch()  # a stray log is not suspect any more
        try:
            is_compacted, start = int(log.first_dirty != NEVER_CLEANED), log.log_start_offset
            committed = log.checkpointed_high_watermark
            offsets = start, log.recovery_point, committed, is_compacted, log.log_end_offset
            write_checkpoint(log.path, StrayLogCheckpoint(*offsets), is_synced=is_synced)
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
            checkpoints=self.checkpoints,
            note_end=partial(self._note_end, topic_partition),
        )

    def _note_end(self, topic_partition: TopicPartition, log_end_offset: int) -> None:
        if topic_partition in self.logs:  # not for a future log
            self.ends.note(topic_partition, log_end_offset)

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
            try:
                if count := log.delete_old_segments(now_ms):
                    dropped[log.topic_partition] = count
            except DamagedRecordsError as error:
                _log.error("%s: retention deletes nothing: %s", log.topic_partition, error)
            except StorageError:
                continue  # it took its directory offline already
        if dropped:
            text = "%s: retention dropped %d segments of %d logs, first: %s"
            first = next(iter(dropped))
            _log.info(text, self.directory.path, sum(dropped.values()), len(dropped), first)

    def purge(self, file_delete_delay_ms: int, is_complete: Callable[[TopicId], bool]) -> int:
        """Delete the files of dropped segments and of removed logs after their delay.

        ``file_delete_delay_ms`` is that of removed logs; each log has its own for its segments.

        Delete a stray log only if its topic exists and this broker uses its other logs of it: then
        other brokers have its records, and it will not be taken back.
        Return in how many milliseconds the next files are due. Raises ``StorageError``.
        """
        now_ms = self._settings.wall_clock_ms()
        due_ms = [now_ms + file_delete_delay_ms]
        for log in self.usable():
            with suppress(StorageError):  # it took its directory offline already
                due_ms += log.delete_dropped_files(now_ms)
        with self.directory:
            purged, left_ms = delete_renamed_logs(
                self.directory.path, now_ms, file_delete_delay_ms, self.deleted.give_up
            )
            for path in self.strays.take_due(now_ms, is_complete):
                with suppress(FileNotFoundError):  # an operator has removed it
                    shutil.rmtree(path)
                    purged += 1
        if purged:
            _log.info("%s: deleted the files of %d removed logs", self.directory.path, purged)
        return min([*due_ms, *left_ms]) - now_ms

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
            usable = [log for log in self.checkpoints.all_logs() if log.is_usable]
            waiting = [log for log in usable if log.recovery_point < log.log_end_offset]
            outcomes = _each(waiting, _has_closed, threads=_FLUSHING_THREADS)
            # The others do not wait for the disk: to hand each to a thread would take longer.
            outcomes += [_has_closed(log) for log in usable if log.is_usable]
            self.checkpoints.write_recovery_points()
            self.checkpoints.write_log_start_offsets()
            self.checkpoints.write_high_watermarks()
            with self.directory:
                self.suspects.save()
                if is_clean and all(outcomes) and self._is_flushed():
                    self.directory.mark_clean()
                    self.suspects.close()
        finally:
            self.ends.close()
            self.directory.close()

    def _is_flushed(self) -> bool:
        """Whether every log is flushed up to its end."""
        return all(log.recovery_point >= log.log_end_offset for log in self.checkpoints.all_logs())

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
    with named_executor(threads, "logs") as executor:
        return list(executor.map(act, items))
