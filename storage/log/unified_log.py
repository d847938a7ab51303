"""One partition's log on disk. Mirrors ``kafka.log.UnifiedLog``.

Every method takes the log's own lock, because retention and flushing run on another thread than
appending. Slow work, which is waiting for the disk and deleting files, is done without the lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from regent.core.errors import DamagedRecordsError, ShortageError, StorageError
from regent.core.log_config import LogConfig
from regent.core.model import NO_EPOCH, LogEnd, TopicPartition
from regent.core.protocol.control import TopicId
from regent.core.records import NO_RECORDS, RecordBytes, Records
from regent.core.replica_logs import (
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
from regent.records.record_batch import (
    batches_of_leader,
    batches_of_producer,
    check_leader_epoch,
    read_header,
    writable,
)
from regent.storage.checkpoints import PARTITION_METADATA, LogCheckpoints, write_topic_id
from regent.storage.files import sync_files
from regent.storage.log.log_contents import LogContents
from regent.storage.log.log_file import CorruptSegmentError, FileRecords
from regent.storage.log.log_loader import CheckpointedOffsets, load_log
from regent.storage.log.log_segment import LogSegment
from regent.storage.log_directory import LogDirectory

NEVER_STRAY = -1


class UnifiedLog:
    """Implements ``core.replica_logs.PartitionLog``.

    ``checkpointed_high_watermark`` is what the next checkpoint of the directory will have.
    Retention keeps records beyond it.
    ``stray_high_watermark``: of a stray log that this process uses again, when it was renamed.
    ``on_damaged`` is called once, when the log becomes unusable because of damaged records.
    ``on_unverified_read`` is called, under the lock, for each read of a closed segment that is not
    verified. ``checkpoints``: those of the directory, which are wrong after a truncation that
    dropped flushed segments or cleaned records, or lowered the log start offset or the high
    watermark; they are written before new records are appended. ``note_end`` is called with the
    log end offset after an append, before any other part sees it.
    """

    def __init__(
        self,
        topic_partition: TopicPartition,
        directory: LogDirectory,
        contents: LogContents,
        topic_id: TopicId | None,
        *,
        wall_clock_ms: Callable[[], int],
        on_damaged: Callable[[UnifiedLog], None],
        on_unverified_read: Callable[[UnifiedLog, LogSegment], None],
        checkpoints: LogCheckpoints,
        note_end: Callable[[int], None],
    ) -> None:
        self.topic_partition = topic_partition
        self.directory = directory
        self.checkpointed_high_watermark = 0
        self.stray_high_watermark = NEVER_STRAY
        self._contents = contents
        self._topic_id = topic_id
        self._wall_clock_ms = wall_clock_ms
        self._on_damaged = on_damaged
        self._on_unverified_read = on_unverified_read
        self._checkpoints = checkpoints
        self._is_lowered = False  # the lower high watermark is not in the checkpoint yet
        self._note_end = note_end
        self._lock = threading.RLock()
        self._unusable = ""  # the reason; empty: it is usable
        self._is_half_cut = False  # a truncation was interrupted
        self._leader_epoch = NO_EPOCH  # in which records may be fetched
        self._truncations = 0  # count; ``flush``, without lock, detects a truncation by it
        self._dropped: list[tuple[int, LogSegment]] = []  # renamed, with the time to delete them
        self._flushed_at_ms = wall_clock_ms()

    def __repr__(self) -> str:
        return f"Log({self.topic_partition}, {self.directory.path})"

    @property
    def path(self) -> Path:
        """Its directory."""
        return self._contents.path

    @property
    def topic_id(self) -> TopicId | None:
        """The topic it was created for."""
        return self._topic_id

    @property
    def config(self) -> LogConfig:
        """The settings of its topic."""
        return self._contents.config

    @property
    def log_start_offset(self) -> int:
        """The offset of the first record."""
        return self._contents.log_start_offset

    @property
    def log_end_offset(self) -> int:
        """The offset the next record will have."""
        return self._contents.log_end_offset

    @property
    def end(self) -> LogEnd:
        """The log end offset, and the leader epoch of the last record. Raises ``StorageError``."""
        with self.exclusively() as contents:
            end = contents.log_end_offset
            return LogEnd(contents.epochs.epoch_for(end - 1), end)

    @property
    def recovery_point(self) -> int:
        """The offset up to which everything is flushed."""
        return self._contents.recovery_point

    @property
    def has_new_files(self) -> bool:
        """Whether the names of some files are perhaps not on the disk yet."""
        return self._contents.has_new_files

    @property
    def why_unusable(self) -> str:
        """Why it cannot be used although its directory is live; empty: it can."""
        return self._unusable

    @property
    def is_usable(self) -> bool:
        """Whether its directory is live, and it is neither damaged nor closed."""
        return not self._unusable and not self.directory.is_offline

    @property
    def size(self) -> int:
        """The size of its records in bytes."""
        with self._lock:
            return self._contents.size

    def configure(self, config: LogConfig) -> None:
        """Change the settings."""
        with self._lock:
            self._contents.configure(config)

    def assign_topic_id(self, topic_id: TopicId) -> None:
        """Set the topic id of a log that has none. Raises ``StorageError``."""
        with self.exclusively() as contents:
            write_topic_id(self.path, topic_id, is_synced=contents.log_end_offset > 0)
            self._topic_id = topic_id
            self._contents.has_new_files = True

    # --- leader epochs ---

    @property
    def latest_epoch(self) -> int:
        """The newest leader epoch in the log; -1 if there is none. Raises ``StorageError``."""
        with self.exclusively() as contents:
            return contents.epochs.latest_epoch

    def epoch_for(self, offset: int) -> int:
        """Return the leader epoch of the record at an offset; -1: unknown."""
        with self.exclusively() as contents:
            return contents.epochs.epoch_for(offset)

    def end_offset_for_epoch(self, leader_epoch: int) -> EpochEndOffset:
        """Return the newest epoch up to ``leader_epoch`` and where it ends."""
        with self.exclusively() as contents:
            return contents.epochs.end_offset_for(leader_epoch, contents.log_end_offset)

    def assign_epoch(self, leader_epoch: int) -> None:
        """Begin a leader epoch at the end. It is written with the first records, or at the close.

        A crash may lose an epoch without records, which no replica asks for.
        """
        with self.exclusively() as contents:
            contents.epochs.assign(leader_epoch, contents.log_end_offset)
            self._leader_epoch = NO_EPOCH  # nothing that was fetched before is appended

    # --- writing ---

    def last_of_producer(self, producer_id: int) -> LastOfProducer | None:
        """Return the last batch of an idempotent producer, if it is known."""
        with self._lock:
            return self._contents.producers.last(producer_id)

    def begin_verification(self, records: RecordBytes) -> int:
        """Begin to verify that a batch is part of a transaction; return a guard."""
        with self.exclusively() as contents:
            header = read_header(records)
            return contents.producers.begin_verification(header, self._wall_clock_ms())

    def active_producers(self) -> Sequence[ActiveProducer]:
        """Return all idempotent producers that are known."""
        with self._lock:
            return self._contents.producers.active()

    def producer_summary(self, max_timeout_ms: int) -> ProducerSummary:
        """Count the idempotent producers."""
        return self._contents.producers.summary(self._wall_clock_ms(), max_timeout_ms)

    def append_as_leader(
        self,
        records: RecordBytes,
        leader_epoch: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        guard: int | None = None,
    ) -> AppendedRecords:
        """Check batches from a producer, give them offsets and the epoch, and append them."""
        now_ms = self._wall_clock_ms()
        config = self.config
        batches = batches_of_producer(records, config, now_ms, origin)
        with self.exclusively() as contents:
            duplicate = contents.check(records, batches, origin, guard)
            if duplicate is not None:
                time_ms = duplicate.timestamp if config.stamps_append_time else NO_TIMESTAMP
                first, last = duplicate.first_offset, duplicate.last_offset
                return AppendedRecords(first, last, time_ms, is_duplicate=True)
            self.directory.space.check(origin)
            buffer = writable(records)
            time_ms = now_ms if config.stamps_append_time else NO_TIMESTAMP
            placed = contents.place(buffer, batches, origin, leader_epoch, time_ms)
            self._prepare_append()
            contents.append(buffer, placed, now_ms)
            self._note_end(contents.log_end_offset)
            first, last = placed[0][1].base_offset, contents.log_end_offset - 1
            result = AppendedRecords(first, last, time_ms, data=buffer)
        if self._contents.has_many_unflushed:
            self.flush()
        return result

    def fence(self, leader_epoch: int) -> None:
        """Refuse records that were fetched in another leader epoch, from now on."""
        with self._lock:
            self._leader_epoch = leader_epoch

    def append_as_follower(self, records: RecordBytes, leader_epoch: int | None = None) -> None:
        """Append all whole batches fetched from a leader, or none if one is refused."""
        with self.exclusively() as contents:
            check_leader_epoch(leader_epoch, self._leader_epoch)
            end = contents.log_end_offset
            batches = batches_of_leader(records, end, may_overlap=end == contents.log_start_offset)
            if not batches:
                return
            now_ms = self._wall_clock_ms()
            if batches[0][1].base_offset < end:
                # The leader's log starts inside a batch: Kafka's UnexpectedAppendOffsetException.
                self._drop(lambda: contents.restart_at(batches[0][1].base_offset, now_ms))
            self._prepare_append()
            position, last = batches[-1]
            whole = memoryview(records)[: position + last.size]
            contents.append(whole, batches, now_ms)
            self._note_end(contents.log_end_offset)
        if self._contents.has_many_unflushed:
            self.flush()

    def truncate_to(self, offset: int) -> None:
        """Drop the records from ``offset`` on, with their epochs and producer state."""
        with self.exclusively() as contents:
            now_ms = self._wall_clock_ms()
            self._drop(lambda: contents.truncate_to(max(offset, 0), now_ms))

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Drop everything; the next record will have ``offset``."""
        with self.exclusively() as contents:
            self._flush_topic_id()
            self._drop(lambda: contents.begin_at(offset, self._wall_clock_ms()))

    def advance_log_start_offset(self, offset: int) -> None:
        """Raise the log start offset; ignore a lower one."""
        with self.exclusively() as contents:
            if offset > contents.log_start_offset:
                contents.advance_log_start_offset(min(offset, contents.log_end_offset))

    # --- reading ---

    def read(self, offset: int, max_bytes: int, limit: int, *, at_least_one: bool) -> Records:
        """Return complete batches from the one that holds ``offset`` to before ``limit``."""
        with self.reading() as contents:
            for segment, end in contents.spans_from(offset):
                if offset >= contents.log_start_offset:  # retention may have raised it
                    contents.check_next_segment(offset, segment)
                check_to = end if self._is_doubtful(segment, offset) else None
                records = segment.read(
                    offset, max_bytes, limit, at_least_one=at_least_one, check_to=check_to
                )
                if isinstance(records, FileRecords):
                    return replace(records, directory=self.directory)
                if records is not None:
                    return records
        return NO_RECORDS

    def prefetch(self, offset: int, max_bytes: int) -> Callable[[], None] | None:
        """Return the work after which a read does not wait for the disk; None: it would not."""
        with self.reading() as contents:
            return contents.segments_from(offset)[0].prefetch(offset, max_bytes)

    def end_of_segment(self, offset: int) -> int:
        """Return the offset at which the segment that ``read`` reads from ends."""
        with self.reading() as contents:
            return next(end for _, end in contents.spans_from(offset))

    def first_unstable_offset(self, high_watermark: int) -> int | None:
        """Return the first offset of a transaction that may still end either way; None: none."""
        with self._lock:
            if self._is_half_cut:
                return 0  # it is unknown until the log is whole
            return self._contents.producers.first_unstable_offset(high_watermark)

    def aborted_transactions(
        self, offset: int, records: Records
    ) -> Sequence[AbortedTransactionStart]:
        """Return the aborted transactions among records read from ``offset`` on, or some more."""
        with self.reading() as contents:
            return contents.aborted_transactions(offset, records) if records.size else ()

    def offset_of_timestamp(
        self, timestamp_ms: int, limit: int, from_offset: int = 0
    ) -> OffsetOfTimestamp | None:
        """Return the first record at or after a time, or with the greatest, before ``limit``."""
        with self.reading() as contents:
            return contents.offset_of_timestamp(timestamp_ms, limit, from_offset)

    def offsets_before(self, timestamp_ms: int, count: int) -> list[int]:
        """Return offsets at which segments begin or the log ends."""
        with self.reading() as contents:
            return contents.offsets_before(timestamp_ms, count, self._wall_clock_ms())

    # --- in the background ---

    def delete_old_segments(self, now_ms: int) -> int:
        """Apply retention, return how many segments were dropped, and close idle files."""
        with self.reading() as contents:
            contents.expire_producers(now_ms)
            count = contents.count_to_delete(self.checkpointed_high_watermark, now_ms)
            if count:
                self._delete_later(contents.drop_first(count, now_ms), now_ms)
            contents.close_idle()
            return count

    def delete_dropped_files(self, now_ms: int) -> list[int]:
        """Delete the files whose ``file.delete.delay.ms`` are over; return when others are due."""
        with self._lock:
            dropped = [segment for due_ms, segment in self._dropped if due_ms <= now_ms]
            self._dropped = [entry for entry in self._dropped if entry[0] > now_ms]
            left_ms = [due_ms for due_ms, _ in self._dropped]
        with self.directory:
            for segment in dropped:
                segment.delete()
        return left_ms

    @property
    def last_stable_offset(self) -> int:
        """All records before it are committed, none in an open transaction, by the checkpoint."""
        with self._lock:
            limit = self.checkpointed_high_watermark
            first_unstable = self._contents.producers.first_unstable_offset(limit)
            return limit if first_unstable is None else min(limit, first_unstable)

    @property
    def first_dirty(self) -> int:
        """The offset up to which the log was cleaned, or ``NEVER_CLEANED``."""
        return self._contents.first_dirty

    @property
    def truncations(self) -> int:
        """How often it was truncated: work without the lock that began before is void."""
        return self._truncations

    def note_cleaned(self, first_dirty: int, truncations: int) -> bool:
        """Set up to where the log was cleaned; False: it was truncated since, and nothing is set.

        Its segments may have gaps between them from now on.
        """
        with self.exclusively() as contents:
            if truncations != self._truncations:
                return False
            contents.is_compacted, contents.first_dirty = True, first_dirty
            return True

    def replace_segments(
        self, cleaned: LogSegment, replaced: Sequence[LogSegment], truncations: int
    ) -> bool:
        """Put a cleaned segment, which is flushed, in the place of those that it was made of.

        Return False, without any change, if the log was truncated or lost one of them since.
        """
        with self.exclusively() as contents:
            if truncations != self._truncations or not contents.replace(cleaned, replaced):
                return False
            self._delete_later(replaced, self._wall_clock_ms())
        self._flush_names()
        return True

    def flush_if_due(self, now_ms: int) -> None:
        """Flush complete segments, and the active one if ``flush.ms`` has passed."""
        contents = self._contents
        if contents.recovery_point >= contents.log_end_offset:
            return
        if now_ms - self._flushed_at_ms >= contents.config.flush_ms:
            self.flush()
        elif contents.recovery_point < contents.active.base_offset:
            self.flush(is_active_too=False)

    def flush(self, *, is_active_too: bool = True) -> None:
        """Wait until all records are on the disk; then raise the recovery point.

        Flush only complete segments unless ``is_active_too``. Appends continue during the wait.
        """
        with self.exclusively() as contents:
            truncations = self._truncations
            end = contents.log_end_offset if is_active_too else contents.active.base_offset
            segments = list(contents.segments_from(contents.recovery_point))
            if not is_active_too:
                segments.remove(contents.active)
            contents.epochs.flush()
            has_new_files, contents.has_new_files = contents.has_new_files, False
        try:
            for segment in segments:
                self._flush_segment(segment)
            if has_new_files:
                self._flush_names()
        except ShortageError:
            contents.has_new_files |= has_new_files
            raise
        with self._lock:
            self._flushed_at_ms = self._wall_clock_ms()
            if truncations == self._truncations:
                contents.recovery_point = max(contents.recovery_point, end)

    def close(self) -> None:
        """Flush, write indexes and a producer snapshot, and close the files.

        Raises ``StorageError``. All later calls raise it too.
        """
        if self.recovery_point < self.log_end_offset:
            self.flush()
        with self.exclusively() as contents:
            if contents.recovery_point < contents.log_end_offset:
                self.flush()  # for appends during the first flush
            contents.close()
            self._unusable = "closed"

    @contextmanager
    def locked(self) -> Iterator[LogContents]:
        """Hold the lock of a whole log: errors inside are not its own. Raises ``StorageError``."""
        with self._lock:
            with self.exclusively():
                pass  # if a truncation was interrupted, the log is opened again
            yield self._contents

    def move_to(self, path: Path) -> None:
        """Note that its directory was renamed; the caller holds the lock."""
        self._contents.move_to(path)
        for _, segment in self._dropped:
            segment.move_to(path)

    def retire(self) -> None:
        """Refuse all later calls: the directory is about to be renamed."""
        with self._lock:
            self._unusable = "deleted"

    def mark_damaged(self, reason: str) -> None:
        """Refuse all later calls because the log is damaged, and call ``on_damaged``."""
        with self._lock:
            if not self.is_usable:
                return
            self._unusable = f"damaged: {reason}"
        self._on_damaged(self)

    @contextmanager
    def exclusively(self) -> Iterator[LogContents]:
        """Hold the lock, and attribute an error to this log or to its directory."""
        with self._lock:
            if self._unusable:
                raise StorageError(f"{self.topic_partition}: the log is {self._unusable}")
            try:
                with self.directory:
                    if self._is_half_cut:
                        self._open_again()
                    yield self._contents
            except CorruptSegmentError as error:
                self.mark_damaged(str(error))
                raise

    @contextmanager
    def reading(self) -> Iterator[LogContents]:
        """Hold the lock; damage ends this use of the log only. Raises ``DamagedRecordsError``."""
        with self.exclusively() as contents:
            try:
                yield contents
            except CorruptSegmentError as error:
                raise DamagedRecordsError(str(error)) from None

    # --- inside ---

    def _is_doubtful(self, segment: LogSegment, offset: int) -> bool:
        """Whether a read of a segment from ``offset`` on needs a check of the CRCs."""
        contents = self._contents
        if segment is contents.active:
            is_ours = max(offset, segment.base_offset) >= contents.trusted_from
            return not is_ours and not segment.is_verified()
        if segment.is_verified():
            return False
        self._on_unverified_read(self, segment)
        return True

    def _drop(self, cut: Callable[[], list[LogSegment]]) -> None:
        """Drop records with ``cut``, and remove them from the checkpoints.

        If ``cut`` fails because there is no file descriptor, reopen the log before its next use.
        """
        contents = self._contents
        recovery_point, start = contents.recovery_point, contents.log_start_offset
        first_dirty = contents.first_dirty
        self._note_end(0)  # until the truncation is done, no record counts as missing
        self._is_half_cut = True
        dropped = cut()
        self._delete_later(dropped, self._wall_clock_ms())
        is_less_flushed = bool(dropped) and contents.recovery_point < recovery_point
        is_less_clean = contents.first_dirty < first_dirty
        is_lower = is_less_flushed or is_less_clean or contents.log_start_offset < start
        self._on_cut(is_noted=is_lower)

    def _delete_later(self, dropped: Sequence[LogSegment], now_ms: int) -> None:
        due_ms = now_ms + self._contents.config.file_delete_delay_ms
        self._dropped += [(due_ms, segment) for segment in dropped]

    def _open_again(self) -> None:
        """Load the log as after a crash, because a truncation was interrupted."""
        stopped = self._contents
        self._contents, _ = load_log(
            self.path,
            stopped.config,
            CheckpointedOffsets(
                stopped.log_start_offset, stopped.recovery_point, stopped.first_dirty
            ),
            was_closed_cleanly=False,
            now_ms=self._wall_clock_ms(),
            files=stopped.files,
        )
        self._on_cut(is_noted=True)

    def _on_cut(self, *, is_noted: bool) -> None:
        """Finish a truncation; ``is_noted``: the checkpoints contain dropped offsets."""
        self._note_end(log_end_offset := self._contents.log_end_offset)
        self._truncations += 1
        if log_end_offset < self.checkpointed_high_watermark:
            self.checkpointed_high_watermark = log_end_offset
            self._is_lowered = True
            self._checkpoints.note_lowered()
        if is_noted:
            self._checkpoints.write_after_truncation()
        self._is_half_cut = False

    def _flush_segment(self, segment: LogSegment) -> None:
        try:
            with self._lock:  # its name must not change while it is opened
                if self._unusable or segment not in self._contents.segments:
                    return  # its files are deleted
                file = segment.open_file()
            segment.flush(file)
        except StorageError as error:
            if isinstance(error, CorruptSegmentError):
                self.mark_damaged(str(error))
            else:
                self.directory.judge(error)
            raise

    def _prepare_append(self) -> None:
        self._flush_topic_id()
        if self._is_lowered:
            self._checkpoints.write_lowered()
            self._is_lowered = False

    def _flush_topic_id(self) -> None:
        """Flush the topic id before the first append: records without it count as a new topic's."""
        if self._contents.log_end_offset == 0:
            sync_files(self.path / PARTITION_METADATA, self.path)

    def _flush_names(self) -> None:
        """Flush the directory entries of new files and of the log, and its topic id."""
        with self.directory:
            sync_files(self.path / PARTITION_METADATA, self.path, self.path.parent)
