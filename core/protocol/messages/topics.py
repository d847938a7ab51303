"""CreateTopics, DeleteTopics and CreatePartitions."""

from __future__ import annotations

from regent.core.protocol.message import Int8, Int16, Int32, Uuid, message, since, until


@message
class CreatableReplicaAssignment:
    """The replicas of a new partition."""

    partition_index: Int32
    broker_ids: tuple[Int32, ...]


@message
class CreatableTopicConfig:
    """A setting of a new topic."""

    name: str
    value: str | None


@message
class CreatableTopic:
    """A topic to create; -1: the broker's default, or the number in ``assignments``."""

    name: str
    num_partitions: Int32
    replication_factor: Int16
    assignments: tuple[CreatableReplicaAssignment, ...]
    configs: tuple[CreatableTopicConfig, ...]


@message
class CreateTopicsRequest:
    """Topics to create."""

    topics: tuple[CreatableTopic, ...]
    timeout_ms: Int32
    validate_only: bool = since(1, default=False)


@message
class CreatableTopicConfigs:
    """A setting in effect in a created topic (KIP-525)."""

    name: str
    value: str | None
    read_only: bool
    config_source: Int8
    is_sensitive: bool


@message
class CreatableTopicResult:
    """Whether a topic is created; ``topic_config_error_code``: why it is without settings."""

    name: str
    topic_id: Uuid = since(7, default=None)
    error_code: Int16
    error_message: str | None = since(1, default=None)
    topic_config_error_code: Int16 = since(5, default=0, tag=0)
    num_partitions: Int32 = since(5, default=-1)
    replication_factor: Int16 = since(5, default=-1)
    configs: tuple[CreatableTopicConfigs, ...] | None = since(5, default=())


@message
class CreateTopicsResponse:
    """A result for each topic."""

    throttle_time_ms: Int32 = since(2, default=0)
    topics: tuple[CreatableTopicResult, ...]


@message
class DeleteTopicState:
    """A topic to delete, by name or by id (KIP-516)."""

    name: str | None
    topic_id: Uuid


@message
class DeleteTopicsRequest:
    """Topics to delete."""

    topics: tuple[DeleteTopicState, ...] = since(6, default=())
    topic_names: tuple[str, ...] = until(5, default=())
    timeout_ms: Int32


@message
class DeletableTopicResult:
    """Whether a topic is deleted; ``name`` is null, from version 6 on, if no topic has the id."""

    name: str | None
    topic_id: Uuid = since(6, default=None)
    error_code: Int16
    error_message: str | None = since(5, default=None)


@message
class DeleteTopicsResponse:
    """A result for each topic."""

    throttle_time_ms: Int32 = since(1, default=0)
    responses: tuple[DeletableTopicResult, ...]


@message
class CreatePartitionsAssignment:
    """The replicas of a new partition."""

    broker_ids: tuple[Int32, ...]


@message
class CreatePartitionsTopic:
    """A topic to grow to ``count`` partitions; without ``assignments`` the new ones are placed."""

    name: str
    count: Int32
    assignments: tuple[CreatePartitionsAssignment, ...] | None


@message
class CreatePartitionsRequest:
    """Topics to grow."""

    topics: tuple[CreatePartitionsTopic, ...]
    timeout_ms: Int32
    validate_only: bool


@message
class CreatePartitionsTopicResult:
    """Whether a topic has grown."""

    name: str
    error_code: Int16
    error_message: str | None


@message
class CreatePartitionsResponse:
    """A result for each topic."""

    throttle_time_ms: Int32 = 0
    results: tuple[CreatePartitionsTopicResult, ...]
