"""The segments, leader epochs and producer state of a log, kept consistent with each other.

Mirrors ``kafka.log.LocalLog``, and the state that ``kafka.log.UnifiedLog`` adds to it, with its
retention (``deleteOldSegments``) and its search by timestamp (``fetchOffsetByTimestamp``). Not
thread-safe. ``storage.unified_log`` locks, validates what is appended, and handles failures.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

from regent.core.errors import BadDataError, Errors, RecordsRefusedError
from regent.core.log_config import LogConfig
from regent.core.records import RecordBytes, Records
from regent.core.replica_logs import (
    MAX_TIMESTAMP,
    AbortedTransactionStart,
    AppendOrigin,
    OffsetOfTimestamp,
)
from regent.records.end_transaction_marker import EndTransactionMarker, marker_of
from regent.records.record_batch import (
    INT32_MAX,
    NO_SEQUENCE,
    BatchHeader,
    PlacedBatch,
    place,
    place_restored,
)
from regent.storage.checkpoints import NEVER_CLEANED
from regent.storage.log.leader_epoch_file_cache import LeaderEpochFileCache
from regent.storage.log.log_file import CorruptSegmentError
from regent.storage.log.log_segment import LogSegment
from regent.storage.log.open_files import OpenFiles
from regent.storage.log.producer_state_manager import AppendedBatch, ProducerStateManager
from regent.storage.log.transaction_index import AbortedTransaction, TransactionIndex
from regent.storage.log_names import DELETED_SUFFIX, SWAP_SUFFIX


def are_missing(end: int, base_offset: int) -> bool:
    """Whether there was a segment between one that ends at ``end`` and one from ``base_offset`` on.

    A gap of more offsets than one segment can have was in the leader's log, which was compacted.
    """
    return end < base_offset <= end + INT32_MAX


@dataclass(slots=True)
class LogContents:
    """The parts of a log. ``segments`` is sorted and never empty; the last one is active.

    Records before ``recovery_point`` are flushed and survive a power failure. The checkpoint of the
    directory may have a higher one, up to ``noted_recovery_point``. Records of the active
    segment from ``trusted_from`` on were appended by this process. Each segment begins where the
    one before it ends, unless the log ``is_compacted``. The log cleaner has cleaned the records
    before ``first_dirty``; ``NEVER_CLEANED``: it did not begin yet. Methods that drop segments
    rename and return them; the caller deletes them later.
    """

    path: Path
    config: LogConfig
    segments: list[LogSegment]
    epochs: LeaderEpochFileCache
    producers: ProducerStateManager
    files: OpenFiles
    log_start_offset: int = 0
    log_end_offset: int = 0
    recovery_point: int = 0
    noted_recovery_point: int = 0
    trusted_from: int = 0
    first_dirty: int = NEVER_CLEANED
    is_compacted: bool = False  # a log cleaner, ours or Kafka's, took records out of it
    has_new_files: bool = False  # whose directory entries may not be flushed yet

    def __post_init__(self) -> None:
        """A log that was cleaned is compacted."""
        self.is_compacted |= self.first_dirty != NEVER_CLEANED

    @classmethod
    def create(cls, path: Path, config: LogConfig, now_ms: int, files: OpenFiles) -> LogContents:
        """Return an empty log. Raises ``StorageError``."""
        segment = LogSegment.create(path, 0, with_jitter(config), now_ms, files)
        epochs, producers = LeaderEpochFileCache(path), ProducerStateManager(path)
        return cls(path, config, [segment], epochs, producers, files, has_new_files=True)

    @property
    def active(self) -> LogSegment:
        """The segment that is appended to."""
        return self.segments[-1]

    @property
    def has_many_unflushed(self) -> bool:
        """Whether as many records are not flushed as ``flush.messages`` says."""
        return self.log_end_offset - self.recovery_point >= self.config.flush_messages

    @property
    def size(self) -> int:
        """The size of all records in bytes."""
        return sum(segment.size for segment in self.segments)

    def segments_from(self, offset: int) -> Sequence[LogSegment]:
        """Return the segment that may hold ``offset``, or else the first one, and all later."""
        return self.segments[max(0, self._count_up_to(offset) - 1) :]

    def spans_from(self, offset: int) -> Iterator[tuple[LogSegment, int]]:
        """Yield the segments of ``segments_from``, each with its exclusive end offset."""
        segments = self.segments_from(offset)
        for segment, after in zip_longest(segments, segments[1:]):
            yield segment, self.log_end_offset if after is None else after.base_offset

    def check_next_segment(self, end: int, after: LogSegment) -> None:
        """Raise ``CorruptSegmentError`` if segment ``after`` does not begin at offset ``end``."""
        if not self.is_compacted and are_missing(end, after.base_offset):
            raise self.missing(end, after.base_offset)

    def missing(self, start: int, end: int) -> CorruptSegmentError:
        """Return the error for offsets whose segment file is gone."""
        return CorruptSegmentError(
            f"{self.path}: offsets {start} to {end - 1} are missing: the segment file that held"
            " them is gone"
        )

    def count_to_delete(self, limit: int, now_ms: int) -> int:
        """Return how many of the first segments retention deletes; ``limit``: none beyond it."""
        return segments_to_delete(
            [
                SegmentSpan(end, segment.size, segment.largest_timestamp)
                for segment, end in self.spans_from(0)
            ],
            self.config,
            log_start_offset=self.log_start_offset,
            limit=limit,
            now_ms=now_ms,
        )

    def offset_of_timestamp(
        self, timestamp_ms: int, limit: int, from_offset: int
    ) -> OffsetOfTimestamp | None:
        """Return the first record at or after a time, or with the greatest, before ``limit``."""
        start = max(self.log_start_offset, from_offset)
        segments = self.segments_from(start)
        if timestamp_ms == MAX_TIMESTAMP:
            return _greatest(segments, start, limit)
        return _first_at_or_after(segments, timestamp_ms, start, limit)

    def offsets_before(self, timestamp_ms: int, count: int, now_ms: int) -> list[int]:
        """Return up to ``count`` offsets at which segments begin or the log ends, newest first."""
        segments = self.segments_from(self.log_start_offset)
        is_past = timestamp_ms < now_ms
        while segments and is_past and segments[-1].modified_ms > timestamp_ms:
            segments = segments[:-1]
        offsets = [max(segment.base_offset, self.log_start_offset) for segment in segments]
        if not is_past and self.active.size:
            offsets.append(self.log_end_offset)
        return offsets[::-1][:count]

    def configure(self, config: LogConfig) -> None:
        """Change the settings."""
        self.config = config
        for segment in self.segments:
            segment.config = with_jitter(config)

    def check(
        self,
        records: RecordBytes,
        batches: Sequence[PlacedBatch],
        origin: AppendOrigin,
        guard: int | None,
    ) -> AppendedBatch | None:
        """Check the producers of batches; return the original of a duplicate of a client.

        Raises ``RecordsRefusedError``.
        """
        if self._keeps_offsets(origin):
            return self._restored_before(batches)
        if origin is AppendOrigin.CLIENT:
            return self.producers.check([header for _, header in batches], guard)
        markers = _markers_in(records, batches)
        for position, header in batches:
            self.producers.check_of_coordinator(header, markers.get(position), guard)
        return None

    def place(
        self,
        buffer: bytearray | memoryview,
        batches: Sequence[PlacedBatch],
        origin: AppendOrigin,
        leader_epoch: int,
        append_time_ms: int,
    ) -> list[PlacedBatch]:
        """Set offsets and leader epoch in batches that are about to be appended.

        Raises ``RecordsRefusedError``.
        """
        end = self.log_end_offset
        if self._keeps_offsets(origin):
            return place_restored(buffer, batches, end, leader_epoch)
        return place(buffer, batches, end, leader_epoch, append_time_ms)

    def append(self, records: RecordBytes, batches: Sequence[PlacedBatch], now_ms: int) -> None:
        """Append batches at the log end offset, in a new segment if one is due.

        Raises ``RecordsRefusedError`` if a marker is not well-formed.
        """
        markers = _markers_in(records, batches)
        first, last = batches[0][1], batches[-1][1]
        newest = max(header.max_timestamp for _, header in batches)
        if self.active.should_roll(len(records), last.last_offset, newest, now_ms):
            # Roll at the log end offset even if a compacted leader's batch begins later, so that
            # the new segment begins where the last one ends.
            is_near = last.last_offset - self.log_end_offset <= INT32_MAX
            self.roll(self.log_end_offset if is_near else first.base_offset, now_ms)
        if markers:
            self.transactions_of(self.active)  # read the file before: that may fail
        self.active.append(records, batches)
        for position, header in batches:
            self.note(header, markers.get(position))
        self.log_end_offset = last.next_offset
        self.epochs.save_or_put_off()

    def note(self, header: BatchHeader, marker: EndTransactionMarker | None) -> None:
        """Update the leader epochs and the producer state for a batch that was appended."""
        aborted = self.producers.update(header, marker)
        if aborted is not None:
            self.active.transactions.append(aborted)
        if header.partition_leader_epoch >= 0:
            offset = max(header.base_offset, self.log_start_offset)
            self.epochs.assign(header.partition_leader_epoch, offset)

    def roll(self, base_offset: int, now_ms: int) -> None:
        """Roll to a new segment, unless the active one is empty and begins at ``base_offset``."""
        if self.active.size == 0 and self.active.base_offset == base_offset:
            return
        if self.active.base_offset < self.noted_recovery_point:
            self.active.flush()  # a recovery may begin after it
        self.active.seal()
        self.active.verified.forget()
        self.producers.take_snapshot(base_offset)
        self._begin_segment(base_offset, now_ms)

    def truncate_to(self, offset: int, now_ms: int) -> list[LogSegment]:
        """Drop the batches with records from ``offset`` on; return the dropped segments."""
        self.epochs.truncate_from_end(offset)
        dropped: list[LogSegment] = []
        if offset < self.segments[0].base_offset:
            dropped = self.restart_at(offset, now_ms)
        elif offset < self.log_end_offset:
            dropped = self._take(self._count_up_to(offset), len(self.segments))
            self.transactions_of(self.active)  # the whole one: below, only its end is replayed
            self.active.truncate_to(offset)
            self.log_end_offset = self.active.next_offset
            self.epochs.truncate_from_end(self.log_end_offset)
            self.replay_producers(now_ms)
            if dropped or self.log_end_offset < self.trusted_from:
                self.trusted_from = self.log_end_offset
        self.log_start_offset = min(self.log_start_offset, self.log_end_offset)
        if self.log_end_offset < self.recovery_point:
            self.noted_recovery_point = max(self.noted_recovery_point, self.recovery_point)
            self.recovery_point = self.log_end_offset
        self.first_dirty = min(self.first_dirty, self.log_end_offset)
        self.epochs.save()
        return dropped

    def restart_at(self, offset: int, now_ms: int) -> list[LogSegment]:
        """Drop everything and continue at ``offset``; the log start offset does not change."""
        self.epochs.clear()
        # First: otherwise, after a loss of power, segments of these epochs would count as missing.
        self.epochs.flush()
        self.producers.clear()
        dropped = self._take(0, len(self.segments))
        self._begin_segment(offset, now_ms)
        self.log_end_offset = self.trusted_from = offset
        self.recovery_point = min(self.recovery_point, offset)
        self.first_dirty = min(self.first_dirty, offset)
        return dropped

    def begin_at(self, offset: int, now_ms: int) -> list[LogSegment]:
        """Drop everything, and set the log start and log end offsets to ``offset``."""
        dropped = self.restart_at(offset, now_ms)
        self.log_start_offset = offset
        return dropped

    def drop_after(self, segment: LogSegment) -> list[LogSegment]:
        """Drop the segments after one."""
        return self._take(self.segments.index(segment) + 1, len(self.segments))

    def advance_log_start_offset(self, offset: int) -> None:
        """Make the records before ``offset`` unreadable."""
        self.log_start_offset = offset
        self.epochs.truncate_from_start(offset)
        self.epochs.save_or_put_off()

    def drop_first(self, count: int, now_ms: int) -> list[LogSegment]:
        """Drop the oldest segments; if these are all segments, roll to a new one.

        The new start of the epochs is flushed first. Otherwise, after a loss of power, they would
        count as missing: the names of files may be newer than the data.
        """
        if count == len(self.segments):
            self.roll(self.log_end_offset, now_ms)
        first = self.segments[count].base_offset
        if first > self.log_start_offset:
            self.advance_log_start_offset(first)
        self.epochs.flush()
        self.producers.delete_snapshots_before(first)
        return self._take(0, count)

    def replace(self, cleaned: LogSegment, replaced: Sequence[LogSegment]) -> bool:
        """Put a cleaned segment in the place of those that it was made of.

        Return False if they are not all here any more. A crash between two of these steps loses
        nothing: ``log_loader`` completes what the first one begins.
        """
        start = self._count_up_to(cleaned.base_offset) - 1
        end = start + len(replaced)
        if start < 0 or end >= len(self.segments) or self.segments[start:end] != list(replaced):
            return False
        cleaned.rename_suffix(SWAP_SUFFIX)
        for segment in replaced:
            segment.rename_suffix(DELETED_SUFFIX)
        cleaned.rename_suffix("")
        self.segments[start:end] = [cleaned]
        self.producers.delete_snapshots_at(segment.base_offset for segment in replaced[1:])
        return True

    def replay_producers(self, now_ms: int) -> None:
        """Rebuild the producer state from a snapshot and the batches after it.

        Also add what the transaction indexes of recovered segments lack.
        """
        known = self.producers.restore(
            self.log_start_offset,
            self.log_end_offset,
            now_ms,
            self.config.producer_id_expiration_ms,
        )
        if known >= self.log_end_offset:
            return
        for segment in self.segments_from(known):
            for aborted in _replayed(self.producers, segment, known):
                transactions = self.transactions_of(segment)
                if aborted.last_offset > transactions.last_offset:
                    transactions.append(aborted)
            if segment is not self.active:
                segment.seal()

    def expire_producers(self, now_ms: int) -> None:
        """Forget the producers that wrote nothing for long."""
        self.producers.remove_expired(now_ms, self.config.producer_id_expiration_ms)

    def _keeps_offsets(self, origin: AppendOrigin) -> bool:
        return self.config.keeps_offsets and origin is AppendOrigin.CLIENT

    def _restored_before(self, batches: Sequence[PlacedBatch]) -> AppendedBatch | None:
        """Return what batches are in the log that has all of them: a restore repeats a request."""
        for _, header in batches:
            segment = self.segments_from(header.base_offset)[0]
            known = next(segment.headers(header.base_offset), None)
            if known is None or (known.base_offset, known.crc) != (header.base_offset, header.crc):
                return None
        last = batches[-1][1]
        delta = last.last_offset - batches[0][1].base_offset
        return AppendedBatch(NO_SEQUENCE, last.last_offset, delta, last.max_timestamp)

    # --- aborted transactions ---

    def aborted_transactions(
        self, offset: int, records: Records
    ) -> Sequence[AbortedTransactionStart]:
        """Return the aborted transactions among records read from ``offset`` on, or some more."""
        found = self.aborted_between(offset, self._end_of(offset, records))
        return [AbortedTransactionStart(entry.producer_id, entry.first_offset) for entry in found]

    def aborted_between(self, offset: int, end: int) -> Sequence[AbortedTransaction]:
        """Return the aborted transactions with records from ``offset`` to before ``end``."""
        found: list[AbortedTransaction] = []
        for segment in self.segments_from(offset):
            of_segment, are_all = self.transactions_of(segment).collect(offset, end)
            found += of_segment
            if are_all:
                break
        return found

    def _end_of(self, offset: int, records: Records) -> int:
        """Return an offset after ``records``, not far from their end."""
        part = records.file_range
        for segment, end in self.spans_from(offset):
            if part is not None and segment.is_open_as(part.file):
                indexed = segment.offset_from(part.position + records.size)
                return end if indexed is None else indexed
        return self.log_end_offset

    def transactions_of(self, segment: LogSegment) -> TransactionIndex:
        """Return the transaction index of a segment; rebuild it if its file is damaged."""
        try:
            return segment.transactions
        except BadDataError:
            producers = ProducerStateManager(self.path)
            known = producers.load_before(segment.base_offset)
            start = self.segments[0].base_offset if known is None else known
            segment.forget_transactions()
            for earlier in self.segments_from(start):
                for aborted in _replayed(producers, earlier, start):
                    if earlier is segment:
                        segment.transactions.append(aborted)
                if earlier is segment:
                    break
            return segment.transactions

    def write_what_knows(self, current: LogContents) -> None:
        """Write what a log with the same records knows beside them.

        That is leader epochs without records, and producers whose records were deleted. Both logs
        may go on: ``take_over`` is for when the other one does not.
        """
        self.epochs.copy_from(current.epochs)
        self.epochs.save()
        self.producers.take_snapshot(self.log_end_offset, current.producers)

    def take_over(self, current: LogContents) -> None:
        """Take over the producers of a log that is not used from now on."""
        self.producers.copy_from(current.producers)

    def move_to(self, path: Path) -> None:
        """Note that the directory of the log was renamed."""
        self.path = self.epochs.directory = self.producers.directory = path
        for segment in self.segments:
            segment.move_to(path)
        self.has_new_files = True

    def close_idle(self) -> None:
        """Close the files and drop the indexes of segments that were not read recently."""
        for segment in self.segments[:-1]:
            segment.close_idle()

    def close(self) -> None:
        """Write the indexes and a producer snapshot, which make the next start quick, and close."""
        has_records = self.log_end_offset > self.log_start_offset
        if has_records and self.log_end_offset not in self.producers.snapshot_offsets():
            self.producers.take_snapshot(self.log_end_offset)
        self.producers.remove_stray_snapshots([segment.base_offset for segment in self.segments])
        self.epochs.save()
        for segment in self.segments:
            segment.close()

    def _begin_segment(self, base_offset: int, now_ms: int) -> None:
        config = with_jitter(self.config)
        self.segments.append(LogSegment.create(self.path, base_offset, config, now_ms, self.files))
        self.has_new_files = True

    def _count_up_to(self, offset: int) -> int:
        return bisect_right(self.segments, offset, key=lambda segment: segment.base_offset)

    def _take(self, start: int, end: int) -> list[LogSegment]:
        taken = self.segments[start:end]
        del self.segments[start:end]
        # Renaming in this sequence leaves no gap if a crash interrupts it.
        for segment in taken if start == 0 else reversed(taken):
            segment.rename_suffix(DELETED_SUFFIX)
        return taken


def _markers_in(
    records: RecordBytes, batches: Sequence[PlacedBatch]
) -> Mapping[int, EndTransactionMarker | None]:
    """Return the markers of the control batches in a buffer, by position.

    Raises ``RecordsRefusedError``.
    """
    try:
        return {
            position: marker_of(header, memoryview(records)[position : position + header.size])
            for position, header in batches
            if header.is_control
        }
    except BadDataError as error:
        raise RecordsRefusedError(Errors.CORRUPT_MESSAGE, str(error)) from None


def _replayed(
    producers: ProducerStateManager, segment: LogSegment, offset: int
) -> Iterator[AbortedTransaction]:
    """Update the producers for the batches of a segment; yield the transactions they abort."""
    for header, marker in segment.headers_and_markers(offset):
        aborted = producers.update(header, marker)
        if aborted is not None:
            yield aborted


def with_jitter(config: LogConfig) -> LogConfig:
    """Return the settings of one segment: ``segment.ms`` minus a random part of the jitter.

    Without it, many logs that began a segment together would all roll at the same time.
    """
    segment_ms = config.max_segment_ms
    jitter_ms = min(config.segment_jitter_ms, segment_ms)
    if jitter_ms > 0:
        segment_ms -= random.randrange(jitter_ms)
    return config if segment_ms == config.segment_ms else replace(config, segment_ms=segment_ms)


# --- retention ------------------------------------------------------------------------------------


class SegmentSpan(NamedTuple):
    """One segment: its end offset, its size in bytes, and the timestamp of its newest record."""

    end_offset: int
    size: int
    largest_timestamp: int


def segments_to_delete(
    spans: list[SegmentSpan],
    config: LogConfig,
    *,
    log_start_offset: int,
    limit: int,
    now_ms: int,
) -> int:
    """Return how many of the oldest segments to delete, by time, size and log start offset.

    Keep segments with records at or after ``limit``, because other replicas may not have these.
    If the result includes the active segment, the caller must roll a new one first.
    """
    deletes = "delete" in config.cleanup_policy
    excess = sum(span.size for span in spans) - config.retention_bytes
    count = 0
    for span in spans:
        if span.end_offset > limit or (span is spans[-1] and span.size == 0):
            break
        is_below_start = span.end_offset <= log_start_offset
        is_old = config.retention_ms >= 0 and now_ms - span.largest_timestamp > config.retention_ms
        is_too_much = config.retention_bytes >= 0 and excess >= span.size
        if not (is_below_start or (deletes and (is_old or is_too_much))):
            break
        excess -= span.size
        count += 1
    return count


# --- search by timestamp --------------------------------------------------------------------------
#
# Batches are not decoded: the result is the first offset of the batch that contains the record. The
# handler of ListOffsets looks for the record in the batch.


def _first_at_or_after(
    segments: Sequence[LogSegment], timestamp_ms: int, start: int, limit: int
) -> OffsetOfTimestamp | None:
    """Return the first record at or after a time, with an offset from ``start`` to before
    ``limit``.
    """
    for segment in segments:
        if segment.largest.timestamp < timestamp_ms:
            continue
        header = segment.find_timestamp(timestamp_ms, start)
        if header is not None:
            return _found(header, timestamp_ms, start) if header.last_offset < limit else None
    return None


def _greatest(segments: Sequence[LogSegment], start: int, limit: int) -> OffsetOfTimestamp | None:
    """Return the first record with the greatest timestamp from ``start`` to before ``limit``."""
    best: BatchHeader | None = None
    for segment in sorted(segments, key=lambda segment: -segment.largest.timestamp):
        # Its greatest timestamp may be that of a record that is not visible.
        if best is not None and _is_newer(best, segment.largest.timestamp, segment.base_offset):
            break
        found = segment.newest(start, limit)
        if found is not None and (
            best is None or not _is_newer(best, found.max_timestamp, found.base_offset)
        ):
            best = found
    return None if best is None else _found(best, best.max_timestamp, start)


def _is_newer(batch: BatchHeader, timestamp: int, offset: int) -> bool:
    """Whether a batch has a greater timestamp, or the same one before ``offset``."""
    return (batch.max_timestamp, -batch.base_offset) > (timestamp, -offset)


def _found(header: BatchHeader, timestamp_ms: int, start: int) -> OffsetOfTimestamp:
    first_ms = header.first_timestamp
    return OffsetOfTimestamp(
        header.max_timestamp if first_ms is None or first_ms < timestamp_ms else first_ms,
        max(header.base_offset, start),
        header.partition_leader_epoch,
    )
