"""Sends the controller's requests to one broker: in order, until answered.

Mirrors ``kafka.controller.RequestSendThread``. The same request is sent again until the broker
answers it or is removed, because skipping one would reorder the later ones. A receiver that gets a
request twice recognises the copy by its epochs. Unlike in Kafka, an UpdateMetadata does not wait
for the answer to the LeaderAndIsr before it: see ``may_be_unanswered_together``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Protocol, TypeAlias

from regent.actors.inbox import Reply
from regent.actors.runtime import RegentActor, Supervisor
from regent.config.tables.controller import ControllerConfig
from regent.core.controller.events import BrokerUnusable, ControllerEvent, ElectionDoubted
from regent.core.errors import Errors
from regent.core.model import BrokerInfo, BrokerRegistration
from regent.core.protocol.control import (
    ControlHeader,
    ControlRequest,
    ControlResponse,
    may_be_unanswered_together,
)
from regent.core.repeated_lines import RepeatedLines
from regent.core.replication.control_request_handler import refusal
from regent.core.timers import RecentDurations, Timer
from regent.transport.control.client import (
    PeerUnreachableError,
    RequestError,
    RequestFailedError,
)
from regent.transport.control.codec import EncodedBody, Response
from regent.transport.kafka.control_channel import KafkaControlBody

logger = logging.getLogger(__name__)

UNANSWERED_WARNING_S = 5.0
# A broker that hears of a new controller asks ZooKeeper about it, and has the answer soon.
_FIRST_BACKOFF_MS = 10.0
_LEASE_POLL_S = 0.05  # how often a wait for the ZooKeeper session checks it


class ControlChannel(Protocol):
    """A connection to one broker, by which it gets control requests.

    ``transport.control.client.RequestClient``, or ``transport.kafka.control_channel`` to a broker
    of Kafka. Each sends bodies in its own form: see ``OpenChannel`` and ``EncodeBody``.
    """

    @property
    def software(self) -> str:
        """What the broker says that it is, for people; "": nothing."""
        ...

    def request_each(
        self,
        requests: Sequence[tuple[Any, ControlHeader]],
        *,
        timeout_ms: int,
        closing: Any = None,
    ) -> Iterator[tuple[int, Response | RequestFailedError]]:
        """Send all, and yield each answer with its place; raises ``RequestError``."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


ControlBody: TypeAlias = EncodedBody | KafkaControlBody
OpenChannel: TypeAlias = Callable[[BrokerInfo], ControlChannel]
"""Raises ``RequestFailedError`` if the broker does not say where it can be reached."""
OnResponse: TypeAlias = Callable[[ControlHeader, ControlRequest, ControlResponse, float], None]
"""Called with a request, its answer, and the milliseconds from the first attempt to the answer."""


@dataclass(frozen=True, slots=True, eq=False)
class QueuedRequest:
    """One request to send, with its body encoded once for all its receivers of a kind."""

    header: ControlHeader
    request: ControlRequest
    body: ControlBody

    @property
    def name(self) -> str:
        """For example LeaderAndIsr."""
        return type(self.request).__name__.removesuffix("Request")


@dataclass(slots=True, eq=False, repr=False)
class Dispatch:
    """One request, or two that may be unanswered together; those that are not answered yet."""

    unanswered: list[QueuedRequest]

    def __repr__(self) -> str:
        """Return the names of the requests only: a request may list all partitions."""
        return f"Dispatch({', '.join(queued.name for queued in self.unanswered.copy())})"

    @property
    def name(self) -> str:
        """What the broker answers first, for example LeaderAndIsr; "" for nothing. Thread-safe."""
        return next((queued.name for queued in self.unanswered.copy()), "")


@dataclass(frozen=True, slots=True)
class AwaitAnswers:
    """Is answered when the broker has answered everything that was queued before."""


def in_dispatches(requests: Iterable[QueuedRequest]) -> Iterator[Dispatch]:
    """Yield requests to one broker in order, two together where that is allowed."""
    first: QueuedRequest | None = None
    for queued in requests:
        if first is None:
            first = queued
        elif may_be_unanswered_together(first.request, queued.request):
            yield Dispatch([first, queued])
            first = None
        else:
            yield Dispatch([first])
            first = queued
    if first is not None:
        yield Dispatch([first])


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
    recent_latency: RecentDurations = field(default_factory=RecentDurations)
    requests: int = 0
    """Requests sent, each repetition counted."""
    failures: int = 0
    """Attempts without an answer, or with an error for an answer."""
    is_connected: bool = False
    refusal: str = ""
    """Why the broker takes no request of us: another one answers there, for example."""
    last_error: str = ""
    """Why the last attempt had no answer; "" if it had one."""
    software: str = ""
    """What the broker is, as far as it is known."""

    def end_attempt(self, error: RequestError | None) -> None:
        """Count one attempt to send a request."""
        self.requests += not isinstance(error, PeerUnreachableError)
        self.failures += error is not None
        self.last_error = "" if error is None else str(error)
        # After other errors the client has closed the connection.
        self.is_connected = error is None or isinstance(error, RequestFailedError)


