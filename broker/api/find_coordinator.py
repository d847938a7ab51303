"""FindCoordinator, versions 0 to 6, for groups and transactional ids.

A coordinator is the leader of the partition that has the state of the group or id. The
internal topic is created when it is first needed. Until it has a leader, and this broker knows how
many partitions it has, the answer is COORDINATOR_NOT_AVAILABLE, with the reason as its message if
it is known, and the client asks again. Mirrors
``kafka.server.KafkaApis.handleFindCoordinatorRequest``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import Final, TypeAlias

from regent.core.admin.admin_requests import CreateMissingTopics
from regent.core.coordinator.partition_for import CoordinatorPartitions
from regent.core.errors import ApiError, Errors
from regent.core.model import TopicPartition
from regent.core.protocol.messages.groups import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from regent.core.replication.metadata_cache import MetadataCache
from regent.core.replication.metadata_view import alive_endpoint, leaderless
from regent.core.security.acls import AclOperation, ResourceType
from regent.transport.kafka.api import KafkaAnswer, KafkaApi, KafkaApiKey, KafkaRequest
from regent.transport.kafka.message_codec import answer, decode
from regent.transport.kafka.replies import AwaitedReply, Replies

_FIRST_OF_SEVERAL: Final = 4
_FIRST_WITH_SHARE_GROUPS: Final = 6
_NO_NODE: Final = -1

ExplainMissing: TypeAlias = Callable[[str, ApiError], str]
"""Returns why an internal topic does not exist, as clients and ``status`` are told."""


class _KeyType(IntEnum):
    """The kinds of keys that have a coordinator."""

    GROUP = 0
    TRANSACTION = 1
    SHARE = 2


def find_coordinator_apis(
    groups: CoordinatorPartitions,
    cache: MetadataCache,
    create_missing: CreateMissingTopics,
    explain: ExplainMissing,
    transactions: CoordinatorPartitions | None = None,
) -> Sequence[KafkaApi]:
    """Return FindCoordinator; clients are told the listener they came by.

    ``create_missing`` creates internal topics. ``transactions`` None: transactional ids have no
    coordinator.
    """
    finder = _Finder(groups, transactions, cache)
    replies = Replies()

    async def refusal(topic: str | None) -> str:
        """Have the topic created if it is missing; return why it cannot be."""
        snapshot = cache.snapshot
        if topic is None or topic in snapshot.topic_ids or not snapshot.is_complete:
            return ""
        reply: AwaitedReply[Mapping[str, ApiError]] = replies.new()
        create_missing((topic,), reply.give)
        error = (await reply).get(topic)
        return "" if error is None else explain(topic, error)

    async def handle(request: KafkaRequest) -> KafkaAnswer:
        asked, version = decode(FindCoordinatorRequest, request), request.api_version
        keys = asked.coordinator_keys if version >= _FIRST_OF_SEVERAL else (asked.key,)
        denied = _denied(request, asked.key_type, keys)
        visible = [key for key in keys if key not in denied]
        reason = await refusal(finder.topic_of(asked.key_type)) if visible else ""
        found = tuple(
            denied.get(key) or finder.find(key, asked.key_type, request, reason)
            for key in dict.fromkeys(keys)
        )
        if version >= _FIRST_OF_SEVERAL:
            return answer(FindCoordinatorResponse(coordinators=found), request)
        (one,) = found
        response = FindCoordinatorResponse(
            error_code=one.error_code,
            error_message=one.error_message,
            node_id=one.node_id,
            host=one.host,
            port=one.port,
        )
        return answer(response, request)

    return [KafkaApi(KafkaApiKey.FIND_COORDINATOR, 0, 6, handle)]


def _denied(request: KafkaRequest, key_type: int, keys: Sequence[str]) -> Mapping[str, Coordinator]:
    """Return the answers for keys that the client may not describe."""
    resource_type, error = ResourceType.GROUP, Errors.GROUP_AUTHORIZATION_FAILED
    if key_type == _KeyType.TRANSACTION:
        resource_type = ResourceType.TRANSACTIONAL_ID
        error = Errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    denied = request.denied(AclOperation.DESCRIBE, resource_type, keys)
    return {key: _none(key, error) for key in denied}


class _Finder:
    def __init__(
        self,
        groups: CoordinatorPartitions,
        transactions: CoordinatorPartitions | None,
        cache: MetadataCache,
    ) -> None:
        self._groups = groups
        self._transactions = transactions
        self._cache = cache

    def topic_of(self, key_type: int) -> str | None:
        """Return the internal topic for the keys of a kind, if there is one."""
        if key_type == _KeyType.GROUP:
            return self._groups.topic
        if key_type == _KeyType.TRANSACTION and self._transactions is not None:
            return self._transactions.topic
        return None

    def find(self, key: str, key_type: int, request: KafkaRequest, refusal: str) -> Coordinator:
        """Return the coordinator of a key, or the error; ``refusal``: why it has no topic."""
        listener = request.session.listener_name
        match key_type:
            case _KeyType.GROUP:
                return self._leader(self._groups, key, listener, refusal)
            case _KeyType.TRANSACTION if self._transactions is not None:
                return self._leader(self._transactions, key, listener, refusal)
            case _KeyType.TRANSACTION:
                return _none(key, Errors.COORDINATOR_NOT_AVAILABLE)
            case _KeyType.SHARE if request.api_version >= _FIRST_WITH_SHARE_GROUPS:
                return _none(key, Errors.COORDINATOR_NOT_AVAILABLE)
            case _:  # Kafka answers the whole request with UNKNOWN_SERVER_ERROR
                return _none(key, Errors.INVALID_REQUEST)

    def _leader(
        self, partitions: CoordinatorPartitions, key: str, listener: str, refusal: str
    ) -> Coordinator:
        snapshot, topic = self._cache.snapshot, partitions.topic
        if topic not in snapshot.topic_ids:
            return _none(key, Errors.COORDINATOR_NOT_AVAILABLE, refusal)
        row = snapshot.partitions.get(TopicPartition(topic, partitions.of(key)))
        endpoint = None if row is None else alive_endpoint(snapshot, row.leader, listener)
        if row is None or endpoint is None:
            reason = "" if row is None else leaderless(topic, row, snapshot.brokers)
            return _none(key, Errors.COORDINATOR_NOT_AVAILABLE, reason)
        return Coordinator(
            key=key,
            node_id=row.leader,
            host=endpoint.host,
            port=endpoint.port,
            error_code=Errors.NONE,
        )


def _none(key: str, error: Errors, reason: str = "") -> Coordinator:
    return Coordinator(
        key=key,
        node_id=_NO_NODE,
        host="",
        port=_NO_NODE,
        error_code=error,
        error_message=reason or None,
    )
