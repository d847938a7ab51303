"""Every decision about the leader, the ISR and the leader epoch of a partition: one pure function.

KRaft has ``PartitionChangeBuilder`` for this. ``change_partition`` gets the leadership that
ZooKeeper holds, the condition of the replicas, and the cause of the change. It returns what is to
be written, or the reason why nothing can be. It reads and writes nothing.

================================  ========================================  ==================
cause                             leader                                    ISR
================================  ========================================  ==================
``first_leadership``              first replica online                      replicas online
an ``ElectionStrategy``           see ``election``                          see ``election``
``ReplicasRestarted``             stays; else an offline election; else     without replicas
                                  none                                      that restarted
``RemoveReplica``                 stays; none if it is the removed one      without it
``NewLeaderEpoch``                stays                                     stays
``ReassignmentEpoch``             stays                                     without deleted
                                                                            replicas
``LeaderLeavesAssignment``        first of the new assignment that is in    stays
                                  sync and online
``RemoveUnassignedReplicas``      stays                                     without replicas
                                                                            not assigned
``AlterIsr``                      stays                                     as proposed
================================  ========================================  ==================

The leader epoch grows by one with every cause but ``AlterIsr``: followers are not told of that.
It grows by more with the elections of a new controller: ``OfflineElection.counts_removals``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from regent.core.controller.election.election import (
    Brokers,
    ChangeRefused,
    ElectionStrategy,
    OfflineElection,
    PartitionChange,
    PartitionReplicas,
    elect,
    offline_leader,
)
from regent.core.errors import Errors
from regent.core.model import (
    MAX_LEADER_EPOCH,
    NO_LEADER,
    NO_LEADER_EPOCH_LEFT,
    UNKNOWN_BROKER_EPOCH,
    BrokerId,
    LeaderAndIsr,
    LeaderRecoveryState,
)

RECOVERED, RECOVERING = LeaderRecoveryState


@dataclass(frozen=True, slots=True)
class ReplicasRestarted:
    """In-sync replicas restarted since the last decision, or may have lost records.

    They count as failed: a leader that lost the end of its log must not continue its leader epoch.
    """


@dataclass(frozen=True, slots=True)
class RemoveReplica:
    """A replica went offline or is stopped: it leaves the ISR."""

    broker_id: BrokerId


@dataclass(frozen=True, slots=True)
class NewLeaderEpoch:
    """Replicas need a leader epoch that they have not been told yet."""


@dataclass(frozen=True, slots=True)
class ReassignmentEpoch:
    """A step of a reassignment needs a leader epoch that no removed replica knows (KAFKA-1097).

    Deleted replicas leave the ISR: a leader that writes ISRs itself may have added one meanwhile.
    That replica could lead after the next reassignment, with an empty log.
    """


@dataclass(frozen=True, slots=True)
class LeaderLeavesAssignment:
    """The leader is not in the requested assignment: a replica that stays must lead."""

    replicas: Brokers


@dataclass(frozen=True, slots=True)
class RemoveUnassignedReplicas:
    """The ISR has unassigned brokers: a controller died before it removed them (KAFKA-9672)."""


@dataclass(frozen=True, slots=True)
class AlterIsr:
    """The leader proposes an ISR (KIP-497), for one leader epoch and one partition epoch.

    ``broker_epochs`` has one entry for each member of ``isr``; -1: the leader does not know it.
    """

    sender: BrokerId
    leader_epoch: int
    partition_epoch: int
    isr: Brokers
    broker_epochs: tuple[int, ...]
    leader_recovery_state: int


Cause: TypeAlias = (
    ElectionStrategy
    | ReplicasRestarted
    | RemoveReplica
    | NewLeaderEpoch
    | ReassignmentEpoch
    | LeaderLeavesAssignment
    | RemoveUnassignedReplicas
    | AlterIsr
)


def change_partition(
    now: LeaderAndIsr, replicas: PartitionReplicas, cause: Cause
) -> PartitionChange | ChangeRefused:
    """Return the next leadership; the same one as ``now`` when nothing is to be written.

    ``leader_and_isr`` keeps the partition epoch: the write is conditional on it.
    """
    decided = _decide(now, replicas, cause)
    if isinstance(decided, PartitionChange):
        if decided.leader_and_isr.leader_epoch > max(MAX_LEADER_EPOCH, now.leader_epoch):
            return ChangeRefused(f"leader epoch {now.leader_epoch}: {NO_LEADER_EPOCH_LEFT}")
        _check(now, decided.leader_and_isr, cause)
    return decided


def _check(now: LeaderAndIsr, after: LeaderAndIsr, cause: Cause) -> None:
    """Assert what every decision keeps. A state that a tool wrote by hand may break it already."""
    if after == now:
        return
    is_kept = now.leader in (NO_LEADER, *now.isr)
    assert not is_kept or after.leader in (NO_LEADER, *after.isr), f"{cause}: the leader is in sync"
    assert after.isr, f"{cause}: an ISR is never empty"
    assert after.partition_epoch == now.partition_epoch, f"{cause}: the write is conditional"
    grown = after.leader_epoch - now.leader_epoch
    if isinstance(cause, OfflineElection) and cause.counts_removals:
        assert 1 <= grown <= 1 + len(now.isr), f"{cause}: the leader epoch grows by {grown}"
    else:
        is_new = not isinstance(cause, AlterIsr)
        assert grown == is_new, f"{cause}: the leader epoch grows by 1"


def _decide(
    now: LeaderAndIsr, replicas: PartitionReplicas, cause: Cause
) -> PartitionChange | ChangeRefused:
    match cause:
        case ReplicasRestarted():
            return _without_restarted(now, replicas)
        case RemoveReplica(broker_id):
            return _without_replica(now, replicas, broker_id)
        case NewLeaderEpoch():
            return _with_new_epoch(now, replicas)
        case ReassignmentEpoch():
            return _without_deleted(now, replicas)
        case LeaderLeavesAssignment(assigned):
            return _with_leader_among(now, replicas, assigned)
        case RemoveUnassignedReplicas():
            return _without_unassigned(now, replicas)
        case AlterIsr():
            return _alter_isr(now, replicas, cause)
        case _:
            return elect(cause, now, replicas)


def first_leadership(replicas: PartitionReplicas) -> PartitionChange | ChangeRefused:
    """Return the leadership of a new partition: all online replicas, and the first one leads."""
    assigned = replicas.assignment.replicas
    online = tuple(r for r in assigned if replicas.is_online(r))
    if not online:
        return ChangeRefused(f"none of its replicas {list(assigned)} is alive")
    return PartitionChange(LeaderAndIsr(leader=online[0], isr=online), online)


def is_reassignment_complete(now: LeaderAndIsr, replicas: PartitionReplicas) -> bool:
    """Whether every target replica is in sync.

    If replicas are to be removed, one of the target must also be able to lead. Otherwise only
    offline or suspect replicas would remain, and replicas that have more records would be deleted.
    """
    assignment = replicas.assignment
    target = assignment.target_replicas
    if assignment.removing_replicas and not any(map(replicas.can_complete_reassignment, target)):
        return False
    return all(replica in now.isr and replicas.exists(replica) for replica in target)


def may_need_unclean_election(now: LeaderAndIsr, replicas: PartitionReplicas, cause: Cause) -> bool:
    """Whether the decision depends on the topic's ``unclean.leader.election.enable``.

    It is read only where no replica with every committed record is online (KAFKA-6526).
    """
    match cause:
        case OfflineElection(allow_unclean=False):
            pass
        case ReplicasRestarted() if not _leader_can_stay(now, replicas):
            pass
        case _:
            return False
    return not any(map(replicas.is_sound, (*now.isr, *now.eligible_leader_replicas)))


# --- the causes ---


def _without_restarted(now: LeaderAndIsr, replicas: PartitionReplicas) -> PartitionChange:
    if _leader_can_stay(now, replicas):
        isr = tuple(r for r in now.isr if replicas.can_stay(r))
        return PartitionChange(now.new_leader_and_isr(now.leader, isr))
    elected = elect(OfflineElection(), now, replicas)
    if isinstance(elected, PartitionChange):
        return elected
    return PartitionChange(now.new_leader_and_isr(NO_LEADER, now.isr))


def _leader_can_stay(now: LeaderAndIsr, replicas: PartitionReplicas) -> bool:
    """Whether the leader is in sync, and still has its log: then the ISR keeps at least the leader.

    Another controller or a tool may have written a state without a leader since it was loaded.
    """
    return now.leader in now.isr and replicas.can_stay(now.leader)


def _without_replica(
    now: LeaderAndIsr, replicas: PartitionReplicas, broker_id: BrokerId
) -> PartitionChange:
    """Take the broker out of the ISR; the last member always stays (KAFKA-708).

    All members stay when only suspect ones would remain: those may have lost committed records
    that the broker has.
    """
    others = tuple(r for r in replicas.assignment.replicas if r != broker_id)
    if broker_id not in now.isr:
        return PartitionChange(now, others)
    remaining = tuple(r for r in now.isr if r != broker_id)
    isr = now.isr if all(replicas.suspect_end(r) is not None for r in remaining) else remaining
    loses_leader = (
        now.leader == broker_id
        or replicas.must_not_lead(now.leader)
        or _is_left_to_suspects(now.leader, isr, replicas)
    )
    leader = NO_LEADER if loses_leader else now.leader
    return PartitionChange(now.new_leader_and_isr(leader, isr), others)


def _is_left_to_suspects(leader: BrokerId, isr: Brokers, replicas: PartitionReplicas) -> bool:
    """Whether the leader is offline too, and all online members of the ISR are suspect.

    Then the partition has no leader and commits nothing: a replica that leaves becomes eligible,
    and the order in which replicas are removed does not matter.
    """
    online = [r for r in isr if replicas.is_online(r)]
    is_any_suspect = bool(online) and all(replicas.suspect_end(r) is not None for r in online)
    # A leader that asked to shut down leads until another replica can, or until it is gone.
    return is_any_suspect and not replicas.is_reachable(leader)


def _with_new_epoch(
    now: LeaderAndIsr, replicas: PartitionReplicas
) -> PartitionChange | ChangeRefused:
    if replicas.must_not_lead(now.leader):
        return ChangeRefused(f"leader {now.leader} lost records since it was elected")
    return PartitionChange(now.new_epoch(), replicas.assignment.replicas)


def _without_deleted(now: LeaderAndIsr, replicas: PartitionReplicas) -> PartitionChange:
    isr = tuple(r for r in now.isr if r == now.leader or replicas.exists(r))
    return _reassigned(now, replicas, now.leader, isr or now.isr)


def _with_leader_among(
    now: LeaderAndIsr, replicas: PartitionReplicas, assigned: Brokers
) -> PartitionChange | ChangeRefused:
    leader = offline_leader(assigned, now.isr, replicas.can_complete_reassignment)
    if leader is not None:
        return _reassigned(now, replicas, leader, now.isr)
    return ChangeRefused(
        f"leader {now.leader} would be stopped, and no replica of isr {list(now.isr)} among"
        f" {list(assigned)} can lead"
    )


def _without_unassigned(
    now: LeaderAndIsr, replicas: PartitionReplicas
) -> PartitionChange | ChangeRefused:
    isr = tuple(r for r in now.isr if r in replicas.assignment.replicas)
    if isr and now.leader in (NO_LEADER, *isr):
        return _reassigned(now, replicas, now.leader, isr)
    return ChangeRefused(f"leader {now.leader} or all of isr {list(now.isr)} are unassigned")


def _reassigned(
    now: LeaderAndIsr, replicas: PartitionReplicas, leader: BrokerId, isr: Brokers
) -> PartitionChange:
    """Return the next leadership, without eligible replicas: their logs may be deleted."""
    after = now.new_leader_and_isr(leader, isr)._replace(eligible_leader_replicas=())
    return PartitionChange(after, replicas.assignment.replicas, keeps_eligible_replicas=False)


def _alter_isr(
    now: LeaderAndIsr, replicas: PartitionReplicas, proposed: AlterIsr
) -> PartitionChange | ChangeRefused:
    is_newer = (
        proposed.leader_epoch > now.leader_epoch or proposed.partition_epoch > now.partition_epoch
    )
    if is_newer:  # the leader knows a later controller (KAFKA-14154)
        return ChangeRefused("its epochs are unknown", Errors.NOT_CONTROLLER)
    if proposed.leader_epoch < now.leader_epoch or proposed.sender != now.leader:
        return ChangeRefused("it is not the leader", Errors.FENCED_LEADER_EPOCH)
    is_known = (
        set(proposed.isr) == set(now.isr)
        and proposed.leader_recovery_state == now.leader_recovery_state
    )
    if is_known and proposed.partition_epoch == now.partition_epoch:
        # Not asked again: the leader will commit without the eligible replicas, if there are any.
        alone = now._replace(eligible_leader_replicas=())
        return PartitionChange(alone, keeps_eligible_replicas=False)
    if is_known:  # asked again, because the answer was lost: no conflict (KAFKA-14144)
        return PartitionChange(now)
    if proposed.partition_epoch < now.partition_epoch:
        return ChangeRefused("its partition epoch is stale", Errors.INVALID_UPDATE_VERSION)
    if not _is_valid_isr(now, replicas, proposed):
        return ChangeRefused("it is no ISR of this partition", Errors.INVALID_REQUEST)
    if not _are_eligible(now, replicas, proposed):
        return ChangeRefused("a member cannot be in sync", Errors.INELIGIBLE_REPLICA)
    recovery_state = LeaderRecoveryState(proposed.leader_recovery_state)
    return PartitionChange(now._replace(isr=proposed.isr, leader_recovery_state=recovery_state))


def _is_valid_isr(now: LeaderAndIsr, replicas: PartitionReplicas, proposed: AlterIsr) -> bool:
    """Whether the ISR is possible, apart from the condition of its members.

    A recovering leader is in sync alone until it has recovered; only an unclean election makes a
    leader recover (KIP-704). A replica that joins is assigned. One that is in sync and not
    assigned, after a broken reassignment, may stay until the leader takes it out (KAFKA-9672).
    """
    members = set(proposed.isr)
    if proposed.leader_recovery_state == RECOVERING:
        is_recovery_valid = now.leader_recovery_state == RECOVERING and members == {now.leader}
    else:
        is_recovery_valid = proposed.leader_recovery_state == RECOVERED
    return (
        is_recovery_valid
        and now.leader in members
        and len(members) == len(proposed.isr) == len(proposed.broker_epochs)
        and members.issubset((*replicas.assignment.replicas, *now.isr))
    )


def _are_eligible(now: LeaderAndIsr, replicas: PartitionReplicas, proposed: AlterIsr) -> bool:
    """Whether every member may be in sync, with the broker epoch that the leader knows of it.

    A replica that joins must exist: its broker was told of it. While a reassignment cannot begin a
    leader epoch no broker is told, and the log of an added replica that the leader knows may have
    been deleted. A broker that is shutting down must not join (KIP-841). The leader may be shutting
    down: no replica can replace it yet, and one that joins can. A follower that lost its data since
    it fetched has another broker epoch (KIP-903).
    """
    return all(
        (replicas.is_reachable if replica == now.leader else replicas.is_online)(replica)
        and broker_epoch in (UNKNOWN_BROKER_EPOCH, replicas.broker_epoch(replica))
        and (replica in now.isr or replicas.exists(replica))
        for replica, broker_epoch in zip(proposed.isr, proposed.broker_epochs, strict=True)
    )
