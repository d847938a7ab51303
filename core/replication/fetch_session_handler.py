"""The follower's side of a fetch session with one leader (KIP-227).

Mirrors ``org.apache.kafka.clients.FetchSessionHandler`` and the partition states of
``kafka.server.AbstractFetcherThread``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from regent.core.errors import Errors
from regent.core.model import TopicPartition
from regent.core.protocol.broker import (
    INITIAL_SESSION_EPOCH,
    NO_SESSION_ID,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
)
from regent.core.protocol.control import TopicId
from regent.core.replication.partition import Partition

FIRST_BACKOFF_MS = 20
MAX_LISTED = 1_000
"""Most partitions that a fetch lists: both brokers hold their locks while they go through them."""


class SessionPartition(NamedTuple):
    """A replica and its position in the last fetch that listed it."""

    partition: Partition
    row: FetchPartition


class FetchSessionHandler:
    """The partitions that are fetched from one leader.

    ``position`` returns the position of a replica; None: its log cannot be read. A fetch waits for
    ``idle_wait_ms`` if it says nothing and the one before brought nothing.

    A fetch is incremental only if the one before was answered. Otherwise it is unknown what the
    leader received, and the next fetch lists all partitions.
    """

    def __init__(
        self, position: Callable[[Partition], FetchPartition | None], idle_wait_ms: int
    ) -> None:
        self._position = position
        self._idle_wait_ms = idle_wait_ms
        self._is_idle = False
        self._partitions: dict[TopicPartition, Partition] = {}
        self._delayed_until_ms: dict[TopicPartition, int] = {}
        self._backoff_ms: dict[TopicPartition, int] = {}  # after the next failure
        self._changed: dict[TopicPartition, None] = {}  # since the last request; an ordered set
        self._held: dict[TopicPartition, SessionPartition] = {}  # in the leader's session
        self._session_id = NO_SESSION_ID
        self._next_epoch = INITIAL_SESSION_EPOCH
        self._names_topics = False  # in this session
        self._in_flight: FetchRequest | None = None

    def __len__(self) -> int:
        return len(self._partitions)

    def get(self, topic_partition: TopicPartition) -> Partition | None:
        """Return the partition if it is fetched from this leader."""
        return self._partitions.get(topic_partition)

    @property
    def has_changes(self) -> bool:
        """Whether something has changed since the last fetch was sent."""
        return bool(self._changed)

    # --- changes ---

    def add(self, partition: Partition) -> None:
        """Fetch a partition."""
        self._partitions[partition.topic_partition] = partition
        self.on_change(partition.topic_partition)

    def remove(self, topic_partition: TopicPartition) -> None:
        """Stop fetching a partition."""
        del self._partitions[topic_partition]
        self._delayed_until_ms.pop(topic_partition, None)
        self.end_back_off(topic_partition)
        self.on_change(topic_partition)

    def back_off(self, topic_partition: TopicPartition, now_ms: int, longest_ms: int) -> None:
        """Delay a partition after an error, longer each time.

        Usually the leader has not received its LeaderAndIsr yet.
        """
        backoff_ms = min(self._backoff_ms.get(topic_partition, FIRST_BACKOFF_MS), longest_ms)
        self._backoff_ms[topic_partition] = 2 * backoff_ms
        self.delay(topic_partition, now_ms + backoff_ms)

    def end_back_off(self, topic_partition: TopicPartition) -> None:
        """Reset the delay, because the partition was answered without error."""
        self._backoff_ms.pop(topic_partition, None)

    def delay(self, topic_partition: TopicPartition, until_ms: int) -> None:
        """Do not fetch a partition until a time."""
        self._delayed_until_ms[topic_partition] = until_ms
        self.on_change(topic_partition)

    def on_change(self, topic_partition: TopicPartition) -> None:
        """List a partition in the next fetch, because its position changed."""
        self._changed[topic_partition] = None

    # --- fetches ---

    def delay_ms(self, now_ms: int) -> int | None:
        """Return how long until the first delay of a partition ends; None: none is delayed."""
        if not self._delayed_until_ms:
            return None
        return max(min(self._delayed_until_ms.values()) - now_ms, 0)

    def request(
        self, template: FetchRequest, broker_epoch: int, now_ms: int
    ) -> FetchRequest | None:
        """Return the next fetch, based on ``template``; None if every partition is delayed.

        The leader must answer before the first delay ends.
        """
        self._end_delays(now_ms)
        if len(self._delayed_until_ms) == len(self._partitions):
            return None
        is_full = self._begins_session()
        if is_full:
            self._held = {}
        listed: list[Partition] = []
        forgotten: list[SessionPartition] = []
        topic_partitions = list(self._partitions if is_full else self._changed)
        self._changed = dict.fromkeys(topic_partitions[MAX_LISTED:])
        for topic_partition in topic_partitions[:MAX_LISTED]:
            partition = self._partitions.get(topic_partition)
            position = None
            if partition is not None and topic_partition not in self._delayed_until_ms:
                position = self._position(partition)
            if partition is not None and position is not None:
                self._held[topic_partition] = SessionPartition(partition, position)
                listed.append(partition)
            elif (left := self._held.pop(topic_partition, None)) is not None:
                forgotten.append(left)
        if is_full and self._changed:
            # Without a session the next fetch is full too: it lists the other partitions first.
            self._partitions = {
                topic_partition: self._partitions[topic_partition]
                for topic_partition in (*self._changed, *topic_partitions[:MAX_LISTED])
            }
        is_idle = self._is_idle and not (listed or forgotten)
        wait_ms = self._idle_wait_ms if is_idle else template.max_wait_ms
        delay_ms = 0 if self._changed else self.delay_ms(now_ms)
        self._in_flight = replace(
            template,
            max_wait_ms=_shorter(wait_ms, delay_ms),
            replica_epoch=broker_epoch,
            topics=self._topics(listed),
            session_id=self._session_id,
            session_epoch=self._next_epoch,
            forgotten_topics=_forgotten_topics(forgotten),
            names_topics=self._names_topics,
        )
        self._next_epoch = INITIAL_SESSION_EPOCH  # unless it is answered
        return self._in_flight

    def _begins_session(self) -> bool:
        """Whether the next fetch lists all partitions.

        A session names its topics by their ids, or all of them by name if one has no id.
        """
        is_new = self._next_epoch == INITIAL_SESSION_EPOCH
        if is_new or not self._names_topics:
            chosen = self._partitions if is_new else self._changed
            partitions = map(self._partitions.get, chosen)
            self._names_topics = any(p is not None and p.topic_id is None for p in partitions)
            if self._names_topics:
                self._next_epoch = INITIAL_SESSION_EPOCH
        return self._next_epoch == INITIAL_SESSION_EPOCH

    def on_response(
        self, request: FetchRequest, response: FetchResponse
    ) -> Mapping[TopicPartition, SessionPartition]:
        """Process an answer; return all partitions of the session, also those it did not list.

        Return nothing for an answer to another request than the last one.
        """
        if request is not self._in_flight:
            return {}
        self._in_flight = None
        self._is_idle = request.is_incremental and not response.topics
        self._session_id = response.session_id
        if response.error_code is Errors.NONE and response.session_id != NO_SESSION_ID:
            self._next_epoch = request.session_epoch + 1
        return self._held

    def _end_delays(self, now_ms: int) -> None:
        over = [
            topic_partition
            for topic_partition, until_ms in self._delayed_until_ms.items()
            if until_ms <= now_ms
        ]
        for topic_partition in over:
            del self._delayed_until_ms[topic_partition]
            self.on_change(topic_partition)

    def _topics(self, partitions: Iterable[Partition]) -> tuple[FetchTopic, ...]:
        """Group partitions by topic. Some may be of an earlier topic of the same name."""
        topics: dict[tuple[str, TopicId | None], list[FetchPartition]] = {}
        for partition in partitions:
            topic = partition.topic_partition.topic, partition.topic_id
            row = self._held[partition.topic_partition].row
            topics.setdefault(topic, []).append(row)
        return tuple(FetchTopic(*topic, tuple(rows)) for topic, rows in topics.items())


def _forgotten_topics(partitions: Iterable[SessionPartition]) -> tuple[ForgottenTopic, ...]:
    topics: dict[tuple[str, TopicId | None], list[int]] = {}
    for partition, row in partitions:
        topic = partition.topic_partition.topic, partition.topic_id
        topics.setdefault(topic, []).append(row.partition_index)
    return tuple(
        ForgottenTopic(name, tuple(numbers), topic_id)
        for (name, topic_id), numbers in topics.items()
    )


def _shorter(wait_ms: int, delay_ms: int | None) -> int:
    return wait_ms if delay_ms is None else min(wait_ms, delay_ms)
