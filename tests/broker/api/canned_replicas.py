"""Replicas that answer requests with prepared results and remember the requests."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import Final, TypeVar

from regent.core.errors import Errors, StorageError
from regent.core.model import BrokerId, TopicPartition
from regent.core.protocol.broker import FetchRequest, FetchResponse
from regent.core.protocol.client import (
    ConsumedPartition,
    ConsumerFetch,
    EpochEnd,
    EpochQuery,
    ListedOffset,
    OffsetQuery,
    ProducedPartition,
    RecordRules,
)
from regent.core.protocol.control import TopicId, UpdateMetadataBroker, UpdateMetadataEndPoint
from regent.core.records import RecordBytes
from regent.core.replication.all_partitions import AllPartitions
from regent.core.replication.delayed_operation import Answer, DelayedOperation
from regent.core.replication.follower_times import FollowerTimes
from regent.core.replication.metadata_cache import MetadataCache, MetadataSnapshot
from regent.core.replication.produce import OF_CLIENT, AppendRules
from tests.support.memory_logs import MemoryLogs

T = TypeVar("T")

EXECUTOR: Final = ThreadPoolExecutor(1)
"""For the work beside the event loop."""


def cached(topic_ids: Mapping[str, TopicId | None] = MappingProxyType({})) -> MetadataCache:
    """Return the metadata of a cluster in which only broker 2 is alive."""
    endpoint = UpdateMetadataEndPoint("PLAINTEXT", "hôst", 9092, "PLAINTEXT")
    broker = UpdateMetadataBroker(2, 5, (endpoint,), "rack-a", None, None)
    cache = MetadataCache()
    cache.snapshot = MetadataSnapshot(brokers={2: broker}, topic_ids=topic_ids, is_complete=True)
    return cache


class FailingRecords:
    """Records on a disk that has failed."""

    size = 100
    file_range = None

    def read(self) -> RecordBytes:
        raise StorageError("the disk failed")


class Held(DelayedOperation):
    """A request that is answered when it expires or when the test answers it."""

    kind = "Fetch"

    def __init__(self, partitions: Collection[TopicPartition], respond: Answer) -> None:
        super().__init__(partitions)
        self.respond = respond

    def on_changes(self, topic_partitions: Collection[TopicPartition]) -> bool:
        return False

    def answer(self) -> Answer:
        self.is_completed = True
        return self.respond


class CannedReplicas:
    """The replicas as the handlers see them; with ``holds`` requests wait until they expire."""

    def __init__(self, *, holds: bool = False) -> None:
        self.holds = holds
        self.follower_times = FollowerTimes()
        self.held: list[Held] = []
        self.expired: list[DelayedOperation] = []
        self.acks: int | None = None
        self.waits: bool | None = None
        self.records: Mapping[TopicPartition, RecordBytes] = {}
        self.guards: Mapping[TopicPartition, int] = {}
        self.guards_used: Mapping[TopicPartition, int] = {}
        self.consumer_fetch: ConsumerFetch | None = None
        self.follower_fetch: FetchRequest | None = None
        self.offset_queries: Mapping[TopicPartition, OffsetQuery] = {}
        self.epoch_queries: Mapping[TopicPartition, EpochQuery] = {}
        self.rules: Mapping[TopicPartition, RecordRules] = {}
        self.produced: Mapping[TopicPartition, ProducedPartition] = {}
        self.consumed: Mapping[TopicPartition, ConsumedPartition] = {}
        self.listed: Mapping[TopicPartition, ListedOffset] = {}
        self.epoch_ends: Mapping[TopicPartition, EpochEnd] = {}
        self.unconverted: frozenset[TopicPartition] = frozenset()
        self.leaders: Mapping[TopicPartition, tuple[BrokerId, int]] = {}

    def produce(
        self,
        acks: int,
        records: Mapping[TopicPartition, RecordBytes],
        now_ms: int,
        respond: Callable[[Mapping[TopicPartition, ProducedPartition]], None],
        rules: AppendRules = OF_CLIENT,
    ) -> DelayedOperation | None:
        self.acks, self.records, self.guards_used = acks, records, rules.guards
        unknown = ProducedPartition(Errors.UNKNOWN_TOPIC_OR_PARTITION)
        produced = {
            topic_partition: self.produced.get(topic_partition, unknown)
            for topic_partition in records
        }
        return self._answer(records, lambda: respond(produced))

    def begin_verifications(
        self, batches: Mapping[TopicPartition, RecordBytes]
    ) -> Mapping[TopicPartition, int]:
        return {name: self.guards.get(name, 0) for name in batches}

    def record_rules(self, topic_partition: TopicPartition) -> RecordRules:
        return self.rules.get(topic_partition, RecordRules())

    def converts_records(self, topic_partition: TopicPartition) -> bool:
        return topic_partition not in self.unconverted

    def current_leader(self, topic_partition: TopicPartition) -> tuple[BrokerId, int]:
        return self.leaders.get(topic_partition, (-1, -1))

    def fetch_for_consumer(
        self,
        request: ConsumerFetch,
        now_ms: int,
        respond: Callable[[Mapping[TopicPartition, ConsumedPartition]], None],
        *,
        waits: bool = True,
    ) -> DelayedOperation | None:
        self.consumer_fetch, self.waits = request, waits
        unknown = ConsumedPartition(Errors.UNKNOWN_TOPIC_OR_PARTITION)
        consumed = {
            topic_partition: self.consumed.get(topic_partition, unknown)
            for topic_partition in request.positions
        }
        return self._answer(request.positions, lambda: respond(consumed))

    def fetch(
        self, request: FetchRequest, now_ms: int, respond: Callable[[FetchResponse], None]
    ) -> DelayedOperation | None:
        self.follower_fetch = request
        return self._answer((), lambda: respond(FetchResponse(Errors.NONE)))

    has_proposals = False

    def exclusively(self, act: Callable[[AllPartitions], T]) -> T:
        broker_id = BrokerId(1)
        return act(AllPartitions(broker_id, MemoryLogs(), cached(), lambda _: None))

    def expire(self, operation: DelayedOperation, now_ms: int, *, is_early: bool = False) -> None:
        self.expired.append(operation)
        if not operation.is_completed:
            operation.answer()()

    def list_offsets(
        self, queries: Mapping[TopicPartition, OffsetQuery]
    ) -> Mapping[TopicPartition, ListedOffset]:
        self.offset_queries = queries
        unknown = ListedOffset(Errors.UNKNOWN_TOPIC_OR_PARTITION)
        return {
            topic_partition: self.listed.get(topic_partition, unknown)
            for topic_partition in queries
        }

    def offsets_for_leader_epoch(
        self, queries: Mapping[TopicPartition, EpochQuery]
    ) -> Mapping[TopicPartition, EpochEnd]:
        self.epoch_queries = queries
        unknown = EpochEnd(Errors.UNKNOWN_TOPIC_OR_PARTITION)
        return {
            topic_partition: self.epoch_ends.get(topic_partition, unknown)
            for topic_partition in queries
        }

    def _answer(
        self, partitions: Collection[TopicPartition], respond: Answer
    ) -> DelayedOperation | None:
        if not self.holds:
            respond()
            return None
        self.held.append(Held(tuple(partitions), respond))
        return self.held[-1]
