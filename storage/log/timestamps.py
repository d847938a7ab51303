"""Finds records by timestamp. Mirrors ``kafka.log.UnifiedLog.fetchOffsetByTimestamp``.

Batches are not decoded: the result is the first offset of the batch that contains the record. The
handler of ListOffsets looks for the record in the batch.
"""

from __future__ import annotations

from collections.abc import Sequence

from regent.core.replica_logs import OffsetOfTimestamp
from regent.records.record_batch import BatchHeader
from regent.storage.log.log_segment import LogSegment


def first_at_or_after(
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


def greatest(segments: Sequence[LogSegment], start: int, limit: int) -> OffsetOfTimestamp | None:
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
