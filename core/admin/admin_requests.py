"""How requests about topics are answered.

A request is decided at once and answered later: when this broker's metadata cache shows the
result, or when the request's time is over. Mirrors ``DelayedCreatePartitions`` and
``DelayedDeleteTopics``: REQUEST_TIMED_OUT does not undo what was decided.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from typing import Final, NamedTuple, Protocol, TypeAlias

from regent.core.errors import ApiError, BadDataError, Errors
from regent.core.model import NO_LEADER, ReplicaAssignment, TopicPartition
from regent.core.ports import TopicAssignment
from regent.core.protocol.control import TopicId
from regent.core.protocol.placement import PlaceTopicsRequest, PlaceTopicsResponse
from regent.core.protocol.topics import (
    AlterTopicConfigsRequest,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    TopicOutcome,
    TopicsRequest,
    TopicsResponse,
)
from regent.core.replication.metadata_cache import MetadataSnapshot

RespondToClient: TypeAlias = Callable[[TopicsResponse], None]
RespondToCreation: TypeAlias = Callable[[Mapping[str, ApiError]], None]
CreateMissingTopics: TypeAlias = Callable[[Collection[str], RespondToCreation], None]
"""See ``TopicService.create_missing``."""

PASSING: Final = (Errors.REQUEST_TIMED_OUT, Errors.TOPIC_ALREADY_EXISTS, Errors.NOT_CONTROLLER)
"""Errors of a creation after which the topic may exist soon, without a change by anybody."""


def refuse(request: TopicsRequest, error_code: Errors, message: str) -> TopicsResponse:
    """Return the answer that refuses every topic of a request for the same reason."""
    topics: dict[str, TopicId | None]
    if isinstance(request, DeleteTopicsRequest):
        topics = {**dict.fromkeys(request.topics), **{id_: id_ for id_ in request.topic_ids}}
    else:
        topics = {row.topic: None for row in request.topics}
    return TopicsResponse(
        tuple(
            TopicOutcome(topic, error_code, message, topic_id=topic_id)
            for topic, topic_id in topics.items()
        )
    )


class TopicPlacer(Protocol):
    """Places new partitions, with the placement service if it is available."""

    def place(self, request: PlaceTopicsRequest, *, use_service: bool) -> PlaceTopicsResponse:
        """Place every partition of a request that ``replica_placer.check`` accepts.

        The response has no error. If the placement service did not place, its message says why.
        """
        ...

    def warming(self) -> str:
        """Return what the placement service does at its start, as "Spark is warming up".

        Empty: it is ready, or it cannot place.
        """
        ...


class TopicService(Protocol):
    """Takes requests about topics from clients, on any thread and without delay."""

    def ask(self, request: TopicsRequest, respond: RespondToClient) -> None:
        """Call ``respond`` exactly once, on any thread."""
        ...

    def create_missing(self, topics: Collection[str], respond: RespondToCreation) -> None:
        """Create topics that a client needs, with the settings of this broker.

        Call ``respond`` exactly once, on any thread, after a fraction of a second at most, with
        the reasons why topics do not exist. A topic without a reason exists, or will exist soon.
        """
        ...


class NewTopic(NamedTuple):
    """A topic to create."""

    topic_id: TopicId
    partitions: Mapping[int, ReplicaAssignment]
    config: Mapping[str, str]


class TopicConfigStore(Protocol):
    """The overrides of topics. Implemented in ``zk.stores.config_store``."""

    def read_topic_configs(
        self, topics: Collection[str]
    ) -> Mapping[str, Mapping[str, str] | BadDataError]:
        """Read the overrides of each topic; empty for a topic that never had any."""
        ...

    def alter_topic_config(
        self, topic: str, changes: Mapping[str, str | None]
    ) -> Mapping[str, str]:
        """Set overrides, remove those that are None, and return all overrides of the topic.

        Raises ``RegentError`` if the topic does not exist or its settings cannot be changed.
        """
        ...


class TopicStore(Protocol):
    """The topics of the cluster. Implemented in ``zk.stores.topic_store``."""

    def read_topic_names(self) -> Collection[str]:
        """List the topics."""
        ...

    def read_topics_being_deleted(self) -> Collection[str]:
        """List the topics that are marked for deletion."""
        ...

    def read_topics(self, topics: Collection[str]) -> Mapping[str, TopicAssignment | BadDataError]:
        """Read topics. Topics that do not exist are missing from the result."""
        ...

    def create_topics(self, topics: Mapping[str, NewTopic]) -> Mapping[str, ApiError]:
        """Create topics; TOPIC_ALREADY_EXISTS for a topic that exists with another id."""
        ...

    def add_partitions(
        self, added: Mapping[str, Mapping[int, ReplicaAssignment]]
    ) -> Mapping[str, ApiError]:
        """Add partitions to each topic that has not changed since it was read."""
        ...

    @property
    def configs(self) -> TopicConfigStore:
        """The settings of topics."""
        ...

    def mark_for_deletion(self, topics: Collection[str]) -> Mapping[str, ApiError]:
        """Ask for the deletion of topics; a topic that is already marked is no error."""
        ...


def done_before(
    request: TopicsRequest, outcome: TopicOutcome, undone: Collection[str]
) -> TopicOutcome:
    """Return the outcome; NONE replaces an error that an earlier attempt has caused.

    ``undone``: the topics that were still to grow or to be deleted before the first attempt. Topics
    to create are recognised by their ids.
    """
    done: dict[type, tuple[Errors, ...]] = {
        CreateTopicsRequest: (),
        CreatePartitionsRequest: (Errors.INVALID_PARTITIONS,),
        DeleteTopicsRequest: (Errors.UNKNOWN_TOPIC_OR_PARTITION, Errors.UNKNOWN_TOPIC_ID),
        AlterTopicConfigsRequest: (),
    }
    if outcome.topic in undone and outcome.error_code in done[type(request)]:
        return outcome._replace(error_code=Errors.NONE, message="")
    return outcome


class PendingAnswer:
    """The answer to ``request``, which waits for the cluster; ``decided``: the outcomes so far.

    Poll after every change of the metadata cache, and at ``deadline_ms``.
    """

    def __init__(self, request: TopicsRequest, decided: TopicsResponse, deadline_ms: int) -> None:
        self.deadline_ms = deadline_ms
        self._request = request
        self._decided = decided

    def poll(self, snapshot: MetadataSnapshot, now_ms: int) -> TopicsResponse | None:
        """Return the answer; None: the cluster does not show the result yet."""
        outcomes = []
        for outcome in self._decided.outcomes:
            if self._is_done(snapshot, outcome):
                outcomes.append(outcome)
            elif now_ms < self.deadline_ms:
                return None
            else:
                message = self._lateness(snapshot, outcome)
                outcomes.append(
                    outcome._replace(error_code=Errors.REQUEST_TIMED_OUT, message=message)
                )
        return replace(self._decided, outcomes=tuple(outcomes))

    def _is_done(self, snapshot: MetadataSnapshot, outcome: TopicOutcome) -> bool:
        if outcome.error_code is not Errors.NONE:
            return True
        if isinstance(self._request, DeleteTopicsRequest):
            return snapshot.is_complete and outcome.topic not in snapshot.topic_ids
        return self._request.validate_only or not any(True for _ in _leaderless(snapshot, outcome))

    def _lateness(self, snapshot: MetadataSnapshot, outcome: TopicOutcome) -> str:
        topic, timeout_ms = outcome.topic, max(self._request.timeout_ms, 0)
        if isinstance(self._request, DeleteTopicsRequest):
            return f"topic {topic} still exists after {timeout_ms} ms; its deletion continues"
        missing = sum(1 for _ in _leaderless(snapshot, outcome))
        return (
            f"topic {topic}: {missing} of {outcome.partitions} partitions have no leader after"
            f" {timeout_ms} ms; all partitions are created"
        )


def _leaderless(snapshot: MetadataSnapshot, outcome: TopicOutcome) -> Iterator[TopicPartition]:
    for number in range(outcome.partitions):
        topic_partition = TopicPartition(outcome.topic, number)
        row = snapshot.partitions.get(topic_partition)
        if row is None or row.leader == NO_LEADER:
            yield topic_partition
