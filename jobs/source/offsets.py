"""Resolves offset options to offsets; converts offsets to the JSON of a checkpoint and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from regent.core.model import TopicPartition
from regent.jobs.source.options import EARLIEST, LATEST, OffsetsOption, OptionError
from regent.jobs.source.record_store import RecordStore

Offsets: TypeAlias = dict[TopicPartition, int]
"""The offset to read next, by partition."""


class LogBounds(NamedTuple):
    """The offsets [earliest, latest) of each partition at one time."""

    earliest: Mapping[TopicPartition, int]
    latest: Mapping[TopicPartition, int]

    @classmethod
    def of(cls, partitions: Sequence[TopicPartition], store: RecordStore) -> LogBounds:
        """Read the bounds of these partitions from the store."""
        return cls(store.earliest(partitions), store.latest(partitions))


def check_names(option: OffsetsOption, partitions: Sequence[TopicPartition]) -> None:
    """Raise ``OptionError`` unless an option names all of these partitions and no other."""
    if option.by_partition is None:
        return
    named = set(option.by_partition)
    missing, unknown = set(partitions) - named, named - set(partitions)
    if missing:
        raise OptionError(f"{option.name} must name every partition: {_some(missing)} is missing")
    if unknown:
        raise OptionError(f"{option.name} names {_some(unknown)}, which is not read")


def resolve(option: OffsetsOption, bounds: LogBounds, store: RecordStore) -> Offsets:
    """Resolve an option to the offset of each partition in ``bounds``.

    Raises ``OptionError`` if no record is at or after a requested time.
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
            text = f"{partition} has no record at or after {times[partition]} ms"
            raise OptionError(f"{option.name}: {text}")
        found[partition] = bounds.latest[partition] if offset is None else offset
    return found


def _some(partitions: Iterable[TopicPartition]) -> str:
    ordered = sorted(partitions)
    more = f" (and {len(ordered) - 1} more)" if len(ordered) > 1 else ""
    return f"{ordered[0]}{more}"


def limited(start: Offsets, latest: Offsets, max_records: int) -> Offsets:
    """Return the end offsets of a micro-batch of about ``max_records`` new records.

    Each partition contributes in proportion to its new records, at least one if it has any.
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
    """Return ``{topic: {partition: offset}}``, sorted, for a checkpoint."""
    document: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        document.setdefault(topic, {})[str(partition)] = offset
    return document


def from_json(document: Mapping[str, Mapping[str, int]]) -> Offsets:
    """Return the offsets in the JSON of a checkpoint: the inverse of ``to_json``."""
    return {
        TopicPartition(topic, int(partition)): offset
        for topic, numbers in document.items()
        for partition, offset in numbers.items()
    }
