"""Partition changes: one row for each case, from the present leadership to the next."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from regent.core.controller.election.election import (
    ChangeRefused,
    ControlledShutdownElection,
    OfflineElection,
    PartitionChange,
    PartitionReplicas,
    PreferredElection,
)
from regent.core.controller.election.partition_change import (
    AlterIsr,
    Cause,
    LeaderLeavesAssignment,
    NewLeaderEpoch,
    ReassignmentEpoch,
    RemoveReplica,
    RemoveUnassignedReplicas,
    ReplicasRestarted,
    change_partition,
    first_leadership,
    is_reassignment_complete,
    may_need_unclean_election,
)
from regent.core.errors import Errors
from regent.core.model import (
    MAX_LEADER_EPOCH,
    NO_LEADER,
    LeaderAndIsr,
    LeaderRecoveryState,
    LogEnd,
    ReplicaAssignment,
)

Ids = tuple[int, ...]
EPOCH, VERSION = 5, 9
RECOVERED, RECOVERING = LeaderRecoveryState


@dataclass(frozen=True)
class Brokers:
    """The condition of brokers 1 to 4: those not listed here are online and sound."""

    down: Ids = ()
    shutting_down: Ids = ()
    suspect: Ids = ()
    restarted: Ids = ()
    deleted: Ids = ()
    must_not_lead: Ids = ()
    is_deleting: bool = False

    def replicas(self, assignment: ReplicaAssignment) -> PartitionReplicas:
        return PartitionReplicas(
            assignment,
            is_online=lambda r: r in range(1, 5) and r not in (*self.down, *self.shutting_down),
            is_reachable=lambda r: r in range(1, 5) and r not in self.down,
            is_shutting_down=lambda r: r in self.shutting_down,
            suspect_end=lambda r: LogEnd(0, 7) if r in self.suspect else None,
            has_restarted=lambda r: r in self.restarted,
            exists=lambda r: r not in self.deleted,
            must_not_lead=lambda r: r in self.must_not_lead,
            broker_epoch=lambda r: 100 + r,
            is_topic_queued_for_deletion=self.is_deleting,
        )


def change(
    cause: Cause,
    leader: int,
    isr: Ids,
    brokers: Brokers = Brokers(),
    assigned: Ids | ReplicaAssignment = (1, 2, 3),
    *,
    eligible: Ids = (),
) -> PartitionChange | ChangeRefused:
    assignment = ReplicaAssignment(assigned) if isinstance(assigned, tuple) else assigned
    now = LeaderAndIsr(leader, isr, EPOCH, VERSION, eligible_leader_replicas=eligible)
    return change_partition(now, brokers.replicas(assignment), cause)


CHANGES: list[tuple[Cause, tuple[int, Ids], Brokers, tuple[int, Ids]]] = [
    # ReplicasRestarted: restarted replicas are handled as failed
    (ReplicasRestarted(), (1, (1, 2, 3)), Brokers(restarted=(2,)), (1, (1, 3))),
    (ReplicasRestarted(), (1, (1, 2, 3)), Brokers(suspect=(3,)), (1, (1, 2))),
    (ReplicasRestarted(), (1, (1, 2, 3)), Brokers(restarted=(1,)), (2, (2, 3))),
    (ReplicasRestarted(), (1, (1, 2, 3)), Brokers(suspect=(1,), down=(2,)), (3, (3,))),
    (ReplicasRestarted(), (1, (1, 2)), Brokers(suspect=(1,), down=(2,)), (NO_LEADER, (1, 2))),
    (ReplicasRestarted(), (1, (1,)), Brokers(restarted=(1,)), (1, (1,))),
    (ReplicasRestarted(), (NO_LEADER, (1, 2)), Brokers(restarted=(1, 2)), (1, (1, 2))),
    (ReplicasRestarted(), (NO_LEADER, (1, 2)), Brokers(restarted=(1,), down=(2,)), (1, (1,))),
    (ReplicasRestarted(), (3, (1, 2)), Brokers(suspect=(1,), down=(2,)), (NO_LEADER, (1, 2))),
    # RemoveReplica: the last ISR member stays (KAFKA-708)
    (RemoveReplica(2), (1, (1, 2, 3)), Brokers(down=(2,)), (1, (1, 3))),
    (RemoveReplica(1), (1, (1, 2, 3)), Brokers(down=(1,)), (NO_LEADER, (2, 3))),
    (RemoveReplica(1), (1, (1,)), Brokers(down=(1,)), (NO_LEADER, (1,))),
    (RemoveReplica(2), (1, (1, 2)), Brokers(must_not_lead=(1,)), (NO_LEADER, (1,))),
    (RemoveReplica(2), (2, (1, 2)), Brokers(down=(2,), suspect=(1,)), (NO_LEADER, (1, 2))),
    (RemoveReplica(3), (1, (1, 2, 3)), Brokers(down=(1, 3), suspect=(2,)), (NO_LEADER, (1, 2))),
    (
        RemoveReplica(3),
        (1, (1, 2, 3)),
        Brokers(shutting_down=(1,), down=(3,), suspect=(2,)),
        (1, (1, 2)),
    ),
    # NewLeaderEpoch
    (NewLeaderEpoch(), (1, (1, 2)), Brokers(), (1, (1, 2))),
    (NewLeaderEpoch(), (NO_LEADER, (2,)), Brokers(), (NO_LEADER, (2,))),
    # ReassignmentEpoch: deleted replicas leave the ISR, except the leader and the last member
    (ReassignmentEpoch(), (1, (1, 2)), Brokers(deleted=(2,)), (1, (1,))),
    (ReassignmentEpoch(), (1, (1, 2)), Brokers(deleted=(1,)), (1, (1, 2))),
    (ReassignmentEpoch(), (NO_LEADER, (2,)), Brokers(deleted=(2,)), (NO_LEADER, (2,))),
    # LeaderLeavesAssignment: the first new replica that is in sync and sound leads
    (LeaderLeavesAssignment((2, 3)), (1, (1, 3, 2)), Brokers(), (2, (1, 3, 2))),
    (LeaderLeavesAssignment((2, 3)), (1, (1, 2, 3)), Brokers(down=(2,)), (3, (1, 2, 3))),
    (LeaderLeavesAssignment((2, 3)), (1, (1, 2, 3)), Brokers(suspect=(2,)), (3, (1, 2, 3))),
    (
        LeaderLeavesAssignment((2, 3)),
        (1, (1, 2, 3)),
        Brokers(suspect=(2,), is_deleting=True),
        (2, (1, 2, 3)),
    ),
    # RemoveUnassignedReplicas
    (RemoveUnassignedReplicas(), (1, (1, 4)), Brokers(), (1, (1,))),
    (RemoveUnassignedReplicas(), (NO_LEADER, (4, 2)), Brokers(), (NO_LEADER, (2,))),
    # elections
    (OfflineElection(), (1, (1, 2, 3)), Brokers(down=(1,)), (2, (2, 3))),
    (PreferredElection(), (2, (1, 2)), Brokers(), (1, (1, 2))),
    (ControlledShutdownElection(), (1, (1, 2)), Brokers(shutting_down=(1,)), (2, (2,))),
]


@pytest.mark.parametrize(("cause", "before", "brokers", "after"), CHANGES)
def test_a_change_starts_a_leader_epoch_and_keeps_the_partition_epoch(
    cause: Cause, before: tuple[int, Ids], brokers: Brokers, after: tuple[int, Ids]
) -> None:
    changed = change(cause, *before, brokers)
    assert isinstance(changed, PartitionChange), changed
    assert changed.leader_and_isr == LeaderAndIsr(*after, EPOCH + 1, VERSION)


@pytest.mark.parametrize(("cause", "before", "brokers", "after"), CHANGES)
@pytest.mark.parametrize("epoch", [MAX_LEADER_EPOCH, 2**31 - 1])
def test_after_the_highest_leader_epoch_there_is_no_change(
    cause: Cause, before: tuple[int, Ids], brokers: Brokers, after: tuple[int, Ids], epoch: int
) -> None:
    del after
    now = LeaderAndIsr(*before, epoch, VERSION)
    refused = change_partition(now, brokers.replicas(ReplicaAssignment((1, 2, 3))), cause)
    assert isinstance(refused, ChangeRefused), refused
    assert refused.reason.startswith(f"leader epoch {epoch}: no leader can be elected after it")
    last = now._replace(leader_epoch=MAX_LEADER_EPOCH - 1)
    changed = change_partition(last, brokers.replicas(ReplicaAssignment((1, 2, 3))), cause)
    assert isinstance(changed, PartitionChange)
    assert changed.leader_and_isr.leader_epoch == MAX_LEADER_EPOCH


REFUSALS: list[tuple[Cause, tuple[int, Ids], Brokers, str]] = [
    (NewLeaderEpoch(), (1, (1,)), Brokers(must_not_lead=(1,)), "leader 1 lost records"),
    (LeaderLeavesAssignment((2, 3)), (1, (1, 2)), Brokers(down=(2,)), "no replica of isr [1, 2]"),
    (LeaderLeavesAssignment((2,)), (1, (1,)), Brokers(), "leader 1 would be stopped"),
    (RemoveUnassignedReplicas(), (4, (4, 1)), Brokers(), "leader 4"),
    (RemoveUnassignedReplicas(), (NO_LEADER, (4,)), Brokers(), "isr [4]"),
    (OfflineElection(), (1, (1,)), Brokers(down=(1,)), "no replica in isr [1] is online"),
]


@pytest.mark.parametrize(("cause", "before", "brokers", "reason"), REFUSALS)
def test_a_refused_change_has_a_reason(
    cause: Cause, before: tuple[int, Ids], brokers: Brokers, reason: str
) -> None:
    refused = change(cause, *before, brokers)
    assert isinstance(refused, ChangeRefused), refused
    assert reason in refused.reason


def test_a_replica_outside_the_isr_is_removed_without_a_write_but_with_recipients() -> None:
    unchanged = LeaderAndIsr(1, (1, 2), EPOCH, VERSION)
    assert change(RemoveReplica(3), 1, (1, 2)) == PartitionChange(unchanged, recipients=(1, 2))


@pytest.mark.parametrize(
    "cause", [ReassignmentEpoch(), LeaderLeavesAssignment((2,)), RemoveUnassignedReplicas()]
)
def test_a_reassignment_clears_the_eligible_replicas_because_it_deletes_logs(cause: Cause) -> None:
    changed = change(cause, 1, (1, 2), eligible=(3,))
    assert isinstance(changed, PartitionChange)
    assert changed.leader_and_isr.eligible_leader_replicas == ()
    assert not changed.keeps_eligible_replicas


# --- AlterPartition -------------------------------------------------------------------------------


def proposal(
    isr: Ids,
    *,
    sender: int = 1,
    leader_epoch: int = EPOCH,
    partition_epoch: int = VERSION,
    broker_epochs: Ids | None = None,
    recovery: LeaderRecoveryState = RECOVERED,
) -> AlterIsr:
    known = tuple(100 + r for r in isr) if broker_epochs is None else broker_epochs
    return AlterIsr(sender, leader_epoch, partition_epoch, isr, known, recovery)


def test_a_leader_changes_its_isr_without_a_new_leader_epoch() -> None:
    for isr in ((1,), (1, 2, 3), (3, 1)):
        expected = LeaderAndIsr(1, isr, EPOCH, VERSION)
        assert change(proposal(isr), 1, (1, 2)) == PartitionChange(expected)


def test_a_proposal_of_the_present_isr_changes_nothing() -> None:
    known = LeaderAndIsr(1, (1, 2), EPOCH, VERSION)
    stale = proposal((2, 1), partition_epoch=VERSION - 1)
    assert change(stale, 1, (1, 2)) == PartitionChange(known)


ANSWERS: list[tuple[AlterIsr, Brokers, Errors]] = [
    (proposal((1,), leader_epoch=EPOCH + 1), Brokers(), Errors.NOT_CONTROLLER),
    (proposal((1,), partition_epoch=VERSION + 1), Brokers(), Errors.NOT_CONTROLLER),
    (proposal((1,), leader_epoch=EPOCH - 1), Brokers(), Errors.FENCED_LEADER_EPOCH),
    (proposal((1,), sender=2), Brokers(), Errors.FENCED_LEADER_EPOCH),
    (proposal((1,), partition_epoch=VERSION - 1), Brokers(), Errors.INVALID_UPDATE_VERSION),
    (proposal((2, 3)), Brokers(), Errors.INVALID_REQUEST),
    (proposal((1, 4)), Brokers(), Errors.INVALID_REQUEST),
    (proposal((1, 3, 3)), Brokers(), Errors.INVALID_REQUEST),
    (proposal((1, 3), broker_epochs=(101,)), Brokers(), Errors.INVALID_REQUEST),
    (proposal((1, 2), recovery=RECOVERING), Brokers(), Errors.INVALID_REQUEST),
    (proposal((1, 3)), Brokers(down=(3,)), Errors.INELIGIBLE_REPLICA),
    (proposal((1, 3)), Brokers(shutting_down=(3,)), Errors.INELIGIBLE_REPLICA),
    (proposal((1, 3)), Brokers(deleted=(3,)), Errors.INELIGIBLE_REPLICA),
    (proposal((1, 3), broker_epochs=(101, 99)), Brokers(), Errors.INELIGIBLE_REPLICA),
]


@pytest.mark.parametrize(("proposed", "brokers", "error"), ANSWERS)
def test_a_refused_proposal_gets_the_error_of_kafka(
    proposed: AlterIsr, brokers: Brokers, error: Errors
) -> None:
    refused = change(proposed, 1, (1, 2), brokers)
    assert isinstance(refused, ChangeRefused), refused
    assert refused.error_code is error


def test_a_leader_that_is_shutting_down_may_add_a_replica() -> None:
    changed = change(proposal((1, 3)), 1, (1, 2), Brokers(shutting_down=(1,)))
    assert isinstance(changed, PartitionChange)


# --- first leaders, reassignments, unclean elections ----------------------------------------------


def test_the_first_leader_is_the_first_online_replica() -> None:
    first = first_leadership(Brokers(down=(1,)).replicas(ReplicaAssignment((1, 2, 3))))
    assert first == PartitionChange(LeaderAndIsr(2, (2, 3)), (2, 3))
    none_online = Brokers(down=(1,)).replicas(ReplicaAssignment((1,)))
    assert first_leadership(none_online) == ChangeRefused("none of its replicas [1] is alive")


@pytest.mark.parametrize(
    ("isr", "brokers", "is_complete"),
    [
        ((1, 2, 3), Brokers(), True),
        ((1, 2), Brokers(), False),
        ((1, 2, 3), Brokers(deleted=(3,)), False),
        ((1, 2, 3), Brokers(down=(2, 3)), False),
        ((1, 2, 3), Brokers(down=(3,)), True),
        ((1, 2, 3), Brokers(suspect=(2, 3)), False),
        ((1, 2, 3), Brokers(suspect=(2, 3), is_deleting=True), True),
    ],
)
def test_a_reassignment_is_complete_when_its_target_is_in_sync_and_can_lead(
    isr: Ids, brokers: Brokers, is_complete: bool
) -> None:
    moving = ReplicaAssignment((2, 3, 1), adding_replicas=(3,), removing_replicas=(1,))
    now = LeaderAndIsr(1, isr, EPOCH, VERSION)
    assert is_reassignment_complete(now, brokers.replicas(moving)) is is_complete


@pytest.mark.parametrize(
    ("cause", "brokers", "is_needed"),
    [
        (OfflineElection(), Brokers(down=(1, 2)), True),
        (OfflineElection(), Brokers(down=(1,), suspect=(2,)), True),
        (OfflineElection(), Brokers(down=(1,)), False),
        (OfflineElection(allow_unclean=True), Brokers(down=(1, 2)), False),
        (ReplicasRestarted(), Brokers(suspect=(1, 2)), True),
        (ReplicasRestarted(), Brokers(suspect=(2,)), False),
        (RemoveReplica(1), Brokers(down=(1, 2)), False),
    ],
)
def test_the_unclean_election_setting_is_needed_only_without_a_clean_candidate(
    cause: Cause, brokers: Brokers, is_needed: bool
) -> None:
    replicas = brokers.replicas(ReplicaAssignment((1, 2, 3)))
    now = LeaderAndIsr(1, (1, 2), EPOCH, VERSION)
    assert may_need_unclean_election(now, replicas, cause) is is_needed


def test_the_unclean_election_setting_is_needed_where_a_restart_finds_no_leader() -> None:
    replicas = Brokers(down=(1, 2)).replicas(ReplicaAssignment((1, 2, 3)))
    now = LeaderAndIsr(NO_LEADER, (1, 2), EPOCH, VERSION)
    assert may_need_unclean_election(now, replicas, ReplicasRestarted())


def test_an_unreadable_unclean_election_setting_is_the_reason_of_the_refusal() -> None:
    replicas = Brokers(down=(1,)).replicas(ReplicaAssignment((1, 2)))
    replicas.unclean_election_error = "not JSON"
    now = LeaderAndIsr(1, (1,), EPOCH, VERSION)
    assert change_partition(now, replicas, OfflineElection()) == ChangeRefused("not JSON")
    assert isinstance(
        change_partition(now, replicas, OfflineElection(allow_unclean=True)), PartitionChange
    )
