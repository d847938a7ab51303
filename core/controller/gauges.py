"""The gauges of ``kafka.controller:type=KafkaController``, and the names of its timers.

Mirrors ``kafka.controller.ControllerState`` too: the kind of event that the controller handles, as
a number and as the name of a timer. Timers have Kafka's names, also the historic ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from regent.core.controller import events
from regent.core.controller.context import ControllerContext
from regent.core.controller.events import ControllerEvent
from regent.core.controller.states import ReplicaState
from regent.core.model import NO_CONTROLLER, BrokerId


@dataclass(frozen=True, slots=True)
class ControllerGauges:
    """The gauges of one broker's controller; the names are Kafka's in Python case."""

    active_controller_count: int = 0
    current_controller_id: BrokerId = NO_CONTROLLER
    offline_partitions_count: int = 0
    preferred_replica_imbalance_count: int = 0
    global_topic_count: int = 0
    global_partition_count: int = 0
    topics_to_delete_count: int = 0
    replicas_to_delete_count: int = 0
    topics_ineligible_to_delete_count: int = 0
    replicas_ineligible_to_delete_count: int = 0
    active_broker_count: int = 0
    fenced_broker_count: int = 0  # registered, but they do not answer
    unusable_topic_count: int = 0
    quarantined_count: int = 0


def take_gauges(
    context: ControllerContext, current_controller_id: BrokerId, *, is_active: bool
) -> ControllerGauges:
    """Return the gauges, which are taken after every event.

    A broker that is not the active controller shows zeros. Only the partitions of topics that are
    to be deleted are counted one by one.
    """
    if not is_active:
        return ControllerGauges(current_controller_id=current_controller_id)
    to_delete = ineligible = 0
    for topic in context.topics_to_be_deleted:
        for replica in context.each_replica_of(context.partitions_of(topic)):
            state = context.replica_state(replica)
            to_delete += state is not ReplicaState.DELETION_SUCCESSFUL
            ineligible += state is ReplicaState.DELETION_INELIGIBLE
    return ControllerGauges(
        active_controller_count=1,
        current_controller_id=current_controller_id,
        # Partitions that never had a leader count too: clients wait for them as well.
        offline_partitions_count=context.leaderless_partition_count,
        preferred_replica_imbalance_count=context.preferred_replica_imbalance_count,
        global_topic_count=len(context.all_topics),
        global_partition_count=context.partition_count,
        topics_to_delete_count=len(context.topics_to_be_deleted),
        replicas_to_delete_count=to_delete,
        topics_ineligible_to_delete_count=len(context.topics_ineligible_for_deletion),
        replicas_ineligible_to_delete_count=ineligible,
        active_broker_count=len(context.registrations) - len(context.unresponsive_broker_ids),
        fenced_broker_count=len(context.unresponsive_broker_ids),
        unusable_topic_count=len(context.bad_topics),
        quarantined_count=len(context.quarantined),
    )


class ControllerState(IntEnum):
    """Kafka's states and their numbers: the values of the gauge ``ControllerState``."""

    IDLE = 0
    CONTROLLER_CHANGE = 1
    BROKER_CHANGE = 2
    TOPIC_CHANGE = 3
    TOPIC_DELETION = 4
    ALTER_PARTITION_REASSIGNMENT = 5
    AUTO_LEADER_BALANCE = 6
    MANUAL_LEADER_BALANCE = 7
    CONTROLLED_SHUTDOWN = 8
    ISR_CHANGE = 9
    LEADER_AND_ISR_RESPONSE_RECEIVED = 10
    LOG_DIR_CHANGE = 11
    CONTROLLER_SHUTDOWN = 12
    UNCLEAN_LEADER_ELECTION_ENABLE = 13
    TOPIC_UNCLEAN_LEADER_ELECTION_ENABLE = 14
    LIST_PARTITION_REASSIGNMENT = 15
    UPDATE_METADATA_RESPONSE_RECEIVED = 16
    UPDATE_FEATURES = 17

    @property
    def label(self) -> str:
        """Kafka's spelling, as in ``BrokerChange``."""
        return "".join(word.capitalize() for word in self.name.split("_"))

    @property
    def timer(self) -> str | None:
        """The name of the timer of this state's events; None for states that have none."""
        match self:
            case ControllerState.IDLE | ControllerState.UPDATE_METADATA_RESPONSE_RECEIVED:
                return None
            case ControllerState.BROKER_CHANGE:
                return "LeaderElectionRateAndTimeMs"
            case ControllerState.ALTER_PARTITION_REASSIGNMENT:
                return "PartitionReassignmentRateAndTimeMs"
            case _:
                return f"{self.label}RateAndTimeMs"


