"""Requests of brokers and commands to the active controller."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from regent.core.errors import Errors
from regent.core.model import NO_EPOCH, NO_LEADER, BrokerId, TopicPartition
from regent.core.protocol.control import TopicId
from regent.core.protocol.messages.partitions import PartitionsRequest, PartitionsResponse


@dataclass(frozen=True, slots=True)
class ControlledShutdownRequest:
    """Asks the controller to move the leaderships of a broker that will stop (Kafka api 7)."""

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
    from fetches, -1 when unknown (KIP-903). ``partition_epoch`` is that of the ISR to replace: if
    ``new_isr`` is that ISR, the leader asks that no replica outside it stays eligible (KIP-966).
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


UNNUMBERED: Final = -1


@dataclass(frozen=True, slots=True)
class AlterPartitionRequest:
    """New ISRs that a broker proposes for partitions it leads (Kafka api 56).

    ``attempt``: grows with each request that the broker sends. It knows no number of Kafka's.
    """

    broker_id: BrokerId
    broker_epoch: int
    partitions: tuple[AlterPartitionRow, ...]
    attempt: int = UNNUMBERED


class AlteredPartition(NamedTuple):
    """The outcome of one proposal, and the controller's state now (-1 and empty: none)."""

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
    """Answer to AlterPartition; on a top-level error no proposal was processed.

    ``with_eligible_replicas``: as in LeaderAndIsr.
    """

    error_code: Errors
    partitions: tuple[AlteredPartition, ...] = ()
    with_eligible_replicas: tuple[TopicPartition, ...] = ()


@dataclass(frozen=True, slots=True)
class DescribeControllerRequest:
    """Asks for the status of the controller."""


class UnansweredRequest(NamedTuple):
    """A control request that a broker has not answered for too long, or that another answers.

    ``reason`` is what is known of the cause; an empty string: nothing.
    """

    broker_id: BrokerId
    request: str
    unanswered_ms: int
    reason: str = ""


class BrokerSoftware(NamedTuple):
    """What a broker is, as far as the controller knows: "regent", or "kafka 3.9" for example."""

    broker_id: BrokerId
    software: str


class DepartedBroker(NamedTuple):
    """A broker whose registration ended while this controller was active (wall clock)."""

    broker_id: BrokerId
    at_ms: int


class ReturnedBroker(NamedTuple):
    """How often a broker has left and come back in the last hour, as this controller has seen it.

    ``last_ms`` is when it came back last (wall clock), ``away_ms`` how long it was away then.
    """

    broker_id: BrokerId
    times: int
    last_ms: int
    away_ms: int


class OfflineReplicas(NamedTuple):
    """How many replicas of a broker are offline although it lives, and some of them."""

    broker_id: BrokerId
    number: int
    some: tuple[TopicPartition, ...]


class AnswerTimes(NamedTuple):
    """How long a broker took for control requests in the last minute, in milliseconds.

    ``slowest_ms`` is the time that 99 of 100 answers did not exceed. ``slow``: how many took more
    than a second.
    """

    broker_id: BrokerId
    answers: int
    median_ms: int
    slowest_ms: int
    slow: int = 0


@dataclass(frozen=True, slots=True)
class DescribeControllerResponse:
    """The status of the controller; an inactive controller answers NOT_CONTROLLER.

    ``refused_states``: some of the partitions whose ``state`` znode has an ACL that refuses the
    controller's writes.
    """

    error_code: Errors
    controller_epoch: int = 0
    event_queue_size: int = 0
    topics_to_be_deleted: tuple[str, ...] = ()
    topics_ineligible_for_deletion: tuple[str, ...] = ()
    reassigning_partitions: int = 0
    unanswered: tuple[UnansweredRequest, ...] = ()
    refused_states: tuple[TopicPartition, ...] = ()
    software: tuple[BrokerSoftware, ...] = ()
    departed: tuple[DepartedBroker, ...] = ()
    answer_times: tuple[AnswerTimes, ...] = ()
    offline_replicas: tuple[OfflineReplicas, ...] = ()
    returned: tuple[ReturnedBroker, ...] = ()


@dataclass(frozen=True, slots=True)
class AwaitBrokersRequest:
    """Asks when the brokers have carried out what the controller has told them until now."""

    timeout_ms: int


@dataclass(frozen=True, slots=True)
class AwaitBrokersResponse:
    """``behind``: brokers that have not answered in time, or that have been silent for longer.

    An inactive controller answers NOT_CONTROLLER.
    """

    error_code: Errors
    behind: tuple[BrokerId, ...] = ()


@dataclass(frozen=True, slots=True)
class MoveControllerRequest:
    """Asks a broker to become the controller, in the place of the one that the sender knows.

    The fields are the epoch of that one and the version of ``/controller_epoch``.
    """

    controller_epoch: int
    epoch_zk_version: int


@dataclass(frozen=True, slots=True)
class MoveControllerResponse:
    """NOT_CONTROLLER: the broker is not the controller, for the reason in ``message``."""

    error_code: Errors
    message: str = ""


class HeldLogs(NamedTuple):
    """The partitions of a deleted topic of which a broker keeps its logs, in one broker epoch."""

    broker_id: BrokerId
    broker_epoch: int
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class UndeleteTopicRequest:
    """Asks the controller to bring a deleted topic back.

    ``deletion_zxid``: the zxid of the last change of its znode below ``/regent/deleted_topics``.
    ``held``: what the brokers have answered to ``HoldDeletedLogsRequest`` since that was read.
    """

    topic: str
    topic_id: TopicId
    deletion_zxid: int
    held: tuple[HeldLogs, ...]


@dataclass(frozen=True, slots=True)
class UndeleteTopicResponse:
    """``problem`` is empty if the topic is back."""

    error_code: Errors
    problem: str = ""


@dataclass(frozen=True, slots=True)
class NoteOperationRequest:
    """Asks the controller to write into its journal what an operator has done, and who it was."""

    user: str
    done: str


@dataclass(frozen=True, slots=True)
class NoteOperationResponse:
    """An inactive controller answers NOT_CONTROLLER."""

    error_code: Errors


ControllerRequest: TypeAlias = (
    ControlledShutdownRequest
    | MoveControllerRequest
    | NoteOperationRequest
    | UndeleteTopicRequest
    | DescribeControllerRequest
    | AwaitBrokersRequest
    | AlterPartitionRequest
    | PartitionsRequest
)
ControllerResponse: TypeAlias = (
    ControlledShutdownResponse
    | MoveControllerResponse
    | NoteOperationResponse
    | UndeleteTopicResponse
    | DescribeControllerResponse
    | AwaitBrokersResponse
    | AlterPartitionResponse
    | PartitionsResponse
)
