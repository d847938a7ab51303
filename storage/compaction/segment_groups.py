"""Groups the segments of a log for cleaning: each group becomes one segment.

Mirrors ``Cleaner.groupSegmentsBySize``. Without it a compacted log would have ever more and ever
smaller segments.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol, TypeVar

from regent.core.log_config import LogConfig
from regent.records.record_batch import INT32_MAX


class SizedSegment(Protocol):
    """What is asked of a segment here. Mirrors ``LogSegment``."""

    @property
    def base_offset(self) -> int:
        """Its first offset."""
        ...

    @property
    def size(self) -> int:
        """Its size in bytes."""
        ...

    @property
    def index_bytes(self) -> tuple[int, int]:
        """The sizes of its offset index and its time index."""
        ...


_S = TypeVar("_S", bound=SizedSegment)


class _Sizes(NamedTuple):
    records: int
    offset_index: int
    time_index: int

    @classmethod
    def of(cls, segment: SizedSegment) -> _Sizes:
        return cls(segment.size, *segment.index_bytes)

    def with_one(self, other: _Sizes) -> _Sizes:
        return _Sizes(*(a + b for a, b in zip(self, other, strict=True)))

    def fit(self, config: LogConfig) -> bool:
        most = config.segment_index_bytes
        return (
            self.records <= config.segment_bytes
            and self.offset_index <= most
            and self.time_index <= most
        )


def group_segments(
    segments: Sequence[_S], end_offset: int, config: LogConfig
) -> Iterator[list[_S]]:
    """Yield the groups, in order. ``end_offset``: where the last segment ends at the latest.

    A group does not exceed the limits of one segment, also that of relative offsets (31 bits).
    """
    group: list[_S] = []
    sizes = _Sizes(0, 0, 0)
    for number, segment in enumerate(segments):
        own = _Sizes.of(segment)
        after = segments[number + 1].base_offset if number + 1 < len(segments) else end_offset
        is_near = bool(group) and after - 1 - group[0].base_offset <= INT32_MAX
        if group and sizes.with_one(own).fit(config) and (is_near or segment.size == 0):
            group.append(segment)
            sizes = sizes.with_one(own)
            continue
        if group:
            yield group
        group, sizes = [segment], own
    if group:
        yield group
