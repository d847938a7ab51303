"""Requests of transactional producers, of coordinators, and of tools for transactions.

InitProducerId is in ``producer_ids``: producers without transactions send it, too.
"""

from __future__ import annotations

from regent.core.protocol.message import Int16, Int32, Int64, message, since, until


@message
class AddPartitionsToTxnTopic:
    """Partitions of a topic."""

    name: str
    partitions: tuple[Int32, ...]


@message
class AddPartitionsToTxnTransaction:
    """Partitions for the transaction of a producer; ``verify_only``: are they in it already?"""

    transactional_id: str
    producer_id: Int64
    producer_epoch: Int16
    verify_only: bool = False
    topics: tuple[AddPartitionsToTxnTopic, ...]


@message
class AddPartitionsToTxnRequest:
    """A producer is going to write to partitions; brokers ask about several transactions."""

    transactions: tuple[AddPartitionsToTxnTransaction, ...] = since(4, default=())
    v3_and_below_transactional_id: str = until(3, default="")
    v3_and_below_producer_id: Int64 = until(3, default=0)
    v3_and_below_producer_epoch: Int16 = until(3, default=0)
    v3_and_below_topics: tuple[AddPartitionsToTxnTopic, ...] = until(3, default=())


@message
class AddPartitionsToTxnPartitionResult:
    """Whether a partition is part of the transaction."""

    partition_index: Int32
    partition_error_code: Int16


@message
class AddPartitionsToTxnTopicResult:
    """The partitions of a topic."""

    name: str
    results_by_partition: tuple[AddPartitionsToTxnPartitionResult, ...]


@message
class AddPartitionsToTxnResult:
    """The partitions of a transaction."""

    transactional_id: str
    topic_results: tuple[AddPartitionsToTxnTopicResult, ...]


@message
class AddPartitionsToTxnResponse:
    """Which partitions are part of which transaction."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = since(4, default=0)
    results_by_transaction: tuple[AddPartitionsToTxnResult, ...] = since(4, default=())
    results_by_topic_v3_and_below: tuple[AddPartitionsToTxnTopicResult, ...] = until(3, default=())


@message
class AddOffsetsToTxnRequest:
    """A producer is going to store positions of a group in its transaction."""

    transactional_id: str
    producer_id: Int64
    producer_epoch: Int16
    group_id: str


@message
class AddOffsetsToTxnResponse:
    """Whether it may."""

    throttle_time_ms: Int32 = 0
    error_code: Int16


@message
class EndTxnRequest:
    """A producer commits or aborts its transaction."""

    transactional_id: str
    producer_id: Int64
    producer_epoch: Int16
    committed: bool


@message
class EndTxnResponse:
    """Whether that is decided."""

    throttle_time_ms: Int32 = 0
    error_code: Int16


@message
class WritableTxnMarkerTopic:
    """Partitions of a topic."""

    name: str
    partition_indexes: tuple[Int32, ...]


@message
class WritableTxnMarker:
    """The end of a transaction, for partitions; ``transaction_result``: it is committed."""

    producer_id: Int64
    producer_epoch: Int16
    transaction_result: bool
    topics: tuple[WritableTxnMarkerTopic, ...]
    coordinator_epoch: Int32


@message
class WriteTxnMarkersRequest:
    """A coordinator, or a tool, tells leaders of partitions that transactions have ended."""

    markers: tuple[WritableTxnMarker, ...]


@message
class WritableTxnMarkerPartitionResult:
    """Whether the marker was written to a partition."""

    partition_index: Int32
    error_code: Int16


@message
class WritableTxnMarkerTopicResult:
    """The partitions of a topic."""

    name: str
    partitions: tuple[WritableTxnMarkerPartitionResult, ...]


@message
class WritableTxnMarkerResult:
    """The partitions of all markers of a producer."""

    producer_id: Int64
    topics: tuple[WritableTxnMarkerTopicResult, ...]


@message
class WriteTxnMarkersResponse:
    """To which partitions which markers were written."""

    markers: tuple[WritableTxnMarkerResult, ...]


@message
class TxnOffsetCommitRequestPartition:
    """A position."""

    partition_index: Int32
    committed_offset: Int64
    committed_leader_epoch: Int32 = since(2, default=-1)
    committed_metadata: str | None


@message
class TxnOffsetCommitRequestTopic:
    """The positions in a topic."""

    name: str
    partitions: tuple[TxnOffsetCommitRequestPartition, ...]


@message
class TxnOffsetCommitRequest:
    """A group stores its positions in a transaction."""

    transactional_id: str
    group_id: str
    producer_id: Int64
    producer_epoch: Int16
    generation_id: Int32 = since(3, default=-1)
    member_id: str = since(3, default="")
    group_instance_id: str | None = since(3, default=None)
    topics: tuple[TxnOffsetCommitRequestTopic, ...]


@message
class TxnOffsetCommitResponsePartition:
    """Whether a position was stored."""

    partition_index: Int32
    error_code: Int16


@message
class TxnOffsetCommitResponseTopic:
    """The outcomes of a topic."""

    name: str
    partitions: tuple[TxnOffsetCommitResponsePartition, ...]


@message
class TxnOffsetCommitResponse:
    """Which positions were stored."""

    throttle_time_ms: Int32 = 0
    topics: tuple[TxnOffsetCommitResponseTopic, ...]


@message
class DescribeTransactionsRequest:
    """What are these transactional ids doing?"""

    transactional_ids: tuple[str, ...]


@message
class DescribedTransactionTopic:
    """Partitions of a topic."""

    topic: str
    partitions: tuple[Int32, ...]


@message
class DescribedTransactionState:
    """A transactional id; ``transaction_state`` is empty with an error."""

    error_code: Int16
    transactional_id: str
    transaction_state: str = ""
    transaction_timeout_ms: Int32 = 0
    transaction_start_time_ms: Int64 = 0
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    topics: tuple[DescribedTransactionTopic, ...] = ()


@message
class DescribeTransactionsResponse:
    """Transactional ids with their open transactions."""

    throttle_time_ms: Int32 = 0
    transaction_states: tuple[DescribedTransactionState, ...]


@message
class ListTransactionsRequest:
    """Which transactional ids are here? ``duration_filter`` -1: of transactions of any age."""

    state_filters: tuple[str, ...]
    producer_id_filters: tuple[Int64, ...]
    duration_filter: Int64 = since(1, default=-1)


@message
class ListedTransactionState:
    """A transactional id."""

    transactional_id: str
    producer_id: Int64
    transaction_state: str


@message
class ListTransactionsResponse:
    """The transactional ids of this broker."""

    throttle_time_ms: Int32 = 0
    error_code: Int16
    unknown_state_filters: tuple[str, ...] = ()
    transaction_states: tuple[ListedTransactionState, ...] = ()
