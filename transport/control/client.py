"""Sends requests to one peer and waits for their answers.

This module, not ZeroMQ, decides about delivery. An answer is matched to its request by the
correlation id only. A request is sent only to a connected peer. After a timeout or a lost
connection the socket is closed with everything it still holds. The caller may retry, because
epochs make the receivers idempotent. While an answer is awaited, a silent peer is asked whether it
still runs; without a reply the connection counts as lost.

``RequestError``             no answer; ``endpoint`` names the peer
├── PeerUnreachableError      no peer answers there; the request was not sent
├── PeerDisconnectedError     the connection broke; the request may have been carried out
├── RequestTimeoutError       no answer in time; the request may have been carried out
├── RequestAbandonedError     the caller is closing; the request may have been carried out
└── RequestFailedError        the peer refused with an error code and no body
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, suppress
from typing import Final, NamedTuple

import zmq

from regent.config.addresses import without_key
from regent.core.errors import BadDataError, Errors, RegentError
from regent.core.protocol.control import ControlHeader
from regent.core.records import RecordBytes
from regent.transport.control import codec
from regent.transport.control.codec import (
    EncodedBody,
    ReplyHeader,
    Request,
    RequestHeader,
    Response,
)
from regent.transport.control.key_files import doubt_of_keys
from regent.transport.control.sockets import (
    FLUSH_MS,
    QUEUED_MESSAGES,
    Context,
    ReceivedFrames,
    connect_to,
    joined,
    open_monitor,
    open_socket,
    pieces,
    receive_message,
)

logger = logging.getLogger(__name__)

_SLICE_MS: Final = 50  # how often a wait checks whether its caller is closing
_MAX_UNANSWERED: Final = QUEUED_MESSAGES // 2


class RequestError(RegentError):
    """A request was not answered."""

    def __init__(self, endpoint: str, message: str) -> None:
        super().__init__(f"{endpoint}: {message}")
        self.endpoint = endpoint


class PeerUnreachableError(RequestError):
    """No connection could be made; the request was not sent."""


class PeerDisconnectedError(RequestError):
    """The connection broke while the answer was awaited."""


class RequestTimeoutError(RequestError):
    """The peer is connected and did not answer in time."""


class RequestAbandonedError(RequestError):
    """The caller is closing and no longer waits."""


class RequestFailedError(RequestError):
    """The peer answered with ``error_code`` instead of a body."""

    def __init__(self, endpoint: str, error_code: Errors, message: str) -> None:
        super().__init__(endpoint, message)
        self.error_code = error_code


class _Patience(NamedTuple):
    """The limit of a wait: a monotonic instant, or the close of the client."""

    deadline: float
    closing: threading.Event | None
    timeout_ms: int

    @property
    def is_abandoned(self) -> bool:
        return self.closing is not None and self.closing.is_set()

    def slice_ms(self) -> int:
        """Return how long to poll before the next check; 0 when the time is over."""
        left = self.deadline - time.monotonic()
        if left <= 0:
            return 0
        left_ms = int(left * 1000) + 1
        return left_ms if self.closing is None else min(left_ms, _SLICE_MS)


class _Link:
    """One DEALER socket and the monitor that reports a broken connection.

    A peer is asked whether it runs when it was silent for ``silent_s``, and counts as gone when it
    does not reply within ``gone_s``.
    """

    def __init__(self, context: Context, endpoint: str, silent_s: float, gone_s: float) -> None:
        self.unanswered = 0
        self._silent_s = silent_s
        self._gone_s = gone_s
        self._is_connected = False  # as far as the events have been read
        self._heard_at = 0.0
        self._asked_at: float | None = None
        with ExitStack() as undo:
            self.dealer = open_socket(context, zmq.DEALER)
            undo.callback(self.dealer.close)
            self._monitor = open_monitor(
                context, self.dealer, zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
            )
            undo.callback(self._monitor.close)
            connect_to(self.dealer, endpoint)
            undo.pop_all()
        self._poller = zmq.Poller()
        self._poller.register(self.dealer, zmq.POLLIN)
        self._poller.register(self._monitor, zmq.POLLIN)

    def send(self, frames: Sequence[RecordBytes]) -> None:
        """Send a message; raises zmq.Again when there is no connection to send it on."""
        self.dealer.send_multipart(list(pieces(frames)), zmq.NOBLOCK, copy=False)
        self.unanswered += 1

    def receive(self) -> ReceivedFrames | None:
        """Return a message that has arrived, if there is one."""
        message = receive_message(self.dealer)
        if message is not None:
            self.unanswered -= 1
            self.begin_wait()
        return message

    def begin_wait(self) -> None:
        """From now on the peer may be silent for some time."""
        self._heard_at, self._asked_at = time.monotonic(), None

    def is_gone(self) -> bool:
        """Whether the peer was asked and has not replied; ask it if it has been silent."""
        now = time.monotonic()
        if self._asked_at is not None:
            return now >= self._asked_at + self._gone_s
        if now >= self._heard_at + self._silent_s:
            self._asked_at = now
            with suppress(zmq.Again):  # the monitor reports a broken connection
                self.send(codec.PING)
        return False

    def poll(self, timeout_ms: int) -> None:
        """Wait for a message or a broken connection, or until a silent peer must be asked."""
        self._poller.poll(min(timeout_ms, max(1, int(self._silent_s * 1000))))

    def take_disconnected(self) -> bool:
        """Return whether the connection broke since this was last asked.

        ZeroMQ tries again by itself until it is connected; attempts that fail are not reported.
        """
        disconnected = False
        while self._monitor.poll(0):
            event, _ = self._monitor.recv_multipart(zmq.NOBLOCK)
            if int.from_bytes(event[:2], "little") == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._is_connected = True
            elif self._is_connected:
                self._is_connected, disconnected = False, True
        return disconnected

    def close(self, *, linger_ms: int) -> None:
        """Close both sockets; sent messages have ``linger_ms`` to leave."""
        with suppress(zmq.ContextTerminated):
            self.dealer.disable_monitor()
        self._monitor.close(linger=0)
        self.dealer.close(linger=linger_ms)


class RequestClient:
    """Sends requests to the owner of the key in ``endpoint``; one thread uses and closes it.

    ``connect_timeout_ms`` limits the wait for a connection, so that an absent peer is noticed long
    before a request would time out. ``silent_s`` and ``gone_s``: see ``_Link``. Clients may share
    ``correlation_ids``, so that the ids ascend over all of them.
    """

    software: Final = ""
    """A broker of ours tells its release in its registration."""

    def __init__(
        self,
        context: Context,
        endpoint: str,
        *,
        client_id: str,
        connect_timeout_ms: int = 1000,
        silent_s: float = 1.0,
        gone_s: float = 3.0,
        correlation_ids: Iterator[int] | None = None,
    ) -> None:
        self.endpoint = without_key(endpoint)
        self._keyed_endpoint = endpoint
        self._context = context
        self._client_id = client_id
        self._connect_timeout_ms = connect_timeout_ms
        self._silent_s = silent_s
        self._gone_s = gone_s
        self._correlation_ids = correlation_ids or itertools.count(1)
        self._link: _Link | None = None

    def request(
        self,
        body: EncodedBody | Request,
        *,
        control_header: ControlHeader | None = None,
        timeout_ms: int,
        closing: threading.Event | None = None,
    ) -> Response:
        """Send ``body`` and return the answer, an instance of the response class of its api.

        Raises a RequestError, or BadDataError when ``body`` cannot be encoded.
        """
        encoded = body if isinstance(body, EncodedBody) else codec.encode_request(body)
        requests = [(encoded, control_header)]
        ((_, answer),) = self.request_each(requests, timeout_ms=timeout_ms, closing=closing)
        if isinstance(answer, RequestFailedError):
            raise answer
        return answer

    def request_each(
        self,
        requests: Sequence[tuple[EncodedBody, ControlHeader | None]],
        *,
        timeout_ms: int,
        closing: threading.Event | None = None,
    ) -> Iterator[tuple[int, Response | RequestFailedError]]:
        """Send requests one behind the other; yield the place and the answer of each as it comes.

        Raises another RequestError when no further answers will come.
        """
        patience = _Patience(time.monotonic() + timeout_ms / 1000, closing, timeout_ms)
        try:
            link = self._connected_link(patience)
            awaited = {
                self._send(link, body, control_header): place
                for place, (body, control_header) in enumerate(requests)
            }
            while awaited:
                header, frames = self._await_reply(link, awaited, patience)
                place = awaited.pop(header.correlation_id)
                yield place, self._decode_reply(requests[place][0], header, frames)
        except RequestError:
            self._drop_link()
            raise
        except zmq.ZMQError as error:
            raise self._broken(error) from error

    def send(
        self,
        body: EncodedBody | Request,
        *,
        control_header: ControlHeader | None = None,
        closing: threading.Event | None = None,
    ) -> None:
        """Send ``body`` to a connected peer and do not wait for the answer, which is discarded.

        Raises PeerUnreachableError, RequestTimeoutError (the peer does not answer earlier
        requests), RequestAbandonedError or BadDataError; then it was not sent.
        """
        encoded = body if isinstance(body, EncodedBody) else codec.encode_request(body)
        timeout_ms = self._connect_timeout_ms
        patience = _Patience(time.monotonic() + timeout_ms / 1000, closing, timeout_ms)
        try:
            link = self._connected_link(patience)
            self._await_room(link, patience)
            self._send(link, encoded, control_header)
        except RequestError:
            self._drop_link()
            raise
        except zmq.ZMQError as error:
            raise self._broken(error) from error

    def close(self) -> None:
        """Close the connection; sent messages get a moment to leave. Idempotent."""
        self._drop_link(linger_ms=FLUSH_MS)

    def _connected_link(self, patience: _Patience) -> _Link:
        """Return a link with a connected peer."""
        self._check_abandoned(patience)
        if self._link is not None and self._link.take_disconnected():
            self._drop_link()  # another incarnation may listen there now
        if self._link is None:
            try:
                self._link = _Link(
                    self._context, self._keyed_endpoint, self._silent_s, self._gone_s
                )
            except ValueError as error:
                raise PeerUnreachableError(self.endpoint, str(error)) from None
        connect_deadline = time.monotonic() + self._connect_timeout_ms / 1000
        patience = patience._replace(deadline=min(patience.deadline, connect_deadline))
        while not self._link.dealer.poll(patience.slice_ms(), zmq.POLLOUT):
            self._check_abandoned(patience)
            if not patience.slice_ms():
                raise PeerUnreachableError(
                    self.endpoint,
                    f"no connection; is the process there running, and {doubt_of_keys()}",
                )
        return self._link

    def _await_room(self, link: _Link, patience: _Patience) -> None:
        """Wait until few answers are missing, and discard them: the peer drops unread answers."""
        while link.receive() is not None or link.unanswered >= _MAX_UNANSWERED:
            if link.take_disconnected():
                raise PeerUnreachableError(self.endpoint, "the connection broke")
            self._check_abandoned(patience)
            timeout_ms = patience.slice_ms()
            if not timeout_ms:
                raise RequestTimeoutError(self.endpoint, "it does not answer earlier requests")
            if link.unanswered >= _MAX_UNANSWERED:
                link.poll(timeout_ms)

    def _send(self, link: _Link, body: EncodedBody, control: ControlHeader | None) -> int:
        correlation_id = next(self._correlation_ids)
        header = RequestHeader(
            codec.HEADER_VERSION,
            body.api_key,
            codec.API_VERSION,
            correlation_id,
            self._client_id,
            *(() if control is None else (*control[:3], control.event_id, control.broker_id)),
        )
        frames = (b"", codec.encode_request_header(header), *body.frames)
        try:
            link.send(frames)
        except zmq.Again:
            raise PeerUnreachableError(self.endpoint, "the connection is gone or full") from None
        return correlation_id

    def _await_reply(
        self, link: _Link, awaited: Collection[int], patience: _Patience
    ) -> tuple[ReplyHeader, list[RecordBytes]]:
        """Return the header and the body's frames, if any, of the next reply."""
        disconnected = False
        link.begin_wait()
        while True:
            # Checked first, so that an answer that arrived just before is not missed.
            disconnected = link.take_disconnected() or disconnected
            message = link.receive()
            if message is not None:
                reply = self._match(message.frames, awaited)
                if reply is not None:
                    return reply
            elif disconnected:
                raise PeerDisconnectedError(self.endpoint, "the connection broke")
            elif link.is_gone():
                raise PeerDisconnectedError(
                    self.endpoint, "connected, but the process stands still"
                )
            self._check_abandoned(patience)
            timeout_ms = patience.slice_ms()
            if not timeout_ms:
                why = f"connected, but no answer within {patience.timeout_ms} ms"
                raise RequestTimeoutError(self.endpoint, why)
            if message is None:
                link.poll(timeout_ms)

    def _match(
        self, frames: list[RecordBytes], awaited: Collection[int]
    ) -> tuple[ReplyHeader, list[RecordBytes]] | None:
        """Return header and body if ``frames`` are an awaited reply, else ``None``."""
        if tuple(frames) == codec.PING:
            return None
        try:
            header = codec.decode_reply_header(frames[1] if len(frames) > 1 else b"")
        except BadDataError as error:
            logger.warning("Discarding a reply of %s: %s", self.endpoint, error)
            return None
        if header.correlation_id not in awaited:
            logger.debug("Discarding late reply %d of %s", header.correlation_id, self.endpoint)
            return None
        return header, frames[2:]

    def _decode_reply(
        self, request: EncodedBody, header: ReplyHeader, frames: list[RecordBytes]
    ) -> Response | RequestFailedError:
        name, error_code = request.api_key.name, header.error_code
        try:
            if frames:
                return codec.decode_response_body(request.api_key, joined(frames))
            without_body = f"{name} was answered with {error_code.name} and no body"
            reason = header.reason if header.reason.isprintable() else ""
            reason = reason or without_body
        except BadDataError as error:
            reason = f"the answer to {name} cannot be decoded: {error}"
        error_code = error_code or Errors.UNKNOWN_SERVER_ERROR
        return RequestFailedError(self.endpoint, error_code, reason)

    def _check_abandoned(self, patience: _Patience) -> None:
        if patience.is_abandoned:
            raise RequestAbandonedError(self.endpoint, "closing while a request is in flight")

    def _broken(self, error: zmq.ZMQError) -> RequestError:
        """Drop a socket that cannot be used; return the error to raise."""
        self._drop_link()
        if isinstance(error, zmq.ContextTerminated):
            return RequestAbandonedError(self.endpoint, "the process is closing")
        return PeerUnreachableError(self.endpoint, f"cannot be used: {error}")

    def _drop_link(self, *, linger_ms: int = 0) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.close(linger_ms=linger_ms)
