"""Logs in memory that hold real record batches: a model of ``storage``.

It shares no code with ``storage``, so that each checks the other: the tests in
``tests/storage/contract`` apply to both.
"""

from __future__ import annotations

import bisect
import struct
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from regent.core.errors import (
    DamagedRecordsError,
    Errors,
    RecordsRefusedError,
    ShortageError,
    StorageError,
)
from regent.core.log_config import DEFAULT_LOG_CONFIG, LogConfig
from regent.core.model import NO_EPOCH, NO_LOG_END, LogEnd, SuspectReplicas, TopicPartition
from regent.core.protocol.control import TopicId
from regent.core.records import NO_RECORDS, MemoryRecords, RecordBytes, Records
from regent.core.replica_logs import (
    MAX_TIMESTAMP,
    NO_EPOCH_END_OFFSET,
    NO_TIMESTAMP,
    AbortedTransactionStart,
    ActiveProducer,
    AppendedRecords,
    AppendOrigin,
    EpochEndOffset,
    LastOfProducer,
    OffsetOfTimestamp,
    ProducerSummary,
)
from tests.support.cluster_notes import NotesInMemory
from tests.support.producer_sequences import ProducerSequences
from tests.support.record_batches import (
    CONTROL_MASK,
    TIMESTAMP_MS,
    TRANSACTIONAL_MASK,
    Record,
    records_of,
    stamped,
)
from tests.support.record_checks import (
    Header,
    check_appendable,
    check_follows,
    headers_of,
)
from tests.support.transactions_in_memory import aborted_between, first_unstable_offset, marker_of


class StoredBatch(NamedTuple):
    """One batch of a log."""

    base_offset: int
    last_offset: int
    leader_epoch: int
    base_timestamp: int
    max_timestamp: int
    data: bytes


def stored_batch(header: Header, data: bytes) -> StoredBatch:
    """Return a batch in the form in which a log shows it."""
    return StoredBatch(
        header.base_offset,
        header.last_offset,
        header.leader_epoch,
        header.base_timestamp,
        header.max_timestamp,
        data,
    )


