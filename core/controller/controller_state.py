"""The kind of event that the controller handles, as a number and as the name of a timer.

Mirrors ``kafka.controller.ControllerState``. Timers have Kafka's names, also the historic ones.
"""

from __future__ import annotations

from enum import IntEnum

from regent.core.controller import events
from regent.core.controller.events import ControllerEvent


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
    events.AdvertisedListenersChanged: ControllerState.BROKER_CHANGE,
    events.Resign: ControllerState.CONTROLLER_CHANGE,
    events.StandAgain: ControllerState.CONTROLLER_CHANGE,
    events.BrokerChange: ControllerState.BROKER_CHANGE,
    events.BrokerModifications: ControllerState.BROKER_CHANGE,
    events.ChannelOverflowed: ControllerState.BROKER_CHANGE,
    events.ControlRequestFailed: ControllerState.BROKER_CHANGE,
    events.TopicChange: ControllerState.TOPIC_CHANGE,
    events.PartitionModifications: ControllerState.TOPIC_CHANGE,
    events.ReadAgain: ControllerState.TOPIC_CHANGE,
    events.LookAgain: ControllerState.TOPIC_CHANGE,
    events.CheckBrokers: ControllerState.BROKER_CHANGE,
    events.EventsLost: ControllerState.CONTROLLER_CHANGE,
    events.ControllerFailuresChange: ControllerState.TOPIC_CHANGE,
    events.TopicDeletion: ControllerState.TOPIC_DELETION,
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
