"""Finds records by timestamp. Mirrors ``kafka.log.UnifiedLog.fetchOffsetByTimestamp``.

Batches are not decoded: the result is the first offset of the batch that contains the record.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from regent.core.replica_logs import OffsetOfTimestamp
from regent.storage.log_segment import LogSegment
from regent.storage.record_batch import BatchHeader


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
        if best is not None and segment.largest.timestamp <= best.max_timestamp:
            break
        found = _newest(segment.headers(start), start, limit)
        if found is not None and (best is None or found.max_timestamp > best.max_timestamp):
            best = found
    return None if best is None else _found(best, best.max_timestamp, start)


def _newest(headers: Iterable[BatchHeader], start: int, limit: int) -> BatchHeader | None:
    visible = (h for h in headers if start <= h.last_offset < limit)
    return max(visible, key=lambda header: header.max_timestamp, default=None)


def _found(header: BatchHeader, timestamp_ms: int, start: int) -> OffsetOfTimestamp:
    first_ms = header.first_timestamp
    return OffsetOfTimestamp(
        header.max_timestamp if first_ms is None or first_ms < timestamp_ms else first_ms,
        max(header.base_offset, start),
        header.partition_leader_epoch,
    )
