"""DescribeProducers."""

from __future__ import annotations

from regent.core.protocol.message import Int16, Int32, Int64, message


@message
class DescribeProducersTopic:
    """Partitions of a topic."""

    name: str
    partition_indexes: tuple[Int32, ...]


@message
class DescribeProducersRequest:
    """Asks for the producers of partitions (KIP-664)."""

    topics: tuple[DescribeProducersTopic, ...]


@message
class ProducerState:
    """What a log knows of a producer; -1: unknown, or none."""

    producer_id: Int64
    producer_epoch: Int32
    last_sequence: Int32 = -1
    last_timestamp: Int64 = -1
    coordinator_epoch: Int32
    current_txn_start_offset: Int64 = -1


@message
class ProducersOfPartition:
    """The producers of a partition."""

    partition_index: Int32
    error_code: Int16
    error_message: str | None = None
    active_producers: tuple[ProducerState, ...] = ()


@message
class ProducersOfTopic:
    """The partitions of a topic."""

    name: str
    partitions: tuple[ProducersOfPartition, ...]


@message
class DescribeProducersResponse:
    """The producers of each partition of the request."""

    throttle_time_ms: Int32 = 0
    topics: tuple[ProducersOfTopic, ...]
