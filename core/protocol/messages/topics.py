"""CreateTopics, DeleteTopics and CreatePartitions.

Fields with tags from 10,000 on are Regent's own: its commands send them, and Kafka ignores them.
"""

from __future__ import annotations

from typing import Final

from regent.core.protocol.message import Int8, Int16, Int32, Int64, Uuid, message, since, until

UNSET: Final = -1
"""A number of partitions or replicas that the controller's broker chooses, or that is unknown."""

MAX_NEW_PARTITIONS: Final = 10_000
"""How many partitions one request of a client may create: a mistake must not keep a cluster busy
for minutes. Kafka 4 has the same limit (``ReplicationControlManager.MAX_PARTITIONS_PER_BATCH``)."""


@message
class PlacementOptions:
    """How new partitions are placed; see ``core.protocol.placement.PlaceTopicsRequest``.

    An empty ``strategy`` is the one of the active controller's broker. While the placement service
    starts, nothing is written, and the error is COORDINATOR_LOAD_IN_PROGRESS. ``awaits_service``:
    the sender awaits it and gets this error at once. Other requests are repeated until their
    timeout, and then in the background.
    """

    strategy: str = ""
    start_index: str = "0"
    index: str = "per-topic"
    seed: Int64 = 0
    use_service: bool = True
    awaits_service: bool = False


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
    """A topic to create; -1: the broker's default, or the number in ``assignments``.

    A sender that may have to repeat the request chooses the ``topic_id``: a topic that exists with
    that id was created by an earlier attempt.
    """

    name: str
    num_partitions: Int32 = UNSET
    replication_factor: Int16 = UNSET
    assignments: tuple[CreatableReplicaAssignment, ...] = ()
    configs: tuple[CreatableTopicConfig, ...] = ()
    topic_id: Uuid = since(5, default=None, tag=10_000)


@message
class CreateTopicsRequest:
    """Topics to create.

    ``all_or_none``: if one is refused, none is created; the error of the others is
    OPERATION_NOT_ATTEMPTED. ``waits``: the answer waits for leaders, at most ``timeout_ms``.
    """

    topics: tuple[CreatableTopic, ...]
    timeout_ms: Int32
    validate_only: bool = since(1, default=False)
    placement: PlacementOptions | None = since(5, default=None, tag=10_000)
    max_partitions: Int32 = since(5, default=MAX_NEW_PARTITIONS, tag=10_001)
    all_or_none: bool = since(5, default=False, tag=10_002)
    waits: bool = since(5, default=True, tag=10_003)


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
    is_being_deleted: bool = since(5, default=False, tag=10_000)


@message
class CreateTopicsResponse:
    """A result for each topic, named once, in the order of the request."""

    throttle_time_ms: Int32 = since(2, default=0)
    topics: tuple[CreatableTopicResult, ...]


@message
class DeleteTopicState:
    """A topic to delete, by name or by id (KIP-516)."""

    name: str | None = None
    topic_id: Uuid = None


@message
class DeleteTopicsRequest:
    """Topics to delete; ``all_or_none`` and ``waits``: see ``CreateTopicsRequest``."""

    topics: tuple[DeleteTopicState, ...] = since(6, default=())
    topic_names: tuple[str, ...] = until(5, default=())
    timeout_ms: Int32
    all_or_none: bool = since(4, default=False, tag=10_000)
    waits: bool = since(4, default=True, tag=10_001)


@message
class DeletableTopicResult:
    """Whether a topic is deleted; ``name`` is null, from version 6 on, if no topic has the id.

    ``was_marked``: its deletion had been asked for before.
    """

    name: str | None
    topic_id: Uuid = since(6, default=None)
    error_code: Int16
    error_message: str | None = since(5, default=None)
    was_marked: bool = since(4, default=False, tag=10_000)


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
    assignments: tuple[CreatePartitionsAssignment, ...] | None = None


@message
class CreatePartitionsRequest:
    """Topics to grow; the fields with tags: see ``CreateTopicsRequest``."""

    topics: tuple[CreatePartitionsTopic, ...]
    timeout_ms: Int32
    validate_only: bool = False
    placement: PlacementOptions | None = since(2, default=None, tag=10_000)
    max_partitions: Int32 = since(2, default=MAX_NEW_PARTITIONS, tag=10_001)


@message
class CreatePartitionsTopicResult:
    """Whether a topic has grown; ``previous_count``: how many partitions it had."""

    name: str
    error_code: Int16
    error_message: str | None = None
    previous_count: Int32 = since(2, default=UNSET, tag=10_000)


@message
class CreatePartitionsResponse:
    """A result for each topic."""

    throttle_time_ms: Int32 = 0
    results: tuple[CreatePartitionsTopicResult, ...]
