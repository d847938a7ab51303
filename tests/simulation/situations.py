"""Situations in which a protection matters: how many histories meet each is counted.

A seeded defect is only caught in histories that meet its situation. What few histories meet is made
more frequent in ``odds`` or by a fault of its own.
"""

from __future__ import annotations

from enum import Enum


class Situation(Enum):
    """Where histories are to get to; the value is what is printed."""

    # Orders that arrive at brokers.
    DEPOSED_LEADER_AND_ISR = "a LeaderAndIsr of a deposed controller arrives"
    DEPOSED_STOP_REPLICA = "a StopReplica of a deposed controller arrives"
    DEPOSED_UPDATE_METADATA = "an UpdateMetadata of a deposed controller arrives"
    TWO_CONTROLLERS_IN_ONE_EPOCH = "an order of a second controller in one epoch arrives"
    EARLIER_LIFE = "an order to an earlier life of a broker arrives"
    LATE_COPY = "a copy of an order arrives behind later orders of the same controller"
    STOP_WITH_SAME_EPOCH = "a StopReplica with the leader epoch of the replica arrives"
    OTHER_TOPIC_ID = "an order for an earlier topic of the same name arrives"
    LEADER_LOSES_ITS_ROLE = "a leader is told that nobody leads"
    LEADER_AGAIN = "a leader is told to lead in a later epoch"
    STRAYS = "a FULL LeaderAndIsr does not list what a broker has"
    # Proposals of ISRs.
    PROPOSAL_OF_EARLIER_LIFE = "AlterPartition of an earlier life of a leader"
    PROPOSAL_WITH_STALE_LEADER_EPOCH = "AlterPartition with a stale leader epoch"
    PROPOSAL_OF_A_STRANGER = "AlterPartition of a broker that does not lead"
    PROPOSAL_WITH_STALE_PARTITION_EPOCH = "AlterPartition with a stale partition epoch"
    PROPOSAL_FROM_THE_FUTURE = "AlterPartition with epochs the controller does not know"
    PROPOSAL_REPEATED = "AlterPartition that asks for what is so already"
    PROPOSED_MEMBER_BOUNCED = "a member's broker epoch differs from the one proposed"
    PROPOSED_MEMBER_IS_LEAVING = "a proposed member is shutting down"
    PROPOSED_MEMBER_IS_DEAD = "a proposed member is not registered"
    PROPOSAL_BY_RECOVERING_LEADER = "AlterPartition of a leader that recovers"
    ANSWER_OF_EARLIER_LIFE = "an answer of an earlier life of a broker is handled"
    # ZooKeeper.
    STALE_READ = "a controller reads from a server of ZooKeeper that lags"
    READING_DENIED = "nobody may read a znode of a topic"
    WRITING_DENIED = "nobody may write a znode of a topic"
    ADDRESS_CHANGED = "a broker has other addresses while it runs"
    # Topics, moves, deletions.
    DELETION_ASKED_AGAIN_IN_ONE_TERM = "deletion watch needed again: a second request in one term"
    TOPIC_CHANGED_UNDER_WRITE = "topic znode changed between read and write"
    MOVE_FINISHED = "a move is finished: its former replicas are removed"
    COPIED_UNDER_THROTTLE = "records begin to be copied under a throttle"
    MOVE_SUPERSEDED = "a move gets another target"
    MOVE_CANCELLED = "a move is cancelled"
    LEADER_CHANGES_IN_MOVE = "another leads while a partition is moved"
    FAILOVER_IN_MOVE = "a controller is elected while a partition is moved"
    FAILOVER_IN_DELETION = "a controller is elected while a topic is deleted"
    UNCLEAN_ELECTION = "an unclean leader is elected"
    LAST_IN_SYNC_DIES = "the last member of an ISR dies"
    # Records.
    FETCH_OF_ANOTHER_EPOCH = "a fetch names another leader epoch than the leader's"
    FETCH_OF_EARLIER_LIFE = "a fetch of an earlier life of a follower arrives"
    FORMER_POSITIONS = "a broker leads again and knows positions of its earlier leadership"
    FOLLOWER_TRUNCATES = "a follower truncates records"
    TOO_FEW_IN_SYNC = "acks=all is asked for and too few are in sync"


RARE = {
    Situation.TWO_CONTROLLERS_IN_ONE_EPOCH,
    Situation.PROPOSED_MEMBER_IS_DEAD,
    Situation.DEPOSED_STOP_REPLICA,
}
"""Those that 300 histories may miss."""


class Situations:
    """Those that one history has met."""

    def __init__(self) -> None:
        self.met: set[Situation] = set()

    def meet(self, *situations: Situation) -> None:
        """Note that they are met."""
        self.met.update(situations)

    def meet_if(self, is_met: object, situation: Situation) -> None:
        """Note one if it is met."""
        if is_met:
            self.met.add(situation)
