"""One replica on this broker: the role the controller gave it, and what that role needs to know.

Mirrors ``kafka.cluster.Partition``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from regent.core.model import (
    NO_ASSIGNMENT,
    NO_LEADER,
    BrokerId,
    LeaderRecoveryState,
    ReplicaAssignment,
    TopicPartition,
)
from regent.core.protocol.control import LeaderAndIsrPartition, TopicId
from regent.core.protocol.controller import AlteredPartition, AlterPartitionRow
from regent.core.replica_logs import PartitionLog
from regent.core.replication.isr import high_watermark_candidate, is_under_replicated, maximal_isr
from regent.core.replication.replica import Replica


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
    # None: it has failed.
    log: PartitionLog | None = field(default=None, repr=False, compare=False)
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
    leading_since: int = -1  # of a leader: in which of its epochs it became one
    leader_epoch_start_offset: int | None = None  # of a leader
    followers: dict[BrokerId, Replica] = field(default_factory=dict)  # of a leader
    proposal: AlterPartitionRow | None = None  # of a leader
    lag: int = 0  # of a follower: how many committed records it had not when last answered

    @property
    def local_log(self) -> PartitionLog:
        """The log of a replica in service."""
        assert self.log is not None, f"{self.topic_partition} is out of service"
        return self.log

    @property
    def is_all_committed(self) -> bool:
        """Whether the high watermark is where the log ends."""
        return self.high_watermark >= self.local_log.log_end_offset

    @property
    def min_isr(self) -> int:
        """How many must be in sync for ``acks=all``: ``min.insync.replicas``."""
        return self.local_log.config.min_insync_replicas

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

    # --- the log ---

    def open(self, log: PartitionLog, checkpointed_high_watermark: int) -> None:
        """Take a log into service; what it lost since the checkpoint is not committed any more."""
        self.log = log
        self.high_watermark = checkpointed_high_watermark
        self.on_truncation()

    def on_truncation(self) -> None:
        """Keep the high watermark inside the log, of which some went (KAFKA-9491)."""
        log = self.local_log
        end = min(self.high_watermark, log.log_end_offset)
        self.high_watermark = max(log.log_start_offset, end)

    # --- the controller's orders ---

    def make_leader(self, state: LeaderAndIsrPartition, now_ms: int) -> None:
        """Lead from the end of the log on; who led before keeps what it knows of followers."""
        self.on_truncation()  # one may have stopped on the way
        log_end_offset = self.local_log.log_end_offset
        self._take(state)
        if self.role is not Role.LEADER:
            self.leading_since = state.leader_epoch
        self.role = Role.LEADER
        self.leader_epoch_start_offset = log_end_offset
        self.followers = {
            replica: self.followers.get(replica) or Replica()
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
        self.lag = 0

    def stop(self, role: Role) -> None:
        """Neither lead nor follow any longer; ``role`` says why."""
        self.role = role
        if role is Role.OFFLINE:
            self.log = None
        self.lag = 0
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
        now_ms: int,
        max_lag_ms: int,
        is_eligible: Callable[[BrokerId, Replica], bool],
    ) -> bool:
        """Raise the high watermark if everybody it waits for has got on; True if it was raised.

        It waits for the maximal ISR, and for followers that are about to join it: otherwise it
        could run ahead of them for ever. While fewer are in sync than records must be on, none is
        committed (KAFKA-15583); where fewer are assigned than that, all of them are enough. A
        member that is not assigned tells nobody how far it got, and will leave soon (KAFKA-9672).
        """
        maximal = self.maximal_isr
        if len(self.isr) < min(self.min_isr, len(self.assignment.replicas)) or any(
            member not in self.followers for member in maximal if member != self.leader
        ):
            return False
        awaited = (
            follower
            for replica, follower in self.followers.items()
            if replica in maximal
            or (now_ms - follower.caught_up_ms() <= max_lag_ms and is_eligible(replica, follower))
        )
        candidate = high_watermark_candidate(self.local_log.log_end_offset, awaited)
        if candidate <= self.high_watermark:
            return False
        self.high_watermark = candidate
        return True

    def low_watermark(self, is_alive: Callable[[BrokerId], bool]) -> int:
        """Return the offset up to which the leader and the living followers dropped records."""
        starts = (
            follower.log_start_offset
            for replica, follower in self.followers.items()
            if is_alive(replica)
        )
        return min([self.local_log.log_start_offset, *starts])

    # --- what a follower learns ---

    def follow_high_watermark(self, leaders: int) -> None:
        """Take over the leader's high watermark, as far as the log goes."""
        log = self.local_log
        end = log.log_end_offset
        self.high_watermark = max(log.log_start_offset, min(leaders, end))
        self.lag = max(0, leaders - end)
