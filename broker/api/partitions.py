"""ElectLeaders 0 to 2, AlterPartitionReassignments 0 and ListPartitionReassignments 0.

Mirrors ``kafka.server.KafkaApis.handleElectLeaders`` and the like. Every broker accepts them:
``PartitionService`` forwards a request to the active controller.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from regent.broker.api.authorization import forwarded_client
from regent.core.admin.partition_requests import PartitionService, refuse_partitions
from regent.core.errors import ApiError, Errors
from regent.core.model import TopicPartition
from regent.core.protocol.messages.partitions import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ElectionType,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    PartitionsRequest,
)
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

T = TypeVar("T", ElectLeadersResponse, AlterPartitionReassignmentsResponse)


def partition_apis(service: PartitionService) -> Sequence[KafkaApi]:
    """Return the APIs for elections and reassignments, which call ``service``."""
    replies = Replies()

    async def ask(wanted: PartitionsRequest, request: KafkaRequest) -> Any:
        reply: AwaitedReply[Any] = replies.new()
        service.ask_controller(wanted, reply.give, forwarded_client(request))
        return await reply

    async def elect(request: KafkaRequest) -> KafkaAnswer:
        asked = decode(ElectLeadersRequest, request)
        kind, named = asked.election_type, asked.partitions
        if kind in set(ElectionType):
            possible = ElectLeadersRequest.of(kind, _possible(named), asked.timeout_ms)
            elected = await ask(possible, request)
        else:
            message = f"{kind} is not a type of elections"
            elected = refuse_partitions(asked, Errors.INVALID_REQUEST, message)
        if elected.error_code and named is None and request.api_version == 0:
            # The answer would be the one that no election is needed.
            name = Errors(elected.error_code).name
            raise UnansweredRequestError(f"elections of all leaders: {name}")
        return answer(_completed(elected, named or (), ""), request)

    async def reassign(request: KafkaRequest) -> KafkaAnswer:
        asked = decode(AlterPartitionReassignmentsRequest, request)
        targets = asked.targets
        moves = {partition: targets[partition] for partition in _possible(targets) or ()}
        accepted = await ask(
            AlterPartitionReassignmentsRequest.of(moves, asked.timeout_ms), request
        )
        return answer(_completed(accepted, targets, accepted.error_message), request)

    async def list_ongoing(request: KafkaRequest) -> KafkaAnswer:
        asked = decode(ListPartitionReassignmentsRequest, request)
        possible = _possible(asked.partitions)
        wanted = ListPartitionReassignmentsRequest.of(possible, asked.timeout_ms)
        ongoing = await ask(wanted, request)
        return answer(ongoing, request)

    return [
        KafkaApi(KafkaApiKey.ELECT_LEADERS, 0, 2, elect),
        KafkaApi(KafkaApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, 0, reassign),
        KafkaApi(KafkaApiKey.LIST_PARTITION_REASSIGNMENTS, 0, 0, list_ongoing),
    ]


def _possible(partitions: Iterable[TopicPartition] | None) -> list[TopicPartition] | None:
    """Return the partitions whose topic may exist; None: all partitions are meant."""
    if partitions is None:
        return None
    return [p for p in partitions if topic_name_problem(p.topic) is None]


def _completed(response: T, named: Iterable[TopicPartition], message: str | None) -> T:
    """Return the response with a result for each partition that was named.

    All have the error of a request that was refused.
    """
    results, refused = response.results, ApiError(Errors(response.error_code), message or "")
    missing = {
        partition: refused if refused.error_code else unknown_topic(partition.topic)
        for partition in named
        if partition not in results
    }
    return type(response).of({**results, **missing}, refused) if missing else response
