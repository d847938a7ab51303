"""ElectLeaders, AlterPartitionReassignments and ListPartitionReassignments.

The rows of a message are grouped by topic. ``of`` makes a message of values by partition, and
properties return these values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from typing import Final, Self, TypeAlias, TypeVar

from regent.core.errors import ApiError, Errors
from regent.core.model import NO_LEADER, BrokerId, ReplicaAssignment, TopicPartition
from regent.core.protocol.message import Int8, Int16, Int32, internal, message, since

T = TypeVar("T")
R = TypeVar("R")

Targets: TypeAlias = Mapping[TopicPartition, tuple[BrokerId, ...] | None]
"""New replicas of partitions; None cancels a reassignment."""

Results: TypeAlias = Mapping[TopicPartition, ApiError]

NO_ERROR: Final = ApiError(Errors.NONE)
_MAX_MESSAGE_LENGTH: Final = 1_000  # it may quote as many broker ids as a request may have


class ElectionType(IntEnum):
    """The type of a requested election (KIP-460)."""

    PREFERRED = 0
    UNCLEAN = 1


def _by_topic(
    values: Mapping[TopicPartition, T], row_of: Callable[[int, T], R]
) -> Iterable[tuple[str, tuple[R, ...]]]:
    rows: dict[str, list[R]] = {}
    for (topic, partition), value in values.items():
        rows.setdefault(topic, []).append(row_of(partition, value))
    return ((topic, tuple(partitions)) for topic, partitions in rows.items())


def _numbers(partitions: Iterable[TopicPartition]) -> Iterable[tuple[str, tuple[int, ...]]]:
    return _by_topic(dict.fromkeys(partitions), lambda number, _: number)


def _result(row: PartitionResult | ReassignablePartitionResult) -> ApiError:
    return ApiError(Errors(row.error_code), row.error_message or "")


def _message(result: ApiError) -> str | None:
    return (result.message[:_MAX_MESSAGE_LENGTH] or None) if result.error_code else None


@message
class TopicPartitions:
    """Partitions of a topic whose leaders are to be elected."""

    topic: str
    partitions: tuple[Int32, ...]


@message
class ElectLeadersRequest:
    """Elections to hold (KIP-460); ``topic_partitions`` null: of all partitions."""

    election_type: Int8 = since(1, default=0)
    topic_partitions: tuple[TopicPartitions, ...] | None
    timeout_ms: Int32 = 0

    @classmethod
    def of(
        cls,
        election_type: int,
        partitions: Iterable[TopicPartition] | None = None,
        timeout_ms: int = 0,
    ) -> Self:
        """Ask for elections of these partitions; None: of all."""
        topics = None
        if partitions is not None:
            rows = _numbers(partitions)
            topics = tuple(TopicPartitions(topic=topic, partitions=row) for topic, row in rows)
        return cls(election_type=election_type, topic_partitions=topics, timeout_ms=timeout_ms)

    @property
    def partitions(self) -> tuple[TopicPartition, ...] | None:
        """The partitions; None: all."""
        topics = self.topic_partitions
        if topics is None:
            return None
        return tuple(TopicPartition(row.topic, n) for row in topics for n in row.partitions)


@message
class PartitionResult:
    """The outcome of an election."""

    partition_id: Int32
    error_code: Int16
    error_message: str | None
    leader: Int32 = internal(default=NO_LEADER)
    """The elected broker; -1 on an error."""


@message
class ReplicaElectionResult:
    """Partitions of a topic."""

    topic: str
    partition_result: tuple[PartitionResult, ...]


@message
class ElectLeadersResponse:
    """A result for each election.

    If the request was for all partitions, those that needed no election are omitted.
    """

    throttle_time_ms: Int32 = 0
    error_code: Int16 = since(1, default=0)
    replica_election_results: tuple[ReplicaElectionResult, ...] = ()

    @classmethod
    def of(
        cls,
        results: Results,
        refused: ApiError = NO_ERROR,
        *,
        leaders: Mapping[TopicPartition, BrokerId] | None = None,
    ) -> Self:
        """Answer with the result of each partition; ``refused``: that of the whole request."""
        known = {} if leaders is None else leaders
        rows = _by_topic(
            {p: (result, known.get(p, NO_LEADER)) for p, result in results.items()},
            lambda number, row: PartitionResult(
                partition_id=number,
                error_code=row[0].error_code,
                error_message=_message(row[0]),
                leader=row[1],
            ),
        )
        topics = (ReplicaElectionResult(topic=topic, partition_result=row) for topic, row in rows)
        return cls(error_code=refused.error_code, replica_election_results=tuple(topics))

    @property
    def results(self) -> dict[TopicPartition, ApiError]:
        """The result of each partition."""
        return {
            TopicPartition(topic.topic, row.partition_id): _result(row)
            for topic in self.replica_election_results
            for row in topic.partition_result
        }

    @property
    def leaders(self) -> dict[TopicPartition, BrokerId]:
        """The elected leaders."""
        return {
            TopicPartition(topic.topic, row.partition_id): row.leader
            for topic in self.replica_election_results
            for row in topic.partition_result
            if row.error_code == Errors.NONE
        }


# --- AlterPartitionReassignments ------------------------------------------------------------------


@message
class ReassignablePartition:
    """A partition and its new replicas; null: its reassignment is to be cancelled."""

    partition_index: Int32
    replicas: tuple[Int32, ...] | None


@message
class ReassignableTopic:
    """Partitions of a topic."""

    name: str
    partitions: tuple[ReassignablePartition, ...]


@message
class AlterPartitionReassignmentsRequest:
    """Partitions to move (KIP-455)."""

    timeout_ms: Int32 = 0
    topics: tuple[ReassignableTopic, ...]

    @classmethod
    def of(cls, targets: Targets, timeout_ms: int = 0) -> Self:
        """Ask for new replicas of partitions."""
        rows = _by_topic(
            targets,
            lambda number, replicas: ReassignablePartition(
                partition_index=number, replicas=replicas
            ),
        )
        topics = (ReassignableTopic(name=topic, partitions=row) for topic, row in rows)
        return cls(timeout_ms=timeout_ms, topics=tuple(topics))

    @property
    def targets(self) -> Targets:
        """The new replicas of each partition; the last of several rows counts."""
        return {
            TopicPartition(topic.name, row.partition_index): row.replicas
            for topic in self.topics
            for row in topic.partitions
        }


@message
class ReassignablePartitionResult:
    """Whether a new assignment is stored; the move has only begun."""

    partition_index: Int32
    error_code: Int16
    error_message: str | None


@message
class ReassignableTopicResult:
    """Partitions of a topic."""

    name: str
    partitions: tuple[ReassignablePartitionResult, ...]


@message
class AlterPartitionReassignmentsResponse:
    """A result for each partition."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = Errors.NONE
    error_message: str | None = None
    responses: tuple[ReassignableTopicResult, ...] = ()

    @classmethod
    def of(cls, results: Results, refused: ApiError = NO_ERROR) -> Self:
        """Answer with the result of each partition; ``refused``: that of the whole request."""
        rows = _by_topic(
            results,
            lambda number, result: ReassignablePartitionResult(
                partition_index=number,
                error_code=result.error_code,
                error_message=_message(result),
            ),
        )
        topics = (ReassignableTopicResult(name=topic, partitions=row) for topic, row in rows)
        return cls(
            error_code=refused.error_code, error_message=_message(refused), responses=tuple(topics)
        )

    @property
    def results(self) -> dict[TopicPartition, ApiError]:
        """The result of each partition."""
        return {
            TopicPartition(topic.name, row.partition_index): _result(row)
            for topic in self.responses
            for row in topic.partitions
        }


