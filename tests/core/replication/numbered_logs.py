"""Logs without records: a test sets their start and end offsets and which of them fail."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from regent.core.errors import StorageError
from regent.core.log_config import DEFAULT_LOG_CONFIG, LogConfig
from regent.core.model import NO_EPOCH, LogEnd, SuspectReplicas, TopicPartition
from regent.core.protocol.control import TopicId
from regent.core.records import NO_RECORDS, RecordBytes, Records
from regent.core.replica_logs import (
    NO_EPOCH_END_OFFSET,
    AbortedTransactionStart,
    ActiveProducer,
    AppendedRecords,
    AppendOrigin,
    EpochEndOffset,
    OffsetOfTimestamp,
    PartitionLog,
    ProducerSummary,
)
from tests.support.cluster_notes import NotesInMemory
from tests.support.memory_logs import MemoryDeletedLogs


class NumberedLogs(NotesInMemory):
    """Implements ``core.replica_logs.ReplicaLogs``.

    ``aside`` lists the logs that were set aside; ``epochs`` has pairs of an epoch and its start
    offset; ``checkpointed`` has the high watermarks.
    """

    def __init__(self) -> None:
        super().__init__()
        self.offline: set[TopicPartition] = set()
        self.out_of_sight: set[TopicPartition] = set()
        self.failing: set[TopicPartition] = set()
        self.unwritable: set[TopicPartition] = set()
        self.aside: list[TopicPartition] = []
        self.starts: dict[TopicPartition, int] = {}
        self.ends: dict[TopicPartition, int] = {}
        self.epochs: dict[TopicPartition, list[tuple[int, int]]] = {}
        self.checkpointed: dict[TopicPartition, int] = {}
        self.suspect: set[TopicPartition] = set()
        self.suspect_changes = 0
        self.deleted = MemoryDeletedLogs()
        self._logs: dict[TopicPartition, NumberedLog] = {}

    @property
    def knows_all(self) -> bool:
        """Return True."""
        return True

    @property
    def has_suspects(self) -> bool:
        """Whether any replica is suspect."""
        return bool(self.suspect)

    def suspects(self) -> SuspectReplicas:
        """Return the suspect replicas and where their logs end."""
        ends = {
            topic_partition: LogEnd(-1, self.ends.get(topic_partition, 0))
            for topic_partition in sorted(self.suspect)
        }
        return SuspectReplicas(ends)

    def is_suspect(self, topic_partition: TopicPartition) -> bool:
        """Whether a replica is suspect."""
        return topic_partition in self.suspect

    def note_lost(
        self, topic_partitions: Collection[TopicPartition], *, are_all: bool = True
    ) -> None:
        """Raise."""
        raise NotImplementedError("it knows all")

    def mark_suspect(self, topic_partition: TopicPartition) -> None:
        """Mark a replica as suspect."""
        self.suspect_changes += topic_partition not in self.suspect
        self.suspect.add(topic_partition)

    def mark_sound(self, topic_partition: TopicPartition) -> None:
        """Mark a replica as no longer suspect."""
        self.suspect.discard(topic_partition)
        self.suspect_changes += 1

    def save_suspects(self) -> None:
        """Do nothing."""

    def mark_whole(self, topic_partition: TopicPartition) -> None:
        """Do nothing: no deleted log comes back."""

    def hosted(self) -> Mapping[TopicPartition, TopicId | None]:
        """Return every log and the topic id it was created for."""
        return {topic_partition: log.topic_id for topic_partition, log in self._logs.items()}

    def get(self, topic_partition: TopicPartition) -> PartitionLog | None:
        """Return a log unless its directory failed."""
        return None if topic_partition in self.offline else self._logs.get(topic_partition)

    def get_or_create(
        self, topic_partition: TopicPartition, topic_id: TopicId | None, *, is_new: bool
    ) -> PartitionLog:
        """Raise if the log may be in a failed directory, unless it is new."""
        if topic_partition in self.failing and not is_new:
            raise StorageError("the log may be in a failed directory")
        log = self._logs.get(topic_partition)
        if log is None:
            log = self._logs[topic_partition] = NumberedLog(self, topic_partition)
        log.topic_id = log.topic_id or topic_id
        return log

    def delete(
        self, topic_partition: TopicPartition, *, deleted_topic: TopicId | None = None
    ) -> None:
        """Raise if the disk fails."""
        if topic_partition in self.failing:
            raise StorageError("the disk failed")
        self._logs.pop(topic_partition, None)

    def set_aside(self, topic_partition: TopicPartition) -> None:
        """Remember a stray log; raise if the disk fails."""
        if topic_partition in self.failing:
            raise StorageError("the disk failed")
        self.aside.append(topic_partition)
        self._logs.pop(topic_partition, None)

    def mark_damaged(self, topic_partition: TopicPartition, reason: str) -> None:
        """Raise."""
        raise NotImplementedError("it has no records")

    def is_offline(self, topic_partition: TopicPartition) -> bool:
        """Whether the directory is known to have failed."""
        return topic_partition in self.offline

    def is_damaged(self, topic_partition: TopicPartition) -> bool:
        """Return that it is not."""
        return False

    def may_be_offline(self, topic_partition: TopicPartition) -> bool:
        """Whether a directory failed before this log was loaded."""
        return topic_partition in self.out_of_sight

    def topic_id(self, topic_partition: TopicPartition) -> TopicId | None:
        """Return the topic id of a log."""
        log = self._logs.get(topic_partition)
        return None if log is None else log.topic_id

    def checkpointed_high_watermark(self, topic_partition: TopicPartition) -> int:
        """Return the stored values."""
        return self.checkpointed.get(topic_partition, 0)

    def note_high_watermarks(self, high_watermarks: Mapping[TopicPartition, int]) -> None:
        """Store the values."""
        self.checkpointed.update(high_watermarks)

    def checkpoint_high_watermarks(self, high_watermarks: Mapping[TopicPartition, int]) -> None:
        """Store the values."""
        self.note_high_watermarks(high_watermarks)


class NumberedLog:
    """Implements ``core.replica_logs.PartitionLog``."""

    config: LogConfig = DEFAULT_LOG_CONFIG
    size = 0
    stray_high_watermark = -1

    def __init__(self, logs: NumberedLogs, topic_partition: TopicPartition) -> None:
        self.topic_id: TopicId | None = None
        self._logs = logs
        self._name = topic_partition

    @property
    def log_start_offset(self) -> int:
        """Return the offset set by the test."""
        return self._logs.starts.get(self._name, 0)

    @property
    def log_end_offset(self) -> int:
        """Return the offset set by the test."""
        return self._logs.ends.get(self._name, 0)

    @property
    def _epochs(self) -> list[tuple[int, int]]:
        return self._logs.epochs.setdefault(self._name, [])

    @property
    def latest_epoch(self) -> int:
        """Return the last epoch that was assigned."""
        return self._epochs[-1][0] if self._epochs else NO_EPOCH

    def epoch_for(self, offset: int) -> int:
        """Look the record up."""
        begun = [epoch for epoch, start in self._epochs if start <= offset]
        return begun[-1] if begun else NO_EPOCH

    def end_offset_for_epoch(self, leader_epoch: int) -> EpochEndOffset:
        """Look the epoch up."""
        if not self._epochs or leader_epoch > self._epochs[-1][0]:
            return NO_EPOCH_END_OFFSET
        if leader_epoch < self._epochs[0][0]:
            return EpochEndOffset(leader_epoch, self._epochs[0][1])
        found = max(epoch for epoch, _ in self._epochs if epoch <= leader_epoch)
        later = [start for epoch, start in self._epochs if epoch > leader_epoch]
        return EpochEndOffset(found, later[0] if later else self.log_end_offset)

    def assign_epoch(self, leader_epoch: int) -> None:
        """Remember the start offset of the epoch."""
        self._check()
        self._epochs.append((leader_epoch, self.log_end_offset))

    def last_of_producer(self, producer_id: int) -> None:
        """Return None, because there are no records."""

    def producer_summary(self, max_timeout_ms: int) -> ProducerSummary:
        """Return nothing, because there are no records."""
        del max_timeout_ms
        return ProducerSummary(0, has_late_transaction=False)

    def active_producers(self) -> Sequence[ActiveProducer]:
        """Return nothing, because there are no records."""
        return ()

    def append_as_leader(
        self,
        records: RecordBytes,
        leader_epoch: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        guard: int | None = None,
    ) -> AppendedRecords:
        """Raise."""
        raise NotImplementedError("it has no records")

    def begin_verification(self, records: RecordBytes) -> int:
        """Raise."""
        raise NotImplementedError("it has no records")

    def fence(self, leader_epoch: int) -> None:
        """Do nothing: no records are appended."""

    def append_as_follower(self, records: RecordBytes, leader_epoch: int | None = None) -> None:
        """Raise."""
        raise NotImplementedError("it has no records")

    def truncate_to(self, offset: int) -> None:
        """Shorten the log."""
        self._check()
        self._logs.ends[self._name] = min(offset, self.log_end_offset)
        self._logs.epochs[self._name] = [(e, start) for e, start in self._epochs if start < offset]

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Start again at an offset."""
        self._check()
        self._logs.starts[self._name] = self._logs.ends[self._name] = offset
        self._logs.epochs[self._name] = []

    def advance_log_start_offset(self, offset: int) -> None:
        """Delete records before an offset."""
        self._check()
        self._logs.starts[self._name] = max(offset, self.log_start_offset)

    def read(self, offset: int, max_bytes: int, limit: int, *, at_least_one: bool) -> Records:
        """Return nothing."""
        return NO_RECORDS

    def prefetch(self, offset: int, max_bytes: int) -> Callable[[], None] | None:
        """Return None: all is in memory."""
        return None

    def end_of_segment(self, offset: int) -> int:
        """Return the end of the log: it has one segment."""
        return self.log_end_offset

    def first_unstable_offset(self, high_watermark: int) -> int | None:
        """Return None."""
        return None

    def aborted_transactions(
        self, offset: int, records: Records
    ) -> Sequence[AbortedTransactionStart]:
        """Return nothing."""
        return ()

    def offset_of_timestamp(
        self, timestamp_ms: int, limit: int, from_offset: int = 0
    ) -> OffsetOfTimestamp | None:
        """Return None."""
        return None

    def offsets_before(self, timestamp_ms: int, count: int) -> Sequence[int]:
        """Return nothing."""
        return ()

    def _check(self) -> None:
        if self._name in self._logs.unwritable:
            raise StorageError("the disk failed")
