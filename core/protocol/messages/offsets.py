"""ListOffsets between brokers; ``api.offsets`` has what clients send."""

from __future__ import annotations

from regent.core.protocol.message import Int8, Int16, Int32, Int64, message, since, until


@message
class ListOffsetsPartition:
    """The offset for a timestamp in a partition."""

    partition_index: Int32
    current_leader_epoch: Int32 = since(4, default=-1)
    timestamp: Int64
    max_num_offsets: Int32 = until(0, default=1)


@message
class ListOffsetsTopic:
    """Partitions of a topic."""

    name: str
    partitions: tuple[ListOffsetsPartition, ...]


@message
class ListOffsetsRequest:
    """Asks a leader for offsets; ``replica_id`` -1: a consumer asks."""

    replica_id: Int32
    isolation_level: Int8 = since(2, default=0)
    topics: tuple[ListOffsetsTopic, ...]


@message
class ListedPartition:
    """The offset, or an error."""

    partition_index: Int32
    error_code: Int16
    old_style_offsets: tuple[Int64, ...] = until(0, default=())
    timestamp: Int64 = since(1, default=-1)
    offset: Int64 = since(1, default=-1)
    leader_epoch: Int32 = since(4, default=-1)


@message
class ListedTopic:
    """Partitions of a topic."""

    name: str
    partitions: tuple[ListedPartition, ...]


@message
class ListOffsetsResponse:
    """The offsets."""

    throttle_time_ms: Int32 = since(2, default=0)
    topics: tuple[ListedTopic, ...]
