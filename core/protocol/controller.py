"""What brokers and people ask the controller."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, TypeAlias

from regent.core.errors import Errors
from regent.core.model import NO_EPOCH, NO_LEADER, BrokerId, TopicPartition
from regent.core.protocol.control import TopicId


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


class AlterPartitionRow(NamedTuple):
    """The ISR a leader proposes for one partition (KIP-497).

    ``isr_broker_epochs`` has the broker epoch of each member of ``new_isr`` as the leader knows it
    from fetches, -1 when unknown (KIP-903). ``partition_epoch`` is the one it replaces.
    """

    topic: str
    partition: int
    topic_id: TopicId | None
    leader_epoch: int
    new_isr: tuple[BrokerId, ...]
    isr_broker_epochs: tuple[int, ...]
    leader_recovery_state: int
    partition_epoch: int

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition this is about."""
        return TopicPartition(self.topic, self.partition)


@dataclass(frozen=True, slots=True)
class AlterPartitionRequest:
    """To the controller: let these be the ISRs of partitions I lead (Kafka api 56)."""

    broker_id: BrokerId
    broker_epoch: int
    partitions: tuple[AlterPartitionRow, ...]


class AlteredPartition(NamedTuple):
    """What became of one proposal, and what the controller holds now (-1 and empty: nothing)."""

    topic: str
    partition: int
    error_code: Errors
    leader: BrokerId = NO_LEADER
    leader_epoch: int = NO_EPOCH
    isr: tuple[BrokerId, ...] = ()
    leader_recovery_state: int = 0
    partition_epoch: int = -1

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition this is about."""
        return TopicPartition(self.topic, self.partition)


@dataclass(frozen=True, slots=True)
class AlterPartitionResponse:
    """Answer to AlterPartition; on a top-level error nothing was looked at."""

    error_code: Errors
    partitions: tuple[AlteredPartition, ...] = ()


class ElectionType(IntEnum):
    """Which election people ask for."""

    PREFERRED = 0
    UNCLEAN = 1


@dataclass(frozen=True, slots=True)
class ElectLeadersRequest:
    """To the controller: elect leaders; ``partitions`` None means all of them (Kafka api 43)."""

    election_type: ElectionType
    partitions: tuple[TopicPartition, ...] | None = None


class ElectedPartition(NamedTuple):
    """The outcome of one election; ``leader`` is the one elected, -1 on an error."""

    topic: str
    partition: int
    error_code: Errors
    message: str = ""
    leader: BrokerId = NO_LEADER


@dataclass(frozen=True, slots=True)
class ElectLeadersResponse:
    """Answer to ElectLeaders; who asked for all is not told of those that needed no election."""

    error_code: Errors
    partitions: tuple[ElectedPartition, ...] = ()


class ReassignablePartition(NamedTuple):
    """Where a partition shall move; ``replicas`` None cancels what is under way."""

    topic: str
    partition: int
    replicas: tuple[BrokerId, ...] | None


@dataclass(frozen=True, slots=True)
class AlterPartitionReassignmentsRequest:
    """To the controller: move partitions to these replicas (Kafka api 45, KIP-455)."""

    partitions: tuple[ReassignablePartition, ...]


class ReassignedPartition(NamedTuple):
    """Whether a reassignment was accepted and stored; it is not finished by then."""

    topic: str
    partition: int
    error_code: Errors
    message: str = ""


@dataclass(frozen=True, slots=True)
class AlterPartitionReassignmentsResponse:
    """Answer to AlterPartitionReassignments."""

    error_code: Errors
    partitions: tuple[ReassignedPartition, ...] = ()


@dataclass(frozen=True, slots=True)
class ListPartitionReassignmentsRequest:
    """To the controller: what is being moved? None = everything (Kafka api 46)."""

    partitions: tuple[TopicPartition, ...] | None = None


class OngoingReassignment(NamedTuple):
    """One partition that is being moved."""

    topic: str
    partition: int
    replicas: tuple[BrokerId, ...]
    adding_replicas: tuple[BrokerId, ...]
    removing_replicas: tuple[BrokerId, ...]


@dataclass(frozen=True, slots=True)
class ListPartitionReassignmentsResponse:
    """Answer to ListPartitionReassignments; only partitions that are being reassigned."""

    error_code: Errors
    partitions: tuple[OngoingReassignment, ...] = ()


@dataclass(frozen=True, slots=True)
class DescribeControllerRequest:
    """To the controller: how are you?"""


class UnansweredRequest(NamedTuple):
    """A request a broker has left unanswered for longer than it should."""

    broker_id: BrokerId
    request: str
    unanswered_ms: int


@dataclass(frozen=True, slots=True)
class DescribeControllerResponse:
    """The status of the controller; an inactive controller answers NOT_CONTROLLER.

    ``refused_states`` names some of the partitions whose state an ACL keeps it from changing.
    """

    error_code: Errors
    controller_epoch: int = 0
    event_queue_size: int = 0
    topics_to_be_deleted: tuple[str, ...] = ()
    topics_ineligible_for_deletion: tuple[str, ...] = ()
    reassigning_partitions: int = 0
    unanswered: tuple[UnansweredRequest, ...] = ()
    refused_states: tuple[TopicPartition, ...] = ()


ControllerRequest: TypeAlias = (
    ControlledShutdownRequest
    | DescribeControllerRequest
    | AlterPartitionRequest
    | ElectLeadersRequest
    | AlterPartitionReassignmentsRequest
    | ListPartitionReassignmentsRequest
)
ControllerResponse: TypeAlias = (
    ControlledShutdownResponse
    | DescribeControllerResponse
    | AlterPartitionResponse
    | ElectLeadersResponse
    | AlterPartitionReassignmentsResponse
    | ListPartitionReassignmentsResponse
)
