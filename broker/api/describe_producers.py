"""DescribeProducers, version 0 (KIP-664).

Mirrors ``kafka.server.KafkaApis.handleDescribeProducersRequest``. A follower answers as well, so
that an operator can compare its state with the leader's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from concurrent.futures import Executor
from typing import Final, Protocol

from regent.core.errors import ApiError, Errors
from regent.core.model import TopicPartition
from regent.core.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeProducersTopic,
    ProducersOfPartition,
    ProducersOfTopic,
    ProducerState,
)
from regent.core.replica_logs import ActiveProducer
from regent.core.replication.metadata_cache import MetadataCache
from regent.core.security.acls import AclOperation, ResourceType
from regent.core.topic_validation import topic_name_problem
from regent.transport.kafka.api import KafkaAnswer, KafkaApi, KafkaApiKey, KafkaRequest
from regent.transport.kafka.message_codec import answer, decode

_DENIED: Final = ApiError(Errors.TOPIC_AUTHORIZATION_FAILED)


class ProducerStates(Protocol):
    """Knows the producers of replicas; ``ReplicaManager`` implements it. Thread-safe."""

    def active_producers(
        self, topic_partition: TopicPartition
    ) -> Sequence[ActiveProducer] | Errors:
        """Return the producers of a hosted replica, else the error."""
        ...


def describe_producers_apis(
    states: ProducerStates, cache: MetadataCache, executor: Executor
) -> Sequence[KafkaApi]:
    """Return the API DescribeProducers; ``executor`` answers it: there may be many producers."""

    def describe(topic: DescribeProducersTopic, denied: Collection[str]) -> ProducersOfTopic:
        error = _DENIED if topic.name in denied else _topic_error(topic.name, cache)
        partitions = (
            _partition(states, TopicPartition(topic.name, index))
            if error.error_code is Errors.NONE
            else _refused(index, *error)
            for index in topic.partition_indexes
        )
        return ProducersOfTopic(name=topic.name, partitions=tuple(partitions))

    def handle(request: KafkaRequest) -> KafkaAnswer:
        asked = decode(DescribeProducersRequest, request)
        names = (topic.name for topic in asked.topics)
        denied = request.denied(AclOperation.READ, ResourceType.TOPIC, names)
        topics = tuple(describe(topic, denied) for topic in asked.topics)
        return answer(DescribeProducersResponse(topics=topics), request)

    async def run(request: KafkaRequest) -> KafkaAnswer:
        return await asyncio.get_running_loop().run_in_executor(executor, handle, request)

    return [KafkaApi(KafkaApiKey.DESCRIBE_PRODUCERS, 0, 0, run)]


def _topic_error(topic: str, cache: MetadataCache) -> ApiError:
    problem = topic_name_problem(topic)
    if problem is not None:
        return ApiError(Errors.INVALID_TOPIC_EXCEPTION, f"the name {problem}")
    if topic not in cache.snapshot.topic_ids:
        return cache.snapshot.missing_topic(topic, Errors.NOT_LEADER_OR_FOLLOWER)
    return ApiError(Errors.NONE)


def _partition(states: ProducerStates, topic_partition: TopicPartition) -> ProducersOfPartition:
    producers = states.active_producers(topic_partition)
    if isinstance(producers, Errors):
        return _refused(topic_partition.partition, producers)
    return ProducersOfPartition(
        partition_index=topic_partition.partition,
        error_code=Errors.NONE,
        active_producers=tuple(map(_state, producers)),
    )


def _refused(partition_index: int, error: Errors, message: str = "") -> ProducersOfPartition:
    return ProducersOfPartition(
        partition_index=partition_index, error_code=error, error_message=message or None
    )


def _state(producer: ActiveProducer) -> ProducerState:
    return ProducerState(
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        last_sequence=producer.last_sequence,
        last_timestamp=producer.last_timestamp_ms,
        coordinator_epoch=producer.coordinator_epoch,
        current_txn_start_offset=producer.transaction_start_offset,
    )
