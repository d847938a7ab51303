"""The progress of a plan in a running cluster, read from ZooKeeper in bulk."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from regent.core.errors import BadDataError
from regent.core.model import BrokerId, TopicPartition
from regent.core.ports import TopicAssignment
from regent.jobs.execution.plan_progress import (
    MoveState,
    Obstacle,
    PlannedMove,
    move_state,
    obstacle,
)
from regent.zk.stores.admin_store import ZkAdminStore


class Standing(NamedTuple):
    """The state of a partition's planned move.

    ``replicas`` are its present or pending ones; ``problem`` is why there are none.
    """

    move: PlannedMove
    state: MoveState
    replicas: tuple[BrokerId, ...] = ()
    problem: str = ""


def survey(admin: ZkAdminStore, moves: Collection[PlannedMove]) -> list[Standing]:
    """Read the state of each move, in sequence; a topic that cannot be decoded is ``GONE``."""
    try:
        pending = admin.read_pending_reassignments()
    except BadDataError:  # the controller deletes the znode when it cannot decode it
        pending = {}
    topics = admin.topics.read_topics(sorted({move.partition.topic for move in moves}))
    return [
        _standing(move, topics.get(move.partition.topic), pending.get(move.partition))
        for move in moves
    ]


def read_obstacles(
    admin: ZkAdminStore, standings: Sequence[Standing], live: Collection[BrokerId]
) -> dict[TopicPartition, Obstacle]:
    """Read what prevents moves from beginning or ending; other moves have no entry."""
    led = (MoveState.MOVING, MoveState.REACHED)
    partitions = [s.move.partition for s in standings if s.state in led]
    leaderships = admin.read_partition_states(partitions)
    obstacles = {}
    for standing in standings:
        partition = standing.move.partition
        found = leaderships.get(partition)
        leadership = None if found is None or isinstance(found, BadDataError) else found[0]
        problem = obstacle(standing.move, standing.state, leadership, live)
        if problem is not None:
            obstacles[partition] = problem
    return obstacles


def _standing(
    move: PlannedMove,
    topic: TopicAssignment | BadDataError | None,
    pending: tuple[BrokerId, ...] | None,
) -> Standing:
    if isinstance(topic, BadDataError):
        return Standing(move, MoveState.GONE, problem=str(topic))
    assignment = None if topic is None else topic.partitions.get(move.partition.partition)
    if assignment is None:
        return Standing(move, MoveState.GONE, problem="it does not exist")
    return Standing(
        move, move_state(move, assignment, pending), pending or assignment.target_replicas
    )
