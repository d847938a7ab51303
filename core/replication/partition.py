"""One replica on this broker: the role the controller gave it.

Mirrors the part of ``kafka.cluster.Partition`` that LeaderAndIsr sets.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from core.model import NO_ASSIGNMENT, NO_LEADER, BrokerId, ReplicaAssignment, TopicPartition
from core.protocol.control import LeaderAndIsrPartition, TopicId


class Role(Enum):
    """What a replica does."""

    NONE = "none"  # no order yet, or no leader to follow
    LEADER = "leader"
    FOLLOWER = "follower"
    OFFLINE = "offline"  # its log directory failed


@dataclass(slots=True)
class Partition:
    """A hosted replica. ``leader_epoch`` is -1 until the first order, so that epoch 0 is newer."""

    topic_partition: TopicPartition
    topic_id: TopicId | None = None
    role: Role = Role.NONE
    leader: BrokerId = NO_LEADER
    leader_epoch: int = -1
    partition_epoch: int = -1
    controller_epoch: int = 0  # of the controller that decided this leadership
    isr: tuple[BrokerId, ...] = ()
    assignment: ReplicaAssignment = NO_ASSIGNMENT

    def obey(self, state: LeaderAndIsrPartition, broker_id: BrokerId) -> None:
        """Take the role ``state`` gives this broker."""
        self.leader = state.leader
        self.leader_epoch = state.leader_epoch
        self.partition_epoch = state.partition_epoch
        self.controller_epoch = state.controller_epoch
        self.isr = state.isr
        self.assignment = ReplicaAssignment(
            state.replicas, state.adding_replicas, state.removing_replicas
        )
        if state.leader == broker_id:
            self.role = Role.LEADER
        else:
            # Also without a leader: a deposed one must stop leading at once.
            self.role = Role.FOLLOWER if state.leader != NO_LEADER else Role.NONE
