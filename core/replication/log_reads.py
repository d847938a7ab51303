"""Checks of every read of a log, by consumer or follower: epochs and offsets.

Mirrors the checks of ``kafka.cluster.Partition.fetchRecords`` and ``readRecords``.
"""

from __future__ import annotations

from typing import NamedTuple

from regent.core.errors import Errors
from regent.core.model import NO_EPOCH
from regent.core.protocol.control import TopicId
from regent.core.records import NO_RECORDS, Records
from regent.core.replica_logs import NO_EPOCH_END_OFFSET, EpochEndOffset, PartitionLog
from regent.core.replication.partition import Partition


def check_reader(partition: Partition, leader_epoch: int, topic_id: TopicId | None) -> Errors:
    """Compare a reader's topic id and leader epoch, if given, with the partition's.

    The topic id is compared first: the epochs of another topic mean nothing here.
    """
    if differ(topic_id, partition.topic_id):
        return Errors.INCONSISTENT_TOPIC_ID
    if NO_EPOCH != leader_epoch < partition.leader_epoch:
        return Errors.FENCED_LEADER_EPOCH
    if leader_epoch > partition.leader_epoch:
        return Errors.UNKNOWN_LEADER_EPOCH
    return Errors.NONE


def check_position(
    log: PartitionLog, fetch_offset: int, last_fetched_epoch: int
) -> tuple[Errors, EpochEndOffset]:
    """Check a position: return an error, and where the reader's log diverges (KIP-595).

    The second value is -1, -1 if the log does not diverge. Raises ``StorageError``.
    """
    start, end = log.log_start_offset, log.log_end_offset
    if last_fetched_epoch != NO_EPOCH:
        epoch_end = log.end_offset_for_epoch(last_fetched_epoch)
        if epoch_end.end_offset < 0 or fetch_offset < start:
            return Errors.OFFSET_OUT_OF_RANGE, NO_EPOCH_END_OFFSET
        if epoch_end.leader_epoch < last_fetched_epoch or epoch_end.end_offset < fetch_offset:
            return Errors.NONE, epoch_end
    if not start <= fetch_offset <= end:
        return Errors.OFFSET_OUT_OF_RANGE, NO_EPOCH_END_OFFSET
    return Errors.NONE, NO_EPOCH_END_OFFSET


class LogRead(NamedTuple):
    """Records of a log from ``offset`` on, which may be greater than what was asked for.

    There are no more records if ``offset`` is the log end offset.
    """

    error_code: Errors
    offset: int = -1
    log_end_offset: int = -1
    records: Records = NO_RECORDS


def read_log(log: PartitionLog, offset: int, max_bytes: int) -> LogRead:
    """Read at least one batch, if there is one. Raises ``StorageError``."""
    start, end = max(offset, log.log_start_offset), log.log_end_offset
    if start >= end:
        return LogRead(Errors.NONE, start, end)
    return LogRead(Errors.NONE, start, end, log.read(start, max_bytes, end, at_least_one=True))


def differ(one: TopicId | None, other: TopicId | None) -> bool:
    """Whether two topic ids differ; an unknown one (None) matches any."""
    return None not in (one, other) and one != other
