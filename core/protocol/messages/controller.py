"""What brokers ask of a controller: ControlledShutdown, AlterPartition and AllocateProducerIds.

The classes have the names of Kafka's own. ``core.protocol.controller`` has the first two as values,
as the brokers of this project send them to each other.
"""

from __future__ import annotations

from regent.core.model import UNKNOWN_BROKER_EPOCH
from regent.core.protocol.message import Int8, Int16, Int32, Int64, Uuid, message, since, until


@message
class ControlledShutdownRequestData:
    """A broker that will stop gives its leaderships away."""

    broker_id: Int32
    broker_epoch: Int64 = since(2, default=UNKNOWN_BROKER_EPOCH)


@message
class RemainingPartition:
    """A partition that the broker still leads."""

    topic_name: str
    partition_index: Int32


@message
class ControlledShutdownResponseData:
    """Which partitions have no other leader."""

    error_code: Int16
    remaining_partitions: tuple[RemainingPartition, ...] = ()


@message
class IsrMember:
    """A member of an ISR with its broker epoch, as the leader knows it (KIP-903)."""

    broker_id: Int32
    broker_epoch: Int64 = UNKNOWN_BROKER_EPOCH


@message
class PartitionData:
    """The ISR that a leader proposes for a partition."""

    partition_index: Int32
    leader_epoch: Int32
    new_isr: tuple[Int32, ...] = until(2, default=())
    new_isr_with_epochs: tuple[IsrMember, ...] = since(3, default=())
    leader_recovery_state: Int8 = since(1, default=0)
    partition_epoch: Int32


@message
class TopicData:
    """Partitions of a topic, which has its id from version 2 on (KIP-841)."""

    topic_name: str = until(1, default="")
    topic_id: Uuid = since(2, default=None)
    partitions: tuple[PartitionData, ...]


@message
class AlterPartitionRequestData:
    """The ISRs that a leader proposes (KIP-497)."""

    broker_id: Int32
    broker_epoch: Int64 = UNKNOWN_BROKER_EPOCH
    topics: tuple[TopicData, ...]


@message
class AlteredPartitionData:
    """The present state of a partition; zeros and no ISR with an error."""

    partition_index: Int32
    error_code: Int16
    leader_id: Int32 = 0
    leader_epoch: Int32 = 0
    isr: tuple[Int32, ...] = ()
    leader_recovery_state: Int8 = since(1, default=0)
    partition_epoch: Int32 = 0


@message
class AlteredTopicData:
    """Partitions of a topic."""

    topic_name: str = until(1, default="")
    topic_id: Uuid = since(2, default=None)
    partitions: tuple[AlteredPartitionData, ...]


@message
class AlterPartitionResponseData:
    """The outcome of each proposal; on an error of the whole request there are none."""

    throttle_time_ms: Int32 = 0
    error_code: Int16
    topics: tuple[AlteredTopicData, ...] = ()


@message
class AllocateProducerIdsRequestData:
    """A broker asks for producer ids of its own."""

    broker_id: Int32
    broker_epoch: Int64 = UNKNOWN_BROKER_EPOCH


@message
class AllocateProducerIdsResponseData:
    """The first id of the block, and how many it has."""

    throttle_time_ms: Int32 = 0
    error_code: Int16
    producer_id_start: Int64 = 0
    producer_id_len: Int32 = 0
