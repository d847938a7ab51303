"""Requests of this broker to others: each broker has a thread, which sends one at a time.

Mirrors ``org.apache.kafka.server.util.InterBrokerSendThread``.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

from pykka import ActorDeadError, ActorRef

from regent.actors.inbox import InboxFullError, Reply
from regent.actors.request_channel import ChannelToCurrent, RequestChannel
from regent.actors.runtime import RegentActor, start_actor, stop_actor
from regent.core.model import BrokerId
from regent.core.protocol.transactions import TxnRequest, TxnResponse
from regent.transport.control.client import RequestError

log = logging.getLogger(__name__)

_STOP_TIMEOUT_S = 2.0

OpenChannel: TypeAlias = Callable[[str], RequestChannel[TxnRequest, TxnResponse]]
RespondToSender: TypeAlias = Callable[[TxnResponse | None], None]
"""Takes the answer of another broker; None: there is none."""


@dataclass(frozen=True, slots=True)
class SendRequest:
    """Send a request, and pass on its answer."""

    request: TxnRequest
    respond: RespondToSender


class InterBrokerSendThread(RegentActor):
    """Sends requests to one broker, wherever it listens at the moment."""

    inbox_limit = 10_000

    def __init__(
        self,
        name: str,
        endpoint: Callable[[], str | None],
        open_channel: OpenChannel,
        timeout_ms: int,
    ) -> None:
        super().__init__(name)
        self._endpoint = endpoint
        self._timeout_ms = timeout_ms
        self._channel = ChannelToCurrent(open_channel)
        self._is_failing = False

    def handle(self, message: SendRequest, reply: Reply | None) -> None:
        """Send one request."""
        response: TxnResponse | None = None
        try:
            response = self._send(message.request)
        finally:
            message.respond(response)

    def on_preempted(self, message: SendRequest) -> None:
        """It will not be sent."""
        message.respond(None)

    def on_stop(self) -> None:
        """Disconnect."""
        self._channel.close()

    def _send(self, request: TxnRequest) -> TxnResponse | None:
        endpoint = self._endpoint()
        if endpoint is None:
            return None
        try:
            response = self._channel.to(endpoint).request(
                request, timeout_ms=self._timeout_ms, closing=self.closing
            )
        except RequestError as error:
            level = logging.DEBUG if self._is_failing else logging.WARNING
            log.log(level, "%s: %s", self.name, error)
            self._is_failing = True
            return None
        self._is_failing = False
        return response


class InterBrokerSenders:
    """The threads of one kind of requests; thread-safe.

    ``endpoint_of`` returns where a broker listens, if it lives.
    """

    def __init__(
        self,
        purpose: str,
        endpoint_of: Callable[[BrokerId], str | None],
        open_channel: OpenChannel,
        *,
        timeout_ms: int,
    ) -> None:
        self._purpose = purpose
        self._endpoint_of = endpoint_of
        self._open_channel = open_channel
        self._timeout_ms = timeout_ms
        self._lock = threading.Lock()
        self._threads: dict[BrokerId, ActorRef[InterBrokerSendThread]] = {}
        self._is_closed = False

    def send(self, broker_id: BrokerId, request: TxnRequest, respond: RespondToSender) -> None:
        """Send a request after those before it; call ``respond`` once, on any thread.

        Without a thread there is no answer; the next request tries to start one again.
        """
        try:
            self._thread(broker_id).tell(SendRequest(request, respond))
        except (ActorDeadError, InboxFullError, RuntimeError, TimeoutError) as refused:
            log.warning("%s to broker %d: %s", self._purpose, broker_id, refused)
            respond(None)

    def keep_only(self, brokers: Collection[BrokerId]) -> None:
        """End the requests to other brokers now: a stopped process would not answer for long."""
        with self._lock:
            gone = [self._threads.pop(b) for b in list(self._threads) if b not in brokers]
        for thread in gone:
            with suppress(ActorDeadError):
                thread.stop(block=False)

    def close(self) -> None:
        """Stop the threads; what was not answered is answered with None."""
        with self._lock:
            self._is_closed = True
            threads, self._threads = list(self._threads.values()), {}
        for thread in threads:
            with suppress(ActorDeadError):
                thread.stop(block=False)  # all of them, before waiting for each
        for thread in threads:
            stop_actor(thread, _STOP_TIMEOUT_S)

    def _thread(self, broker_id: BrokerId) -> ActorRef[Any]:
        with self._lock:
            if self._is_closed:
                raise ActorDeadError("this broker is stopping")
            if broker_id not in self._threads:
                self._threads[broker_id] = start_actor(
                    InterBrokerSendThread,
                    f"{self._purpose}-{broker_id}",
                    lambda: self._endpoint_of(broker_id),
                    self._open_channel,
                    self._timeout_ms,
                )
            return self._threads[broker_id]
