"""One replica on this broker: the role that the controller assigned, and the state of that role.

A leader has a ``Replica`` for each follower: its position, and when it was last caught up. From
them follow the ISR and the high watermark. Mirrors ``kafka.cluster.Partition``, ``PartitionState``
and ``Replica``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from regent.core.model import (
    NO_ASSIGNMENT,
    NO_EPOCH,
    NO_LEADER,
    UNKNOWN_BROKER_EPOCH,
    BrokerId,
    LeaderRecoveryState,
    ReplicaAssignment,
    TopicPartition,
)
from regent.core.protocol.control import LeaderAndIsrPartition, TopicId
from regent.core.protocol.controller import AlteredPartition, AlterPartitionRow
from regent.core.replica_logs import UNKNOWN_OFFSET, PartitionLog
from regent.core.replication.broker_topic_stats import TopicStats

NEVER_MS = -(2**62)  # a monotonic clock may start at 0: "never" must be longer ago than any lag


@dataclass(slots=True)
class LastFetch:
    """When a follower last fetched in a session; shared by the partitions it did not list.

    One assignment then counts as a fetch of each of them.
    """

    at_ms: int


@dataclass(slots=True)
class Replica:
    """A follower's position. Times are monotonic milliseconds.

    A follower was *caught up* at a time if it has all records that the leader had at that time. So
    a fetch from the leader's log end offset at the previous fetch shows that the follower was
    caught up at the time of the previous fetch.

    ``silent_fetch`` is set while fetches of a session do not list the partition: each of them
    counts as a repetition of the last fetch that did.
    """

    log_end_offset: int = UNKNOWN_OFFSET
    log_start_offset: int = UNKNOWN_OFFSET
    broker_epoch: int = UNKNOWN_BROKER_EPOCH  # of the broker at its last fetch (KIP-903)
    last_caught_up_ms: int = NEVER_MS
    last_fetch_ms: int = NEVER_MS
    last_fetch_leader_end_offset: int = 0
    silent_fetch: LastFetch | None = None

    def on_leader_epoch(self, leader_end_offset: int, now_ms: int, *, is_in_isr: bool) -> None:
        """Begin a leader epoch: members of the ISR have ``replica.lag.time.max.ms`` to fetch."""
        self.last_caught_up_ms = now_ms if is_in_isr else NEVER_MS
        self.last_fetch_ms = now_ms
        self.last_fetch_leader_end_offset = leader_end_offset
        self.silent_fetch = None

    def on_fetch(
        self,
        fetch_offset: int,
        log_start_offset: int,
        broker_epoch: int,
        leader_end_offset: int,
        now_ms: int,
        session: LastFetch | None = None,
    ) -> bool:
        """Record a fetch; ``leader_end_offset`` is that before the read. True: position changed.

        Until it is listed again, every fetch in ``session`` counts as this one.
        """
        self.end_silence()
        if fetch_offset >= leader_end_offset:
            self.last_caught_up_ms = max(self.last_caught_up_ms, now_ms)
        elif fetch_offset >= self.last_fetch_leader_end_offset:
            self.last_caught_up_ms = max(self.last_caught_up_ms, self.last_fetch_ms)
        is_elsewhere = fetch_offset != self.log_end_offset
        self.log_end_offset = fetch_offset
        self.log_start_offset = log_start_offset
        self.broker_epoch = broker_epoch
        self.last_fetch_leader_end_offset = leader_end_offset
        self.last_fetch_ms = now_ms
        self.silent_fetch = session
        return is_elsewhere

    def caught_up_ms(self) -> int:
        """Return when it was last caught up, also by fetches that did not list the partition."""
        silent = self.silent_fetch
        if silent is None or self.log_end_offset < self.last_fetch_leader_end_offset:
            return self.last_caught_up_ms
        return max(self.last_caught_up_ms, silent.at_ms)

    def fetched_ms(self) -> int:
        """Return when it last fetched, also without listing the partition."""
        silent = self.silent_fetch
        return self.last_fetch_ms if silent is None else max(self.last_fetch_ms, silent.at_ms)

    def end_silence(self) -> None:
        """Stop counting fetches of the session that do not list this partition."""
        if self.silent_fetch is not None:
            self.last_caught_up_ms = self.caught_up_ms()
            self.last_fetch_ms = self.fetched_ms()
            self.silent_fetch = None


# --- which replicas are in sync, and which records are committed ---


def maximal_isr(
    committed: tuple[BrokerId, ...], proposed: tuple[BrokerId, ...] | None
) -> tuple[BrokerId, ...]:
    """Return every replica that may be in the ISR while a proposal is in flight.

    An expansion may be committed before the leader knows, so the new member counts at once; a
    member to be removed counts until its removal is known.
    """
    return tuple(dict.fromkeys((*committed, *(proposed or ()))))


def out_of_sync_members(
    isr: tuple[BrokerId, ...],
    leader: BrokerId,
    followers: Mapping[BrokerId, Replica],
    log_end_offset: int,
    now_ms: int,
    max_lag_ms: int,
) -> tuple[BrokerId, ...]:
    """Return the members of the ISR that are out of sync or no longer assigned."""
    return tuple(
        member
        for member in isr
        if member != leader
        and (
            (follower := followers.get(member)) is None  # KAFKA-9672
            or is_out_of_sync(follower, log_end_offset, now_ms, max_lag_ms)
        )
    )


def is_out_of_sync(follower: Replica, log_end_offset: int, now_ms: int, max_lag_ms: int) -> bool:
    """Whether a follower lacks records and was last caught up longer ago than the limit."""
    return (
        follower.log_end_offset != log_end_offset and now_ms - follower.caught_up_ms() > max_lag_ms
    )


def has_reached_isr(follower: Replica, high_watermark: int, leader_epoch_start_offset: int) -> bool:
    """Whether a follower has all committed records, and all of earlier epochs (KAFKA-7128)."""
    return follower.log_end_offset >= max(high_watermark, leader_epoch_start_offset)


def high_watermark_candidate(log_end_offset: int, followers: Iterable[Replica]) -> int:
    """Return the offset up to which the leader and all of ``followers`` have the records."""
    return min([log_end_offset, *(follower.log_end_offset for follower in followers)])


def is_under_replicated(isr: tuple[BrokerId, ...], assignment: ReplicaAssignment) -> bool:
    """Whether replicas are missing from the ISR, apart from those being added."""
    return len(isr) < len(assignment.origin_replicas)


class Role(Enum):
    """The role of a replica."""

    NONE = "none"  # no request yet, no leader to follow, or stopped
    LEADER = "leader"
    FOLLOWER = "follower"
    OFFLINE = "offline"  # its log directory failed


@dataclass(slots=True)
class Partition:
    """A hosted replica. ``leader_epoch`` is -1 until the first LeaderAndIsr.

    ``isr`` is the committed one. ``proposal`` is the AlterPartition in progress, if any: there is
    at most one, and only a LeaderAndIsr or the answer ends it.
    """

    topic_partition: TopicPartition
    topic_id: TopicId | None = None
    # None: not opened yet, or it has failed.
    log: PartitionLog | None = field(default=None, repr=False, compare=False)
    role: Role = Role.NONE
    leader: BrokerId = NO_LEADER
    leader_epoch: int = -1
    partition_epoch: int = -1
    controller_epoch: int = 0  # of the controller that decided this leadership
    isr: tuple[BrokerId, ...] = ()
    assignment: ReplicaAssignment = NO_ASSIGNMENT
    # Controller epoch and broker epoch of the StopReplica, if there was one.
    stopped_in: tuple[int, int] | None = None
    leader_recovery_state: int = LeaderRecoveryState.RECOVERED
    # Replicas outside the ISR may be elected (KIP-966): a leader commits nothing without them.
    has_eligible_replicas: bool = False
    high_watermark: int = 0
    leading_since: int = -1  # of a leader: the first leader epoch of its leadership
    leader_epoch_start_offset: int | None = None  # of a leader
    followers: dict[BrokerId, Replica] = field(default_factory=dict)  # of a leader
    proposal: AlterPartitionRow | None = None  # of a leader
    lag: int = 0  # of a follower: how many committed records it lacked at the last answer
    stats: TopicStats = field(default_factory=TopicStats, repr=False, compare=False)  # of the topic

    @property
    def local_log(self) -> PartitionLog:
        """The log of a replica in service."""
        assert self.log is not None, f"{self.topic_partition} is out of service"
        return self.log

    @property
    def is_all_committed(self) -> bool:
        """Whether the high watermark equals the log end offset."""
        return self.high_watermark >= self.local_log.log_end_offset

    @property
    def last_stable_offset(self) -> int:
        """The offset before which every record is committed and its transaction is decided."""
        log, high_watermark = self.local_log, self.high_watermark
        first_unstable = log.first_unstable_offset(high_watermark)
        if first_unstable is None or first_unstable >= high_watermark:
            return high_watermark
        return max(first_unstable, log.log_start_offset)

    @property
    def min_isr(self) -> int:
        """How many replicas must be in sync for ``acks=all``: all, if there are fewer than set.

        0 if the log has just failed.
        """
        if self.log is None:
            return 0
        return min(self.log.config.min_insync_replicas, len(self.assignment.replicas))

    @property
    def has_enough_in_sync(self) -> bool:
        """Whether so many replicas are in sync that records may be committed."""
        return len(self.isr) >= self.min_isr

    @property
    def must_exclude_eligible_replicas(self) -> bool:
        """Whether only eligible replicas keep a leader from committing records that it has.

        ``min.insync.replicas`` was lowered, or was never what the controller knows. One of them may
        lead already: the controller must first write that none of them may.
        """
        return (
            self.has_eligible_replicas
            and self.proposal is None
            and self.has_enough_in_sync
            and not self.is_all_committed
        )

    @property
    def maximal_isr(self) -> tuple[BrokerId, ...]:
        """Every replica that may be in the ISR."""
        return maximal_isr(self.isr, self.proposal and self.proposal.new_isr)

    @property
    def is_recovering(self) -> bool:
        """Whether the leader was not in the ISR when elected and has not recovered (KIP-704)."""
        return self.leader_recovery_state == LeaderRecoveryState.RECOVERING

    @property
    def is_under_replicated(self) -> bool:
        """Whether this is a leader whose ISR lacks replicas."""
        return self.role is Role.LEADER and is_under_replicated(self.isr, self.assignment)

    # --- the log ---

    def open(self, log: PartitionLog, checkpointed_high_watermark: int) -> None:
        """Use a log; the high watermark is at most its end, because it may have lost records."""
        self.use(log)
        self.high_watermark = checkpointed_high_watermark
        self.on_truncation()

    def use(self, log: PartitionLog) -> None:
        """Use a log; that of a follower accepts what it fetches in the present leader epoch."""
        log.fence(self.leader_epoch if self.role is Role.FOLLOWER else NO_EPOCH)
        self.log = log

    def on_truncation(self) -> None:
        """Keep the high watermark within a log that was truncated (KAFKA-9491)."""
        log = self.local_log
        end = min(self.high_watermark, log.log_end_offset)
        self.high_watermark = max(log.log_start_offset, end)

    # --- control requests ---

    def make_leader(self, state: LeaderAndIsrPartition, now_ms: int) -> None:
        """Become leader at the end of the log; a continuing leader keeps its followers."""
        self.on_truncation()  # a truncation may have been interrupted
        log_end_offset = self.local_log.log_end_offset
        self._take(state)
        if self.role is not Role.LEADER:
            self.leading_since = state.leader_epoch
        self.role = Role.LEADER
        self.leader_epoch_start_offset = log_end_offset
        known, self.followers = self.followers, {}
        for replica in state.replicas:
            if replica != state.leader:
                follower = self.followers[replica] = known.get(replica) or Replica()
                follower.on_leader_epoch(log_end_offset, now_ms, is_in_isr=replica in state.isr)

    def make_follower(self, state: LeaderAndIsrPartition) -> None:
        """Become follower; without a leader, only stop leading."""
        self._take(state)
        self.role = Role.FOLLOWER if state.leader != NO_LEADER else Role.NONE
        self.leader_epoch_start_offset = None
        self.followers = {}

    def _take(self, state: LeaderAndIsrPartition) -> None:
        assert state.leader_epoch >= self.leader_epoch, f"{self.topic_partition}: stale epoch"
        self.leader = state.leader
        self.leader_epoch = state.leader_epoch
        self.partition_epoch = state.partition_epoch
        self.controller_epoch = state.controller_epoch
        self.stopped_in = None
        self.isr = state.isr
        known = self.assignment
        new = state.replicas, state.adding_replicas, state.removing_replicas
        if (known.replicas, known.adding_replicas, known.removing_replicas) != new:
            self.assignment = ReplicaAssignment(*new)
        self.leader_recovery_state = state.leader_recovery_state
        self.proposal = None
        self.lag = 0

    def stop(self, role: Role) -> None:
        """Stop leading or following; ``role`` is the reason."""
        self.role = role
        if role is Role.OFFLINE:
            self.log = None
        self.lag = 0
        self.leader_epoch_start_offset = None
        self.followers = {}
        self.proposal = None

    # --- events of a leader ---

    def is_current(self, answer: AlteredPartition) -> bool:
        """Whether an answer is at least as new as the state of this leadership.

        It is equal when an earlier copy of the request was carried out (KAFKA-12751).
        """
        return (
            answer.leader_epoch == self.leader_epoch
            and answer.partition_epoch >= self.partition_epoch
        )

    def commit(self, answer: AlteredPartition, *, has_eligible_replicas: bool) -> None:
        """Adopt the controller's state and end the proposal."""
        assert self.leader in answer.isr, f"{self.topic_partition}: the leader is not in the ISR"
        self.isr = answer.isr
        self.partition_epoch = answer.partition_epoch
        self.leader_recovery_state = answer.leader_recovery_state
        self.has_eligible_replicas = has_eligible_replicas
        self.proposal = None

    def advance_high_watermark(
        self,
        now_ms: int,
        max_lag_ms: int,
        is_eligible: Callable[[BrokerId, Replica], bool],
    ) -> bool:
        """Raise the high watermark if every replica it waits for has more records; True if raised.

        It waits for the maximal ISR, and for followers about to join, which otherwise might never
        reach it. With fewer replicas in sync than ``min.insync.replicas`` (or than are assigned, if
        that is less), and while others may be elected, nothing is committed (KAFKA-15583). A member
        that is not assigned is ignored: its position is unknown, and it leaves the ISR soon
        (KAFKA-9672).
        """
        if self.is_all_committed:
            return False
        maximal = self.maximal_isr
        if (
            not self.has_enough_in_sync
            or self.has_eligible_replicas
            or any(member not in self.followers for member in maximal if member != self.leader)
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
        self.local_log.first_unstable_offset(candidate)  # forgets what is stable now
        return True

    def is_followed_since(self, since_ms: int) -> bool:
        """Whether each other member of the ISR fetched since then: this broker still led.

        A member follows one leader only. A new leader is a member, too (unless its election was
        unclean), and fetches from none.
        """
        others = (member for member in self.isr if member != self.leader)
        return all(
            member in self.followers and self.followers[member].fetched_ms() >= since_ms
            for member in others
        )

    def low_watermark(self, is_alive: Callable[[BrokerId], bool]) -> int:
        """Return the lowest log start offset of the leader and its live followers."""
        starts = (
            follower.log_start_offset
            for replica, follower in self.followers.items()
            if is_alive(replica)
        )
        return min([self.local_log.log_start_offset, *starts])

    # --- events of a follower ---

    def follow_high_watermark(self, leaders: int) -> None:
        """Adopt the leader's high watermark, up to the end of the log."""
        log = self.local_log
        end = log.log_end_offset
        self.high_watermark = max(log.log_start_offset, min(leaders, end))
        log.first_unstable_offset(self.high_watermark)  # forgets what is stable now
        self.lag = max(0, leaders - end)
