"""Looks up offsets in logs: start, end, by timestamp, by leader epoch.

Mirrors ``kafka.cluster.Partition.fetchOffsetForTimestamp`` and ``lastOffsetForLeaderEpoch``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TypeAlias, TypeVar

from regent.core.errors import DamagedRecordsError, Errors, StorageError
from regent.core.model import TopicPartition
from regent.core.protocol.client import EpochEnd, EpochQuery, ListedOffset, OffsetQuery
from regent.core.replica_logs import (
    EARLIEST_LOCAL_TIMESTAMP,
    EARLIEST_TIMESTAMP,
    LATEST_TIERED_TIMESTAMP,
    LATEST_TIMESTAMP,
    NO_TIMESTAMP,
    PartitionLog,
)
from regent.core.replication.all_partitions import AllPartitions
from regent.core.replication.partition import Partition
from regent.core.setting import LONG_MAX

T = TypeVar("T")

_ONE_BATCH = 1  # byte: a read returns at least one batch


Search: TypeAlias = Callable[[], ListedOffset]
"""Searches a log; it may read from the disk, and needs no lock."""


class OffsetLookups:
    """Answers from the logs this broker leads; takes the lock of the replicas."""

    def __init__(self, partitions: AllPartitions, lock: AbstractContextManager[object]) -> None:
        self._partitions = partitions
        self._lock = lock

    def list_offsets(
        self, queries: Mapping[TopicPartition, OffsetQuery]
    ) -> Mapping[TopicPartition, ListedOffset]:
        """Return start offsets, end offsets and offsets of timestamps, among committed records.

        OFFSET_NOT_AVAILABLE while a new leader does not know yet what is committed (KIP-207). Logs
        are searched by time without the lock.
        """
        with self._lock:
            begun = {
                topic_partition: self._ask(
                    topic_partition, query.current_leader_epoch, _failed, partial(_listed, query)
                )
                for topic_partition, query in queries.items()
            }
        return {
            topic_partition: found
            if isinstance(found, ListedOffset)
            else self._search(topic_partition, *found)
            for topic_partition, found in begun.items()
        }

    def offsets_for_leader_epoch(
        self, queries: Mapping[TopicPartition, EpochQuery]
    ) -> Mapping[TopicPartition, EpochEnd]:
        """Return the end offsets of leader epochs; -1, -1 if unknown."""
        with self._lock:
            return {
                topic_partition: self._ask(
                    topic_partition,
                    query.current_leader_epoch,
                    EpochEnd,
                    partial(_epoch_end, query),
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
        except (StorageError, DamagedRecordsError) as error:
            return failed(self._partitions.on_error(topic_partition, error))

    def _search(
        self, topic_partition: TopicPartition, log: PartitionLog, search: Search
    ) -> ListedOffset:
        try:
            return search()
        except (StorageError, DamagedRecordsError) as error:
            with self._lock:
                partition = self._partitions.get(topic_partition)
                if partition is None or partition.log is not log:  # it was replaced meanwhile
                    return ListedOffset(Errors.NOT_LEADER_OR_FOLLOWER)
                return ListedOffset(self._partitions.on_error(topic_partition, error))


def _failed(error: Errors) -> ListedOffset | tuple[PartitionLog, Search]:
    return ListedOffset(error)


def _listed(query: OffsetQuery, partition: Partition) -> ListedOffset | tuple[PartitionLog, Search]:
    log, limit = partition.local_log, partition.high_watermark
    start_of_epoch = partition.leader_epoch_start_offset
    knows_committed = start_of_epoch is not None and limit >= start_of_epoch
    if query.is_of_follower:
        knows_committed, limit = True, log.log_end_offset
    elif query.is_read_committed:
        limit = partition.last_stable_offset
    if query.max_num_offsets is not None:
        return _listed_in_old_style(query, partition, knows_committed, query.max_num_offsets)
    if query.timestamp_ms in (EARLIEST_TIMESTAMP, EARLIEST_LOCAL_TIMESTAMP):
        start = log.log_start_offset
        return ListedOffset(Errors.NONE, NO_TIMESTAMP, start, log.epoch_for(start))
    if query.timestamp_ms == LATEST_TIERED_TIMESTAMP:
        return ListedOffset(Errors.NONE)  # there is no tiered storage
    if query.timestamp_ms == LATEST_TIMESTAMP:
        if not knows_committed:
            return ListedOffset(Errors.OFFSET_NOT_AVAILABLE)
        return ListedOffset(Errors.NONE, NO_TIMESTAMP, limit, partition.leader_epoch)

    def search() -> ListedOffset:
        found = log.offset_of_timestamp(query.timestamp_ms, limit, query.from_offset)
        if found is not None:
            batch = log.read(found.offset, _ONE_BATCH, limit, at_least_one=True)
            return ListedOffset(Errors.NONE, *found, batch)
        return ListedOffset(Errors.NONE if knows_committed else Errors.OFFSET_NOT_AVAILABLE)

    return log, search


def _listed_in_old_style(
    query: OffsetQuery, partition: Partition, knows_committed: bool, count: int
) -> ListedOffset:
    """Answer version 0. Mirrors ``Partition.legacyFetchOffsetsForTimestamp``."""
    log, limit, timestamp_ms = partition.local_log, partition.high_watermark, query.timestamp_ms
    count = max(0, count)
    if timestamp_ms == EARLIEST_TIMESTAMP:
        offsets: Sequence[int] = (log.log_start_offset,)[:count]
    else:
        until_ms = LONG_MAX if timestamp_ms == LATEST_TIMESTAMP else timestamp_ms
        offsets = log.offsets_before(until_ms, count)
    if any(offset >= limit for offset in offsets):
        if not knows_committed:
            return ListedOffset(Errors.OFFSET_NOT_AVAILABLE)
        offsets = (limit, *(offset for offset in offsets if offset < limit))
    return ListedOffset(Errors.NONE, old_style_offsets=offsets)


def _epoch_end(query: EpochQuery, partition: Partition) -> EpochEnd:
    return EpochEnd(Errors.NONE, *partition.local_log.end_offset_for_epoch(query.leader_epoch))
