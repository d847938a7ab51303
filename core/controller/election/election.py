"""The four leader elections as pure functions; the input and the outputs of every decision.

``PartitionReplicas`` is what a decision reads beside the leadership that ZooKeeper holds.
``PartitionChange`` and ``ChangeRefused`` are the outcomes.

Mirrors ``kafka.controller.Election`` and ``PartitionLeaderElectionAlgorithms``. All elections
iterate the assignment, never the ISR: the assignment is the order of preference, the ISR is a set
(KAFKA-3670).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from regent.core.errors import Errors
from regent.core.model import (
    BrokerId,
    LeaderAndIsr,
    LeaderRecoveryState,
    LogEnd,
    ReplicaAssignment,
    TopicPartition,
)

if TYPE_CHECKING:  # commands need no context
    from regent.core.controller.context import ControllerContext


Brokers: TypeAlias = tuple[BrokerId, ...]
IsOnline: TypeAlias = Callable[[BrokerId], bool]


@dataclass(slots=True)
class PartitionReplicas:
    """The assignment of one partition and the condition of each replica, by broker id.

    ``is_online`` excludes brokers that are shutting down. ``is_reachable`` includes them, because
    they still handle control requests. ``suspect_end`` is the log end of a replica that may have
    lost records, and None for others. ``has_restarted``: the broker of an in-sync replica started
    again since the last decision. ``exists``: the broker was told of the replica, and has not
    deleted it since. ``must_not_lead``: the replica leads, but may have lost records since it was
    elected.
    """

    assignment: ReplicaAssignment
    is_online: IsOnline
    is_reachable: IsOnline
    is_shutting_down: IsOnline
    suspect_end: Callable[[BrokerId], LogEnd | None] = lambda _: None
    has_restarted: Callable[[BrokerId], bool] = lambda _: False
    exists: Callable[[BrokerId], bool] = lambda _: True
    must_not_lead: Callable[[BrokerId], bool] = lambda _: False
    broker_epoch: Callable[[BrokerId], int | None] = lambda _: None
    host: Callable[[BrokerId], str | BrokerId] = lambda replica: replica
    is_topic_queued_for_deletion: bool = False
    allows_unclean_election: bool = False
    unclean_election_error: str = ""
    """Why the topic's ``unclean.leader.election.enable`` cannot be read; empty: it can."""

    def is_sound(self, replica: BrokerId) -> bool:
        """Whether a replica is online and not suspect."""
        return self.is_online(replica) and self.suspect_end(replica) is None

    def can_complete_reassignment(self, replica: BrokerId) -> bool:
        """Whether a replica may lead when a reassignment ends.

        Brokers are not told the ISRs of a topic that is queued for deletion, so they keep reporting
        its replicas as suspect. The records of such a topic do not matter.
        """
        return self.is_sound(replica) or (
            self.is_topic_queued_for_deletion and self.is_online(replica)
        )

    def can_stay(self, replica: BrokerId) -> bool:
        """Whether an in-sync replica still has the log that it had at the last decision."""
        return not self.has_restarted(replica) and self.suspect_end(replica) is None


def partition_replicas(
    context: ControllerContext, topic_partition: TopicPartition
) -> PartitionReplicas:
    """Return what the context knows of the replicas of a partition."""
    return PartitionReplicas(
        context.partition_full_replica_assignment(topic_partition),
        is_online=lambda r: context.is_replica_online(r, topic_partition),
        is_reachable=lambda r: context.is_replica_online(
            r, topic_partition, include_shutting_down=True
        ),
        is_shutting_down=lambda r: r in context.shutting_down_broker_ids,
        suspect_end=lambda r: context.suspect_end(r, topic_partition),
        has_restarted=lambda r: context.has_restarted(r, topic_partition),
        exists=lambda r: context.replica_exists(r, topic_partition),
        must_not_lead=lambda r: context.must_not_lead(r, topic_partition),
        broker_epoch=context.broker_epoch,
        host=context.host_of,
        is_topic_queued_for_deletion=context.is_topic_queued_for_deletion(topic_partition.topic),
    )


class PartitionChange(NamedTuple):
    """A leadership to be written, and the replicas to be told.

    ``is_unclean``: the leader was not in the ISR, or is suspect, so acknowledged records may be
    lost. ``keeps_eligible_replicas`` is False when replicas that leave the ISR may be deleted.
    """

    leader_and_isr: LeaderAndIsr
    recipients: Brokers = ()
    is_unclean: bool = False
    keeps_eligible_replicas: bool = True


