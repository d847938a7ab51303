"""Answers fetches of followers and records their positions.

In a session a follower lists only the partitions that changed. The others are not checked until
they change here.

When a leader dies, the new leader and its followers receive LeaderAndIsr at different times. So a
follower often lists a leader epoch that is not known here yet, or one that ended. Kafka answers
with an error at once, and the follower tries again later. Here the fetch waits for the same epoch,
and the error is the answer only if the wait ends before.

Mirrors ``kafka.cluster.Partition.fetchRecords`` for followers and ``DelayedFetch``. A follower's
position counts when its fetch arrives, not when it is answered (KAFKA-15221).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import TypeAlias

from regent.core.errors import DamagedRecordsError, Errors, StorageError
from regent.core.model import NO_EPOCH, UNKNOWN_BROKER_EPOCH, BrokerId, TopicPartition
from regent.core.protocol.broker import (
    FetchedPartition,
    FetchedTopic,
    FetchPartition,
    FetchRequest,
    FetchResponse,
)
from regent.core.protocol.control import TopicId
from regent.core.records import NO_RECORDS, MemoryRecords, Records
from regent.core.replica_logs import PartitionLog
from regent.core.replication.all_partitions import AllPartitions, Prefetches, check_position
from regent.core.replication.delayed_operation import (
    Answer,
    DelayedOperation,
    DelayedOperationPurgatory,
)
from regent.core.replication.fetch_session import FetchSession, FetchSessionCache
from regent.core.replication.leader_partitions import LeaderPartitions
from regent.core.replication.metadata_cache import MetadataCache
from regent.core.replication.partition import Partition, Replica
from regent.core.replication.replication_quota import ReplicationQuota

RespondToFollower: TypeAlias = Callable[[FetchResponse], None]
_OTHER_EPOCH = (Errors.FENCED_LEADER_EPOCH, Errors.UNKNOWN_LEADER_EPOCH)
_STAYING_BYTES = 64 * 1024  # less is faster to read than to send from a file


class DelayedFollowerFetch(DelayedOperation):
    """One fetch of a follower; the sessions wake it.

    ``starved`` are partitions whose records had no room, or are not in memory yet: they come first
    in the next fetch, so that busy partitions do not starve the others.
    """

    kind = "Fetch"

    def __init__(
        self,
        fetches: FollowerFetches,
        request: FetchRequest,
        session: FetchSession,
        respond: RespondToFollower,
        now_ms: int,
    ) -> None:
        super().__init__(())
        self.began_ms = now_ms
        self.request = request
        self.session = session
        self.starved: dict[TopicPartition, None] = {}
        self.size = 0
        self.answers: dict[TopicPartition, FetchedPartition] = {}
        self._fetches = fetches
        self._respond = respond
        self._is_urgent = False
        self._waits_for_epochs = session.is_kept and request.max_wait_ms > 0

    def on_changes(self, topic_partitions: Collection[TopicPartition]) -> bool:
        """Read changed partitions again; return whether the answer is due."""
        for topic_partition in topic_partitions:
            self._fetches.check_again(self, topic_partition)
        return self.is_due

    def on_expiry(self) -> None:
        """Answer with errors where the leader epochs still differ.

        A follower that ends the wait early, to list more, does not want them.
        """
        self._waits_for_epochs = False
        self.on_changes(tuple(self.session.in_other_epoch))

    def answer(self) -> Answer:
        """Return the call that answers, with the present high watermarks."""
        self._fetches.on_answer(self)
        return partial(self._respond, _response(self.answers, self.session))

    def take(self, topic_partition: TopicPartition, answer: FetchedPartition) -> None:
        """Keep the answer for a partition.

        A new high watermark alone can wait; a raised log start offset cannot, because a client
        waits for it (DeleteRecords).
        """
        self.size += answer.records.size
        self.session.in_other_epoch.pop(topic_partition, None)
        if not self.session.is_news(topic_partition, answer):
            return
        if self._waits_for_epochs and answer.error_code in _OTHER_EPOCH:
            self.session.in_other_epoch[topic_partition] = None
            self.answers.pop(topic_partition, None)
            return
        self.answers[topic_partition] = answer
        row = self.session.positions[topic_partition].row
        if not _is_plain(answer) or answer.log_start_offset > row.log_start_offset:
            self._is_urgent = True

    def room(self, row: FetchPartition) -> int:
        """Return for how many bytes of a partition the answer has room."""
        return min(self.request.max_bytes - self.size, row.max_bytes)

    @property
    def is_due(self) -> bool:
        """Whether it is answered now."""
        return self._is_urgent or self.size >= self.request.min_bytes


class FollowerFetches:
    """Reads for followers, of the partitions this broker leads. Not thread-safe."""

    def __init__(
        self,
        partitions: AllPartitions,
        leaders: LeaderPartitions,
        cache: MetadataCache,
        sessions: FetchSessionCache,
        delayed: DelayedOperationPurgatory,
        quota: ReplicationQuota,
        prefetches: Prefetches,
    ) -> None:
        self._partitions = partitions
        self._leaders = leaders
        self._cache = cache
        self._sessions = sessions
        self._delayed = delayed
        self._quota = quota
        self._prefetches = prefetches
        self._fetching_epochs: dict[BrokerId, int] = {}  # the newest broker epoch of each follower

    def fetch(
        self, request: FetchRequest, now_ms: int, respond: RespondToFollower
    ) -> DelayedOperation | None:
        """Answer a follower, or return the operation that waits for records.

        Refused as a whole if a newer broker epoch of the follower is known (KIP-903).
        """
        session = self._session(request, now_ms)
        if isinstance(session, Errors):
            self._delayed.answer(partial(respond, FetchResponse(session)))
            return None
        fetch = DelayedFollowerFetch(self, request, session, respond, now_ms)
        unsettled, session.unsettled = session.unsettled, {}
        for topic_partition in unsettled:
            fetch.take(topic_partition, self._fetch(fetch, topic_partition, now_ms))
        session.unsettled = {**fetch.starved, **session.unsettled}
        session.last_fetch.at_ms = now_ms  # for all partitions not listed
        if fetch.is_due or request.max_wait_ms <= 0 or not session.positions:
            self._delayed.answer(partial(respond, _response(fetch.answers, session)))
            return None
        return self._sessions.hold(session, fetch)

    def _session(self, request: FetchRequest, now_ms: int) -> FetchSession | Errors:
        if self._is_of_earlier_life(request):
            return Errors.STALE_BROKER_EPOCH
        if not request.is_incremental:
            return self._sessions.begin(request, self._cache.snapshot.brokers.keys(), now_ms)
        session = self._sessions.resume(request)
        if isinstance(session, Errors):
            return session
        for topic in request.forgotten_topics:
            for topic_partition in session.forget(topic):
                follower = self._follower(topic_partition, request.replica_id)
                if follower is not None and follower.silent_fetch is session.last_fetch:
                    follower.end_silence()  # else another session has listed it since
        session.note(request)
        return session

    def _follower(self, topic_partition: TopicPartition, replica: BrokerId) -> Replica | None:
        partition = self._partitions.get(topic_partition)
        return None if partition is None else partition.followers.get(replica)

    def _is_of_earlier_life(self, request: FetchRequest) -> bool:
        if request.replica_epoch == UNKNOWN_BROKER_EPOCH:
            return False
        seen = self._fetching_epochs.get(request.replica_id, UNKNOWN_BROKER_EPOCH)
        registered = self._cache.snapshot.brokers.get(request.replica_id)
        newest = max(seen, registered.broker_epoch if registered else UNKNOWN_BROKER_EPOCH)
        if registered is not None:  # an unregistered sender may claim any id
            self._fetching_epochs[request.replica_id] = max(seen, request.replica_epoch)
        return request.replica_epoch < newest

    def check_again(self, fetch: DelayedFollowerFetch, topic_partition: TopicPartition) -> None:
        """Read a changed partition for a fetch that waits.

        The position counts from when the fetch arrived, if this broker has the leader epoch now,
        and the follower has not started again meanwhile.
        """
        position = fetch.session.positions.get(topic_partition)
        if position is not None:
            before = fetch.answers.get(topic_partition)
            fetch.size -= 0 if before is None else before.records.size
            is_uncounted = topic_partition in fetch.session.in_other_epoch
            may_count = is_uncounted and not self._is_of_earlier_life(fetch.request)
            now_ms = fetch.began_ms if may_count else None
            fetch.take(topic_partition, self._fetch(fetch, topic_partition, now_ms))

    def on_answer(self, fetch: DelayedFollowerFetch) -> None:
        """Add the present high watermarks to the answer of a fetch that waited."""
        session = fetch.session
        self._sessions.on_answer(session)
        for topic_partition in tuple(session.unsettled):
            row = session.positions[topic_partition].row
            answer = fetch.answers.get(topic_partition) or _nothing_new(row)
            partition = self._partitions.leader_or_error(topic_partition, row.current_leader_epoch)
            if _is_plain(answer) and isinstance(partition, Partition):
                try:
                    answer = answer._replace(
                        high_watermark=partition.high_watermark,
                        log_start_offset=partition.local_log.log_start_offset,
                    )
                except StorageError as error:
                    answer = _failed(row, self._partitions.fail(topic_partition, error))
                if session.is_news(topic_partition, answer):
                    fetch.answers[topic_partition] = answer

    def _fetch(
        self, fetch: DelayedFollowerFetch, topic_partition: TopicPartition, now_ms: int | None
    ) -> FetchedPartition:
        """Return the answer for a partition; ``now_ms`` None: the fetch was counted before."""
        position = fetch.session.positions[topic_partition]
        row = position.row
        follower = self._follower(topic_partition, fetch.request.replica_id)
        if follower is not None:
            follower.end_silence()  # from now on only fetches that list the partition count for it
        partition = self._partitions.leader_or_error(
            topic_partition, row.current_leader_epoch, position.topic_id
        )
        if isinstance(partition, Errors):
            return _failed(row, partition)
        if follower is None:
            # The sender is not a replica here, but has this leader epoch: its controller may have
            # sent it a newer assignment (KAFKA-13837).
            return _failed(row, Errors.UNKNOWN_LEADER_EPOCH)
        try:
            return self._read(fetch, partition, follower, row, now_ms)
        except (StorageError, DamagedRecordsError) as error:
            return _failed(row, self._partitions.on_error(topic_partition, error))

    def _read(
        self,
        fetch: DelayedFollowerFetch,
        partition: Partition,
        follower: Replica,
        row: FetchPartition,
        now_ms: int | None,
    ) -> FetchedPartition:
        log = partition.local_log
        error, diverging = check_position(log, row.fetch_offset, row.last_fetched_epoch)
        records: Records = NO_RECORDS
        if error is Errors.NONE and diverging.leader_epoch == NO_EPOCH:
            # With a diverging epoch its position is unknown (KAFKA-13141).
            if now_ms is not None:
                self._note(fetch, partition, follower, row, now_ms)
            records = self._throttled(fetch, partition, row)
            if row.fetch_offset < log.log_start_offset:  # retention raised it meanwhile
                error = Errors.OFFSET_OUT_OF_RANGE
        if error is not Errors.NONE:
            start, end = log.log_start_offset, log.log_end_offset
            return _failed(row, error)._replace(log_start_offset=start, log_end_offset=end)
        return FetchedPartition(
            row.partition_index,
            Errors.NONE,
            partition.high_watermark,
            log.log_start_offset,
            *diverging,
            records=records,
        )

    def _throttled(
        self, fetch: DelayedFollowerFetch, partition: Partition, row: FetchPartition
    ) -> Records:
        """Read, unless the follower is over its quota; members of the ISR are not limited."""
        topic_partition, now_ms = partition.topic_partition, fetch.began_ms
        if not self._quota.is_throttled(topic_partition):
            return self._records(fetch, partition, row)
        is_in_sync = fetch.request.replica_id in partition.isr
        if not is_in_sync and self._quota.pause_ms(now_ms) > 0:
            return NO_RECORDS
        records = self._records(fetch, partition, row)
        self._quota.record(records.size, now_ms)
        return records

    def _records(
        self, fetch: DelayedFollowerFetch, partition: Partition, row: FetchPartition
    ) -> Records:
        topic_partition, log = partition.topic_partition, partition.local_log
        offset, is_first = row.fetch_offset, fetch.size == 0
        # A follower of Kafka refuses more than a segment, and fetches the partition no more.
        room = min(fetch.room(row), log.config.segment_bytes)
        if offset >= log.log_end_offset:
            return NO_RECORDS
        recent = self._leaders.recent_appends.read(topic_partition, offset, room)
        if recent:
            return MemoryRecords(recent)
        has_room = room > 0 or is_first
        if has_room and not self._prefetches.awaits(topic_partition, log, offset, room):
            records = _read(log, offset, partition.high_watermark, room, at_least_one=is_first)
            if records.size > 0:
                return records
        fetch.starved[topic_partition] = None
        return NO_RECORDS

    def _note(
        self,
        fetch: DelayedFollowerFetch,
        partition: Partition,
        follower: Replica,
        row: FetchPartition,
        now_ms: int,
    ) -> None:
        """Note a follower's position; this may expand the ISR and raise the high watermark."""
        topic_partition, session, request = partition.topic_partition, fetch.session, fetch.request
        if row.log_start_offset != follower.log_start_offset:
            self._delayed.on_change(topic_partition)
        has_moved = follower.on_fetch(
            row.fetch_offset,
            row.log_start_offset,
            request.replica_epoch,
            partition.local_log.log_end_offset,
            now_ms,
            session.last_fetch if session.is_kept else None,
        )
        self._leaders.on_fetch(partition, request.replica_id, has_moved=has_moved, now_ms=now_ms)
        if session.is_kept and request.replica_id not in partition.isr:
            session.unsettled[topic_partition] = None  # until it joins the ISR


