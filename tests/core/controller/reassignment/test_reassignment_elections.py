"""Elections in partitions that are being reassigned: rare cases."""

from __future__ import annotations

from regent.core.controller.reassignment.reassignment_elections import ReassignmentElections
from regent.core.controller.states import PartitionState, ReplicaState
from regent.core.model import ReplicaAssignment
from tests.support.controller_parts import Candidate, ControllerParts
from tests.support.world import T0, World


def test_an_offline_leader_in_the_target_is_replaced_at_the_end_of_a_reassignment() -> None:
    parts = ControllerParts((1, 3))
    parts.lead(T0, (2, 3), leader=2, isr=(2, 3))
    ReassignmentElections(parts.services, parts.partitions).lead_from_assignment([T0])
    assert parts.leads(T0)[:2] == (3, (2, 3))


def test_a_leader_outside_the_assignment_stays_when_other_unassigned_replicas_leave_the_isr() -> (
    None
):
    world = World((1, 2, 4))
    world.put_topic("t", {0: (1, 2)})
    world.put_state(T0, 4, (4, 1), leader_epoch=5)
    Candidate(world, 3).start()
    assert world.leads(T0) == (4, (4, 1), 5)


def test_a_new_leader_epoch_keeps_the_leader_in_the_isr_although_its_replica_was_deleted() -> None:
    parts = ControllerParts((1, 2))
    parts.lead(T0, (1, 2), leader=1, isr=(1, 2))
    parts.put_replica_state(T0, 1, ReplicaState.NON_EXISTENT)
    ReassignmentElections(parts.services, parts.partitions).begin_epoch([T0])
    assert parts.leads(T0) == (1, (1, 2), 1)


def test_a_reassignment_is_not_complete_while_the_controller_does_not_know_the_leader() -> None:
    """Its state became readable just now: no leader epoch could begin (seed 56018700)."""
    parts = ControllerParts((1, 2))
    parts.assign(T0, ReplicaAssignment((1, 2), (), (2,)), PartitionState.ONLINE)
    parts.put_state(T0, 1, (1, 2))
    for replica in (1, 2):
        parts.put_replica_state(T0, replica, ReplicaState.ONLINE)
    elections = ReassignmentElections(parts.services, parts.partitions)
    assert elections.complete([T0]) == []
    state = parts.state(T0)
    assert state is not None
    parts.context.put_partition_leadership_info(T0, state)
    assert elections.complete([T0]) == [T0]
