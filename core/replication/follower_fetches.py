"""Answers to followers: where they stand counts, unless an epoch says otherwise.

In a session a follower lists only what changed. The rest it fetches silently, and nobody looks at
it until something happens to it here.

Mirrors ``kafka.cluster.Partition.fetchRecords`` for followers.
"""

from __future__ import annotations

from collections.abc import Mapping

from core.errors import Errors
from core.model import NO_EPOCH, UNKNOWN_BROKER_EPOCH, BrokerId, TopicPartition
from core.ports import ReplicaLogs
from core.protocol.broker import (
    NO_SESSION_ID,
    FetchedPartition,
    FetchedTopic,
    FetchPartition,
    FetchRequest,
    FetchResponse,
)
from core.protocol.control import TopicId
from core.replication.fetch_sessions import FetchSession, FetchSessions, Position
from core.replication.led_partitions import LedPartitions
from core.replication.metadata_cache import MetadataCache
from core.replication.partition import Partition, Role


class FollowerFetches:
    """Reads for followers. ``hosted`` is every replica of this broker, led or not."""

    def __init__(
        self,
        logs: ReplicaLogs,
        cache: MetadataCache,
        hosted: Mapping[TopicPartition, Partition],
        led: LedPartitions,
        sessions: FetchSessions,
    ) -> None:
        self._logs = logs
        self._cache = cache
        self._hosted = hosted
        self._led = led
        self._sessions = sessions
        self._fetching_epochs: dict[BrokerId, int] = {}  # the newest life seen of each follower

    def fetch(self, request: FetchRequest, now_ms: int) -> FetchResponse:
        """Answer a follower; refused as a whole when a newer life of it is known (KIP-903)."""
        if self._is_of_earlier_life(request):
            return FetchResponse(Errors.STALE_BROKER_EPOCH)
        if not request.is_incremental:
            return self._fetch_all(request, now_ms)
        session = self._sessions.resume(request)
        if isinstance(session, Errors):
            return FetchResponse(session)
        return self._fetch_changes(request, session, now_ms)

    def _fetch_all(self, request: FetchRequest, now_ms: int) -> FetchResponse:
        session = self._sessions.begin(request, self._cache.snapshot.brokers.keys(), now_ms)
        answers: dict[TopicPartition, FetchedPartition] = {}
        for topic in request.topics:
            for row in topic.partitions:
                name = TopicPartition(topic.topic_name, row.partition_index)
                position = Position(topic.topic_id, row)
                answers[name] = self._fetch(name, position, request, session, now_ms)
                if session is not None:
                    session.positions[name] = position
                    session.is_news(name, answers[name])
        return _response(answers, session)

    def _fetch_changes(
        self, request: FetchRequest, session: FetchSession, now_ms: int
    ) -> FetchResponse:
        for name in request.forgotten():
            session.forget(name)
            self._end_silence(name, request.replica_id)
        for topic in request.topics:
            for row in topic.partitions:
                name = TopicPartition(topic.topic_name, row.partition_index)
                session.positions[name] = Position(topic.topic_id, row)
                session.unsettled[name] = None
        unsettled, session.unsettled = session.unsettled, {}
        answers: dict[TopicPartition, FetchedPartition] = {}
        for name in unsettled:
            answer = self._fetch(name, session.positions[name], request, session, now_ms)
            if session.is_news(name, answer):
                answers[name] = answer
        session.last_fetch.at_ms = now_ms  # of all the others
        return _response(answers, session)

    def _end_silence(self, name: TopicPartition, replica: BrokerId) -> None:
        partition = self._led.get(name)
        follower = None if partition is None else partition.followers.get(replica)
        if follower is not None:
            follower.end_silence()

    def _is_of_earlier_life(self, request: FetchRequest) -> bool:
        if request.replica_epoch == UNKNOWN_BROKER_EPOCH:
            return False
        seen = self._fetching_epochs.get(request.replica_id, UNKNOWN_BROKER_EPOCH)
        registered = self._cache.snapshot.brokers.get(request.replica_id)
        newest = max(seen, registered.broker_epoch if registered else UNKNOWN_BROKER_EPOCH)
        if registered is not None:  # a stranger may call itself anything: it is not remembered
            self._fetching_epochs[request.replica_id] = max(seen, request.replica_epoch)
        return request.replica_epoch < newest

    def _fetch(
        self,
        name: TopicPartition,
        position: Position,
        request: FetchRequest,
        session: FetchSession | None,
        now_ms: int,
    ) -> FetchedPartition:
        row = position.row
        partition = self._led.get(name)
        if partition is None:
            return _failed(row, self._why_not_led(name, position.topic_id, row))
        follower = partition.followers.get(request.replica_id)
        error = _check_fetch(partition, position.topic_id, row)
        if error is Errors.NONE and follower is None:
            # Its leader epoch is right, so it may know of an assignment we do not (KAFKA-13837).
            error = Errors.UNKNOWN_LEADER_EPOCH
        if follower is None:
            return _failed(row, error)
        follower.end_silence()
        if error is not Errors.NONE:
            return _failed(row, error)
        answer = self._read(partition, row)
        if answer.error_code is not Errors.NONE or answer.diverging_epoch != NO_EPOCH:
            return answer  # where its log stands is not known yet (KAFKA-13141)
        got_on = follower.on_fetch(
            row.fetch_offset,
            row.log_start_offset,
            request.replica_epoch,
            self._logs.log_end_offset(name),
            now_ms,
            None if session is None else session.last_fetch,
        )
        self._led.on_fetch(partition, request.replica_id, got_on=got_on, now_ms=now_ms)
        if session is not None and request.replica_id not in partition.isr:
            session.unsettled[name] = None  # until it may join: others decide when that is
        return answer._replace(high_watermark=partition.high_watermark)

    def _why_not_led(
        self, name: TopicPartition, topic_id: TopicId | None, row: FetchPartition
    ) -> Errors:
        hosted = self._hosted.get(name)
        if hosted is None:
            is_known = name in self._cache.snapshot.partitions
            return Errors.NOT_LEADER_OR_FOLLOWER if is_known else Errors.UNKNOWN_TOPIC_OR_PARTITION
        if hosted.role is Role.OFFLINE:
            return Errors.KAFKA_STORAGE_ERROR
        error = _check_fetch(hosted, topic_id, row)
        return Errors.NOT_LEADER_OR_FOLLOWER if error is Errors.NONE else error

    def _read(self, partition: Partition, row: FetchPartition) -> FetchedPartition:
        name = partition.topic_partition
        start, end = self._logs.log_start_offset(name), self._logs.log_end_offset(name)
        is_diverging = False
        epoch, end_of_epoch = NO_EPOCH, -1
        if row.last_fetched_epoch != NO_EPOCH:
            epoch, end_of_epoch = self._logs.end_offset_for_epoch(name, row.last_fetched_epoch)
            if end_of_epoch < 0 or row.fetch_offset < start:
                return _failed(row, Errors.OFFSET_OUT_OF_RANGE)
            is_diverging = epoch < row.last_fetched_epoch or end_of_epoch < row.fetch_offset
        if not is_diverging:
            if not start <= row.fetch_offset <= end:
                return _failed(row, Errors.OFFSET_OUT_OF_RANGE)
            epoch, end_of_epoch = NO_EPOCH, -1
        return FetchedPartition(
            row.partition_index, Errors.NONE, partition.high_watermark, start, epoch, end_of_epoch
        )


