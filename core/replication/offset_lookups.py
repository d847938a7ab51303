"""Looks up offsets in logs: start, end, by timestamp, by leader epoch.

Mirrors ``kafka.cluster.Partition.fetchOffsetForTimestamp`` and ``lastOffsetForLeaderEpoch``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar

from regent.core.errors import DamagedRecordsError, Errors, StorageError
from regent.core.model import TopicPartition
from regent.core.protocol.client import EpochEnd, EpochQuery, ListedOffset, OffsetQuery
from regent.core.replica_logs import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, NO_TIMESTAMP
from regent.core.replication.all_partitions import AllPartitions
from regent.core.replication.partition import Partition

T = TypeVar("T")


class OffsetLookups:
    """Answers from the logs this broker leads. Not thread-safe."""

    def __init__(self, partitions: AllPartitions) -> None:
        self._partitions = partitions

    def list_offsets(
        self, queries: Mapping[TopicPartition, OffsetQuery]
    ) -> Mapping[TopicPartition, ListedOffset]:
        """Return start offsets, end offsets and offsets of timestamps, among committed records.

        OFFSET_NOT_AVAILABLE while a new leader does not know yet what is committed (KIP-207).
        """
        return {
            topic_partition: self._ask(
                topic_partition, query.current_leader_epoch, ListedOffset, partial(_listed, query)
            )
            for topic_partition, query in queries.items()
        }

    def offsets_for_leader_epoch(
        self, queries: Mapping[TopicPartition, EpochQuery]
    ) -> Mapping[TopicPartition, EpochEnd]:
        """Return the end offsets of leader epochs; -1, -1 if unknown."""
        return {
            topic_partition: self._ask(
                topic_partition, query.current_leader_epoch, EpochEnd, partial(_epoch_end, query)
            )
            for topic_partition, query in queries.items()
        }

    def _ask(
        self,
        topic_partition: TopicPartition,
        leader_epoch: int,
        failed: Callable[[Errors], T],
        look_up: Callable[[Partition], T],
    ) -> T:
        partition = self._partitions.leader_or_error(topic_partition, leader_epoch)
        if isinstance(partition, Errors):
            return failed(partition)
        try:
            return look_up(partition)
        except StorageError as error:
            return failed(self._partitions.fail(topic_partition, error))
        except DamagedRecordsError as error:
            return failed(self._partitions.on_damaged(topic_partition, error))


def _listed(query: OffsetQuery, partition: Partition) -> ListedOffset:
    log, limit = partition.local_log, partition.high_watermark
    start_of_epoch = partition.leader_epoch_start_offset
    knows_committed = start_of_epoch is not None and limit >= start_of_epoch
    if query.timestamp_ms == EARLIEST_TIMESTAMP:
        return ListedOffset(Errors.NONE, NO_TIMESTAMP, log.log_start_offset)
    if query.timestamp_ms == LATEST_TIMESTAMP:
        if not knows_committed:
            return ListedOffset(Errors.OFFSET_NOT_AVAILABLE)
        return ListedOffset(Errors.NONE, NO_TIMESTAMP, limit, partition.leader_epoch)
    found = log.offset_of_timestamp(query.timestamp_ms, limit)
    if found is not None:
        return ListedOffset(Errors.NONE, *found)
    return ListedOffset(Errors.NONE if knows_committed else Errors.OFFSET_NOT_AVAILABLE)


def _epoch_end(query: EpochQuery, partition: Partition) -> EpochEnd:
    return EpochEnd(Errors.NONE, *partition.local_log.end_offset_for_epoch(query.leader_epoch))
