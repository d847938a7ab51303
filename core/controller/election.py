"""The four leader-election rules as pure functions of ids.

Mirrors ``kafka.controller.Election`` and ``PartitionLeaderElectionAlgorithms``. All of them iterate
the assignment, never the ISR: the assignment is the order of preference, the ISR is a set
(KAFKA-3670).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from regent.core.model import (
    NO_LEADER,
    BrokerId,
    LeaderAndIsr,
    LeaderRecoveryState,
    LogEnd,
    ReplicaAssignment,
)

IsOnline: TypeAlias = Callable[[BrokerId], bool]
Brokers: TypeAlias = tuple[BrokerId, ...]


@dataclass(frozen=True, slots=True)
class OfflineElection:
    """The leader died. ``allow_unclean``: lose data rather than stay without a leader."""

    allow_unclean: bool = False


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


@dataclass(frozen=True, slots=True)
class Candidates:
    """Who can be chosen for one partition: what a strategy decides on.

    ``is_online`` excludes brokers that are shutting down, ``is_reachable`` includes them: they
    still obey requests. ``suspect_end`` tells how much a replica has that may have lost records,
    and None of others; ``has_restarted``, whether its broker has since the last decision.
    """

    assignment: ReplicaAssignment
    is_online: IsOnline
    is_reachable: IsOnline
    is_shutting_down: IsOnline
    suspect_end: Callable[[BrokerId], LogEnd | None] = lambda _: None
    has_restarted: Callable[[BrokerId], bool] = lambda _: False

    def is_sound(self, replica: BrokerId) -> bool:
        """Whether a replica is online and has what it had."""
        return self.is_online(replica) and self.suspect_end(replica) is None


@dataclass(frozen=True, slots=True)
class Elected:
    """The outcome of an election: ``leader_epoch`` is one more than before.

    ``recipients`` are the replicas to be told. ``unclean``: the leader was not in the ISR, or is
    suspect, so acknowledged records may be lost.
    """

    leader_and_isr: LeaderAndIsr
    recipients: Brokers
    unclean: bool = False


def offline_leader(assignment: Brokers, isr: Brokers, is_online: IsOnline) -> BrokerId | None:
    """Return the first assigned replica that is online and in sync."""
    return next((r for r in assignment if r in isr and is_online(r)), None)


def unclean_leader(assignment: Brokers, is_online: IsOnline) -> BrokerId | None:
    """Return the first assigned replica that is online, in sync or not."""
    return next((r for r in assignment if is_online(r)), None)


def preferred_leader(assignment: Brokers, isr: Brokers, is_online: IsOnline) -> BrokerId | None:
    """Return the first assigned replica if it is online and in sync, never another."""
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
    strategy: ElectionStrategy, current: LeaderAndIsr, candidates: Candidates
) -> Elected | None:
    """Choose a leader and the ISR that goes with it; None when nobody qualifies."""
    is_sound = candidates.is_sound
    match strategy:
        case OfflineElection(allow_unclean):
            return _elect_offline(current, candidates, allow_unclean)
        case ReassignElection():
            target = candidates.assignment.target_replicas
            leader = offline_leader(target, current.isr, is_sound)
            return _elected(current, leader, current.isr, target)
        case PreferredElection():
            replicas = candidates.assignment.replicas
            leader = preferred_leader(replicas, current.isr, is_sound)
            return _elected(current, leader, current.isr, replicas)
        case ControlledShutdownElection():
            return _elect_for_shutdown(current, candidates)


def why_nobody(strategy: ElectionStrategy, current: LeaderAndIsr, who: Candidates) -> str:
    """Say in words why ``elect`` found nobody."""
    replicas, in_sync = list(who.assignment.replicas), f"in isr {list(current.isr)}"
    match strategy:
        case OfflineElection(allow_unclean=True):
            return f"none of its replicas {replicas} is online"
        case OfflineElection():
            return waiting_reason(current, who) or f"no replica {in_sync} is online"
        case ReassignElection():
            target = list(who.assignment.target_replicas)
            return f"no replica {in_sync} is online and among {target}"
        case PreferredElection():
            return f"the first of its replicas {replicas} is not online, or not {in_sync}"
        case ControlledShutdownElection():
            return f"no replica {in_sync} is online and stays"


def waiting_reason(current: LeaderAndIsr, who: Candidates) -> str:
    """Say which brokers a leaderless partition waits for while others are online; empty: none."""
    members = sorted(_last_members(current, who))
    suspects = [r for r in members if who.is_online(r) and who.suspect_end(r) is not None]
    absent = [r for r in members if not who.is_online(r)]
    if not suspects or not absent:
        return ""
    return (
        f"waits for broker {' or '.join(map(str, absent))}, which may have every committed record:"
        f" the log of {' and '.join(map(str, suspects))} may have lost some"
    )


def depose(current: LeaderAndIsr) -> LeaderAndIsr:
    """Return a state without a leader: the leader may have lost records, and no other can lead."""
    return current.new_leader_and_isr(NO_LEADER, current.isr)


def remember_eligible(before: LeaderAndIsr, now: LeaderAndIsr, min_isr: int) -> LeaderAndIsr:
    """Keep as eligible the replicas that leave the ISR with every committed record (KIP-966).

    While fewer are in sync than ``min_isr``, nothing is committed.
    """
    left = tuple(
        r
        for r in dict.fromkeys((*before.eligible_leader_replicas, *before.isr))
        if r not in now.isr
    )
    is_committing = len(now.isr) >= min_isr
    is_unclean = now.leader_recovery_state is LeaderRecoveryState.RECOVERING
    return now._replace(eligible_leader_replicas=() if is_committing or is_unclean else left)


def _last_members(current: LeaderAndIsr, who: Candidates) -> Brokers:
    """Return the assigned replicas that had every committed record, in sync first."""
    members = (*current.isr, *current.eligible_leader_replicas)
    return tuple(r for r in members if r in who.assignment.replicas)


def _elect_offline(current: LeaderAndIsr, who: Candidates, allow_unclean: bool) -> Elected | None:
    """Elect a replica with every committed record.

    When every replica that may have them is back and none is sound, elect the fullest.
    """
    replicas = who.assignment.replicas
    online = tuple(r for r in replicas if who.is_online(r))
    leader = offline_leader(
        replicas, current.isr, lambda r: who.is_sound(r) and not who.has_restarted(r)
    )
    if leader is not None:
        isr = tuple(r for r in current.isr if who.is_sound(r) and not who.has_restarted(r))
        return _elected(current, leader, isr, online)
    leader = offline_leader(replicas, current.isr, who.is_sound)
    if leader is not None:
        return _elected(current, leader, tuple(r for r in current.isr if who.is_sound(r)), online)
    leader = offline_leader(replicas, current.eligible_leader_replicas, who.is_sound)
    if leader is not None:
        return _elected(current, leader, (leader,), online)
    members = _last_members(current, who)
    is_anyone_missing = not members or not all(map(who.is_online, members))
    if is_anyone_missing and not allow_unclean:
        return None
    leader = _fullest(members, who)
    if is_anyone_missing and (leader is None or _is_empty(leader, who)):
        # A new disk must not take what replicas have that were not in sync.
        leader = unclean_leader(who.assignment.origin_replicas, who.is_sound)
        if leader is None:
            leader = _fullest(replicas, who)
    if leader is None:
        leader = unclean_leader(replicas, who.is_online)
    if leader is None:
        return None
    # KIP-704: followers must not trust an unclean leader's log before it has recovered.
    recovering = current._replace(
        leader_recovery_state=LeaderRecoveryState.RECOVERING, eligible_leader_replicas=()
    )
    return Elected(recovering.new_leader_and_isr(leader, (leader,)), online, unclean=True)


def _fullest(members: Brokers, who: Candidates) -> BrokerId | None:
    """Return the suspect replica that has most: the newest leader epoch, then the longest log."""
    ends = {r: end for r in members if who.is_online(r) and (end := who.suspect_end(r)) is not None}
    order = who.assignment.replicas.index
    return max(ends, key=lambda r: (ends[r], -order(r)), default=None)


def _is_empty(replica: BrokerId, who: Candidates) -> bool:
    """Whether a suspect replica lost all it had."""
    end = who.suspect_end(replica)
    return end is not None and end.log_end_offset <= 0


def _elect_for_shutdown(current: LeaderAndIsr, who: Candidates) -> Elected | None:
    replicas = who.assignment.replicas
    leader = controlled_shutdown_leader(
        replicas,
        current.isr,
        lambda r: who.is_reachable(r) and who.suspect_end(r) is None,
        who.is_shutting_down,
    )
    isr = tuple(r for r in current.isr if not who.is_shutting_down(r))
    return _elected(current, leader, isr, tuple(r for r in replicas if who.is_reachable(r)))


def _elected(
    current: LeaderAndIsr, leader: BrokerId | None, isr: Brokers, recipients: Brokers
) -> Elected | None:
    if leader is None:
        return None
    return Elected(current.new_leader_and_isr(leader, isr), recipients)
