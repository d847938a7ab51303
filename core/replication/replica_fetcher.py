"""The follower's side of replication: the fetches to send to each leader, and their answers.

Mirrors ``kafka.server.AbstractFetcherThread`` and ``ReplicaFetcherThread``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from regent.core.errors import DamagedRecordsError, Errors, RecordsRefusedError, StorageError
from regent.core.model import NO_EPOCH, BrokerId, TopicPartition
from regent.core.protocol.broker import (
    SESSION_ERRORS,
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchResponse,
)
from regent.core.repeated_lines import RepeatedLines
from regent.core.replica_logs import (
    NO_EPOCH_END_OFFSET,
    UNKNOWN_OFFSET,
    EpochEndOffset,
    PartitionLog,
)
from regent.core.replication.all_partitions import FOR_NOW, AllPartitions
from regent.core.replication.delayed_operation import Slices, slices_of_records
from regent.core.replication.fetch_session import FetchSessionHandler
from regent.core.replication.metadata_cache import MetadataCache
from regent.core.replication.metadata_view import inter_broker_endpoint
from regent.core.replication.partition import Partition
from regent.core.replication.replication_quota import ReplicationQuota
from regent.core.replication.replication_settings import ReplicationSettings

log = logging.getLogger("state.change")


class ReplicaFetcher:
    """The partitions this broker follows, by leader. Not thread-safe."""

    def __init__(
        self,
        broker_id: BrokerId,
        partitions: AllPartitions,
        cache: MetadataCache,
        quota: ReplicationQuota,
        settings: ReplicationSettings,
    ) -> None:
        self._partitions = partitions
        self._cache = cache
        self._quota = quota
        self._template = settings.fetch_request(broker_id)
        self._idle_wait_ms = settings.idle_fetch_wait_ms
        self._partition_max_bytes = settings.replica_fetch_max_bytes
        self._backoff_ms = settings.replica_fetch_backoff_ms
        self._inter_broker = (
            settings.inter_broker_listener_name,
            settings.inter_broker_security_protocol,
        )
        self._followed: dict[BrokerId, FetchSessionHandler] = {}
        self._leaders: dict[TopicPartition, BrokerId] = {}
        self._unreadable: dict[TopicPartition, StorageError] = {}
        self._lines = RepeatedLines()

    def follow(self, partition: Partition) -> None:
        """Start fetching a partition that has just become a follower, and is not followed yet."""
        topic_partition = partition.topic_partition
        self._leaders[topic_partition] = partition.leader
        partition.local_log.fence(partition.leader_epoch)
        followed = self._followed.get(partition.leader)
        if followed is None:
            followed = FetchSessionHandler(self._position, self._idle_wait_ms)
            self._followed[partition.leader] = followed
        followed.add(partition)

    def unfollow(self, topic_partition: TopicPartition) -> None:
        """Stop fetching a partition, and appending what was fetched. No-op if not followed."""
        leader = self._leaders.pop(topic_partition, None)
        if leader is not None:
            partition = self._partitions.get(topic_partition)
            if partition is not None and partition.log is not None:
                partition.log.fence(NO_EPOCH)
            followed = self._followed[leader]
            followed.remove(topic_partition)
            if not followed:
                del self._followed[leader]

    def leaders(self) -> Mapping[BrokerId, str]:
        """Return where the leaders that are registered serve followers."""
        brokers = self._cache.snapshot.brokers
        return {
            leader: endpoint
            for leader in self._followed
            if (broker := brokers.get(leader)) is not None
            and (endpoint := inter_broker_endpoint(broker, *self._inter_broker)) is not None
        }

    def outdated(self) -> Collection[BrokerId]:
        """Return the leaders whose present fetch lacks what has changed since it was sent."""
        return {leader for leader, followed in self._followed.items() if followed.has_changes}

    @property
    def max_lag(self) -> int:
        """The largest lag of a replica, in committed records; checks all replicas."""
        partitions = map(self._partitions.get, self._leaders)
        return max((p.lag for p in partitions if p is not None), default=0)

    def request(self, leader: BrokerId, broker_epoch: int, now_ms: int) -> FetchRequest | None:
        """Return the next fetch from ``leader``; None: there is nothing to fetch now."""
        followed = self._followed.get(leader)
        if followed is None or leader not in self._cache.snapshot.brokers:
            return None
        request = followed.request(self._template, broker_epoch, now_ms)
        unreadable, self._unreadable = self._unreadable, {}
        for topic_partition, error in unreadable.items():
            if self._partitions.fail(topic_partition, error) is FOR_NOW:
                followed.back_off(topic_partition, now_ms, self._backoff_ms)
        return request

    def delay_ms(self, leader: BrokerId, now_ms: int) -> int | None:
        """Return how long until there is something to fetch from ``leader``; None: unknown."""
        followed = self._followed.get(leader)
        return None if followed is None else followed.delay_ms(now_ms)

    def _position(self, partition: Partition) -> FetchPartition | None:
        topic_partition, log = partition.topic_partition, partition.local_log
        try:
            latest_epoch = log.latest_epoch  # before the offsets
            return FetchPartition(
                topic_partition.partition,
                partition.leader_epoch,
                log.log_end_offset,
                latest_epoch,
                log.log_start_offset,
                self._partition_max_bytes,
            )
        except StorageError as error:
            self._unreadable[topic_partition] = error.with_traceback(None)
            return None

    def on_response(
        self, leader: BrokerId, request: FetchRequest, response: FetchResponse, now_ms: int
    ) -> Slices[None]:
        """Process an answer; partitions without an answer, or with an error, back off.

        Records are appended between two slices: the disk must not stop the producers. Replicas may
        change meanwhile, as they may before the answer comes; their logs are fenced. So nothing
        that was found before an append is acted on after it.
        """
        followed = self._followed.get(leader)
        if followed is None:
            return
        asked = followed.on_response(request, response)
        if response.error_code in SESSION_ERRORS:
            return  # the next request lists everything
        answers = dict(response.partitions())
        if request.is_incremental and response.error_code is Errors.NONE:
            # A partition without an answer has nothing new.
            asked = {
                topic_partition: asked[topic_partition]
                for topic_partition in answers
                if topic_partition in asked
            }
        sizes = (
            (topic_partition, _size(answers.get(topic_partition))) for topic_partition in asked
        )

        for portion in slices_of_records(sizes):
            taken = _Taken(leader, followed, response.error_code, now_ms)
            for topic_partition in portion:
                partition, row = asked[topic_partition]
                if followed.get(topic_partition) is partition:  # else it was created again
                    answer = answers.get(topic_partition)
                    self._note(
                        taken, partition, answer, partial(_take, taken, partition, row, answer)
                    )
            if taken.appends:
                yield taken.append
                for append in taken.appends:
                    self._end_append(taken, append)
            self._log_errors(taken)
            self._log_moved(leader, taken.moved)

    def _end_append(self, taken: _Taken, append: _Append) -> None:
        """Go on after an append, unless the replica has changed meanwhile."""
        partition, topic_partition = append.partition, append.partition.topic_partition
        if self._partitions.get(topic_partition) is not partition:
            return  # it was deleted
        is_followed = taken.followed.get(topic_partition) is partition
        if partition.log is not append.log:  # it has failed, or is in another directory now
            if is_followed:
                taken.followed.on_change(topic_partition)  # the leader sends the records again
        elif is_followed and partition.leader_epoch == append.leader_epoch:
            self._note(taken, partition, append.answer, partial(_finish, taken, append))
        elif isinstance(append.error, StorageError):
            self._partitions.fail(topic_partition, append.error)

    def _note(
        self,
        taken: _Taken,
        partition: Partition,
        answer: FetchedPartition | None,
        take: Callable[[], Errors | None],
    ) -> None:
        """Process one answer with ``take``, which returns None if the rest follows later."""
        topic_partition = partition.topic_partition
        error = self._attempt(partition, take)
        if error is Errors.NONE:
            taken.followed.end_back_off(topic_partition)
            self._throttle(taken.followed, partition, answer, taken.now_ms)
        elif error is not None:
            taken.errors[topic_partition] = error
            if error is Errors.FENCED_LEADER_EPOCH:
                self.unfollow(topic_partition)  # a LeaderAndIsr with the new epoch follows
            else:
                taken.followed.back_off(topic_partition, taken.now_ms, self._backoff_ms)

    def _log_moved(self, leader: BrokerId, moved: Sequence[str]) -> None:
        if moved:
            log.warning(
                "[Broker id=%d] Truncating %d logs to the offsets of leader %d, the first: %s",
                self._template.replica_id,
                len(moved),
                leader,
                moved[0],
            )

    def _attempt(self, partition: Partition, take: Callable[[], Errors | None]) -> Errors | None:
        """Return the error to back off for."""
        try:
            return take()
        except RecordsRefusedError as refused:
            return refused.error_code
        except StorageError as failure:
            outcome = self._partitions.fail(partition.topic_partition, failure)
            return FOR_NOW if outcome is FOR_NOW else Errors.NONE
        except DamagedRecordsError as error_here:
            self._partitions.on_damaged(partition.topic_partition, error_here)
            return Errors.NONE

    def _throttle(
        self,
        followed: FetchSessionHandler,
        partition: Partition,
        answer: FetchedPartition | None,
        now_ms: int,
    ) -> None:
        """Delay a throttled replica that exceeded its quota and is still behind."""
        topic_partition = partition.topic_partition
        size = _size(answer)
        if not size or not self._quota.is_throttled(topic_partition):
            return
        self._quota.record(size, now_ms)
        pause_ms = self._quota.pause_ms(now_ms)
        if pause_ms > 0 and partition.lag > 0 and followed.get(topic_partition) is not None:
            followed.delay(topic_partition, now_ms + pause_ms)

    def _log_errors(self, taken: _Taken) -> None:
        leader, now_ms = taken.leader, taken.now_ms
        first = next(iter(taken.errors.items()), None)
        if first is not None and first[1] is Errors.CLUSTER_AUTHORIZATION_FAILED:
            if self._lines.is_due((leader, first[1]), now_ms):
                log.warning(_NOT_ALLOWED, self._template.replica_id, leader)
        elif first is not None and self._lines.is_due((leader, *first), now_ms):
            topic_partition, error = first
            log.info(
                "[Broker id=%d] Error in fetch of %d partitions from leader %d, the first: %s, %s",
                self._template.replica_id,
                len(taken.errors),
                leader,
                topic_partition,
                error.name,
            )


_NOT_ALLOWED: Final = (
    "[Broker id=%d] Leader %d does not let this broker follow. If this broker is not registered"
    " now, it follows when it is again; else its user at the brokers' listener needs the ACL"
    " ClusterAction on the cluster, or must be one of super_users"
)


def _size(answer: FetchedPartition | None) -> int:
    return 0 if answer is None else answer.records.size


def _is_expected(partition: Partition, row: FetchPartition) -> bool:
    """Whether a replica is unchanged since it sent the fetch. Raises ``StorageError``."""
    log = partition.local_log
    epochs = partition.leader_epoch, log.latest_epoch  # before the offset
    expected = row.current_leader_epoch, row.last_fetched_epoch
    return epochs == expected and log.log_end_offset == row.fetch_offset


class _Append:
    """Records of an answer, to be appended without the lock of the replicas."""

    __slots__ = ("answer", "error", "leader_epoch", "log", "partition")

    def __init__(self, partition: Partition, answer: FetchedPartition) -> None:
        self.partition = partition
        self.answer = answer
        self.log = partition.local_log
        self.leader_epoch = partition.leader_epoch
        self.error: RecordsRefusedError | StorageError | DamagedRecordsError | None = None

    def run(self) -> None:
        """Append them, and keep the error."""
        try:
            self.log.append_as_follower(self.answer.records.read(), self.leader_epoch)
        except (RecordsRefusedError, StorageError, DamagedRecordsError) as error:
            self.error = error.with_traceback(None)  # which refers to this object


@dataclass(slots=True)
class _Taken:
    """A portion of an answer, and what becomes of it.

    ``moved`` lists the logs that lose records although no leader epoch says so. ``errors`` is for
    the log: what follows from them is done.
    """

    leader: BrokerId
    followed: FetchSessionHandler
    error_code: Errors
    now_ms: int
    appends: list[_Append] = field(default_factory=list)
    errors: dict[TopicPartition, Errors] = field(default_factory=dict)
    moved: list[str] = field(default_factory=list)

    def append(self) -> None:
        """Append the records."""
        for append in self.appends:
            append.run()


def _take(
    taken: _Taken, partition: Partition, row: FetchPartition, answer: FetchedPartition | None
) -> Errors | None:
    """Process the answer to ``row`` if still current; return the error to back off for.

    None: its records are appended later. Raises ``RecordsRefusedError`` and ``StorageError``.
    """
    if not _is_expected(partition, row):
        taken.followed.on_change(partition.topic_partition)
        return Errors.NONE
    if taken.error_code is not Errors.NONE:
        return taken.error_code
    if answer is None:
        return Errors.UNKNOWN_SERVER_ERROR
    return _follow(taken, partition, answer)


def _follow(taken: _Taken, partition: Partition, answer: FetchedPartition) -> Errors | None:
    """Truncate or restart a log as its leader's answer requires, or prepare the append."""
    topic_partition, replica_log = partition.topic_partition, partition.local_log
    followed = taken.followed
    end = replica_log.log_end_offset
    if answer.error_code is Errors.OFFSET_OUT_OF_RANGE and _go_where_leader_is(partition, answer):
        offsets = f"{answer.log_start_offset} to {answer.log_end_offset}"
        taken.moved.append(f"{topic_partition} ended at {end}, its leader has offsets {offsets}")
        followed.on_change(topic_partition)
        return Errors.NONE
    if answer.error_code is not Errors.NONE:
        return answer.error_code
    if answer.diverging_epoch != NO_EPOCH:
        leaders = EpochEndOffset(answer.diverging_epoch, answer.diverging_end_offset)
        own = replica_log.end_offset_for_epoch(leaders.leader_epoch)
        _truncate(replica_log, truncation_offset(leaders, own, end), answer.log_start_offset)
        # Do not append yet: the rest of the log may still differ from the leader's.
        partition.on_truncation()
        followed.on_change(topic_partition)
        return Errors.NONE
    if answer.records.size > 0:
        if replica_log.log_start_offset < end == answer.log_start_offset:
            # The first batch may begin earlier, with another epoch than the local records.
            replica_log.truncate_fully_and_start_at(end)
            partition.on_truncation()
        taken.appends.append(_Append(partition, answer))
        return None
    return _adopt_offsets(taken, partition, answer)


