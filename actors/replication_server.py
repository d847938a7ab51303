"""Answers the fetches of followers, and holds the answers that have nothing to tell.

Mirrors the Fetch half of ``kafka.server.KafkaApis`` with ``DelayedFetch``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from pykka import ActorDeadError, ActorRef

from actors.inbox import Asked, InboxFullError, Reply
from actors.request_router import give_answer
from actors.runtime import RegentActor, Supervisor
from actors.scheduler import Scheduler
from actors.timer import monotonic_ms
from core.errors import Errors
from core.model import NO_EPOCH
from core.protocol.broker import FetchRequest, FetchResponse
from core.replication.replica_manager import ReplicaManager
from transport.server import IncomingRequest

logger = logging.getLogger(__name__)

MAX_WAIT_MS = 3_000
"""No answer is held for longer, whatever the follower says."""


@dataclass(frozen=True, slots=True)
class FetchExpired:
    """An answer has been held for long enough."""

    reply: Reply
    response: FetchResponse


ReplicationMessage: TypeAlias = FetchRequest | FetchExpired


class ReplicationServer(RegentActor):
    """Asks the ReplicaManager; ``on_fetched`` is called after each fetch, on this thread."""

    inbox_limit = 1000  # and so many answers are held at most

    def __init__(
        self,
        replica_manager: ReplicaManager,
        scheduler: Scheduler,
        *,
        on_fetched: Callable[[], None],
        supervisor: Supervisor | None = None,
    ) -> None:
        super().__init__(f"replication-server-{replica_manager.broker_id}", supervisor=supervisor)
        self.fetches = 0
        self._replica_manager = replica_manager
        self._scheduler = scheduler
        self._on_fetched = on_fetched

    def handle(self, message: ReplicationMessage, reply: Reply | None) -> None:
        """Answer, at once or later."""
        match message:
            case FetchRequest():
                if reply is not None:
                    self._fetch(message, reply)
            case FetchExpired(held, response):
                held.set(response)

    def on_stop(self) -> None:
        """Forget the timers; every answer that is held becomes a refusal after this."""
        self._scheduler.cancel_key(self.name)

    def preemption_answer(self, message: object) -> object:
        """Send the follower away."""
        if isinstance(message, FetchRequest):
            return FetchResponse(Errors.BROKER_NOT_AVAILABLE)
        return super().preemption_answer(message)

    def _fetch(self, request: FetchRequest, reply: Reply) -> None:
        self.fetches += 1
        response = self._replica_manager.fetch(request, monotonic_ms())
        self._on_fetched()
        wait_ms = min(request.max_wait_ms, MAX_WAIT_MS)
        if wait_ms <= 0 or _has_news(response):
            reply.set(response)
        else:
            expired = FetchExpired(reply, response)
            self._scheduler.schedule(wait_ms, lambda: self._tell(expired), key=self.name)

    def _tell(self, expired: FetchExpired) -> None:
        try:
            self.actor_ref.tell(expired)
        except ActorDeadError:
            logger.debug("%s has stopped and answered already", self.name)
        except InboxFullError:
            expired.reply.set(expired.response)


class FetchRouter:
    """Hands what arrives on the replication port to the ReplicationServer; fetches only."""

    def __init__(self, server: ActorRef[ReplicationServer]) -> None:
        self._server = server

    def __call__(self, incoming: IncomingRequest) -> None:
        """Tell the actor; runs on the thread of the socket."""
        if not isinstance(incoming.body, FetchRequest):
            incoming.reply.fail(Errors.UNSUPPORTED_VERSION)
            return
        reply = Reply.of(lambda answer: give_answer(incoming, answer))
        try:
            self._server.tell(Asked(incoming.body, reply))
        except (ActorDeadError, InboxFullError) as refused:
            logger.debug("%s of %s: %s", incoming.api_key.name, incoming.client_id, refused)
            incoming.reply.fail(Errors.BROKER_NOT_AVAILABLE)


def _has_news(response: FetchResponse) -> bool:
    return response.error_code is not Errors.NONE or any(
        row.error_code is not Errors.NONE or row.diverging_epoch != NO_EPOCH
        for topic in response.topics
        for row in topic.partitions
    )
