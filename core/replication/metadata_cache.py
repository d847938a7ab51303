"""The metadata cache of a broker: live brokers and partition leaders.

Mirrors ``kafka.server.metadata.ZkMetadataCache``. One thread updates it, any thread reads it,
because every update replaces an immutable snapshot.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count, takewhile
from types import MappingProxyType
from typing import TypeAlias

from regent.core.model import LEADER_DURING_DELETE, NO_CONTROLLER, BrokerId, TopicPartition
from regent.core.protocol.control import (
    ControlHeader,
    TopicId,
    UpdateMetadataBroker,
    UpdateMetadataPartition,
    UpdateMetadataRequest,
    UpdateMetadataTopic,
)
from regent.core.replication.log_reads import differ
from regent.core.replication.request_parts import ListedPartitions, RequestParts

RowsOfTopic: TypeAlias = Mapping[int, UpdateMetadataPartition]
TopicIds: TypeAlias = Mapping[str, TopicId | None]
_NO_ROWS: RowsOfTopic = MappingProxyType({})


class PartitionRows(Mapping[TopicPartition, UpdateMetadataPartition]):
    """The rows of all topics, by partition."""

    __slots__ = ("_topics",)

    def __init__(self, topics: Mapping[str, RowsOfTopic]) -> None:
        self._topics = topics

    def __getitem__(self, topic_partition: TopicPartition) -> UpdateMetadataPartition:
        """Return the row of a partition; raises ``KeyError``."""
        topic, partition = topic_partition
        return self._topics[topic][partition]

    def __iter__(self) -> Iterator[TopicPartition]:
        """Yield every partition, topic by topic."""
        return (TopicPartition(topic, p) for topic, rows in self._topics.items() for p in rows)

    def __len__(self) -> int:
        """Return the number of partitions."""
        return sum(map(len, self._topics.values()))


@dataclass(frozen=True, slots=True)
class MetadataSnapshot:
    """The cluster as of one UpdateMetadata request.

    ``is_complete``: all partitions were listed once, so that a missing one was deleted, or is new.
    """

    controller_id: BrokerId = NO_CONTROLLER
    controller_epoch: int = 0
    brokers: Mapping[BrokerId, UpdateMetadataBroker] = field(default_factory=dict)
    topics: Mapping[str, RowsOfTopic] = field(default_factory=dict)
    topic_ids: TopicIds = field(default_factory=dict)
    is_complete: bool = False

    @property
    def controller(self) -> UpdateMetadataBroker | None:
        """The active controller, if it is known and alive."""
        return self.brokers.get(self.controller_id)

    @property
    def partitions(self) -> PartitionRows:
        """Every partition of every topic."""
        return PartitionRows(self.topics)

    def partition_count(self, topic: str) -> int:
        """Return how many partitions a topic has, 0 if it does not exist."""
        rows = self.topics.get(topic, _NO_ROWS)
        return sum(1 for _ in takewhile(rows.__contains__, count()))


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
        topics, topic_ids = before.topics, before.topic_ids
        if request.topic_states:
            topics, topic_ids = _merge(before, request)
        named = self._full.add(header, request) if request.is_full else None
        is_everything = named is not None and named.is_everything
        if named is not None and is_everything:
            topics, topic_ids = _only_named(topics, topic_ids, named)
        self.snapshot = MetadataSnapshot(
            controller_id=max(header.controller_id, NO_CONTROLLER),
            controller_epoch=header.controller_epoch,
            brokers={b.broker_id: b for b in request.live_brokers},
            topics=topics,
            topic_ids=topic_ids,
            is_complete=before.is_complete or is_everything,
        )


def _merge(
    before: MetadataSnapshot, request: UpdateMetadataRequest
) -> tuple[Mapping[str, RowsOfTopic], TopicIds]:
    """Return the topics and their ids after a request; what does not change is not copied."""
    topics, ids = dict(before.topics), dict[str, TopicId | None]()
    removed: list[str] = []
    for topic in request.topic_states:
        name = topic.topic_name
        known, known_id = topics.get(name, _NO_ROWS), before.topic_ids.get(name)
        is_another_topic = differ(known_id, topic.topic_id)
        rows = _merge_topic(known, topic, is_another_topic=is_another_topic)
        if rows:
            topics[name] = rows
            is_accepted = any(rows.get(r.partition_index) == r for r in topic.partition_states)
            if is_accepted and (
                name not in before.topic_ids or topic.topic_id not in (None, known_id)
            ):
                ids[name] = topic.topic_id
        elif name in topics:
            del topics[name]
            removed.append(name)
    if not ids and not removed:
        return topics, before.topic_ids
    kept = (
        before.topic_ids.items()
        if not removed
        else ((name, id_) for name, id_ in before.topic_ids.items() if name in topics)
    )
    return topics, {**dict(kept), **ids}


def _merge_topic(
    known: RowsOfTopic, topic: UpdateMetadataTopic, *, is_another_topic: bool
) -> RowsOfTopic:
    """Return the rows of a topic after a request; ``known`` itself if nothing changes."""
    states = topic.partition_states
    is_deleted = [row.leader == LEADER_DURING_DELETE for row in states]
    if is_another_topic and all(is_deleted):
        return known  # the request is for an earlier topic of that name
    rows = {} if is_another_topic else dict(known)
    for row, is_row_deleted in zip(states, is_deleted, strict=True):
        number = row.partition_index
        if is_row_deleted:
            rows.pop(number, None)
        elif number not in rows or not _is_older(row, rows[number]):
            rows[number] = row
    return known if rows == known else rows


def _only_named(
    topics: Mapping[str, RowsOfTopic], topic_ids: TopicIds, named: ListedPartitions
) -> tuple[Mapping[str, RowsOfTopic], TopicIds]:
    kept: dict[str, RowsOfTopic] = {}
    for topic, rows in topics.items():
        listed = named.partitions_of(topic)
        of_topic = rows if rows.keys() <= listed else {p: rows[p] for p in rows if p in listed}
        if of_topic:
            kept[topic] = of_topic
    if len(kept) == len(topic_ids):
        return kept, topic_ids
    return kept, {topic: topic_id for topic, topic_id in topic_ids.items() if topic in kept}


def _is_older(row: UpdateMetadataPartition, known: UpdateMetadataPartition) -> bool:
    """Whether a row is older than the cached one (Kafka does not check)."""
    return (row.leader_epoch, row.partition_epoch) < (known.leader_epoch, known.partition_epoch)
