"""Everything that can happen to the controller; mirrors ``kafka.controller.ControllerEvent``.

An event carries no data that ZooKeeper holds: its handler reads the present data. Requests carry a
``request_id`` and are answered exactly once, by a ``SendResponse`` effect with that id.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, TypeAlias, get_args

from regent.core.model import BrokerId, EndPoint, TopicPartition
from regent.core.protocol.control import (
    ControlHeader,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    StopReplicaRequest,
    StopReplicaResponse,
    UpdateMetadataResponse,
)
from regent.core.protocol.controller import (
    AlterPartitionRequest,
    AwaitBrokersRequest,
    ControlledShutdownRequest,
    ControllerRequest,
    DescribeControllerRequest,
    MoveControllerRequest,
    NoteOperationRequest,
    UndeleteTopicRequest,
)
from regent.core.protocol.messages.partitions import (
    AlterPartitionReassignmentsRequest,
    ElectLeadersRequest,
    ListPartitionReassignmentsRequest,
)

RequestId: TypeAlias = int


class ElectionTrigger(StrEnum):
    """Who asked for an election of leaders. The values are Kafka's names, as Kafka logs them."""

    AUTO_TRIGGERED = "AutoTriggered"
    ZK_TRIGGERED = "ZkTriggered"
    ADMIN_CLIENT_TRIGGERED = "AdminClientTriggered"


@dataclass(frozen=True, slots=True)
class Startup:
    """The broker has registered for the first time: find the controller, or become it."""


@dataclass(frozen=True, slots=True)
class ControllerChange:
    """``/controller`` was created or its data changed."""


@dataclass(frozen=True, slots=True)
class Reelect:
    """``/controller`` was deleted."""


@dataclass(frozen=True, slots=True)
class Expire:
    """The ZooKeeper session is over; the next one does not exist yet."""


@dataclass(frozen=True, slots=True)
class RegisterBrokerAndReelect:
    """A new ZooKeeper session exists."""


@dataclass(frozen=True, slots=True)
class RegistrationDeleted:
    """The registration of this broker was deleted by hand while its session goes on."""


@dataclass(frozen=True, slots=True)
class ElectionDoubted:
    """A broker refused our request, because ZooKeeper names another controller or epoch."""


@dataclass(frozen=True, slots=True)
class SuspectReplicasChanged:
    """Replicas of this broker became suspect, or are no longer suspect."""


@dataclass(frozen=True, slots=True)
class ReplicasGivenUp:
    """A controller of Kafka takes replicas of this broker, in this broker epoch, for failed.

    They are not: they have refused to lead on in one leader epoch.
    """

    broker_epoch: int


@dataclass(frozen=True, slots=True)
class AdvertisedListenersChanged:
    """This broker shall be registered with other endpoints, which clients are told (KIP-226)."""

    endpoints: tuple[EndPoint, ...]


@dataclass(frozen=True, slots=True)
class Resign:
    """An unexpected error occurred: resign and let another broker be elected.

    ``event`` names what was being handled, ``topic`` what it was about, as far as that is known.
    """

    reason: str
    event: str = ""
    topic: str | None = None


@dataclass(frozen=True, slots=True)
class MoveController:
    """An operator asks this broker to take the place of the controller with this epoch."""

    request_id: RequestId
    controller_epoch: int
    epoch_zk_version: int


@dataclass(frozen=True, slots=True)
class UndeleteTopic:
    """An operator asks to bring a deleted topic back."""

    request_id: RequestId
    request: UndeleteTopicRequest


@dataclass(frozen=True, slots=True)
class OperationNoted:
    """An operator has changed something; the journal shall say what, and who it was."""

    request_id: RequestId
    request: NoteOperationRequest


@dataclass(frozen=True, slots=True)
class StandAgain:
    """The pause after a resignation is over: stand for election again."""


@dataclass(frozen=True, slots=True)
class BrokerChange:
    """Brokers registered, or their registrations ended."""


