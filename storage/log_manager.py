"""All logs of a broker, in one or several directories. Mirrors ``kafka.log.LogManager``."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from regent.core.errors import (
    DamagedRecordsError,
    ForeignDirectoryError,
    ShortageError,
    StorageError,
)
from regent.core.log_config import (
    DEFAULT_CLEANER_SETTINGS,
    DEFAULT_LOG_CONFIG,
    CleanerSettings,
    LogConfig,
)
from regent.core.log_dirs import LogDirectoryState
from regent.core.model import NO_LOG_END, BrokerId, SuspectReplicas, TopicPartition
from regent.core.protocol.control import TopicId
from regent.core.replica_logs import SeenOfCluster
from regent.storage.compaction.log_cleaner_manager import LogCleanerManager
from regent.storage.directory_logs import DirectoryLogs, LogSettings
from regent.storage.disk_space import DiskSpace
from regent.storage.log.open_files import OpenFiles
from regent.storage.log.unified_log import NEVER_STRAY, UnifiedLog
from regent.storage.log_directory import LogDirectory
from regent.storage.log_moves import MovesOfLogs, refuse_twice
from regent.storage.log_names import STRAY, TO_DELETE
from regent.storage.recovery.deleted_logs import DeletedLogsOfBroker
from regent.storage.recovery.segment_scrubber import SegmentScrubber

_NEVER = 2**63 - 1  # a zxid that ZooKeeper never reaches
_REMOVED = 100_000  # removed partitions to remember at most
_log = logging.getLogger(__name__)


def _wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


class LogManager:
    """Implements ``core.replica_logs.ReplicaLogs`` and ``core.log_dirs.LocalLogDirectories``.

    Thread-safe: retention, flushing and checkpoints run on another thread than appending, and hold
    no lock while they wait for the disk. ``on_directory_failed`` is called with a directory that
    failed while the manager was open, or in which a log is damaged, on the thread that found the
    error and under the locks of that thread. ``on_records_damaged`` is called with a log in which
    ``verify`` or ``cleaner`` found damage, on its thread without a lock; the log remains in use.
    ``make_log`` has the parameters of ``UnifiedLog``; simulations replace it to observe appends.
    ``files``: the open files of all logs; its ``limit`` may be changed.
    """

    def __init__(
        self,
        directories: Sequence[Path],
        broker_id: BrokerId,
        *,
        defaults: LogConfig = DEFAULT_LOG_CONFIG,
        on_directory_failed: Callable[[Path], None] = lambda _: None,
        on_records_damaged: Callable[[TopicPartition, DamagedRecordsError], None] = lambda *_: None,
        recovery_threads: int = 1,
        wall_clock_ms: Callable[[], int] = _wall_clock_ms,
        cleaner: CleanerSettings = DEFAULT_CLEANER_SETTINGS,
        make_log: Callable[..., UnifiedLog] = UnifiedLog,
    ) -> None:
        self._broker_id = broker_id
        self._defaults = defaults
        self._configs: dict[str, LogConfig] = {}
        self._on_directory_failed = on_directory_failed
        self._is_open = False
        self._suspect_changes = 0
        self._seen = SeenOfCluster()
        self.files = OpenFiles()
        self._lock = threading.RLock()  # guards the set of logs; taken before the lock of a log
        self._homes: dict[TopicPartition, DirectoryLogs] = {}
        self._removed: dict[TopicPartition, None] = {}  # while a directory was offline
        self._undeleted: dict[TopicPartition, TopicId | None] = {}  # and not in use again yet
        self._scrubber = SegmentScrubber(self._usable_logs, wall_clock_ms, on_records_damaged)
        self.cleaner = LogCleanerManager(
            *(self._cleanable_logs, cleaner, wall_clock_ms),
            *(self._checkpoint_cleaned, on_records_damaged),
        )
        settings = LogSettings(
            *(self._config_of, wall_clock_ms, self._log_damaged, self._scrubber.prefer),
            *(recovery_threads, self.files, make_log),
        )
        self._directories = [
            DirectoryLogs(LogDirectory(path, self._directory_failed), settings)
            for path in directories
        ]
        self.deleted = DeletedLogsOfBroker(self._live)
        self.moves = MovesOfLogs(self._directories, self._homes, self._lock, wall_clock_ms)

    # --- the directories ---

    def open(self) -> None:
        """Lock the directories and open every log; recover those that were not closed cleanly.

        Raises ``StorageError`` if no directory can be used, ``ForeignDirectoryError`` if one
        belongs to another broker, ``ShortageError`` if there are too few file descriptors.
        """
        try:
            self._open()
        except (ForeignDirectoryError, ShortageError):
            self._unlock()
            raise
        self._is_open = True

    def _open(self) -> None:
        for logs in self._directories:
            try:
                logs.directory.open(self._broker_id)
            except (ForeignDirectoryError, ShortageError):
                raise
            except StorageError as error:
                logs.directory.fail(str(error))
        for logs in self._live():
            logs.find()
        self.moves.complete_interrupted()
        for logs in self._live():
            logs.load()
        self._check_any_live()
        for logs in self._directories:
            for topic_partition in (*logs.logs, *logs.refused):
                other = self._homes.setdefault(topic_partition, logs)
                if other is not logs:
                    refuse_twice(topic_partition, other, logs)
        self.moves.drop_useless()
        self._seen = self._read_seen()

    @property
    def progress(self) -> tuple[int, int]:
        """How many logs ``open`` has loaded, and how many it has found."""
        found = sum(len(logs.found) + len(logs.futures.found) for logs in self._directories)
        return sum(len(logs.loaded) for logs in self._directories), found

    def join_cluster(self, cluster_id: str) -> None:
        """Bind the directories to a cluster.

        Raises ``ForeignDirectoryError`` if one is bound to another, ``StorageError`` if none
        can be written.
        """
        for logs in self._live():
            try:
                logs.directory.join_cluster(self._broker_id, cluster_id)
            except (ForeignDirectoryError, ShortageError):
                raise
            except StorageError as error:
                logs.directory.fail(str(error))
        self._check_any_live()

    # --- the cluster ---

    @property
    def cluster_id(self) -> str | None:
        """The cluster that the directories are bound to; None: not bound yet."""
        return next((i for logs in self._live() if (i := logs.directory.cluster_id)), None)

    def check_cluster(self, cluster_id: str | None) -> None:
        """Check that the directories belong to the cluster in ZooKeeper; None: it has no id.

        Raises ``ForeignDirectoryError``.
        """
        for logs in self._live():
            logs.directory.check_cluster(cluster_id)

    def check_not_older(self, zxid: int, mark: int | None) -> None:
        """Check that the ZooKeeper data is not older than what this broker has seen.

        Raises ``ForeignDirectoryError``.
        """
        for logs in self._live():
            try:
                logs.directory.check_not_older(zxid, mark, self._seen)
            except ForeignDirectoryError:
                self.note_seen(zxid=_NEVER)
                raise

    @property
    def seen(self) -> SeenOfCluster:
        """The newest cluster state that this broker has seen."""
        return self._seen

    def note_seen(self, *, controller_epoch: int = 0, zxid: int = 0, mark: int = 0) -> None:
        """Record durably the newest cluster state seen; ignore values below the recorded ones."""
        with self._lock:
            self._seen = SeenOfCluster(*map(max, self._seen, (controller_epoch, zxid, mark)))
            for logs in self._live() if self._is_open else ():  # others may have them
                with suppress(StorageError), logs.directory:  # the directory has logged it
                    logs.directory.note_seen(self._seen)

    def _read_seen(self) -> SeenOfCluster:
        notes = [SeenOfCluster()]
        for logs in self._live():
            try:
                with logs.directory:
                    notes.append(logs.directory.read_seen())
            except ShortageError:
                raise
            except StorageError:
                continue  # the directory has logged it
        return SeenOfCluster(*map(max, zip(*notes, strict=True)))

    @property
    def failed_directories(self) -> frozenset[Path]:
        """The directories that are offline until the next start."""
        return frozenset(d.directory.path for d in self._directories if d.is_offline)

    @property
    def directories(self) -> frozenset[Path]:
        """All directories."""
        return frozenset(d.directory.path for d in self._directories)

    @property
    def failures(self) -> Sequence[str]:
        """Why directories are offline: a line for each that is."""
        return [logs.directory.failure for logs in self._directories if logs.is_offline]

    def close(self, *, is_clean: bool) -> None:
        """Flush and checkpoint everything, and unlock the directories.

        ``is_clean``: the next ``open`` need not recover the logs, except in a directory that fails
        during this call.
        """
        self._is_open = False
        self._for_each_live(lambda logs: logs.close(is_clean=is_clean))
        self._unlock()

    @property
    def spaces(self) -> Sequence[DiskSpace]:
        """The file systems of the directories that are not offline."""
        return [logs.directory.space for logs in self._live()]

    def sample_space(self) -> None:
        """Remember how much room there is, to know how fast it goes."""
        for space in self.spaces:
            space.sample()

    def describe(self) -> Sequence[LogDirectoryState]:
        """Return what is in each directory."""
        return [logs.describe() for logs in self._directories]

    # --- settings ---

    def configure(self, configs: Mapping[str, LogConfig]) -> None:
        """Change the settings of topics, for their present and future logs."""
        with self._lock:
            self._configs.update(configs)
            logs = [log for d in self._directories for log in d.checkpoints.all_logs()]
        for log in logs:
            config = configs.get(log.topic_partition.topic)
            if config is not None:
                log.configure(config)

    def set_defaults(self, defaults: LogConfig) -> None:
        """Change the settings of topics that ``configure`` was not told, and of removed logs."""
        self._defaults = defaults

    # --- ReplicaLogs ---

    def hosted(self) -> Mapping[TopicPartition, TopicId | None]:
        """Return every usable log with the topic id it was created for."""
        with self._lock:
            return {
                topic_partition: log.topic_id
                for logs in self._live()
                for topic_partition, log in logs.logs.items()
                if log.is_usable
            }

    def get(self, topic_partition: TopicPartition) -> UnifiedLog | None:
        """Return a log; None if there is none here, or it is not usable."""
        home = self._homes.get(topic_partition)
        log = None if home is None else home.logs.get(topic_partition)
        return log if log is not None and log.is_usable else None

    def get_or_create(
        self, topic_partition: TopicPartition, topic_id: TopicId | None, *, is_new: bool
    ) -> UnifiedLog:
        """Return a log; create it if it does not exist. Raises ``StorageError``."""
        with self._lock:
            home = self._homes.get(topic_partition)
            if home is None:
                if self.moves.is_moving(topic_partition):
                    self._check_not_offline(topic_partition, is_new=is_new)
                    self.moves.cancel(topic_partition)  # the log that it copied is gone
                if self.deleted.settle(topic_partition, topic_id, is_new=is_new):
                    self._undeleted[topic_partition] = topic_id
                found = self._take_back(topic_partition, topic_id)
                found = found or self._create(topic_partition, topic_id, is_new=is_new)
                if self.is_suspect(topic_partition):
                    self.mark_suspect(topic_partition)  # also in the directory of this log
                if topic_id is not None and self._undeleted.pop(topic_partition, None) == topic_id:
                    found.stray_high_watermark = NEVER_STRAY
                self._suspect_changes += not self.knows_all  # the list of sound logs has changed
                return found
            log = self.get(topic_partition)
            if log is None:
                raise StorageError(f"{topic_partition}: {home.why_unusable(topic_partition)}")
            if log.topic_id is None and topic_id is not None:
                log.assign_topic_id(topic_id)
            return log

    def delete(
        self, topic_partition: TopicPartition, *, deleted_topic: TopicId | None = None
    ) -> None:
        """Remove a log at once and delete its files later. No-op if absent."""
        with self._lock:
            is_used = topic_partition in self._homes
            self._remove(topic_partition, TO_DELETE, deleted_topic)
            for logs in self._live():
                logs.delete_strays(topic_partition, deleted_topic, also_held=is_used)

    def set_aside(self, topic_partition: TopicPartition) -> None:
        """Rename a log as stray; ignore it if its directory is offline."""
        with self._lock:
            home = self._homes.get(topic_partition)
            if home is not None and not home.is_offline:
                self._remove(topic_partition, STRAY)

    def mark_damaged(self, topic_partition: TopicPartition, reason: str) -> None:
        """Stop using a log with damaged records. No-op if absent. Idempotent."""
        home = self._homes.get(topic_partition)
        log = None if home is None else home.logs.get(topic_partition)
        if log is not None:
            log.mark_damaged(reason)

    def is_offline(self, topic_partition: TopicPartition) -> bool:
        """Whether there is an unusable log: its directory failed, or it is damaged."""
        return topic_partition in self._homes and self.get(topic_partition) is None

    def is_damaged(self, topic_partition: TopicPartition) -> bool:
        """Whether there is an unusable log in a live directory."""
        home = self._homes.get(topic_partition)
        return home is not None and not home.is_offline and self.get(topic_partition) is None

    def may_be_offline(self, topic_partition: TopicPartition) -> bool:
        """Whether an unknown log may be in a directory that failed."""
        is_known = topic_partition in self._homes or topic_partition in self._removed
        return not is_known and bool(self.failed_directories)

    def topic_id(self, topic_partition: TopicPartition) -> TopicId | None:
        """Return the topic id of a log, even of an unusable one; None: unknown."""
        home = self._homes.get(topic_partition)
        return None if home is None else home.topic_id(topic_partition)

    def checkpointed_high_watermark(self, topic_partition: TopicPartition) -> int:
        """Return the checkpointed high watermark of a log; 0 if there is none."""
        home = self._homes.get(topic_partition)
        log = None if home is None else home.logs.get(topic_partition)
        return 0 if log is None else log.checkpointed_high_watermark

    def note_high_watermarks(self, high_watermarks: Mapping[TopicPartition, int]) -> None:
        """Set high watermarks for the next checkpoint, at most to the ends of the logs."""
        with self._lock:
            for topic_partition, high_watermark in high_watermarks.items():
                home = self._homes.get(topic_partition)
                log = None if home is None else home.logs.get(topic_partition)
                if log is not None and log.checkpointed_high_watermark != high_watermark:
                    log.checkpointed_high_watermark = min(high_watermark, log.log_end_offset)

    def checkpoint_high_watermarks(self, high_watermarks: Mapping[TopicPartition, int]) -> None:
        """Write the high watermark checkpoint of each directory in which one has changed.

        Logs not given keep their entry.
        """
        self.note_high_watermarks(high_watermarks)
        self._for_each_live(lambda logs: logs.checkpoints.write_high_watermarks())

    # --- replicas that may have lost committed records ---

    @property
    def knows_all(self) -> bool:
        """Whether every earlier log is known; false if a directory is new or has failed."""
        return all(not d.is_offline and d.suspects.knows_all for d in self._directories)

    @property
    def has_suspects(self) -> bool:
        """Whether any replica is suspect."""
        for logs in self._directories:  # a loop: any() is slower, and every row asks
            if (logs.suspects.names or logs.refused) and not logs.is_offline:
                return True
        return False

    @property
    def suspect_changes(self) -> int:
        """Counts every change of the set of suspect replicas."""
        return self._suspect_changes

    def suspects(self) -> SuspectReplicas:
        """Return the replicas that may have lost committed records, with their log ends."""
        with self._lock:
            names = {name for d in self._live() for name in (*d.suspects.names, *d.refused)}
            ends = dict.fromkeys(sorted(names), NO_LOG_END)
            for topic_partition in ends:
                with suppress(StorageError):
                    if (log := self.get(topic_partition)) is not None:
                        ends[topic_partition] = log.end
            sound = None if self.knows_all else frozenset(set(self.hosted()) - ends.keys())
            return SuspectReplicas(ends, sound)

    def is_suspect(self, topic_partition: TopicPartition) -> bool:
        """Whether a replica is known to have lost records, or may have."""
        lists = (names for logs in self._live() for names in (logs.suspects.names, logs.refused))
        return self.has_suspects and any(topic_partition in names for names in lists)

    def note_lost(
        self, topic_partitions: Collection[TopicPartition], *, are_all: bool = True
    ) -> None:
        """Mark these replicas, whose logs are missing, as suspect; ``are_all``: no other log is."""
        with self._lock:
            if any(logs.is_offline for logs in self._directories):
                return
            for logs in self._directories:
                logs.suspects.knows_all |= are_all
            self._directories[0].suspects.names.update(topic_partitions)
            self._change_suspects(*self._directories)

    def mark_suspect(self, topic_partition: TopicPartition) -> None:
        """Add a replica with a log to the suspects of the directory. No-op if it is one of them."""
        with self._lock:
            home = self._homes.get(topic_partition)
            if home is not None and topic_partition not in home.suspects.names:
                home.suspects.names.add(topic_partition)
                self._change_suspects(home)

    def mark_whole(self, topic_partition: TopicPartition) -> None:
        """Note that a log has every record."""
        self.deleted.mark_whole(topic_partition)

    def mark_sound(self, topic_partition: TopicPartition) -> None:
        """Remove a replica from the suspects."""
        with self._lock:
            for logs in self._live():
                if topic_partition in logs.suspects.names:
                    logs.suspects.names.discard(topic_partition)
                    self._change_suspects(logs)

    def _change_suspects(self, *directories: DirectoryLogs) -> None:
        self._suspect_changes += 1
        for logs in directories:
            logs.suspects.change()

    def save_suspects(self) -> None:
        """Save which replicas are suspect."""
        with self._lock:
            self._for_each_live(DirectoryLogs.save_suspects)

    # --- in the background ---

    def clean_up(self) -> None:
        """Apply retention."""
        self._for_each_live(DirectoryLogs.clean_up)

    def purge(self, is_complete_topic: Callable[[TopicId], bool]) -> int:
        """Delete the files of dropped segments and removed logs when their delay is over.

        A removed log has the broker's delay, as in Kafka, because its topic may be gone. Keep a
        stray log unless its topic is known: then other brokers have the records. Return in how
        many milliseconds to come again: no file is due before.
        """
        delay_ms = self._defaults.file_delete_delay_ms
        due_ms = [delay_ms]
        self._for_each_live(lambda logs: due_ms.append(logs.purge(delay_ms, is_complete_topic)))
        return min(due_ms)

    @property
    def strays(self) -> list[Path]:
        """The directories of the stray logs."""
        return [logs.directory.path / name for logs in self._live() for name in logs.strays.names]

    def flush(self) -> None:
        """Flush the logs that are due: a segment is complete, or ``flush.ms`` have passed."""
        self._for_each_live(DirectoryLogs.flush)

    def verify(self, max_bytes: int) -> int:
        """Check about ``max_bytes`` of the segments that are due; return how many were checked."""
        return self._scrubber.run(max_bytes)

    def _checkpoint_cleaned(self, log: UnifiedLog) -> None:
        """Write up to where the logs in the directory of a log were cleaned."""
        home = self._homes.get(log.topic_partition)
        if home is not None and home.directory is log.directory:
            home.checkpoints.write_cleaned_offsets()

    def checkpoint_recovery_points(self) -> None:
        """Write the recovery points of the logs."""
        self._for_each_live(lambda logs: logs.checkpoints.write_recovery_points())

    def checkpoint_cleaned_offsets(self) -> None:
        """Write up to where the logs were cleaned."""
        self._for_each_live(lambda logs: logs.checkpoints.write_cleaned_offsets())

    def checkpoint_log_start_offsets(self) -> None:
        """Write the log start offsets."""
        self._for_each_live(lambda logs: logs.checkpoints.write_log_start_offsets())

    # --- inside ---

    def _live(self) -> list[DirectoryLogs]:
        return [logs for logs in self._directories if not logs.is_offline]

    def _usable_logs(self) -> list[UnifiedLog]:
        return [log for logs in self._live() for log in logs.usable()]

    def _cleanable_logs(self) -> list[UnifiedLog]:
        """Return the compacted logs; not those that are copied to another directory."""
        compacted = [log for log in self._usable_logs() if log.config.is_compacted]
        return [log for log in compacted if not self.moves.is_moving(log.topic_partition)]

    def _for_each_live(self, act: Callable[[DirectoryLogs], None]) -> None:
        for logs in self._live():
            with suppress(StorageError):  # the directory has logged it
                act(logs)

    def _config_of(self, topic: str) -> LogConfig:
        return self._configs.get(topic, self._defaults)

    def _create(
        self, topic_partition: TopicPartition, topic_id: TopicId | None, *, is_new: bool
    ) -> UnifiedLog:
        self._check_not_offline(topic_partition, is_new=is_new)
        preferred = self.moves.preferred(topic_partition)
        home = preferred or min(self._live(), key=lambda logs: len(logs.logs))
        log = home.create(topic_partition, topic_id, lacks_records=not is_new)
        self.moves.on_created(topic_partition)
        self._homes[topic_partition] = home
        self._removed.pop(topic_partition, None)
        return log

    def _check_not_offline(self, topic_partition: TopicPartition, *, is_new: bool) -> None:
        live = self._live()
        if not live or (len(live) < len(self._directories) and not is_new):
            raise StorageError(f"{topic_partition} may be in a log directory that is offline")

    def _take_back(
        self, topic_partition: TopicPartition, topic_id: TopicId | None
    ) -> UnifiedLog | None:
        """Use a stray log with the same topic id again; None: there is none.

        Raises ``StorageError``, also if the stray log is damaged.
        """
        for logs in self._live():
            log = logs.reuse_stray(topic_partition, topic_id)
            if log is not None or topic_partition in logs.refused:
                self._homes[topic_partition] = logs
                self._removed.pop(topic_partition, None)
            if log is not None:
                return log
            if topic_partition in logs.refused:
                raise StorageError(f"{topic_partition}: {logs.why_unusable(topic_partition)}")
        return None

    def _remove(
        self, topic_partition: TopicPartition, suffix: str, deleted_topic: TopicId | None = None
    ) -> None:
        self.moves.cancel(topic_partition)
        home = self._homes.get(topic_partition)
        if home is None:
            return
        is_replaced = suffix == STRAY and self.is_damaged(topic_partition)
        self._suspect_changes += topic_partition in home.refused
        home.remove(topic_partition, suffix, deleted_topic)
        if not is_replaced:  # the empty log that replaces it lacks records
            self.mark_sound(topic_partition)
        for logs in self._live():
            if topic_partition in logs.refused:  # two directories have a log; neither is used
                logs.remove(topic_partition, suffix)
        del self._homes[topic_partition]
        if self.failed_directories:
            self._removed[topic_partition] = None
            if len(self._removed) > _REMOVED:
                del self._removed[next(iter(self._removed))]

    def _check_any_live(self) -> None:
        if not self._live():
            self._unlock()
            raise StorageError("; ".join(self.failures))

    def _unlock(self) -> None:
        for logs in self._directories:
            logs.directory.close()

    def _directory_failed(self, path: Path) -> None:
        if self._is_open:
            self._on_directory_failed(path)

    def _log_damaged(self, log: UnifiedLog) -> None:
        _log.error("%s cannot be used: it is %s", log, log.why_unusable)
        self._on_directory_failed(log.directory.path)
