"""One replica on this broker: the role the controller gave it, and what that role needs to know.

Mirrors ``kafka.cluster.Partition``. A partition knows no log; offsets are handed in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from core.model import (
    NO_ASSIGNMENT,
    NO_LEADER,
    BrokerId,
    LeaderRecoveryState,
    ReplicaAssignment,
    TopicPartition,
)
from core.protocol.control import LeaderAndIsrPartition, TopicId
from core.protocol.controller import AlteredPartition, AlterPartitionRow
from core.replication.isr import high_watermark_candidate, is_under_replicated, maximal_isr
from core.replication.remote_replica import RemoteReplica


class Role(Enum):
    """What a replica does."""

    NONE = "none"  # no order yet, no leader to follow, or told to stop
    LEADER = "leader"
    FOLLOWER = "follower"
    OFFLINE = "offline"  # its log directory failed


@dataclass(slots=True)
class Partition:
    """A hosted replica. ``leader_epoch`` is -1 until the first order, so that epoch 0 is newer.

    ``isr`` is the committed one. ``proposal`` is the change of it the leader asked the controller
    for, if any: there is never more than one, and only an order or the answer ends it.
    """

    topic_partition: TopicPartition
    topic_id: TopicId | None = None
    role: Role = Role.NONE
    leader: BrokerId = NO_LEADER
    leader_epoch: int = -1
    partition_epoch: int = -1
    controller_epoch: int = 0  # of the controller that decided this leadership
    isr: tuple[BrokerId, ...] = ()
    assignment: ReplicaAssignment = NO_ASSIGNMENT
    # Controller and broker epoch of the order to stop, if there was one.
    stopped_in: tuple[int, int] | None = None
    leader_recovery_state: int = LeaderRecoveryState.RECOVERED
    high_watermark: int = 0
    leader_epoch_start_offset: int | None = None  # of a leader
    followers: dict[BrokerId, RemoteReplica] = field(default_factory=dict)  # of a leader
    proposal: AlterPartitionRow | None = None  # of a leader

    @property
    def maximal_isr(self) -> tuple[BrokerId, ...]:
        """Everybody who may be in the ISR by now."""
        return maximal_isr(self.isr, self.proposal and self.proposal.new_isr)

    @property
    def is_recovering(self) -> bool:
        """Whether the leader was elected out of the ISR and has not recovered yet (KIP-704)."""
        return self.leader_recovery_state == LeaderRecoveryState.RECOVERING

    @property
    def is_under_replicated(self) -> bool:
        """Whether this is a leader that misses replicas in its ISR."""
        return self.role is Role.LEADER and is_under_replicated(self.isr, self.assignment)

    # --- the controller's orders ---

    def make_leader(self, state: LeaderAndIsrPartition, log_end_offset: int, now_ms: int) -> None:
        """Lead from ``log_end_offset`` on; who led before keeps what it knows of followers."""
        self._take(state)
        self.role = Role.LEADER
        self.leader_epoch_start_offset = log_end_offset
        self.followers = {
            replica: self.followers.get(replica) or RemoteReplica()
            for replica in state.replicas
            if replica != state.leader
        }
        for replica, follower in self.followers.items():
            follower.on_leader_epoch(log_end_offset, now_ms, is_in_isr=replica in state.isr)

    def make_follower(self, state: LeaderAndIsrPartition) -> None:
        """Follow; without a leader, do nothing: a deposed one must stop leading at once."""
        self._take(state)
        self.role = Role.FOLLOWER if state.leader != NO_LEADER else Role.NONE
        self.leader_epoch_start_offset = None
        self.followers = {}

    def _take(self, state: LeaderAndIsrPartition) -> None:
        self.leader = state.leader
        self.leader_epoch = state.leader_epoch
        self.partition_epoch = state.partition_epoch
        self.controller_epoch = state.controller_epoch
        self.stopped_in = None
        self.isr = state.isr
        self.assignment = ReplicaAssignment(
            state.replicas, state.adding_replicas, state.removing_replicas
        )
        self.leader_recovery_state = state.leader_recovery_state
        self.proposal = None

    def stop(self, role: Role) -> None:
        """Neither lead nor follow any longer; ``role`` says why."""
        self.role = role
        self.leader_epoch_start_offset = None
        self.followers = {}
        self.proposal = None

    # --- what a leader learns ---

    def is_current(self, answer: AlteredPartition) -> bool:
        """Whether an answer tells the present state of this leadership; an equal one does, too.

        Equal it is when the controller did what it was asked for before (KAFKA-12751).
        """
        return (
            answer.leader_epoch == self.leader_epoch
            and answer.partition_epoch >= self.partition_epoch
        )

    def commit(self, answer: AlteredPartition) -> None:
        """Take over what the controller holds; the proposal is done with."""
        self.isr = answer.isr
        self.partition_epoch = answer.partition_epoch
        self.leader_recovery_state = answer.leader_recovery_state
        self.proposal = None

    def advance_high_watermark(
        self,
        log_end_offset: int,
        now_ms: int,
        max_lag_ms: int,
        is_eligible: Callable[[BrokerId, RemoteReplica], bool],
    ) -> None:
        """Raise the high watermark if everybody it waits for has got on.

        It waits for the maximal ISR, and for followers that are about to join it: otherwise it
        could run ahead of them for ever.
        """
        maximal = self.maximal_isr
        awaited = (
            follower
            for replica, follower in self.followers.items()
            if replica in maximal
            or (now_ms - follower.caught_up_ms() <= max_lag_ms and is_eligible(replica, follower))
        )
        candidate = high_watermark_candidate(log_end_offset, awaited)
        self.high_watermark = max(self.high_watermark, candidate)

    # --- what a follower learns ---

    def follow_high_watermark(
        self, leaders: int, log_start_offset: int, log_end_offset: int
    ) -> None:
        """Take over the leader's high watermark, as far as the log goes."""
        self.high_watermark = max(log_start_offset, min(leaders, log_end_offset))