@dataclass(frozen=True, slots=True)
class BrokerModifications:
    """A registered broker changed the data of its registration."""

    broker_id: BrokerId


@dataclass(frozen=True, slots=True)
class TopicChange:
    """Topic znodes were created or deleted."""


@dataclass(frozen=True, slots=True)
class PartitionModifications:
    """A topic's znode changed."""

    topic: str


@dataclass(frozen=True, slots=True)
class TopicDeletion:
    """``/admin/delete_topics`` has a new request."""


@dataclass(frozen=True, slots=True)
class ZkPartitionReassignment:
    """``/admin/reassign_partitions`` was written, or what it named is done."""


@dataclass(frozen=True, slots=True)
class PartitionReassignmentIsrChange:
    """The state of a partition that is being moved changed (ISR changes through ZooKeeper)."""

    topic_partition: TopicPartition


@dataclass(frozen=True, slots=True)
class PreferredReplicaElection:
    """``/admin/preferred_replica_election`` was written."""

    trigger: ClassVar = ElectionTrigger.ZK_TRIGGERED


@dataclass(frozen=True, slots=True)
class IsrChangeNotification:
    """Leaders changed ISRs in ZooKeeper themselves."""


@dataclass(frozen=True, slots=True)
class LogDirEventNotification:
    """A log directory of some broker failed."""


@dataclass(frozen=True, slots=True)
class AutoPreferredReplicaLeaderElection:
    """It is time to check whether leaderships are balanced; scheduled in the term of this epoch."""

    trigger: ClassVar = ElectionTrigger.AUTO_TRIGGERED

    controller_epoch: int


@dataclass(frozen=True, slots=True)
class UncleanLeaderElectionEnable:
    """The default for unclean elections changed while running."""

    enabled: bool


@dataclass(frozen=True, slots=True)
class TopicUncleanLeaderElectionEnable:
    """A topic now allows unclean elections."""

    topic: str


@dataclass(frozen=True, slots=True)
class ControlledShutdown:
    """A broker asks to hand over its leaderships before it stops."""

    request_id: RequestId
    broker_id: BrokerId
    broker_epoch: int


@dataclass(frozen=True, slots=True)
class ControlledShutdownTimeout:
    """The time in which new leaders must respond to a controlled shutdown is over."""

    request_id: RequestId
    controller_epoch: int


@dataclass(frozen=True, slots=True)
class ControlledShutdownAbandoned:
    """A broker that asked to stop is still registered long after the answer."""

    broker_id: BrokerId
    broker_epoch: int
    controller_epoch: int


@dataclass(frozen=True, slots=True)
class AlterPartitionReceived:
    """A leader proposes ISRs."""

    request_id: RequestId
    request: AlterPartitionRequest


@dataclass(frozen=True, slots=True)
class ReplicaLeaderElection:
    """A request for leader elections."""

    trigger: ClassVar = ElectionTrigger.ADMIN_CLIENT_TRIGGERED

    request_id: RequestId
    request: ElectLeadersRequest


@dataclass(frozen=True, slots=True)
class ApiPartitionReassignment:
    """A request to reassign partitions."""

    request_id: RequestId
    request: AlterPartitionReassignmentsRequest


@dataclass(frozen=True, slots=True)
class ListPartitionReassignments:
    """A request for the reassignments in progress."""

    request_id: RequestId
    request: ListPartitionReassignmentsRequest