_STATES: dict[type[ControllerEvent], ControllerState] = {
    events.Startup: ControllerState.CONTROLLER_CHANGE,
    events.ControllerChange: ControllerState.CONTROLLER_CHANGE,
    events.Reelect: ControllerState.CONTROLLER_CHANGE,
    events.Expire: ControllerState.CONTROLLER_CHANGE,
    events.RegisterBrokerAndReelect: ControllerState.CONTROLLER_CHANGE,
    events.RegistrationDeleted: ControllerState.CONTROLLER_CHANGE,
    events.ElectionDoubted: ControllerState.CONTROLLER_CHANGE,
    events.SuspectReplicasChanged: ControllerState.BROKER_CHANGE,
    events.ReplicasGivenUp: ControllerState.BROKER_CHANGE,
    events.AdvertisedListenersChanged: ControllerState.BROKER_CHANGE,
    events.Resign: ControllerState.CONTROLLER_CHANGE,
    events.MoveController: ControllerState.CONTROLLER_CHANGE,
    events.OperationNoted: ControllerState.CONTROLLER_CHANGE,
    events.StandAgain: ControllerState.CONTROLLER_CHANGE,
    events.BrokerChange: ControllerState.BROKER_CHANGE,
    events.BrokerModifications: ControllerState.BROKER_CHANGE,
    events.ChannelOverflowed: ControllerState.BROKER_CHANGE,
    events.BrokerUnusable: ControllerState.BROKER_CHANGE,
    events.ControlRequestFailed: ControllerState.BROKER_CHANGE,
    events.TopicChange: ControllerState.TOPIC_CHANGE,
    events.PartitionModifications: ControllerState.TOPIC_CHANGE,
    events.ReadAgain: ControllerState.TOPIC_CHANGE,
    events.LookAgain: ControllerState.TOPIC_CHANGE,
    events.CheckBrokers: ControllerState.BROKER_CHANGE,
    events.DeleteExpiredTokens: ControllerState.TOPIC_CHANGE,
    events.EventsLost: ControllerState.CONTROLLER_CHANGE,
    events.ControllerFailuresChange: ControllerState.TOPIC_CHANGE,
    events.TopicDeletion: ControllerState.TOPIC_DELETION,
    events.UndeleteTopic: ControllerState.TOPIC_DELETION,
    events.TopicDeletionStopReplicaResponseReceived: ControllerState.TOPIC_DELETION,
    events.ZkPartitionReassignment: ControllerState.ALTER_PARTITION_REASSIGNMENT,
    events.PartitionReassignmentIsrChange: ControllerState.ALTER_PARTITION_REASSIGNMENT,
    events.ApiPartitionReassignment: ControllerState.ALTER_PARTITION_REASSIGNMENT,
    events.ListPartitionReassignments: ControllerState.LIST_PARTITION_REASSIGNMENT,
    events.AutoPreferredReplicaLeaderElection: ControllerState.AUTO_LEADER_BALANCE,
    events.ReplicaLeaderElection: ControllerState.MANUAL_LEADER_BALANCE,
    events.PreferredReplicaElection: ControllerState.MANUAL_LEADER_BALANCE,
    events.ControlledShutdown: ControllerState.CONTROLLED_SHUTDOWN,
    events.ControlledShutdownTimeout: ControllerState.CONTROLLED_SHUTDOWN,
    events.ControlledShutdownAbandoned: ControllerState.CONTROLLED_SHUTDOWN,
    events.AlterPartitionReceived: ControllerState.ISR_CHANGE,
    events.IsrChangeNotification: ControllerState.ISR_CHANGE,
    events.LeaderAndIsrResponseReceived: ControllerState.LEADER_AND_ISR_RESPONSE_RECEIVED,
    events.UpdateMetadataResponseReceived: ControllerState.UPDATE_METADATA_RESPONSE_RECEIVED,
    events.LogDirEventNotification: ControllerState.LOG_DIR_CHANGE,
    events.UncleanLeaderElectionEnable: ControllerState.UNCLEAN_LEADER_ELECTION_ENABLE,
    events.TopicUncleanLeaderElectionEnable: ControllerState.TOPIC_UNCLEAN_LEADER_ELECTION_ENABLE,
}


def state_of(event: ControllerEvent) -> ControllerState:
    """Return the state the controller is in while it handles ``event``."""
    return _STATES[type(event)]
