"""Requests of transactional producers and of tools, and their answers, as values.

Also what brokers ask each other: to write the markers that end a transaction, and whether a
partition is part of one. Times in milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, TypeAlias, TypeVar

from regent.core.errors import Errors
from regent.core.model import TopicPartition
from regent.core.protocol.coordinator import CoordinatorRequest
from regent.core.protocol.groups import ProducerIdAndEpoch
from regent.core.protocol.messages.producer_ids import InitProducerIdResponse
from regent.core.protocol.messages.transactions import (
    DescribedTransactionState,
    ListTransactionsResponse,
)

A = TypeVar("A")

NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
NO_DURATION: Final = -1


class TransactionRequest(CoordinatorRequest[A]):
    """A request to a transaction coordinator."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class InitProducerId(TransactionRequest[InitProducerIdResponse]):
    """A producer asks for its id and a new epoch, which fences the producers before it.

    ``expected``: what the producer has, if it continues after an error (KIP-360).
    ``knows_fencing``: the client knows PRODUCER_FENCED; others get INVALID_PRODUCER_EPOCH.
    """

    transactional_id: str
    transaction_timeout_ms: int
    expected: ProducerIdAndEpoch | None = None
    knows_fencing: bool = True

    def refused(self, error: Errors) -> InitProducerIdResponse:
        """See ``CoordinatorRequest.refused``."""
        return InitProducerIdResponse(error_code=error)


@dataclass(frozen=True, slots=True)
class AddPartitionsToTxn(TransactionRequest[Mapping[TopicPartition, Errors]]):
    """A producer is going to write to partitions: they become part of its transaction.

    ``verify_only``: nothing is added, the answer says which are part of it (KIP-890).
    ``must_exist``: partitions that this broker does not know are refused.
    """

    transactional_id: str
    producer: ProducerIdAndEpoch
    partitions: tuple[TopicPartition, ...]
    verify_only: bool = False
    must_exist: bool = True
    knows_fencing: bool = True

    def refused(self, error: Errors) -> Mapping[TopicPartition, Errors]:
        """See ``CoordinatorRequest.refused``."""
        return dict.fromkeys(self.partitions, error)


@dataclass(frozen=True, slots=True)
class EndTxn(TransactionRequest[Errors]):
    """A producer commits or aborts its transaction. It is answered once that is decided."""

    transactional_id: str
    producer: ProducerIdAndEpoch
    is_commit: bool
    knows_fencing: bool = True

    def refused(self, error: Errors) -> Errors:
        """See ``CoordinatorRequest.refused``."""
        return error


@dataclass(frozen=True, slots=True)
class DescribeTransaction(TransactionRequest[DescribedTransactionState]):
    """What is a transactional id doing?"""

    transactional_id: str

    def refused(self, error: Errors) -> DescribedTransactionState:
        """See ``CoordinatorRequest.refused``."""
        return DescribedTransactionState(error_code=error, transactional_id=self.transactional_id)


@dataclass(frozen=True, slots=True)
class ListTransactions(TransactionRequest[ListTransactionsResponse]):
    """Which transactional ids are here? Empty filters: all. ``duration_ms`` -1: of any age."""

    states: tuple[str, ...] = ()
    producer_ids: tuple[int, ...] = ()
    duration_ms: int = NO_DURATION

    def refused(self, error: Errors) -> ListTransactionsResponse:
        """See ``CoordinatorRequest.refused``."""
        return ListTransactionsResponse(error_code=error)


# --- between brokers ---


class TxnMarker(NamedTuple):
    """The end of a transaction, to be written to partitions that one broker leads.

    ``coordinator_epoch`` is the leader epoch with which the coordinator began to lead its
    partition of ``__transaction_state``: markers of former coordinators are refused.
    """

    producer_id: int
    producer_epoch: int
    is_commit: bool
    coordinator_epoch: int
    partitions: tuple[TopicPartition, ...]


class PartitionOutcome(NamedTuple):
    """Whether a marker was written to a partition, or the partition is part of a transaction.

    ``marker_offset``: where this broker wrote the marker.
    """

    topic: str
    partition: int
    error_code: Errors
    marker_offset: int = -1

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition this is about."""
        return TopicPartition(self.topic, self.partition)


class TxnMarkerResult(NamedTuple):
    """The partitions of one marker."""

    producer_id: int
    partitions: tuple[PartitionOutcome, ...]


@dataclass(frozen=True, slots=True)
class WriteMarkersRequest:
    """A coordinator asks the leader of partitions to write markers (Kafka api 27)."""

    markers: tuple[TxnMarker, ...]


@dataclass(frozen=True, slots=True)
class WriteMarkersResponse:
    """The outcome of each marker, in the order of the request."""

    error_code: Errors
    results: tuple[TxnMarkerResult, ...] = ()


class MarkerTarget(Protocol):
    """The partitions of this broker, as far as they take the markers that end transactions."""

    def write_markers(
        self,
        markers: Sequence[TxnMarker],
        respond: Callable[[Sequence[TxnMarkerResult]], None],
    ) -> None:
        """Append one control batch to each partition of each marker, as a coordinator (acks=all).

        ``respond`` is called once, on any thread, with a result for each marker and in it a row for
        each of its partitions, when all replicas in sync have the markers or the request timeout
        is over (REQUEST_TIMED_OUT). Errors of a partition: UNKNOWN_TOPIC_OR_PARTITION (no replica
        here), NOT_LEADER_OR_FOLLOWER, NOT_ENOUGH_REPLICAS(_AFTER_APPEND), KAFKA_STORAGE_ERROR;
        INVALID_PRODUCER_EPOCH and TRANSACTION_COORDINATOR_FENCED if a newer producer or
        coordinator wrote there. A marker that is written twice has no further effect. It does not
        block, and may be called on any thread.
        """
        ...


class TransactionToVerify(NamedTuple):
    """A producer that writes to partitions which should be part of its transaction."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: tuple[TopicPartition, ...]


class TransactionVerifier(Protocol):
    """Asks coordinators, on this or another broker, whether partitions are part of transactions."""

    def verify(
        self,
        transaction: TransactionToVerify,
        respond: Callable[[Mapping[TopicPartition, Errors]], None],
    ) -> None:
        """Call ``respond`` once, on any thread, with an error for each partition.

        TRANSACTION_ABORTABLE: it is not part of it. NETWORK_EXCEPTION, COORDINATOR_NOT_AVAILABLE
        and other errors that clients retry: it is not known. INVALID_PRODUCER_EPOCH: the producer
        is fenced.
        """
        ...


@dataclass(frozen=True, slots=True)
class VerifyPartitionsRequest:
    """A leader asks a coordinator whether partitions are part of a transaction (KIP-890).

    In Kafka it is AddPartitionsToTxn from version 4 on (api 24).
    """

    transaction: TransactionToVerify


@dataclass(frozen=True, slots=True)
class VerifyPartitionsResponse:
    """The partitions of the transaction; NONE: they are part of it."""

    error_code: Errors
    partitions: tuple[PartitionOutcome, ...] = ()


TxnRequest: TypeAlias = WriteMarkersRequest | VerifyPartitionsRequest
TxnResponse: TypeAlias = WriteMarkersResponse | VerifyPartitionsResponse
"""What brokers ask each other about transactions."""
