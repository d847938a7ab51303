"""The moves of partitions, and how far each has come by the assignments in ZooKeeper.

A move has two assignments of its partition: the original and the target. If the assignment in
ZooKeeper is neither, and is not being reassigned to the target, another tool has changed it. A plan
does not touch it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from regent.core.errors import BadDataError, RegentError
from regent.core.model import BrokerId, LeaderAndIsr, ReplicaAssignment, TopicPartition
from regent.core.ports import TopicAssignment
from regent.zk.stores.admin_store import ZkAdminStore


class ReassignmentError(RegentError):
    """Some partitions were not reassigned."""


class Move(NamedTuple):
    """A partition, the replicas it had when the move was planned, and its target replicas."""

    partition: TopicPartition
    before: tuple[BrokerId, ...]
    target: tuple[BrokerId, ...]
    bytes: int = 0  # of the partition; 0 when it is not known

    @property
    def added(self) -> list[BrokerId]:
        """The brokers that receive a replica."""
        return [broker for broker in self.target if broker not in self.before]

    @property
    def removed(self) -> int:
        """The number of replicas that are removed and have no successor."""
        return max(0, len(self.before) - len(self.target))

    @property
    def replicas_changed(self) -> int:
        """The number of replicas that are moved, added or removed."""
        return len(self.added) + self.removed


def roles(before: Sequence[BrokerId], after: Sequence[BrokerId]) -> dict[BrokerId, int]:
    """Return the number of replicas that each broker receives, gives up or sends.

    The preferred leader counts as the sender, because it usually leads.
    """
    parts = {broker: 1 for broker in before if broker not in after}
    added = [broker for broker in after if broker not in before]
    if added:
        parts.update(dict.fromkeys(added, 1))
        parts[before[0]] = len(added)
    return parts


class MoveState(Enum):
    """How far a partition is with its move."""

    TO_MOVE = "to move"
    MOVING = "moving"
    REACHED = "reached"
    MOVING_BACK = "moving back"  # it is being reassigned to its original replicas
    CHANGED = "changed meanwhile"
    GONE = "gone"


class Standing(NamedTuple):
    """The state of a partition's move.

    ``replicas`` are its present or pending target; ``held`` are all it has now, with those that
    come and go. Both are empty when they are not known: ``error`` is why the topic is unreadable.
    """

    move: Move
    state: MoveState
    replicas: tuple[BrokerId, ...] = ()
    held: tuple[BrokerId, ...] = ()
    is_ongoing: bool = False  # it is being reassigned, to this target or to another
    error: BadDataError | None = None

    @property
    def progress(self) -> str:
        """The state in the words of Kafka's tool, which does not know the original replicas."""
        if self.is_ongoing:
            return "in progress"
        return "complete" if self.state is MoveState.REACHED else "not active"

    def __str__(self) -> str:
        """Return the sentence that ``kafka-reassign-partitions.sh`` prints."""
        partition = self.move.partition
        if self.is_ongoing:
            return f"Reassignment of partition {partition} is still in progress."
        if self.state is MoveState.REACHED:
            return f"Reassignment of partition {partition} is complete."
        return (
            f"There is no active reassignment of partition {partition}, but replica set is"
            f" {ids(self.held) or 'none'} rather than {ids(self.move.target)}."
        )

    def as_json(self) -> dict[str, object]:
        """Return its JSON object for ``-o json``."""
        return {
            **self.move.partition._asdict(),
            "state": self.progress,
            "replicas": self.held,
            "target_replicas": self.move.target,
        }


class Obstacle(NamedTuple):
    """Why a move does not end; ``is_stuck`` if it needs an operator."""

    reason: str
    is_stuck: bool


def as_moves(assignments: Mapping[TopicPartition, ReplicaAssignment]) -> dict[TopicPartition, Move]:
    """Return the moves that are in progress."""
    return {p: Move(p, a.origin_replicas, a.target_replicas) for p, a in assignments.items()}


# --- states ---------------------------------------------------------------------------------------


def read_progress(admin: ZkAdminStore, moves: Collection[Move]) -> list[Standing]:
    """Read how far moves are, in sequence. Raises ``BadDataError``."""
    standings = survey(admin, moves, admin.read_pending_reassignments())
    for found in standings:
        if found.error is not None:
            raise found.error
    return standings


