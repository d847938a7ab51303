"""Implements ``core.admin.admin_requests.TopicStore`` in ZooKeeper."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from regent.core.admin.admin_requests import NewTopic
from regent.core.errors import BadDataError, Errors, RegentError
from regent.core.model import ReplicaAssignment
from regent.core.ports import TopicAssignment
from regent.zk.client.conflicts import ConflictError
from regent.zk.client.operations import ZooKeeper
from regent.zk.stores import admin_store
from regent.zk.stores.admin_store import (
    AddPartitionsOutcome,
    CreateTopicOutcome,
    DeleteTopicOutcome,
    ZkAdminStore,
)

_CREATED = {
    CreateTopicOutcome.CREATED: Errors.NONE,
    CreateTopicOutcome.ALREADY_EXISTS: Errors.TOPIC_ALREADY_EXISTS,
}
_ADDED = {
    AddPartitionsOutcome.ADDED: Errors.NONE,
    AddPartitionsOutcome.UNKNOWN_TOPIC: Errors.UNKNOWN_TOPIC_OR_PARTITION,
    AddPartitionsOutcome.BEING_DELETED: Errors.INVALID_TOPIC_EXCEPTION,
    AddPartitionsOutcome.BEING_REASSIGNED: Errors.REASSIGNMENT_IN_PROGRESS,
    AddPartitionsOutcome.OTHER_PARTITIONS: Errors.INVALID_PARTITIONS,
}
_MARKED = {
    DeleteTopicOutcome.MARKED: Errors.NONE,
    DeleteTopicOutcome.ALREADY_MARKED: Errors.NONE,
    DeleteTopicOutcome.UNKNOWN_TOPIC: Errors.UNKNOWN_TOPIC_OR_PARTITION,
}


class ZkTopicStore:
    """Says in error codes what ``ZkAdminStore`` says in outcomes."""

    def __init__(self, zookeeper: ZooKeeper) -> None:
        self._admin = ZkAdminStore(zookeeper)

    def read_topic_names(self) -> Collection[str]:
        """List the topics."""
        return self._admin.read_topic_names()

    def read_topics_being_deleted(self) -> Collection[str]:
        """List the topics that somebody wants to be deleted."""
        return self._admin.read_topics_being_deleted()

    def read_topics(self, topics: Collection[str]) -> Mapping[str, TopicAssignment | BadDataError]:
        """Read topics; absent ones are missing."""
        return self._admin.read_topics(topics)

    def create_topics(self, topics: Mapping[str, NewTopic]) -> Mapping[str, Errors]:
        """Create topics; INVALID_PARTITIONS for one that does not fit into a znode."""
        try:
            outcomes = self._admin.create_topics(
                {topic: admin_store.NewTopic(*new) for topic, new in topics.items()}
            )
        except admin_store.TopicTooLargeError as error:  # nothing has been written
            if len(topics) == 1:
                return dict.fromkeys(topics, _code_of(error))
            one_by_one = [self.create_topics({topic: new}) for topic, new in topics.items()]
            return {topic: error for outcome in one_by_one for topic, error in outcome.items()}
        return {topic: _CREATED[outcome] for topic, outcome in outcomes.items()}

    def add_partitions(
        self, added: Mapping[str, Mapping[int, ReplicaAssignment]]
    ) -> Mapping[str, Errors]:
        """Add partitions, topic by topic: a request names few."""
        errors: dict[str, Errors] = {}
        for topic, partitions in added.items():
            try:
                errors[topic] = _ADDED[self._admin.add_partitions(topic, partitions)]
            except (BadDataError, admin_store.TopicTooLargeError, ConflictError) as error:
                errors[topic] = _code_of(error)
        return errors

    def mark_for_deletion(self, topics: Collection[str]) -> Mapping[str, Errors]:
        """Write the wishes to delete topics."""
        outcomes = self._admin.mark_for_deletion(topics)
        return {topic: _MARKED[outcome] for topic, outcome in outcomes.items()}


def _code_of(error: RegentError) -> Errors:
    is_too_large = isinstance(error, admin_store.TopicTooLargeError)
    return Errors.INVALID_PARTITIONS if is_too_large else Errors.UNKNOWN_SERVER_ERROR
