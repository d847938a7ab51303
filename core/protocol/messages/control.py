"""LeaderAndIsr, StopReplica and UpdateMetadata: what a controller of Kafka sends to its brokers.

Only the versions that brokers from Kafka 2.4 on know: see ``FIRST_VERSIONS``. ``core.protocol`` has
the requests of the same names that this project's brokers receive at their control ports.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from regent.core.protocol.message import Int8, Int16, Int32, Int64, Uuid, message, since, until


@message
class LeaderAndIsrPartitionState:
    """The new state of one replica; ``partition_epoch`` is the version of the state znode."""

    partition_index: Int32
    controller_epoch: Int32
    leader: Int32
    leader_epoch: Int32
    isr: tuple[Int32, ...]
    partition_epoch: Int32
    replicas: tuple[Int32, ...]
    adding_replicas: tuple[Int32, ...] = ()
    removing_replicas: tuple[Int32, ...] = ()
    is_new: bool = False
    leader_recovery_state: Int8 = since(6, default=0)


@message
class LeaderAndIsrTopicState:
    """The partitions of a topic."""

    topic_name: str
    topic_id: Uuid = since(5, default=None)
    partition_states: tuple[LeaderAndIsrPartitionState, ...]


@message
class LeaderAndIsrLiveLeader:
    """A leader, and where its followers reach it."""

    broker_id: Int32
    host_name: str
    port: Int32


@message
class LeaderAndIsrRequest:
    """Become leader or follower of these partitions. ``type`` 1: all of the broker's (KIP-516)."""

    controller_id: Int32
    is_k_raft_controller: bool = since(7, default=False)
    controller_epoch: Int32
    broker_epoch: Int64 = -1
    type: Int8 = since(5, default=0)
    topic_states: tuple[LeaderAndIsrTopicState, ...]
    live_leaders: tuple[LeaderAndIsrLiveLeader, ...]


@message
class LeaderAndIsrPartitionError:
    """The outcome for a partition; from version 5 on the topic is named by the row around it."""

    topic_name: str = until(4, default="")
    partition_index: Int32
    error_code: Int16


@message
class LeaderAndIsrTopicError:
    """The partitions of a topic."""

    topic_id: Uuid
    partition_errors: tuple[LeaderAndIsrPartitionError, ...]


@message
class LeaderAndIsrResponse:
    """The outcome for each partition, with its topic's name (version 4) or id."""

    error_code: Int16
    partition_errors: tuple[LeaderAndIsrPartitionError, ...] = until(4, default=())
    topics: tuple[LeaderAndIsrTopicError, ...] = since(5, default=())


@message
class StopReplicaTopicV1:
    """The partitions of a topic in version 2, in which a request deletes all of them or none."""

    name: str
    partition_indexes: tuple[Int32, ...]


@message
class StopReplicaPartitionState:
    """Stop a replica, and perhaps delete it."""

    partition_index: Int32
    leader_epoch: Int32 = -1
    delete_partition: bool


@message
class StopReplicaTopicState:
    """The partitions of a topic."""

    topic_name: str
    partition_states: tuple[StopReplicaPartitionState, ...]


@message
class StopReplicaRequest:
    """Stop these replicas. ``delete_partitions`` and ``topics`` are those of version 2."""

    controller_id: Int32
    is_k_raft_controller: bool = since(4, default=False)
    controller_epoch: Int32
    broker_epoch: Int64 = -1
    delete_partitions: bool = until(2, default=False)
    topics: tuple[StopReplicaTopicV1, ...] = until(2, default=())
    topic_states: tuple[StopReplicaTopicState, ...] = since(3, default=())


@message
class StopReplicaPartitionError:
    """The outcome for a partition."""

    topic_name: str
    partition_index: Int32
    error_code: Int16


@message
class StopReplicaResponse:
    """The outcome for each partition; none after an error of the whole request."""

    error_code: Int16
    partition_errors: tuple[StopReplicaPartitionError, ...] = ()


@message
class UpdateMetadataPartitionState:
    """A row of the metadata cache. ``leader`` -2: the partition is being deleted."""

    partition_index: Int32
    controller_epoch: Int32
    leader: Int32
    leader_epoch: Int32
    isr: tuple[Int32, ...]
    zk_version: Int32
    replicas: tuple[Int32, ...]
    offline_replicas: tuple[Int32, ...]


@message
class UpdateMetadataTopicState:
    """The partitions of a topic."""

    topic_name: str
    topic_id: Uuid = since(7, default=None)
    partition_states: tuple[UpdateMetadataPartitionState, ...]


@message
class UpdateMetadataEndpoint:
    """Where a listener of a broker is reached; ``security_protocol`` is Kafka's number."""

    port: Int32
    host: str
    listener: str
    security_protocol: Int16


@message
class UpdateMetadataBroker:
    """A live broker."""

    id: Int32
    endpoints: tuple[UpdateMetadataEndpoint, ...]
    rack: str | None


@message
class UpdateMetadataRequest:
    """All live brokers, and the partitions that changed.

    ``type`` is 0 from a controller in ZooKeeper mode.
    """

    controller_id: Int32
    is_k_raft_controller: bool = since(8, default=False)
    type: Int8 = since(8, default=0, tag=0)
    controller_epoch: Int32
    broker_epoch: Int64 = -1
    topic_states: tuple[UpdateMetadataTopicState, ...]
    live_brokers: tuple[UpdateMetadataBroker, ...]


@message
class UpdateMetadataResponse:
    """The outcome."""

    error_code: Int16


FIRST_VERSIONS: Final[Mapping[type, int]] = {
    LeaderAndIsrRequest: 4,
    StopReplicaRequest: 2,
    UpdateMetadataRequest: 5,
}
"""The oldest version of each request that is declared here: those of Kafka 2.4."""

LAST_VERSIONS: Final[Mapping[type, int]] = {
    LeaderAndIsrRequest: 7,
    StopReplicaRequest: 4,
    UpdateMetadataRequest: 8,
}
"""The newest, those of Kafka 3.9."""