def _finish(taken: _Taken, append: _Append) -> Errors:
    """Go on after an append. Raises its error."""
    if append.error is not None:
        raise append.error
    taken.followed.on_change(append.partition.topic_partition)
    return _adopt_offsets(taken, append.partition, append.answer)


def _adopt_offsets(taken: _Taken, partition: Partition, answer: FetchedPartition) -> Errors:
    """Adopt the leader's high watermark and log start offset."""
    replica_log = partition.local_log
    partition.follow_high_watermark(answer.high_watermark)
    start = min(answer.log_start_offset, partition.high_watermark)
    if start > replica_log.log_start_offset:
        replica_log.advance_log_start_offset(start)
        taken.followed.on_change(partition.topic_partition)
    return Errors.NONE


def _go_where_leader_is(partition: Partition, answer: FetchedPartition) -> bool:
    """Move the end of a log into the offsets of its leader's log; False: it was inside already."""
    replica_log = partition.local_log
    end = replica_log.log_end_offset
    is_of_later_epoch = replica_log.latest_epoch > partition.leader_epoch
    if answer.log_start_offset > end:
        replica_log.truncate_fully_and_start_at(answer.log_start_offset)
    elif answer.log_end_offset != UNKNOWN_OFFSET and (
        is_of_later_epoch or answer.log_end_offset < end
    ):
        # The leader knows none of our epochs: we have none, or they are from before the topic was
        # lost and created again.
        own = replica_log.end_offset_for_epoch(partition.leader_epoch)
        ours = end if own == NO_EPOCH_END_OFFSET else own.end_offset
        _truncate(replica_log, min(ours, answer.log_end_offset), answer.log_start_offset)
    else:
        return False
    partition.on_truncation()
    return True


