"""The progress of reassignments, read from ZooKeeper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from regent.core.errors import BadDataError, RegentError
from regent.core.model import BrokerId, TopicPartition
from regent.zk.stores.admin_store import ZkAdminStore


class ReassignmentError(RegentError):
    """Some partitions were not reassigned."""


class ReassignmentState(Enum):
    """How far a partition is with its reassignment."""

    COMPLETE = "complete"
    IN_PROGRESS = "in progress"
    NOT_ACTIVE = "not active"  # not at its target, and not being reassigned


class ReassignmentStatus(NamedTuple):
    """A partition, its target and its replicas; ``replicas`` is empty when it is unknown."""

    partition: TopicPartition
    target: tuple[BrokerId, ...]
    replicas: tuple[BrokerId, ...]
    state: ReassignmentState

    def __str__(self) -> str:
        """Return the sentence that ``kafka-reassign-partitions.sh`` prints."""
        match self.state:
            case ReassignmentState.COMPLETE:
                return f"Reassignment of partition {self.partition} is complete."
            case ReassignmentState.IN_PROGRESS:
                return f"Reassignment of partition {self.partition} is still in progress."
            case ReassignmentState.NOT_ACTIVE:
                return (
                    f"There is no active reassignment of partition {self.partition}, but replica"
                    f" set is {_ids(self.replicas) or 'none'} rather than {_ids(self.target)}."
                )

    def as_json(self) -> dict[str, object]:
        """Return its JSON object for ``-o json``."""
        return {
            "topic": self.partition.topic,
            "partition": self.partition.partition,
            "state": self.state.value,
            "replicas": self.replicas,
            "target_replicas": self.target,
        }


def read_moves(
    admin: ZkAdminStore, targets: Mapping[TopicPartition, tuple[BrokerId, ...]]
) -> list[ReassignmentStatus]:
    """Read how far each partition has come, sorted. Raises ``BadDataError``."""
    pending = admin.read_pending_reassignments()
    topics = admin.topics.read_topics(sorted({partition.topic for partition in targets}))
    moves = []
    for partition, target in sorted(targets.items()):
        topic = topics.get(partition.topic)
        if isinstance(topic, BadDataError):
            raise topic
        current = None if topic is None else topic.partitions.get(partition.partition)
        replicas = () if current is None else current.replicas
        if current is not None and (current.is_being_reassigned or partition in pending):
            state = ReassignmentState.IN_PROGRESS
        else:
            is_complete = replicas == target
            state = ReassignmentState.COMPLETE if is_complete else ReassignmentState.NOT_ACTIVE
        moves.append(ReassignmentStatus(partition, target, replicas, state))
    return moves


def _ids(brokers: Sequence[BrokerId]) -> str:
    return ",".join(map(str, brokers))