@dataclass(frozen=True, slots=True)
class LeaderAndIsrResponseReceived:
    """A broker answered a LeaderAndIsr; ``header`` is the one the request carried.

    ``answered_ms`` is the time from the first attempt to deliver the request to the answer.
    """

    broker_id: BrokerId
    header: ControlHeader
    request: LeaderAndIsrRequest
    response: LeaderAndIsrResponse
    answered_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class UpdateMetadataResponseReceived:
    """A broker answered an UpdateMetadata; see ``LeaderAndIsrResponseReceived``."""

    broker_id: BrokerId
    header: ControlHeader
    response: UpdateMetadataResponse
    answered_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class TopicDeletionStopReplicaResponseReceived:
    """A broker answered a StopReplica that deletes replicas of topics that are being deleted."""

    broker_id: BrokerId
    header: ControlHeader
    request: StopReplicaRequest
    response: StopReplicaResponse
    answered_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class LookAgain:
    """A znode cannot be read any more, or can be read again: changes may have been missed.

    ZooKeeper sends no watch event to a session that may not read the znode.
    """


@dataclass(frozen=True, slots=True)
class CheckBrokers:
    """It is time to check which brokers answer; scheduled in the term of this epoch."""

    controller_epoch: int


@dataclass(frozen=True, slots=True)
class DeleteExpiredTokens:
    """It is time to delete expired delegation tokens; scheduled in the term of this epoch."""

    controller_epoch: int


@dataclass(frozen=True, slots=True)
class EventsLost:
    """There was no room for all events: the controller must read everything again."""


@dataclass(frozen=True, slots=True)
class ControllerFailuresChange:
    """The list of failures that ended controllers has changed."""


@dataclass(frozen=True, slots=True)
class ReadAgain:
    """It is time to read unreadable znodes again; scheduled in the term of this epoch."""

    controller_epoch: int


@dataclass(frozen=True, slots=True)
class ChannelOverflowed:
    """A broker left too many requests unanswered: the requests queued for it were dropped.

    It must be told everything again, as if it had just started.
    """

    broker_id: BrokerId
    header: ControlHeader


@dataclass(frozen=True, slots=True)
class BrokerUnusable:
    """A broker takes no requests of this controller, for a reason that remains: an older Kafka.

    Its requests are sent again until it takes them. This event is for the journal.
    """

    broker_id: BrokerId
    header: ControlHeader
    reason: str


@dataclass(frozen=True, slots=True)
class ControlRequestFailed:
    """A broker failed to handle a control request some time ago: send it again."""

    broker_id: BrokerId
    header: ControlHeader


ControllerEvent: TypeAlias = (
    Startup
    | ControllerChange
    | Reelect
    | Expire
    | RegisterBrokerAndReelect
    | RegistrationDeleted
    | ElectionDoubted
    | SuspectReplicasChanged
    | ReplicasGivenUp
    | AdvertisedListenersChanged
    | Resign
    | MoveController
    | UndeleteTopic
    | OperationNoted
    | StandAgain
    | BrokerChange
    | BrokerModifications
    | TopicChange
    | PartitionModifications
    | TopicDeletion
    | ZkPartitionReassignment
    | PartitionReassignmentIsrChange
    | PreferredReplicaElection
    | IsrChangeNotification
    | LogDirEventNotification
    | AutoPreferredReplicaLeaderElection
    | UncleanLeaderElectionEnable
    | TopicUncleanLeaderElectionEnable
    | ControlledShutdown
    | ControlledShutdownTimeout
    | ControlledShutdownAbandoned
    | AlterPartitionReceived
    | ReplicaLeaderElection
    | ApiPartitionReassignment
    | ListPartitionReassignments
    | LeaderAndIsrResponseReceived
    | UpdateMetadataResponseReceived
    | TopicDeletionStopReplicaResponseReceived
    | ChannelOverflowed
    | BrokerUnusable
    | ControlRequestFailed
    | ReadAgain
    | ControllerFailuresChange
    | EventsLost
    | CheckBrokers
    | DeleteExpiredTokens
    | LookAgain
)

ElectionEvent: TypeAlias = (
    PreferredReplicaElection | AutoPreferredReplicaLeaderElection | ReplicaLeaderElection
)
"""The events that elect leaders on request; ``trigger`` says who asked. (In Kafka the first and the
last are one event with a trigger. Here they differ also in how they are queued and quarantined.)"""

_EVENTS: tuple[type[ControllerEvent], ...] = get_args(ControllerEvent)

