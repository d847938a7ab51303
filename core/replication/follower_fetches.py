"""Answers to followers: where they stand counts, unless an epoch says otherwise.

Mirrors ``kafka.cluster.Partition.fetchRecords`` for followers.
"""

from __future__ import annotations

from collections.abc import Mapping

from core.errors import Errors
from core.model import NO_EPOCH, UNKNOWN_BROKER_EPOCH, BrokerId, TopicPartition
from core.ports import ReplicaLogs
from core.protocol.broker import (
    FetchedPartition,
    FetchedTopic,
    FetchPartition,
    FetchRequest,
    FetchResponse,
)
from core.protocol.control import TopicId
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
    ) -> None:
        self._logs = logs
        self._cache = cache
        self._hosted = hosted
        self._led = led
        self._fetching_epochs: dict[BrokerId, int] = {}  # the newest life seen of each follower

    def fetch(self, request: FetchRequest, now_ms: int) -> FetchResponse:
        """Answer a follower; refused as a whole when a newer life of it is known (KIP-903)."""
        if self._is_of_earlier_life(request):
            return FetchResponse(Errors.STALE_BROKER_EPOCH)
        return FetchResponse(
            Errors.NONE,
            tuple(
                FetchedTopic(
                    topic.topic_name,
                    tuple(
                        self._fetch(topic.topic_name, topic.topic_id, row, request, now_ms)
                        for row in topic.partitions
                    ),
                )
                for topic in request.topics
            ),
        )

    def _is_of_earlier_life(self, request: FetchRequest) -> bool:
        if request.replica_epoch == UNKNOWN_BROKER_EPOCH:
            return False
        seen = self._fetching_epochs.get(request.replica_id, UNKNOWN_BROKER_EPOCH)
        registered = self._cache.snapshot.brokers.get(request.replica_id)
        newest = max(seen, registered.broker_epoch if registered else UNKNOWN_BROKER_EPOCH)
        self._fetching_epochs[request.replica_id] = max(seen, request.replica_epoch)
        return request.replica_epoch < newest

    def _fetch(
        self,
        topic: str,
        topic_id: TopicId | None,
        row: FetchPartition,
        request: FetchRequest,
        now_ms: int,
    ) -> FetchedPartition:
        name = TopicPartition(topic, row.partition_index)
        partition = self._led.get(name)
        if partition is None:
            return _failed(row, self._why_not_led(name, row))
        error = _check_fetch(partition, topic_id, row)
        if error is not Errors.NONE:
            return _failed(row, error)
        follower = partition.followers.get(request.replica_id)
        if follower is None:
            # Its leader epoch is right, so it may know of an assignment we do not (KAFKA-13837).
            return _failed(row, Errors.UNKNOWN_LEADER_EPOCH)
        answer = self._read(partition, row)
        if answer.error_code is not Errors.NONE or answer.diverging_epoch != NO_EPOCH:
            return answer  # where its log stands is not known yet (KAFKA-13141)
        got_on = follower.on_fetch(
            row.fetch_offset,
            row.log_start_offset,
            request.replica_epoch,
            self._logs.log_end_offset(name),
            now_ms,
        )
        self._led.on_fetch(partition, request.replica_id, got_on=got_on, now_ms=now_ms)
        return answer._replace(high_watermark=partition.high_watermark)

    def _why_not_led(self, name: TopicPartition, row: FetchPartition) -> Errors:
        hosted = self._hosted.get(name)
        if hosted is None:
            is_known = name in self._cache.snapshot.partitions
            return Errors.NOT_LEADER_OR_FOLLOWER if is_known else Errors.UNKNOWN_TOPIC_OR_PARTITION
        if hosted.role is Role.OFFLINE:
            return Errors.KAFKA_STORAGE_ERROR
        error = _check_leader_epoch(hosted, row)
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
