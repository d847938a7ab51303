"""AlterReplicaLogDirs and DescribeLogDirs."""

from __future__ import annotations

from regent.core.protocol.message import Int16, Int32, Int64, message, since


@message
class AlterReplicaLogDirTopic:
    """Partitions of a topic."""

    name: str
    partitions: tuple[Int32, ...]


@message
class AlterReplicaLogDir:
    """The replicas to move to a log directory."""

    path: str
    topics: tuple[AlterReplicaLogDirTopic, ...]


@message
class AlterReplicaLogDirsRequest:
    """Moves replicas of a broker between its log directories (KIP-113)."""

    dirs: tuple[AlterReplicaLogDir, ...]


@message
class AlterReplicaLogDirPartitionResult:
    """Whether a replica moves, or is where it shall be."""

    partition_index: Int32
    error_code: Int16


@message
class AlterReplicaLogDirTopicResult:
    """The outcomes for the partitions of a topic."""

    topic_name: str
    partitions: tuple[AlterReplicaLogDirPartitionResult, ...]


@message
class AlterReplicaLogDirsResponse:
    """The outcome for each partition of the request."""

    throttle_time_ms: Int32 = 0
    results: tuple[AlterReplicaLogDirTopicResult, ...]


@message
class DescribableLogDirTopic:
    """Partitions of a topic."""

    topic: str
    partitions: tuple[Int32, ...]


@message
class DescribeLogDirsRequest:
    """Asks what is in the log directories of a broker (KIP-113); None: all topics."""

    topics: tuple[DescribableLogDirTopic, ...] | None


@message
class DescribeLogDirsPartition:
    """A log in a log directory."""

    partition_index: Int32
    partition_size: Int64
    offset_lag: Int64
    is_future_key: bool


@message
class DescribeLogDirsTopic:
    """The logs of a topic."""

    name: str
    partitions: tuple[DescribeLogDirsPartition, ...]


@message
class DescribeLogDirsResult:
    """A log directory; the sizes are those of its file system (KIP-827)."""

    error_code: Int16
    log_dir: str
    topics: tuple[DescribeLogDirsTopic, ...]
    total_bytes: Int64 = since(4, default=-1)
    usable_bytes: Int64 = since(4, default=-1)


@message
class DescribeLogDirsResponse:
    """The log directories of a broker."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = since(3, default=0)
    results: tuple[DescribeLogDirsResult, ...]
