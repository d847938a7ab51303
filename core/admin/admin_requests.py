"""How requests about topics are answered.

A request is decided at once and answered later: when this broker's metadata cache shows the
result, or when the request's time is over. Mirrors ``DelayedCreatePartitions`` and
``DelayedDeleteTopics``: REQUEST_TIMED_OUT does not undo what was decided.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from regent.core.errors import ApiError, BadDataError, Errors
from regent.core.model import NO_LEADER, ReplicaAssignment, TopicPartition
from regent.core.ports import TopicAssignment
from regent.core.protocol.control import TopicId
from regent.core.protocol.envelope import ForwardedClient, Requester
from regent.core.protocol.messages.configs import (
    AlterConfigsResourceResult,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from regent.core.protocol.messages.partitions import PartitionsRequest
from regent.core.protocol.messages.topics import (
    UNSET,
    CreatableTopic,
    CreatableTopicResult,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from regent.core.protocol.placement import PlaceTopicsRequest, PlaceTopicsResponse
from regent.core.protocol.topics import (
    R,
    TopicResult,
    TopicsRequest,
    TopicsResponse,
    results_of,
    topic_of,
    with_results,
)
from regent.core.replication.metadata_cache import MetadataSnapshot

RespondToClient: TypeAlias = Callable[[TopicsResponse], None]
RespondToCreation: TypeAlias = Callable[[Mapping[str, ApiError]], None]
CreateMissingTopics: TypeAlias = Callable[[Collection[str], RespondToCreation], None]
"""See ``TopicService.create_missing``."""

PASSING: Final = (
    Errors.REQUEST_TIMED_OUT,
    Errors.TOPIC_ALREADY_EXISTS,
    Errors.NOT_CONTROLLER,
    Errors.COORDINATOR_LOAD_IN_PROGRESS,
)
"""Errors of a creation after which the topic may exist soon, without a change by anybody."""


def refuse(request: TopicsRequest, error_code: Errors, message: str) -> TopicsResponse:
    """Return the answer that refuses every topic of a request for the same reason."""
    error: Any = {"error_code": error_code, "error_message": message}
    match request:
        case CreateTopicsRequest(topics=topics):
            created = (CreatableTopicResult(name=t, **error) for t in _names(topics))
            return CreateTopicsResponse(topics=tuple(created))
        case CreatePartitionsRequest(topics=growing):
            grown = (CreatePartitionsTopicResult(name=t, **error) for t in _names(growing))
            return CreatePartitionsResponse(results=tuple(grown))
        case DeleteTopicsRequest(topics=named):
            rows = dict.fromkeys(named)
            deleted = (
                DeletableTopicResult(name=r.name, topic_id=r.topic_id, **error) for r in rows
            )
            return DeleteTopicsResponse(responses=tuple(deleted))
        case IncrementalAlterConfigsRequest(resources=resources):
            owners = dict.fromkeys((row.resource_type, row.resource_name) for row in resources)
            altered = (
                AlterConfigsResourceResult(resource_type=kind, resource_name=name, **error)
                for kind, name in owners
            )
            return IncrementalAlterConfigsResponse(responses=tuple(altered))


def _names(topics: Iterable[CreatableTopic | CreatePartitionsTopic]) -> Iterable[str]:
    return dict.fromkeys(row.name for row in topics)


def is_unplaced(response: TopicsResponse) -> bool:
    """Whether nothing was written, because the placement service is starting."""
    starting = Errors.COORDINATOR_LOAD_IN_PROGRESS
    return any(row.error_code == starting for row in results_of(response))


def refuse_unplaced(response: R) -> R:
    """Return the answer to a client whose time is over before its topics could be placed."""
    late = "its time is over, and it goes on when it can be placed"
    return with_results(
        response,
        [
            _late(row, f"topic {topic_of(row)}: {late}: {row.error_message}")
            if row.error_code == Errors.COORDINATOR_LOAD_IN_PROGRESS
            else row
            for row in results_of(response)
        ],
    )


def is_elsewhere(response: TopicsResponse) -> bool:
    """Whether the broker that was asked is not the active controller."""
    return any(row.error_code == Errors.NOT_CONTROLLER for row in results_of(response))


def refuse_elsewhere(response: R, message: str) -> R:
    """Return the answer of a broker that does not decide, when another may have decided before."""
    elsewhere = Errors.NOT_CONTROLLER
    rows = results_of(response)
    late = [_late(row, message) if row.error_code == elsewhere else row for row in rows]
    return with_results(response, late)


class TopicPlacer(Protocol):
    """Places new partitions with the placement service; without it if there is none."""

    def place(self, request: PlaceTopicsRequest, *, use_service: bool) -> PlaceTopicsResponse:
        """Place every partition of a request that ``replica_placer.check`` accepts.

        An error of the response is one of ``obstacle``; then nothing is placed.
        """
        ...

    def obstacle(self) -> ApiError | None:
        """Return why the placement service cannot place now; start it if it does not run.

        COORDINATOR_LOAD_IN_PROGRESS: it will soon. Another error: it needs help.
        """
        ...


class TopicService(Protocol):
    """Takes requests about topics from clients, on any thread and without delay."""

    def ask(
        self,
        request: TopicsRequest,
        respond: RespondToClient,
        requester: Requester | None = None,
        client: ForwardedClient | None = None,
    ) -> None:
        """Call ``respond`` exactly once, on any thread.

        ``requester`` None: there are no quotas. ``client``: the controller authorizes it again.
        """
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
        """Ask for the deletion of topics; a topic that is already marked is no error.

        TOPIC_DELETION_DISABLED for a topic that is protected at the moment of the write.
        """
        ...


def created_topic(topic: str, size: tuple[int, int], topic_id: str | None) -> CreatableTopicResult:
    """Return the result of a creation; ``size``: of partitions, and replicas of each."""
    return CreatableTopicResult(
        name=topic,
        topic_id=topic_id,
        error_code=Errors.NONE,
        num_partitions=size[0],
        replication_factor=size[1],
    )


_DONE_BEFORE: Final[Mapping[type, tuple[Errors, ...]]] = {
    CreatePartitionsRequest: (Errors.INVALID_PARTITIONS,),
    DeleteTopicsRequest: (Errors.UNKNOWN_TOPIC_OR_PARTITION, Errors.UNKNOWN_TOPIC_ID),
}


def done_before(request: TopicsRequest, response: R, undone: Collection[str]) -> R:
    """Return the response; NONE replaces the errors that an earlier attempt has caused.

    ``undone``: the topics that were still to grow or to be deleted before the first attempt. Topics
    to create are recognised by their ids.
    """
    caused = _DONE_BEFORE.get(type(request), ())
    return with_results(
        response,
        [
            replace(row, error_code=Errors.NONE, error_message=None)
            if row.error_code in caused and topic_of(row) in undone
            else row
            for row in results_of(response)
        ],
    )


class PendingAnswer:
    """The answer to ``request``, which waits for the cluster; ``decided``: the answer so far.

    Poll after every change of the metadata cache, and at ``deadline_ms``.
    """

    def __init__(self, request: TopicsRequest, decided: TopicsResponse, deadline_ms: int) -> None:
        self.deadline_ms = deadline_ms
        self._request = request
        self._decided = decided
        self._counts = _counts(request, decided)

    def poll(self, snapshot: MetadataSnapshot, now_ms: int) -> TopicsResponse | None:
        """Return the answer; None: the cluster does not show the result yet."""
        results = []
        for row in results_of(self._decided):
            if row.error_code != Errors.NONE or self._is_done(snapshot, topic_of(row)):
                results.append(row)
            elif now_ms < self.deadline_ms:
                return None
            else:
                results.append(_late(row, self._lateness(snapshot, topic_of(row))))
        return with_results(self._decided, results)

    def _is_done(self, snapshot: MetadataSnapshot, topic: str) -> bool:
        if not changes_topics(self._request) or not getattr(self._request, "waits", True):
            return True
        if isinstance(self._request, DeleteTopicsRequest):
            return snapshot.is_complete and topic not in snapshot.topic_ids
        return not any(True for _ in self._leaderless(snapshot, topic))

    def _lateness(self, snapshot: MetadataSnapshot, topic: str) -> str:
        timeout_ms = max(timeout_of(self._request), 0)
        if isinstance(self._request, DeleteTopicsRequest):
            return f"topic {topic} still exists after {timeout_ms} ms; its deletion continues"
        missing = sum(1 for _ in self._leaderless(snapshot, topic))
        return (
            f"topic {topic}: {missing} of {self._counts[topic]} partitions have no leader after"
            f" {timeout_ms} ms; all partitions are created"
        )

    def _leaderless(self, snapshot: MetadataSnapshot, topic: str) -> Iterator[TopicPartition]:
        for number in range(self._counts[topic]):
            topic_partition = TopicPartition(topic, number)
            row = snapshot.partitions.get(topic_partition)
            if row is None or row.leader == NO_LEADER:
                yield topic_partition


def _late(result: TopicResult, message: str) -> TopicResult:
    late = replace(result, error_code=Errors.REQUEST_TIMED_OUT, error_message=message)
    if isinstance(late, CreatableTopicResult):
        return replace(late, num_partitions=UNSET, replication_factor=UNSET)
    return late


def timeout_of(request: TopicsRequest | PartitionsRequest) -> int:
    """Return how long the cluster may take for a request; 0 if the request has no such field."""
    return 0 if isinstance(request, IncrementalAlterConfigsRequest) else request.timeout_ms


def changes_topics(request: TopicsRequest) -> bool:
    """Whether brokers see the effect of a request: topics or partitions come or go."""
    if isinstance(request, IncrementalAlterConfigsRequest):
        return False
    return isinstance(request, DeleteTopicsRequest) or not request.validate_only


def _counts(request: TopicsRequest, decided: TopicsResponse) -> Mapping[str, int]:
    """Return how many partitions each topic must get."""
    if isinstance(decided, CreateTopicsResponse):
        return {row.name: row.num_partitions for row in decided.topics}
    if isinstance(request, CreatePartitionsRequest):
        return {row.name: row.count for row in request.topics}
    return {}
