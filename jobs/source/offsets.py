"""Offsets: from options to numbers, and from numbers to a checkpoint's JSON and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from regent.core.model import TopicPartition
from regent.jobs.source.options import EARLIEST, LATEST, OffsetsOption, OptionError
from regent.jobs.source.record_store import RecordStore

Offsets: TypeAlias = dict[TopicPartition, int]
"""Of each partition the offset of the record that is read next."""


class LogBounds(NamedTuple):
    """Where logs begin and end at one moment: [earliest, latest) of each partition."""

    earliest: Mapping[TopicPartition, int]
    latest: Mapping[TopicPartition, int]

    @classmethod
    def of(cls, partitions: Sequence[TopicPartition], store: RecordStore) -> LogBounds:
        """Ask for those of some partitions."""
        return cls(store.earliest(partitions), store.latest(partitions))


def check_names(option: OffsetsOption, partitions: Sequence[TopicPartition]) -> None:
    """Raise ``OptionError`` when an option names other partitions than these."""
    if option.by_partition is None:
        return
    named = set(option.by_partition)
    missing, unknown = set(partitions) - named, named - set(partitions)
    if missing:
        raise OptionError(f"{option.name} must name every partition: {_some(missing)} is missing")
    if unknown:
        raise OptionError(f"{option.name} names {_some(unknown)}, which is not read")


def resolve(option: OffsetsOption, bounds: LogBounds, store: RecordStore) -> Offsets:
    """Return the offsets an option means for the partitions of ``bounds``.

    Raises ``OptionError`` for a time without a record after it.
    """
    times = option.times_of(bounds.latest)
    if times:
        return _at_times(option, times, bounds, store)
    found: Offsets = {}
    for partition in sorted(bounds.latest):
        everywhere = EARLIEST if option.everywhere is None else option.everywhere
        offset = option.offsets.get(partition, everywhere)
        named = {EARLIEST: bounds.earliest, LATEST: bounds.latest}.get(offset)
        found[partition] = offset if named is None else named[partition]
    return found


def _at_times(
    option: OffsetsOption,
    times: Mapping[TopicPartition, int],
    bounds: LogBounds,
    store: RecordStore,
) -> Offsets:
    found: Offsets = {}
    for partition, offset in sorted(store.at_times(times).items()):
        if offset is None and not option.may_end:
            text = f"{partition} has no record as young as {times[partition]}"
            raise OptionError(f"{option.name}: {text}")
        found[partition] = bounds.latest[partition] if offset is None else offset
    return found


def _some(partitions: Iterable[TopicPartition]) -> str:
    ordered = sorted(partitions)
    more = f" (and {len(ordered) - 1} more)" if len(ordered) > 1 else ""
    return f"{ordered[0]}{more}"


def limited(start: Offsets, latest: Offsets, max_records: int) -> Offsets:
    """Return where a micro-batch ends that takes ``max_records`` of what is new.

    Each partition gives in proportion to what it has; one that has anything gives something.
    Mirrors ``KafkaMicroBatchStream.rateLimit``.
    """
    new = {partition: latest[partition] - start.get(partition, 0) for partition in latest}
    total = sum(size for size in new.values() if size > 0)
    if total <= max_records:
        return latest
    ends: Offsets = {}
    for partition, size in new.items():
        share = max(1, size * max_records // total) if size > 0 else size
        ends[partition] = start.get(partition, 0) + share
    return ends


def to_json(offsets: Offsets) -> dict[str, dict[str, int]]:
    """Return offsets as they stand in a checkpoint, always in the same order."""
    document: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        document.setdefault(topic, {})[str(partition)] = offset
    return document


def from_json(document: Mapping[str, Mapping[str, int]]) -> Offsets:
    """Return the offsets of a checkpoint."""
    return {
        TopicPartition(topic, int(partition)): offset
        for topic, numbers in document.items()
        for partition, offset in numbers.items()
    }
