"""A range of offsets that one task reads, and the part of it that still exists."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from pyspark.sql.datasource import InputPartition

from regent.core.errors import RegentError
from regent.core.model import TopicPartition

NO_TIME: Final = -(2**63)
_log = logging.getLogger(__name__)


class DataLossError(RegentError):
    """Records to read are lost."""


@dataclass(frozen=True)
class OffsetRange(InputPartition):
    """The input of a task: a partition from ``start`` to before ``end``.

    A read may skip records with a timestamp before ``since_ms``.
    """

    partition: TopicPartition
    start: int
    end: int
    since_ms: int = NO_TIME

    @property
    def size(self) -> int:
        """The maximum number of records."""
        return self.end - self.start


def report_data_loss(text: str, *, is_error: bool) -> None:
    """Raise ``DataLossError``, or log the gap."""
    if is_error:
        raise DataLossError(f"{text} (failOnDataLoss=false reads the records that exist)")
    _log.warning("%s: continuing with the existing records", text)


def existing_range(
    wanted: OffsetRange, earliest: int, latest: int, *, fail_on_data_loss: bool
) -> OffsetRange:
    """Return the existing part of a range, of a log with offsets [earliest, latest)."""
    start, end = wanted.start, wanted.end
    if start < earliest:
        text = f"{wanted.partition}: offsets {start} to {min(earliest, end) - 1} are gone"
        report_data_loss(f"{text}, the log begins at {earliest}", is_error=fail_on_data_loss)
    if max(start, end) > latest:
        text = f"{wanted.partition}: offsets {max(start, latest)} to {max(start, end)} do not exist"
        report_data_loss(f"{text}, the log ends at {latest}", is_error=fail_on_data_loss)
    start, end = max(start, earliest), min(end, latest)
    return replace(wanted, start=start, end=max(start, end))


def split(ranges: Sequence[OffsetRange], min_partitions: int) -> list[OffsetRange]:
    """Cut ranges into about ``min_partitions`` of similar size; empty ones are left out.

    Mirrors ``KafkaOffsetRangeCalculator``.
    """
    ranges = [r for r in ranges if r.end > r.start]
    total = sum(r.size for r in ranges)
    cut: list[OffsetRange] = []
    for wanted in ranges:
        size = wanted.size
        pieces = min(size, round(size / total * min_partitions))
        if len(ranges) >= min_partitions or pieces < 2:
            cut.append(wanted)
            continue
        bounds = [wanted.start + size * piece // pieces for piece in range(pieces + 1)]
        cut += [replace(wanted, start=start, end=end) for start, end in pairwise(bounds)]
    return cut
