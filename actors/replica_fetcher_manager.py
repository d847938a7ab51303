"""One ReplicaFetcherThread for every leader this broker follows.

Mirrors ``kafka.server.ReplicaFetcherManager``. Owned by the Broker's thread.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from contextlib import suppress
from typing import NamedTuple

from pykka import ActorDeadError, ActorRef

from regent.actors.inbox import inbox_of
from regent.actors.replica_fetcher_thread import (
    DoWork,
    FetcherStats,
    LeaderChannel,
    OpenFetchChannel,
    ReplicaFetcherThread,
)
from regent.actors.runtime import Supervisor, start_actor, stop_actor
from regent.actors.scheduler import Scheduler
from regent.core.model import BrokerId
from regent.core.replication.replica_manager import ReplicaManager

logger = logging.getLogger(__name__)

_STOP_TIMEOUT_S = 5.0


class Fetcher(NamedTuple):
    """The thread that fetches from a leader at an endpoint, its connection and its counters."""

    endpoint: str
    channel: LeaderChannel
    thread: ActorRef[ReplicaFetcherThread]
    stats: FetcherStats

    @property
    def is_alive(self) -> bool:
        """Whether its thread runs."""
        return inbox_of(self.thread).activity.thread.is_alive()


class ReplicaFetcherManager:
    """Runs the fetchers that the ReplicaManager requires."""

    def __init__(
        self,
        replica_manager: ReplicaManager,
        open_channel: OpenFetchChannel,
        *,
        scheduler: Scheduler,
        backoff_ms: int,
        supervisor: Supervisor | None = None,
    ) -> None:
        self._replica_manager = replica_manager
        self._open_channel = open_channel
        self._scheduler = scheduler
        self._backoff_ms = backoff_ms
        self._supervisor = supervisor
        self._fetchers: dict[BrokerId, Fetcher] = {}
        self._is_closed = False

    @property
    def size(self) -> int:
        """How many leaders are fetched from."""
        return len(self._fetchers)

    @property
    def fetchers(self) -> dict[BrokerId, Fetcher]:
        """The fetcher of every leader. Thread-safe."""
        return self._fetchers.copy()

    def update(self) -> bool:
        """Start, stop and wake fetchers after a control request.

        Return False if one could not be started, for want of a thread or a descriptor: call again.

        A leader with another endpoint is another process and gets another fetcher. A fetch that
        waits for records is ended if there is more to fetch now: in Kafka a new partition of idle
        leaders is not replicated before that wait is over, and ``acks=all`` waits for it.
        """
        if self._is_closed:
            return True
        wanted = self._replica_manager.leaders_to_fetch_from()
        self._stop([b for b, f in self._fetchers.items() if wanted.get(b) != f.endpoint])
        outdated = self._replica_manager.outdated_fetches()
        for leader, endpoint in wanted.items():
            fetcher = self._fetchers.get(leader)
            if fetcher is None:
                try:
                    self._fetchers[leader] = self._start(leader, endpoint)
                except (RuntimeError, TimeoutError, OSError) as error:
                    logger.error("no fetcher for leader %d can be started now: %s", leader, error)
                continue
            with suppress(ActorDeadError):
                fetcher.thread.tell(DoWork())  # it may be backing off
            if leader in outdated:
                fetcher.channel.hurry()
        return self._fetchers.keys() >= wanted.keys()

    def close(self) -> None:
        """Stop all fetchers."""
        self._is_closed = True
        self._stop(list(self._fetchers))

    def _start(self, leader: BrokerId, endpoint: str) -> Fetcher:
        stats, channel = FetcherStats(), self._open_channel(endpoint)
        thread = start_actor(
            ReplicaFetcherThread,
            leader,
            channel,
            self._replica_manager,
            scheduler=self._scheduler,
            backoff_ms=self._backoff_ms,
            stats=stats,
            supervisor=self._supervisor,
        )
        return Fetcher(endpoint, channel, thread, stats)

    def _stop(self, leaders: Collection[BrokerId]) -> None:
        threads = [self._fetchers.pop(leader).thread for leader in leaders]
        for thread in threads:
            thread.stop(block=False)  # stop all of them before waiting for each
        for thread in threads:
            stop_actor(thread, _STOP_TIMEOUT_S)
