"""The control requests: LeaderAndIsr, StopReplica and UpdateMetadata, and their epochs.

``TopicId`` is Kafka's 22-character base64url form of a UUID.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, TypeAlias

from regent.core.errors import Errors
from regent.core.model import NO_BROKER, BrokerId, TopicPartition, control_peer

TopicId: TypeAlias = str


def differ(one: TopicId | None, other: TopicId | None) -> bool:
    """Whether two topic ids differ; an unknown one (None) matches any."""
    return None not in (one, other) and one != other


class ControlHeader(NamedTuple):
    """The controller that sends a request, the receiver and its registration, and the cause.

    ``sequence`` grows with every attempt of a controller to deliver a request, so that a receiver
    recognises a late copy of an earlier request of its kind (see ``may_be_unanswered_together``);
    0: unknown. On the wire it is the correlation id.
    ``event_id`` is the number of the controller event that caused the request.
    """

    controller_id: BrokerId
    controller_epoch: int
    broker_epoch: int  # the receiver's, as the controller knows it
    sequence: int = 0
    event_id: int = 0
    broker_id: BrokerId = NO_BROKER  # the receiver, which refuses requests for others

    @property
    def cause(self) -> str:
        """The event in logs and in the journal: ``<controller epoch>-<event id>``."""
        return f"{self.controller_epoch}-{self.event_id}"


class LeaderAndIsrType(IntEnum):
    """FULL lists all partitions of the broker: others that it hosts are stray (KIP-516)."""

    INCREMENTAL = 0
    FULL = 1


class LeaderAndIsrPartition(NamedTuple):
    """The new state of one replica; ``partition_epoch`` is Kafka's ``zkVersion``."""

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
    """The partitions of one topic in a LeaderAndIsr request.

    ``with_eligible_replicas``: the numbers, in order, of those of which replicas outside the ISR
    may be elected (KIP-966). Their leaders commit nothing in this state. Kafka does not say it.
    """

    topic_name: str
    topic_id: TopicId | None
    partition_states: tuple[LeaderAndIsrPartition, ...]
    with_eligible_replicas: tuple[int, ...] = ()

    def has_eligible_replicas(self, state: LeaderAndIsrPartition) -> bool:
        """Whether replicas outside the ISR may be elected in this state."""
        at = bisect_left(self.with_eligible_replicas, state.partition_index)
        return self.with_eligible_replicas[at : at + 1] == (state.partition_index,)


class LiveLeader(NamedTuple):
    """The replication endpoint of a leader in the request, for its followers."""

    broker_id: BrokerId
    replication_endpoint: str | None


@dataclass(frozen=True, slots=True)
class LeaderAndIsrRequest:
    """Become leader or follower of these partitions (Kafka api 4).

    A FULL request may be split into ``parts`` requests; ``part`` is the number of this one, from 0.
    Together they list all partitions of the receiver.
    """

    type: LeaderAndIsrType
    topic_states: tuple[LeaderAndIsrTopic, ...]
    live_leaders: tuple[LiveLeader, ...]
    part: int = 0
    parts: int = 1

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
    """Answer to LeaderAndIsr; on a top-level error every requested partition repeats it.

    With STALE_CONTROLLER_EPOCH, ``controller_epoch`` is the epoch in which the receiver accepted
    another controller; 0: it accepted no other.
    """

    error_code: Errors
    partition_errors: tuple[PartitionError, ...] = ()
    controller_epoch: int = 0


class StopReplicaPartition(NamedTuple):
    """Stop one replica.

    ``leader_epoch`` may be NO_EPOCH, EPOCH_DURING_DELETE, or EPOCH_OF_LOST_TOPIC: then the log is
    not deleted but renamed as stray. Kafka's brokers refuse the last one as an old epoch.
    """

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
    """Stop following these partitions; with ``delete_partition`` delete them (Kafka api 5)."""

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


class UpdateMetadataPartition(NamedTuple):
    """One row of the metadata cache; ``leader`` LEADER_DURING_DELETE: remove the partition."""

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
    """The partitions of one topic in an UpdateMetadata request.

    ``coordinated_partitions``, of an internal topic: over how many partitions its keys are spread.
    It is sent with every partition, because a request may list only some of them. 0: of another
    topic, or the controller is of an earlier version.
    """

    topic_name: str
    topic_id: TopicId | None
    partition_states: tuple[UpdateMetadataPartition, ...]
    coordinated_partitions: int = 0


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
    control_key: str | None = None
    no_replicas: bool = False
    node_host: str | None = None

    @property
    def control_peer(self) -> str | None:
        """The control endpoint with the key of who answers there."""
        return control_peer(self.control_endpoint, self.control_key)


@dataclass(frozen=True, slots=True)
class UpdateMetadataRequest:
    """All live brokers, and the partitions that changed (Kafka api 6).

    With ``is_full`` it lists all partitions of the cluster, and the receiver removes all others
    from its cache. Kafka has no such request: a topic that vanished between two controllers stays
    in its brokers' caches. A full request may be split into ``parts``, as a FULL LeaderAndIsr.

    With ``lists_all`` it lists all partitions that the controller could read. The receiver removes
    nothing, but waits for no others.
    """

    topic_states: tuple[UpdateMetadataTopic, ...]
    live_brokers: tuple[UpdateMetadataBroker, ...]
    is_full: bool = False
    part: int = 0
    parts: int = 1
    lists_all: bool = False

    def partitions(self) -> Iterator[tuple[TopicPartition, UpdateMetadataPartition]]:
        """Yield every partition with its row."""
        for topic in self.topic_states:
            for state in topic.partition_states:
                yield TopicPartition(topic.topic_name, state.partition_index), state


@dataclass(frozen=True, slots=True)
class UpdateMetadataResponse:
    """Answer to UpdateMetadata; ``controller_epoch`` as in LeaderAndIsrResponse."""

    error_code: Errors
    controller_epoch: int = 0


ControlRequest: TypeAlias = LeaderAndIsrRequest | StopReplicaRequest | UpdateMetadataRequest


ControlResponse: TypeAlias = LeaderAndIsrResponse | StopReplicaResponse | UpdateMetadataResponse


def may_be_unanswered_together(first: ControlRequest, second: ControlRequest) -> bool:
    """Whether a controller may send ``second`` to a broker before ``first`` is answered.

    ``first`` may be lost and sent again after ``second``. So exactly one of them must be an
    UpdateMetadata: what clients are told and what the replicas do are independent. A LeaderAndIsr
    after the StopReplica that followed it would bring a deleted replica back.
    """
    return isinstance(first, UpdateMetadataRequest) != isinstance(second, UpdateMetadataRequest)
