"""The metadata cache of a broker: live brokers and partition leaders.

Mirrors ``kafka.server.metadata.ZkMetadataCache``. One thread updates it, any thread reads it,
because every update replaces an immutable snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeAlias

from regent.core.errors import ApiError, Errors
from regent.core.model import LEADER_DURING_DELETE, NO_CONTROLLER, BrokerId, TopicPartition
from regent.core.protocol.control import (
    ControlHeader,
    TopicId,
    UpdateMetadataBroker,
    UpdateMetadataPartition,
    UpdateMetadataRequest,
    UpdateMetadataTopic,
    differ,
)
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
    Until then nothing may be concluded from what is missing (see ``MetadataCache``).
    ``coordinated_partitions`` has internal topics, see ``UpdateMetadataTopic``.
    """

    controller_id: BrokerId = NO_CONTROLLER
    controller_epoch: int = 0
    brokers: Mapping[BrokerId, UpdateMetadataBroker] = field(default_factory=dict)
    topics: Mapping[str, RowsOfTopic] = field(default_factory=dict)
    topic_ids: TopicIds = field(default_factory=dict)
    coordinated_partitions: Mapping[str, int] = field(default_factory=dict)
    is_complete: bool = False

    @property
    def controller(self) -> UpdateMetadataBroker | None:
        """The active controller, if it is known and alive."""
        return self.brokers.get(self.controller_id)

    @property
    def is_ruled_by_kafka(self) -> bool:
        """Whether the active controller is a broker of Kafka."""
        controller = self.controller
        return controller is not None and controller.control_peer is None

    @property
    def brokers_for_replicas(self) -> Mapping[BrokerId, UpdateMetadataBroker]:
        """The live brokers that new replicas may be placed on."""
        return {b: broker for b, broker in self.brokers.items() if not broker.no_replicas}

    @property
    def most_replicas(self) -> int:
        """How many replicas a new partition may have: the number of machines of these brokers."""
        return len({broker.node_host or b for b, broker in self.brokers_for_replicas.items()})

    @property
    def partitions(self) -> PartitionRows:
        """Every partition of every topic."""
        return PartitionRows(self.topics)

    def error_of_missing(self, retriable: Errors) -> Errors:
        """Return the error for a partition, or a topic, that is not listed."""
        return Errors.UNKNOWN_TOPIC_OR_PARTITION if self.is_complete else retriable

    def missing_topic(self, topic: str, retriable: Errors) -> ApiError:
        """Return ``error_of_missing`` with a message."""
        message = f"there is no topic {topic}"
        if not self.is_complete:
            message = f"this broker has not been told of all topics yet, nor of {topic}; try again"
        return ApiError(self.error_of_missing(retriable), message)

    def may_be_alive(self, broker_id: BrokerId) -> bool:
        """Whether a broker is alive; each request lists all, so before the first anyone may be."""
        return broker_id in self.brokers or not self.brokers


class MetadataCache:
    """Holds the newest snapshot.

    A broker that has just started may hear of some partitions before it hears of all: a new
    controller announces its elections first. Until the first complete list (``is_complete``) a
    missing topic or partition may exist. It stays complete through failovers. What readers do
    while it is not complete:

    - Metadata waits a second for the list. Then each named topic is LEADER_NOT_AVAILABLE, and is
      not created; if all topics are wanted, or no broker is known, the connection is closed.
      DescribeCluster waits too, and the connection is closed if no broker is known.
    - FindCoordinator is COORDINATOR_NOT_AVAILABLE, and creates no topic, unless the coordinator is
      known. Over how many partitions groups and transactional ids are spread is told with every
      partition of the internal topics. It is never counted in a list that may lack some; a broker
      that was not told loads nothing, and is NOT_COORDINATOR.
    - Produce, Fetch, ListOffsets, OffsetForLeaderEpoch, DeleteRecords, markers and
      DescribeProducers serve what LeaderAndIsr named, and are else NOT_LEADER_OR_FOLLOWER. A topic
      id without a name is UNKNOWN_TOPIC_ID, after which every client looks for the topic again.
    - OffsetCommit, OffsetDelete and TxnOffsetCommit are COORDINATOR_NOT_AVAILABLE for an unknown
      partition, AddPartitionsToTxn COORDINATOR_LOAD_IN_PROGRESS. Markers wait.
    - DescribeConfigs and AlterConfigs of an unknown topic are REQUEST_TIMED_OUT.
    - On the controller's broker the deletion of an unknown topic id, and a creation while no broker
      is known, are NOT_CONTROLLER: they are forwarded again. An answer that waits for a deletion
      goes on to wait. LEAST_LOADED counts only what is known: every placement is valid.
    - A log start offset is awaited from every replica as long as no broker is known.
    - Stray logs are deleted only if their topic is known; damaged logs are replaced only if another
      leader is known; a follower fetches only from a leader that is known; ISRs and controlled
      shutdowns wait for a controller that is known. Missing knowledge only delays these.
    - Hints of current leaders, and ``regent metadata``, show what is known; a warning in ``status``
      says that it is not all.
    """

    def __init__(self) -> None:
        self.snapshot = MetadataSnapshot()
        self._full, self._known = RequestParts(), RequestParts()
        self._waiting: list[Callable[[], None]] = []

    def when_complete(self, tell: Callable[[], None]) -> None:
        """Call once when the cache is complete, at once if it is. Any thread; must not block."""
        self._waiting.append(tell)
        if self.snapshot.is_complete:
            self._tell_waiting()

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
        elif request.lists_all and not before.is_complete:
            listed = self._known.add(header, request)
            is_everything = listed is not None and listed.is_everything
        self.snapshot = MetadataSnapshot(
            controller_id=max(header.controller_id, NO_CONTROLLER),
            controller_epoch=header.controller_epoch,
            brokers={b.broker_id: b for b in request.live_brokers},
            topics=topics,
            topic_ids=topic_ids,
            coordinated_partitions=_coordinated(before, request, topic_ids),
            is_complete=before.is_complete or is_everything,
        )
        if is_everything and not before.is_complete:
            self._tell_waiting()

    def _tell_waiting(self) -> None:
        with suppress(IndexError):
            while True:
                self._waiting.pop()()


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


def _coordinated(
    before: MetadataSnapshot, request: UpdateMetadataRequest, topic_ids: TopicIds
) -> Mapping[str, int]:
    """Return the numbers of partitions of internal topics after a request."""
    told = {
        topic.topic_name: topic.coordinated_partitions
        for topic in request.topic_states
        if topic.coordinated_partitions
        and topic.topic_name in topic_ids
        and not differ(topic_ids[topic.topic_name], topic.topic_id)
    }
    known = before.coordinated_partitions
    if not told and topic_ids is before.topic_ids:
        return known
    kept = {
        topic: number
        for topic, number in known.items()
        if topic in topic_ids and not differ(before.topic_ids[topic], topic_ids[topic])
    }
    return {**kept, **told}


def _is_older(row: UpdateMetadataPartition, known: UpdateMetadataPartition) -> bool:
    """Whether a row is older than the cached one (Kafka does not check)."""
    return (row.leader_epoch, row.partition_epoch) < (known.leader_epoch, known.partition_epoch)
