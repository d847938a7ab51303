"""What a topic may be called, configured and assigned, checked before anything is written.

Mirrors ``org.apache.kafka.common.internals.Topic``, ``kafka.log.LogConfig`` and the checks of
``kafka.zk.AdminZkClient``. A ``…_problem`` is None, or the end of a sentence whose subject is the
name, the setting or the assignment; an ``ApiError`` has a whole sentence that names the topic.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches

from regent.core.errors import ApiError, Errors
from regent.core.model import BrokerId
from regent.core.ports import TopicAssignment

MAX_NAME_LENGTH = 249
MAX_TOPIC_BYTES = 1_000_000  # a request to ZooKeeper holds little more

INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state"})
"""The topics brokers keep their own records in."""

_INT = 2**31 - 1
_LONG = 2**63 - 1
_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]+")
_DECIMAL = re.compile(r"[+-]?[0-9]{1,19}")
_FRACTION = re.compile(r"[0-9]*\.?[0-9]+|[0-9]+\.")
_KAFKA_VERSION = re.compile(r"[0-9]+\.[0-9]+(\.[0-9]+)?(-IV[0-9]+)?")
_THROTTLED_REPLICAS = re.compile(r"|\*|[0-9]+:[0-9]+(,[0-9]+:[0-9]+)*")

_NUMBERS: Mapping[str, tuple[int, int]] = {
    "delete.retention.ms": (0, _LONG),
    "file.delete.delay.ms": (0, _LONG),
    "flush.messages": (1, _LONG),
    "flush.ms": (0, _LONG),
    "index.interval.bytes": (0, _INT),
    "local.retention.bytes": (-2, _LONG),
    "local.retention.ms": (-2, _LONG),
    "max.compaction.lag.ms": (1, _LONG),
    "max.message.bytes": (0, _INT),
    "message.timestamp.after.max.ms": (0, _LONG),
    "message.timestamp.before.max.ms": (0, _LONG),
    "message.timestamp.difference.max.ms": (0, _LONG),
    "min.compaction.lag.ms": (0, _LONG),
    "min.insync.replicas": (1, _INT),
    "retention.bytes": (-1, _LONG),
    "retention.ms": (-1, _LONG),
    "segment.bytes": (14, _INT),
    "segment.index.bytes": (4, _INT),
    "segment.jitter.ms": (0, _LONG),
    "segment.ms": (1, _LONG),
}
_FLAGS = frozenset(
    {
        "message.downconversion.enable",
        "preallocate",
        "remote.storage.enable",
        "unclean.leader.election.enable",
    }
)
_CHOICES: Mapping[str, tuple[str, ...]] = {
    "compression.type": ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
    "message.timestamp.type": ("CreateTime", "LogAppendTime"),
}
_CLEANUP_POLICY = "cleanup.policy"
_CLEANUP_POLICIES = ("compact", "delete")
_DIRTY_RATIO = "min.cleanable.dirty.ratio"
_THROTTLES = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
_FORMAT_VERSION = "message.format.version"

TOPIC_CONFIGS = frozenset(
    (*_NUMBERS, *_FLAGS, *_CHOICES, _CLEANUP_POLICY, _DIRTY_RATIO, *_THROTTLES, _FORMAT_VERSION)
)
"""The names of the settings a topic may override."""


def topic_name_problem(name: str) -> str | None:
    """Say why ``name`` cannot be a topic's."""
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
        """Say why a topic cannot be called ``topic`` beside these."""
        other = self.collision(topic)
        if other is None:
            return None
        return ApiError(
            Errors.INVALID_TOPIC_EXCEPTION,
            f'topic {topic} collides with topic {other}: "." and "_" are the same in metrics',
        )


def _collision_key(name: str) -> str:
    return name.replace(".", "_")


def config_text(value: str | float) -> str:
    """Return a setting from a JSON file as znodes have it; booleans in lower case."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def topic_config_problem(name: str, value: str) -> str | None:
    """Say why a topic cannot override setting ``name`` with ``value``."""
    if name not in TOPIC_CONFIGS:
        names = sorted(TOPIC_CONFIGS)
        similar = get_close_matches(name, names, n=1)
        hint = f"did you mean {similar[0]}?" if similar else f"those are {', '.join(names)}"
        return f"is not a setting of topics; {hint}"
    if name in _NUMBERS:
        low, high = _NUMBERS[name]
        is_valid = _DECIMAL.fullmatch(value) is not None and low <= int(value) <= high
        return None if is_valid else f"must be a number from {low} to {high}, not {value!r}"
    if name in _FLAGS:
        is_valid = value.lower() in ("true", "false")
        return None if is_valid else f"must be true or false, not {value!r}"
    if name in _CHOICES:
        return None if value in _CHOICES[name] else _not_one_of(_CHOICES[name], value)
    if name == _CLEANUP_POLICY:
        is_valid = all(policy.strip() in _CLEANUP_POLICIES for policy in value.split(","))
        return None if is_valid else _not_one_of((*_CLEANUP_POLICIES, "compact,delete"), value)
    if name == _DIRTY_RATIO:
        is_valid = _FRACTION.fullmatch(value) is not None and float(value) <= 1
        return None if is_valid else f"must be a fraction from 0 to 1, not {value!r}"
    if name == _FORMAT_VERSION and _KAFKA_VERSION.fullmatch(value) is None:
        return f"must be a version of Kafka, not {value!r}"
    if name in _THROTTLES and _THROTTLED_REPLICAS.fullmatch(value) is None:
        return f"must be * or PARTITION:BROKER,PARTITION:BROKER,…, not {value!r}"
    return None


def _not_one_of(choices: Sequence[str], value: str) -> str:
    return f"must be one of {', '.join(choices)}, not {value!r}"


def assignment_problem(
    assignment: Sequence[Sequence[BrokerId]], brokers: Collection[BrokerId]
) -> str | None:
    """Say why the partitions 0, 1, … cannot have these replicas.

    Unlike Kafka, which does not look, every replica must be one of the live ``brokers``.
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
    return None


def shown_topic(topic: str) -> str:
    """Return a name as messages quote it: abbreviated and in quotes if no topic can have it."""
    if topic_name_problem(topic) is None:
        return topic
    quoted = repr(topic)
    return quoted if len(quoted) <= 60 else f"{quoted[:60]}…"


def size_problem(
    topic: str, partitions: int, replication_factor: int, brokers: Collection[BrokerId]
) -> ApiError | None:
    """Say why a topic's assignment to some of ``brokers`` does not fit into a znode."""
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


def growth_problem(
    topic: str, current: TopicAssignment, *, is_being_deleted: bool
) -> ApiError | None:
    """Say why a topic cannot get more partitions now, however many."""
    if is_being_deleted:
        return ApiError(Errors.INVALID_TOPIC_EXCEPTION, f"topic {topic} is being deleted")
    if any(assignment.is_being_reassigned for assignment in current.partitions.values()):
        return ApiError(Errors.REASSIGNMENT_IN_PROGRESS, f"topic {topic} is being reassigned")
    if not current.partitions or sorted(current.partitions) != list(range(len(current.partitions))):
        return ApiError(Errors.INVALID_REQUEST, f"topic {topic} lacks some of its partitions")
    return None
