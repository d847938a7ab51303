"""What a log consists of: its segments, leader epochs and producers, kept in step.

Mirrors ``kafka.log.LocalLog`` with what ``kafka.log.Log`` keeps beside it. Nothing here is
thread-safe, checks what is appended or knows of failures: ``storage.unified_log`` does.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path

from regent.core.log_config import LogConfig
from regent.core.records import RecordBytes
from regent.storage.leader_epoch_file_cache import LeaderEpochFileCache
from regent.storage.log_names import DELETED_SUFFIX
from regent.storage.log_segment import LogSegment
from regent.storage.producer_state_manager import ProducerStateManager
from regent.storage.record_batch import INT32_MAX, BatchHeader, PlacedBatch


@dataclass(slots=True)
class LogContents:
    """The segments are never none, oldest first; the last one is written.

    What is before ``recovery_point`` is on the disk whatever happens to the machine. What is in the
    active segment from ``trusted_from`` on was appended by this process. Segments meet, each begins
    where the one before it ends, unless the log ``is_compacted``. Methods that drop segments return
    them, renamed, so that the caller deletes them when it has the time.
    """

    path: Path
    config: LogConfig
    segments: list[LogSegment]
    epochs: LeaderEpochFileCache
    producers: ProducerStateManager
    log_start_offset: int = 0
    log_end_offset: int = 0
    recovery_point: int = 0
    trusted_from: int = 0
    is_compacted: bool = False  # Kafka's log cleaner took records out of it
    has_new_files: bool = False  # which the directory on disk may not know yet

    @classmethod
    def create(cls, path: Path, config: LogConfig, now_ms: int) -> LogContents:
        """Return an empty log. Raises ``StorageError``."""
        segment = LogSegment.create(path, 0, with_jitter(config), now_ms)
        epochs, producers = LeaderEpochFileCache(path), ProducerStateManager(path)
        return cls(path, config, [segment], epochs, producers, has_new_files=True)

    @property
    def active(self) -> LogSegment:
        """The segment that is written."""
        return self.segments[-1]

    @property
    def size(self) -> int:
        """The bytes of all records."""
        return sum(segment.size for segment in self.segments)

    def segments_from(self, offset: int) -> Sequence[LogSegment]:
        """Return the segment that may hold ``offset``, or else the first one, and all later."""
        return self.segments[max(0, self._count_up_to(offset) - 1) :]

    def spans_from(self, offset: int) -> Iterator[tuple[LogSegment, int]]:
        """Yield the same segments, each with the offset before which it ends."""
        segments = self.segments_from(offset)
        for segment, after in zip_longest(segments, segments[1:]):
            yield segment, self.log_end_offset if after is None else after.base_offset

    def configure(self, config: LogConfig) -> None:
        """Change the settings."""
        self.config = config
        for segment in self.segments:
            segment.config = with_jitter(config)

    def append(self, records: RecordBytes, batches: Sequence[PlacedBatch], now_ms: int) -> None:
        """Write batches that follow the log end offset, in a new segment if it is time for one."""
        first, last = batches[0][1], batches[-1][1]
        newest = max(header.max_timestamp for _, header in batches)
        if self.active.should_roll(len(records), last.last_offset, newest, now_ms):
            # Where the last one ends, also if a compacted leader has nothing between: they meet.
            is_near = last.last_offset - self.log_end_offset <= INT32_MAX
            self.roll(self.log_end_offset if is_near else first.base_offset, now_ms)
        self.active.append(records, batches)
        for _, header in batches:
            self.note(header)
        self.log_end_offset = last.next_offset
        self.epochs.save_or_put_off()

    def note(self, header: BatchHeader) -> None:
        """Remember the epoch and the producer of a batch that is in the log."""
        self.producers.update(header)
        if header.partition_leader_epoch >= 0:
            offset = max(header.base_offset, self.log_start_offset)
            self.epochs.assign(header.partition_leader_epoch, offset)

    def roll(self, base_offset: int, now_ms: int) -> None:
        """Go on in a new segment, unless the present one is empty and begins there itself."""
        if self.active.size == 0 and self.active.base_offset == base_offset:
            return
        self.active.seal()
        self.active.verified.forget()
        self.producers.take_snapshot(base_offset)
        self.segments.append(
            LogSegment.create(self.path, base_offset, with_jitter(self.config), now_ms)
        )
        self.has_new_files = True

    def truncate_to(self, offset: int, now_ms: int) -> list[LogSegment]:
        """Drop the batches with records from ``offset`` on; return the segments that went."""
        self.epochs.truncate_from_end(offset)
        dropped: list[LogSegment] = []
        if offset < self.segments[0].base_offset:
            dropped = self.restart_at(offset, now_ms)
        elif offset < self.log_end_offset:
            dropped = self._take(self._count_up_to(offset), len(self.segments))
            self.active.truncate_to(offset)
            self.log_end_offset = self.active.next_offset
            self.epochs.truncate_from_end(self.log_end_offset)
            self.replay_producers(now_ms)
            if dropped or self.log_end_offset < self.trusted_from:
                self.trusted_from = self.log_end_offset
        self.log_start_offset = min(self.log_start_offset, self.log_end_offset)
        self.recovery_point = min(self.recovery_point, self.log_end_offset)
        self.epochs.save()
        return dropped

    def restart_at(self, offset: int, now_ms: int) -> list[LogSegment]:
        """Drop everything and go on at ``offset``; the log start offset is not touched."""
        self.epochs.clear()
        self.epochs.save()  # first: a start would miss the segments that they speak of
        self.producers.clear()
        dropped = self._take(0, len(self.segments))
        self.segments.append(LogSegment.create(self.path, offset, with_jitter(self.config), now_ms))
        self.has_new_files = True
        self.log_end_offset = self.trusted_from = offset
        self.recovery_point = min(self.recovery_point, offset)
        return dropped

    def begin_at(self, offset: int, now_ms: int) -> list[LogSegment]:
        """Drop everything, as if no record before ``offset`` had ever been here."""
        dropped = self.restart_at(offset, now_ms)
        self.log_start_offset = offset
        return dropped

    def drop_after(self, segment: LogSegment) -> list[LogSegment]:
        """Drop the segments after one."""
        return self._take(self.segments.index(segment) + 1, len(self.segments))

    def advance_log_start_offset(self, offset: int) -> None:
        """Hide the records before ``offset``."""
        self.log_start_offset = offset
        self.epochs.truncate_from_start(offset)
        self.epochs.save_or_put_off()

    def drop_first(self, count: int, now_ms: int) -> list[LogSegment]:
        """Drop the oldest segments; when these are all, the log goes on in a new one.

        That the log begins later is noted first: a start does not take them for lost then.
        """
        if count == len(self.segments):
            self.roll(self.log_end_offset, now_ms)
        first = self.segments[count].base_offset
        if first > self.log_start_offset:
            self.advance_log_start_offset(first)
        self.epochs.save()
        self.producers.delete_snapshots_before(first)
        return self._take(0, count)

    def replay_producers(self, now_ms: int) -> None:
        """Find out what the producers of these records did, from a snapshot and what follows."""
        known = self.producers.restore(self.log_start_offset, self.log_end_offset, now_ms)
        if known >= self.log_end_offset:
            return
        for segment in self.segments_from(known):
            for header in segment.headers(known):
                self.producers.update(header)

    def rest(self) -> None:
        """Let go of what is open or in memory of segments that nobody reads."""
        for segment in self.segments[:-1]:
            segment.rest()

    def close(self) -> None:
        """Write what makes it quick to open, and let go of the files."""
        has_records = self.log_end_offset > self.log_start_offset
        if has_records and self.log_end_offset not in self.producers.snapshot_offsets():
            self.producers.take_snapshot(self.log_end_offset)
        bases = [segment.base_offset for segment in self.segments]
        self.producers.retain_snapshots([*bases, self.log_end_offset])
        self.epochs.save()
        for segment in self.segments:
            segment.close()

    def _count_up_to(self, offset: int) -> int:
        return bisect_right(self.segments, offset, key=lambda segment: segment.base_offset)

    def _take(self, start: int, end: int) -> list[LogSegment]:
        taken = self.segments[start:end]
        del self.segments[start:end]
        # What a crash on the way leaves has no hole.
        for segment in taken if start == 0 else reversed(taken):
            segment.rename_suffix(DELETED_SUFFIX)
        return taken


def with_jitter(config: LogConfig) -> LogConfig:
    """Return the settings of one segment: ``segment.ms`` less a random part of the jitter.

    So that segments of many logs which began together do not end together.
    """
    jitter_ms = min(config.segment_jitter_ms, config.segment_ms)
    if jitter_ms <= 0:
        return config
    return replace(config, segment_ms=config.segment_ms - random.randrange(jitter_ms))
