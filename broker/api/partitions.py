"""ElectLeaders 0 to 2, AlterPartitionReassignments 0 and ListPartitionReassignments 0.

Mirrors ``kafka.server.KafkaApis.handleElectLeaders`` and the like. Every broker accepts them:
``PartitionService`` forwards a request to the active controller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from regent.core.admin.partition_requests import PartitionService
from regent.core.errors import ApiError, Errors
from regent.core.model import TopicPartition
from regent.core.protocol.controller import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ElectionType,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingReassignment,
    PartitionsRequest,
    ReassignablePartition,
)
from regent.core.protocol.messages import partitions as messages
from regent.core.topic_validation import topic_name_problem, unknown_topic
from regent.transport.kafka.api import (
    KafkaAnswer,
    KafkaApi,
    KafkaApiKey,
    KafkaRequest,
    UnansweredRequestError,
)
from regent.transport.kafka.message_codec import answer, decode
from regent.transport.kafka.replies import AwaitedReply, Replies

_MAX_MESSAGE_LENGTH = 1_000  # it may quote as many broker ids as a request may have

T = TypeVar("T")
R = TypeVar("R")


def partition_apis(service: PartitionService) -> Sequence[KafkaApi]:
    """Return the APIs for elections and reassignments, which call ``service``."""
    replies = Replies()

    async def ask(request: PartitionsRequest) -> Any:
        reply: AwaitedReply[Any] = replies.new()
        service.ask_controller(request, reply.give)
        return await reply

    async def elect(request: KafkaRequest) -> KafkaAnswer:
        asked = decode(messages.ElectLeadersRequest, request)
        topics = asked.topic_partitions
        named = None if topics is None else _named((row.topic, row.partitions) for row in topics)
        if asked.election_type in set(ElectionType):
            election_type, partitions = ElectionType(asked.election_type), _possible(named)
            elected = await ask(ElectLeadersRequest(election_type, partitions, asked.timeout_ms))
        else:
            message = f"{asked.election_type} is not a type of elections"
            elected = ElectLeadersResponse(Errors.INVALID_REQUEST, message=message)
        if elected.error_code is not Errors.NONE and named is None and request.api_version == 0:
            # The answer would be the one that no election is needed.
            raise UnansweredRequestError(f"elections of all leaders: {elected.error_code.name}")
        return answer(_elected(_results(named or (), elected), elected.error_code), request)

    async def reassign(request: KafkaRequest) -> KafkaAnswer:
        asked = decode(messages.AlterPartitionReassignmentsRequest, request)
        targets = {
            TopicPartition(topic.name, row.partition_index): row.replicas
            for topic in asked.topics
            for row in topic.partitions
        }
        moves = tuple(ReassignablePartition(*p, targets[p]) for p in _possible(targets) or ())
        accepted = await ask(AlterPartitionReassignmentsRequest(moves, asked.timeout_ms))
        return answer(_reassigned(_results(targets, accepted), accepted), request)

    async def list_ongoing(request: KafkaRequest) -> KafkaAnswer:
        asked = decode(messages.ListPartitionReassignmentsRequest, request)
        topics = asked.topics
        named = None if topics is None else _named((t.name, t.partition_indexes) for t in topics)
        ongoing = await ask(ListPartitionReassignmentsRequest(_possible(named), asked.timeout_ms))
        return answer(_listed(ongoing), request)

    return [
        KafkaApi(KafkaApiKey.ELECT_LEADERS, 0, 2, elect),
        KafkaApi(KafkaApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, 0, reassign),
        KafkaApi(KafkaApiKey.LIST_PARTITION_REASSIGNMENTS, 0, 0, list_ongoing),
    ]


# --- from the request -----------------------------------------------------------------------------


def _named(topics: Iterable[tuple[str, Iterable[int]]]) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for topic, numbers in topics for number in numbers]


def _possible(partitions: Iterable[TopicPartition] | None) -> tuple[TopicPartition, ...] | None:
    """Return the partitions whose topic may exist, once each; None: all partitions are meant.

    A name may have 32 KiB, and a request to the controller has it in each row.
    """
    if partitions is None:
        return None
    return tuple(p for p in dict.fromkeys(partitions) if topic_name_problem(p.topic) is None)


# --- to the response ------------------------------------------------------------------------------


def _results(
    named: Iterable[TopicPartition],
    response: ElectLeadersResponse | AlterPartitionReassignmentsResponse,
) -> Mapping[TopicPartition, ApiError]:
    """Return the outcome of each partition; all have the error of a request that was refused."""
    results = {
        TopicPartition(row.topic, row.partition): ApiError(row.error_code, row.message)
        for row in response.partitions
    }
    refused = ApiError(response.error_code, response.message)
    for topic_partition in named:
        if topic_partition not in results:
            is_refused = refused.error_code is not Errors.NONE
            results[topic_partition] = (
                refused if is_refused else unknown_topic(topic_partition.topic)
            )
    return results


def _elected(
    results: Mapping[TopicPartition, ApiError], error_code: Errors
) -> messages.ElectLeadersResponse:
    def row(partition: int, result: ApiError) -> messages.PartitionResult:
        return messages.PartitionResult(
            partition_id=partition, error_code=result.error_code, error_message=_message(result)
        )

    return messages.ElectLeadersResponse(
        error_code=error_code,
        replica_election_results=tuple(
            messages.ReplicaElectionResult(topic=topic, partition_result=partitions)
            for topic, partitions in _by_topic(results, row).items()
        ),
    )


def _reassigned(
    results: Mapping[TopicPartition, ApiError], accepted: AlterPartitionReassignmentsResponse
) -> messages.AlterPartitionReassignmentsResponse:
    def row(partition: int, result: ApiError) -> messages.ReassignablePartitionResult:
        return messages.ReassignablePartitionResult(
            partition_index=partition, error_code=result.error_code, error_message=_message(result)
        )

    return messages.AlterPartitionReassignmentsResponse(
        error_code=accepted.error_code,
        error_message=accepted.message or None,
        responses=tuple(
            messages.ReassignableTopicResult(name=topic, partitions=partitions)
            for topic, partitions in _by_topic(results, row).items()
        ),
    )


def _listed(
    ongoing: ListPartitionReassignmentsResponse,
) -> messages.ListPartitionReassignmentsResponse:
    def listed(partition: int, row: OngoingReassignment) -> messages.OngoingPartitionReassignment:
        return messages.OngoingPartitionReassignment(
            partition_index=partition,
            replicas=row.replicas,
            adding_replicas=row.adding_replicas,
            removing_replicas=row.removing_replicas,
        )

    rows = {TopicPartition(row.topic, row.partition): row for row in ongoing.partitions}
    return messages.ListPartitionReassignmentsResponse(
        error_code=ongoing.error_code,
        error_message=ongoing.message or None,
        topics=tuple(
            messages.OngoingTopicReassignment(name=topic, partitions=partitions)
            for topic, partitions in _by_topic(rows, listed).items()
        ),
    )


def _by_topic(
    results: Mapping[TopicPartition, T], row_of: Callable[[int, T], R]
) -> Mapping[str, tuple[R, ...]]:
    rows: dict[str, list[R]] = {}
    for (topic, partition), result in results.items():
        rows.setdefault(topic, []).append(row_of(partition, result))
    return {topic: tuple(partitions) for topic, partitions in rows.items()}


def _message(result: ApiError) -> str | None:
    is_told = result.error_code is not Errors.NONE and result.message
    return result.message[:_MAX_MESSAGE_LENGTH] if is_told else None
