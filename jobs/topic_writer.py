"""Placed topics, written to ZooKeeper: many in one transaction, each whole or not at all.

Whoever is interrupted runs the same again: topics that are there as they were placed are left as
they are, and so are those that are there otherwise, which are reported.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

import pyarrow

from regent.core.admin.admin_requests import NewTopic
from regent.core.admin.topic_validation import TopicNames, topic_config_problem
from regent.core.errors import Errors, RegentError
from regent.core.model import BrokerId, ReplicaAssignment
from regent.core.protocol.placement import PlaceTopicsRequest
from regent.jobs.command import InputError
from regent.zk.codecs.znodes import encode_topic_id
from regent.zk.stores.admin_store import ZkAdminStore

MAX_NAMED: Final = 3
_PARTITIONS_AT_ONCE: Final = 20_000
_TOPICS_AT_ONCE: Final = 1_000
_MAX_ASSIGNMENT_BYTES: Final = 1_000_000  # a request of ZooKeeper's takes little more


class TopicsExistError(RegentError):
    """Topics exist with other replicas; all others were written."""


class PlacedTopic(NamedTuple):
    """The replicas of a topic by partition."""

    topic: str
    partitions: Mapping[int, tuple[BrokerId, ...]]


class Written(NamedTuple):
    """What became of the topics."""

    created: int
    unchanged: int  # they were there already, exactly so
    existing: tuple[str, ...]  # they were there otherwise, and still are

    def raise_if_any_existed(self) -> None:
        """Raise ``TopicsExistError`` naming the first few of those that were there otherwise."""
        if self.existing:
            more = len(self.existing) - MAX_NAMED
            names = ", ".join(self.existing[:MAX_NAMED]) + (f" and {more} more" if more > 0 else "")
            raise TopicsExistError(
                f"{len(self.existing)} topics exist with other replicas, or are being deleted, and"
                f" were left as they are: {names}"
            )


# --- before anything is written -------------------------------------------------------------------


def check_new_topics(
    admin: ZkAdminStore, request: PlaceTopicsRequest, configs: Mapping[str, object]
) -> dict[str, dict[str, str]]:
    """Return the configuration of each topic if all could be created.

    ``configs`` has what the topics' file says. A topic that exists is no problem here. Raises
    ``InputError`` naming the first problem, ``NoClusterError``.
    """
    registered = set(admin.read_brokers())
    unknown = [b.broker_id for b in request.brokers if b.broker_id not in registered]
    if unknown:
        live = ", ".join(map(str, itertools.islice(sorted(registered), 10))) or "none"
        raise InputError(f"broker {unknown[0]} is not registered; registered are {live}")
    names = TopicNames(admin.topics.read_topic_names())
    id_bytes = max(len(str(broker.broker_id)) for broker in request.brokers) + 1
    for topic, partitions, factor, start_partition in request.topics:
        other = names.collision(topic)
        if other:
            raise InputError(
                f'topic {topic} collides with topic {other}: "." and "_" are the same in metrics'
            )
        names.add(topic)
        if start_partition:
            raise InputError(f"topic {topic}: --apply creates topics, it does not let them grow")
        size = partitions * (factor * id_bytes + len(f'"{partitions}":[],'))
        if size > _MAX_ASSIGNMENT_BYTES:
            raise InputError(
                f"topic {topic}: {partitions} partitions take {size} bytes in ZooKeeper, which"
                f" accepts {_MAX_ASSIGNMENT_BYTES}: use fewer partitions or replicas"
            )
    return {topic: _config(topic, config) for topic, config in configs.items() if config}


def _config(topic: str, config: object) -> dict[str, str]:
    if not isinstance(config, dict):
        raise InputError(f"topic {topic}: config must be an object")
    texts = {}
    for name, value in config.items():
        if not isinstance(value, str | int | float):
            raise InputError(f"topic {topic}: config {name} must be a text or a number")
        texts[name] = str(value).lower() if isinstance(value, bool) else str(value)
        problem = topic_config_problem(name, texts[name])
        if problem:
            raise InputError(f"topic {topic}: config {name} {problem}")
    return texts


# --- writing --------------------------------------------------------------------------------------


def placed_topics(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[PlacedTopic]:
    """Yield the topics of rows of (topic, partition, replicas) that are sorted by topic."""
    rows = (
        row
        for batch in batches
        for row in zip(*(column.to_pylist() for column in batch.columns), strict=True)
    )
    for topic, partitions in itertools.groupby(rows, key=lambda row: row[0]):
        yield PlacedTopic(topic, {p: tuple(replicas) for _, p, replicas in partitions})


def write_topics(
    admin: ZkAdminStore,
    topics: Iterable[PlacedTopic],
    configs: Mapping[str, Mapping[str, str]],
    on_batch: Callable[[int], None] = lambda _: None,
) -> Written:
    """Create the topics, a batch at a time, in memory bounded whatever their number.

    ``on_batch`` is told how many are done. Raises ``NoClusterError``, ``ConflictError`` and
    ``SessionExpiredError``; what is written until then stays.
    """
    created = unchanged = 0
    existing: list[str] = []
    for batch in _batches(topics):
        new = {
            topic: NewTopic(
                encode_topic_id(uuid.uuid4().bytes),
                {p: ReplicaAssignment(replicas) for p, replicas in partitions.items()},
                configs.get(topic, {}),
            )
            for topic, partitions in batch
        }
        outcomes = admin.topics.create_topics(new)
        there = [t for t in new if outcomes[t].error_code is not Errors.NONE]
        otherwise = _existing_otherwise(admin, {topic: new[topic] for topic in there})
        created += len(new) - len(there)
        unchanged += len(there) - len(otherwise)
        existing += otherwise
        on_batch(created + unchanged + len(existing))
    return Written(created, unchanged, tuple(existing))


def _batches(topics: Iterable[PlacedTopic]) -> Iterator[list[PlacedTopic]]:
    batch: list[PlacedTopic] = []
    partitions = 0
    for topic in topics:
        batch.append(topic)
        partitions += len(topic.partitions)
        if partitions >= _PARTITIONS_AT_ONCE or len(batch) >= _TOPICS_AT_ONCE:
            yield batch
            batch, partitions = [], 0
    if batch:
        yield batch


def _existing_otherwise(admin: ZkAdminStore, wanted: Mapping[str, NewTopic]) -> list[str]:
    """Return the topics that are not there exactly as wanted."""
    if not wanted:
        return []
    deleted = admin.topics.read_topics_being_deleted()
    found = admin.topics.read_topics(list(wanted))
    return [
        topic
        for topic, new in wanted.items()
        if topic in deleted or getattr(found.get(topic), "partitions", None) != new.partitions
    ]