class MemoryLog:
    """Implements ``core.replica_logs.PartitionLog``.

    Records below the log start offset are kept, as Kafka keeps the rest of a segment.
    """

    def __init__(
        self,
        topic_partition: TopicPartition,
        topic_id: TopicId | None,
        config: Callable[[], LogConfig],
        now_ms: Callable[[], int],
    ) -> None:
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.is_offline = False
        self.is_short = False  # the process has no file descriptor left for it
        self.is_unwritable = False  # the next write finds that the directory has failed
        self.is_out_of_service = False
        self.batches_in_memory = sys.maxsize  # the newest ones; the others are only on the disk
        self.damaged: set[int] = set()  # base offsets of batches that have changed on disk
        self.stray_high_watermark = -1
        self.lacks_records = False
        self.checkpointed_high_watermark = 0
        self.batches: list[StoredBatch] = []
        self.epochs: list[tuple[int, int]] = []  # epoch, start offset
        self._config = config
        self._now_ms = now_ms
        self._start = self._end = 0
        self._sequences = ProducerSequences()
        self._has_transactions = False
        self._leader_epoch = NO_EPOCH  # in which records may be fetched

    @property
    def config(self) -> LogConfig:
        """The settings of its topic."""
        return self._config()

    @property
    def log_start_offset(self) -> int:
        """The offset of the first record."""
        self._check_readable()
        return self._start

    @property
    def log_end_offset(self) -> int:
        """The offset of the next record."""
        self._check_readable()
        return self._end

    @property
    def size(self) -> int:
        """The size of its records in bytes."""
        return sum(len(batch.data) for batch in self.batches)

    def records(self) -> list[Record]:
        """Return every record from the log start offset on."""
        found = [r for batch in self.batches for r in records_of(batch.data)]
        return [record for record in found if record.offset >= self._start]

    # --- leader epochs ---

    @property
    def latest_epoch(self) -> int:
        """The newest leader epoch in the log; -1 if there is none."""
        self._check_readable()
        return self.epochs[-1][0] if self.epochs else NO_EPOCH

    def epoch_for(self, offset: int) -> int:
        """Find the epoch of a record. Mirrors ``LeaderEpochFileCache.epochForOffset``."""
        self._check_readable()
        begun = [epoch for epoch, start in self.epochs if start <= offset]
        return begun[-1] if begun else NO_EPOCH

    def end_offset_for_epoch(self, leader_epoch: int) -> EpochEndOffset:
        """Find the end of an epoch. Mirrors ``LeaderEpochFileCache.endOffsetFor``."""
        self._check_readable()
        if not self.epochs or not 0 <= leader_epoch <= self.latest_epoch:
            return NO_EPOCH_END_OFFSET
        first, its_start = self.epochs[0]
        if leader_epoch < first:
            return EpochEndOffset(leader_epoch, its_start)
        found = max(epoch for epoch, _ in self.epochs if epoch <= leader_epoch)
        later = (start for epoch, start in self.epochs if epoch > leader_epoch)
        return EpochEndOffset(found, next(later, self._end))

    def assign_epoch(self, leader_epoch: int) -> None:
        """Note that an epoch begins at the end; it is stored with its first records."""
        self._check_writable()
        self._assign(leader_epoch, self._end)
        self._leader_epoch = NO_EPOCH

    def forget_epoch_without_records(self) -> None:
        """Forget the epoch that begins at the end."""
        if self.epochs and self.epochs[-1][1] >= self._end:
            del self.epochs[-1]

    def _assign(self, leader_epoch: int, offset: int) -> None:
        if self.epochs and self.epochs[-1][0] == leader_epoch and offset >= self.epochs[-1][1]:
            return
        while self.epochs and (self.epochs[-1][0] >= leader_epoch or self.epochs[-1][1] >= offset):
            del self.epochs[-1]
        self.epochs.append((leader_epoch, offset))

    # --- writing ---

    def last_of_producer(self, producer_id: int) -> LastOfProducer | None:
        """Return the last batch of an idempotent producer."""
        return self._sequences.last(producer_id)

    def begin_verification(self, records: RecordBytes) -> int:
        """Note that a transaction is being verified."""
        self._check_readable()
        ((_, header),) = headers_of(records)
        return self._sequences.begin_verification(header)

    def active_producers(self) -> Sequence[ActiveProducer]:
        """Return all idempotent producers."""
        return self._sequences.active()

    def producer_summary(self, max_timeout_ms: int) -> ProducerSummary:
        """A late producer has a transaction, and wrote nothing for so long and 5 minutes."""
        active = self._sequences.active()
        is_any_late = any(
            producer.transaction_start_offset >= 0
            and self._now_ms() - producer.last_timestamp_ms > max_timeout_ms + 300_000
            for producer in active
        )
        return ProducerSummary(len(active), is_any_late)

    def append_as_leader(
        self,
        records: RecordBytes,
        leader_epoch: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        guard: int | None = None,
    ) -> AppendedRecords:
        """Append batches of a producer."""
        self._check_writable()
        now_ms, config = self._now_ms(), self.config
        headers = headers_of(records)
        for _, header in headers:
            check_appendable(header, config, now_ms, origin)
        duplicate = None
        if origin is AppendOrigin.CLIENT:
            duplicate = self._sequences.check([header for _, header in headers], guard)
        else:
            for position, header in headers:
                data = bytes(records[position : position + header.size])
                self._sequences.check_of_coordinator(header, data, guard)
        if duplicate is not None:
            time_ms = duplicate.timestamp_ms if config.stamps_append_time else NO_TIMESTAMP
            return AppendedRecords(duplicate.first_offset, duplicate.last_offset, time_ms, True)
        written = _writable(records)
        first, next_offset = self._end, self._end
        for position, header in headers:
            struct.pack_into(">q", written, position, next_offset)
            struct.pack_into(">i", written, position + 12, leader_epoch)
            if config.stamps_append_time:
                stamped(written, position, header.size, now_ms)
            next_offset += header.last_offset_delta + 1
        self._append(written)
        time_ms = now_ms if config.stamps_append_time else NO_TIMESTAMP
        return AppendedRecords(first, next_offset - 1, time_ms, data=bytes(written))

    def fence(self, leader_epoch: int) -> None:
        """Refuse records that were fetched in another leader epoch."""
        self._leader_epoch = leader_epoch

    def append_as_follower(self, records: RecordBytes, leader_epoch: int | None = None) -> None:
        """Append batches of a leader; the first one may begin before the end of an empty log.

        A leader whose log starts in the middle of a batch sends the whole batch.
        """
        self._check_writable()
        if leader_epoch not in (None, self._leader_epoch):
            raise RecordsRefusedError(Errors.FENCED_LEADER_EPOCH, f"{leader_epoch} has ended")
        is_empty = self._start == self._end
        for position, header in headers_of(records, may_be_cut=True):
            check_follows(header, self._end, may_overlap=is_empty)
            self._append(memoryview(records)[position : position + header.size])
            is_empty = False

    def _append(self, data: RecordBytes) -> None:
        for position, header in headers_of(data):
            batch = stored_batch(header, bytes(data[position : position + header.size]))
            if header.attributes & CONTROL_MASK:
                marker_of(batch.data)  # it must be well-formed
            if batch.leader_epoch >= 0:
                self._assign(batch.leader_epoch, max(batch.base_offset, self._start))
            self.batches.append(batch)
            self._end = batch.last_offset + 1
            self._sequences.add(header, batch.data)
            self._has_transactions |= bool(header.attributes & TRANSACTIONAL_MASK)

    def truncate_to(self, offset: int) -> None:
        """Remove the batches with records at or after ``offset``."""
        self._check_writable()
        self._cut(offset)

    def _cut(self, offset: int) -> None:
        kept = bisect.bisect_left(self.batches, offset, key=lambda batch: batch.last_offset)
        end = min(offset, self._end)
        if kept < len(self.batches):
            end = min(end, self.batches[kept].base_offset)
        del self.batches[kept:]
        self.damaged = {base_offset for base_offset in self.damaged if base_offset < end}
        self._end = end
        self.checkpointed_high_watermark = min(self.checkpointed_high_watermark, end)
        self._start = min(self._start, end)
        self.epochs = [(epoch, start) for epoch, start in self.epochs if start < end]
        self._sequences.truncate_to(end)
        if self._has_transactions:
            self._sequences = ProducerSequences()
            for batch in self.batches:
                ((_, header),) = headers_of(batch.data)
                self._sequences.add(header, batch.data)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Remove all records."""
        self._check_writable()
        self.batches = []
        self.damaged = set()
        self.epochs = []
        self._start = self._end = offset
        self.checkpointed_high_watermark = min(self.checkpointed_high_watermark, offset)
        self._sequences = ProducerSequences()

    def advance_log_start_offset(self, offset: int) -> None:
        """Hide the records below ``offset``."""
        self._check_writable()
        if offset <= self._start:
            return
        assert offset <= self._end, f"{offset} is beyond the end, {self._end}"
        self._start = offset
        before = [epoch for epoch, start in self.epochs if start <= offset]
        after = [(epoch, start) for epoch, start in self.epochs if start > offset]
        self.epochs = [*((epoch, offset) for epoch in before[-1:]), *after]

    # --- reading ---

    def read(self, offset: int, max_bytes: int, limit: int, *, at_least_one: bool) -> Records:
        """Return whole batches, from the one with ``offset`` up to ``limit``."""
        self._check_readable()
        self._check_has_descriptor()
        assert self._start <= offset <= self._end, f"{offset} is not in {self._start}..{self._end}"
        first = bisect.bisect_left(self.batches, offset, key=lambda batch: batch.last_offset)
        found: list[bytes] = []
        left = max_bytes
        for batch in self.batches[first:]:
            is_too_much = len(batch.data) > left and not (at_least_one and not found)
            if batch.last_offset >= limit or is_too_much:
                break
            if batch.base_offset in self.damaged:
                if found:
                    break
                raise DamagedRecordsError(f"{self.topic_partition}: at {batch.base_offset}")
            found.append(batch.data)
            left -= len(batch.data)
        return MemoryRecords(b"".join(found)) if found else NO_RECORDS

    def prefetch(self, offset: int, max_bytes: int) -> Callable[[], None] | None:
        """Return a call that does nothing if the records count as only on the disk."""
        on_disk = self.batches[: max(0, len(self.batches) - self.batches_in_memory)]
        is_in_memory = not on_disk or offset > on_disk[-1].last_offset
        return None if is_in_memory else lambda: None

    def end_of_segment(self, offset: int) -> int:
        """Return the end of the log: it has one segment."""
        return self.log_end_offset

    def first_unstable_offset(self, high_watermark: int) -> int | None:
        """Look through all batches."""
        if not self._has_transactions:
            return None
        return first_unstable_offset((batch.data for batch in self.batches), high_watermark)

    def aborted_transactions(
        self, offset: int, records: Records
    ) -> Sequence[AbortedTransactionStart]:
        """Look through all batches."""
        if not self._has_transactions or not records.size:
            return ()
        _, last = headers_of(records.read())[-1]
        return aborted_between((batch.data for batch in self.batches), offset, last.last_offset + 1)

    def offset_of_timestamp(
        self, timestamp_ms: int, limit: int, from_offset: int = 0
    ) -> OffsetOfTimestamp | None:
        """Return the first record at or after a time, or the one with the greatest time."""
        self._check_readable()
        start = max(self._start, from_offset)
        batches = [b for b in self.batches if start <= b.last_offset < limit]
        if timestamp_ms == MAX_TIMESTAMP:
            timestamp_ms = max((batch.max_timestamp for batch in batches), default=NO_TIMESTAMP)
        for batch in batches:
            if batch.max_timestamp >= timestamp_ms:
                is_first = batch.base_timestamp >= timestamp_ms
                time_ms = batch.base_timestamp if is_first else batch.max_timestamp
                return OffsetOfTimestamp(time_ms, max(batch.base_offset, start), batch.leader_epoch)
        return None

    def offsets_before(self, timestamp_ms: int, count: int) -> Sequence[int]:
        """Return the end of the log and its start; the only segment is written to all the time."""
        self._check_readable()
        is_past = timestamp_ms < TIMESTAMP_MS
        return [] if is_past else sorted({self._start, self._end}, reverse=True)[:count]

    # --- failures ---

    @property
    def damageable(self) -> Sequence[StoredBatch]:
        """The batches that may be damaged."""
        return self.batches

    def damage(self, base_offset: int) -> None:
        """Change the bytes of a batch."""
        self.damaged.add(base_offset)

    def _check_readable(self) -> None:
        if self.is_offline:
            raise StorageError(f"{self.topic_partition}: its log directory has failed")
        if self.is_out_of_service:
            raise StorageError(f"{self.topic_partition}: its records are damaged")

    def _check_writable(self) -> None:
        if self.is_unwritable:
            self.is_offline = True
        self._check_readable()
        self._check_has_descriptor()

    def _check_has_descriptor(self) -> None:
        if self.is_short:
            raise ShortageError(f"{self.topic_partition}: Too many open files")


class MemoryDeletedLogs:
    """Implements ``core.replica_logs.DeletedReplicaLogs``; ``purge`` deletes what is not held."""

    def __init__(self) -> None:
        self._logs: dict[tuple[TopicPartition, TopicId], MemoryLog] = {}
        self._held: set[tuple[TopicPartition, TopicId]] = set()

    def add(self, log: MemoryLog, *, is_whole: bool) -> None:
        """Offer a log that was just deleted, if it is whole, and no earlier one."""
        assert log.topic_id is not None
        key = log.topic_partition, log.topic_id
        self._held.discard(key)
        self._logs.pop(key, None)
        if is_whole:
            self._logs[key] = log

    def hold(self, topic_partition: TopicPartition, topic_id: TopicId) -> bool:
        """Keep a log."""
        key = topic_partition, topic_id
        if key in self._logs:
            self._held.add(key)
        return key in self._logs

    def take(
        self, topic_partition: TopicPartition, topic_id: TopicId | None, *, is_new: bool
    ) -> MemoryLog | None:
        """Return a log that is used again, and forget it."""
        if topic_id is None:
            return None
        key = topic_partition, topic_id
        log, is_held = self._logs.pop(key, None), key in self._held
        self._held.discard(key)
        if log is not None:
            log.stray_high_watermark = log.checkpointed_high_watermark if is_held else -1
        return log if is_held or not is_new else None

    def is_held(self, topic_partition: TopicPartition, topic_id: TopicId) -> bool:
        """Whether this process keeps a log, or lost it with its directory."""
        return (topic_partition, topic_id) in self._held

    def fail(self, is_lost: Callable[[TopicPartition], bool]) -> None:
        """Lose logs with their directory, also those that are held."""
        self._logs = {key: log for key, log in self._logs.items() if not is_lost(key[0])}

    def start(self) -> None:
        """Begin the time of another process."""
        self._held &= self._logs.keys()

    def purge(self) -> None:
        """Delete the logs that are not held: their time is over, or the machine lost power."""
        self._logs = {key: log for key, log in self._logs.items() if key in self._held}


class MemoryLogs(NotesInMemory):
    """Implements ``core.replica_logs.ReplicaLogs``; it exists longer than the process.

    ``aside`` are the partitions whose logs were set aside, in sequence.
    """

    def __init__(
        self,
        configs: Mapping[str, LogConfig] | None = None,
        *,
        defaults: LogConfig = DEFAULT_LOG_CONFIG,
        wall_clock_ms: Callable[[], int] = lambda: TIMESTAMP_MS,
    ) -> None:
        super().__init__()
        self.has_failed = False  # some directory
        self.deleted = MemoryDeletedLogs()
        self.aside: list[TopicPartition] = []
        self.suspect: set[TopicPartition] = set()
        self.suspect_changes = 0
        self.is_new = False  # some directory: its former content is unknown
        self._logs: dict[TopicPartition, MemoryLog] = {}
        self._removed: set[TopicPartition] = set()  # while a directory had failed
        self._defaults = defaults
        self._configs = dict(configs or {})
        self.wall_clock_ms = wall_clock_ms

    def crash(self) -> None:
        """Forget what a process notes in memory only: leader epochs without records."""
        for log in self._logs.values():
            log.forget_epoch_without_records()

    def log(self, topic_partition: TopicPartition) -> MemoryLog:
        """Return a log that must exist, possibly offline."""
        return self._logs[topic_partition]

    def make_log(self, topic_partition: TopicPartition, topic_id: TopicId | None) -> MemoryLog:
        """Return a new log."""
        topic = topic_partition.topic
        return MemoryLog(
            topic_partition, topic_id, lambda: self.config_of(topic), self.wall_clock_ms
        )

    def config_of(self, topic: str) -> LogConfig:
        """Return the configuration of a topic."""
        return self._configs.get(topic, self._defaults)

    def configure(self, configs: Mapping[str, LogConfig]) -> None:
        """Set the configurations of some topics."""
        self._configs.update(configs)

    def set_defaults(self, defaults: LogConfig) -> None:
        """Set the configuration of other topics."""
        self._defaults = defaults

    def fail(self, partitions: Collection[TopicPartition]) -> None:
        """Let the directory of these logs fail."""
        self.has_failed = True
        for name in partitions:
            self._logs[name].is_offline = True

    def replace_failed(self) -> None:
        """Replace the failed directory by an empty one."""
        self.is_new |= self.has_failed
        self.has_failed = False
        self._removed.clear()
        for name in [n for n, log in self._logs.items() if log.is_offline]:
            self._remove(name)

    # --- ReplicaLogs ---

    def hosted(self) -> Mapping[TopicPartition, TopicId | None]:
        """Return every log and the topic id for which it was created."""
        return {name: log.topic_id for name, log in self._logs.items()}

    def get(self, topic_partition: TopicPartition) -> MemoryLog | None:
        """Return a log that exists and is in service."""
        log = self._logs.get(topic_partition)
        return None if log is None or log.is_offline or log.is_out_of_service else log

    def get_or_create(
        self, topic_partition: TopicPartition, topic_id: TopicId | None, *, is_new: bool
    ) -> MemoryLog:
        """Return the log, or a new one unless it may exist in a failed directory."""
        log = self._logs.get(topic_partition)
        if (log is None and self.has_failed and not is_new) or self.is_offline(topic_partition):
            raise StorageError(f"{topic_partition}: its log directory has failed")
        if log is None:
            former = self.deleted.take(topic_partition, topic_id, is_new=is_new)
            log = former or self.make_log(topic_partition, topic_id)
            log.lacks_records |= former is None and not is_new
            self._logs[topic_partition] = log
            self._removed.discard(topic_partition)
            self.suspect_changes += not self.knows_all
        if log.topic_id is None:
            log.topic_id = topic_id
        return log

    def delete(
        self, topic_partition: TopicPartition, *, deleted_topic: TopicId | None = None
    ) -> None:
        """Delete the log, unless its directory has failed."""
        log = self._logs.get(topic_partition)
        if log is not None and (log.is_offline or log.is_unwritable):
            log.is_offline = self.has_failed = True
            raise StorageError(f"{topic_partition}: its log directory has failed")
        is_whole = log is not None and not (self.is_suspect(topic_partition) or log.lacks_records)
        self._remove(topic_partition)
        if log is not None and deleted_topic is not None and log.topic_id == deleted_topic:
            self.deleted.add(log, is_whole=is_whole)

    def set_aside(self, topic_partition: TopicPartition) -> None:
        """Set the log aside, unless its directory has failed."""
        self.aside.append(topic_partition)
        is_damaged = self.is_damaged(topic_partition)
        stays = self.suspect & {topic_partition} if is_damaged else set()
        if is_damaged or not self.is_offline(topic_partition):
            self._remove(topic_partition)
        self.suspect |= stays

    def mark_whole(self, topic_partition: TopicPartition) -> None:
        """Note that a log has every record."""
        if topic_partition in self._logs:
            self._logs[topic_partition].lacks_records = False

    def mark_damaged(self, topic_partition: TopicPartition, reason: str) -> None:
        """Take a log out of service."""
        log = self._logs.get(topic_partition)
        if log is not None:
            log.is_out_of_service = True

    def is_offline(self, topic_partition: TopicPartition) -> bool:
        """Whether the log was in a directory that failed, or is damaged."""
        log = self._logs.get(topic_partition)
        return log is not None and (log.is_offline or log.is_out_of_service)

    def is_damaged(self, topic_partition: TopicPartition) -> bool:
        """Whether the log is damaged, in a directory that works."""
        log = self._logs.get(topic_partition)
        return log is not None and log.is_out_of_service and not log.is_offline

    def may_be_offline(self, topic_partition: TopicPartition) -> bool:
        """Whether an unknown log may be in the failed directory."""
        is_known = topic_partition in self._logs or topic_partition in self._removed
        return self.has_failed and not is_known

    def topic_id(self, topic_partition: TopicPartition) -> TopicId | None:
        """Return the topic id of a log, also of a failed one."""
        log = self._logs.get(topic_partition)
        return None if log is None else log.topic_id

    def checkpointed_high_watermark(self, topic_partition: TopicPartition) -> int:
        """Return the checkpointed high watermark; 0 by default."""
        log = self._logs.get(topic_partition)
        return 0 if log is None else log.checkpointed_high_watermark

    def checkpoint_high_watermarks(self, high_watermarks: Mapping[TopicPartition, int]) -> None:
        """Checkpoint high watermarks; here what is noted is durable at once."""
        self.note_high_watermarks(high_watermarks)

    def note_high_watermarks(self, high_watermarks: Mapping[TopicPartition, int]) -> None:
        """Note high watermarks, except for those in failed directories."""
        for name, high_watermark in high_watermarks.items():
            log = self.get(name)
            if log is not None:
                log.checkpointed_high_watermark = min(high_watermark, log.log_end_offset)

    # --- replicas that may have lost committed records ---

    @property
    def knows_all(self) -> bool:
        """Whether every directory works, and is not new."""
        return not self.is_new and not self.has_failed

    @property
    def has_suspects(self) -> bool:
        """Whether any replica is suspect."""
        return bool(self._all_suspect())

    def suspects(self) -> SuspectReplicas:
        """Return the suspect replicas and their log end offsets."""
        suspect = self._all_suspect()
        sound = {name for name in self._logs if self.get(name) is not None} - suspect
        ends = {name: self._end_of(name) for name in sorted(suspect)}
        return SuspectReplicas(ends, None if self.knows_all else frozenset(sound))

    def _all_suspect(self) -> set[TopicPartition]:
        return self.suspect | {name for name, log in self._logs.items() if log.is_out_of_service}

    def _end_of(self, name: TopicPartition) -> LogEnd:
        log = self.get(name)
        if log is None:
            return NO_LOG_END
        return LogEnd(log.batches[-1].leader_epoch if log.batches else -1, log.log_end_offset)

    def is_suspect(self, topic_partition: TopicPartition) -> bool:
        """Whether a replica is suspect."""
        return topic_partition in self._all_suspect()

    def note_lost(
        self, topic_partitions: Collection[TopicPartition], *, are_all: bool = True
    ) -> None:
        """Mark replicas as suspect; if ``are_all``, all others are known to be sound."""
        if not self.has_failed:
            self.suspect.update(topic_partitions)
            self.is_new &= not are_all
            self.suspect_changes += 1

    def mark_suspect(self, topic_partition: TopicPartition) -> None:
        """Mark a replica with a log as suspect."""
        if topic_partition in self._logs and topic_partition not in self.suspect:
            self.suspect.add(topic_partition)
            self.suspect_changes += 1

    def mark_sound(self, topic_partition: TopicPartition) -> None:
        """Mark a replica as sound."""
        self.suspect.discard(topic_partition)
        self.suspect_changes += 1

    def save_suspects(self) -> None:
        """Do nothing: the logs exist longer than the process."""

    def _remove(self, name: TopicPartition) -> None:
        self.suspect_changes += name in self._all_suspect()
        self.suspect.discard(name)
        if self._logs.pop(name, None) is not None and self.has_failed:
            self._removed.add(name)


def _writable(records: RecordBytes) -> bytearray | memoryview:
    if isinstance(records, bytes) or (isinstance(records, memoryview) and records.readonly):
        return bytearray(records)
    return records
