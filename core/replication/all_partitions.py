"""The replicas of this broker: who may read them, and what happens when their logs fail.

Mirrors the partition map of ``kafka.server.ReplicaManager`` and its log-directory failure handler,
and the checks of ``kafka.cluster.Partition.fetchRecords`` and ``readRecords``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple, TypeAlias

from regent.core.errors import DamagedRecordsError, Errors, ShortageError, StorageError
from regent.core.model import NO_EPOCH, BrokerId, TopicPartition
from regent.core.protocol.control import TopicId, differ
from regent.core.records import NO_RECORDS, Records
from regent.core.replica_logs import NO_EPOCH_END_OFFSET, EpochEndOffset, PartitionLog, ReplicaLogs
from regent.core.replication.broker_topic_stats import BrokerTopicStats
from regent.core.replication.delayed_operation import Slices, run_in_slices, slices_to_look_at
from regent.core.replication.metadata_cache import MetadataCache
from regent.core.replication.partition import Partition, Role

log = logging.getLogger("state.change")

FOR_NOW = Errors.NOT_LEADER_OR_FOLLOWER
"""Error code for a lack of file descriptors: every client and follower retries after it."""

MAX_PREFETCHES = 1_000
"""How many may be under way; further records are read under the lock."""

RunBeside: TypeAlias = Callable[[Callable[[], None]], object]
"""Runs work on another thread, soon."""


class AllPartitions:
    """Every hosted replica: leaders, followers and others. Not thread-safe.

    ``offline``: the replicas with unusable logs. ``end_role`` stops a replica from leading or
    following.
    """

    def __init__(
        self,
        broker_id: BrokerId,
        logs: ReplicaLogs,
        cache: MetadataCache,
        end_role: Callable[[TopicPartition], None],
    ) -> None:
        self.by_topic_partition: dict[TopicPartition, Partition] = {}
        self.offline: set[TopicPartition] = set()
        self.end_role = end_role
        self.topic_stats = BrokerTopicStats()
        self._broker_id = broker_id
        self._logs = logs
        self._cache = cache
        self._failures: list[tuple[TopicPartition, StorageError]] = []
        self._damaged_last_copies: set[TopicPartition] = set()  # already logged

    def get(self, topic_partition: TopicPartition) -> Partition | None:
        """Return a replica if it is hosted."""
        return self.by_topic_partition.get(topic_partition)

    def log_of(self, topic_partition: TopicPartition) -> PartitionLog | None:
        """Return the log of a hosted replica, if it has one."""
        partition = self.get(topic_partition)
        return None if partition is None else partition.log

    def hosted_or_error(self, topic_partition: TopicPartition) -> Partition | Errors:
        """Return a hosted replica that is in service, else the error."""
        partition = self.by_topic_partition.get(topic_partition)
        if partition is None:
            snapshot = self._cache.snapshot
            if topic_partition in snapshot.partitions:
                return Errors.NOT_LEADER_OR_FOLLOWER
            return snapshot.error_of_missing(Errors.NOT_LEADER_OR_FOLLOWER)
        return Errors.KAFKA_STORAGE_ERROR if partition.role is Role.OFFLINE else partition

    def leader_or_error(
        self,
        topic_partition: TopicPartition,
        leader_epoch: int = NO_EPOCH,
        topic_id: TopicId | None = None,
        *,
        or_follower: bool = False,
    ) -> Partition | Errors:
        """Return the partition if this broker leads it in that leader epoch, else the error.

        ``or_follower``: also if this broker follows it.
        """
        partition = self.hosted_or_error(topic_partition)
        if isinstance(partition, Errors):
            return partition
        error = check_reader(partition, leader_epoch, topic_id)
        if error is not Errors.NONE:
            return error
        serves = partition.role is Role.LEADER or (or_follower and partition.role is Role.FOLLOWER)
        return partition if serves else Errors.NOT_LEADER_OR_FOLLOWER

    def prefetch(self, topic_partition: TopicPartition, offset: int, max_bytes: int) -> None:
        """Read records of a hosted replica from the disk into memory, if need be. Thread-safe."""
        log = self.log_of(topic_partition)
        with suppress(StorageError, DamagedRecordsError):  # the read reports it
            work = None if log is None else log.prefetch(offset, max_bytes)
            if work is not None:
                work()

    def topics_by_id(self) -> dict[TopicId | None, str]:
        """Return the names of the topics of hosted replicas by id.

        A LeaderAndIsr tells them before an UpdateMetadata tells the metadata cache.
        """
        return {
            partition.topic_id: topic_partition.topic
            for topic_partition, partition in self.by_topic_partition.items()
            if partition.topic_id is not None
        }

    def add(self, partition: Partition) -> None:
        """Add a replica whose log can be used."""
        partition.stats = self.topic_stats.of(partition.topic_partition.topic)
        self.by_topic_partition[partition.topic_partition] = partition
        self.offline.discard(partition.topic_partition)

    def forget(self, topic_partition: TopicPartition) -> None:
        """Remove a replica. No-op if there is none."""
        self.end_role(topic_partition)
        self.by_topic_partition.pop(topic_partition, None)
        self.offline.discard(topic_partition)
        self._damaged_last_copies.discard(topic_partition)

    # --- logs that fail ---

    def mark_offline(self, topic_partition: TopicPartition) -> Errors:
        """Take a replica out of service until its log is replaced, or the broker starts again."""
        self.end_role(topic_partition)
        self.by_topic_partition.setdefault(topic_partition, Partition(topic_partition)).stop(
            Role.OFFLINE
        )
        self.offline.add(topic_partition)
        return Errors.KAFKA_STORAGE_ERROR

    def fail(self, topic_partition: TopicPartition, error: StorageError) -> Errors:
        """Take a replica out of service after an error of its log; return the error code to answer.

        It stays in service after a ``ShortageError``.
        """
        if isinstance(error, ShortageError):
            return FOR_NOW
        self._failures.append((topic_partition, error))
        return self.mark_offline(topic_partition)

    def on_error(
        self, topic_partition: TopicPartition, error: StorageError | DamagedRecordsError
    ) -> Errors:
        """Handle an error of a log; return the error code to answer."""
        if isinstance(error, StorageError):
            return self.fail(topic_partition, error)
        return self.on_damaged(topic_partition, error)

    def on_damaged(self, topic_partition: TopicPartition, error: DamagedRecordsError) -> Errors:
        """Take a replica with damaged records out of service if the ISR has another member.

        The last copy stays in service; reads of its damaged records are refused.
        """
        partition = self.by_topic_partition.get(topic_partition)
        if partition is None or partition.role is Role.OFFLINE:
            return Errors.KAFKA_STORAGE_ERROR
        if not set(partition.isr) - {self._broker_id}:
            self._report_last_copy(topic_partition, error)
            return Errors.CORRUPT_MESSAGE
        self._logs.mark_damaged(topic_partition, str(error))
        return self.fail(topic_partition, StorageError(str(error)))

    def _report_last_copy(
        self, topic_partition: TopicPartition, error: DamagedRecordsError
    ) -> None:
        if topic_partition not in self._damaged_last_copies:
            self._damaged_last_copies.add(topic_partition)
            log.error(
                "[Broker id=%d] %s: no other replica in the ISR has the damaged records: %s;"
                " they cannot be read or replicated; delete them with DeleteRecords",
                self._broker_id,
                topic_partition,
                error,
            )

    def on_log_directory_failed(self) -> list[TopicPartition]:
        """Take the replicas of failed directories out of service; return those newly affected."""
        failed = [
            topic_partition
            for topic_partition, partition in self.by_topic_partition.items()
            if partition.role is not Role.OFFLINE and self._logs.is_offline(topic_partition)
        ]
        for topic_partition in failed:
            self.mark_offline(topic_partition)
        return failed

    def report_failures(self) -> None:
        """Log the failures since the last call in one line."""
        if self._failures:
            failures, self._failures = self._failures, []
            log.error(
                "[Broker id=%d] %d replicas are out of service, the first: %s: %s",
                self._broker_id,
                len(failures),
                *failures[0],
            )

    # --- high watermarks ---

    def note_high_watermarks(self) -> Slices[None]:
        """Note the high watermarks for the next checkpoint.

        A log without a LeaderAndIsr so far keeps its entry (KAFKA-1647). Each one is noted while
        the lock is held: a truncation may lower it, and that must be the last word.
        """

        def note(topic_partitions: Sequence[TopicPartition]) -> None:
            hosted = map(self.by_topic_partition.get, topic_partitions)
            self._logs.note_high_watermarks(
                {p.topic_partition: p.high_watermark for p in hosted if p is not None and p.log}
            )

        yield from run_in_slices(slices_to_look_at(self.by_topic_partition), note)


# --- reads of a log, by consumers and followers ---


def check_reader(partition: Partition, leader_epoch: int, topic_id: TopicId | None) -> Errors:
    """Compare a reader's topic id and leader epoch, if given, with the partition's.

    The topic id is compared first: the epochs of another topic mean nothing here.
    """
    if differ(topic_id, partition.topic_id):
        return Errors.INCONSISTENT_TOPIC_ID
    if NO_EPOCH != leader_epoch < partition.leader_epoch:
        return Errors.FENCED_LEADER_EPOCH
    if leader_epoch > partition.leader_epoch:
        return Errors.UNKNOWN_LEADER_EPOCH
    return Errors.NONE


def check_position(
    log: PartitionLog, fetch_offset: int, last_fetched_epoch: int
) -> tuple[Errors, EpochEndOffset]:
    """Check a position: return an error, and where the reader's log diverges (KIP-595).

    The second value is -1, -1 if the log does not diverge. Raises ``StorageError``.
    """
    start, end = log.log_start_offset, log.log_end_offset
    if last_fetched_epoch != NO_EPOCH:
        epoch_end = log.end_offset_for_epoch(last_fetched_epoch)
        if epoch_end.end_offset < 0 or fetch_offset < start:
            return Errors.OFFSET_OUT_OF_RANGE, NO_EPOCH_END_OFFSET
        if epoch_end.leader_epoch < last_fetched_epoch or epoch_end.end_offset < fetch_offset:
            return Errors.NONE, epoch_end
    if not start <= fetch_offset <= end:
        return Errors.OFFSET_OUT_OF_RANGE, NO_EPOCH_END_OFFSET
    return Errors.NONE, NO_EPOCH_END_OFFSET


class LogRead(NamedTuple):
    """Records of a log from ``offset`` on, which may be greater than what was asked for.

    There are no more records if ``offset`` is the log end offset.
    """

    error_code: Errors
    offset: int = -1
    log_end_offset: int = -1
    records: Records = NO_RECORDS


def read_log(log: PartitionLog, offset: int, max_bytes: int) -> LogRead:
    """Read at least one batch, if there is one. Raises ``StorageError``."""
    start, end = max(offset, log.log_start_offset), log.log_end_offset
    if start >= end:
        return LogRead(Errors.NONE, start, end)
    return LogRead(Errors.NONE, start, end, log.read(start, max_bytes, end, at_least_one=True))


class Prefetches:
    """Reads records into memory before a fetch reads them under the lock.

    The disk may need long for records that were written hours ago. Another thread reads them first,
    without a lock. Meanwhile the partition counts as one without new records: the fetch waits, or
    is answered with the records of others, and appends go on. Kafka reads the disk in one of
    several threads, under a lock of the partition.

    Not thread-safe, except that ``run`` gets work for another thread.
    ``run`` None: there is no other thread. ``on_end`` is called there after each prefetch.
    """

    def __init__(
        self, run: RunBeside | None, on_end: Callable[[TopicPartition, int], None]
    ) -> None:
        self._run = run
        self._on_end = on_end
        self._under_way: set[tuple[TopicPartition, int]] = set()  # with the offset
        self._ended: dict[tuple[TopicPartition, int], None] = {}  # not read since

    def awaits(
        self, topic_partition: TopicPartition, log: PartitionLog, offset: int, max_bytes: int
    ) -> bool:
        """Whether a read must wait until records are in memory; begin to bring them there.

        A read directly after the end of its prefetch does not wait again: it reads what is missing
        from the disk. Raises ``StorageError`` and ``DamagedRecordsError``, as a read does.
        """
        if self._run is None:
            return False
        place = topic_partition, offset
        if place in self._under_way:
            return True
        if place in self._ended:
            del self._ended[place]
            return False
        work = log.prefetch(offset, max_bytes)
        if work is None or len(self._under_way) >= MAX_PREFETCHES:
            return False
        self._under_way.add(place)
        self._run(lambda: self._do(work, topic_partition, offset))
        return True

    def _do(self, work: Callable[[], None], topic_partition: TopicPartition, offset: int) -> None:
        try:
            work()
        finally:
            self._on_end(topic_partition, offset)

    def end(self, topic_partition: TopicPartition, offset: int) -> None:
        """Note that a prefetch has ended."""
        self._under_way.discard((topic_partition, offset))
        self._ended[topic_partition, offset] = None
        if len(self._ended) > MAX_PREFETCHES:
            del self._ended[next(iter(self._ended))]
