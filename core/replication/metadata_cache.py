"""The metadata cache of a broker: live brokers and partition leaders.

Mirrors ``kafka.server.metadata.ZkMetadataCache``. One thread updates it, any thread reads it,
because every update replaces an immutable snapshot.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from itertools import count, takewhile
from types import MappingProxyType

from regent.core.model import LEADER_DURING_DELETE, NO_CONTROLLER, BrokerId, TopicPartition
from regent.core.protocol.control import (
    ControlHeader,
    TopicId,
    UpdateMetadataBroker,
    UpdateMetadataPartition,
    UpdateMetadataRequest,
)
from regent.core.replication.log_reads import differ
from regent.core.replication.request_parts import RequestParts


@dataclass(frozen=True, slots=True)
class MetadataSnapshot:
    """The cluster as of one UpdateMetadata request.

    ``is_complete``: all partitions were listed once, so that a missing one was deleted, or is new.
    """

    controller_id: BrokerId = NO_CONTROLLER
    controller_epoch: int = 0
    brokers: Mapping[BrokerId, UpdateMetadataBroker] = field(default_factory=dict)
    partitions: Mapping[TopicPartition, UpdateMetadataPartition] = field(default_factory=dict)
    topic_ids: Mapping[str, TopicId | None] = field(default_factory=dict)
    is_complete: bool = False

    @property
    def controller(self) -> UpdateMetadataBroker | None:
        """The active controller, if it is known and alive."""
        return self.brokers.get(self.controller_id)

    def partition_count(self, topic: str) -> int:
        """Return how many partitions a topic has, 0 if it does not exist."""
        numbers = takewhile(
            lambda number: TopicPartition(topic, number) in self.partitions, count()
        )
        return sum(1 for _ in numbers)


class MetadataCache:
    """Holds the newest snapshot."""

    def __init__(self) -> None:
        self.snapshot = MetadataSnapshot()
        self._full = RequestParts()

    def is_known_topic(self, topic_id: TopicId) -> bool:
        """Whether a topic has that id; checks all topics. Thread-safe."""
        return topic_id in self.snapshot.topic_ids.values()

    def update(self, header: ControlHeader, request: UpdateMetadataRequest) -> None:
        """Replace the live brokers, and merge the partitions: requests list only changes."""
        before = self.snapshot
        partitions, topic_ids = before.partitions, before.topic_ids
        if request.topic_states:
            partitions, topic_ids = _merge(before, request)
        named = self._full.add(header, request) if request.is_full else None
        is_everything = named is not None and named.is_everything
        if named is not None and is_everything:
            partitions, topic_ids = _only_named(partitions, topic_ids, named.partitions)
        self.snapshot = MetadataSnapshot(
            controller_id=max(header.controller_id, NO_CONTROLLER),
            controller_epoch=header.controller_epoch,
            brokers=MappingProxyType({b.broker_id: b for b in request.live_brokers}),
            partitions=partitions,
            topic_ids=topic_ids,
            is_complete=before.is_complete or is_everything,
        )


def _merge(
    before: MetadataSnapshot, request: UpdateMetadataRequest
) -> tuple[Mapping[TopicPartition, UpdateMetadataPartition], Mapping[str, TopicId | None]]:
    partitions, topic_ids = dict(before.partitions), dict(before.topic_ids)
    shrunk: set[str] = set()
    for topic in request.topic_states:
        name = topic.topic_name
        known_id = topic_ids.get(name)
        is_another_topic = differ(known_id, topic.topic_id)
        is_led = any(row.leader != LEADER_DURING_DELETE for row in topic.partition_states)
        if is_another_topic and is_led:
            for topic_partition in [known for known in partitions if known.topic == name]:
                del partitions[topic_partition]
        for row in topic.partition_states:
            topic_partition = TopicPartition(name, row.partition_index)
            if row.leader == LEADER_DURING_DELETE:
                if not is_another_topic:  # else the request is for an earlier topic of that name
                    partitions.pop(topic_partition, None)
                    shrunk.add(name)
            elif not _is_older(row, partitions.get(topic_partition)):
                partitions[topic_partition] = row
                topic_ids[name] = topic.topic_id or known_id
    if shrunk:
        left = {topic_partition.topic for topic_partition in partitions}
        for name in shrunk - left:
            topic_ids.pop(name, None)
    return MappingProxyType(partitions), MappingProxyType(topic_ids)


def _only_named(
    partitions: Mapping[TopicPartition, UpdateMetadataPartition],
    topic_ids: Mapping[str, TopicId | None],
    named: Collection[TopicPartition],
) -> tuple[Mapping[TopicPartition, UpdateMetadataPartition], Mapping[str, TopicId | None]]:
    kept = {
        topic_partition: row
        for topic_partition, row in partitions.items()
        if topic_partition in named
    }
    topics = {topic_partition.topic for topic_partition in kept}
    kept_ids = {topic: topic_id for topic, topic_id in topic_ids.items() if topic in topics}
    return MappingProxyType(kept), MappingProxyType(kept_ids)


def _is_older(row: UpdateMetadataPartition, known: UpdateMetadataPartition | None) -> bool:
    """Whether a row is older than the cached one (Kafka does not check)."""
    return known is not None and (row.leader_epoch, row.partition_epoch) < (
        known.leader_epoch,
        known.partition_epoch,
    )
