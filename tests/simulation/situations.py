"""Situations in which a protection matters; the number of histories with each is counted.

A seeded defect is only caught in histories that meet its situation. A rare situation is made more
frequent in ``odds`` or by a fault of its own.
"""

from __future__ import annotations

from enum import Enum


class Situation(Enum):
    """A situation that histories should meet; the value is printed."""

    # Control requests that arrive at brokers.
    DEPOSED_LEADER_AND_ISR = "a LeaderAndIsr of a deposed controller arrives"
    DEPOSED_STOP_REPLICA = "a StopReplica of a deposed controller arrives"
    DEPOSED_UPDATE_METADATA = "an UpdateMetadata of a deposed controller arrives"
    TWO_CONTROLLERS_IN_ONE_EPOCH = (
        "a control request of a second controller with the same epoch arrives"
    )
    FOR_ANOTHER_BROKER = "a control request for another broker arrives"
    OF_NO_CONTROLLER = "a control request of nobody who was ever elected arrives"
    FORMER_BROKER_EPOCH = "a control request for a former broker epoch arrives"
    LATE_COPY = "a copy of a control request arrives after later requests"
    STOP_WITH_SAME_EPOCH = "a StopReplica with the leader epoch of the replica arrives"
    OTHER_TOPIC_ID = "a control request for a former topic of the same name arrives"
    LEADER_LOSES_ITS_ROLE = "a leader learns that its partition has no leader"
    LEADER_AGAIN = "a leader learns that it leads in a later epoch"
    STRAYS = "a FULL LeaderAndIsr does not list a replica of the broker"
    # Proposals of ISRs.
    PROPOSAL_OF_FORMER_BROKER_EPOCH = "AlterPartition with a former broker epoch"
    PROPOSAL_WITH_STALE_LEADER_EPOCH = "AlterPartition with a stale leader epoch"
    PROPOSAL_OF_NON_LEADER = "AlterPartition of a broker that does not lead"
    PROPOSAL_WITH_STALE_PARTITION_EPOCH = "AlterPartition with a stale partition epoch"
    PROPOSAL_WITH_UNKNOWN_EPOCHS = "AlterPartition with epochs the controller does not know"
    PROPOSAL_REPEATED = "AlterPartition with the present state"
    PROPOSED_MEMBER_BOUNCED = "a member's broker epoch differs from the one proposed"
    PROPOSED_MEMBER_IS_LEAVING = "a proposed member is shutting down"
    PROPOSED_MEMBER_IS_DEAD = "a proposed member is not registered"
    PROPOSAL_BY_RECOVERING_LEADER = "AlterPartition of a recovering leader"
    ANSWER_OF_FORMER_BROKER_EPOCH = "an answer of a former broker epoch is handled"
    # ZooKeeper.
    STALE_READ = "a controller reads from a server of ZooKeeper that lags"
    READING_DENIED = "reads of a znode of a topic are denied"
    WRITING_DENIED = "writes of a znode of a topic are denied"
    ADDRESS_CHANGED = "the addresses of a running broker change"
    # Topics, moves, deletions.
    SECOND_DELETION_IN_ONE_TERM = "a second deletion is requested in one term"
    TOPIC_CHANGED_UNDER_WRITE = "topic znode changed between read and write"
    MOVE_FINISHED = "a move is finished: its former replicas are removed"
    COPIED_UNDER_THROTTLE = "records begin to be copied under a throttle"
    MOVE_SUPERSEDED = "a move gets another target"
    MOVE_CANCELLED = "a move is cancelled"
    LEADER_CHANGES_IN_MOVE = "the leader changes while a partition is moved"
    FAILOVER_IN_MOVE = "a controller is elected while a partition is moved"
    FAILOVER_IN_DELETION = "a controller is elected while a topic is deleted"
    UNCLEAN_ELECTION = "an unclean leader is elected"
    LAST_IN_SYNC_DIES = "the last member of an ISR dies"
    TOPIC_BROUGHT_BACK = "a deleted topic is brought back"
    # Records.
    FETCH_OF_ANOTHER_EPOCH = "a fetch names another leader epoch than the leader's"
    FETCH_OF_FORMER_BROKER_EPOCH = "a fetch with a former broker epoch arrives"
    FORMER_POSITIONS = "a broker leads again and knows positions of its earlier leadership"
    FOLLOWER_TRUNCATES = "a follower truncates records"
    TOO_FEW_IN_SYNC = "acks=all is asked for and too few are in sync"


RARE = {
    Situation.TWO_CONTROLLERS_IN_ONE_EPOCH,
    Situation.PROPOSED_MEMBER_IS_DEAD,
    Situation.DEPOSED_STOP_REPLICA,
}
"""Situations that 400 histories may not meet."""


class Situations:
    """The situations that one history has met."""

    def __init__(self) -> None:
        self.met: set[Situation] = set()

    def meet(self, *situations: Situation) -> None:
        """Add situations."""
        self.met.update(situations)

    def meet_if(self, is_met: object, situation: Situation) -> None:
        """Add a situation if it is met."""
        if is_met:
            self.met.add(situation)