def _truncate(replica_log: PartitionLog, offset: int, leader_start: int) -> None:
    """Truncate a follower's log; if nothing of it is left, begin at the leader's log start offset.

    If it began at ``offset``, it would be in sync at once, without the leader's earlier records.
    Raises ``DamagedRecordsError`` for a stray log that would lose committed records.
    """
    if offset < replica_log.stray_high_watermark:
        raise DamagedRecordsError(
            f"the log was stray, and the leader lacks the committed offsets {offset} to"
            f" {replica_log.stray_high_watermark - 1}: the log is renamed and kept"
        )
    if offset < replica_log.log_start_offset and leader_start >= 0:
        replica_log.truncate_fully_and_start_at(leader_start)
    else:
        replica_log.truncate_to(offset)


def truncation_offset(leaders: EpochEndOffset, own: EpochEndOffset, log_end_offset: int) -> int:
    """Return the offset to which a follower truncates its log (KIP-101, KIP-279).

    ``leaders``: the leader's newest epoch up to the follower's, with its end offset. ``own``: the
    same from the follower's log. If the follower does not have that epoch, the next fetch repeats
    the comparison with an older one.
    """
    if own == NO_EPOCH_END_OFFSET:
        return min(leaders.end_offset, log_end_offset)
    if own.leader_epoch != leaders.leader_epoch:
        return min(own.end_offset, log_end_offset)
    return min(own.end_offset, leaders.end_offset, log_end_offset)
