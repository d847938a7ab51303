"""Defects of brokers that were just started and do not know all partitions: they test histories.

Each is a function that breaks one rule while the returned context lasts. One is left out that
hundreds of histories do not meet: leaderships that came before the number of partitions and are
forgotten. Unit tests have it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from regent.core.coordinator.partition_for import CoordinatorPartitions, partition_for
from regent.core.errors import Errors
from regent.core.replication.metadata_cache import MetadataCache, MetadataSnapshot


def partitions_counted_when_first_seen() -> Any:
    """The number of partitions of an internal topic is frozen when the topic is first seen."""

    def frozen(self: CoordinatorPartitions, key: str) -> int:
        known = getattr(self, "_known", 0) or len(self._cache.snapshot.topics.get(self.topic, ()))
        self._known = known  # type: ignore[attr-defined]
        return partition_for(key, known or self._configured)

    return patch.object(CoordinatorPartitions, "of", frozen)


def partitions_counted_in_any_list() -> Any:
    """The number of partitions of an internal topic is how many are known at the moment."""

    def counted(self: CoordinatorPartitions, snapshot: MetadataSnapshot) -> int:
        return len(snapshot.topics.get(self.topic, ()))

    return patch.object(CoordinatorPartitions, "_count", counted)


def any_metadata_complete() -> Any:
    """A broker believes to know all partitions after its first UpdateMetadata."""
    update = MetadataCache.update

    def and_believe(self: MetadataCache, header: Any, request: Any) -> None:
        update(self, header, request)
        self.snapshot = replace(self.snapshot, is_complete=True)

    return patch.object(MetadataCache, "update", and_believe)


def unlisted_partitions_do_not_exist() -> Any:
    """What a broker was not told of does not exist, also before it is told of all."""

    def unknown(self: MetadataSnapshot, retriable: Errors) -> Errors:
        return Errors.UNKNOWN_TOPIC_OR_PARTITION

    return patch.object(MetadataSnapshot, "error_of_missing", unknown)


SEARCH_FROM: dict[Callable[[], Any], int] = {
    partitions_counted_when_first_seen: 16,
    partitions_counted_in_any_list: 16,
}
