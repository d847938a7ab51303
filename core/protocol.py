"""Requests between processes as plain values; ``transport.codec`` turns them into bytes.

A body is a dataclass (a map on the wire, Kafka's field names in snake case); a row that comes by
the hundred thousand is a ``NamedTuple`` (an array on the wire, in the declared order). Epochs of a
control request travel beside the body, in ``ControlHeader``, so that one encoded body can be sent
to many brokers.

``TopicId`` is Kafka's 22-character base64url form of a UUID.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, TypeAlias

from core.errors import Errors
from core.model import BrokerId, TopicPartition

TopicId: TypeAlias = str


class ApiKey(IntEnum):
    """Kafka's keys where Kafka has the request; from 1000 on our own."""

    LEADER_AND_ISR = 4
    STOP_REPLICA = 5
    UPDATE_METADATA = 6
    CONTROLLED_SHUTDOWN = 7
    DESCRIBE_METADATA = 1000
    DESCRIBE_TOPICS = 1001
    SHUTDOWN_BROKER = 1002
    PLACE_TOPICS = 1010
    PLACEMENT_STATUS = 1011


class ControlHeader(NamedTuple):
    """Who commands, and which incarnation of the receiver is meant."""

    controller_id: BrokerId
    controller_epoch: int
    broker_epoch: int  # the receiver's, as the controller knows it; -1 = unknown


# --- LeaderAndIsr ---------------------------------------------------------------------------------


class LeaderAndIsrType(IntEnum):
    """FULL lists every partition of the broker: what it hosts beside them is stray (KIP-291)."""

    INCREMENTAL = 0
    FULL = 1


class LeaderAndIsrPartition(NamedTuple):
    """One replica's orders; ``partition_epoch`` is Kafka's ``zkVersion``."""

    partition_index: int
    controller_epoch: int  # of the controller that decided this leadership
    leader: BrokerId
    leader_epoch: int
    isr: tuple[BrokerId, ...]
    partition_epoch: int
    replicas: tuple[BrokerId, ...]
    adding_replicas: tuple[BrokerId, ...]
    removing_replicas: tuple[BrokerId, ...]
    is_new: bool
    leader_recovery_state: int


@dataclass(frozen=True, slots=True)
class LeaderAndIsrTopic:
    """The partitions of one topic in a LeaderAndIsr request."""

    topic_name: str
    topic_id: TopicId | None
    partition_states: tuple[LeaderAndIsrPartition, ...]


class LiveLeader(NamedTuple):
    """Where followers find a leader named in the request."""

    broker_id: BrokerId
    replication_endpoint: str | None


@dataclass(frozen=True, slots=True)
class LeaderAndIsrRequest:
    """Become leader or follower of these partitions (Kafka api 4)."""

    type: LeaderAndIsrType
    topic_states: tuple[LeaderAndIsrTopic, ...]
    live_leaders: tuple[LiveLeader, ...]

    def partitions(self) -> Iterator[tuple[TopicPartition, LeaderAndIsrPartition]]:
        """Yield every partition with its orders."""
        for topic in self.topic_states:
            for state in topic.partition_states:
                yield TopicPartition(topic.topic_name, state.partition_index), state


