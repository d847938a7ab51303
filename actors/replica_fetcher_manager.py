"""One ReplicaFetcherThread for every leader this broker follows.

Mirrors ``kafka.server.ReplicaFetcherManager``. Owned by the Broker's thread.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress

from pykka import ActorDeadError, ActorRef

from regent.actors.replica_fetcher_thread import DoWork, OpenFetchChannel, ReplicaFetcherThread
from regent.actors.runtime import Supervisor, start_actor, stop_actor
from regent.actors.scheduler import Scheduler
from regent.core.model import BrokerId
from regent.core.replication.replica_manager import ReplicaManager

_START_TIMEOUT_S = 10.0
_STOP_TIMEOUT_S = 5.0


class ReplicaFetcherManager:
    """Keeps the fetchers that the ReplicaManager says are needed."""

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
        self._threads: dict[BrokerId, tuple[str, ActorRef[ReplicaFetcherThread]]] = {}
        self._is_closed = False

    @property
    def size(self) -> int:
        """How many leaders are fetched from."""
        return len(self._threads)

    @property
    def threads(self) -> dict[BrokerId, ReplicaFetcherThread | None]:
        """The fetcher of every leader, None for one that has died; for any thread to look at."""
        return {leader: ref._actor_weakref() for leader, (_, ref) in list(self._threads.items())}

    def update(self) -> None:
        """Start, stop and wake fetchers after a controller's orders.

        A leader with another endpoint is another process: it gets another fetcher.
        """
        if self._is_closed:
            return
        wanted = self._replica_manager.leaders_to_fetch_from()
        self._stop([b for b, (at, _) in self._threads.items() if wanted.get(b) != at])
        for leader, endpoint in wanted.items():
            if leader in self._threads:
                with suppress(ActorDeadError):
                    self._threads[leader][1].tell(DoWork())  # it may be backing off
            else:
                self._threads[leader] = (endpoint, self._start(leader, endpoint))

    def close(self) -> None:
        """Fetch from nobody any more."""
        self._is_closed = True
        self._stop(list(self._threads))

    def _start(self, leader: BrokerId, endpoint: str) -> ActorRef[ReplicaFetcherThread]:
        return start_actor(
            ReplicaFetcherThread,
            _START_TIMEOUT_S,
            leader,
            endpoint,
            self._replica_manager,
            self._open_channel,
            scheduler=self._scheduler,
            backoff_ms=self._backoff_ms,
            supervisor=self._supervisor,
        )

    def _stop(self, leaders: Collection[BrokerId]) -> None:
        threads = [self._threads.pop(leader)[1] for leader in leaders]
        for thread in threads:
            thread.stop(block=False)  # all at once, before waiting for each
        for thread in threads:
            stop_actor(thread, _STOP_TIMEOUT_S)
