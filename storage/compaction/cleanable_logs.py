"""Decides which log is cleaned next, and which part of it. Mirrors ``LogCleanerManager``.

A log has a clean part, a cleanable part, and an uncleanable one: records that are not committed,
the active segment, and records that are younger than ``min.compaction.lag.ms``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from regent.core.log_config import LogConfig
from regent.core.setting import LONG_MAX
from regent.storage.checkpoints import NEVER_CLEANED

_T = TypeVar("_T")


class CleanableSegment(Protocol):
    """What this decision asks of a segment. Mirrors ``LogSegment``."""

    @property
    def base_offset(self) -> int:
        """Its first offset."""
        ...

    @property
    def size(self) -> int:
        """Its size in bytes."""
        ...

    @property
    def largest_timestamp(self) -> int:
        """The greatest timestamp of its records."""
        ...

    @property
    def first_timestamp(self) -> int:
        """The greatest timestamp of its first batch; -1: none."""
        ...


@dataclass(frozen=True, slots=True)
class CleanableLog:
    """A log as this decision sees it. The last segment is active.

    ``checkpoint``: the offset up to which it was cleaned, or ``NEVER_CLEANED``.
    ``last_stable_offset``: the records before it are committed, and no transaction among them is
    open.
    """

    segments: Sequence[CleanableSegment]
    config: LogConfig
    log_start_offset: int
    log_end_offset: int
    last_stable_offset: int
    checkpoint: int


@dataclass(frozen=True, slots=True)
class CleanableRange:
    """The part of a log to clean: whole segments up to ``bound``.

    ``is_reset``: the checkpoint does not fit the log. ``is_overdue``: ``max.compaction.lag.ms``
    have passed.
    """

    first_dirty: int
    first_uncleanable: int
    bound: int
    is_reset: bool
    is_overdue: bool
    clean_bytes: int
    cleanable_bytes: int

    @property
    def total_bytes(self) -> int:
        """The size of the clean and the cleanable part."""
        return self.clean_bytes + self.cleanable_bytes

    @property
    def dirty_ratio(self) -> float:
        """The part of these bytes that is dirty."""
        return self.cleanable_bytes / self.total_bytes if self.total_bytes else 0.0

    def must_be_cleaned(self, config: LogConfig) -> bool:
        """Whether the log is dirty enough, or overdue."""
        if self.is_overdue and self.cleanable_bytes > 0:
            return True
        return self.dirty_ratio > config.min_cleanable_dirty_ratio


def cleanable_range(log: CleanableLog, now_ms: int) -> CleanableRange:
    """Return which part of a log may be cleaned."""
    start = log.log_start_offset
    first_dirty = start if log.checkpoint == NEVER_CLEANED else log.checkpoint
    is_reset = not start <= first_dirty <= log.log_end_offset
    if is_reset:
        first_dirty = start
    active = log.segments[-1].base_offset
    dirty: Sequence[CleanableSegment] = ()
    if first_dirty < active:
        dirty = log.segments[max(0, _count_up_to(log.segments, first_dirty) - 1) : -1]
    uncleanable = min(log.last_stable_offset, active, *_too_young(dirty, log.config, now_ms))
    uncleanable = max(uncleanable, first_dirty)
    bound = log.segments[max(0, _count_up_to(log.segments, uncleanable) - 1)].base_offset
    lowest = min(first_dirty, bound)
    return CleanableRange(
        first_dirty,
        uncleanable,
        bound,
        is_reset,
        _is_overdue(dirty, log.config, now_ms),
        _size_between(log.segments, -1, first_dirty),
        _size_between(log.segments, lowest, bound),
    )


def choose(
    candidates: Iterable[tuple[_T, LogConfig, CleanableRange]],
) -> tuple[_T, CleanableRange] | None:
    """Return the log with the greatest part of dirty bytes among those that must be cleaned."""
    chosen: tuple[_T, CleanableRange] | None = None
    for log, config, found in candidates:
        if not config.is_compacted or not found.must_be_cleaned(config):
            continue
        if chosen is None or found.dirty_ratio > chosen[1].dirty_ratio:
            chosen = log, found
    return chosen


def _too_young(dirty: Sequence[CleanableSegment], config: LogConfig, now_ms: int) -> Sequence[int]:
    """Return the base offset of the first segment with records that must not be cleaned yet."""
    lag_ms = config.min_compaction_lag_ms
    if lag_ms <= 0:
        return ()
    young = (s.base_offset for s in dirty if s.largest_timestamp > now_ms - lag_ms)
    return tuple(young)[:1]


def _is_overdue(dirty: Sequence[CleanableSegment], config: LogConfig, now_ms: int) -> bool:
    lag_ms = config.max_compaction_lag_ms
    if lag_ms == LONG_MAX:
        return False  # do not read the segments
    return any(0 < segment.first_timestamp < now_ms - lag_ms for segment in dirty)


def _size_between(segments: Sequence[CleanableSegment], start: int, end: int) -> int:
    """Return the size of the segments from the one that holds ``start`` to before ``end``."""
    first = max(0, _count_up_to(segments, start) - 1)
    return sum(segment.size for segment in segments[first:] if segment.base_offset < end)


def _count_up_to(segments: Sequence[CleanableSegment], offset: int) -> int:
    return bisect_right(segments, offset, key=lambda segment: segment.base_offset)
