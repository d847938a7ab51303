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
V = TypeVar("V")
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
    topic_of: Callable[[str, tuple[R, ...]], T],
    row_of: Callable[[int, V], R],
    values: Mapping[TopicPartition, V],
) -> tuple[T, ...]:
    rows: dict[str, list[R]] = {}
    for (topic, number), value in values.items():
        rows.setdefault(topic, []).append(row_of(number, value))
    return tuple(topic_of(topic, tuple(of_topic)) for topic, of_topic in rows.items())


def _numbers(
    topic_of: Callable[[str, tuple[int, ...]], T], partitions: Iterable[TopicPartition] | None
) -> tuple[T, ...] | None:
    if partitions is None:
        return None
    return _by_topic(topic_of, lambda number, _: number, dict.fromkeys(partitions))


def _named(topics: Iterable[tuple[str, tuple[int, ...]]]) -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition(topic, number) for topic, numbers in topics for number in numbers)


def _result(row: PartitionResult | ReassignablePartitionResult) -> ApiError:
    if row.error_code == Errors.NONE:
        return NO_ERROR
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
        topics = _numbers(lambda t, rows: TopicPartitions(topic=t, partitions=rows), partitions)
        return cls(election_type=election_type, topic_partitions=topics, timeout_ms=timeout_ms)

    @property
    def partitions(self) -> tuple[TopicPartition, ...] | None:
        """The partitions; None: all."""
        topics = self.topic_partitions
        return None if topics is None else _named((row.topic, row.partitions) for row in topics)


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
    replica_election_results: tuple[ReplicaElectionResult, ...]

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
        topics = _by_topic(
            lambda topic, rows: ReplicaElectionResult(topic=topic, partition_result=rows),
            lambda number, found: PartitionResult(
                partition_id=number,
                error_code=found[0].error_code,
                error_message=_message(found[0]),
                leader=found[1],
            ),
            {p: (result, known.get(p, NO_LEADER)) for p, result in results.items()},
        )
        return cls(error_code=refused.error_code, replica_election_results=topics)

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
        topics = _by_topic(
            lambda topic, rows: ReassignableTopic(name=topic, partitions=rows),
            lambda number, target: ReassignablePartition(partition_index=number, replicas=target),
            targets,
        )
        return cls(timeout_ms=timeout_ms, topics=topics)

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
    error_code: Int16
    error_message: str | None
    responses: tuple[ReassignableTopicResult, ...]

    @classmethod
    def of(cls, results: Results, refused: ApiError = NO_ERROR) -> Self:
        """Answer with the result of each partition; ``refused``: that of the whole request."""
        topics = _by_topic(
            lambda topic, rows: ReassignableTopicResult(name=topic, partitions=rows),
            lambda number, result: ReassignablePartitionResult(
                partition_index=number,
                error_code=result.error_code,
                error_message=_message(result),
            ),
            results,
        )
        return cls(error_code=refused.error_code, error_message=_message(refused), responses=topics)

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
    topics: tuple[ListPartitionReassignmentsTopics, ...] | None

    @classmethod
    def of(cls, partitions: Iterable[TopicPartition] | None = None, timeout_ms: int = 0) -> Self:
        """Ask for the reassignments of these partitions; None: for all."""
        kind = ListPartitionReassignmentsTopics
        topics = _numbers(lambda t, rows: kind(name=t, partition_indexes=rows), partitions)
        return cls(timeout_ms=timeout_ms, topics=topics)

    @property
    def partitions(self) -> tuple[TopicPartition, ...] | None:
        """The partitions; None: all."""
        topics = self.topics
        return None if topics is None else _named((t.name, t.partition_indexes) for t in topics)


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
    error_code: Int16
    error_message: str | None
    topics: tuple[OngoingTopicReassignment, ...]

    @classmethod
    def of(
        cls, moving: Mapping[TopicPartition, ReplicaAssignment], refused: ApiError = NO_ERROR
    ) -> Self:
        """Answer with the assignments of the partitions that are being moved."""
        topics = _by_topic(
            lambda topic, rows: OngoingTopicReassignment(name=topic, partitions=rows),
            lambda number, assignment: OngoingPartitionReassignment(
                partition_index=number,
                replicas=assignment.replicas,
                adding_replicas=assignment.adding_replicas,
                removing_replicas=assignment.removing_replicas,
            ),
            moving,
        )
        return cls(error_code=refused.error_code, error_message=_message(refused), topics=topics)

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
