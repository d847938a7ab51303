"""A broker's disk: logs that outlive the process, in directories that may fail."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from regent.core.errors import DamagedRecordsError
from regent.core.log_config import LogConfig
from regent.core.model import BrokerId, TopicPartition
from regent.core.protocol.control import TopicId
from regent.core.records import RecordBytes
from regent.core.replica_logs import AppendedRecords, AppendOrigin
from regent.core.replication.replica_manager import ReplicaManager
from tests.simulation.application_topics import APPLICATION_TOPICS
from tests.simulation.records import RecordObserver, past_all_guards
from tests.simulation.simulated_logs import IsElsewhere, LostBatches
from tests.support.memory_logs import MemoryLog, MemoryLogs

CAREFUL_TOPICS = ("topic-1", "topic-3", "topic-5", *sorted(APPLICATION_TOPICS))
TOPIC_CONFIGS = {topic: LogConfig(min_insync_replicas=2) for topic in CAREFUL_TOPICS}


BATCHES_IN_MEMORY = 2
CLOCK_APART_MS = 1_000_000_007


class ObservedLog(MemoryLog):
    """A log that notifies the observer of its writes; reads of earlier batches need the disk."""

    disk: Disk

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.batches_in_memory = BATCHES_IN_MEMORY

    def prefetch(self, offset: int, max_bytes: int) -> Callable[[], None] | None:
        """Return what another thread has to do, if there is one."""
        return super().prefetch(offset, max_bytes) if self.disk.has_threads() else None

    @past_all_guards
    def append_as_leader(
        self,
        records: RecordBytes,
        leader_epoch: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        guard: int | None = None,
    ) -> AppendedRecords:
        """Append and notify the observer."""
        appended = super().append_as_leader(records, leader_epoch, origin, guard)
        if not appended.is_duplicate:
            self.disk.observer.on_led(self.disk.broker_id, self, self.batches[-1])
        return appended

    @past_all_guards
    def truncate_to(self, offset: int) -> None:
        """Truncate and notify the observer."""
        if offset < self._end:
            self.disk.observer.on_truncated(self)
        super().truncate_to(offset)

    @past_all_guards
    def append_as_follower(self, records: RecordBytes, leader_epoch: int | None = None) -> None:
        """Append and notify the observer; another thread may have acted before."""
        if leader_epoch is not None:
            self.disk.on_unlocked()
        first = len(self.batches)
        super().append_as_follower(records, leader_epoch)
        self.disk.observer.on_followed(self.disk.broker_id, self, first)


class Disk(MemoryLogs):
    """Two directories, one for even partitions and one for odd ones; either may fail.

    It also stands for the machine, whose clocks go on when the process ends.
    """

    def __init__(self, broker_id: BrokerId, now_ms: Callable[[], int]) -> None:
        super().__init__(TOPIC_CONFIGS, wall_clock_ms=lambda: now_ms() + self.wall_clock_ahead_ms)
        self.broker_id = broker_id
        self.clock_ms = broker_id * CLOCK_APART_MS  # the monotonic clock at the beginning
        self.wall_clock_ahead_ms = 0
        self.observer = RecordObserver()
        self.on_out_of_service: Callable[[], None] = lambda: None
        self.on_unlocked: Callable[[], None] = lambda: None
        self.has_threads: Callable[[], bool] = lambda: False
        # Logs of a directory that was unreadable when the process started.
        self._out_of_sight: dict[TopicPartition, MemoryLog] = {}
        self._superseded: set[MemoryLog] = set()  # their replicas were created anew since then

    def make_log(self, topic_partition: TopicPartition, topic_id: TopicId | None) -> MemoryLog:
        """Return a new log that notifies the observer."""
        former = self._out_of_sight.get(topic_partition)
        if former is not None:
            self._superseded.add(former)
        topic = topic_partition.topic
        log = ObservedLog(
            topic_partition, topic_id, lambda: self.config_of(topic), self.wall_clock_ms
        )
        log.disk = self
        return log

    def get_or_create(
        self, topic_partition: TopicPartition, topic_id: TopicId | None, *, is_new: bool
    ) -> MemoryLog:
        """Return a log, which is in use from now on."""
        log = super().get_or_create(topic_partition, topic_id, is_new=is_new)
        self._superseded.discard(log)
        return log

    def find(self, topic_partition: TopicPartition) -> MemoryLog | None:
        """Return an existing log, usable or not."""
        return self._logs.get(topic_partition)

    def batch_count(self, topics_left_out: Collection[str]) -> int:
        """Return the number of batches in all logs but those of some topics."""
        counted = (log for name, log in self._logs.items() if name.topic not in topics_left_out)
        return sum(len(log.batches) for log in counted)

    def join_cluster(self, cluster_id: str) -> None:
        """Store the cluster id."""
        self.cluster_id = cluster_id

    def ended(self, *, is_clean: bool, lost_batches: LostBatches | None) -> Disk:
        """Continue after the end of the process; a loss of power removes the last batches."""
        if not is_clean:
            self.crash()
        if lost_batches is not None:
            self.lose_power(lost_batches)
        return self

    def fragile(self, directory: int = 0) -> list[TopicPartition]:
        """Return the logs in one of the directories; the first may fail at a start, too."""
        return [name for name in self.hosted() if name.partition % 2 == directory]

    def fail_directory(self, directory: int = 0) -> None:
        """Let one of the directories fail with its logs."""
        lost = self.fragile(directory)
        for name in lost:
            self.observer.on_lost(self.broker_id, self.log(name))
        self.deleted.fail(lambda name: name.partition % 2 == directory)
        self.fail(lost)

    def changed(self, is_elsewhere: IsElsewhere, note: Callable[[str], None]) -> Disk:
        """Do nothing: there are no files."""
        return self

    def start_broken(self) -> Disk:
        """Start with an unreadable directory: the logs in it are unknown."""
        for name in self.fragile():
            if not self.log(name).is_offline:  # a damaged one may be out of service already
                self.observer.on_lost(self.broker_id, self.log(name))
            self._out_of_sight[name] = self._logs.pop(name)
        self.deleted.fail(lambda name: name.partition % 2 == 0)
        self.deleted.start()
        self._removed.clear()
        self.has_failed = True
        return self

    def repair(self, *, has_its_data: bool = False) -> Disk:
        """Replace the failed directory by an empty one, or by itself."""
        self.replace_failed()
        self.deleted.start()
        lost, self._out_of_sight = self._out_of_sight, {}
        for name, log in lost.items():
            if has_its_data and name not in self._logs:  # else there would be two, both unusable
                log.is_offline = log.is_unwritable = False
                self._logs[name] = log
        self._superseded.intersection_update(self._logs.values())
        return self

    def kept_topic_id(self, name: TopicPartition) -> TopicId | str | None:
        """Return the topic id of a log, readable or not; "none": there is none but a stray one.

        A new replica of a reassignment may be created anew in another directory while its log is
        unreadable (KAFKA-10314). The broker deletes the log that it has; it cannot delete the
        former one. That one is stray, also after it returns, until the broker uses it again.
        """
        log = self._logs.get(name)
        if log is None:
            log = self._out_of_sight.get(name)
        return "none" if log is None or log in self._superseded else log.topic_id

    @past_all_guards
    def mark_damaged(self, topic_partition: TopicPartition, reason: str) -> None:
        """Notify the observer and take a damaged log out of service."""
        log = self.get(topic_partition)
        if log is not None:
            self.observer.on_out_of_service(self.broker_id, log)
            super().mark_damaged(topic_partition, reason)
            self.on_out_of_service()

    @past_all_guards
    def delete(
        self, topic_partition: TopicPartition, *, deleted_topic: TopicId | None = None
    ) -> None:
        """Notify the observer and delete a log."""
        if topic_partition in self._logs:
            self.observer.on_deleted(self.broker_id, self.log(topic_partition))
        super().delete(topic_partition, deleted_topic=deleted_topic)

    @past_all_guards
    def set_aside(self, topic_partition: TopicPartition) -> None:
        """Notify the observer and set a log aside."""
        if self.is_damaged(topic_partition):
            self.observer.on_replaced(self.broker_id, self.log(topic_partition))
        elif topic_partition in self._logs:
            self.observer.on_set_aside(self.broker_id, self.log(topic_partition))
        super().set_aside(topic_partition)

    def check_damaged_logs(self, is_refused: Callable[[], bool]) -> None:
        """Check damaged logs as at a broker's start, which may or may not find the damage."""
        for name in sorted(self.hosted()):
            log = self.log(name)
            log.is_out_of_service = bool(log.damaged) and is_refused()

    def find_damage(self) -> Mapping[TopicPartition, DamagedRecordsError]:
        """Read all logs and return the damage."""
        logs = [log for name in sorted(self.hosted()) if (log := self.get(name)) is not None]
        return {
            log.topic_partition: DamagedRecordsError(f"{log.topic_partition}: {min(log.damaged)}")
            for log in logs
            if log.damaged
        }

    def damaged_logs(self) -> list[TopicPartition]:
        """Return the damaged logs, in service or not."""
        return [name for name in self.hosted() if self.log(name).damaged]

    def restore(self, name: TopicPartition) -> bool:
        """Undo the damage of a log; return whether it was out of service."""
        log = self.log(name)
        log.damaged.clear()
        was_out_of_service, log.is_out_of_service = log.is_out_of_service, False
        return was_out_of_service

    def start_maintenance(self, replica_manager: ReplicaManager) -> None:
        """Do nothing: logs in memory need no maintenance."""

    def put_suspects_away(self) -> tuple[set[TopicPartition], bool]:
        """Begin the time of a process of Kafka, which does not read the notes; return them."""
        notes = self.suspect, self.is_new
        self.suspect, self.is_new = set(), False
        return notes

    def restore_suspects(self, notes: tuple[set[TopicPartition], bool]) -> None:
        """End the time of a process of Kafka: the notes are as they were before."""
        suspect, is_new = notes
        self.suspect |= suspect & self._logs.keys()
        self.is_new |= is_new

    def lose_power(self, lost_batches: LostBatches) -> None:
        """Remove the unflushed end of every log.

        The broker knows after its start that the machine lost power.
        """
        self.deleted.purge()
        for name in self.hosted():
            self.suspect.add(name)
            log, count = self.log(name), lost_batches()
            if count and log.batches and not self.is_offline(name):
                self.observer.on_lost(self.broker_id, log)
                MemoryLog.truncate_to(log, log.batches[-count:][0].base_offset)