# --- ListPartitionReassignments -------------------------------------------------------------------


@message
class ListPartitionReassignmentsTopics:
    """Partitions of a topic."""

    name: str
    partition_indexes: tuple[Int32, ...]


@message
class ListPartitionReassignmentsRequest:
    """The partitions to list if they are being moved; ``topics`` null: all."""

    timeout_ms: Int32 = 0
    topics: tuple[ListPartitionReassignmentsTopics, ...] | None = None

    @classmethod
    def of(cls, partitions: Iterable[TopicPartition] | None = None, timeout_ms: int = 0) -> Self:
        """Ask for the reassignments of these partitions; None: for all."""
        topics = None
        if partitions is not None:
            kind = ListPartitionReassignmentsTopics
            rows = _numbers(partitions)
            topics = tuple(kind(name=topic, partition_indexes=row) for topic, row in rows)
        return cls(timeout_ms=timeout_ms, topics=topics)

    @property
    def partitions(self) -> tuple[TopicPartition, ...] | None:
        """The partitions; None: all."""
        if self.topics is None:
            return None
        rows = ((row.name, row.partition_indexes) for row in self.topics)
        return tuple(TopicPartition(topic, n) for topic, numbers in rows for n in numbers)


@message
class OngoingPartitionReassignment:
    """A partition that is being moved."""

    partition_index: Int32
    replicas: tuple[Int32, ...]
    adding_replicas: tuple[Int32, ...]
    removing_replicas: tuple[Int32, ...]


@message
class OngoingTopicReassignment:
    """Partitions of a topic."""

    name: str
    partitions: tuple[OngoingPartitionReassignment, ...]


@message
class ListPartitionReassignmentsResponse:
    """The reassignments in progress."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = Errors.NONE
    error_message: str | None = None
    topics: tuple[OngoingTopicReassignment, ...] = ()

    @classmethod
    def of(cls, moving: Mapping[TopicPartition, ReplicaAssignment]) -> Self:
        """Answer with the assignments of the partitions that are being moved."""
        rows = _by_topic(
            moving,
            lambda number, assignment: OngoingPartitionReassignment(
                partition_index=number,
                replicas=assignment.replicas,
                adding_replicas=assignment.adding_replicas,
                removing_replicas=assignment.removing_replicas,
            ),
        )
        topics = (OngoingTopicReassignment(name=topic, partitions=row) for topic, row in rows)
        return cls(topics=tuple(topics))

    @property
    def assignments(self) -> dict[TopicPartition, ReplicaAssignment]:
        """The assignments of the partitions that are being moved."""
        return {
            TopicPartition(topic.name, row.partition_index): ReplicaAssignment(
                row.replicas, row.adding_replicas, row.removing_replicas
            )
            for topic in self.topics
            for row in topic.partitions
        }


PartitionsRequest: TypeAlias = (
    ElectLeadersRequest | AlterPartitionReassignmentsRequest | ListPartitionReassignmentsRequest
)
"""The requests of clients, who send them to any broker. It forwards them to the controller, and
``timeout_ms`` is how long it may take for the answer; 0 in requests that the controller gets."""

PartitionsResponse: TypeAlias = (
    ElectLeadersResponse | AlterPartitionReassignmentsResponse | ListPartitionReassignmentsResponse
)
"""An ``error_code`` is of the whole request; rows have their own."""
