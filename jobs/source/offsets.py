"""From options to ranges of offsets: where a partition begins and ends, and what still exists."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from pyspark.sql.datasource import InputPartition

from regent.core.model import TopicPartition
from regent.jobs.source.options import EARLIEST, LATEST, Offsets, OptionError

NO_OFFSET: Final = -1
"""Kafka's answer when no record is at or after a time."""


@dataclass(frozen=True)
class OffsetRange(InputPartition):
    """The input of a task: a partition from ``start`` to before ``end``.

    ``directory`` is the log to read; None: it is read through the brokers.
    """

    partition: TopicPartition
    start: int
    end: int
    directory: Path | None = None


class LogBounds(NamedTuple):
    """The offsets [earliest, latest) of each partition when a query is planned."""

    earliest: Mapping[TopicPartition, int]
    latest: Mapping[TopicPartition, int]

    def resolve(self, option: str, wanted: Offsets) -> dict[TopicPartition, int]:
        """Return the offset of each partition.

        Raises ``OptionError`` unless an option by partition names all of them and no other.
        """
        there = self.earliest.keys()
        if isinstance(wanted, int):
            wanted = dict.fromkeys(there, wanted)
        if there - wanted.keys():
            text = f"{_some(there - wanted.keys())} is missing"
            raise OptionError(f"{option} must name every partition: {text}")
        if wanted.keys() - there:
            raise OptionError(f"{option} names {_some(wanted.keys() - there)}, which is not read")
        known = {EARLIEST: self.earliest, LATEST: self.latest}
        return {p: known[o][p] if o in known else o for p, o in wanted.items()}

    def existing(self, wanted: OffsetRange, report: Callable[[str], None]) -> OffsetRange:
        """Return the part of a range that exists, and report what does not."""
        partition, start, end = wanted.partition, wanted.start, wanted.end
        earliest, latest = self.earliest[partition], self.latest[partition]
        if start < earliest:
            text = f"{partition}: offsets {start} to {min(earliest, end) - 1} are gone"
            report(f"{text}, the log begins at {earliest}")
        if max(start, end) > latest:
            text = f"{partition}: offsets {max(start, latest)} to {max(start, end)} do not exist"
            report(f"{text}, the log ends at {latest}")
        start, end = max(start, earliest), min(end, latest)
        return OffsetRange(partition, start, max(start, end))


def _some(partitions: Iterable[TopicPartition]) -> str:
    first, *more = sorted(partitions)
    return f"{first} (and {len(more)} more)" if more else f"{first}"
