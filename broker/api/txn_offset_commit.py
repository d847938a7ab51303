"""TxnOffsetCommit, versions 0 to 4: positions of a group that are part of a transaction.

Mirrors ``kafka.server.KafkaApis.handleTxnOffsetCommitRequest`` and
``GroupCoordinator.handleTxnCommitOffsets``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from regent.broker.api.coordinator_requests import CoordinatorRequests
from regent.core.coordinator.partition_for import CoordinatorPartitions
from regent.core.errors import Errors
from regent.core.model import TopicPartition
from regent.core.protocol.groups import (
    CommitOffsets,
    FetchOffsets,
    OffsetAndMetadata,
    VerifiedProducer,
)
from regent.core.protocol.messages.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from regent.core.protocol.transactions import TransactionToVerify, TransactionVerifier
from regent.core.replica_logs import NO_VERIFICATION
from regent.core.replication.metadata_cache import MetadataCache
from regent.core.security.acls import AclOperation, ResourceType
from regent.transport.kafka.api import KafkaAnswer, KafkaApi, KafkaApiKey, KafkaRequest
from regent.transport.kafka.message_codec import answer, decode
from regent.transport.kafka.replies import AwaitedReply, Replies

_FIRST_WITH_LOADING: Final = 2  # KAFKA-7296
_FIRST_WITH_ABORTABLE: Final = 4  # KIP-890

BeginVerification: TypeAlias = Callable[[TopicPartition, VerifiedProducer], int]
"""Returns the guard of the verification of a partition."""


@dataclass(frozen=True, slots=True)
class TxnOffsetCommitHandler:
    """Asks whether the group is part of the transaction, then lets it commit."""

    groups: CoordinatorRequests
    group_partitions: CoordinatorPartitions
    begin_verification: BeginVerification
    verifier: TransactionVerifier | None
    """None: what the client says is believed (transaction.partition.verification.enable)."""
    cache: MetadataCache
    replies: Replies

    def apis(self) -> Sequence[KafkaApi]:
        """Return the API."""
        return [KafkaApi(KafkaApiKey.TXN_OFFSET_COMMIT, 0, 4, self.handle)]

    async def handle(self, request: KafkaRequest) -> KafkaAnswer:
        """Answer with an error for each position."""
        asked = decode(TxnOffsetCommitRequest, request)
        version, now_ms = request.api_version, time.time_ns() // 1_000_000
        positions = {
            TopicPartition(topic.name, row.partition_index): OffsetAndMetadata(
                row.committed_offset,
                row.committed_leader_epoch,
                row.committed_metadata or "",
                now_ms,
            )
            for topic in asked.topics
            for row in topic.partitions
        }
        denied = _denied(asked, request)
        snapshot = self.cache.snapshot
        existing = snapshot.partitions
        known = {tp: p for tp, p in positions.items() if tp in existing and tp.topic not in denied}
        error = snapshot.error_of_missing(Errors.COORDINATOR_NOT_AVAILABLE)
        errors = {tp: denied.get(tp.topic, error) for tp in positions}
        if known:
            commit = CommitOffsets(
                asked.group_id,
                known,
                asked.member_id,
                asked.generation_id,
                asked.group_instance_id,
                VerifiedProducer(asked.producer_id, asked.producer_epoch),
                knows_loading=version >= _FIRST_WITH_LOADING,
            )
            errors.update(await self._commit(commit, asked.transactional_id, version))
        return answer(_response(asked, errors), request)

    async def _commit(
        self, commit: CommitOffsets, transactional_id: str, version: int
    ) -> Mapping[TopicPartition, Errors]:
        producer = commit.producer
        guard = None if producer is None else self._begin_verification(commit.group_id, producer)
        if guard is not None and producer is not None:
            commit = replace(commit, producer=producer._replace(guard=guard))
        refusal = Errors.NONE
        if guard != NO_VERIFICATION:
            refusal = await self._refusal(commit, transactional_id)
        if refusal is Errors.NONE:
            return await self.groups.ask(commit)
        if refusal is Errors.TRANSACTION_ABORTABLE and version < _FIRST_WITH_ABORTABLE:
            refusal = Errors.INVALID_TXN_STATE
        if refusal is Errors.COORDINATOR_LOAD_IN_PROGRESS and not commit.knows_loading:
            refusal = Errors.COORDINATOR_NOT_AVAILABLE
        return commit.refused(refusal)

    def _begin_verification(self, group_id: str, producer: VerifiedProducer) -> int | None:
        """Return the guard of the verification; None: nothing is verified."""
        if self.verifier is None or not group_id:
            return None
        return self.begin_verification(self._partition_of(group_id), producer)

    def _partition_of(self, group_id: str) -> TopicPartition:
        return TopicPartition(self.group_partitions.topic, self.group_partitions.of(group_id))

    async def _refusal(self, commit: CommitOffsets, transactional_id: str) -> Errors:
        """Return why the partition of the group is not part of the transaction; NONE: it is."""
        producer = commit.producer
        if self.verifier is None or producer is None or not commit.group_id:
            return Errors.NONE  # the group coordinator refuses a group without an id
        of_group = self._partition_of(commit.group_id)
        reply: AwaitedReply[Mapping[TopicPartition, Errors]] = self.replies.new()
        self.verifier.verify(
            TransactionToVerify(transactional_id, *producer[:2], (of_group,)), reply.give
        )
        error = (await reply)[of_group]
        if error is Errors.NONE:
            return error
        # What is wrong with the group, or with its coordinator, is told first.
        fetched = await self.groups.ask(FetchOffsets(commit.group_id, ()))
        if fetched.error_code is not Errors.NONE:
            return fetched.error_code
        is_unknown = error is Errors.NETWORK_EXCEPTION
        return Errors.COORDINATOR_LOAD_IN_PROGRESS if is_unknown else error


def _denied(asked: TxnOffsetCommitRequest, request: KafkaRequest) -> Mapping[str, Errors]:
    """Return the topics in which the client may not store positions, with the errors."""
    names = [topic.name for topic in asked.topics]
    if not request.may(AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, asked.transactional_id):
        return dict.fromkeys(names, Errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    if not request.may(AclOperation.READ, ResourceType.GROUP, asked.group_id):
        return dict.fromkeys(names, Errors.GROUP_AUTHORIZATION_FAILED)
    denied = request.denied(AclOperation.READ, ResourceType.TOPIC, names)
    return dict.fromkeys(denied, Errors.TOPIC_AUTHORIZATION_FAILED)


def _response(
    asked: TxnOffsetCommitRequest, errors: Mapping[TopicPartition, Errors]
) -> TxnOffsetCommitResponse:
    return TxnOffsetCommitResponse(
        topics=tuple(
            TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=tuple(
                    TxnOffsetCommitResponsePartition(
                        partition_index=row.partition_index,
                        error_code=errors[TopicPartition(topic.name, row.partition_index)],
                    )
                    for row in topic.partitions
                ),
            )
            for topic in asked.topics
        )
    )
