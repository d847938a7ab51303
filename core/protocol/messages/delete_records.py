"""DeleteRecords."""

from __future__ import annotations

from regent.core.protocol.message import Int16, Int32, Int64, message


@message
class DeleteRecordsPartition:
    """The records before ``offset`` are to be deleted; -1: all up to the high watermark."""

    partition_index: Int32
    offset: Int64


@message
class DeleteRecordsTopic:
    """Partitions of a topic."""

    name: str
    partitions: tuple[DeleteRecordsPartition, ...]


@message
class DeleteRecordsRequest:
    """Records to delete."""

    topics: tuple[DeleteRecordsTopic, ...]
    timeout_ms: Int32


@message
class DeleteRecordsPartitionResult:
    """The first offset that all replicas still have; -1 with an error."""

    partition_index: Int32
    low_watermark: Int64
    error_code: Int16


@message
class DeleteRecordsTopicResult:
    """Partitions of a topic."""

    name: str
    partitions: tuple[DeleteRecordsPartitionResult, ...]


@message
class DeleteRecordsResponse:
    """A result for each partition."""

    throttle_time_ms: Int32 = 0
    topics: tuple[DeleteRecordsTopicResult, ...]