def survey(
    admin: ZkAdminStore,
    moves: Collection[Move],
    pending: Mapping[TopicPartition, tuple[BrokerId, ...]] | None = None,
) -> list[Standing]:
    """Read the state of each move, in sequence; a topic that cannot be decoded is ``GONE``.

    ``pending``: the targets in ``/admin/reassign_partitions``, if they were read already.
    """
    if pending is None:
        try:
            pending = admin.read_pending_reassignments()
        except BadDataError:  # the controller deletes the znode when it cannot decode it
            pending = {}
    topics = admin.topics.read_topics(sorted({move.partition.topic for move in moves}))
    standings = []
    for move in moves:
        topic, number = topics.get(move.partition.topic), move.partition.partition
        if isinstance(topic, TopicAssignment) and number in topic.partitions:
            pending_target = pending.get(move.partition)
            standings.append(standing(move, topic.partitions[number], pending_target))
        else:
            error = topic if isinstance(topic, BadDataError) else None
            standings.append(Standing(move, MoveState.GONE, error=error))
    return standings


def standing(
    move: Move, assignment: ReplicaAssignment, pending: tuple[BrokerId, ...] | None = None
) -> Standing:
    """Return the state of a move by the partition's assignment.

    ``pending``: the target in ``/admin/reassign_partitions``, which supersedes the assignment.
    """
    replicas, held = pending or assignment.target_replicas, assignment.replicas
    if pending is not None or assignment.is_being_reassigned:
        return Standing(move, under_way(move, replicas), replicas, held, is_ongoing=True)
    if replicas == move.target:
        return Standing(move, MoveState.REACHED, replicas, held)
    state = MoveState.TO_MOVE if replicas == move.before else MoveState.CHANGED
    return Standing(move, state, replicas, held)


def under_way(move: Move, target: tuple[BrokerId, ...]) -> MoveState:
    """Return the state of a move whose partition is being reassigned to ``target``."""
    if target == move.target:
        return MoveState.MOVING
    return MoveState.MOVING_BACK if target == move.before else MoveState.CHANGED


# --- obstacles ------------------------------------------------------------------------------------


def read_obstacles(
    admin: ZkAdminStore, standings: Sequence[Standing], live: Collection[BrokerId]
) -> Mapping[TopicPartition, Obstacle]:
    """Read what prevents moves in flight from ending; other moves have no entry."""
    begun = [s for s in standings if s.state in (MoveState.MOVING, MoveState.REACHED)]
    leaderships = admin.read_partition_states([s.move.partition for s in begun])
    obstacles = {}
    for one in begun:
        partition = one.move.partition
        found = leaderships.get(partition)
        leadership = None if found is None or isinstance(found, BadDataError) else found[0]
        problem = obstacle(one.move, one.state, leadership, live)
        if problem is not None:
            obstacles[partition] = problem
    return obstacles


def obstacle(
    move: Move,
    state: MoveState,
    leadership: LeaderAndIsr | None,
    live: Collection[BrokerId],
) -> Obstacle | None:
    """Return what a move that has begun waits for; None when it is complete.

    It is complete when the live replicas of the target are in sync: a replica that died after the
    move does not count.
    """
    behind = [b for b in move.target if leadership is None or b not in leadership.isr]
    if state is MoveState.REACHED:
        behind = [b for b in behind if b in live]
        if not behind:
            return None
    if leadership is None or leadership.leader not in live:
        return Obstacle("without a leader", is_stuck=True)
    down = [b for b in behind if b not in live]
    if down:
        return Obstacle(not_registered(down), is_stuck=True)
    catching_up = f"waiting for {_named(behind)} to catch up"
    return Obstacle(catching_up if behind else "waiting for the controller", is_stuck=False)


def not_registered(brokers: Collection[BrokerId]) -> str:
    """Return that a move waits for brokers to start."""
    are = "which is" if len(brokers) == 1 else "which are"
    return f"waiting for {_named(brokers)}, {are} not registered"


def _named(brokers: Collection[BrokerId]) -> str:
    noun = "broker" if len(brokers) == 1 else "brokers"
    return f"{noun} {', '.join(map(str, sorted(brokers)))}"


def ids(brokers: Iterable[BrokerId]) -> str:
    """Return broker ids as Kafka's tools print them."""
    return ",".join(map(str, brokers))