class PartitionError(NamedTuple):
    """The outcome for one partition."""

    topic_name: str
    partition_index: int
    error_code: Errors

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition this is about."""
        return TopicPartition(self.topic_name, self.partition_index)


@dataclass(frozen=True, slots=True)
class LeaderAndIsrResponse:
    """Answer to LeaderAndIsr; on a top-level error every requested partition repeats it."""

    error_code: Errors
    partition_errors: tuple[PartitionError, ...] = ()


# --- StopReplica ----------------------------------------------------------------------------------


class StopReplicaPartition(NamedTuple):
    """Stop one replica; ``leader_epoch`` may be NO_EPOCH or EPOCH_DURING_DELETE."""

    partition_index: int
    leader_epoch: int
    delete_partition: bool


@dataclass(frozen=True, slots=True)
class StopReplicaTopic:
    """The partitions of one topic in a StopReplica request."""

    topic_name: str
    topic_id: TopicId | None
    partition_states: tuple[StopReplicaPartition, ...]


@dataclass(frozen=True, slots=True)
class StopReplicaRequest:
    """Stop following (and, with ``delete_partition``, forget) these partitions (Kafka api 5)."""

    topic_states: tuple[StopReplicaTopic, ...]

    def partitions(self) -> Iterator[tuple[TopicPartition, StopReplicaPartition]]:
        """Yield every partition with its orders."""
        for topic in self.topic_states:
            for state in topic.partition_states:
                yield TopicPartition(topic.topic_name, state.partition_index), state


@dataclass(frozen=True, slots=True)
class StopReplicaResponse:
    """Answer to StopReplica; a top-level error has no partitions."""

    error_code: Errors
    partition_errors: tuple[PartitionError, ...] = ()


# --- UpdateMetadata -------------------------------------------------------------------------------


class UpdateMetadataPartition(NamedTuple):
    """One row of the metadata cache; ``leader`` LEADER_DURING_DELETE means: forget it."""

    partition_index: int
    controller_epoch: int
    leader: BrokerId
    leader_epoch: int
    isr: tuple[BrokerId, ...]
    partition_epoch: int
    replicas: tuple[BrokerId, ...]
    offline_replicas: tuple[BrokerId, ...]


@dataclass(frozen=True, slots=True)
class UpdateMetadataTopic:
    """The partitions of one topic in an UpdateMetadata request."""

    topic_name: str
    topic_id: TopicId | None
    partition_states: tuple[UpdateMetadataPartition, ...]


class UpdateMetadataEndPoint(NamedTuple):
    """Where clients reach a broker."""

    listener: str
    host: str
    port: int
    security_protocol: str


@dataclass(frozen=True, slots=True)
class UpdateMetadataBroker:
    """One live broker."""

    broker_id: BrokerId
    broker_epoch: int
    endpoints: tuple[UpdateMetadataEndPoint, ...]
    rack: str | None
    control_endpoint: str | None
    replication_endpoint: str | None


@dataclass(frozen=True, slots=True)
class UpdateMetadataRequest:
    """Which brokers live (complete) and what changed about partitions (a delta) (Kafka api 6)."""

    topic_states: tuple[UpdateMetadataTopic, ...]
    live_brokers: tuple[UpdateMetadataBroker, ...]

    def partitions(self) -> Iterator[tuple[TopicPartition, UpdateMetadataPartition]]:
        """Yield every partition with its row."""
        for topic in self.topic_states:
            for state in topic.partition_states:
                yield TopicPartition(topic.topic_name, state.partition_index), state


@dataclass(frozen=True, slots=True)
class UpdateMetadataResponse:
    """Answer to UpdateMetadata."""

    error_code: Errors


ControlRequest: TypeAlias = LeaderAndIsrRequest | StopReplicaRequest | UpdateMetadataRequest
ControlResponse: TypeAlias = LeaderAndIsrResponse | StopReplicaResponse | UpdateMetadataResponse


# --- requests to an actor of another process ------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ControlledShutdownRequest:
    """To the controller: hand over my leaderships, I am about to stop (Kafka api 7)."""

    broker_id: BrokerId
    broker_epoch: int


@dataclass(frozen=True, slots=True)
class ControlledShutdownResponse:
    """Safe to stop iff the error is NONE and no partition remains led by the broker."""

    error_code: Errors
    remaining_partitions: tuple[TopicPartition, ...] = ()


@dataclass(frozen=True, slots=True)
class DescribeMetadataRequest:
    """To a broker: what does your metadata cache hold? ``None`` = every topic."""

    topics: tuple[str, ...] | None = None


class MetadataPartition(NamedTuple):
    """One partition in a metadata cache."""

    topic: str
    topic_id: TopicId | None
    partition: int
    leader: BrokerId
    leader_epoch: int
    controller_epoch: int
    isr: tuple[BrokerId, ...]
    replicas: tuple[BrokerId, ...]
    offline_replicas: tuple[BrokerId, ...]
    partition_epoch: int


@dataclass(frozen=True, slots=True)
class DescribeMetadataResponse:
    """A broker's metadata cache and the state the broker is in."""

    error_code: Errors
    broker_id: BrokerId
    broker_state: str
    controller_id: BrokerId  # -1 = none known
    controller_epoch: int
    brokers: tuple[UpdateMetadataBroker, ...] = ()
    partitions: tuple[MetadataPartition, ...] = ()


