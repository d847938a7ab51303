"""AddPartitionsToTxn, AddOffsetsToTxn, EndTxn, WriteTxnMarkers, and what tools ask.

Versions as in Kafka 3.9; TxnOffsetCommit is in ``txn_offset_commit``, and InitProducerId in
``producer_ids``. Mirrors the handlers of ``kafka.server.KafkaApis``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from regent.broker.api.coordinator_requests import CoordinatorRequests
from regent.broker.api.describe_producers import ProducerStates
from regent.broker.api.registered_followers import BrokerSenders
from regent.core.coordinator.partition_for import UNKNOWN_PARTITION, CoordinatorPartitions
from regent.core.errors import Errors
from regent.core.model import TopicPartition
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
    DescribedTransactionState,
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
from regent.core.security.acls import AclOperation, ResourceType
from regent.core.topic_validation import INTERNAL_TOPICS
from regent.transport.kafka.api import (
    Answering,
    KafkaAnswer,
    KafkaApi,
    KafkaApiKey,
    KafkaRequest,
    apis_of,
)
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


@dataclass(frozen=True, slots=True)
class HangingTransactions:
    """What tools may end; ``executor`` looks for it: a partition may have many producers."""

    producers: ProducerStates
    executor: Executor

    def refuse(self, markers: Sequence[TxnMarker]) -> Sequence[TxnMarkerResult]:
        """Return, for each marker, the partitions to which it is not written."""
        partitions = {row for marker in markers for row in marker.partitions}
        found = {row: self.producers.active_producers(row) for row in partitions}
        known = {
            (row, producer.producer_id): producer
            for row, producers in found.items()
            if not isinstance(producers, Errors)
            for producer in producers
        }

        def error_of(marker: TxnMarker, topic_partition: TopicPartition) -> Errors:
            if isinstance(error := found[topic_partition], Errors):
                return error
            producer = known.get((topic_partition, marker.producer_id))
            if producer is None or marker.producer_epoch > producer.producer_epoch:
                return Errors.INVALID_PRODUCER_EPOCH
            # Kafka's tools say 0 where no coordinator has written a marker yet.
            is_forged = marker.coordinator_epoch > max(producer.coordinator_epoch, 0)
            return Errors.CLUSTER_AUTHORIZATION_FAILED if is_forged else Errors.NONE

        return [
            TxnMarkerResult(
                marker.producer_id,
                tuple(
                    PartitionOutcome(*row, error)
                    for row in marker.partitions
                    if (error := error_of(marker, row)) is not Errors.NONE
                ),
            )
            for marker in markers
        ]


def transaction_apis(
    handlers: TransactionHandlers, senders: HangingTransactions | BrokerSenders
) -> Sequence[KafkaApi]:
    """Return the APIs of producers and of tools, which may end hanging transactions.

    With ``BrokerSenders`` also those of brokers, whose markers have epochs that a partition does
    not know yet.
    """
    write_markers: Callable[[TransactionHandlers, KafkaRequest], Awaitable[KafkaAnswer]]
    if isinstance(senders, BrokerSenders):
        add_partitions = _add_partitions
        write_markers = partial(_write_markers_of_anybody, brokers=senders)
    else:
        add_partitions = _add_partitions_of_client
        write_markers = partial(_write_markers_of_tool, hanging=senders)
    return apis_of(
        handlers,
        [
            (KafkaApiKey.ADD_PARTITIONS_TO_TXN, 5, add_partitions),
            (KafkaApiKey.ADD_OFFSETS_TO_TXN, 4, _add_offsets),
            (KafkaApiKey.END_TXN, 4, _end),
            (KafkaApiKey.WRITE_TXN_MARKERS, 1, write_markers),
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
            partial(_add_partitions_of_broker, handlers),
        ),
        KafkaApi(KafkaApiKey.WRITE_TXN_MARKERS, 1, 1, partial(_write_markers, handlers)),
    ]


def _add_partitions(handlers: TransactionHandlers, request: KafkaRequest) -> Answering:
    """Add partitions of a producer, or what a broker asks about several transactions."""
    if request.api_version >= _FIRST_ADD_OF_SEVERAL:
        return _add_partitions_of_broker(handlers, request)
    return _add_partitions_of_client(handlers, request)


def _add_partitions_of_client(handlers: TransactionHandlers, request: KafkaRequest) -> Answering:
    """Add partitions; only brokers ask about several transactions."""
    transactions = handlers.transactions
    if request.api_version >= _FIRST_ADD_OF_SEVERAL:
        error = Errors.CLUSTER_AUTHORIZATION_FAILED
        return transactions.given(answer(AddPartitionsToTxnResponse(error_code=error), request))
    asked = decode(AddPartitionsToTxnRequest, request)
    adding = AddPartitionsToTxn(
        asked.v3_and_below_transactional_id,
        ProducerIdAndEpoch(asked.v3_and_below_producer_id, asked.v3_and_below_producer_epoch),
        _partitions(asked.v3_and_below_topics),
        knows_fencing=request.api_version >= _FIRST_WITH_PRODUCER_FENCED,
    )

    def encode(errors: Mapping[TopicPartition, Errors]) -> KafkaAnswer:
        response = AddPartitionsToTxnResponse(results_by_topic_v3_and_below=_topic_results(errors))
        return answer(response, request)

    denied = _denied_partitions(adding, request)
    if denied:  # the transaction gets all partitions or none
        not_attempted = dict.fromkeys(adding.partitions, Errors.OPERATION_NOT_ATTEMPTED)
        return transactions.given(encode({**not_attempted, **denied}))
    return transactions.answer(adding, encode)


def _denied_partitions(
    adding: AddPartitionsToTxn, request: KafkaRequest
) -> Mapping[TopicPartition, Errors]:
    """Return the partitions that a client may not add to a transaction, with the errors."""
    if (error := _denial(adding.transactional_id, request)) is not Errors.NONE:
        return dict.fromkeys(adding.partitions, error)
    names = (partition.topic for partition in adding.partitions)
    denied = {*request.denied(AclOperation.WRITE, ResourceType.TOPIC, names), *INTERNAL_TOPICS}
    error = Errors.TOPIC_AUTHORIZATION_FAILED
    return {partition: error for partition in adding.partitions if partition.topic in denied}


def _denial(transactional_id: str, request: KafkaRequest) -> Errors:
    """Return the error of a client that may not use a transactional id, else NONE."""
    if request.may(AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id):
        return Errors.NONE
    return Errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


async def _add_partitions_of_broker(
    handlers: TransactionHandlers, request: KafkaRequest
) -> KafkaAnswer:
    """Add the partitions of several transactions, or say whether they are added."""
    if not request.may(AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER):
        error = Errors.CLUSTER_AUTHORIZATION_FAILED
        return answer(AddPartitionsToTxnResponse(error_code=error), request)
    asked = decode(AddPartitionsToTxnRequest, request)
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
    return answer(AddPartitionsToTxnResponse(results_by_transaction=results), request)


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


def _add_offsets(handlers: TransactionHandlers, request: KafkaRequest) -> Answering:
    """Add the partition that will have the positions of a group, which may not exist yet."""
    asked = decode(AddOffsetsToTxnRequest, request)

    def encode(error: Errors) -> KafkaAnswer:
        return answer(AddOffsetsToTxnResponse(error_code=error), request)

    transactions, partitions = handlers.transactions, handlers.group_partitions
    denial = _denial(asked.transactional_id, request)
    if denial is Errors.NONE and not request.may(
        AclOperation.READ, ResourceType.GROUP, asked.group_id
    ):
        denial = Errors.GROUP_AUTHORIZATION_FAILED
    of_group = TopicPartition(partitions.topic, partitions.of(asked.group_id))
    if denial is Errors.NONE and of_group.partition == UNKNOWN_PARTITION:
        denial = Errors.COORDINATOR_LOAD_IN_PROGRESS
    if denial is not Errors.NONE:
        return transactions.given(encode(denial))
    adding = AddPartitionsToTxn(
        asked.transactional_id,
        ProducerIdAndEpoch(asked.producer_id, asked.producer_epoch),
        (of_group,),
        must_exist=False,
        knows_fencing=request.api_version >= _FIRST_WITH_PRODUCER_FENCED,
    )
    return transactions.answer(adding, lambda errors: encode(errors[of_group]))


def _end(handlers: TransactionHandlers, request: KafkaRequest) -> Answering:
    asked = decode(EndTxnRequest, request)

    def encode(error: Errors) -> KafkaAnswer:
        return answer(EndTxnResponse(error_code=error), request)

    if (denial := _denial(asked.transactional_id, request)) is not Errors.NONE:
        return handlers.transactions.given(encode(denial))
    ending = EndTxn(
        asked.transactional_id,
        ProducerIdAndEpoch(asked.producer_id, asked.producer_epoch),
        asked.committed,
        knows_fencing=request.api_version >= _FIRST_WITH_PRODUCER_FENCED,
    )
    return handlers.transactions.answer(ending, encode)


def refuse_markers(request: KafkaRequest, error: Errors) -> WriteTxnMarkersResponse:
    """Return the answer that refuses all markers of a request."""
    refused = [_refused(marker, error) for marker in _markers(request)]
    return WriteTxnMarkersResponse(markers=_marker_results(refused))


async def _write_markers_of_tool(
    handlers: TransactionHandlers, request: KafkaRequest, *, hanging: HangingTransactions
) -> KafkaAnswer:
    """Write markers of Kafka's tools: ``kafka-transactions abort`` ends hanging transactions.

    It has found the epochs with DescribeProducers. Higher ones would fence the coordinator or the
    producer.
    """
    markers = _markers(request)
    loop = asyncio.get_running_loop()
    refused = await loop.run_in_executor(hanging.executor, hanging.refuse, markers)
    left = [
        marker._replace(partitions=kept)
        for marker, result in zip(markers, refused, strict=True)
        if (kept := _not_in(result, marker.partitions))
    ]
    results = [*refused, *await _written(handlers, left)]
    return answer(WriteTxnMarkersResponse(markers=_marker_results(results)), request)


def _not_in(
    refused: TxnMarkerResult, partitions: Sequence[TopicPartition]
) -> tuple[TopicPartition, ...]:
    left_out = {row.topic_partition for row in refused.partitions}
    return tuple(row for row in partitions if row not in left_out)


async def _write_markers_of_anybody(
    handlers: TransactionHandlers, request: KafkaRequest, *, brokers: BrokerSenders
) -> KafkaAnswer:
    """Write markers of coordinators, also of Kafka's brokers, and of tools.

    An epoch that no coordinator has had yet would fence the real one. But a broker may begin to
    coordinate and send markers before this one is told its epoch. If the sender is not known as a
    broker, it must send them again, which Kafka does after few errors: after others the transaction
    never ends.
    """
    markers = _markers(request)
    newest_epoch = handlers.transaction_partitions.newest_leader_epoch
    unknown = [marker for marker in markers if marker.coordinator_epoch > newest_epoch]
    if unknown and await brokers.has_sent(request):
        unknown = []
    refused = [_refused(marker, Errors.NOT_LEADER_OR_FOLLOWER) for marker in unknown]
    results = await _written(handlers, [marker for marker in markers if marker not in unknown])
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
    ids = asked.transactional_ids
    denied = request.denied(AclOperation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, ids)
    known = [transactional_id for transactional_id in ids if transactional_id not in denied]
    found = iter(await handlers.transactions.ask_all(map(DescribeTransaction, known)))
    error = Errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    states = tuple(
        DescribedTransactionState(error_code=error, transactional_id=transactional_id)
        if transactional_id in denied
        else _visible(next(found), request)
        for transactional_id in ids
    )
    return answer(DescribeTransactionsResponse(transaction_states=states), request)


def _visible(state: DescribedTransactionState, request: KafkaRequest) -> DescribedTransactionState:
    """Return what is told of a transaction: the topics that the client may describe."""
    names = (row.topic for row in state.topics)
    hidden = request.denied(AclOperation.DESCRIBE, ResourceType.TOPIC, names, is_logged=False)
    return replace(state, topics=tuple(row for row in state.topics if row.topic not in hidden))


async def _list(handlers: TransactionHandlers, request: KafkaRequest) -> KafkaAnswer:
    asked = decode(ListTransactionsRequest, request)
    found = await handlers.transactions.ask(
        ListTransactions(asked.state_filters, asked.producer_id_filters, asked.duration_filter)
    )
    ids = (row.transactional_id for row in found.transaction_states)
    hidden = request.denied(
        AclOperation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, ids, is_logged=False
    )
    states = tuple(row for row in found.transaction_states if row.transactional_id not in hidden)
    return answer(replace(found, transaction_states=states), request)
