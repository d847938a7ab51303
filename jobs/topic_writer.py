"""Creates placed topics through the active controller's broker, many in each request.

An interrupted run may be repeated: existing topics are not changed. Topics that exist with other
replicas are reported.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from regent.client.cluster_connection import registered_brokers
from regent.client.live_brokers import not_registered
from regent.client.progress_line import ProgressLine
from regent.client.topics import TopicsClient, new_topic_id, raise_if_refused, slices
from regent.core.errors import Errors, RegentError
from regent.core.model import ReplicaAssignment
from regent.core.ports import TopicAssignment
from regent.core.protocol.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
)
from regent.core.protocol.placement import PlacedPartition, PlaceTopicsRequest
from regent.core.protocol.topics import error_of
from regent.jobs.command import InputError
from regent.zk.stores.admin_store import ZkAdminStore

MAX_NAMED: Final = 3
_PATIENCE_S: Final = 30.0  # limit for each request while no broker answers


class TopicsExistError(RegentError):
    """Topics exist with other replicas; all others were written."""


class Written(NamedTuple):
    """The outcome of the creation."""

    created: int
    unchanged: int  # existed already, with these replicas
    existing: tuple[str, ...]  # exist with other replicas

    def raise_if_any_existed(self) -> None:
        """Raise ``TopicsExistError`` naming the first few that exist with other replicas."""
        if self.existing:
            more = len(self.existing) - MAX_NAMED
            names = ", ".join(self.existing[:MAX_NAMED]) + (f" and {more} more" if more > 0 else "")
            raise TopicsExistError(
                f"{len(self.existing)} topics exist with other replicas, or are being deleted, and"
                f" were left as they are: {names}"
            )


# --- before anything is written -------------------------------------------------------------------


def check_new_topics(
    admin: ZkAdminStore,
    request: PlaceTopicsRequest,
    configs: Mapping[str, tuple[CreatableTopicConfig, ...]],
) -> None:
    """Check that all topics could be created, each with its configuration.

    A topic that exists is no problem here. Raises ``InputError`` naming the first problem,
    ``NoClusterError``, ``NoBrokerError``.
    """
    registered = set(admin.read_brokers())
    unknown = [b.broker_id for b in request.brokers if b.broker_id not in registered]
    if unknown:
        raise InputError(not_registered(unknown[0], registered))
    wanted = []
    for topic, partitions, factor, start_partition in request.topics:
        if start_partition:
            raise InputError(f"topic {topic}: --apply creates topics, it does not let them grow")
        config = configs.get(topic, ())
        wanted.append(
            CreatableTopic(
                name=topic, num_partitions=partitions, replication_factor=factor, configs=config
            )
        )
    for problem in map(error_of, _client(admin).validate(wanted).values()):
        if problem.error_code is not Errors.TOPIC_ALREADY_EXISTS:
            raise InputError(problem.message)


# --- writing --------------------------------------------------------------------------------------


def placed_topics(
    rows: Iterable[PlacedPartition], configs: Mapping[str, tuple[CreatableTopicConfig, ...]]
) -> Iterator[CreatableTopic]:
    """Yield the topics of placed partitions that are sorted by topic."""
    for topic, partitions in itertools.groupby(rows, key=lambda row: row.topic):
        yield CreatableTopic(
            name=topic,
            assignments=tuple(
                CreatableReplicaAssignment(partition_index=row.partition, broker_ids=row.replicas)
                for row in partitions
            ),
            configs=configs.get(topic, ()),
            topic_id=new_topic_id(),
        )


def write_topics(admin: ZkAdminStore, topics: Iterable[CreatableTopic], total: int) -> Written:
    """Create the topics, a slice at a time, in bounded memory for any number; show the progress.

    After an error or an interruption, the topics created until then remain, and a line on stderr
    has their number. Raises ``NoClusterError``, ``NoBrokerError``, ``TopicsRefusedError`` and
    ``SessionExpiredError``.
    """
    created = done = 0
    existing: list[str] = []
    with ProgressLine() as line:
        try:
            for part in slices(topics):
                (response,) = _client(admin).create(part, None, waits=False)
                exists = Errors.TOPIC_ALREADY_EXISTS
                raise_if_refused(row for row in response.topics if row.error_code != exists)
                names = {row.name for row in response.topics if row.error_code == exists}
                existing += _existing_otherwise(admin, [t for t in part if t.name in names])
                created += len(part) - len(names)
                done += len(part)
                line.show(f"creating topics: {done} of {total}")
        except BaseException:
            line.say(f"{done} of {total} topics exist: the same command creates the others")
            raise
    return Written(created, done - created - len(existing), tuple(existing))


def _existing_otherwise(admin: ZkAdminStore, wanted: Sequence[CreatableTopic]) -> list[str]:
    """Return the topics that do not exist exactly as wanted, or that are being deleted."""
    if not wanted:
        return []
    deleted = admin.topics.read_topics_being_deleted()
    found = admin.topics.read_topics([topic.name for topic in wanted])
    return [
        topic.name
        for topic in wanted
        if topic.name in deleted or not _is_as_wanted(found.get(topic.name), topic)
    ]


def _is_as_wanted(found: object, wanted: CreatableTopic) -> bool:
    assignment = {
        row.partition_index: ReplicaAssignment(row.broker_ids) for row in wanted.assignments
    }
    return isinstance(found, TopicAssignment) and found.partitions == assignment


def _client(admin: ZkAdminStore) -> TopicsClient:
    return TopicsClient(registered_brokers(admin), timeout_s=_PATIENCE_S)