_IDEMPOTENT_TRIGGERS = (
    SuspectReplicasChanged,
    ReplicasGivenUp,
    ElectionDoubted,
    ControllerChange,
    Reelect,
    RegistrationDeleted,
    BrokerChange,
    BrokerModifications,
    TopicChange,
    PartitionModifications,
    TopicDeletion,
    ZkPartitionReassignment,
    PartitionReassignmentIsrChange,
    PreferredReplicaElection,
    IsrChangeNotification,
    LogDirEventNotification,
    AutoPreferredReplicaLeaderElection,
    TopicUncleanLeaderElectionEnable,
    ReadAgain,
    ControllerFailuresChange,
    EventsLost,
    CheckBrokers,
    DeleteExpiredTokens,
    LookAgain,
)

_ABOUT_ONE_OF_MANY = (
    MoveController,
    UndeleteTopic,
    OperationNoted,
    BrokerModifications,
    PartitionModifications,
    TopicUncleanLeaderElectionEnable,
    ControlledShutdown,
    ControlledShutdownTimeout,
    ControlledShutdownAbandoned,
    AlterPartitionReceived,
    ReplicaLeaderElection,
    ApiPartitionReassignment,
    ListPartitionReassignments,
    LeaderAndIsrResponseReceived,
    UpdateMetadataResponseReceived,
    TopicDeletionStopReplicaResponseReceived,
    ChannelOverflowed,
    BrokerUnusable,
    ControlRequestFailed,
)


def is_always_queued(event: object) -> bool:
    """Whether an event is queued even in a full queue, because there are only a few of its kind.

    ``EventsLost`` replaces all other events. A watch fires once: if its event is dropped, no later
    event reports the change.

    There may be many ``PartitionReassignmentIsrChange``, one for each partition that is moved. They
    are queued nevertheless, because the beginning of a term causes them: it writes the states of
    these partitions. If they were dropped, each ``EventsLost`` would cause the next.
    """
    is_event = isinstance(event, _EVENTS)
    return is_event and not isinstance(event, _ABOUT_ONE_OF_MANY)


def collapse_key(event: object) -> Hashable | None:
    """Return a key: of several queued events with the same key, one is enough. None: all count.

    The handlers of such events read the present state of a path, so one run after the last event is
    enough. (Kafka queues every one and can pile up thousands.)
    """
    return event if isinstance(event, _IDEMPOTENT_TRIGGERS) else None


def outlives_term(event: ControllerEvent) -> bool:
    """Whether a scheduled event concerns the broker, so that it stays scheduled after the term."""
    return isinstance(
        event, RegisterBrokerAndReelect | SuspectReplicasChanged | ReplicasGivenUp | StandAgain
    )


def event_of(request: ControllerRequest, request_id: RequestId) -> ControllerEvent:
    """Return the event that a request to the controller becomes.

    DescribeControllerRequest and AwaitBrokersRequest become none: the owner of the event queue
    answers them.
    """
    match request:
        case ControlledShutdownRequest(broker_id, broker_epoch):
            return ControlledShutdown(request_id, broker_id, broker_epoch)
        case MoveControllerRequest(controller_epoch, epoch_zk_version):
            return MoveController(request_id, controller_epoch, epoch_zk_version)
        case UndeleteTopicRequest():
            return UndeleteTopic(request_id, request)
        case NoteOperationRequest():
            return OperationNoted(request_id, request)
        case AlterPartitionRequest():
            return AlterPartitionReceived(request_id, request)
        case ElectLeadersRequest():
            return ReplicaLeaderElection(request_id, request)
        case AlterPartitionReassignmentsRequest():
            return ApiPartitionReassignment(request_id, request)
        case ListPartitionReassignmentsRequest():
            return ListPartitionReassignments(request_id, request)
        case DescribeControllerRequest() | AwaitBrokersRequest():
            raise AssertionError("answered without an event")
