"""How clients are answered that ask something of topics.

A request is decided at once and answered later: when this broker's metadata cache shows what was
asked for, or when the client's patience is over. Mirrors ``DelayedCreatePartitions`` and
``DelayedDeleteTopics``: who is told REQUEST_TIMED_OUT gets what he wanted all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from regent.core.errors import ApiError, BadDataError, Errors
from regent.core.model import NO_LEADER, ReplicaAssignment, TopicPartition
from regent.core.ports import TopicAssignment
from regent.core.protocol.control import TopicId
from regent.core.protocol.placement import PlacedPartition, PlaceTopicsRequest
from regent.core.protocol.topics import (
    DeleteTopicsRequest,
    TopicOutcome,
    TopicsRequest,
    TopicsResponse,
)
from regent.core.replication.metadata_cache import MetadataSnapshot

TopicPlacer: TypeAlias = Callable[[PlaceTopicsRequest], Sequence[PlacedPartition]]
"""Places every partition of a request that ``core.placement.replica_placer.check`` accepts."""

RespondToClient: TypeAlias = Callable[[Sequence[TopicOutcome]], None]


def refuse(request: TopicsRequest, error_code: Errors, message: str) -> TopicsResponse:
    """Return the answer that refuses every topic of a request for the same reason."""
    topics: list[str]
    if isinstance(request, DeleteTopicsRequest):
        topics = [*request.topics, *request.topic_ids]
    else:
        topics = [row.topic for row in request.topics]
    return TopicsResponse(
        tuple(TopicOutcome(topic, error_code, message) for topic in dict.fromkeys(topics))
    )


class TopicService(Protocol):
    """Takes what clients ask of topics, from any thread and without delay."""

    def ask(self, request: TopicsRequest, respond: RespondToClient) -> None:
        """Have ``respond`` called exactly once, with an outcome a topic, from any thread."""
        ...

    def create_missing(self, topics: Collection[str]) -> None:
        """Have topics created as the settings say that somebody asked about; tells nobody."""
        ...


class NewTopic(NamedTuple):
    """A topic to create."""

    topic_id: TopicId
    partitions: Mapping[int, ReplicaAssignment]
    config: Mapping[str, str]


class TopicStore(Protocol):
    """What topics there are, and the writes that change them. See ``zk.stores.topic_store``."""

    def read_topic_names(self) -> Collection[str]:
        """List the topics."""
        ...

    def read_topics_being_deleted(self) -> Collection[str]:
        """List the topics that are marked for deletion."""
        ...

    def read_topics(self, topics: Collection[str]) -> Mapping[str, TopicAssignment | BadDataError]:
        """Read topics; absent ones are missing."""
        ...

    def create_topics(self, topics: Mapping[str, NewTopic]) -> Mapping[str, ApiError]:
        """Create topics; TOPIC_ALREADY_EXISTS for one that does, unless it has the same id."""
        ...

    def add_partitions(
        self, added: Mapping[str, Mapping[int, ReplicaAssignment]]
    ) -> Mapping[str, ApiError]:
        """Add partitions, on condition that a topic has not changed since it was read."""
        ...

    def mark_for_deletion(self, topics: Collection[str]) -> Mapping[str, ApiError]:
        """Ask for the deletion of topics; a topic that is already marked is no error."""
        ...


class PendingAnswer:
    """The answer to ``request``, of which ``decided`` is what has been written so far.

    Poll after every change of the metadata cache, and when ``deadline_ms`` has come.
    """

    def __init__(
        self, request: TopicsRequest, decided: Sequence[TopicOutcome], deadline_ms: int
    ) -> None:
        self.deadline_ms = deadline_ms
        self._outcomes = list(decided)
        self._is_done = _is_gone if isinstance(request, DeleteTopicsRequest) else _is_led
        self._waits = isinstance(request, DeleteTopicsRequest) or not request.validate_only

    def poll(self, snapshot: MetadataSnapshot, now_ms: int) -> list[TopicOutcome] | None:
        """Return the answer, in the order of the request; None while it may still get better."""
        late = {
            outcome.topic
            for outcome in self._outcomes
            if self._waits
            and outcome.error_code is Errors.NONE
            and not self._is_done(snapshot, outcome)
        }
        if late and now_ms < self.deadline_ms:
            return None
        return [
            outcome._replace(error_code=Errors.REQUEST_TIMED_OUT, message="it goes on nevertheless")
            if outcome.topic in late
            else outcome
            for outcome in self._outcomes
        ]


def _is_led(snapshot: MetadataSnapshot, outcome: TopicOutcome) -> bool:
    partitions = (TopicPartition(outcome.topic, n) for n in range(outcome.partitions))
    rows = map(snapshot.partitions.get, partitions)
    return all(row is not None and row.leader != NO_LEADER for row in rows)


def _is_gone(snapshot: MetadataSnapshot, outcome: TopicOutcome) -> bool:
    return outcome.topic not in snapshot.topic_ids
