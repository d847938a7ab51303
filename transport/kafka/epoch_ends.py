"""Where the log of a follower and that of its leader part, if the leader is Kafka 2.4 to 2.6.

Such a leader does not see in a Fetch that the logs differ: it takes the position in a Fetch for one
in its own log. So a position is compared first, with OffsetsForLeaderEpoch, and is not fetched
while the logs differ. The answer to it is the one that a newer leader gives to its Fetch (KIP-595).
Positions that follow an equal one in the same leader epoch are equal, too. Mirrors
``kafka.server.RemoteLeaderEndPoint.fetchEpochEndOffsets``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, TypeAlias

from regent.config.closing import Closing
from regent.core.errors import Errors
from regent.core.model import NO_EPOCH, TopicPartition
from regent.core.protocol.broker import (
    NO_SESSION_ID,
    SESSIONLESS_EPOCH,
    FetchedPartition,
    FetchedTopic,
    FetchPartition,
    FetchRequest,
    FetchTopic,
)
from regent.core.protocol.messages.offsets import (
    EpochEndOfPartition,
    EpochOfPartition,
    EpochsOfTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from regent.transport.kafka.api import KafkaApiKey
from regent.transport.kafka.broker_connection import BrokerConnection
from regent.transport.kafka.message_codec import decoded, encoded
from regent.transport.kafka.primitives import MalformedRequestError

_VERSION: Final = 3  # the one of Kafka 2.4 to 2.7
_ERROR_CODES: Final = frozenset(map(int, Errors))

Refused: TypeAlias = Mapping[TopicPartition, FetchedPartition]
"""Answers to positions that must not be fetched."""


class EpochEnds:
    """What was compared with one leader; used by the thread that uses its connection."""

    def __init__(self, connection: BrokerConnection) -> None:
        self._connection = connection
        self._equal: dict[TopicPartition, tuple[int, int]] = {}  # leader epoch, offset

    def refused(
        self, body: FetchRequest, *, timeout_ms: int, closing: Closing | None = None
    ) -> Refused:
        """Return the answers to the positions in which the logs differ, or that are refused.

        Raises a ``RequestError``.
        """
        if not body.is_incremental:
            self._equal.clear()
        for topic in body.forgotten_topics:
            for number in topic.partitions:
                self._equal.pop(TopicPartition(topic.topic_name or "", number), None)
        unknown = {
            topic_partition: row
            for topic_partition, row in body.partitions()
            if not self._is_equal(topic_partition, row)
        }
        if not unknown:
            return {}
        ends = self._ask(body.replica_id, unknown, timeout_ms, closing)
        answers = {
            topic_partition: _answer(row, ends.get(topic_partition))
            for topic_partition, row in unknown.items()
        }
        for topic_partition, row in unknown.items():
            if answers[topic_partition] is None:
                self._equal[topic_partition] = row.current_leader_epoch, row.fetch_offset
        return {
            topic_partition: answer
            for topic_partition, answer in answers.items()
            if answer is not None
        }

    def _is_equal(self, topic_partition: TopicPartition, row: FetchPartition) -> bool:
        """Whether a position needs no comparison: it follows an equal one, or an empty log."""
        if row.last_fetched_epoch == NO_EPOCH:
            self._equal[topic_partition] = row.current_leader_epoch, row.fetch_offset
            return True
        epoch, offset = self._equal.get(topic_partition, (NO_EPOCH, 0))
        if epoch != row.current_leader_epoch or row.fetch_offset < offset:
            return False
        self._equal[topic_partition] = epoch, row.fetch_offset
        return True

    def _ask(
        self,
        replica_id: int,
        positions: Mapping[TopicPartition, FetchPartition],
        timeout_ms: int,
        closing: Closing | None,
    ) -> Mapping[TopicPartition, EpochEndOfPartition]:
        """Return the end of the last epoch in each position, as the leader has it."""
        topics: dict[str, list[EpochOfPartition]] = {}
        for (topic, number), row in positions.items():
            asked = EpochOfPartition(
                partition=number,
                current_leader_epoch=row.current_leader_epoch,
                leader_epoch=row.last_fetched_epoch,
            )
            topics.setdefault(topic, []).append(asked)
        request = OffsetForLeaderEpochRequest(
            replica_id=replica_id,
            topics=tuple(
                EpochsOfTopic(topic=topic, partitions=tuple(rows)) for topic, rows in topics.items()
            ),
        )
        view = self._connection.exchange(
            KafkaApiKey.OFFSET_FOR_LEADER_EPOCH,
            _VERSION,
            encoded(request, _VERSION, is_flexible=False),
            timeout_ms=timeout_ms,
            closing=closing,
        )
        try:
            ends = decoded(OffsetForLeaderEpochResponse, view, _VERSION, is_flexible=False)
        except MalformedRequestError as error:
            raise self._connection.failed(error) from error
        return {
            TopicPartition(topic.topic, row.partition): row
            for topic in ends.topics
            for row in topic.partitions
        }


def _answer(row: FetchPartition, end: EpochEndOfPartition | None) -> FetchedPartition | None:
    """Return the answer to a position, as a newer leader would give it; None: the logs are equal.

    A leader that has no epoch so old does not know the position.
    """
    error = Errors.UNKNOWN_SERVER_ERROR
    if end is not None and end.error_code in _ERROR_CODES:
        error = Errors(end.error_code)
    if end is None or error is not Errors.NONE:
        return FetchedPartition(row.partition_index, error, -1, -1)
    if end.end_offset < 0:
        return FetchedPartition(row.partition_index, Errors.OFFSET_OUT_OF_RANGE, -1, -1)
    if end.leader_epoch == row.last_fetched_epoch and end.end_offset >= row.fetch_offset:
        return None
    return FetchedPartition(
        row.partition_index, Errors.NONE, -1, -1, end.leader_epoch, end.end_offset
    )


def without(body: FetchRequest, refused: Refused) -> FetchRequest:
    """Return a fetch of the other positions, at once and without a session."""
    topics = (
        FetchTopic(
            topic.topic_name,
            topic.topic_id,
            tuple(
                row
                for row in topic.partitions
                if TopicPartition(topic.topic_name, row.partition_index) not in refused
            ),
        )
        for topic in body.topics
    )
    return dataclasses.replace(
        body,
        topics=tuple(topic for topic in topics if topic.partitions),
        max_wait_ms=0,
        session_id=NO_SESSION_ID,
        session_epoch=SESSIONLESS_EPOCH,
        forgotten_topics=(),
    )


def refusals(body: FetchRequest, refused: Refused) -> Iterator[FetchedTopic]:
    """Yield the refused positions as topics of a response."""
    for topic in body.topics:
        names = (TopicPartition(topic.topic_name, row.partition_index) for row in topic.partitions)
        rows: Sequence[FetchedPartition] = [refused[name] for name in names if name in refused]
        if rows:
            yield FetchedTopic(topic.topic_name, tuple(rows), topic.topic_id)