class RequestSendThread(RegentActor):
    """Sends to one incarnation of one broker. Its inbox holds ``Dispatch`` and ``AwaitAnswers``.

    ``may_announce`` returns whether our ZooKeeper session is certainly alive. If it is not, another
    controller may be active, and nothing is sent. ``tell`` gets events for the controller: the
    broker found another controller in ZooKeeper, or takes no request of us (once for each reason).
    """

    inbox_limit = 1000

    def __init__(
        self,
        name: str,
        registration: BrokerRegistration,
        open_channel: OpenChannel,
        on_response: OnResponse,
        *,
        tell: Callable[[ControllerEvent], None],
        may_announce: Callable[[], bool],
        settings: DeliverySettings,
        stats: SendStats,
        supervisor: Supervisor | None = None,
    ) -> None:
        super().__init__(name, supervisor=supervisor)
        self._registration = registration
        self._open_channel = open_channel
        self._on_response = on_response
        self._tell = tell
        self._may_announce = may_announce
        self._lines = RepeatedLines()
        self._settings = settings
        self._channel: ControlChannel | None = None
        self._may_soon_be_known = False
        self._stats = stats

    def handle(self, message: Dispatch | AwaitAnswers, reply: Reply | None) -> None:
        """Send each request until it is answered, unless this actor must stop."""
        if isinstance(message, AwaitAnswers):
            if reply is not None:
                reply.set(None)
            return
        for _ in message.unanswered:
            self._stats.queue_time.record(self.queue_ms)
        warned = False
        started = monotonic()
        backoff_ms = min(_FIRST_BACKOFF_MS, self._settings.retry_backoff_ms)
        while not self.closing.is_set():
            self._attempt_delivery(message, started)
            if not message.unanswered:
                return
            if not warned and monotonic() - started > UNANSWERED_WARNING_S:
                warned = True
                logger.warning(
                    "%s: %s has been unanswered for %.0f s: %s",
                    self.name,
                    message.name,
                    monotonic() - started,
                    self._stats.last_error,
                )
            longest_ms = self._settings.retry_backoff_ms
            self.closing.wait((backoff_ms if self._may_soon_be_known else longest_ms) / 1000)
            backoff_ms = min(2 * backoff_ms, longest_ms)

    def on_stop(self) -> None:
        """Close the connection."""
        if self._channel is not None:
            self._channel.close()

    def _attempt_delivery(self, dispatch: Dispatch, started: float) -> None:
        """Send what is not answered, once, and report the answers."""
        while not self._may_announce():
            if self.closing.wait(_LEASE_POLL_S):
                return
        sent = dispatch.unanswered.copy()
        try:
            if self._channel is None:
                self._channel = self._open_channel(self._registration.info)
            for place, answer in self._channel.request_each(
                [(queued.body, queued.header) for queued in sent],
                timeout_ms=self._settings.request_timeout_ms,
                closing=self.closing,
            ):
                response = self._response(sent[place], answer)
                if response is not None:
                    dispatch.unanswered.remove(sent[place])
                    self._report(sent[place], response, started)
        except RequestError as error:
            for _ in dispatch.unanswered:
                self._stats.end_attempt(error)
            if isinstance(error, RequestFailedError):
                self._log_again(logging.ERROR, error)
                self._note_refusal(sent[0].header, str(error))
            logger.debug("%s: %s; trying again", self.name, error)
        if self._channel is not None and self._channel.software:
            self._stats.software = self._channel.software

    def _response(
        self, queued: QueuedRequest, answer: Response | RequestFailedError
    ) -> ControlResponse | None:
        """Return the answer, or the one that an error amounts to; None: send the request again."""
        is_refused = False
        self._may_soon_be_known = False
        if not isinstance(answer, RequestFailedError):
            self._stats.end_attempt(None)
            self._stats.refusal = ""
            return answer  # type: ignore[return-value]  # the codec matched it to the request
        self._stats.end_attempt(answer)
        match answer.error_code:
            case Errors.BROKER_NOT_AVAILABLE:
                # The broker is overloaded, or asks ZooKeeper about us.
                self._may_soon_be_known = True
            case Errors.BROKER_ID_NOT_REGISTERED:
                is_refused = True
                self._log_again(logging.ERROR, answer)
            case Errors.CLUSTER_AUTHORIZATION_FAILED:  # for now: it has other keys or ACLs
                is_refused = True
                self._log_again(logging.ERROR, answer)
            case Errors.NOT_CONTROLLER:
                if self._log_again(logging.WARNING, answer):
                    self._tell(ElectionDoubted())
            case _:
                logger.error("%s: %s", self.name, answer)
                return refusal(queued.request, answer.error_code)
        self._note_refusal(queued.header, str(answer) if is_refused else "")
        return None

    def _note_refusal(self, header: ControlHeader, reason: str) -> None:
        """Remember why the broker takes no request, "" for no such reason; tell it once."""
        if reason and reason != self._stats.refusal:
            broker_id = self._registration.info.broker_id
            self._tell(BrokerUnusable(broker_id, header, reason))
        self._stats.refusal = reason

    def _log_again(self, level: int, error: RequestFailedError) -> bool:
        """Log why a request is repeated, once in ten seconds; return whether it was due."""
        is_due = self._lines.is_due(error.error_code, round(monotonic() * 1000))
        if is_due:
            logger.log(level, "%s: %s; trying again", self.name, error)
        return is_due

    def _report(self, queued: QueuedRequest, response: ControlResponse, started: float) -> None:
        now = monotonic()
        answered_ms = (now - started) * 1000
        self._stats.latency.record(answered_ms)
        self._stats.recent_latency.record(answered_ms, now)
        self._on_response(queued.header, queued.request, response, answered_ms)
