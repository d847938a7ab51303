"""Produce, as tools send it; ``broker.api.produce`` reads what clients send."""

from __future__ import annotations

from regent.core.protocol.message import Int16, Int32, Int64, message, since


@message
class PartitionProduceData:
    """Record batches for a partition."""

    index: Int32
    records: bytes


@message
class TopicProduceData:
    """Partitions of a topic."""

    name: str
    partition_data: tuple[PartitionProduceData, ...]


@message
class ProduceRequest:
    """Record batches; ``acks`` -1: the answer comes when all replicas in sync have them."""

    transactional_id: str | None = since(3, default=None)
    acks: Int16 = -1
    timeout_ms: Int32
    topic_data: tuple[TopicProduceData, ...]


@message
class BatchIndexAndErrorMessage:
    """A record that was refused."""

    batch_index: Int32
    batch_index_error_message: str | None


@message
class PartitionProduceResponse:
    """The offset of the first record, or an error."""

    index: Int32
    error_code: Int16
    base_offset: Int64
    log_append_time_ms: Int64 = since(2, default=-1)
    log_start_offset: Int64 = since(5, default=-1)
    record_errors: tuple[BatchIndexAndErrorMessage, ...] = since(8, default=())
    error_message: str | None = since(8, default=None)


@message
class TopicProduceResponse:
    """Partitions of a topic."""

    name: str
    partition_responses: tuple[PartitionProduceResponse, ...]


@message
class ProduceResponse:
    """A result for each partition."""

    responses: tuple[TopicProduceResponse, ...]
    throttle_time_ms: Int32 = since(1, default=0)
