"""ListOffsets and OffsetForLeaderEpoch between brokers; ``api.offsets`` has what clients send."""

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


@message
class EpochOfPartition:
    """A leader epoch of a partition; the follower knows ``current_leader_epoch`` as the newest."""

    partition: Int32
    current_leader_epoch: Int32 = since(2, default=-1)
    leader_epoch: Int32


@message
class EpochsOfTopic:
    """Partitions of a topic."""

    topic: str
    partitions: tuple[EpochOfPartition, ...]


@message
class OffsetForLeaderEpochRequest:
    """Asks a leader where leader epochs end in its logs."""

    replica_id: Int32 = since(3, default=-2)
    topics: tuple[EpochsOfTopic, ...]


@message
class EpochEndOfPartition:
    """The newest leader epoch up to the one that was asked for, and its end; -1: there is none."""

    error_code: Int16
    partition: Int32
    leader_epoch: Int32 = since(1, default=-1)
    end_offset: Int64


@message
class EpochEndsOfTopic:
    """Partitions of a topic."""

    topic: str
    partitions: tuple[EpochEndOfPartition, ...]


@message
class OffsetForLeaderEpochResponse:
    """The ends of the leader epochs."""

    throttle_time_ms: Int32 = since(2, default=0)
    topics: tuple[EpochEndsOfTopic, ...]
