"""Answers the fetches of followers, and requests about transactions.

A fetch waits if there are no records yet.

Mirrors the Fetch part of ``kafka.server.KafkaApis``. No inbox delays replication: a fetch is
processed on the thread of its socket, and a waiting fetch is answered on the thread that completes
it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from regent.actors.scheduler import Handle, Scheduler, SchedulerFullError
from regent.actors.timer import monotonic_ms
from regent.core.errors import Errors
from regent.core.protocol.broker import FetchRequest, FetchResponse
from regent.core.replication.delayed_operation import DelayedOperation
from regent.core.replication.replica_manager import ReplicaManager
from regent.transport.server import IncomingRequest, WireReply

logger = logging.getLogger(__name__)

MAX_WAIT_MS = 3_000
"""The longest wait of a fetch, even if the follower asks for more."""


class ReplicationServer:
    """The handler of the replication port.

    ``reaper`` ends waits that time out; ``on_fetched`` is called after each fetch. ``take`` answers
    other requests, and returns whether it knows them.
    """

    def __init__(
        self,
        replica_manager: ReplicaManager,
        reaper: Scheduler,
        *,
        on_fetched: Callable[[], None],
        take: Callable[[IncomingRequest], bool] | None = None,
    ) -> None:
        self._replica_manager = replica_manager
        self._reaper = reaper
        self._on_fetched = on_fetched
        self._take = take

    def __call__(self, incoming: IncomingRequest) -> None:
        """Answer at once or later; runs on the thread of the socket."""
        request = incoming.body
        if not isinstance(request, FetchRequest):
            if self._take is None or not self._take(incoming):
                incoming.reply.fail(Errors.UNSUPPORTED_VERSION)
            return
        answer = _Answer(incoming.reply, self._reaper)
        held = self._replica_manager.fetch(request, monotonic_ms(), answer)
        if held is not None:
            self._expire_later(held, answer, min(request.max_wait_ms, MAX_WAIT_MS))
        self._on_fetched()

    def _expire_later(self, held: DelayedOperation, answer: _Answer, wait_ms: int) -> None:
        try:
            answer.expire_by(self._reaper.schedule(wait_ms, lambda: self._expire(held)))
        except SchedulerFullError as full:
            logger.warning("%s; answering fetches without a wait", full)
            self._expire(held)

    def _expire(self, held: DelayedOperation) -> None:
        self._replica_manager.expire(held, monotonic_ms())


class _Answer:
    """Sends the response and cancels the reaper's timer. Thread-safe.

    It drops its reference to the timer afterwards. Otherwise timer, operation and answer would form
    a cycle, which only the garbage collector frees, some twenty minutes later.
    """

    def __init__(self, reply: WireReply, reaper: Scheduler) -> None:
        self._reply = reply
        self._reaper = reaper
        self._expiry: Handle | None = None
        self._is_given = False

    def __call__(self, response: FetchResponse) -> None:
        self._reply(response)
        self._is_given = True
        self._call_off()

    def expire_by(self, expiry: Handle) -> None:
        """Cancel ``expiry`` when the answer is given, or now if it was given already."""
        self._expiry = expiry
        if self._is_given:
            self._call_off()

    def _call_off(self) -> None:
        expiry, self._expiry = self._expiry, None
        if expiry is not None:
            self._reaper.cancel(expiry)