class ChangeRefused(NamedTuple):
    """Why a partition does not change. ``error_code`` is set for proposals of leaders only."""

    reason: str
    error_code: Errors = Errors.NONE


@dataclass(frozen=True, slots=True)
class OfflineElection:
    """The leader died. ``allow_unclean``: lose data rather than stay without a leader.

    ``counts_removals``: the leader epoch also grows by one for each assigned member of the ISR that
    is offline. A new controller of Kafka removes these in writes of their own before it elects.
    """

    allow_unclean: bool = False
    counts_removals: bool = False


@dataclass(frozen=True, slots=True)
class ReassignElection:
    """The leader is not among the replicas a reassignment keeps."""


@dataclass(frozen=True, slots=True)
class PreferredElection:
    """Give leadership back to the first assigned replica."""


@dataclass(frozen=True, slots=True)
class ControlledShutdownElection:
    """The leader is about to stop."""


ElectionStrategy: TypeAlias = (
    OfflineElection | ReassignElection | PreferredElection | ControlledShutdownElection
)


def offline_leader(assignment: Brokers, isr: Brokers, is_online: IsOnline) -> BrokerId | None:
    """Return the first assigned replica that is online and in sync."""
    return next((r for r in assignment if r in isr and is_online(r)), None)


def unclean_leader(assignment: Brokers, is_online: IsOnline) -> BrokerId | None:
    """Return the first assigned replica that is online, in sync or not."""
    return next((r for r in assignment if is_online(r)), None)


def preferred_leader(assignment: Brokers, isr: Brokers, is_online: IsOnline) -> BrokerId | None:
    """Return the first assigned replica if it is online and in sync; else None."""
    head = assignment[0] if assignment else None
    return head if head is not None and head in isr and is_online(head) else None


def controlled_shutdown_leader(
    assignment: Brokers, isr: Brokers, is_reachable: IsOnline, is_shutting_down: IsOnline
) -> BrokerId | None:
    """Return the first assigned replica that is in sync, reachable and not shutting down."""
    return next(
        (r for r in assignment if r in isr and is_reachable(r) and not is_shutting_down(r)), None
    )


def elect(
    strategy: ElectionStrategy, current: LeaderAndIsr, replicas: PartitionReplicas
) -> PartitionChange | ChangeRefused:
    """Choose a leader and the ISR that goes with it; refused when no replica qualifies."""
    assigned = replicas.assignment.replicas
    match strategy:
        case OfflineElection(allow_unclean, counts_removals):
            is_unclean_allowed = allow_unclean or replicas.allows_unclean_election
            change = _elect_offline(current, replicas, is_unclean_allowed)
            if change is not None and counts_removals:
                change = _with_epochs_of_removals(change, current, replicas)
        case ReassignElection():
            target = replicas.assignment.target_replicas
            leader = offline_leader(target, current.isr, replicas.can_complete_reassignment)
            change = _elected(current, leader, current.isr, target)
        case PreferredElection():
            leader = preferred_leader(assigned, current.isr, replicas.is_sound)
            change = _elected(current, leader, current.isr, assigned)
        case ControlledShutdownElection():
            change = _elect_for_shutdown(current, replicas)
    return ChangeRefused(_why_refused(strategy, current, replicas)) if change is None else change


def _why_refused(
    strategy: ElectionStrategy, current: LeaderAndIsr, replicas: PartitionReplicas
) -> str:
    assigned, in_sync = list(replicas.assignment.replicas), f"in isr {list(current.isr)}"
    match strategy:
        case OfflineElection(allow_unclean):
            if allow_unclean or replicas.allows_unclean_election:
                return f"none of its replicas {assigned} is online"
            if replicas.unclean_election_error:
                return replicas.unclean_election_error
            return waiting_reason(current, replicas) or f"no replica {in_sync} is online"
        case ReassignElection():
            target = list(replicas.assignment.target_replicas)
            return f"no replica {in_sync} is online and among {target}"
        case PreferredElection():
            return f"the first of its replicas {assigned} is not online, or not {in_sync}"
        case ControlledShutdownElection():
            return f"no replica {in_sync} is online and not shutting down"


def waiting_reason(current: LeaderAndIsr, replicas: PartitionReplicas) -> str:
    """Return for which brokers a partition waits although replicas are online; empty: none."""
    members = sorted(_last_members(current, replicas))
    suspects = [r for r in members if replicas.is_online(r) and replicas.suspect_end(r) is not None]
    absent = [r for r in members if not replicas.is_online(r)]
    if not suspects or not absent:
        return ""
    return (
        f"waits for broker {' or '.join(map(str, absent))}, which may have every committed record:"
        f" the log of {' and '.join(map(str, suspects))} may have lost some"
    )


