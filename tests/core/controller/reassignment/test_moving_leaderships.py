"""Who leads while a partition is moved, and after: the cases that moves as a whole seldom meet."""

from __future__ import annotations

from regent.core.controller.reassignment.moving_leaderships import MovingLeaderships
from regent.core.controller.states import ReplicaState
from tests.support.term import T0, Candidate, Office, Tree


def test_a_dead_leader_of_the_target_does_not_lead_on_at_the_end_of_a_move() -> None:
    office = Office((1, 3))
    office.lead(T0, (2, 3), leader=2, isr=(2, 3))
    MovingLeaderships(office.term, office.partitions).lead_from_assignment([T0])
    assert office.leads(T0)[:2] == (3, (2, 3))


def test_a_leader_that_is_not_assigned_stays_when_strangers_are_evicted() -> None:
    tree = Tree()
    for broker_id in (1, 2, 4):
        tree.register(broker_id)
    tree.put_topic("t", {0: (1, 2)})
    tree.put_state(T0, 4, (4, 1), leader_epoch=5)
    Candidate(tree, 3).start()
    assert tree.leads(T0) == (4, (4, 1), 5)


def test_a_new_epoch_keeps_its_leader_in_sync_whatever_became_of_its_replica() -> None:
    office = Office((1, 2))
    office.lead(T0, (1, 2), leader=1, isr=(1, 2))
    office.put_replica_state(T0, 1, ReplicaState.NON_EXISTENT)
    MovingLeaderships(office.term, office.partitions).begin_epoch([T0])
    assert office.leads(T0) == (1, (1, 2), 1)