def _read(
    log: PartitionLog, offset: int, high_watermark: int, room: int, *, at_least_one: bool
) -> Records:
    """Read records; many committed ones stay in their file until they are sent.

    Others are read into memory at once: the log may be truncated before they are sent, and other
    records written in their place.
    """
    records = log.read(offset, room, log.log_end_offset, at_least_one=at_least_one)
    if records.size >= _STAYING_BYTES and offset < high_watermark:
        committed = log.read(offset, room, high_watermark, at_least_one=at_least_one)
        if committed.size >= _STAYING_BYTES:
            return committed
    return MemoryRecords(records.read()) if records.size > 0 else NO_RECORDS


def _is_plain(answer: FetchedPartition) -> bool:
    """Whether there is neither an error nor a diverging epoch."""
    return answer.error_code is Errors.NONE and answer.diverging_epoch == NO_EPOCH


def _nothing_new(row: FetchPartition) -> FetchedPartition:
    return FetchedPartition(row.partition_index, Errors.NONE, -1, -1)


def _failed(row: FetchPartition, error: Errors) -> FetchedPartition:
    return FetchedPartition(row.partition_index, error, high_watermark=-1, log_start_offset=-1)


def _response(
    answers: Mapping[TopicPartition, FetchedPartition], session: FetchSession
) -> FetchResponse:
    topics: dict[tuple[str, TopicId | None], list[FetchedPartition]] = {}
    for topic_partition, answer in answers.items():
        position = session.positions.get(topic_partition)
        topic = topic_partition.topic, None if position is None else position.topic_id
        topics.setdefault(topic, []).append(answer)
    return FetchResponse(
        Errors.NONE,
        tuple(FetchedTopic(name, tuple(rows), id_) for (name, id_), rows in topics.items()),
        session.session_id,
    )
