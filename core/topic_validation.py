"""Checks of a topic's name, size and assignment, before anything is written.

Mirrors ``org.apache.kafka.common.internals.Topic`` and the checks of ``kafka.zk.AdminZkClient``. A
function ``…_problem`` returns None if there is no problem. Otherwise it returns the end of a
sentence whose subject is the name or the assignment, or an ``ApiError`` with a whole sentence.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence

from regent.core.errors import ApiError, Errors
from regent.core.model import BrokerId
from regent.core.ports import TopicAssignment

MAX_NAME_LENGTH = 249
MAX_TOPIC_BYTES = 1_000_000  # ZooKeeper accepts requests of little more (jute.maxbuffer)

GROUP_METADATA_TOPIC = "__consumer_offsets"
"""The topic with the positions and members of groups."""
TRANSACTION_STATE_TOPIC = "__transaction_state"
SHARE_GROUP_STATE_TOPIC = "__share_group_state"
INTERNAL_TOPICS = frozenset(
    {GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, SHARE_GROUP_STATE_TOPIC}
)
"""The topics in which Kafka's brokers keep their own records."""

_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]+")


def topic_name_problem(name: str) -> str | None:
    """Return why no topic can have the name."""
    if not name:
        return "is empty"
    if name in (".", ".."):
        return 'cannot be "." or ".."'
    if len(name) > MAX_NAME_LENGTH:
        return f"has {len(name)} characters, and {MAX_NAME_LENGTH} is the limit"
    if _LEGAL_NAME.fullmatch(name) is None:
        return 'has other characters than ASCII letters, digits, ".", "_" and "-"'
    return None


class TopicNames:
    """A set of names in which "." and "_" are the same, as they are in Kafka's metrics."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = {_collision_key(name): name for name in names}

    def add(self, name: str) -> None:
        """Add a name."""
        self._names[_collision_key(name)] = name

    def collision(self, name: str) -> str | None:
        """Return another name that collides with ``name``."""
        other = self._names.get(_collision_key(name))
        return None if other == name else other

    def collision_problem(self, topic: str) -> ApiError | None:
        """Return the error if the name of a new topic collides with one of these."""
        other = self.collision(topic)
        if other is None:
            return None
        return ApiError(
            Errors.INVALID_TOPIC_EXCEPTION,
            f'topic {topic} collides with topic {other}: "." and "_" are the same in metrics',
        )


def _collision_key(name: str) -> str:
    return name.replace(".", "_")


def new_topic_problem(
    topic: str, existing: Collection[str], deleting: Collection[str], names: TopicNames
) -> ApiError | None:
    """Return the error if no topic of this name can be created; ``names``: those it may not be."""
    if topic in existing:
        state = "already exists and is being deleted" if topic in deleting else "already exists"
        return ApiError(Errors.TOPIC_ALREADY_EXISTS, f"topic {topic} {state}")
    problem = topic_name_problem(topic)
    if problem is not None:
        return ApiError(Errors.INVALID_TOPIC_EXCEPTION, f"topic {shown_topic(topic)} {problem}")
    return names.collision_problem(topic)


def assignment_problem(
    assignment: Sequence[Sequence[BrokerId]],
    brokers: Collection[BrokerId],
    brokers_for_replicas: Collection[BrokerId],
) -> str | None:
    """Return why the partitions 0, 1, … cannot have these replicas.

    Unlike in Kafka, which does not check, every replica must be one of the live ``brokers``, and of
    those that new replicas may be placed on.
    """
    for partition, replicas in enumerate(assignment):
        if not replicas:
            return f"partition {partition} has no replicas"
        if len(set(replicas)) != len(replicas):
            return f"partition {partition} has two replicas on one broker"
        if len(replicas) != len(assignment[0]):
            return (
                f"partition {partition} has {len(replicas)} replicas, but partition 0 has"
                f" {len(assignment[0])}"
            )
        unknown = [replica for replica in replicas if replica not in brokers]
        if unknown:
            live = ", ".join(map(str, sorted(brokers))) or "none"
            return f"broker {unknown[0]} is not registered; registered are {live}"
        for replica in replicas:
            if replica not in brokers_for_replicas:
                return takes_no_replicas(replica)
    return None


def takes_no_replicas(broker_id: BrokerId) -> str:
    """Return why a new replica cannot be on a broker with ``no_replicas``."""
    return f"broker {broker_id} takes no new replicas (its setting no_replicas): name another"


def shown_topic(topic: str) -> str:
    """Return a name as messages show it: abbreviated and in quotes if no topic can have it."""
    if topic_name_problem(topic) is None:
        return topic
    quoted = repr(topic)
    return quoted if len(quoted) <= 60 else f"{quoted[:60]}…"


def size_problem(
    topic: str, partitions: int, replication_factor: int, brokers: Collection[BrokerId]
) -> ApiError | None:
    """Return the error if a topic's assignment to some of ``brokers`` does not fit a znode."""
    id_bytes = max((len(str(broker_id)) for broker_id in brokers), default=0) + 1
    size = partitions * (replication_factor * id_bytes + len(f'"{partitions}":[],'))
    if size <= MAX_TOPIC_BYTES:
        return None
    return ApiError(
        Errors.INVALID_PARTITIONS,
        f"topic {topic}: {partitions} partitions take {size} bytes in ZooKeeper, which accepts"
        f" {MAX_TOPIC_BYTES}: use fewer partitions or replicas",
    )


def unknown_topic(topic: str) -> ApiError:
    """Return the error of a request about a topic that does not exist."""
    return ApiError(Errors.UNKNOWN_TOPIC_OR_PARTITION, f"topic {shown_topic(topic)} does not exist")


def protected_topic(topic: str) -> ApiError:
    """Return the error of a request to delete a topic that is protected."""
    message = f"topic {topic} is protected: set its regent.deletion.protection to false first"
    return ApiError(Errors.TOPIC_DELETION_DISABLED, message)


def growth_problem(
    topic: str, current: TopicAssignment, *, is_being_deleted: bool
) -> ApiError | None:
    """Return the error if a topic cannot get more partitions now, whatever their number."""
    if is_being_deleted:
        return ApiError(Errors.INVALID_TOPIC_EXCEPTION, f"topic {topic} is being deleted")
    if any(assignment.is_being_reassigned for assignment in current.partitions.values()):
        return ApiError(Errors.REASSIGNMENT_IN_PROGRESS, f"topic {topic} is being reassigned")
    if not current.partitions or sorted(current.partitions) != list(range(len(current.partitions))):
        return ApiError(Errors.INVALID_REQUEST, f"topic {topic} lacks some of its partitions")
    return None
