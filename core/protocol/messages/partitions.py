"""ElectLeaders, AlterPartitionReassignments and ListPartitionReassignments."""

from __future__ import annotations

from regent.core.protocol.message import Int8, Int16, Int32, message, since


@message
class TopicPartitions:
    """Partitions of a topic whose leaders are to be elected."""

    topic: str
    partitions: tuple[Int32, ...]


@message
class ElectLeadersRequest:
    """Elections to hold (KIP-460); ``topic_partitions`` null: of all partitions."""

    election_type: Int8 = since(1, default=0)
    topic_partitions: tuple[TopicPartitions, ...] | None
    timeout_ms: Int32


@message
class PartitionResult:
    """The outcome of an election."""

    partition_id: Int32
    error_code: Int16
    error_message: str | None


@message
class ReplicaElectionResult:
    """Partitions of a topic."""

    topic: str
    partition_result: tuple[PartitionResult, ...]


@message
class ElectLeadersResponse:
    """A result for each election."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = since(1, default=0)
    replica_election_results: tuple[ReplicaElectionResult, ...]


@message
class ReassignablePartition:
    """A partition and its new replicas; null: its reassignment is to be cancelled."""

    partition_index: Int32
    replicas: tuple[Int32, ...] | None


@message
class ReassignableTopic:
    """Partitions of a topic."""

    name: str
    partitions: tuple[ReassignablePartition, ...]


@message
class AlterPartitionReassignmentsRequest:
    """Partitions to move (KIP-455)."""

    timeout_ms: Int32
    topics: tuple[ReassignableTopic, ...]


@message
class ReassignablePartitionResult:
    """Whether a reassignment has begun or is cancelled."""

    partition_index: Int32
    error_code: Int16
    error_message: str | None


@message
class ReassignableTopicResult:
    """Partitions of a topic."""

    name: str
    partitions: tuple[ReassignablePartitionResult, ...]


@message
class AlterPartitionReassignmentsResponse:
    """A result for each partition."""

    throttle_time_ms: Int32 = 0
    error_code: Int16
    error_message: str | None
    responses: tuple[ReassignableTopicResult, ...]


@message
class ListPartitionReassignmentsTopics:
    """Partitions of a topic."""

    name: str
    partition_indexes: tuple[Int32, ...]


@message
class ListPartitionReassignmentsRequest:
    """The partitions to list if they are being moved; ``topics`` null: all."""

    timeout_ms: Int32
    topics: tuple[ListPartitionReassignmentsTopics, ...] | None


@message
class OngoingPartitionReassignment:
    """A partition that is being moved."""

    partition_index: Int32
    replicas: tuple[Int32, ...]
    adding_replicas: tuple[Int32, ...]
    removing_replicas: tuple[Int32, ...]


@message
class OngoingTopicReassignment:
    """Partitions of a topic."""

    name: str
    partitions: tuple[OngoingPartitionReassignment, ...]


@message
class ListPartitionReassignmentsResponse:
    """The reassignments in progress."""

    throttle_time_ms: Int32 = 0
    error_code: Int16
    error_message: str | None
    topics: tuple[OngoingTopicReassignment, ...]
