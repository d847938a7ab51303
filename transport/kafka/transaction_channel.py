"""Requests about transactions between brokers: markers, and questions of leaders to coordinators.

They are Kafka's WriteTxnMarkers and AddPartitionsToTxn.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, TypeVar

from regent.config.closing import Closing
from regent.core.errors import Errors
from regent.core.model import TopicPartition
from regent.core.protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from regent.core.protocol.transactions import (
    PartitionOutcome,
    TransactionToVerify,
    TxnMarker,
    TxnMarkerResult,
    TxnRequest,
    TxnResponse,
    VerifyPartitionsResponse,
    WriteMarkersRequest,
    WriteMarkersResponse,
)
from regent.transport.kafka.api import FIRST_FLEXIBLE_VERSION, KafkaApiKey
from regent.transport.kafka.broker_connection import BrokerConnection
from regent.transport.kafka.message_codec import decoded, encoded
from regent.transport.kafka.primitives import MalformedRequestError

if TYPE_CHECKING:
    from regent.transport.kafka.client_security import ClientSecurity

T = TypeVar("T")

_VERSION_TO_VERIFY: Final = 4  # of AddPartitionsToTxn; older ones cannot
_LAST_VERSION_TO_WRITE: Final = 1  # of WriteTxnMarkers; Kafka 2.4 to 2.7 know 0 only
_ERROR_CODES: Final = {int(error): error for error in Errors}


class TransactionChannel:
    """The connection to one broker; one thread uses and closes it."""

    def __init__(
        self, endpoint: str, *, client_id: str, security: ClientSecurity | None = None
    ) -> None:
        self._connection = BrokerConnection(endpoint, client_id=client_id, security=security)

    def request(
        self, body: TxnRequest, *, timeout_ms: int, closing: Closing | None = None
    ) -> TxnResponse:
        """Send a request and wait for its answer; raises a ``RequestError``."""
        try:
            if isinstance(body, WriteMarkersRequest):
                return self._write(body, timeout_ms, closing)
            return self._verify(body.transaction, timeout_ms, closing)
        except MalformedRequestError as error:
            raise self._connection.failed(error) from error

    def close(self) -> None:
        """Close the connection. Idempotent."""
        self._connection.close()

    def _write(
        self, body: WriteMarkersRequest, timeout_ms: int, closing: Closing | None
    ) -> WriteMarkersResponse:
        request = WriteTxnMarkersRequest(
            markers=tuple(
                WritableTxnMarker(
                    producer_id=marker.producer_id,
                    producer_epoch=marker.producer_epoch,
                    transaction_result=marker.is_commit,
                    topics=tuple(
                        WritableTxnMarkerTopic(name=name, partition_indexes=indexes)
                        for name, indexes in _by_topic(marker.partitions)
                    ),
                    coordinator_epoch=marker.coordinator_epoch,
                )
                for marker in body.markers
            )
        )
        key = KafkaApiKey.WRITE_TXN_MARKERS
        known = self._connection.versions(timeout_ms=timeout_ms, closing=closing)
        version = min(known.get(key, (0, 0))[1], _LAST_VERSION_TO_WRITE)
        written = self._exchange(
            key, version, request, WriteTxnMarkersResponse, timeout_ms, closing
        )
        return WriteMarkersResponse(Errors.NONE, tuple(_results(body.markers, written)))

    def _verify(
        self, asked: TransactionToVerify, timeout_ms: int, closing: Closing | None
    ) -> VerifyPartitionsResponse:
        key = KafkaApiKey.ADD_PARTITIONS_TO_TXN
        known = self._connection.versions(timeout_ms=timeout_ms, closing=closing)
        if known.get(key, (0, -1))[1] < _VERSION_TO_VERIFY:
            return _unverified(asked)
        request = AddPartitionsToTxnRequest(
            transactions=(
                AddPartitionsToTxnTransaction(
                    transactional_id=asked.transactional_id,
                    producer_id=asked.producer_id,
                    producer_epoch=asked.producer_epoch,
                    verify_only=True,
                    topics=tuple(
                        AddPartitionsToTxnTopic(name=name, partitions=indexes)
                        for name, indexes in _by_topic(asked.partitions)
                    ),
                ),
            )
        )
        verified = self._exchange(
            key, _VERSION_TO_VERIFY, request, AddPartitionsToTxnResponse, timeout_ms, closing
        )
        return VerifyPartitionsResponse(
            _error(verified.error_code),
            tuple(
                PartitionOutcome(topic.name, row.partition_index, _error(row.partition_error_code))
                for result in verified.results_by_transaction
                for topic in result.topic_results
                for row in topic.results_by_partition
            ),
        )

    def _exchange(
        self,
        key: KafkaApiKey,
        version: int,
        request: object,
        response_type: type[T],
        timeout_ms: int,
        closing: Closing | None,
    ) -> T:
        is_flexible = version >= FIRST_FLEXIBLE_VERSION[key]
        view = self._connection.exchange(
            key,
            version,
            encoded(request, version, is_flexible=is_flexible),
            timeout_ms=timeout_ms,
            closing=closing,
        )
        return decoded(response_type, view, version, is_flexible=is_flexible)


def _by_topic(partitions: Iterable[TopicPartition]) -> Iterable[tuple[str, tuple[int, ...]]]:
    topics: dict[str, list[int]] = {}
    for topic, index in partitions:
        topics.setdefault(topic, []).append(index)
    return [(topic, tuple(indexes)) for topic, indexes in topics.items()]


def _unverified(asked: TransactionToVerify) -> VerifyPartitionsResponse:
    """Let the records in, as the leaders of a coordinator before Kafka 3.5 do (KIP-890)."""
    outcomes = tuple(PartitionOutcome(*name, Errors.NONE) for name in asked.partitions)
    return VerifyPartitionsResponse(Errors.NONE, outcomes)


def _results(
    markers: Iterable[TxnMarker], response: WriteTxnMarkersResponse
) -> Iterable[TxnMarkerResult]:
    """Yield the result of each marker.

    The response has one list for each producer, also if it has several markers: then its rows are
    in the order of the markers.
    """
    outcomes: defaultdict[tuple[int, TopicPartition], deque[Errors]] = defaultdict(deque)
    for result in response.markers:
        for topic in result.topics:
            for row in topic.partitions:
                name = TopicPartition(topic.name, row.partition_index)
                outcomes[result.producer_id, name].append(_error(row.error_code))
    for marker in markers:
        rows = []
        for name in marker.partitions:
            left = outcomes[marker.producer_id, name]
            error = left.popleft() if left else Errors.UNKNOWN_SERVER_ERROR
            rows.append(PartitionOutcome(*name, error))
        yield TxnMarkerResult(marker.producer_id, tuple(rows))


def _error(code: int) -> Errors:
    return _ERROR_CODES.get(code, Errors.UNKNOWN_SERVER_ERROR)
