"""What followers need not say again: a leader's memory of what each of them fetches (KIP-227).

Mirrors ``kafka.server.FetchSession`` and ``FetchSessionCache``. A follower has one session, of the
life that began it; there are no more sessions than brokers.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NamedTuple

from core.errors import Errors
from core.model import NO_EPOCH, BrokerId, TopicPartition
from core.protocol.broker import (
    INITIAL_SESSION_EPOCH,
    FetchedPartition,
    FetchPartition,
    FetchRequest,
)
from core.protocol.control import TopicId
from core.replication.remote_replica import LastFetch


class Position(NamedTuple):
    """What a follower said last of one partition."""

    topic_id: TopicId | None
    row: FetchPartition


@dataclass(slots=True)
class FetchSession:
    """The partitions a follower fetches.

    ``unsettled`` are those to be looked at again at the next fetch although it need not list them:
    something happened to them here, or the follower is not in sync yet.
    """

    session_id: int
    replica_epoch: int
    last_fetch: LastFetch
    next_epoch: int = INITIAL_SESSION_EPOCH + 1
    positions: dict[TopicPartition, Position] = field(default_factory=dict)
    unsettled: dict[TopicPartition, None] = field(default_factory=dict)
    _told: dict[TopicPartition, tuple[int, int]] = field(default_factory=dict)

    def forget(self, name: TopicPartition) -> None:
        """Drop a partition the follower does not fetch any more."""
        self.positions.pop(name, None)
        self.unsettled.pop(name, None)
        self._told.pop(name, None)

    def is_news(self, name: TopicPartition, answer: FetchedPartition) -> bool:
        """Whether the follower has not been told so yet; from now on it has."""
        if answer.error_code is not Errors.NONE or answer.diverging_epoch != NO_EPOCH:
            self._told.pop(name, None)
            return True
        said = (answer.high_watermark, answer.log_start_offset)
        is_news = self._told.get(name) != said
        self._told[name] = said
        return is_news


class FetchSessions:
    """The session of each follower. Not thread-safe."""

    def __init__(self) -> None:
        self._sessions: dict[BrokerId, FetchSession] = {}
        self._last_id = 0

    def begin(
        self, request: FetchRequest, live: Collection[BrokerId], now_ms: int
    ) -> FetchSession | None:
        """Replace the follower's session by a new one; None for who is not a live broker."""
        self._sessions = {b: s for b, s in self._sessions.items() if b in live}
        if request.session_epoch != INITIAL_SESSION_EPOCH or request.replica_id not in live:
            return None
        # The time keeps the ids of a leader that started again from being those it gave before.
        self._last_id = max(self._last_id + 1, now_ms)
        session = FetchSession(self._last_id, request.replica_epoch, LastFetch(now_ms))
        self._sessions[request.replica_id] = session
        return session

    def resume(self, request: FetchRequest) -> FetchSession | Errors:
        """Return the session of an incremental fetch, or why there is none."""
        session = self._sessions.get(request.replica_id)
        if (
            session is None
            or session.session_id != request.session_id
            or session.replica_epoch != request.replica_epoch
        ):
            return Errors.FETCH_SESSION_ID_NOT_FOUND
        if session.next_epoch != request.session_epoch:
            return Errors.INVALID_FETCH_SESSION_EPOCH
        session.next_epoch += 1
        return session

    def on_change(self, name: TopicPartition) -> None:
        """Have a partition looked at again in the sessions it is in.

        To be called when its leadership, its ISR, its high watermark or its log changed: nobody
        compares what nobody lists.
        """
        for session in self._sessions.values():
            if name in session.positions:
                session.unsettled[name] = None
