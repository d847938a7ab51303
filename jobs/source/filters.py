"""Narrows a read by the conditions of a query."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from regent.core.model import TopicPartition
from regent.jobs.source.offset_range import NO_TIME, OffsetRange

_NEVER_NULL: Final = {"topic", "partition", "offset", "timestamp", "timestampType"}
_COMPARISONS: Final[dict[type[Filter], Callable[[Any, Any], bool]]] = {
    EqualTo: operator.eq,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
    StringStartsWith: str.startswith,
}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MAX_OFFSET: Final = 2**63 - 1


class PushedFilters:
    """Conditions that all must hold: ``take`` each, then ``narrow`` the ranges."""

    def __init__(self) -> None:
        self._on_partition: list[Filter] = []
        self._first = 0
        self._end = _MAX_OFFSET
        self._since_ms = NO_TIME

    def take(self, condition: Filter) -> bool:
        """Add a condition; return whether Spark need not evaluate it again."""
        column = _column_of(condition)
        if isinstance(condition, IsNotNull):
            return column in _NEVER_NULL
        if column in ("topic", "partition"):
            if not _is_comparison(condition):
                return False
            self._on_partition.append(condition)
            return True
        if column == "offset":
            return self._take_offset(condition)
        if column == "timestamp":
            self._take_timestamp(condition)
        return False

    def admits(self, topic_partition: TopicPartition) -> bool:
        """Whether any record of a partition can match."""
        return all(_holds(condition, topic_partition) for condition in self._on_partition)

    def narrow(self, wanted: OffsetRange) -> OffsetRange:
        """Return the part of a range that can match."""
        start = min(max(wanted.start, self._first), wanted.end)
        end = max(start, min(wanted.end, self._end))
        return replace(wanted, start=start, end=end, since_ms=self._since_ms)

    def _take_offset(self, condition: Filter) -> bool:
        match condition:
            case EqualTo(value=int(offset)):
                self._between(offset, offset + 1)
            case GreaterThan(value=int(offset)):
                self._between(offset + 1, _MAX_OFFSET)
            case GreaterThanOrEqual(value=int(offset)):
                self._between(offset, _MAX_OFFSET)
            case LessThan(value=int(offset)):
                self._between(0, offset)
            case LessThanOrEqual(value=int(offset)):
                self._between(0, offset + 1)
            case In(value=offsets) if offsets and all(isinstance(o, int) for o in offsets):
                self._between(min(offsets), max(offsets) + 1)
                return False
            case _:
                return False
        return True

    def _between(self, first: int, end: int) -> None:
        self._first, self._end = max(self._first, first), min(self._end, end)

    def _take_timestamp(self, condition: Filter) -> None:
        match condition:
            case EqualTo() | GreaterThan() | GreaterThanOrEqual():
                if isinstance(condition.value, datetime):
                    self._since_ms = max(self._since_ms, _milliseconds(condition.value))
            case _:
                return


def _column_of(condition: Filter) -> str:
    inner = condition.child if isinstance(condition, Not) else condition
    path: tuple[str, ...] = getattr(inner, "attribute", ())
    return path[0] if len(path) == 1 else ""


def _is_comparison(condition: Filter) -> bool:
    if isinstance(condition, Not):
        return _is_comparison(condition.child)
    if isinstance(condition, In):
        return None not in condition.value  # NULL makes the result NULL, which Not would invert
    return type(condition) in _COMPARISONS and getattr(condition, "value", None) is not None


def _holds(condition: Filter, topic_partition: TopicPartition) -> bool:
    if isinstance(condition, Not):
        return not _holds(condition.child, topic_partition)
    value = topic_partition.topic if _column_of(condition) == "topic" else topic_partition.partition
    if isinstance(condition, In):
        return value in condition.value
    return _COMPARISONS[type(condition)](value, condition.value)  # type: ignore[attr-defined]


def _milliseconds(time: datetime) -> int:
    """Return a time in milliseconds, the precision of records."""
    aware = time if time.tzinfo else time.replace(tzinfo=UTC)
    return (aware - _EPOCH) // timedelta(milliseconds=1)