@dataclass(frozen=True, slots=True)
class DescribeTopicsRequest:
    """To the controller: what do you know of these topics? ``None`` = every topic."""

    topics: tuple[str, ...] | None = None


class ControllerPartition(NamedTuple):
    """One partition as the controller sees it; leader and epoch are -1 before its election."""

    topic: str
    partition: int
    leader: BrokerId
    leader_epoch: int
    isr: tuple[BrokerId, ...]
    replicas: tuple[BrokerId, ...]


@dataclass(frozen=True, slots=True)
class DescribeTopicsResponse:
    """The controller's view; a topic it does not know has no rows."""

    error_code: Errors
    controller_epoch: int = 0
    partitions: tuple[ControllerPartition, ...] = ()


@dataclass(frozen=True, slots=True)
class ShutdownBrokerRequest:
    """To a broker: shut down in a controlled way; answered before the process ends."""


@dataclass(frozen=True, slots=True)
class ShutdownBrokerResponse:
    """What the controller could not move away; the broker stops all the same."""

    error_code: Errors
    remaining_partitions: tuple[TopicPartition, ...] = ()


class PlacementSpec(NamedTuple):
    """One topic to place; ``start_partition`` > 0 when a topic grows."""

    topic: str
    partitions: int  # how many to place
    replication_factor: int
    start_partition: int


class PlacementBroker(NamedTuple):
    """A broker that may hold replicas, with what it already holds."""

    broker_id: BrokerId
    rack: str | None
    replica_count: int


@dataclass(frozen=True, slots=True)
class PlaceTopicsRequest:
    """To the placement service: place these partitions in one job.

    ``strategy`` is "ring", "kafka" or "rack-aware"; ``start_index`` a decimal number, "random" or
    "least-loaded"; ``index`` "batch" or "per-topic".
    """

    topics: tuple[PlacementSpec, ...]
    brokers: tuple[PlacementBroker, ...]
    strategy: str
    start_index: str
    index: str
    seed: int


class PlacedPartition(NamedTuple):
    """The replicas of one placed partition, preferred leader first."""

    topic: str
    partition: int
    replicas: tuple[BrokerId, ...]


@dataclass(frozen=True, slots=True)
class PlaceTopicsResponse:
    """The placement, sorted by (topic, partition); ``message`` says why on an error."""

    error_code: Errors
    message: str = ""
    partitions: tuple[PlacedPartition, ...] = ()


@dataclass(frozen=True, slots=True)
class PlacementStatusRequest:
    """To the placement service: are you warm?"""


@dataclass(frozen=True, slots=True)
class PlacementStatusResponse:
    """``state`` is "starting", "warming", "ready" or "failed"; ``message`` says more."""

    error_code: Errors
    state: str
    message: str = ""


ActorRequest: TypeAlias = (
    ControlledShutdownRequest
    | DescribeMetadataRequest
    | DescribeTopicsRequest
    | ShutdownBrokerRequest
    | PlaceTopicsRequest
    | PlacementStatusRequest
)
ActorResponse: TypeAlias = (
    ControlledShutdownResponse
    | DescribeMetadataResponse
    | DescribeTopicsResponse
    | ShutdownBrokerResponse
    | PlaceTopicsResponse
    | PlacementStatusResponse
)
