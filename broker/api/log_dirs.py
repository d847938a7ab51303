"""AlterReplicaLogDirs, versions 0 to 2, and DescribeLogDirs, versions 0 to 4 (KIP-113, KIP-827).

Mirrors ``kafka.server.KafkaApis.handleAlterReplicaLogDirsRequest`` and
``ReplicaManager.describeLogDirs``. The handlers run on a thread of their own, because a broker may
have many logs, and a file system may be slow to tell its size.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Executor
from typing import Protocol

from regent.core.errors import Errors
from regent.core.log_dirs import LocalLogDirectories, LogDirectoryState, LogInDirectory
from regent.core.model import TopicPartition
from regent.core.protocol.messages.log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from regent.transport.kafka.api import (
    KafkaAnswer,
    KafkaApi,
    KafkaApiKey,
    KafkaHandler,
    KafkaRequest,
)
from regent.transport.kafka.message_codec import answer, decode


class HostedReplicas(Protocol):
    """The replicas of a broker; ``ReplicaManager`` implements it. Thread-safe."""

    def log_end_offset_lag(
        self, topic_partition: TopicPartition, log_end_offset: int, *, is_future: bool
    ) -> int:
        """Return how far a log is behind; -1: unknown."""
        ...


class ReplicaMover(Protocol):
    """Moves replicas; ``ReplicaAlterLogDirsManager`` implements it. Thread-safe."""

    def alter(self, paths: Mapping[TopicPartition, str]) -> Mapping[TopicPartition, Errors]:
        """Begin to move replicas to directories."""
        ...


def log_dir_apis(
    replicas: HostedReplicas,
    directories: LocalLogDirectories,
    mover: ReplicaMover,
    executor: Executor,
) -> Sequence[KafkaApi]:
    """Return the APIs about log directories, whose handlers run in ``executor``."""

    def alter(request: KafkaRequest) -> KafkaAnswer:
        asked = decode(AlterReplicaLogDirsRequest, request)
        paths = {
            TopicPartition(topic.name, partition): row.path
            for row in asked.dirs
            for topic in row.topics
            for partition in topic.partitions
        }
        return answer(AlterReplicaLogDirsResponse(results=_outcomes(mover.alter(paths))), request)

    def describe(request: KafkaRequest) -> KafkaAnswer:
        asked = decode(DescribeLogDirsRequest, request)
        wanted = None
        if asked.topics is not None:
            wanted = {
                TopicPartition(topic.topic, partition)
                for topic in asked.topics
                for partition in topic.partitions
            }
        results = tuple(_result(state, wanted, replicas) for state in directories.describe())
        return answer(DescribeLogDirsResponse(error_code=Errors.NONE, results=results), request)

    def on_thread(handle: Callable[[KafkaRequest], KafkaAnswer]) -> KafkaHandler:
        async def run(request: KafkaRequest) -> KafkaAnswer:
            return await asyncio.get_running_loop().run_in_executor(executor, handle, request)

        return run

    return [
        KafkaApi(KafkaApiKey.ALTER_REPLICA_LOG_DIRS, 0, 2, on_thread(alter)),
        KafkaApi(KafkaApiKey.DESCRIBE_LOG_DIRS, 0, 4, on_thread(describe)),
    ]


def _outcomes(
    errors: Mapping[TopicPartition, Errors],
) -> tuple[AlterReplicaLogDirTopicResult, ...]:
    topics: dict[str, list[AlterReplicaLogDirPartitionResult]] = {}
    for (topic, partition), error in errors.items():
        row = AlterReplicaLogDirPartitionResult(partition_index=partition, error_code=error)
        topics.setdefault(topic, []).append(row)
    return tuple(
        AlterReplicaLogDirTopicResult(topic_name=topic, partitions=tuple(rows))
        for topic, rows in topics.items()
    )


def _result(
    state: LogDirectoryState, wanted: Collection[TopicPartition] | None, replicas: HostedReplicas
) -> DescribeLogDirsResult:
    topics: dict[str, list[DescribeLogDirsPartition]] = {}
    for log in state.logs:
        if wanted is None or log.topic_partition in wanted:
            topics.setdefault(log.topic_partition.topic, []).append(_partition(log, replicas))
    return DescribeLogDirsResult(
        error_code=Errors.KAFKA_STORAGE_ERROR if state.is_offline else Errors.NONE,
        log_dir=state.path,
        topics=tuple(
            DescribeLogDirsTopic(name=name, partitions=tuple(partitions))
            for name, partitions in topics.items()
        ),
        total_bytes=state.total_bytes,
        usable_bytes=state.usable_bytes,
    )


def _partition(log: LogInDirectory, replicas: HostedReplicas) -> DescribeLogDirsPartition:
    return DescribeLogDirsPartition(
        partition_index=log.topic_partition.partition,
        partition_size=log.size,
        offset_lag=replicas.log_end_offset_lag(
            log.topic_partition, log.log_end_offset, is_future=log.is_future
        ),
        is_future_key=log.is_future,
    )
