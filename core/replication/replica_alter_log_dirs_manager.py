"""Moves replicas between the log directories of their broker (KIP-113).

Mirrors ``kafka.server.ReplicaManager.alterReplicaLogDirs`` and ``ReplicaAlterLogDirsThread``.
``storage.log_moves`` has the files; this module decides what is copied, and when the copy replaces
the log. One thread calls ``advance``. It takes no lock that appends need while it copies a piece:

* The copy of a log (its *future log*) follows it as a follower follows its leader: before each
  piece it is cut back to what both logs have in common, by leader epochs. So it does not matter
  how the current log was truncated, and whether that was before a restart.
* A piece counts only if the current log was not truncated while it was read. So the future log
  always equals the current log at some earlier time, and a comparison of the last leader epoch and
  the ends is enough.
* When little is missing, the rest is copied under the lock of the replicas, and the logs are
  exchanged. The same offsets and the same high watermark are then in the other log, so readers,
  followers and producers see no change.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from regent.core.errors import (
    DamagedRecordsError,
    Errors,
    RecordsRefusedError,
    RegentError,
    ShortageError,
    StorageError,
)
from regent.core.log_dirs import LogMoves, MovableLog, MovedLog
from regent.core.model import TopicPartition
from regent.core.replica_logs import NO_EPOCH_END_OFFSET, EpochEndOffset
from regent.core.replication.all_partitions import AllPartitions
from regent.core.replication.partition import Role
from regent.core.replication.replica_fetcher import truncation_offset
from regent.core.replication.replica_manager import ReplicaManager

log = logging.getLogger("state.change")

PIECE_BYTES = 1024 * 1024
_MAX_NAME_BYTES = 255
_FUTURE_BYTES = len(".") + 32 + len("-future")


class ReplicaAlterLogDirsManager:
    """Thread-safe, except that one thread only calls ``advance``.

    ``on_begun`` is called when there may be something to copy.
    """

    def __init__(self, replicas: ReplicaManager, moves: LogMoves) -> None:
        self.on_begun: Callable[[], None] = lambda: None
        self._replicas = replicas
        self._moves = moves
        self._quota = replicas.quotas.alter_log_dirs

    # --- requests ---

    def alter(self, paths: Mapping[TopicPartition, str]) -> Mapping[TopicPartition, Errors]:
        """Begin to move replicas to directories, which are named by their absolute paths.

        REPLICA_NOT_AVAILABLE for a replica that is not here: it will be created there. A replica
        that is in its directory stays, and a move to another one ends. It may take long.
        """
        outcomes = {
            topic_partition: self._replicas.exclusively(partial(self._alter, topic_partition, path))
            for topic_partition, path in paths.items()
        }
        self.on_begun()
        return outcomes

    def _alter(
        self, topic_partition: TopicPartition, path: str, partitions: AllPartitions
    ) -> Errors:
        if len(str(topic_partition)) + _FUTURE_BYTES > _MAX_NAME_BYTES:
            return Errors.INVALID_TOPIC_EXCEPTION
        error = self._moves.check_directory(path)
        if error is not Errors.NONE:
            return error
        partition = partitions.get(topic_partition)
        if partition is not None and partition.role is Role.OFFLINE:
            return Errors.KAFKA_STORAGE_ERROR
        if partition is None or partition.log is None:
            self._moves.prefer(topic_partition, path)
            return Errors.REPLICA_NOT_AVAILABLE
        try:
            self._moves.begin(topic_partition, path)
        except StorageError as error:
            log.error("%s: cannot move the log to %s: %s", topic_partition, path, error)
            return Errors.KAFKA_STORAGE_ERROR
        return Errors.NONE

    # --- the copy ---

    def pause_ms(self, now_ms: int) -> int:
        """Return how long to wait before the next piece, because of the rate limit."""
        return self._replicas.exclusively(lambda _: self._quota.pause_ms(now_ms))

    def moving(self) -> Sequence[TopicPartition]:
        """Return the replicas that are being moved."""
        return self._moves.moving()

    def advance(self, topic_partition: TopicPartition, now_ms: int) -> bool:
        """Copy the next piece of a log, and exchange the logs if nothing is missing.

        False: it cannot go on now.
        """
        moved = self._moves.get(topic_partition)
        if moved is None:
            return False
        try:
            return self._advance(topic_partition, moved, now_ms)
        except DamagedRecordsError as error:
            self._replicas.on_records_damaged(topic_partition, error)
            self._give_up(topic_partition, error)
        except RecordsRefusedError as error:
            self._give_up(topic_partition, error)
        except ShortageError:
            pass  # its directory has logged it
        except StorageError as error:
            log.warning("%s: the move of the log must wait: %s", topic_partition, error)
        return False

    def _advance(self, topic_partition: TopicPartition, moved: MovedLog, now_ms: int) -> bool:
        current, future = moved
        truncations = current.truncations
        cut_back(future, current)
        end = current.log_end_offset
        piece = _read(moved, end)
        if current.truncations != truncations:
            return True
        if piece:
            future.append_as_follower(piece)
            self._replicas.exclusively(lambda _: self._quota.record(len(piece), now_ms))
            self._moves.flush_segments(topic_partition)
        if future.log_end_offset < end:
            return True
        self._moves.prepare(topic_partition)
        is_done = self._replicas.exclusively(
            partial(self._finish, topic_partition, moved, truncations)
        )
        return is_done or bool(piece)

    def _finish(
        self,
        topic_partition: TopicPartition,
        moved: MovedLog,
        truncations: int,
        partitions: AllPartitions,
    ) -> bool:
        """Copy what was appended meanwhile, if it is little, and exchange the logs."""
        current, future = moved
        partition = partitions.get(topic_partition)
        if (
            partition is None
            or partition.log is not current
            or current.truncations != truncations
            or self._moves.get(topic_partition) != moved
        ):
            return False
        rest = _read(moved, current.log_end_offset)
        if rest:
            future.append_as_follower(rest)
        if not self._moves.replace_current_with_future(topic_partition):
            return False
        partition.use(future)
        return True

    def _give_up(self, topic_partition: TopicPartition, error: RegentError) -> None:
        """End a move because records are damaged; a damaged log that is replaced has no copy."""
        log.error("%s: the move of the log cannot go on: %s", topic_partition, error)
        self._moves.cancel(topic_partition)


def cut_back(future: MovableLog, current: MovableLog) -> None:
    """Reduce a future log to what it has in common with the current log."""
    start = current.log_start_offset
    if not future.log_start_offset <= start <= future.log_end_offset:
        future.truncate_fully_and_start_at(start)
    future.advance_log_start_offset(start)
    while future.log_end_offset > start:
        epoch, end = future.latest_epoch, future.log_end_offset  # in this sequence
        theirs = current.end_offset_for_epoch(epoch)
        if theirs == NO_EPOCH_END_OFFSET:  # the current log lost its latest epochs, or has none
            theirs = EpochEndOffset(current.latest_epoch, current.log_end_offset)
        own = future.end_offset_for_epoch(theirs.leader_epoch)
        offset = truncation_offset(theirs, own, end)
        if offset >= end:
            return
        future.truncate_to(offset)


def _read(moved: MovedLog, limit: int) -> bytes:
    """Return the next piece of the current log, before offset ``limit``."""
    current, future = moved
    if future.log_end_offset >= limit:
        return b""
    return bytes(current.read(future.log_end_offset, PIECE_BYTES, limit, at_least_one=True).read())
