"""The four leader-election rules as pure functions of ids.

Mirrors ``kafka.controller.Election`` and ``PartitionLeaderElectionAlgorithms``. All of them iterate
the assignment, never the ISR: the assignment is the order of preference, the ISR is a set
(KAFKA-3670).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from core.model import BrokerId, LeaderAndIsr, LeaderRecoveryState, ReplicaAssignment

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
    still obey requests.
    """

    assignment: ReplicaAssignment
    is_online: IsOnline
    is_reachable: IsOnline
    is_shutting_down: IsOnline


@dataclass(frozen=True, slots=True)
class Elected:
    """The outcome of an election: ``leader_epoch`` is one more than before.

    ``recipients`` are the replicas to be told. ``unclean``: the leader was not in the ISR, so
    acknowledged records may be lost.
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
    match strategy:
        case OfflineElection(allow_unclean):
            return _elect_offline(current, candidates, allow_unclean)
        case ReassignElection():
            target = candidates.assignment.target_replicas
            leader = offline_leader(target, current.isr, candidates.is_online)
            return _elected(current, leader, current.isr, target)
        case PreferredElection():
            replicas = candidates.assignment.replicas
            leader = preferred_leader(replicas, current.isr, candidates.is_online)
            return _elected(current, leader, current.isr, replicas)
        case ControlledShutdownElection():
            return _elect_for_shutdown(current, candidates)


def why_nobody(strategy: ElectionStrategy, isr: Brokers, assignment: ReplicaAssignment) -> str:
    """Say in words why ``elect`` found nobody."""
    replicas, in_sync = list(assignment.replicas), f"in isr {list(isr)}"
    match strategy:
        case OfflineElection(allow_unclean=True):
            return f"none of its replicas {replicas} is online"
        case OfflineElection():
            return f"no replica {in_sync} is online"
        case ReassignElection():
            return f"no replica {in_sync} is online and among {list(assignment.target_replicas)}"
        case PreferredElection():
            return f"the first of its replicas {replicas} is not online, or not {in_sync}"
        case ControlledShutdownElection():
            return f"no replica {in_sync} is online and stays"


def _elect_offline(current: LeaderAndIsr, who: Candidates, allow_unclean: bool) -> Elected | None:
    replicas = who.assignment.replicas
    online = tuple(r for r in replicas if who.is_online(r))
    leader = offline_leader(replicas, current.isr, who.is_online)
    if leader is not None:
        isr = tuple(r for r in current.isr if who.is_online(r))
        return _elected(current, leader, isr, online)
    leader = unclean_leader(replicas, who.is_online) if allow_unclean else None
    if leader is None:
        return None
    # KIP-704: followers must not trust an unclean leader's log before it has recovered.
    recovering = current._replace(leader_recovery_state=LeaderRecoveryState.RECOVERING)
    return Elected(recovering.new_leader_and_isr(leader, (leader,)), online, unclean=True)


def _elect_for_shutdown(current: LeaderAndIsr, who: Candidates) -> Elected | None:
    replicas = who.assignment.replicas
    leader = controlled_shutdown_leader(
        replicas, current.isr, who.is_reachable, who.is_shutting_down
    )
    isr = tuple(r for r in current.isr if not who.is_shutting_down(r))
    return _elected(current, leader, isr, tuple(r for r in replicas if who.is_reachable(r)))


def _elected(
    current: LeaderAndIsr, leader: BrokerId | None, isr: Brokers, recipients: Brokers
) -> Elected | None:
    if leader is None:
        return None
    return Elected(current.new_leader_and_isr(leader, isr), recipients)
