"""Requests about topics, written shortly, and their outcomes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from regent.core.errors import Errors
from regent.core.protocol.envelope import EnvelopeRequest, EnvelopeResponse
from regent.core.protocol.messages.configs import (
    AlterableConfig,
    AlterConfigsResource,
    AlterOperation,
    IncrementalAlterConfigsRequest,
)
from regent.core.protocol.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from regent.core.protocol.topics import TopicsResponse, error_of, results_of, topic_of

TOPIC_RESOURCE = 2


def setting(name: str, value: str | None) -> CreatableTopicConfig:
    """A setting of a new topic."""
    return CreatableTopicConfig(name=name, value=value)


def assigned(*rows: tuple[int, tuple[int, ...]]) -> tuple[CreatableReplicaAssignment, ...]:
    """The replicas of new partitions."""
    return tuple(
        CreatableReplicaAssignment(partition_index=number, broker_ids=replicas)
        for number, replicas in rows
    )


def creatable(
    name: str, partitions: int = -1, replication_factor: int = -1, **more: Any
) -> CreatableTopic:
    """A topic to create."""
    return CreatableTopic(
        name=name, num_partitions=partitions, replication_factor=replication_factor, **more
    )


def create_topics(
    topics: Iterable[CreatableTopic], timeout_ms: int = 0, **more: Any
) -> CreateTopicsRequest:
    """The request that creates topics."""
    return CreateTopicsRequest(topics=tuple(topics), timeout_ms=timeout_ms, **more)


def growing(
    name: str, count: int, assignments: Iterable[tuple[int, ...]] | None = None
) -> CreatePartitionsTopic:
    """A topic to grow."""
    rows = None
    if assignments is not None:
        rows = tuple(CreatePartitionsAssignment(broker_ids=row) for row in assignments)
    return CreatePartitionsTopic(name=name, count=count, assignments=rows)


def create_partitions(
    topics: Iterable[CreatePartitionsTopic], timeout_ms: int = 0, **more: Any
) -> CreatePartitionsRequest:
    """The request that lets topics grow."""
    return CreatePartitionsRequest(topics=tuple(topics), timeout_ms=timeout_ms, **more)


def delete_topics(
    names: Iterable[str], timeout_ms: int = 0, ids: Iterable[str] = (), **more: Any
) -> DeleteTopicsRequest:
    """The request that deletes topics by name and by id."""
    by_name = (DeleteTopicState(name=name) for name in names)
    by_id = (DeleteTopicState(topic_id=topic_id) for topic_id in ids)
    return DeleteTopicsRequest(topics=(*by_name, *by_id), timeout_ms=timeout_ms, **more)


def alteration(
    name: str, operation: int = AlterOperation.SET, value: str | None = None
) -> AlterableConfig:
    """A change of a setting."""
    return AlterableConfig(name=name, config_operation=operation, value=value)


def alter_topic(
    topic: str, *alterations: AlterableConfig, replaces: bool = False, validate_only: bool = False
) -> IncrementalAlterConfigsRequest:
    """The request that changes settings of a topic."""
    resource = AlterConfigsResource(
        resource_type=TOPIC_RESOURCE, resource_name=topic, configs=alterations, replaces=replaces
    )
    return IncrementalAlterConfigsRequest(resources=(resource,), validate_only=validate_only)


def forwarded_deletion(name: str) -> EnvelopeRequest:
    """What a broker forwards when a client deletes a topic."""
    return EnvelopeRequest.of(delete_topics([name]))


def deleted(name: str) -> EnvelopeResponse:
    """The answer to it."""
    result = DeletableTopicResult(name=name, error_code=Errors.NONE)
    return EnvelopeResponse.of(DeleteTopicsResponse(responses=(result,)))


def name_in(body: object) -> str:
    """The name of the topic in such a request."""
    assert isinstance(body, EnvelopeRequest)
    assert body.delete_topics is not None
    return body.delete_topics.topics[0].name or ""


def errors_of(response: TopicsResponse) -> list[tuple[str, Errors]]:
    """Each topic with its error."""
    return [(topic_of(row), error_of(row).error_code) for row in results_of(response)]
