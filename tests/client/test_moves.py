from __future__ import annotations

import pytest

from regent.client.moves import Move, MoveState, obstacle, roles, standing
from regent.core.model import NO_LEADER, LeaderAndIsr, ReplicaAssignment, TopicPartition

MOVE = Move(TopicPartition("t", 0), before=(0, 1), target=(2, 1))
ALL_BROKERS = {0, 1, 2, 3}
MOVING = ReplicaAssignment((0, 1)).reassign_to((2, 1))
ELSEWHERE = ReplicaAssignment((0, 1)).reassign_to((3, 1))
BACK = ReplicaAssignment((2, 1)).reassign_to((0, 1))


@pytest.mark.parametrize(
    ("assignment", "state"),
    [
        (ReplicaAssignment((0, 1)), MoveState.TO_MOVE),
        (MOVING, MoveState.MOVING),
        (ReplicaAssignment((3, 1)).reassign_to((2, 1)), MoveState.MOVING),
        (ReplicaAssignment((2, 1)), MoveState.REACHED),
        (ReplicaAssignment((1, 0)), MoveState.CHANGED),
        (ReplicaAssignment((1, 2)), MoveState.CHANGED),
        (ReplicaAssignment((0, 1, 2)), MoveState.CHANGED),
        (ELSEWHERE, MoveState.CHANGED),
        (BACK, MoveState.MOVING_BACK),
    ],
)
def test_the_state_of_a_move_follows_from_the_assignment(
    assignment: ReplicaAssignment, state: MoveState
):
    assert standing(MOVE, assignment).state is state


def test_a_pending_request_of_a_tool_counts_before_the_assignment():
    resting = ReplicaAssignment((0, 1))
    assert standing(MOVE, resting, pending=(2, 1)).state is MoveState.MOVING
    assert standing(MOVE, resting, pending=(3, 1)).state is MoveState.CHANGED
    assert standing(MOVE, MOVING, pending=(3, 1)).state is MoveState.CHANGED


def test_a_move_that_changes_nothing_is_done():
    move = Move(TopicPartition("t", 0), (0, 1), (0, 1))
    assert standing(move, ReplicaAssignment((0, 1))).state is MoveState.REACHED


# --- reasons for waiting --------------------------------------------------------------------------


def reason(state: MoveState, isr: tuple[int, ...] | None, live: set[int], leader: int = 1) -> str:
    leadership = None if isr is None else LeaderAndIsr(leader, isr)
    found = obstacle(MOVE, state, leadership, live)
    if found is None:
        return ""
    return f"! {found.reason}" if found.is_stuck else found.reason


def test_a_move_ends_when_its_target_is_in_sync():
    assert reason(MoveState.MOVING, (0, 1), ALL_BROKERS) == "waiting for broker 2 to catch up"
    assert reason(MoveState.MOVING, (0,), {0}, leader=0) == (
        "! waiting for brokers 1, 2, which are not registered"
    )
    assert reason(MoveState.MOVING, (0, 1, 2), ALL_BROKERS) == "waiting for the controller"


@pytest.mark.parametrize("isr", [None, (0,)])
def test_without_a_leader_no_replica_can_catch_up(isr: tuple[int, ...] | None):
    assert reason(MoveState.MOVING, isr, ALL_BROKERS, leader=NO_LEADER) == "! without a leader"
    assert reason(MoveState.REACHED, isr, ALL_BROKERS, leader=NO_LEADER) == "! without a leader"
    assert reason(MoveState.MOVING, (0, 1), {0, 2, 3}) == "! without a leader"  # 1 has just died


def test_a_partition_at_its_target_waits_for_live_brokers_only():
    assert reason(MoveState.REACHED, (1, 2), ALL_BROKERS) == ""
    assert reason(MoveState.REACHED, (1,), ALL_BROKERS) == "waiting for broker 2 to catch up"
    assert reason(MoveState.REACHED, (1,), {1}) == ""


# --- what a move takes ----------------------------------------------------------------------------


def test_dropping_a_replica_sends_nothing_and_another_sequence_costs_nothing():
    assert roles((0, 1), (0,)) == {1: 1}
    assert roles((0, 1, 2), (2, 0, 1)) == {}
    assert roles((0, 1), (2, 3)) == {0: 2, 1: 1, 2: 1, 3: 1}
