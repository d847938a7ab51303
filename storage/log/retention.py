"""Decides which segments to delete. Mirrors ``kafka.log.UnifiedLog.deleteOldSegments``."""

from __future__ import annotations

from typing import NamedTuple

from regent.core.log_config import LogConfig


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
