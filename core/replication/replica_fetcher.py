"""The follower's side of replication: what to ask which leader, and what its answers mean.

Mirrors ``kafka.server.AbstractFetcherThread`` and ``ReplicaFetcherThread``, turned around: the
shell asks what to fetch, so a leader that is not known alive is waited for without any timer.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from core.errors import Errors, StorageError
from core.model import NO_EPOCH, BrokerId, TopicPartition
from core.ports import NO_EPOCH_END_OFFSET, EpochEndOffset, ReplicaLogs
from core.protocol.broker import (
    SESSION_ERRORS,
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchResponse,
)
from core.replication.fetch_session_handler import FetchSessionHandler
from core.replication.metadata_cache import MetadataCache
from core.replication.partition import Partition, Role

log = logging.getLogger("state.change")


class ReplicaFetcher:
    """The partitions this broker follows, by leader. Not thread-safe."""

    def __init__(
        self,
        broker_id: BrokerId,
        logs: ReplicaLogs,
        cache: MetadataCache,
        *,
        max_wait_ms: int,
        backoff_ms: int,
    ) -> None:
        self._broker_id = broker_id
        self._logs = logs
        self._cache = cache
        self._max_wait_ms = max_wait_ms
        self._backoff_ms = backoff_ms
        self._followed: dict[BrokerId, FetchSessionHandler] = {}
        self._leaders: dict[TopicPartition, BrokerId] = {}

    def follow(self, partition: Partition) -> None:
        """Fetch a partition that has just been made a follower."""
        name = partition.topic_partition
        self.unfollow(name)
        self._leaders[name] = partition.leader
        followed = self._followed.get(partition.leader)
        if followed is None:
            followed = self._followed[partition.leader] = FetchSessionHandler(self._position)
        followed.add(partition)

    def unfollow(self, name: TopicPartition) -> None:
        """Stop fetching a partition until it is followed anew; not followed is fine."""
        leader = self._leaders.pop(name, None)
        if leader is not None:
            followed = self._followed[leader]
            followed.remove(name)
            if not followed:
                del self._followed[leader]

    def leaders(self) -> Mapping[BrokerId, str]:
        """Return where the leaders are that are alive."""
        brokers = self._cache.snapshot.brokers
        return {
            leader: broker.replication_endpoint
            for leader in self._followed
            if (broker := brokers.get(leader)) is not None and broker.replication_endpoint
        }

    def request(self, leader: BrokerId, broker_epoch: int, now_ms: int) -> FetchRequest | None:
        """Return what to ask ``leader`` for; None when nothing is to be asked right now."""
        followed = self._followed.get(leader)
        if followed is None or leader not in self._cache.snapshot.brokers:
            return None
        return followed.request(self._broker_id, broker_epoch, self._max_wait_ms, now_ms)

    def on_response(
        self, leader: BrokerId, request: FetchRequest, response: FetchResponse, now_ms: int
    ) -> None:
        """Take an answer; what was not answered, or with an error, waits a while."""
        followed = self._followed.get(leader)
        if followed is None:
            return
        asked = followed.on_response(request, response)
        if response.error_code in SESSION_ERRORS:
            return  # the next request lists everything
        answers = dict(response.partitions())
        is_silence_assent = request.is_incremental and response.error_code is Errors.NONE
        errors: list[tuple[TopicPartition, Errors]] = []
        for name in answers if is_silence_assent else asked:
            partition, row = followed.get(name), asked.get(name)
            if partition is None or row is None:
                continue
            if not self._is_expected(partition, row):
                followed.on_change(name)
                continue
            error = response.error_code
            if error is Errors.NONE:
                error = self._take(followed, partition, answers.get(name))
            if error is Errors.NONE:
                continue
            errors.append((name, error))
            if error is Errors.FENCED_LEADER_EPOCH:
                self.unfollow(name)  # a LeaderAndIsr with the new epoch is on its way
            else:
                followed.delay(name, now_ms + self._backoff_ms)
        if errors:
            log.info(
                "[Broker id=%d] cannot fetch %d partitions from leader %d, the first: %s, %s",
                self._broker_id,
                len(errors),
                leader,
                errors[0][0],
                errors[0][1].name,
            )

    def _is_expected(self, partition: Partition, row: FetchPartition) -> bool:
        """Whether nothing has happened to a replica since it asked."""
        end = self._logs.log_end_offset(partition.topic_partition)
        return (row.current_leader_epoch, row.fetch_offset) == (partition.leader_epoch, end)

    def _position(self, partition: Partition) -> FetchPartition:
        name = partition.topic_partition
        return FetchPartition(
            name.partition,
            partition.leader_epoch,
            self._logs.log_end_offset(name),
            self._logs.latest_epoch(name),
            self._logs.log_start_offset(name),
        )

    def _take(
        self,
        followed: FetchSessionHandler,
        partition: Partition,
        answer: FetchedPartition | None,
    ) -> Errors:
        if answer is None:
            return Errors.UNKNOWN_SERVER_ERROR
        if answer.error_code is not Errors.NONE:
            return answer.error_code
        name = partition.topic_partition
        if answer.diverging_epoch != NO_EPOCH:
            leaders = EpochEndOffset(answer.diverging_epoch, answer.diverging_end_offset)
            own = self._logs.end_offset_for_epoch(name, leaders.leader_epoch)
            end = self._logs.log_end_offset(name)
            try:
                self._logs.truncate_to(name, truncation_offset(leaders, own, end))
                followed.on_change(name)
            except StorageError as error:
                log.error("%s: %s", name, error)
                self.unfollow(name)
                partition.stop(Role.OFFLINE)
                return Errors.NONE
        partition.follow_high_watermark(
            answer.high_watermark,
            self._logs.log_start_offset(name),
            self._logs.log_end_offset(name),
        )
        return Errors.NONE


def truncation_offset(leaders: EpochEndOffset, own: EpochEndOffset, log_end_offset: int) -> int:
    """Return where a follower's log may still agree with its leader's (KIP-101, KIP-279).

    ``leaders`` is where the leader's newest epoch up to the follower's ends, ``own`` is what the
    follower's log says of that epoch. When the follower does not know it, both must ask again
    with an older epoch: the next fetch does.
    """
    if own == NO_EPOCH_END_OFFSET:
        return min(leaders.end_offset, log_end_offset)
    if own.leader_epoch != leaders.leader_epoch:
        return min(own.end_offset, log_end_offset)
    return min(own.end_offset, leaders.end_offset, log_end_offset)
