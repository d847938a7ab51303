"""The progress of the moves of a reassignment plan, by the assignments in ZooKeeper.

A plan has two assignments of each partition: the original and the target. If the assignment in
ZooKeeper is neither, and is not being reassigned to the target, another tool has changed it. The
plan does not touch it.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum
from typing import NamedTuple

from regent.core.model import BrokerId, LeaderAndIsr, ReplicaAssignment, TopicPartition


class PlannedMove(NamedTuple):
    """A partition, the replicas it had when the plan was made, and its target replicas."""

    partition: TopicPartition
    before: tuple[BrokerId, ...]
    target: tuple[BrokerId, ...]
    bytes: int = 0  # of the partition; 0 when it is not known


class MoveState(Enum):
    """How far a partition is with its planned move."""

    TO_MOVE = "to move"
    MOVING = "moving"
    REACHED = "reached"
    MOVING_BACK = "moving back"  # it is being reassigned to its original replicas
    CHANGED = "changed meanwhile"
    GONE = "gone"


class Obstacle(NamedTuple):
    """Why a move does not begin or end; ``is_stuck`` if it needs an operator."""

    reason: str
    is_stuck: bool


def move_state(
    move: PlannedMove, assignment: ReplicaAssignment, pending: tuple[BrokerId, ...] | None = None
) -> MoveState:
    """Return the state of a move by the partition's assignment.

    ``pending``: the target in ``/admin/reassign_partitions``, which supersedes the assignment.
    """
    if pending is not None or assignment.is_being_reassigned:
        return under_way(move, pending or assignment.target_replicas)
    if assignment.replicas == move.target:
        return MoveState.REACHED
    return MoveState.TO_MOVE if assignment.replicas == move.before else MoveState.CHANGED


def under_way(move: PlannedMove, target: tuple[BrokerId, ...]) -> MoveState:
    """Return the state of a move whose partition is being reassigned to ``target``."""
    if target == move.target:
        return MoveState.MOVING
    return MoveState.MOVING_BACK if target == move.before else MoveState.CHANGED


def obstacle(
    move: PlannedMove,
    state: MoveState,
    leadership: LeaderAndIsr | None,
    live: Collection[BrokerId],
) -> Obstacle | None:
    """Return what a move waits for; None when it can begin, or is complete.

    It can begin when every broker it adds is live. It is complete when the live replicas of the
    target are in sync: a replica that died after the move does not count.
    """
    match state:
        case MoveState.TO_MOVE:
            return _down([b for b in move.target if b not in move.before and b not in live])
        case MoveState.MOVING | MoveState.REACHED:
            behind = [b for b in move.target if leadership is None or b not in leadership.isr]
            if state is MoveState.REACHED:
                behind = [b for b in behind if b in live]
                if not behind:
                    return None
            if leadership is None or leadership.leader not in live:
                return Obstacle("without a leader", is_stuck=True)
            down = _down([b for b in behind if b not in live])
            return down or Obstacle(_catching_up(behind), is_stuck=False)
        case MoveState.MOVING_BACK | MoveState.CHANGED | MoveState.GONE:
            return None


def _down(brokers: Collection[BrokerId]) -> Obstacle | None:
    if not brokers:
        return None
    are = "which is" if len(brokers) == 1 else "which are"
    return Obstacle(f"waiting for {_named(brokers)}, {are} not registered", is_stuck=True)


def _catching_up(brokers: Collection[BrokerId]) -> str:
    return f"waiting for {_named(brokers)} to catch up" if brokers else "waiting for the controller"


def _named(brokers: Collection[BrokerId]) -> str:
    noun = "broker" if len(brokers) == 1 else "brokers"
    return f"{noun} {', '.join(map(str, sorted(brokers)))}"
