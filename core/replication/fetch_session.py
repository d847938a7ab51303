"""Fetch sessions: a leader remembers what each follower fetches (KIP-227).

Mirrors ``kafka.server.FetchSession`` and ``FetchSessionCache``. A follower has one session,
of one broker epoch; there are no more sessions than brokers.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from regent.core.errors import Errors
from regent.core.model import NO_EPOCH, BrokerId, TopicPartition
from regent.core.protocol.broker import (
    INITIAL_SESSION_EPOCH,
    NO_SESSION_ID,
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    ForgottenTopic,
)
from regent.core.protocol.control import TopicId
from regent.core.replication.delayed_operation import DelayedOperation, DelayedOperationPurgatory
from regent.core.replication.partition import LastFetch
from regent.core.setting import INT_MAX


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


class FetchSessionCache:
    """The session of each follower. Not thread-safe.

    A follower that is not registered gets a session only while its fetch waits.
    """

    def __init__(self, delayed: DelayedOperationPurgatory) -> None:
        self._delayed = delayed
        self._sessions: dict[BrokerId, FetchSession] = {}
        self._passing: dict[FetchSession, None] = {}  # not kept; their fetch waits
        self._last_id = 0

    @property
    def size(self) -> tuple[int, int]:
        """How many sessions there are, and how many partitions they have."""
        positions = [len(session.positions) for session in self._sessions.values()]
        return len(positions), sum(positions)

    def begin(self, request: FetchRequest, live: Collection[BrokerId], now_ms: int) -> FetchSession:
        """Return a new session from a full fetch; it is kept if the follower is registered."""
        self._sessions = {b: s for b, s in self._sessions.items() if b in live}
        session = FetchSession(
            NO_SESSION_ID, request.replica_epoch, LastFetch(now_ms), request.names_topics
        )
        session.note(request)
        if request.session_epoch == INITIAL_SESSION_EPOCH and request.replica_id in live:
            # The time makes ids unique across restarts of the leader.
            self._last_id = max(self._last_id + 1, now_ms)
            session.session_id = self._last_id % INT_MAX + 1
            former = self._sessions.get(request.replica_id)
            self._sessions[request.replica_id] = session
            if former is not None:
                self._release(former)
        return session

    def resume(self, request: FetchRequest) -> FetchSession | Errors:
        """Return the session of an incremental fetch, or the error if there is none."""
        session = self._sessions.get(request.replica_id)
        if (
            session is None
            or session.session_id != request.session_id
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
