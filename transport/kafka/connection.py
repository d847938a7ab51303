"""One client connection: requests are handled and answered in sequence.

It works on the socket itself: an asyncio transport would copy what is received, and cannot put a
file between two pieces of memory. ``ChannelState`` says what a connection waits for.
``listener_loop`` shares the time between connections. Mirrors ``kafka.network.Processor``.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from regent.core.errors import StorageError
from regent.core.model import EndPoint
from regent.core.quota.client_quota_manager import QuotaClient
from regent.core.quota.quota_entities import MAX_NAME
from regent.core.quota.quota_managers import QuotaManagers
from regent.core.security.session import KafkaPrincipal, SecurityProtocol, Session
from regent.transport.kafka.api import (
    KafkaAnswer,
    KafkaApi,
    KafkaApiKey,
    KafkaRequest,
    UnansweredRequestError,
)
from regent.transport.kafka.api_versions import told_software
from regent.transport.kafka.framing import CHUNK_BYTES, TURN_BYTES, FrameBuffer, UnexpectedTlsError
from regent.transport.kafka.limits import MAX_BYTES_WITHOUT_RECORDS, PACE_BYTES, KafkaLimits
from regent.transport.kafka.listener_loop import SHORT_TURN_S, ConnectionScheduler
from regent.transport.kafka.metrics import MAX_VERSIONS, Closed, ListenerMetrics
from regent.transport.kafka.primitives import MalformedRequestError
from regent.transport.kafka.replies import AwaitedReply, BegunSteps, Exchange, TimedSteps
from regent.transport.kafka.request_header import UnsupportedRequestError, decode_request
from regent.transport.kafka.request_memory import RequestBuffers, RequestMemory, Reservation
from regent.transport.kafka.sasl_server import (
    ConnectionOfLogin,
    LoginRefusedError,
    SaslListener,
    SaslServerAuthenticator,
)
from regent.transport.kafka.throttle import Throttle
from regent.transport.kafka.tls_socket import AnySocket, TlsSocket, outgoing_to

_SIZE_BYTES: Final = 4
_clock: Final = time.monotonic  # also the loop's
_REASONS: Final = (
    (UnexpectedTlsError, Closed.FAILED_AUTHENTICATION),
    (MalformedRequestError, Closed.MALFORMED),
    (UnsupportedRequestError, Closed.UNSUPPORTED),
    (UnansweredRequestError, Closed.UNANSWERED),
    (StorageError, Closed.UNREADABLE),
)
_RESERVED_AHEAD: Final = 2  # memory for a large request, as a multiple of what has arrived


@dataclass(frozen=True, slots=True)
class ListenerParts:
    """What the connections of a listener share."""

    name: str
    endpoint: EndPoint
    loop: asyncio.AbstractEventLoop
    apis: Mapping[int, KafkaApi]
    limits: KafkaLimits
    metrics: ListenerMetrics
    memory: RequestMemory
    buffers: RequestBuffers
    scheduler: ConnectionScheduler
    on_closed: Callable[[KafkaConnection], None]
    quotas: QuotaManagers
    sasl: SaslListener | None = None  # None: clients do not log in
    on_logged_in: Callable[[KafkaConnection], None] = lambda _: None


class ChannelState(Enum):
    """What a connection waits for. Its socket is watched in READING and WRITING, else not for long.

    ========  ==============================================================  ====================
    state     the connection waits                                            until
    ========  ==============================================================  ====================
    READING   for bytes of its client                                         they arrive
    TURN      for its turn: it has work, and other connections wait too       the scheduler calls
    SERVED    for nothing: it handles requests, in this call                  the call ends
    WRITING   for its client, which does not read its responses, or nothing   the socket takes more
              of TLS, which cannot receive before it has sent
    LOGIN     for the answers to all requests: until a login is complete,     all are answered
              one is handled at a time
    FULL      for a response: ``queued_requests_per_connection`` requests     the next in sequence
              are in progress                                                 is answered
    MEMORY    for memory for the request that is being received               others release some
    MUTED     because its client uses more than its quota                     the time is over
    ENDING    for the last responses: no request is accepted any more         one is answered
    CLOSED    for nothing, ever
    ========  ==============================================================  ====================

    What ends a wait leads to SERVED, or to TURN first if other connections wait. SERVED leads to
    the state that ``KafkaConnection._next_state`` returns, the first that applies: WRITING; CLOSED
    or ENDING; LOGIN, FULL, MEMORY, MUTED; TURN; READING. A handler may return an ``AwaitedReply``:
    its answer is sent in any state when it is given. This leads from READING to WRITING if the
    socket does not take all of it, and from a wait to TURN if it does. ``close`` leads from any
    state to CLOSED.
    """

    READING = auto()
    TURN = auto()
    SERVED = auto()
    WRITING = auto()
    LOGIN = auto()
    FULL = auto()
    MEMORY = auto()
    MUTED = auto()
    ENDING = auto()
    CLOSED = auto()


_READING: Final = ChannelState.READING
_TURN: Final = ChannelState.TURN
_SERVED: Final = ChannelState.SERVED
_LIMITED: Final = (ChannelState.FULL, ChannelState.MEMORY, ChannelState.MUTED)
_WRITING: Final = ChannelState.WRITING
_CLOSED: Final = ChannelState.CLOSED


class KafkaConnection:
    """Used on the event loop's thread only; it owns ``sock``, which does not block."""

    def __init__(
        self, sock: AnySocket, client_host: str, parts: ListenerParts, user: KafkaPrincipal
    ) -> None:
        self.client_host = client_host
        self.last_active = parts.loop.time()
        endpoint = parts.endpoint
        self._session = Session(
            client_host, user, endpoint.listener, SecurityProtocol(endpoint.security_protocol)
        )
        self._socket = sock
        self._tls = sock if isinstance(sock, TlsSocket) else None
        self._parts = parts
        self._frames = FrameBuffer(parts.limits.socket_request_max_bytes, parts.buffers)
        self._outgoing = outgoing_to(sock)
        self._under_way: deque[Exchange] = deque()
        self._unsent: deque[Exchange] = deque()  # answered in part or not at all
        self._queued = 0  # bytes of responses, sent or not
        self._software = parts.metrics.connected()
        self._arrived_at = 0.0  # when the newest bytes did
        self._now = 0.0  # when something was last done here
        self._reservation: Reservation | None = None  # for the request that is being received
        self._received = 0  # bytes
        self._unmuting: asyncio.TimerHandle | None = None  # while the client must wait
        self._is_ending = False
        self._state = _SERVED
        self._watched: ChannelState | None = None  # READING or WRITING: the selector's part
        self._is_throttled = False  # since it last waited for bytes
        self._login: SaslServerAuthenticator | None = None

    def open(self) -> None:
        """Begin to read, with a login if the listener has them."""
        if self._parts.sasl is not None:
            uses = ConnectionOfLogin(self._on_login_changed, self.end, self.close)
            metrics, name = self._parts.metrics, self._parts.name
            self._login = SaslServerAuthenticator(
                self._parts.sasl, self._session, uses, metrics, name
            )
            self._on_login_changed(self._session)
            try:
                self._login.begin()
            except LoginRefusedError as error:
                self._fail(error)
                return
        self._enter(_READING)

    @property
    def is_idle(self) -> bool:
        """Whether it waits for its client alone: for a request, or until it reads a response."""
        return self._outgoing.size > 0 or (not self._under_way and self._unmuting is None)

    def end(self) -> None:
        """Accept no more requests, and close when those in progress are answered."""
        self._is_ending = True
        self._on_ready()

    def check_pace(self) -> None:
        """Close, when others wait for memory and less than ``PACE_BYTES`` came since the last call.

        Only a large request that has begun to arrive holds memory. It is not slow while it waits
        for more memory, or for the answers to earlier requests.
        """
        if self._tls is not None and self._reservation is not None:
            self._on_readable()  # what has come, and is too little to wake this connection
        held = self._reservation
        if held is None or self._limit() is not None:
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
        if self._state is _CLOSED:
            return
        self._state = _CLOSED
        if reason is not None:
            self._parts.metrics.count_closed(reason, self._parts.name, self.client_host, detail)
        self._watch(None)
        if self._unmuting is not None:
            self._unmuting.cancel()
        if self._login is not None:
            self._login.stop()
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
        if self._state is not _READING:
            if self._state is _TURN:  # most clients send no more then, so it was still watched
                self._watch(None)
            return
        try:
            reserved = 0 if self._reservation is None else self._reservation.size
            count = self._socket.recv_into(self._frames.room(reserved))
        except (BlockingIOError, InterruptedError):
            return
        except ssl.SSLWantWriteError:
            self._enter(_WRITING)
            return
        except ssl.SSLError as error:
            self.close(Closed.MALFORMED, error.reason or error)
            return
        except OSError:
            count = 0
        if count == 0:
            self.close()
            return
        self._parts.metrics.bytes_in += count
        self._received += count
        self._frames.received(count)
        self.last_active = self._arrived_at = _clock()
        self._continue(self._arrived_at)

    def _on_ready(self) -> None:
        self._continue(_clock())

    def _continue(self, now: float) -> None:
        """Continue at once, unless other connections wait: then wait too."""
        self._now = now
        if self._parts.scheduler.has_waiting:
            self._wait_for_turn()
        else:
            self._serve(now + SHORT_TURN_S)

    def _on_turn(self, end_of_turn: float) -> None:
        self._now = _clock()
        self._serve(end_of_turn)

    def _wait_for_turn(self) -> None:
        """Queue for a turn. No-op while it has one; ``_next_state`` decides after it."""
        if not (self._state is _TURN or self._state is _SERVED or self._state is _CLOSED):
            self._enter(_TURN)

    # --- the state ---

    def _next_state(self) -> ChannelState:
        """Return what a connection waits for that was served. Raises ``MalformedRequestError``."""
        if self._outgoing.size:
            return _WRITING
        if self._is_ending:
            return ChannelState.ENDING if self._under_way else _CLOSED
        limit = self._limit()
        if limit is not None:
            return limit
        if self._frames.has_request:
            return _TURN
        return _READING if self._reserve() else ChannelState.MEMORY

    def _limit(self) -> ChannelState | None:
        """Return which limit its client has reached; None: its next request may be taken up."""
        if self._login is not None and self._login.is_logging_in and self._under_way:
            return ChannelState.LOGIN
        if len(self._under_way) >= self._parts.limits.queued_requests_per_connection:
            return ChannelState.FULL
        if self._reservation is not None:  # such a request is received also while muted
            return ChannelState.MEMORY if self._reservation.wanted else None
        return None if self._unmuting is None else ChannelState.MUTED

    def _enter(self, state: ChannelState) -> None:
        """Change the state: nothing else does, except ``_serve`` and ``close``."""
        if state is _CLOSED:
            self.close()
            return
        if state is _TURN:
            self._parts.scheduler.schedule(self._on_turn, goes_on=self._state is _SERVED)
        elif state is _READING:
            self._is_throttled = False
            if self._tls is not None:
                self._tls.expect(self._frames.lacking)
                if self._tls.has_more:
                    self._parts.loop.call_soon(self._on_readable)
        elif state in _LIMITED and not self._is_throttled:
            self._is_throttled = True
            self._parts.metrics.throttled += 1
        self._state = state
        if state is not _TURN or self._watched is not _READING:
            self._watch(state if state is _READING or state is _WRITING else None)

    def _watch(self, wanted: ChannelState | None) -> None:
        """Let the loop report when the socket can be read, or written to, or neither.

        The loop gets the number of the socket: it would look for the socket itself, and write both
        addresses into an error that nobody reads, which takes two system calls, about 15 µs.
        """
        watched = self._watched
        if wanted is watched:
            return
        self._watched = wanted
        loop, number = self._parts.loop, self._socket.fileno()
        if watched is _READING:
            loop.remove_reader(number)
        elif watched is _WRITING:
            loop.remove_writer(number)
            self._parts.metrics.unread -= 1
        if wanted is _READING:
            loop.add_reader(number, self._on_readable)
        elif wanted is _WRITING:
            loop.add_writer(number, self._on_ready)
            self._parts.metrics.unread += 1

    # --- one turn ---

    def _serve(self, end_of_turn: float) -> None:
        """Send responses, and accept requests within the limits."""
        if self._state is _CLOSED:
            return
        self._state = _SERVED
        try:
            self._send_answers()
            if not self._outgoing.size and not self._is_ending:
                self._take_up_requests(end_of_turn)
            self._send_answers()
            state = self._next_state()
        except Exception as error:  # noqa: BLE001  this connection ends, the others go on
            self._fail(error)
            return
        if self._state is _SERVED:  # an answer to a later request may have failed meanwhile
            self._enter(state)

    def _take_up_requests(self, end_of_turn: float) -> None:
        while self._outgoing.size < TURN_BYTES and self._limit() is None:
            frame = self._frames.take()
            if frame is None:
                return
            self._begin(frame)
            self._collect_answers()
            if self._now >= end_of_turn:
                return

    def _reserve(self) -> bool:
        """Reserve memory for the next bytes of a large request; return whether there is some."""
        size, received = self._frames.next_size, self._frames.size
        if size is None or size <= CHUNK_BYTES or received < CHUNK_BYTES:
            return True
        if self._reservation is None:
            if size > MAX_BYTES_WITHOUT_RECORDS and self._frames.api_key != KafkaApiKey.PRODUCE:
                raise MalformedRequestError(
                    f"a request of {size} bytes, kind {self._frames.api_key};"
                    f" only Produce may exceed {MAX_BYTES_WITHOUT_RECORDS}"
                )
            self._reservation = Reservation(self._wait_for_turn)
        if received < self._reservation.size:
            return True
        wanted = max(received * _RESERVED_AHEAD, self._parts.memory.ample_bytes)
        return self._parts.memory.reserve(self._reservation, min(size, wanted))

    def _begin(self, frame: memoryview) -> None:
        request = self._decode(frame)
        metrics = self._parts.metrics.requests[request.api_key]
        exchange = Exchange(request, self._reservation, metrics, self._arrived_at, self._now)
        self._reservation = None
        version = request.api_version
        if request.api_key is KafkaApiKey.API_VERSIONS:
            self._note_software(request)
            self._hurry()
            version = max(0, min(version, MAX_VERSIONS - 1))  # any is answered
        metrics.versions[version] += 1
        self._under_way.append(exchange)
        api, login = self._parts.apis[request.api_key], self._login
        handle = api.handle if login is None else login.handler(request, api)
        answering = handle(request)
        if isinstance(answering, AwaitedReply):
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

    def _await_later(self, exchange: Exchange, later: AwaitedReply[KafkaAnswer]) -> None:
        if exchange.throttle is not None:
            exchange.throttle.end_step()
        if later.is_given:
            self._finish(exchange, exchange.take(later))
            return
        exchange.first_waited_at = self._now = _clock()
        if exchange.throttle is not None:
            self._mute(exchange.throttle)
        exchange.later = later
        later.then(lambda: self._on_given(exchange, later))

    def _on_given(self, exchange: Exchange, later: AwaitedReply[KafkaAnswer]) -> None:
        """Send an answer with those that came with it: nothing else here needs a turn."""
        if self._state is _CLOSED or exchange.is_done:
            return
        try:
            self._finish(exchange, exchange.take(later))
        except Exception as error:  # noqa: BLE001  this connection ends, the others go on
            self._fail(error)
            return
        if exchange is self._under_way[0]:
            later.send(self._send_given)

    def _send_given(self) -> None:
        if self._state is _CLOSED:
            return
        try:
            self._send_answers()
        except Exception as error:  # noqa: BLE001  this connection ends, the others go on
            self._fail(error)
            return
        if self._outgoing.size and self._state is not _TURN and self._state is not _SERVED:
            self._enter(_WRITING)
        elif self._state is not _READING:
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
        parts, login = self._parts, self._login
        request = decode_request(frame, self._session, parts.apis, parts.metrics, self, login)
        if parts.quotas.are_any_of_clients and (login is None or not login.is_logging_in):
            request.throttle = self._throttle(request.client_id, len(frame))
        return request

    def _on_login_changed(self, session: Session) -> None:
        assert self._login is not None
        self._session = session
        if self._login.has_logged_in:
            self._parts.on_logged_in(self)
        max_bytes = self._login.max_receive_bytes
        if max_bytes is None:
            max_bytes = self._parts.limits.socket_request_max_bytes
        self._frames.limit(max_bytes, has_headers=not self._login.takes_raw_tokens)

    def _throttle(self, client_id: str | None, size: int) -> Throttle:
        client = QuotaClient(self._session.principal.name, (client_id or "")[:MAX_NAME])
        return Throttle(self._parts.quotas, client, _SIZE_BYTES + size)

    def _note_software(self, request: KafkaRequest) -> None:
        if request.api_version > self._parts.apis[KafkaApiKey.API_VERSIONS].max_version:
            return  # its format is unknown
        with suppress(MalformedRequestError):  # the handler raises it too
            software = told_software(request)
            if software is not None:
                self._software = self._parts.metrics.named(self._software, software)

    def _on_done(self, exchange: Exchange, task: asyncio.Task[KafkaAnswer]) -> None:
        error = None if task.cancelled() else task.exception()
        if task.cancelled() or self._state is _CLOSED or exchange.is_done:
            return
        if error is not None:
            self._fail(error)
            return
        self._finish(exchange, task.result())
        if exchange is self._under_way[0]:
            self._on_ready()

    def _finish(self, exchange: Exchange, answer: KafkaAnswer) -> None:
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
        if self._outgoing.size and (sent := self._outgoing.send()):
            self._parts.metrics.bytes_out += sent
            self.last_active = _clock()
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
                header = exchange.header(size)
                self._outgoing.add(header)
                for piece in pieces:
                    self._outgoing.add(piece)
                self._queued += len(header) + size
            exchange.answer = None  # it may be large
            exchange.end = self._queued
            self._unsent.append(exchange)

    def _is_answered(self, exchange: Exchange) -> bool:
        """Whether a request is answered, also if ``_on_done`` is yet to be called.

        So answers that come at the same time are sent together, with one system call.
        """
        task = exchange.task
        if task is not None and task.done() and not task.cancelled() and not task.exception():
            self._finish(exchange, task.result())
        return exchange.is_done

    def _fail(self, error: BaseException) -> None:
        if self._login is not None and isinstance(error, MalformedRequestError):
            self._login.break_off()
        if isinstance(error, ConnectionError):  # the client left without reading its answers
            self.close()
        elif isinstance(error, LoginRefusedError):
            self.close(error.reason, error)
        else:
            reasons = (reason for kind, reason in _REASONS if isinstance(error, kind))
            self.close(next(reasons, Closed.FAILED), error)
