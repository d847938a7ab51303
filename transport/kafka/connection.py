"""One client connection: requests are handled and answered in sequence.

It works on the socket itself and not through an asyncio transport, which would copy what is
received and cannot put a file between two pieces of memory.

A connection is not read while ``queued_requests_per_connection`` of its requests are in progress,
while the client does not read its answers, while a request waits for memory, and while the client
must wait because of a quota.
``connection_scheduler`` shares the time between connections. Mirrors ``kafka.network.Processor``.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, TypeVar

from regent.config.tables.broker import BrokerConfig
from regent.core.errors import StorageError
from regent.core.quota.client_quota_manager import QuotaClient
from regent.core.quota.quota_entities import ANONYMOUS, MAX_NAME
from regent.core.quota.quota_managers import QuotaManagers
from regent.transport.kafka.api import (
    FIRST_FLEXIBLE_VERSION,
    KafkaAnswer,
    KafkaApi,
    KafkaApiKey,
    KafkaRequest,
    LaterAnswer,
    UnansweredRequestError,
)
from regent.transport.kafka.api_versions import told_software
from regent.transport.kafka.framing import CHUNK_BYTES, FrameBuffer
from regent.transport.kafka.handler_steps import BegunSteps, TimedSteps
from regent.transport.kafka.listener_loop import SHORT_TURN_S, ConnectionScheduler
from regent.transport.kafka.metrics import MAX_VERSIONS, Closed, ListenerMetrics, RequestMetrics
from regent.transport.kafka.outgoing import TURN_BYTES, Outgoing
from regent.transport.kafka.primitives import MalformedRequestError, Reader
from regent.transport.kafka.request_memory import RequestBuffers, RequestMemory, Reservation
from regent.transport.kafka.throttle import Throttle

T = TypeVar("T")

_REQUEST_HEADER: Final = struct.Struct(">hhi")
_ANSWER_HEADER: Final = struct.Struct(">ii")  # size of what follows, correlation id
_SIZE_BYTES: Final = 4
_CORRELATION_ID_BYTES: Final = 4
_clock: Final = time.monotonic  # also the loop's
_RESERVED_AHEAD: Final = 2  # memory for a large request, as a multiple of what has arrived
PACE_BYTES: Final = 256 * 1024
"""Bytes per second that a large request must send while others wait for memory."""
MAX_BYTES_WITHOUT_RECORDS: Final = 4 * 1024 * 1024
"""The maximum size of requests other than Produce: these are decoded at once."""


@dataclass(frozen=True, slots=True)
class KafkaLimits:
    """The limits of clients; Kafka's settings, times in milliseconds.

    ``max_connections_per_ip_overrides`` has the limits of hosts, by name or address.
    ``queued_max_request_bytes`` limits all requests of more than 64 KiB together. The smaller
    requests of a connection take about 64 KiB at most.
    """

    socket_request_max_bytes: int = BrokerConfig.socket_request_max_bytes
    max_connections: int = BrokerConfig.max_connections
    max_connections_per_ip: int = BrokerConfig.max_connections_per_ip
    max_connections_per_ip_overrides: Mapping[str, int] = field(default_factory=dict)
    queued_requests_per_connection: int = BrokerConfig.queued_requests_per_connection
    connections_max_idle_ms: int = BrokerConfig.connections_max_idle_ms
    queued_max_request_bytes: int = BrokerConfig.queued_max_request_bytes


@dataclass(frozen=True, slots=True)
class ListenerParts:
    """What the connections of a listener share."""

    name: str
    loop: asyncio.AbstractEventLoop
    apis: Mapping[int, KafkaApi]
    limits: KafkaLimits
    metrics: ListenerMetrics
    memory: RequestMemory
    buffers: RequestBuffers
    scheduler: ConnectionScheduler
    on_closed: Callable[[KafkaConnection], None]
    quotas: QuotaManagers


class _UnsupportedRequestError(Exception):
    """A request of a kind or version that is not advertised."""


class _Exchange:
    """A request in progress and, when there is one, its response.

    ``end``: how many bytes have been sent on its connection when its response has.
    """

    __slots__ = (
        "answer",
        "answered_at",
        "arrived_at",
        "begun_at",
        "correlation_id",
        "end",
        "first_waited_at",
        "header_end",
        "in_turn_at",
        "is_done",
        "later",
        "metrics",
        "reservation",
        "task",
        "throttle",
    )

    def __init__(
        self,
        request: KafkaRequest,
        reservation: Reservation | None,
        metrics: RequestMetrics,
        arrived_at: float,
        begun_at: float,
    ) -> None:
        self.metrics = metrics
        self.arrived_at = arrived_at
        self.begun_at = begun_at
        self.first_waited_at = self.answered_at = self.in_turn_at = 0.0
        self.end = 0
        self.correlation_id = request.correlation_id
        self.header_end = request.response_header_end
        self.reservation = reservation  # of the listener's memory, when it is large
        self.throttle = request.throttle
        self.task: asyncio.Task[KafkaAnswer] | None = None
        self.later: LaterAnswer | None = None
        self.answer: KafkaAnswer = None
        self.is_done = False

    def on_sent(self, now: float) -> None:
        """Record the times of the request: its response was sent, or there is none."""
        if not self.metrics.is_to_be_timed(now):
            return
        self.metrics.record(
            self.arrived_at,
            self.begun_at,
            self.first_waited_at or self.answered_at,
            self.answered_at,
            self.in_turn_at,
            now,
        )


class KafkaConnection:
    """Used on the event loop's thread only; it owns ``sock``, which does not block."""

    def __init__(self, sock: socket.socket, client_host: str, parts: ListenerParts) -> None:
        self.last_active = parts.loop.time()
        self.client_host = client_host
        self._socket = sock
        self._parts = parts
        self._frames = FrameBuffer(parts.limits.socket_request_max_bytes, parts.buffers)
        self._outgoing = Outgoing(sock)
        self._under_way: deque[_Exchange] = deque()
        self._unsent: deque[_Exchange] = deque()  # answered in part or not at all
        self._queued = 0  # bytes of responses, sent or not
        self._software = parts.metrics.connected()
        self._arrived_at = 0.0  # when the newest bytes did
        self._now = 0.0  # when something was last done here
        self._reservation: Reservation | None = None  # for the request that is being received
        self._received = 0  # bytes
        self._unmuting: asyncio.TimerHandle | None = None  # while the client must wait
        self._has_turn_coming = False
        self._is_reading = self._is_writing = False
        self._is_ending = self._is_closed = False

    def open(self) -> None:
        """Begin to read."""
        self._read(True)

    @property
    def is_idle(self) -> bool:
        """Whether the client could send a request, and does not."""
        return self._has_sent_all and self._unmuting is None

    @property
    def _has_sent_all(self) -> bool:
        return not self._under_way and not self._outgoing.size

    def end(self) -> None:
        """Accept no more requests, and close when those in progress are answered."""
        self._is_ending = True
        self._on_ready()

    def check_pace(self) -> None:
        """Close, when others wait for memory and less than ``PACE_BYTES`` came since the last call.

        Only a large request that has begun to arrive holds memory. It is not slow while it waits
        for more memory, or for the answers to earlier requests.
        """
        held = self._reservation
        if held is None or self._is_at_limit:
            return
        before, held.received_before = held.received_before, self._received
        if before is not None and self._received < before + PACE_BYTES:
            size = self._frames.next_size
            detail = f"{self._received - before} bytes in a second of a request of {size}"
            self.close(Closed.SLOW, detail)

    def end_wait(self) -> None:
        """Read again from a client that waits: its quota may have changed."""
        if self._unmuting is not None:
            self._unmuting.cancel()
            self._unmute()

    def shrink(self) -> None:
        """Release memory that is kept for future requests."""
        self._frames.shrink()

    def close(self, reason: Closed | None = None, detail: BaseException | str = "") -> None:
        """Close at once; requests in progress are abandoned. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        if reason is not None:
            self._parts.metrics.count_closed(reason, self._parts.name, self.client_host, detail)
        self._read(False)
        self._write(False)
        if self._unmuting is not None:
            self._unmuting.cancel()
        self._socket.close()
        self._parts.metrics.closed_connection(self._software)
        for reservation in (self._reservation, *(e.reservation for e in self._under_way)):
            if reservation is not None:
                self._parts.memory.release(reservation)
        abandoned = [e for e in self._under_way if not e.is_done]
        self._under_way.clear()
        for exchange in abandoned:
            if exchange.task is not None:
                exchange.task.cancel()
            if exchange.later is not None:
                exchange.later.abandon()
        self._parts.on_closed(self)

    # --- what the loop calls ---

    def _on_readable(self) -> None:
        try:
            reserved = 0 if self._reservation is None else self._reservation.size
            count = self._socket.recv_into(self._frames.room(reserved))
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            count = 0
        if count == 0:
            self.close()
            return
        self._parts.metrics.bytes_in += count
        self._received += count
        self._frames.received(count)
        self._arrived_at = _clock()
        self._continue(self._arrived_at)

    def _on_ready(self) -> None:
        self._continue(_clock())

    def _continue(self, now: float) -> None:
        """Continue at once, unless other connections wait: then wait too."""
        self._now = now
        if self._parts.scheduler.has_waiting:
            self._wait_for_turn()
            self._read(False)
            self._write(False)
        elif not self._has_turn_coming:
            self._serve(now + SHORT_TURN_S)

    def _on_turn(self, end_of_turn: float) -> None:
        self._has_turn_coming = False
        self._now = _clock()
        self._serve(end_of_turn)

    def _wait_for_turn(self, *, goes_on: bool = False) -> None:
        if not self._has_turn_coming:
            self._has_turn_coming = True
            self._parts.scheduler.schedule(self._on_turn, goes_on=goes_on)

    # --- one turn ---

    def _serve(self, end_of_turn: float) -> None:
        """Send responses, and accept requests within the limits."""
        if self._is_closed:
            return
        try:
            self._send_answers()
            is_none_left = self._take_up_requests(end_of_turn)
            self._send_answers()
        except Exception as error:  # noqa: BLE001  this connection ends, the others go on
            self._fail(error)
            return
        if self._is_ending and self._has_sent_all:
            self.close()
            return
        if self._is_reading and self._is_at_limit:
            self._parts.metrics.throttled += 1
        if self._may_take_up and not is_none_left:
            self._wait_for_turn(goes_on=True)
        self._read(self._may_take_up and not self._has_turn_coming)

    @property
    def _is_at_limit(self) -> bool:
        is_full = len(self._under_way) >= self._parts.limits.queued_requests_per_connection
        return is_full or self._waits_for_memory or self._is_muted

    @property
    def _is_muted(self) -> bool:
        """Whether the client must wait. A request that holds memory is received nevertheless."""
        return self._unmuting is not None and self._reservation is None

    @property
    def _waits_for_memory(self) -> bool:
        return self._reservation is not None and self._reservation.wanted > 0

    @property
    def _may_take_up(self) -> bool:
        return not (self._is_at_limit or self._is_writing or self._is_ending)

    def _take_up_requests(self, end_of_turn: float) -> bool:
        """Return whether no complete request is left."""
        while self._may_take_up and self._outgoing.size < TURN_BYTES:
            frame = self._frames.take()
            if frame is None:
                break
            self._begin(frame)
            self._collect_answers()
            if self._now >= end_of_turn:
                break
        if not self._may_take_up or self._frames.has_request:
            return False
        self._reserve()
        return True

    def _reserve(self) -> None:
        """Reserve memory for the next bytes of a large request."""
        size, received = self._frames.next_size, self._frames.size
        if size is None or size <= CHUNK_BYTES or received < CHUNK_BYTES:
            return
        if self._reservation is None:
            if size > MAX_BYTES_WITHOUT_RECORDS and self._frames.api_key != KafkaApiKey.PRODUCE:
                raise MalformedRequestError(
                    f"a request of {size} bytes, kind {self._frames.api_key};"
                    f" only Produce may exceed {MAX_BYTES_WITHOUT_RECORDS}"
                )
            self._reservation = Reservation(self._wait_for_turn)
        if received >= self._reservation.size:
            wanted = max(received * _RESERVED_AHEAD, self._parts.memory.ample_bytes)
            self._parts.memory.reserve(self._reservation, min(size, wanted))

    def _begin(self, frame: memoryview) -> None:
        request = self._decode(frame)
        metrics = self._parts.metrics.requests[request.api_key]
        exchange = _Exchange(request, self._reservation, metrics, self._arrived_at, self._now)
        self._reservation = None
        version = request.api_version
        if request.api_key is KafkaApiKey.API_VERSIONS:
            self._note_software(request)
            self._hurry()
            version = max(0, min(version, MAX_VERSIONS - 1))  # any is answered
        metrics.versions[version] += 1
        self._under_way.append(exchange)
        answering = self._parts.apis[request.api_key].handle(request)
        if isinstance(answering, LaterAnswer):
            self._await_later(exchange, answering)
            return
        steps = answering.__await__()
        try:
            awaited = steps.send(None)
        except StopIteration as finished:
            if request.throttle is not None:
                request.throttle.end_step()
            self._finish(exchange, finished.value)
            return
        exchange.first_waited_at = self._now = _clock()
        if request.throttle is not None:
            request.throttle.end_step()
            self._mute(request.throttle)
            steps = TimedSteps(steps, request.throttle)
        exchange.task = self._parts.loop.create_task(BegunSteps(steps, awaited))
        exchange.task.add_done_callback(lambda task: self._on_done(exchange, task))

    def _hurry(self) -> None:
        """Let the requests that wait be answered soon: a follower asks for it like this."""
        for waiting in self._under_way:
            if waiting.later is not None:
                self._parts.loop.call_soon(waiting.later.hurry)

    def _await_later(self, exchange: _Exchange, later: LaterAnswer) -> None:
        if exchange.throttle is not None:
            exchange.throttle.end_step()
        if not later.is_given:
            exchange.first_waited_at = self._now = _clock()
            exchange.later = later
            later.then(lambda answer: self._on_given(exchange, answer))
            return
        later.then(lambda answer: self._finish(exchange, answer))

    def _on_given(self, exchange: _Exchange, answer: KafkaAnswer) -> None:
        """Send an answer at once: nothing else of this connection needs a turn."""
        if self._is_closed or exchange.is_done:
            return
        self._finish(exchange, answer)
        if exchange is not self._under_way[0]:
            return
        try:
            self._send_answers()
        except Exception as error:  # noqa: BLE001  this connection ends, the others go on
            self._fail(error)
            return
        if self._is_ending or not self._is_reading:
            self._wait_for_turn()

    def _mute(self, throttle: Throttle) -> None:
        """Read no request as long as the client must wait."""
        if throttle.until <= self._now:
            return
        if self._unmuting is not None:
            if throttle.until <= self._unmuting.when():
                return
            self._unmuting.cancel()
        self._unmuting = self._parts.loop.call_at(throttle.until, self._unmute)

    def _unmute(self) -> None:
        self._unmuting = None
        self.last_active = _clock()
        self._on_ready()

    def _decode(self, frame: memoryview) -> KafkaRequest:
        reader = Reader(frame)
        number, version, correlation_id = reader.unpack(_REQUEST_HEADER)
        api = self._parts.apis.get(number)
        # ApiVersions is accepted in any version: the client does not know the versions yet.
        asks_versions = number == KafkaApiKey.API_VERSIONS
        if api is None or not (asks_versions or api.min_version <= version <= api.max_version):
            raise _UnsupportedRequestError(f"api {number} version {version}")
        client_id = reader.nullable_string()
        if version >= FIRST_FLEXIBLE_VERSION[api.key]:
            reader = Reader(frame, reader.position, is_flexible=True)
            reader.end_struct()
        body = frame[reader.position :]
        return KafkaRequest(
            api.key,
            version,
            correlation_id,
            client_id,
            self.client_host,
            body,
            self._parts.metrics.requests[number].errors,
            self._throttle(client_id, len(frame))
            if self._parts.quotas.are_any_of_clients
            else None,
            self,
        )

    def _throttle(self, client_id: str | None, size: int) -> Throttle:
        client = QuotaClient(ANONYMOUS, (client_id or "")[:MAX_NAME])
        return Throttle(self._parts.quotas, client, _SIZE_BYTES + size)

    def _note_software(self, request: KafkaRequest) -> None:
        if request.api_version > self._parts.apis[KafkaApiKey.API_VERSIONS].max_version:
            return  # its format is unknown
        with suppress(MalformedRequestError):  # the handler raises it too
            software = told_software(request)
            if software is not None:
                self._software = self._parts.metrics.named(self._software, software)

    def _on_done(self, exchange: _Exchange, task: asyncio.Task[KafkaAnswer]) -> None:
        error = None if task.cancelled() else task.exception()
        if task.cancelled() or self._is_closed or exchange.is_done:
            return
        if error is not None:
            self._fail(error)
            return
        self._finish(exchange, task.result())
        if exchange is self._under_way[0]:
            self._on_ready()

    def _finish(self, exchange: _Exchange, answer: KafkaAnswer) -> None:
        exchange.answer = answer
        exchange.is_done = True
        exchange.task = exchange.later = None
        self.last_active = exchange.answered_at = self._now = _clock()
        if exchange.reservation is not None:
            self._parts.memory.release(exchange.reservation)
            exchange.reservation = None
        if exchange.throttle is not None:
            exchange.throttle.end()
            self._mute(exchange.throttle)

    def _send_answers(self) -> None:
        self._collect_answers()
        if self._outgoing.size:
            self._parts.metrics.bytes_out += self._outgoing.send()
        self._write(self._outgoing.size > 0)
        if self._unsent:
            self._note_sent()

    def _note_sent(self) -> None:
        sent, now = self._queued - self._outgoing.size, _clock()
        while self._unsent and self._unsent[0].end <= sent:
            self._unsent.popleft().on_sent(now)

    def _collect_answers(self) -> None:
        """Collect the responses in sequence, up to the first that is missing."""
        while self._under_way and self._is_answered(self._under_way[0]):
            exchange = self._under_way.popleft()
            exchange.in_turn_at = self._now
            if exchange.answer is not None:
                pieces = exchange.answer
                size = sum(
                    len(p) if isinstance(p, bytes | bytearray | memoryview) else p.size
                    for p in pieces
                )
                size += _CORRELATION_ID_BYTES + len(exchange.header_end)
                header = _ANSWER_HEADER.pack(size, exchange.correlation_id)
                self._outgoing.add(header + exchange.header_end)
                for piece in pieces:
                    self._outgoing.add(piece)
                self._queued += _SIZE_BYTES + size
            exchange.answer = None  # it may be large
            exchange.end = self._queued
            self._unsent.append(exchange)

    def _is_answered(self, exchange: _Exchange) -> bool:
        """Whether a request is answered, also if ``_on_done`` is yet to be called.

        So answers that come at the same time are sent together, with one system call.
        """
        task = exchange.task
        if task is not None and task.done() and not task.cancelled() and not task.exception():
            self._finish(exchange, task.result())
        return exchange.is_done

    def _fail(self, error: BaseException) -> None:
        match error:
            case MalformedRequestError():
                self.close(Closed.MALFORMED, error)
            case _UnsupportedRequestError():
                self.close(Closed.UNSUPPORTED, error)
            case UnansweredRequestError():
                self.close(Closed.UNANSWERED, error)
            case StorageError():
                self.close(Closed.UNREADABLE, error)
            case ConnectionError():  # the client left without reading its answers
                self.close()
            case _:
                self.close(Closed.FAILED, error)

    # --- the selector ---
    # It gets the number of the socket: it would look for the socket itself, fail, and write both
    # addresses into an error that nobody reads. That takes two system calls, about 15 µs.

    def _read(self, wanted: bool) -> None:
        if wanted is not self._is_reading:
            self._is_reading = wanted
            if wanted:
                self._parts.loop.add_reader(self._socket.fileno(), self._on_readable)
            else:
                self._parts.loop.remove_reader(self._socket.fileno())

    def _write(self, wanted: bool) -> None:
        if wanted is not self._is_writing:
            self._is_writing = wanted
            self._parts.metrics.unread += 1 if wanted else -1
            if wanted:
                self._parts.loop.add_writer(self._socket.fileno(), self._on_ready)
            else:
                self._parts.loop.remove_writer(self._socket.fileno())
