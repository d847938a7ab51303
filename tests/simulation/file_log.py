"""A log of ``storage`` that shows the contents of its files and notifies the observer of writes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from regent.core.errors import RecordsRefusedError
from regent.core.records import RecordBytes
from regent.core.replica_logs import AppendedRecords, AppendOrigin
from regent.storage.log.log_segment import LogSegment
from regent.storage.log.unified_log import UnifiedLog
from regent.storage.log_names import FUTURE
from tests.simulation.records import BrokenInvariantError, past_all_guards
from tests.support.memory_logs import StoredBatch, stored_batch
from tests.support.record_batches import UNCOUNTED_BYTES, Record, records_of
from tests.support.record_checks import Header, headers_of

if TYPE_CHECKING:
    from tests.simulation.file_disk import FileDisk

_LENGTH_AT = 8


class _Contents(NamedTuple):
    """The batches in the file of a segment, and the version they were read at."""

    version: tuple[int, int, int]
    batches: list[StoredBatch]
    damaged: set[int]


class ObservedFileLog(UnifiedLog):
    """Notifies the observer of writes; reads its files independently of ``storage``."""

    def __init__(self, disk: FileDisk, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._disk = disk
        self._damages = 0
        self._read_before: dict[LogSegment, _Contents] = {}

    @property
    def batches(self) -> Sequence[StoredBatch]:
        """What was written, in order; damage is undone."""
        return [batch for found in self._files() for batch in found.batches]

    @property
    def damaged(self) -> set[int]:
        """The base offsets of batches that have changed on disk."""
        return {base_offset for found in self._files() for base_offset in found.damaged}

    @property
    def damageable(self) -> Sequence[StoredBatch]:
        """The batches of inactive segments.

        The process reads the active one from memory, so damage on the disk has no effect there.
        """
        return [batch for found in self._files()[:-1] for batch in found.batches]

    def records(self) -> list[Record]:
        """Return every record from the log start offset on."""
        start = self.log_start_offset
        return [r for batch in self.batches for r in records_of(batch.data) if r.offset >= start]

    def readable(self) -> list[StoredBatch]:
        """Return the batches from the log start offset on."""
        return [batch for batch in self.batches if batch.last_offset >= self.log_start_offset]

    def has(self, batches: Sequence[StoredBatch]) -> bool:
        """Whether all of these are in the log."""
        there = {batch.base_offset: batch.data for batch in self.batches}
        return all(there.get(batch.base_offset) == batch.data for batch in batches)

    def files(self) -> list[tuple[Path, list[StoredBatch]]]:
        """Return the file of each segment with what is in it."""
        segments = self._contents.segments
        return [(s.path, c.batches) for s, c in zip(segments, self._files(), strict=True)]

    def check_epochs(self) -> None:
        """Check that leader epochs end where the records do; raises ``BrokenInvariantError``."""
        ends = {batch.leader_epoch: batch.last_offset + 1 for batch in self.readable()}
        for epoch, end in ends.items():
            known = self.end_offset_for_epoch(epoch)
            if known != (epoch, end):
                raise BrokenInvariantError(f"EpochsOfRecords: {self}: {known}, not {epoch, end}")

    def check_whole(self) -> None:
        """Check that readable records have no gap; raises ``BrokenInvariantError``."""
        for before, after in pairwise(self.readable()):
            if before.last_offset + 1 != after.base_offset:
                raise BrokenInvariantError(f"SegmentsMeet: {self}: {before}, then {after}")

    def damage(self, base_offset: int) -> None:
        """Flip a bit of a batch; a second call restores it."""
        self._damages += 1
        for segment in self._contents.segments:
            data, position = bytearray(segment.path.read_bytes()), 0
            while position < segment.size:
                end = _end_of(data, position)
                if int.from_bytes(data[position : position + 8], "big") == base_offset:
                    data[end - 1] ^= 1
                    modified_ns = segment.path.stat().st_mtime_ns
                    with segment.path.open("r+b") as file:
                        file.write(data)
                        file.flush()
                        os.fsync(file.fileno())  # the bit differs on the disk, not only in memory
                    os.utime(segment.path, ns=(modified_ns, modified_ns + 1_000_000))
                    return
                position = end
        raise AssertionError(f"{self} has no batch at {base_offset}")

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
            self._disk.observer.on_led(self._disk.broker_id, self, self.batches[-1])
        return appended

    @past_all_guards
    def truncate_to(self, offset: int) -> None:
        """Truncate and notify the observer."""
        if offset < self.log_end_offset and not self._is_copy:
            self._disk.observer.on_truncated(self)
        super().truncate_to(offset)

    @past_all_guards
    def append_as_follower(self, records: RecordBytes, leader_epoch: int | None = None) -> None:
        """Append and notify the observer; another thread may have acted before."""
        if leader_epoch is not None:
            self._disk.on_unlocked()
        end = self.log_end_offset
        super().append_as_follower(records, leader_epoch)
        if self._is_copy:
            return
        first = sum(batch.last_offset < end for batch in self.batches)
        self._disk.observer.on_followed(self._disk.broker_id, self, first)

    @property
    def _is_copy(self) -> bool:
        """Whether this is the copy of a log that is being moved."""
        return self.path.name.endswith(FUTURE)

    def _files(self) -> list[_Contents]:
        """Return the contents of the files of all segments."""
        segments = self._contents.segments
        found = {segment: self._file(segment) for segment in segments}
        self._read_before = found
        return list(found.values())

    def _file(self, segment: LogSegment) -> _Contents:
        version = segment.size, self._truncations, self._damages
        before = self._read_before.get(segment)
        if before is not None and before.version == version:
            return before
        contents = _Contents(version, [], set())
        data, position = segment.path.read_bytes()[: segment.size], 0
        while position < len(data):
            end = _end_of(data, position)
            batch, position = data[position:end], end
            header = _header_of(batch)
            if header is None:  # ``damage`` has flipped a bit
                batch = batch[:-1] + bytes((batch[-1] ^ 1,))
                ((_, header),) = headers_of(batch)
                contents.damaged.add(header.base_offset)
            contents.batches.append(stored_batch(header, batch))
        return contents


def _end_of(data: bytes | bytearray, position: int) -> int:
    length = int.from_bytes(data[position + _LENGTH_AT : position + _LENGTH_AT + 4], "big")
    return position + UNCOUNTED_BYTES + length


def _header_of(batch: bytes) -> Header | None:
    """Return the header of a batch; None: the checksum is wrong."""
    try:
        ((_, header),) = headers_of(batch)
    except RecordsRefusedError:
        return None
    return header
