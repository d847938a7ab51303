"""Fetches continuously from one leader the partitions that this broker follows.

Mirrors ``kafka.server.ReplicaFetcherThread``. The ReplicaManager decides what to fetch and what an
answer means. A fetch may be repeated safely, because both sides check each other's epochs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from pykka import ActorDeadError

from regent.actors.inbox import Reply
from regent.actors.request_channel import RequestChannel
from regent.actors.runtime import RegentActor, Supervisor
from regent.actors.scheduler import OneShotTimer, Scheduler, monotonic_ms
from regent.core.errors import Errors
from regent.core.model import BrokerId
from regent.core.protocol.broker import SESSION_ERRORS, FetchRequest, FetchResponse
from regent.core.replication.replica_manager import ReplicaManager
from regent.transport.control.client import RequestAbandonedError, RequestError

logger = logging.getLogger(__name__)

REQUEST_TIMEOUT_MS = 30_000  # in addition to the wait of the leader; replica.socket.timeout.ms


class LeaderChannel(RequestChannel[FetchRequest, FetchResponse], Protocol):
    """Sends one fetch at a time to a leader; see ``transport.kafka.follower_fetch``."""

    def hurry(self) -> None:
        """Let the leader answer the present fetch, or else the next one, without a further wait.

        Any thread may call it.
        """
        ...


OpenFetchChannel: TypeAlias = Callable[[str], LeaderChannel]
"""Returns the channel to a replication endpoint; it connects when it is used."""


@dataclass(frozen=True, slots=True)
class DoWork:
    """Fetch now."""


@dataclass(slots=True)
class FetcherStats:
    """The counters of a fetcher; its thread writes, any thread reads."""

    requests: int = 0
    received_bytes: int = 0


class ReplicaFetcherThread(RegentActor):
    """Fetches from ``leader`` through ``channel`` until it is stopped.

    The next fetch follows at once after an answer, because the leader delays empty answers;
    otherwise after ``backoff_ms``, or on ``DoWork``.
    """

    def __init__(
        self,
        leader: BrokerId,
        channel: LeaderChannel,
        replica_manager: ReplicaManager,
        *,
        scheduler: Scheduler,
        backoff_ms: int,
        stats: FetcherStats,
        supervisor: Supervisor | None = None,
    ) -> None:
        super().__init__(f"ReplicaFetcherThread-0-{leader}", supervisor=supervisor)
        self._stats = stats
        self._leader = leader
        self._channel = channel
        self._replica_manager = replica_manager
        self._backoff_ms = backoff_ms
        self._retry = OneShotTimer(scheduler, self._tell_do_work)
        self._is_failing = False

    @staticmethod
    def collapse_key(message: DoWork) -> Hashable | None:
        """One queued message is enough."""
        return message

    def on_start(self) -> None:
        """Begin."""
        self._tell_do_work()

    def handle(self, message: DoWork, reply: Reply | None) -> None:
        """Fetch again and again, until the leader does not answer or a message has come."""
        del reply
        self._retry.cancel()
        goes_on = False
        try:
            goes_on = self._fetch()
            while goes_on and self.actor_inbox.empty():
                self.activity.begin(message)  # else the watchdog takes many fetches for a long one
                goes_on = False
                goes_on = self._fetch()
        finally:
            if not goes_on:
                delay_ms = self._replica_manager.fetch_delay_ms(self._leader, monotonic_ms())
                backoff_ms = self._backoff_ms
                self._retry.set(backoff_ms if delay_ms is None else min(backoff_ms, delay_ms))

    def on_stop(self) -> None:
        """Close the connection."""
        self._retry.cancel()
        self._channel.close()

    def _fetch(self) -> bool:
        """Fetch once; return whether the leader answered."""
        request = self._replica_manager.fetch_request(self._leader, monotonic_ms())
        if request is None:
            return False
        self._stats.requests += 1
        try:
            response = self._channel.request(
                request,
                timeout_ms=request.max_wait_ms + REQUEST_TIMEOUT_MS,
                closing=self.closing,
            )
        except RequestAbandonedError:
            return False
        except RequestError as error:
            self._failed(error)
            return False
        self._stats.received_bytes += sum(row.records.size for _, row in response.partitions())
        self._replica_manager.on_fetch_response(self._leader, request, response, monotonic_ms())
        if response.error_code is not Errors.NONE and response.error_code not in SESSION_ERRORS:
            self._failed(response.error_code.name)
            return False
        self._is_failing = False
        return True

    def _failed(self, why: object) -> None:
        log = logger.debug if self._is_failing else logger.warning
        log("%s: %s; trying again every %d ms", self.name, why, self._backoff_ms)
        self._is_failing = True

    def _tell_do_work(self) -> None:
        with suppress(ActorDeadError):
            self.actor_ref.tell(DoWork())