def _last_members(current: LeaderAndIsr, replicas: PartitionReplicas) -> Brokers:
    """Return the assigned replicas that had every committed record, those in the ISR first."""
    members = (*current.isr, *current.eligible_leader_replicas)
    return tuple(r for r in members if r in replicas.assignment.replicas)


def _elect_offline(
    current: LeaderAndIsr, replicas: PartitionReplicas, allow_unclean: bool
) -> PartitionChange | None:
    """Elect a replica with every committed record.

    When all that may have them are online and suspect, elect the one with the most records.
    """
    assigned = replicas.assignment.replicas
    online = tuple(r for r in assigned if replicas.is_online(r))
    for is_candidate in (
        lambda r: replicas.is_sound(r) and not replicas.has_restarted(r),
        replicas.is_sound,
    ):
        leader = offline_leader(assigned, current.isr, is_candidate)
        if leader is not None:
            isr = tuple(r for r in current.isr if is_candidate(r))
            return _elected(current, leader, isr, online)
    leader = offline_leader(assigned, current.eligible_leader_replicas, replicas.is_sound)
    if leader is not None:
        return _elected(current, leader, (leader,), online)
    members = _last_members(current, replicas)
    is_anyone_missing = not members or not all(map(replicas.is_online, members))
    if is_anyone_missing and not allow_unclean:
        return None
    leader = _fullest(members, replicas)
    if is_anyone_missing and (leader is None or _is_empty(leader, replicas)):
        # An empty log must not replace the records of replicas that were not in sync.
        leader = unclean_leader(replicas.assignment.origin_replicas, replicas.is_sound)
        if leader is None:
            leader = _fullest(assigned, replicas)
    if leader is None:
        leader = unclean_leader(assigned, replicas.is_online)
    if leader is None:
        return None
    # KIP-704: followers must not trust an unclean leader's log before it has recovered.
    recovering = current._replace(
        leader_recovery_state=LeaderRecoveryState.RECOVERING, eligible_leader_replicas=()
    )
    return PartitionChange(
        recovering.new_leader_and_isr(leader, (leader,)), online, is_unclean=True
    )


def _with_epochs_of_removals(
    change: PartitionChange, current: LeaderAndIsr, replicas: PartitionReplicas
) -> PartitionChange:
    elected = change.leader_and_isr
    assigned = replicas.assignment.replicas
    removed = sum(r in assigned and not replicas.is_online(r) for r in current.isr)
    elected = elected._replace(leader_epoch=elected.leader_epoch + removed)
    return change._replace(leader_and_isr=elected)


def _fullest(members: Brokers, replicas: PartitionReplicas) -> BrokerId | None:
    """Return the suspect replica with the newest leader epoch, then with the longest log."""
    ends = {
        r: end
        for r in members
        if replicas.is_online(r) and (end := replicas.suspect_end(r)) is not None
    }
    order = replicas.assignment.replicas.index
    return max(ends, key=lambda r: (ends[r], -order(r)), default=None)


def _is_empty(replica: BrokerId, replicas: PartitionReplicas) -> bool:
    """Whether a suspect replica lost all it had."""
    end = replicas.suspect_end(replica)
    return end is not None and end.log_end_offset <= 0


def _elect_for_shutdown(
    current: LeaderAndIsr, replicas: PartitionReplicas
) -> PartitionChange | None:
    assigned = replicas.assignment.replicas
    # A machine often stops broker by broker: a leader beside this one would be moved again soon.
    leaving = replicas.host(current.leader)
    leader = controlled_shutdown_leader(
        tuple(sorted(assigned, key=lambda r: replicas.host(r) == leaving)),
        current.isr,
        lambda r: replicas.is_reachable(r) and replicas.suspect_end(r) is None,
        replicas.is_shutting_down,
    )
    isr = tuple(r for r in current.isr if not replicas.is_shutting_down(r))
    return _elected(current, leader, isr, tuple(r for r in assigned if replicas.is_reachable(r)))


def _elected(
    current: LeaderAndIsr, leader: BrokerId | None, isr: Brokers, recipients: Brokers
) -> PartitionChange | None:
    if leader is None:
        return None
    return PartitionChange(current.new_leader_and_isr(leader, isr), recipients)
