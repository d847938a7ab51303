"""AddPartitionsToTxn, AddOffsetsToTxn, EndTxn, WriteTxnMarkers, and what tools ask.

Versions as in Kafka 3.9; TxnOffsetCommit is in ``txn_offset_commit``, and InitProducerId in
``producer_ids``. Mirrors the handlers of ``kafka.server.KafkaApis``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from regent.broker.api.coordinator_requests import CoordinatorRequests
from regent.core.coordinator.partition_for import UNKNOWN_PARTITION, CoordinatorPartitions
from regent.core.errors import Errors
from regent.core.model import NO_EPOCH, TopicPartition
from regent.core.protocol.groups import ProducerIdAndEpoch
from regent.core.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    EndTxnResponse,
    ListTransactionsRequest,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from regent.core.protocol.transactions import (
    AddPartitionsToTxn,
    DescribeTransaction,
    EndTxn,
    ListTransactions,
    MarkerTarget,
    PartitionOutcome,
    TxnMarker,
    TxnMarkerResult,
)
from regent.transport.kafka.api import KafkaAnswer, KafkaApi, KafkaApiKey, KafkaRequest, apis_of
from regent.transport.kafka.message_codec import answer, decode
from regent.transport.kafka.replies import AwaitedReply, Replies

_FIRST_ADD_OF_SEVERAL: Final = 4
_FIRST_WITH_PRODUCER_FENCED: Final = 2  # older clients know INVALID_PRODUCER_EPOCH


@dataclass(frozen=True, slots=True)
class TransactionHandlers:
    """The coordinator, its partitions and those of groups, and what takes markers."""

    transactions: CoordinatorRequests
    transaction_partitions: CoordinatorPartitions
    group_partitions: CoordinatorPartitions
    markers: MarkerTarget
    replies: Replies


def transaction_apis(
    handlers: TransactionHandlers, *, serves_brokers: bool = False
) -> Sequence[KafkaApi]:
    """Return the APIs of producers and of tools; ``serves_brokers``: and of brokers.

    Brokers send WriteTxnMarkers with epochs that tools may send too.
    """
    add_partitions = _add_partitions if serves_brokers else _add_partitions_of_client
    return apis_of(
        handlers,
        [
            (KafkaApiKey.ADD_PARTITIONS_TO_TXN, 5, add_partitions),
            (KafkaApiKey.ADD_OFFSETS_TO_TXN, 4, _add_offsets),
            (KafkaApiKey.END_TXN, 4, _end),
            (KafkaApiKey.WRITE_TXN_MARKERS, 1, _write_markers_of_client),
            (KafkaApiKey.DESCRIBE_TRANSACTIONS, 0, _describe),
            (KafkaApiKey.LIST_TRANSACTIONS, 1, _list),
        ],
    )


def transaction_apis_of_brokers(handlers: TransactionHandlers) -> Sequence[KafkaApi]:
    """Return the APIs that brokers use between them: markers, and questions of leaders."""
    return [
        KafkaApi(
            KafkaApiKey.ADD_PARTITIONS_TO_TXN,
            _FIRST_ADD_OF_SEVERAL,
            5,
            partial(_add_partitions, handlers),
        ),
        KafkaApi(KafkaApiKey.WRITE_TXN_MARKERS, 1, 1, partial(_write_markers, handlers)),
    ]


async def _add_partitions_of_client(
    handlers: TransactionHandlers, request: KafkaRequest
) -> KafkaAnswer:
    """Add partitions; only brokers ask about several transactions."""
    if request.api_version >= _FIRST_ADD_OF_SEVERAL:
        error = Errors.CLUSTER_AUTHORIZATION_FAILED
        return answer(AddPartitionsToTxnResponse(error_code=error), request)
    return await _add_partitions(handlers, request)


async def _add_partitions(handlers: TransactionHandlers, request: KafkaRequest) -> KafkaAnswer:
    asked, version = decode(AddPartitionsToTxnRequest, request), request.api_version
    if version >= _FIRST_ADD_OF_SEVERAL:
        adding = [
            AddPartitionsToTxn(
                row.transactional_id,
                ProducerIdAndEpoch(row.producer_id, row.producer_epoch),
                _partitions(row.topics),
                row.verify_only,
            )
            for row in asked.transactions
        ]
        added = await handlers.transactions.ask_all(adding)
        results = tuple(
            AddPartitionsToTxnResult(
                transactional_id=row.transactional_id, topic_results=_topic_results(errors)
            )
            for row, errors in zip(adding, added, strict=True)
        )
        response = AddPartitionsToTxnResponse(results_by_transaction=results)
        return answer(response, request)
    errors = await handlers.transactions.ask(
        AddPartitionsToTxn(
            asked.v3_and_below_transactional_id,
            ProducerIdAndEpoch(asked.v3_and_below_producer_id, asked.v3_and_below_producer_epoch),
            _partitions(asked.v3_and_below_topics),
            knows_fencing=version >= _FIRST_WITH_PRODUCER_FENCED,
        )
    )
    response = AddPartitionsToTxnResponse(results_by_topic_v3_and_below=_topic_results(errors))
    return answer(response, request)


def _partitions(topics: Iterable[AddPartitionsToTxnTopic]) -> tuple[TopicPartition, ...]:
    return tuple(
        TopicPartition(topic.name, number) for topic in topics for number in topic.partitions
    )


def _topic_results(
    errors: Mapping[TopicPartition, Errors],
) -> tuple[AddPartitionsToTxnTopicResult, ...]:
    rows: dict[str, list[AddPartitionsToTxnPartitionResult]] = {}
    for (topic, partition), error in errors.items():
        row = AddPartitionsToTxnPartitionResult(
            partition_index=partition, partition_error_code=error
        )
        rows.setdefault(topic, []).append(row)
    return tuple(
        AddPartitionsToTxnTopicResult(name=topic, results_by_partition=tuple(partitions))
        for topic, partitions in rows.items()
    )


async def _add_offsets(handlers: TransactionHandlers, request: KafkaRequest) -> KafkaAnswer:
    """Add the partition that will have the positions of a group, which may not exist yet."""
    asked = decode(AddOffsetsToTxnRequest, request)
    partitions = handlers.group_partitions
    of_group = TopicPartition(partitions.topic, partitions.of(asked.group_id))
    if of_group.partition == UNKNOWN_PARTITION:
        response = AddOffsetsToTxnResponse(error_code=Errors.COORDINATOR_LOAD_IN_PROGRESS)
        return answer(response, request)
    errors = await handlers.transactions.ask(
        AddPartitionsToTxn(
            asked.transactional_id,
            ProducerIdAndEpoch(asked.producer_id, asked.producer_epoch),
            (of_group,),
            must_exist=False,
            knows_fencing=request.api_version >= _FIRST_WITH_PRODUCER_FENCED,
        )
    )
    return answer(AddOffsetsToTxnResponse(error_code=errors[of_group]), request)


async def _end(handlers: TransactionHandlers, request: KafkaRequest) -> KafkaAnswer:
    asked = decode(EndTxnRequest, request)
    error = await handlers.transactions.ask(
        EndTxn(
            asked.transactional_id,
            ProducerIdAndEpoch(asked.producer_id, asked.producer_epoch),
            asked.committed,
            knows_fencing=request.api_version >= _FIRST_WITH_PRODUCER_FENCED,
        )
    )
    return answer(EndTxnResponse(error_code=error), request)


async def _write_markers_of_client(
    handlers: TransactionHandlers, request: KafkaRequest
) -> KafkaAnswer:
    """Write markers of Kafka's tools: ``kafka-transactions abort`` ends hanging transactions.

    An epoch that no coordinator has had yet would fence the real one.
    """
    markers = _markers(request)
    newest_epoch = handlers.transaction_partitions.newest_leader_epoch
    forged = [marker for marker in markers if marker.coordinator_epoch > newest_epoch]
    error = Errors.CLUSTER_AUTHORIZATION_FAILED
    if newest_epoch == NO_EPOCH:  # this broker has not been told of the partitions yet
        error = Errors.COORDINATOR_NOT_AVAILABLE
    refused = [_refused(marker, error) for marker in forged]
    results = await _written(handlers, [marker for marker in markers if marker not in forged])
    return answer(WriteTxnMarkersResponse(markers=_marker_results([*refused, *results])), request)


async def _write_markers(handlers: TransactionHandlers, request: KafkaRequest) -> KafkaAnswer:
    """Write the markers of a coordinator."""
    results = await _written(handlers, _markers(request))
    return answer(WriteTxnMarkersResponse(markers=_marker_results(results)), request)


def _markers(request: KafkaRequest) -> list[TxnMarker]:
    asked = decode(WriteTxnMarkersRequest, request)
    return [
        TxnMarker(
            marker.producer_id,
            marker.producer_epoch,
            marker.transaction_result,
            marker.coordinator_epoch,
            tuple(
                TopicPartition(topic.name, number)
                for topic in marker.topics
                for number in topic.partition_indexes
            ),
        )
        for marker in asked.markers
    ]


async def _written(
    handlers: TransactionHandlers, markers: Sequence[TxnMarker]
) -> Sequence[TxnMarkerResult]:
    if not markers:
        return ()
    reply: AwaitedReply[Sequence[TxnMarkerResult]] = handlers.replies.new()
    handlers.markers.write_markers(markers, reply.give)
    return await reply


def _refused(marker: TxnMarker, error: Errors) -> TxnMarkerResult:
    rows = tuple(PartitionOutcome(*row, error) for row in marker.partitions)
    return TxnMarkerResult(marker.producer_id, rows)


def _marker_results(results: Iterable[TxnMarkerResult]) -> tuple[WritableTxnMarkerResult, ...]:
    """Return one result for each producer, also if it has several markers (KAFKA-6052)."""
    rows: dict[int, dict[str, list[WritableTxnMarkerPartitionResult]]] = {}
    for result in results:
        topics = rows.setdefault(result.producer_id, {})
        for row in result.partitions:
            topics.setdefault(row.topic, []).append(
                WritableTxnMarkerPartitionResult(
                    partition_index=row.partition, error_code=row.error_code
                )
            )
    return tuple(
        WritableTxnMarkerResult(
            producer_id=producer_id,
            topics=tuple(
                WritableTxnMarkerTopicResult(name=topic, partitions=tuple(partitions))
                for topic, partitions in topics.items()
            ),
        )
        for producer_id, topics in rows.items()
    )


async def _describe(handlers: TransactionHandlers, request: KafkaRequest) -> KafkaAnswer:
    asked = decode(DescribeTransactionsRequest, request)
    found = await handlers.transactions.ask_all(map(DescribeTransaction, asked.transactional_ids))
    return answer(DescribeTransactionsResponse(transaction_states=tuple(found)), request)


async def _list(handlers: TransactionHandlers, request: KafkaRequest) -> KafkaAnswer:
    asked = decode(ListTransactionsRequest, request)
    found = await handlers.transactions.ask(
        ListTransactions(asked.state_filters, asked.producer_id_filters, asked.duration_filter)
    )
    return answer(found, request)
