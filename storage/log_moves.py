"""Logs that are moved from one log directory of a broker to another (KIP-113).

Mirrors the future logs of ``kafka.log.LogManager``. A move has these steps:

1. ``begin`` creates an empty *future log* in the target directory: ``topic-3.<32 digits>-future``.
2. ``core.replication.replica_alter_log_dirs_manager`` copies the batches of the current log to it,
   piece by piece, and cuts off what the current log has truncated. Appends and reads go on.
3. When both logs have the same records, ``replace_current_with_future`` exchanges them, while the
   caller keeps the current log from changing: the future log gets its name, then the current log
   is renamed as ``-delete``.

What a crash leaves: in steps 1 and 2 a current log and a future log. The next start opens both,
and the move goes on. Between the two names of step 3 there are two logs with the same name. The
next start puts that one away which ``log-being-replaced`` in its directory names; each rename is
on the disk before the next step begins. Kafka has the same sequence, and does not start then. In
the opposite one it would find no log, and make an empty one.

If there is a future log only, because the current log was lost, for example with its disk, the next
start gives it its name, if no directory is offline. It may lack records, and the log is suspect:
its end is not recorded, as it is before the exchange. Versions up to 0.3 left the same after a
crash in step 3, with the end recorded.

Before the exchange the future log is flushed as far as the current one, with the names of its
files, and the target's checkpoints contain its recovery point and its log start offset. Its high
watermark follows with the next checkpoint: until then it counts as 0, as that of a new replica.

A directory that fails ends only the moves to it, and not the logs that they copy. Their future logs
stay in it. If it works at the next start, the moves go on.

A log cleaner should not clean a log while it is moved (``is_moving``): the copy would not get the
result.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from regent.core.errors import Errors, ShortageError, StorageError
from regent.core.log_dirs import MovedLog
from regent.core.model import TopicPartition
from regent.storage.checkpoints import NEVER_CLEANED
from regent.storage.directory_logs import DirectoryLogs
from regent.storage.files import synced_afterwards, write_atomically
from regent.storage.log.unified_log import UnifiedLog
from regent.storage.log_names import (
    TO_DELETE,
    log_of_directory,
    move_log,
    out_of_use,
    rename_log,
)
from regent.storage.recovery.deleted_logs import LACKS_RECORDS

BEING_REPLACED = "log-being-replaced"
_PREFERENCES = 100_000  # replicas that are expected in a directory, at most
_log = logging.getLogger(__name__)


class MovesOfLogs:
    """Implements ``core.log_dirs.LogMoves``.

    ``lock`` guards the set of logs, ``homes`` has the directories of the current ones.
    """

    def __init__(
        self,
        directories: Sequence[DirectoryLogs],
        homes: dict[TopicPartition, DirectoryLogs],
        lock: threading.RLock,
        wall_clock_ms: Callable[[], int],
    ) -> None:
        self._directories = directories
        self._homes = homes
        self._lock = lock
        self._wall_clock_ms = wall_clock_ms
        self._preferred: dict[TopicPartition, DirectoryLogs] = {}

    # --- the start ---

    def complete_interrupted(self) -> None:
        """Complete the exchanges that a crash interrupted; call this before logs are opened."""
        for logs in self._directories:
            try:
                self._complete_replacement(logs)
            except ShortageError:
                raise
            except StorageError:
                continue  # the directory has logged it
        if any(logs.is_offline for logs in self._directories):
            return  # the current logs may be there
        current = {found for logs in self._directories for found in logs.found}
        for logs in self._directories:
            for topic_partition in sorted(logs.futures.found.keys() - current):
                try:
                    _suspect_unless_noted(topic_partition, logs)
                    logs.futures.complete(topic_partition)
                except ShortageError:
                    raise
                except StorageError:
                    break  # the directory has logged it
                logs.found.add(topic_partition)
                current.add(topic_partition)
                text = "%s: the log in %s is in use: its current log was replaced or is lost"
                _log.warning(text, topic_partition, logs.directory.path)

    def _complete_replacement(self, logs: DirectoryLogs) -> None:
        """Put a log away that was being replaced, if there is another one with its name.

        If there is none, it is in use, and nothing replaces it without another exchange. Raises
        ``StorageError``.
        """
        with logs.directory:
            note = logs.directory.path / BEING_REPLACED
            if not note.exists():
                return
            replaced = log_of_directory(note.read_text(errors="replace"))
            others = [d.found for d in self._directories if d is not logs and not d.is_offline]
            is_twice = replaced in logs.found and any(replaced in found for found in others)
            if replaced is not None and is_twice:
                with synced_afterwards(logs.directory.path):
                    path = logs.directory.path / str(replaced)
                    rename_log(path, replaced, TO_DELETE, self._wall_clock_ms())
                logs.found.discard(replaced)
                logs.replaced.add(replaced)
                text = "%s: the log in %s was replaced; another directory has it"
                _log.warning(text, replaced, logs.directory.path)
            with synced_afterwards(logs.directory.path):
                note.unlink()

    def drop_useless(self) -> None:
        """Delete the future logs that cannot replace a log; call this when logs are open."""
        for logs in self._directories:
            for topic_partition, future in list(logs.futures.logs.items()):
                home = self._homes.get(topic_partition)
                is_first = self._target(topic_partition) is logs
                topic_id = None if home is None else home.topic_id(topic_partition)
                is_of_another = topic_id != future.topic_id and None not in (
                    topic_id,
                    future.topic_id,
                )
                if not is_first or is_of_another:
                    self._end(topic_partition, logs, "its copy is of another topic")
                else:
                    text = "%s: the move to %s goes on"
                    _log.info(text, topic_partition, logs.directory.path)

    # --- requests ---

    def check_directory(self, path: str) -> Errors:
        """Return why logs cannot be moved to a directory."""
        logs = self._at(path)
        if logs is None:
            return Errors.LOG_DIR_NOT_FOUND
        return Errors.KAFKA_STORAGE_ERROR if logs.is_offline else Errors.NONE

    def prefer(self, topic_partition: TopicPartition, path: str) -> None:
        """Remember where to create a log that does not exist."""
        with self._lock:
            logs = self._at(path)
            if topic_partition not in self._homes and logs is not None:
                self._preferred.pop(topic_partition, None)
                self._preferred[topic_partition] = logs
                if len(self._preferred) > _PREFERENCES:
                    del self._preferred[next(iter(self._preferred))]

    def preferred(self, topic_partition: TopicPartition) -> DirectoryLogs | None:
        """Return where to create a log; None: there is no preference."""
        logs = self._preferred.get(topic_partition)
        return None if logs is None or logs.is_offline else logs

    def on_created(self, topic_partition: TopicPartition) -> None:
        """Forget where to create a log."""
        self._preferred.pop(topic_partition, None)

    def begin(self, topic_partition: TopicPartition, path: str) -> None:
        """Create the future log of a log."""
        with self._lock:
            source, target = self._homes[topic_partition], self._at(path)
            if target is not None and self._target(topic_partition) is target:
                return
            self.cancel(topic_partition)
            if source is target:
                return
            if target is None or any(logs.is_offline for logs in self._directories):
                # A second future log may be in the directory that is offline.
                raise StorageError(f"{topic_partition}: a log directory is offline")
            current = source.logs[topic_partition]
            has_gaps = current.config.is_compacted or current.first_dirty != NEVER_CLEANED
            topic_id = source.topic_id(topic_partition)
            target.futures.create(topic_partition, topic_id, has_gaps=has_gaps)
            if has_gaps:
                try:
                    target.checkpoints.write_cleaned_offsets()  # before the copy has gaps
                except StorageError:
                    self._end(topic_partition, target, "it could not begin")
                    raise
            text = "%s: moving the log from %s to %s"
            _log.info(text, topic_partition, source.directory.path, target.directory.path)

    def cancel(self, topic_partition: TopicPartition) -> None:
        """Remove the future log of a log; if that fails, its directory is offline."""
        with self._lock:
            target = self._target(topic_partition)
            if target is not None:
                self._end(topic_partition, target, "its replica is deleted, or moves elsewhere")

    # --- the copy ---

    def moving(self) -> Sequence[TopicPartition]:
        """Return the logs that have a future log in a directory that works."""
        with self._lock:
            return [
                topic_partition
                for logs in self._directories
                if not logs.is_offline
                for topic_partition in logs.futures.logs
            ]

    def is_moving(self, topic_partition: TopicPartition) -> bool:
        """Whether there is a future log. A log cleaner does not clean the log then."""
        return self._target(topic_partition) is not None

    def get(self, topic_partition: TopicPartition) -> MovedLog | None:
        """Return a log and its copy; None: one of them cannot be used.

        A move to a directory that works ends if the copy is damaged.
        """
        with self._lock:
            source, target = self._homes.get(topic_partition), self._target(topic_partition)
            current = None if source is None else source.logs.get(topic_partition)
            if target is None or target.is_offline or current is None or not current.is_usable:
                return None
            future = target.futures.logs[topic_partition]
            if not future.is_usable:
                self._end(topic_partition, target, f"its copy is {future.why_unusable}")
                return None
            return MovedLog(current, future)

    def flush_segments(self, topic_partition: TopicPartition) -> None:
        """Flush the complete segments of a future log, and close their files."""
        target = self._target(topic_partition)
        future = None if target is None else target.futures.logs.get(topic_partition)
        if future is None:
            return
        flushed = future.recovery_point
        future.flush_if_due(self._wall_clock_ms())
        if future.recovery_point > flushed:
            with future.exclusively() as contents:
                contents.close_idle()

    def prepare(self, topic_partition: TopicPartition) -> None:
        """Flush and checkpoint a future log as far as the current one."""
        source, target = self._homes.get(topic_partition), self._target(topic_partition)
        current = None if source is None else source.logs.get(topic_partition)
        future = None if target is None else target.futures.logs.get(topic_partition)
        if target is None or current is None or future is None:
            return
        if future.topic_id is None and current.topic_id is not None:
            future.assign_topic_id(current.topic_id)
        if future.recovery_point < current.recovery_point or future.has_new_files:
            future.flush()
            target.checkpoints.write_recovery_points()
        if not target.checkpoints.has_noted_start(future):
            target.checkpoints.write_log_start_offsets()

    # --- the exchange ---

    def replace_current_with_future(self, topic_partition: TopicPartition) -> bool:
        """Let the future log be the current one."""
        with self._lock:
            source, target = self._homes.get(topic_partition), self._target(topic_partition)
            current = None if source is None else source.logs.get(topic_partition)
            if source is None or target is None or current is None:
                return False
            future = target.futures.logs[topic_partition]
            with current.locked() as old, future.locked() as new:
                is_equal = (
                    (old.log_start_offset, old.log_end_offset)
                    == (new.log_start_offset, new.log_end_offset)
                    and new.recovery_point >= old.recovery_point
                    and not new.has_new_files
                )
                if not is_equal or not current.is_usable or not future.is_usable:
                    return False
                with target.directory:
                    new.write_what_knows(old)
                    if (current.path / LACKS_RECORDS).exists():
                        (future.path / LACKS_RECORDS).touch()
                _exchange(topic_partition, source, target)
                new.take_over(old)  # only now: until then both logs may have to go on
                current.retire()
                future.checkpointed_high_watermark = current.checkpointed_high_watermark
                future.stray_high_watermark = current.stray_high_watermark
            del source.logs[topic_partition]
            self._homes[topic_partition] = target
        text = "%s: moved the log from %s to %s, offsets %d to %d"
        where = source.directory.path, target.directory.path
        _log.info(text, topic_partition, *where, future.log_start_offset, future.log_end_offset)
        return True

    # --- inside ---

    def _at(self, path: str) -> DirectoryLogs | None:
        for logs in self._directories:
            if str(logs.directory.path.absolute()) == path:
                return logs
        return None

    def _target(self, topic_partition: TopicPartition) -> DirectoryLogs | None:
        for logs in self._directories:
            if topic_partition in logs.futures.logs:
                return logs
        return None

    def _end(self, topic_partition: TopicPartition, target: DirectoryLogs, reason: str) -> None:
        """Remove a future log; if its directory is offline, only forget it."""
        text = "%s: the move to %s ends: %s"
        _log.warning(text, topic_partition, target.directory.path, reason)
        with suppress(StorageError):
            target.futures.remove(topic_partition)


def _suspect_unless_noted(topic_partition: TopicPartition, logs: DirectoryLogs) -> None:
    """Let a future log be suspect before it is used, unless its end was recorded for that.

    First: this start may fail, and the next one finds no future log. Raises ``StorageError``.
    """
    with logs.directory:
        logs.suspects.load(logs.directory)
        noted = logs.suspects.noted_in(logs.ends)
        if noted is None or noted.of(topic_partition) is None:
            logs.suspects.names.add(topic_partition)
            logs.suspects.change()
            logs.suspects.save()


def _exchange(
    topic_partition: TopicPartition, source: DirectoryLogs, target: DirectoryLogs
) -> None:
    """Rename both logs, or none of them. Raises ``StorageError``."""
    with target.directory:
        target.ends.add(topic_partition)
        target.ends.note(topic_partition, target.futures.logs[topic_partition].log_end_offset)
    is_suspect = topic_partition in source.suspects.names
    if is_suspect:
        target.suspects.names.add(topic_partition)
        target.suspects.change()
        target.save_suspects()
    future = target.futures.logs[topic_partition]
    path = target.directory.path / str(topic_partition)
    moved = source.logs[topic_partition].path.with_name(out_of_use(topic_partition, TO_DELETE))
    try:
        with source.directory:
            write_atomically(source.directory.path / BEING_REPLACED, str(topic_partition).encode())
        _promote(future, path, target)
        _put_away(topic_partition, source, moved)
    except StorageError:
        _take_back(topic_partition, source, target, moved)
        raise
    with suppress(StorageError), source.directory:
        (source.directory.path / BEING_REPLACED).unlink()
    future.move_to(path)
    target.logs[topic_partition] = target.futures.logs.pop(topic_partition)
    if is_suspect:
        source.suspects.names.discard(topic_partition)
        source.suspects.change()


def _put_away(topic_partition: TopicPartition, source: DirectoryLogs, moved: Path) -> None:
    """Rename a current log as deleted, and wait until that is on the disk."""
    path = source.logs[topic_partition].path
    with source.directory, synced_afterwards(source.directory.path):
        source.ends.remove(topic_partition)
        with suppress(FileNotFoundError):
            move_log(path, moved, source.now_ms())


def _take_back(
    topic_partition: TopicPartition, source: DirectoryLogs, target: DirectoryLogs, moved: Path
) -> None:
    """Undo an exchange that failed, however far it came."""
    log = source.logs[topic_partition]
    with suppress(OSError):  # one of the directories has failed
        (target.directory.path / str(topic_partition)).rename(
            target.futures.logs[topic_partition].path
        )
    with suppress(StorageError), target.directory:
        target.ends.remove(topic_partition)
    with source.directory:
        with suppress(FileNotFoundError):
            moved.rename(log.path)
        source.ends.add(topic_partition)
        source.ends.note(topic_partition, log.log_end_offset)
        with synced_afterwards(source.directory.path):  # or a later start puts this log away
            (source.directory.path / BEING_REPLACED).unlink(missing_ok=True)


def _promote(future: UnifiedLog, path: Path, target: DirectoryLogs) -> None:
    """Give a future log the name of a current one, and wait until that is on the disk."""
    with target.directory, synced_afterwards(target.directory.path):
        future.path.rename(path)


def refuse_twice(
    topic_partition: TopicPartition, first: DirectoryLogs, second: DirectoryLogs
) -> None:
    """Use neither of two logs of one partition: it is unknown which one is right."""
    paths = f"{first.directory.path} and {second.directory.path}"
    for logs in (first, second):
        logs.logs.pop(topic_partition, None)
        logs.refused[topic_partition] = (
            f"there are logs of this partition in {paths}; move one of them away"
        )
    _log.error("%s: %s", topic_partition, first.refused[topic_partition])
