"""Fetch sessions: a leader remembers what each follower fetches (KIP-227).

A follower has a session of one broker epoch for each thread that fetches: ours has one thread for
a leader, Kafka's has ``num.replica.fetchers``. A partition is fetched by one of them.
``FetchSession`` and ``FetchSessionCache`` are the leader's side. ``FetchSessionHandler`` is the
follower's: the partitions that it fetches from one leader, and what it must tell the leader next.
Mirrors Kafka's classes of these names, and the partition states of
``kafka.server.AbstractFetcherThread``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from regent.core.errors import Errors
from regent.core.model import NO_EPOCH, BrokerId, TopicPartition
from regent.core.protocol.broker import (
    INITIAL_SESSION_EPOCH,
    NO_SESSION_ID,
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
)
from regent.core.protocol.control import TopicId
from regent.core.replication.delayed_operation import DelayedOperation, DelayedOperationPurgatory
from regent.core.replication.partition import LastFetch, Partition
from regent.core.setting import INT_MAX

FIRST_BACKOFF_MS = 20
MAX_SESSIONS = 100
"""Most sessions of a follower, far more than it has threads."""
MAX_LISTED = 1_000
"""Most partitions that a fetch lists: both brokers hold their locks while they go through them."""


class CachedPartition(NamedTuple):
    """What a follower last listed for one partition."""

    topic_id: TopicId | None
    row: FetchPartition


@dataclass(slots=True, eq=False)
class FetchSession:
    """The partitions a follower fetches.

    ``unsettled``: partitions to check, in this order, at the next fetch even if it does not list
    them. They changed on the leader, or the follower is not in sync yet, or the last answer had no
    room for their records. ``in_other_epoch``: partitions that the follower listed with another
    leader epoch than the one known here. ``held`` is the fetch that waits. ``names_topics``: as in
    its requests.
    """

    session_id: int
    replica_id: BrokerId
    replica_epoch: int
    last_fetch: LastFetch
    names_topics: bool = False
    next_epoch: int = INITIAL_SESSION_EPOCH + 1
    positions: dict[TopicPartition, CachedPartition] = field(default_factory=dict)
    unsettled: dict[TopicPartition, None] = field(default_factory=dict)
    in_other_epoch: dict[TopicPartition, None] = field(default_factory=dict)
    held: DelayedOperation | None = None
    # The high watermark and log start offset that were answered last.
    _told: dict[TopicPartition, tuple[int, int]] = field(default_factory=dict)

    @property
    def is_kept(self) -> bool:
        """Whether the leader keeps the session; if not, every fetch lists all partitions."""
        return self.session_id != NO_SESSION_ID

    def note(self, request: FetchRequest) -> None:
        """Record the partitions that a fetch lists; they are checked last.

        A follower whose offset did not advance may have dropped the last answer, because its leader
        epoch had changed: the next answer repeats everything.
        """
        for topic in request.topics:
            for row in topic.partitions:
                topic_partition = TopicPartition(topic.topic_name, row.partition_index)
                before = self.positions.get(topic_partition)
                if before is not None and row.fetch_offset <= before.row.fetch_offset:
                    self._told.pop(topic_partition, None)
                self.positions[topic_partition] = CachedPartition(topic.topic_id, row)
                self.unsettled[topic_partition] = None

    def forget(self, topic: ForgottenTopic) -> Sequence[TopicPartition]:
        """Remove and return partitions that the follower no longer fetches."""
        names = {topic.topic_name}
        if topic.topic_name is None:  # it was deleted here; the session may know its name
            names = {
                topic_partition.topic
                for topic_partition, position in self.positions.items()
                if position.topic_id == topic.topic_id
            }
        forgotten = [
            TopicPartition(name, index) for name in names if name for index in topic.partitions
        ]
        for topic_partition in forgotten:
            self.positions.pop(topic_partition, None)
            self.unsettled.pop(topic_partition, None)
            self.in_other_epoch.pop(topic_partition, None)
            self._told.pop(topic_partition, None)
        return forgotten

    def is_news(self, topic_partition: TopicPartition, answer: FetchedPartition) -> bool:
        """Whether an answer differs from the last one; remember it."""
        if answer.error_code is not Errors.NONE or answer.diverging_epoch != NO_EPOCH:
            self._told.pop(topic_partition, None)
            return True
        said = (answer.high_watermark, answer.log_start_offset)
        is_news = self._told.get(topic_partition) != said or answer.records.size > 0
        self._told[topic_partition] = said
        return is_news


class FetchSessionCount(NamedTuple):
    """How many sessions there are, their partitions, and how many sessions had to go for others."""

    sessions: int
    partitions: int
    evicted: int


class FetchSessionCache:
    """The sessions of all followers by their ids. Not thread-safe.

    A follower that is not registered gets a session only while its fetch waits.
    """

    def __init__(self, delayed: DelayedOperationPurgatory) -> None:
        self._delayed = delayed
        self._sessions: dict[int, FetchSession] = {}
        self._passing: dict[FetchSession, None] = {}  # not kept; their fetch waits
        self._last_id = 0
        self._evicted = 0

    @property
    def count(self) -> FetchSessionCount:
        """What it has."""
        partitions = sum(len(session.positions) for session in self._sessions.values())
        return FetchSessionCount(len(self._sessions), partitions, self._evicted)

    def begin(self, request: FetchRequest, live: Collection[BrokerId], now_ms: int) -> FetchSession:
        """Return a new session from a full fetch; it is kept if the follower is registered."""
        session = FetchSession(
            NO_SESSION_ID,
            request.replica_id,
            request.replica_epoch,
            LastFetch(now_ms),
            request.names_topics,
        )
        session.note(request)
        self._end_former(session, request, live)
        if request.session_epoch == INITIAL_SESSION_EPOCH and request.replica_id in live:
            self._make_room(request.replica_id)
            # The time makes ids unique across restarts of the leader.
            self._last_id = max(self._last_id + 1, now_ms)
            session.session_id = self._last_id % INT_MAX + 1
            self._sessions[session.session_id] = session
        return session

    def _end_former(
        self, session: FetchSession, request: FetchRequest, live: Collection[BrokerId]
    ) -> None:
        """End the session that a full fetch names, and those that it replaces without a name.

        A thread whose connection broke before the answer, or whose broker was killed, does not know
        the id of its former session; but they have partitions in common. A fetch without a session
        replaces none.
        """
        begins = request.session_epoch == INITIAL_SESSION_EPOCH
        for former in tuple(self._sessions.values()):
            if former.replica_id not in live or (
                former.replica_id == session.replica_id
                and (
                    former.session_id == request.session_id
                    or (begins and not former.positions.keys().isdisjoint(session.positions))
                )
            ):
                self._end(former)

    def _make_room(self, replica_id: BrokerId) -> None:
        """End the session that a follower has not used for longest, if it has too many.

        Those of connections that are gone are not used any more.
        """
        own = [session for session in self._sessions.values() if session.replica_id == replica_id]
        if len(own) >= MAX_SESSIONS:
            self._end(min(own, key=lambda session: session.last_fetch.at_ms))
            self._evicted += 1

    def _end(self, session: FetchSession) -> None:
        del self._sessions[session.session_id]
        self._release(session)

    def resume(self, request: FetchRequest) -> FetchSession | Errors:
        """Return the session of an incremental fetch, or the error if there is none."""
        session = self._sessions.get(request.session_id)
        if (
            session is None
            or session.replica_id != request.replica_id
            or session.replica_epoch != request.replica_epoch
        ):
            return Errors.FETCH_SESSION_ID_NOT_FOUND
        if session.names_topics != request.names_topics:
            return Errors.FETCH_SESSION_TOPIC_ID_ERROR
        if session.next_epoch != request.session_epoch:
            return Errors.INVALID_FETCH_SESSION_EPOCH
        session.next_epoch += 1
        self._release(session)
        return session

    def hold(self, session: FetchSession, fetch: DelayedOperation) -> DelayedOperation | None:
        """Let a fetch wait until something happens to a partition of its session."""
        session.held = fetch
        if not session.is_kept:
            self._passing[session] = None
        return self._delayed.hold(fetch)

    def on_answer(self, session: FetchSession) -> None:
        """Forget the waiting fetch, because it was answered."""
        session.held = None
        self._passing.pop(session, None)

    def _release(self, session: FetchSession) -> None:
        # A follower that fetches again no longer waits for the earlier answer.
        if session.held is not None:
            self._delayed.complete(session.held)

    def on_change(self, topic_partition: TopicPartition) -> None:
        """Check a partition at the next fetch of every session that has it.

        Call when its ISR or high watermark changed: a fetch checks only the partitions that it
        lists and these. Fetches that wait for records are not woken.
        """
        for session in self._sessions.values():
            if topic_partition in session.positions:
                session.unsettled[topic_partition] = None

    def on_news(self, topic_partition: TopicPartition) -> None:
        """Wake the fetches that wait for a partition: it has records, or another leader."""
        self.on_change(topic_partition)
        for session in (*self._sessions.values(), *self._passing):
            if session.held is not None and topic_partition in session.positions:
                self._delayed.wake(session.held, topic_partition)


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
