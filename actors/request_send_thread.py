"""Sends the controller's requests to one broker: in order, one at a time, until answered.

Mirrors ``kafka.controller.RequestSendThread``. The same request is sent again until the broker
answers it or is removed, because skipping one would reorder the later ones. A receiver that gets a
request twice recognises the copy by its epochs.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic
from typing import Protocol, TypeAlias

from regent.actors.inbox import Reply
from regent.actors.runtime import RegentActor, Supervisor
from regent.config.tables.controller import ControllerConfig
from regent.core.errors import Errors
from regent.core.model import BrokerRegistration
from regent.core.protocol.control import ControlHeader, ControlRequest, ControlResponse
from regent.core.replication.control_request_handler import refusal
from regent.core.timers import Timer
from regent.transport.client import (
    PeerUnreachableError,
    RequestAbandonedError,
    RequestError,
    RequestFailedError,
)
from regent.transport.codec import EncodedBody, Response

logger = logging.getLogger(__name__)

UNANSWERED_WARNING_S = 5.0
_LEASE_POLL_S = 0.05  # how often a wait for the ZooKeeper session checks it


class ControlChannel(Protocol):
    """A connection to one broker's control server; ``transport.client.RequestClient``."""

    def request(
        self,
        body: EncodedBody,
        *,
        control_header: ControlHeader | None = None,
        timeout_ms: int,
        closing: threading.Event | None = None,
    ) -> Response:
        """Send and wait for the answer; raises ``RequestError``."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


OpenChannel: TypeAlias = Callable[[str], ControlChannel]
OnResponse: TypeAlias = Callable[[ControlHeader, ControlRequest, ControlResponse, float], None]
"""Called with a request, its answer, and the milliseconds from the first attempt to the answer."""


@dataclass(frozen=True, slots=True)
class QueuedRequest:
    """One request to send, with its body encoded once for all its receivers."""

    header: ControlHeader
    request: ControlRequest
    body: EncodedBody


@dataclass(frozen=True, slots=True)
class DeliverySettings:
    """How long to wait for an answer, and between attempts."""

    request_timeout_ms: int = ControllerConfig.request_timeout_ms
    retry_backoff_ms: int = ControllerConfig.retry_backoff_ms


@dataclass(slots=True)
class SendStats:
    """What one RequestSendThread has done. Only its thread writes; any thread reads."""

    queue_time: Timer = field(default_factory=Timer)
    latency: Timer = field(default_factory=Timer)
    """From the first attempt to send a request to its answer."""
    requests: int = 0
    """Requests sent, each repetition counted."""
    failures: int = 0
    """Attempts without an answer, or with an error for an answer."""
    is_connected: bool = False

    def end_attempt(self, error: RequestError | None) -> None:
        """Count one attempt to send a request."""
        self.requests += not isinstance(error, PeerUnreachableError)
        self.failures += error is not None
        # After other errors the client has closed the connection.
        self.is_connected = error is None or isinstance(error, RequestFailedError)


class RequestSendThread(RegentActor):
    """Sends to one incarnation of one broker. Its inbox holds ``QueuedRequest`` messages.

    ``may_announce`` returns whether our ZooKeeper session is certainly alive. If it is not, another
    controller may be active, and nothing is sent.
    """

    inbox_limit = 1000

    def __init__(
        self,
        name: str,
        registration: BrokerRegistration,
        open_channel: OpenChannel,
        on_response: OnResponse,
        *,
        may_announce: Callable[[], bool],
        settings: DeliverySettings,
        stats: SendStats,
        supervisor: Supervisor | None = None,
    ) -> None:
        super().__init__(name, supervisor=supervisor)
        self._registration = registration
        self._open_channel = open_channel
        self._on_response = on_response
        self._may_announce = may_announce
        self._settings = settings
        self._channel: ControlChannel | None = None
        self._stats = stats

    def handle(self, message: QueuedRequest, reply: Reply | None) -> None:
        """Send one request until it is answered, unless this actor must stop."""
        del reply
        self._stats.queue_time.record(self.queue_ms)
        warned = False
        started = monotonic()
        while not self.closing.is_set():
            response = self._attempt_delivery(message)
            if response is not None:
                answered_ms = (monotonic() - started) * 1000
                self._stats.latency.record(answered_ms)
                self._on_response(message.header, message.request, response, answered_ms)
                return
            if not warned and monotonic() - started > UNANSWERED_WARNING_S:
                warned = True
                logger.warning(
                    "%s: %s has been unanswered for %.0f s",
                    self.name,
                    type(message.request).__name__,
                    monotonic() - started,
                )
            self.closing.wait(self._settings.retry_backoff_ms / 1000)

    def on_stop(self) -> None:
        """Close the connection."""
        if self._channel is not None:
            self._channel.close()

    def _attempt_delivery(self, message: QueuedRequest) -> ControlResponse | None:
        while not self._may_announce():
            if self.closing.wait(_LEASE_POLL_S):
                return None
        endpoint = self._registration.info.control_endpoint
        if endpoint is None:
            return None  # a broker of Kafka, for example: it cannot receive our requests
        if self._channel is None:
            self._channel = self._open_channel(endpoint)
        try:
            response = self._channel.request(
                message.body,
                control_header=message.header,
                timeout_ms=self._settings.request_timeout_ms,
                closing=self.closing,
            )
        except RequestError as error:
            self._stats.end_attempt(error)
            return self._answer_instead(message.request, error)
        self._stats.end_attempt(None)
        return response  # type: ignore[return-value]  # the codec matched it to the request

    def _answer_instead(
        self, request: ControlRequest, error: RequestError
    ) -> ControlResponse | None:
        """Return the answer that an error amounts to; None: send the request again."""
        match error:
            case RequestAbandonedError():
                return None
            case RequestFailedError(error_code=Errors.BROKER_NOT_AVAILABLE):
                return None  # the broker is overloaded
            case RequestFailedError(error_code=error_code):
                logger.error("%s: %s", self.name, error)
                return refusal(request, error_code)
            case _:
                logger.debug("%s: %s; trying again", self.name, error)
                return None
