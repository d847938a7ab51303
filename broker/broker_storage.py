"""A broker's logs on disk: loads them before the broker listens, maintains and closes them.

Mirrors what ``kafka.server.KafkaServer`` does with its ``LogManager``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import Final, TypeAlias

from pykka import ActorDeadError, ActorRef

from regent.actors.log_dir_event_notifier import DirectoryFailed, LogDirEventNotifier, SessionBegun
from regent.actors.replica_alter_log_dirs_thread import CopyLogs, ReplicaAlterLogDirsThread
from regent.actors.runtime import start_actor, stop_actor
from regent.actors.scheduler import RepeatingTimer, Scheduler
from regent.broker.machine_settings import filled, log_defaults, log_directories, with_values
from regent.config.private_files import close_directory
from regent.config.settings import Settings
from regent.config.threads import named_executor
from regent.core.errors import DamagedRecordsError, StorageError
from regent.core.log_config import CleanerSettings
from regent.core.model import BrokerId, SuspectReplicas, TopicPartition
from regent.core.protocol.control import TopicId
from regent.core.replication.replica_alter_log_dirs_manager import ReplicaAlterLogDirsManager
from regent.core.replication.replica_manager import ReplicaManager
from regent.core.setting import SettingValues
from regent.storage.disk_space import SAMPLE_MS
from regent.storage.log_manager import LogManager
from regent.zk.client.zookeeper import ZooKeeper
from regent.zk.znodes import TopicsZNode

logger = logging.getLogger(__name__)

OnRecordsDamaged: TypeAlias = Callable[[TopicPartition, DamagedRecordsError], None]

_ACTOR_TIMEOUT_S = 10.0
_CLEANER = "log-cleaner"
_NAMED_STRAYS = 5
_READERS = 4  # disks and arrays of disks serve several reads at once
_SETTLE_MS = 5_000  # before the first run of each task; short, for brokers that run briefly
_PURGE_INTERVAL_MS = 30_000  # at least so often files are looked for that may be deleted
_LEAST_PURGE_MS = 1_000
_VERIFICATION = "log-verification"
_VERIFICATION_INTERVAL_MS = 1_000
_IDLE_VERIFICATION_INTERVAL_MS = 10_000  # while nothing is to be verified


class BrokerStorage:
    """Used by the thread that starts and stops the broker."""

    reconfigurable_configs: Final = (
        "log.cleaner.threads",
        "log.cleaner.backoff.ms",
        "log.cleaner.dedupe.buffer.size",
        "log.cleaner.io.buffer.size",
        "log.cleaner.io.buffer.load.factor",
        "log.cleaner.io.max.bytes.per.second",
    )

    def __init__(self, broker_id: BrokerId, settings: Settings, data_dir: Path) -> None:
        self._broker_id = broker_id
        self._settings = settings.log
        self._cleaner = filled(CleanerSettings, settings)
        self._cleaner_timer: RepeatingTimer | None = None
        self._verification_timer: RepeatingTimer | None = None
        self._purge_timer: RepeatingTimer | None = None
        self._cleaner_lock = Lock()
        self._reader = named_executor(_READERS, "log-prefetch")
        self._data_dir = data_dir
        self._directories = log_directories(settings, data_dir)
        self._on_directory_failed: Callable[[], None] = lambda: None
        self._on_records_damaged: OnRecordsDamaged = lambda _, __: None
        self._newest_zxid: Callable[[], int] = lambda: 0
        self._undo = ExitStack()
        self._notifier: ActorRef[LogDirEventNotifier] | None = None
        self.logs = LogManager(
            self._directories,
            broker_id,
            defaults=log_defaults(settings),
            on_directory_failed=lambda _: self._on_directory_failed(),
            on_records_damaged=lambda topic_partition, error: self._on_records_damaged(
                topic_partition, error
            ),
            recovery_threads=self._settings.num_recovery_threads_per_data_dir,
            cleaner=self._cleaner,
        )
        for space in self.logs.spaces:
            space.min_free_bytes = self._settings.log_dir_min_free_bytes
        if self._settings.log_open_files_max:
            self.logs.files.limit = self._settings.log_open_files_max

    def open(self) -> None:
        """Lock the directories, load and recover every log.

        Raises a one-line ``StorageError`` if no directory can be used.
        """
        started = monotonic()
        logger.info("Loading logs from %s", ", ".join(map(str, self._directories)))
        self.logs.open()
        for directory in (self._data_dir, *self._directories):
            with suppress(FileNotFoundError):  # a directory that failed
                close_directory(directory)
        self._undo.callback(self.logs.close, is_clean=True)
        self._undo.callback(self._reader.shutdown, wait=False, cancel_futures=True)
        logger.info("Loaded %d logs in %.1f s", len(self.logs.hosted()), monotonic() - started)

    def run_beside(self, work: Callable[[], None]) -> None:
        """Run work that waits for the disk on another thread. Thread-safe."""
        with suppress(RuntimeError):  # the broker stops, and needs the records no more
            self._reader.submit(work)

    def follow(self, zookeeper: ZooKeeper) -> None:
        """Report directory failures to this ZooKeeper from now on; note its newest zxid."""
        self._newest_zxid = lambda: zookeeper.newest_zxid
        self._notifier = start_actor(LogDirEventNotifier, self._broker_id, zookeeper)
        self._undo.callback(stop_actor, self._notifier, _ACTOR_TIMEOUT_S)

    def reconfigure(self, old: SettingValues, new: SettingValues) -> None:
        """Follow changed settings of the log cleaner."""
        backoff_ms = "log.cleaner.backoff.ms"
        with self._cleaner_lock:
            self._cleaner = with_values(self._cleaner, new, self.reconfigurable_configs)
            self.logs.cleaner.configure(self._cleaner)
            if self._cleaner_timer is not None and old[backoff_ms] != new[backoff_ms]:
                self._cleaner_timer.set_period(new[backoff_ms])

    def _follow_backoff(self, timer: RepeatingTimer) -> None:
        with self._cleaner_lock:
            self._cleaner_timer = timer
            timer.set_period(self._cleaner.log_cleaner_backoff_ms)

    def start_maintenance(
        self,
        replica_manager: ReplicaManager,
        on_directory_failed: Callable[[], None],
    ) -> None:
        """Start the threads that checkpoint, flush, clean up, verify and compact the logs.

        ``on_directory_failed`` may be called on any thread, which may hold locks. It is not called
        for earlier failures, because no control request has used those directories yet.
        """
        self._on_directory_failed = on_directory_failed
        self._undo.callback(replica_manager.checkpoint_high_watermarks)
        upkeep = Scheduler("log-upkeep")
        self._undo.callback(upkeep.shutdown)
        for task, interval_ms in self.upkeep(replica_manager).items():
            RepeatingTimer(upkeep, interval_ms, task, first_after_ms=_SETTLE_MS)
        purge = partial(self._purge, replica_manager.is_complete_topic)
        self._purge_timer = RepeatingTimer(upkeep, _SETTLE_MS, purge)
        self._on_records_damaged = replica_manager.on_records_damaged
        for name, (long_task, interval_ms) in self.long_tasks(replica_manager).items():
            own = Scheduler(name)
            self._undo.callback(own.shutdown)
            timer = RepeatingTimer(own, interval_ms, long_task)
            if name == _CLEANER:
                self._follow_backoff(timer)
            elif name == _VERIFICATION:
                self._verification_timer = timer
        self._undo.callback(self.logs.cleaner.stop)

    def long_tasks(
        self, replica_manager: ReplicaManager
    ) -> Mapping[str, tuple[Callable[[], object], int]]:
        """Return the tasks with a thread of their own: its name, the task, its period in ms."""
        settings = self._settings
        tasks: dict[str, tuple[Callable[[], object], int]] = {}
        if settings.log_verification_bytes_per_s > 0:
            a_second = partial(self._verify, settings.log_verification_bytes_per_s)
            tasks[_VERIFICATION] = a_second, _VERIFICATION_INTERVAL_MS
        if settings.log_cleaner_enable:
            compact = partial(self._compact, replica_manager)
            tasks[_CLEANER] = compact, self._cleaner.log_cleaner_backoff_ms
        return tasks

    def _compact(self, replica_manager: ReplicaManager) -> None:
        """Compact logs until none must be. The cleaner goes as far as the checkpoint: write it."""
        is_any_cleaned = True
        while is_any_cleaned:
            replica_manager.checkpoint_high_watermarks()
            is_any_cleaned = self.logs.cleaner.clean_all()

    def _verify(self, max_bytes: int) -> None:
        """Verify what is read in a second; look less often as long as nothing is due."""
        is_idle = self.logs.verify(max_bytes) == 0
        if self._verification_timer is not None:
            self._verification_timer.set_period(
                _IDLE_VERIFICATION_INTERVAL_MS if is_idle else _VERIFICATION_INTERVAL_MS
            )

    def _purge(self, is_complete_topic: Callable[[TopicId], bool]) -> None:
        """Delete the files whose delay is over, and come again when the next ones are due."""
        due_ms = self.logs.purge(is_complete_topic)
        if self._purge_timer is not None:
            self._purge_timer.set_period(max(_LEAST_PURGE_MS, min(due_ms, _PURGE_INTERVAL_MS)))

    def upkeep(self, replica_manager: ReplicaManager) -> Mapping[Callable[[], None], int]:
        """Return the maintenance tasks of the logs, each with its period in milliseconds."""
        settings, logs = self._settings, self.logs

        def clean_up() -> None:
            replica_manager.checkpoint_high_watermarks()  # retention goes as far as it
            logs.clean_up()

        return {
            replica_manager.checkpoint_high_watermarks: (
                settings.replica_high_watermark_checkpoint_interval_ms
            ),
            logs.sample_space: SAMPLE_MS,
            logs.flush: settings.log_flush_scheduler_interval_ms,
            logs.checkpoint_recovery_points: settings.log_flush_offset_checkpoint_interval_ms,
            logs.checkpoint_log_start_offsets: (
                settings.log_flush_start_offset_checkpoint_interval_ms
            ),
            logs.save_suspects: settings.log_flush_offset_checkpoint_interval_ms,
            clean_up: settings.log_retention_check_interval_ms,
        }

    def move_logs(self, replica_manager: ReplicaManager) -> ReplicaAlterLogDirsManager:
        """Start the thread that moves logs between directories; return who begins moves."""
        scheduler = Scheduler("log-moves")
        self._undo.callback(scheduler.shutdown)
        manager = ReplicaAlterLogDirsManager(replica_manager, self.logs.moves)
        thread = start_actor(ReplicaAlterLogDirsThread, manager, scheduler)
        self._undo.callback(stop_actor, thread, _ACTOR_TIMEOUT_S)
        manager.on_begun = partial(_tell_to_copy, thread)
        return manager

    def announce_failure(self) -> None:
        """Notify the controller of a failed directory, so that it elects other leaders.

        Raises ``StorageError`` with the reasons instead if every directory has failed.
        """
        failures = self.logs.failures
        if len(failures) == len(self._directories):
            raise StorageError(f"every log directory has failed: {'; '.join(failures)}")
        self._tell_notifier(DirectoryFailed())

    def announce_replaceable(self, manager: ReplicaManager, listed: SuspectReplicas) -> None:
        """Notify the controller if logs can be replaced since ZooKeeper lists their replicas."""
        manager.on_suspects_listed(listed)
        if manager.replaceable_logs():
            self._tell_notifier(DirectoryFailed())

    def note_that_no_log_is_lost(self, zookeeper: ZooKeeper) -> None:
        """Note that a new log directory has lost no log, if the cluster has no topics."""
        if not self.logs.knows_all and not zookeeper.children(TopicsZNode.PATH):
            self.logs.note_lost(())
            self.logs.save_suspects()

    def note_zxid(self) -> None:
        """Record the newest zxid that ZooKeeper has sent us."""
        self.logs.note_seen(zxid=self._newest_zxid())

    def on_session(self) -> None:
        """Retry failed notifications in a new session."""
        self._tell_notifier(SessionBegun())

    def warnings(self) -> Sequence[str]:
        """Return a line for each directory that has failed or is nearly full, and one of strays."""
        limits = self._settings.log_dir_warning_percent, self._settings.log_dir_critical_percent
        full = [line for space in self.logs.spaces if (line := space.warning(*limits))]
        lines, strays = [*self.logs.failures, *full], self.logs.strays
        if not strays:
            return lines
        named = ", ".join(map(str, strays[:_NAMED_STRAYS]))
        rest = f" and {len(strays) - _NAMED_STRAYS} more" if len(strays) > _NAMED_STRAYS else ""
        what = f"{len(strays)} stray logs, which are assigned to no replica here: {named}{rest}"
        return [*lines, f'{what}; "Stray logs" in docs/operations.md says what to do']

    def close(self) -> None:
        """Save everything that a start without recovery needs, and unlock. Idempotent."""
        self._undo.close()

    def _tell_notifier(self, message: DirectoryFailed | SessionBegun) -> None:
        if self._notifier is not None:
            with suppress(ActorDeadError):
                self._notifier.tell(message)


def _tell_to_copy(thread: ActorRef[ReplicaAlterLogDirsThread]) -> None:
    with suppress(ActorDeadError):
        thread.tell(CopyLogs())