def _check_fetch(partition: Partition, topic_id: TopicId | None, row: FetchPartition) -> Errors:
    if None not in (topic_id, partition.topic_id) and topic_id != partition.topic_id:
        return Errors.INCONSISTENT_TOPIC_ID
    return _check_leader_epoch(partition, row)


def _check_leader_epoch(partition: Partition, row: FetchPartition) -> Errors:
    if row.current_leader_epoch < partition.leader_epoch:
        return Errors.FENCED_LEADER_EPOCH
    if row.current_leader_epoch > partition.leader_epoch:
        return Errors.UNKNOWN_LEADER_EPOCH
    return Errors.NONE


def _failed(row: FetchPartition, error: Errors) -> FetchedPartition:
    return FetchedPartition(row.partition_index, error, high_watermark=-1, log_start_offset=-1)


def _response(
    answers: Mapping[TopicPartition, FetchedPartition], session: FetchSession | None
) -> FetchResponse:
    topics: dict[str, list[FetchedPartition]] = {}
    for name, answer in answers.items():
        topics.setdefault(name.topic, []).append(answer)
    return FetchResponse(
        Errors.NONE,
        tuple(FetchedTopic(topic, tuple(rows)) for topic, rows in topics.items()),
        NO_SESSION_ID if session is None else session.session_id,
    )
