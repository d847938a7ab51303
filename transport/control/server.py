"""Receives requests from other processes and hands them to an actor.

One thread owns the connections. It decodes, dispatches and sends; answers may come from any thread,
at once or later, and reach it through a queue. No message ends the loop: an invalid one is counted,
answered with an error code if its correlation id is known, and dropped otherwise.
"""

from __future__ import annotations

import errno
import functools
import logging
import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

import zmq

from regent.config.addresses import host_of, keyed_endpoint, without_key
from regent.config.threads import NamedThread
from regent.core.errors import BadDataError, Errors, RegentError
from regent.core.model import TopicPartition
from regent.core.protocol.api import ApiKey
from regent.core.protocol.control import ControlHeader, ControlResponse
from regent.core.records import RecordBytes
from regent.core.security.roles import SENDERS, KeyOwner, is_about, may_send
from regent.transport.control import codec
from regent.transport.control.codec import Frames, Request, RequestHeader, Response
from regent.transport.control.key_files import KeyPair
from regent.transport.control.pace import Leeway, Pace
from regent.transport.control.peers import (
    HandshakeError,
    KnownKeys,
    Message,
    MessageTooLargeError,
    OtherUserError,
    PeerError,
    Peers,
    TooManyPeersError,
    UnknownKeyError,
)
from regent.transport.control.rejections import RejectedFrames, Rejection
from regent.transport.control.sockets import joined
from regent.transport.control.wakeup import Wakeup
from regent.transport.local_users import EVERYBODY, LocalUsers, rest_after_strangers

logger = logging.getLogger(__name__)

MAX_OUTSTANDING: Final = 10_000
_PEERS_AT_LEAST: Final = 10  # have room for their requests
# A broker has one or two connections for each purpose, and one unanswered request on each of them.
_MAX_OF_BROKER: Final = 16
_MAX_OF_SLOW_BROKER: Final = 2
_BYTES_OF_ONE: Final = 64 * 1024  # a longer body counts as several requests
_MAX_REQUEST_BYTES: Final = codec.max_request_bytes(ApiKey.PLACE_TOPICS)  # the largest of all
_TURN_S: Final = 0.01  # of receiving; then answers are sent
_SWEEP_S: Final = 2.0  # between two looks for revoked keys and endless messages
_LOOK_S: Final = 0.25  # between two looks for work of ZeroMQ without messages
_SWEEP_BEHIND_S: Final = 0.05  # while messages wait
_WORK_OF_UNREAD_S: Final = 2.0  # so who sends more than is read may not connect for a long time
_STOP_TIMEOUT_S: Final = 5.0
# Time for the last answers: closing drops what was not sent and what the peer has not read.
_LAST_ANSWERS_S: Final = 0.05
_PAUSE_S: Final = 0.1  # after an unexpected error, of which there may be many


class PortInUseError(RegentError):
    """Another process listens on the address; the message names the remedy."""


_REASONS_TO_CUT_OFF: Final[Mapping[type[PeerError], Rejection]] = {
    HandshakeError: Rejection.BAD_HANDSHAKE,
    UnknownKeyError: Rejection.UNKNOWN_KEY,
    OtherUserError: Rejection.OTHER_USER,
    MessageTooLargeError: Rejection.TOO_LARGE,
    TooManyPeersError: Rejection.TOO_MANY_PEERS,
}


class WireReply:
    """Answers one request, once, from any thread; with an error if it is garbage collected."""

    def __init__(
        self, api_key: ApiKey, correlation_id: int, deliver: Callable[[Frames], None]
    ) -> None:
        self._api_key = api_key
        self._correlation_id = correlation_id
        self._deliver = deliver
        self._unanswered = threading.Lock()  # taken by the first answer and never released

    def __call__(self, response: Response) -> None:
        """Send ``response``; an answer that cannot be encoded becomes UNKNOWN_SERVER_ERROR."""
        expected = codec.response_class(self._api_key)
        try:
            if not isinstance(response, expected):
                raise BadDataError(
                    f"expected a {expected.__name__}, found {type(response).__name__}"
                )
            frames = codec.encode_body(response)
        except BadDataError:
            logger.exception("Cannot answer %s", self._api_key.name)
            self.fail(Errors.UNKNOWN_SERVER_ERROR)
            return
        self._answer(codec.encode_reply_header(self._correlation_id), *frames)

    def fail(self, error: Errors, reason: str = "") -> None:
        """Refuse the request: the answer is ``error`` without a body."""
        self._answer(codec.encode_reply_header(self._correlation_id, error, reason))

    def _answer(self, *frames: RecordBytes) -> None:
        if self._unanswered.acquire(blocking=False):
            self._deliver(frames)
        else:
            logger.debug("A second answer to %s is ignored", self._api_key.name)

    def __del__(self) -> None:
        # The actor died before it answered. The client must not wait until its timeout, and the
        # request must not count as outstanding any more.
        if self._unanswered.acquire(blocking=False):
            logger.info("A %s was dropped without an answer", self._api_key.name)
            self._deliver(
                (codec.encode_reply_header(self._correlation_id, Errors.UNKNOWN_SERVER_ERROR),)
            )


def _charge_nothing(_work_s: float, _changed: Collection[TopicPartition] = ()) -> None:
    pass


class Charge(Protocol):
    """Notes work for the peer of a request."""

    def __call__(self, work_s: float, changed: Collection[TopicPartition] = (), /) -> None:
        """Note seconds of work, and the partitions that it changed."""


@dataclass(frozen=True, slots=True)
class IncomingRequest:
    """A request of another process, and how to answer it.

    ``peer`` is the owner of the key that its process has proved. The peer chooses ``client_id``:
    use it for logs, not for decisions. Tell ``charge`` how many seconds of work it has caused, and
    which partitions were changed as it proposes.
    """

    peer: KeyOwner
    api_key: ApiKey
    control_header: ControlHeader | None
    correlation_id: int
    client_id: str
    body: Request
    reply: WireReply
    charge: Charge = _charge_nothing


class _Answer(NamedTuple):
    """Frames for a peer; ``weight`` is how many requests they answer in the count of the peer's."""

    peer: KeyOwner
    route: bytes
    weight: int
    frames: Frames


class _RefusalError(Exception):
    """A message that is refused."""

    def __init__(self, reason: Rejection, detail: object, error_code: Errors) -> None:
        super().__init__(detail)
        self.reason = reason
        self.error_code = error_code


def _screen_nothing(_key: ApiKey, _header: ControlHeader) -> None:
    return None


def _hear_nobody(_header: ControlHeader) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Screen:
    """What is decided about a request before it is decoded.

    ``answer`` returns the answer to a large request of a controller; an error, which its sender
    must repeat it after; or None: decode it. ``is_heard`` tells whether the sender of a header is
    certainly the controller, which ``pace`` does not limit.
    """

    answer: Callable[[ApiKey, ControlHeader], ControlResponse | Errors | None] = _screen_nothing
    is_heard: Callable[[ControlHeader], bool] = _hear_nobody
    pace: Pace = field(default_factory=Pace)


class ControlServer:
    """Listens on ``bind`` (``tcp://host:port``, port 0 for a free one) with a thread of its own.

    Only owners of ``known`` keys are heard, and only in what they may send (``core.security``).
    ``dispatch`` runs on that thread and must not block. While ``max_outstanding`` requests, or a
    tenth of them of one peer, are unanswered, more are refused with BROKER_NOT_AVAILABLE. A broker
    that is not the controller may have few, and cause little work (``pace``).
    """

    def __init__(
        self,
        keys: KeyPair,
        known: KnownKeys,
        bind: str,
        dispatch: Callable[[IncomingRequest], None],
        *,
        name: str,
        max_outstanding: int = MAX_OUTSTANDING,
        max_frame_bytes: int = _MAX_REQUEST_BYTES,
        screen: Screen | None = None,
        users: LocalUsers = EVERYBODY,
    ) -> None:
        self.endpoint = bind
        """The address listened on; with the real port and our public key once started."""
        self.rejected = RejectedFrames()
        self.requests: Counter[ApiKey] = Counter()
        """How many valid requests came, by API. The I/O thread writes, any thread reads."""
        self.unauthorized: Counter[str] = Counter()
        """How many requests were refused because their peer may not send them, by its name."""
        self.overdone: Counter[str] = Counter()
        """How many requests were refused because their peer causes too much work, by its name."""
        self._keys = keys
        self._known = known
        self._dispatch = dispatch
        self._name = name
        self._max_outstanding = max_outstanding
        self._max_of_peer = -(-max_outstanding // _PEERS_AT_LEAST)  # rounded up
        self._max_frame_bytes = max_frame_bytes
        self._screen = screen or Screen()
        self._pace = self._screen.pace
        self._users = users.at(host_of(bind))
        # These are read and written by the I/O thread alone.
        self._outstanding = 0
        self._outstanding_of: Counter[KeyOwner] = Counter()
        self._last_answer_at = -_LAST_ANSWERS_S
        self._swept_at = self._looked_at = 0.0
        self._is_behind = False  # whether messages wait
        self._rests_until = 0.0  # they wait until then
        self._admits_from = 0.0  # new connections wait until then
        self._outbox: deque[_Answer] = deque()
        self._stopping = threading.Event()
        self._wakeup = Wakeup()
        self._thread: threading.Thread | None = None

    def start(self, on_failure: Callable[[RegentError], None] = logger.error) -> None:
        """Listen, then return; once only.

        ``on_failure`` gets the reason if the thread ends by itself, on that thread: the process
        must end then, because nobody could connect any more. Raises PortInUseError, or RegentError
        for an unusable address.
        """
        try:
            peers = Peers(
                self._keys,
                self._known,
                without_key(self.endpoint),
                self._max_frame_bytes,
                self._wakeup.set,
                users=self._users,
                may_connect=self._pace.may_connect,
            )
        except (zmq.ZMQError, OSError, ValueError) as error:
            self._wakeup.close()
            raise _cannot_listen(without_key(self.endpoint), error) from error
        self.endpoint = keyed_endpoint(peers.endpoint, self._keys.public)
        self._thread = NamedThread(self._run, self._name, (peers, on_failure))
        self._thread.start()

    def stop(self) -> None:
        """Send the answers given so far, then stop listening; later ones are dropped.

        The port is free afterwards. Idempotent; not for the server's own thread.
        """
        self._stopping.set()
        self._wakeup.set()
        if self._thread is not None:
            self._thread.join(_STOP_TIMEOUT_S)
            if self._thread.is_alive():
                logger.error("%s does not stop: its dispatch blocks", self._name)
                return
        self._wakeup.close()

    def _run(self, peers: Peers, on_failure: Callable[[RegentError], None]) -> None:
        try:
            poller = zmq.Poller()
            peers.register(poller)
            poller.register(self._wakeup.fileno(), zmq.POLLIN)
            while not self._stopping.is_set():
                try:
                    self._take_turn(poller, peers)
                except Exception as error:
                    if peers.is_closed:
                        raise
                    self.rejected.add(Rejection.UNEXPECTED, error)
                    self._stopping.wait(_PAUSE_S)
            self._send_answers(peers)
            time.sleep(max(0.0, self._last_answer_at + _LAST_ANSWERS_S - time.monotonic()))
            if not peers.stop_listening():
                logger.warning("%s: the port of %s is not free yet", self._name, self.endpoint)
        finally:
            peers.close()
            if not self._stopping.is_set():
                on_failure(RegentError(f"the thread {self._name} has ended: nobody can connect"))

    def _take_turn(self, poller: zmq.Poller, peers: Peers) -> None:
        now = time.monotonic()
        is_resting, admits = self._rests_until > now, self._admits_from <= now
        if is_resting or not self._is_behind:
            until = min(self._swept_at + _SWEEP_S, self._looked_at + _LOOK_S)
            until = self._rests_until if is_resting else until
            until = until if admits else min(until, self._admits_from)
            peers.heed(poller, messages=not is_resting, connections=admits)
            ready = poller.poll(max(0, math.ceil((until - now) * 1000)))
            if not ready and admits and not is_resting:
                self._watch(peers)
                return
        self._wakeup.clear()
        if time.monotonic() >= self._admits_from:
            self._admit(peers)
        self._send_answers(peers)
        if time.monotonic() >= self._rests_until:
            self._receive(peers)
        self._watch(peers)

    def _admit(self, peers: Peers) -> None:
        """See to new connections; if strangers were among them, not again for some time."""
        began = time.monotonic()
        errors = peers.take_events()
        for error in errors:
            self.rejected.add(_REASONS_TO_CUT_OFF[type(error)], error)
        if errors:
            now = time.monotonic()
            self._admits_from = now + rest_after_strangers(now - began)

    def _watch(self, peers: Peers) -> None:
        now = time.monotonic()
        if now >= self._looked_at + _LOOK_S:
            self._looked_at = now
            for peer, work_s in peers.unseen_work().items():
                self._charge(peer, work_s)
                if peer.broker_id is not None and self._pace.leeway(peer) is Leeway.CUT_OFF:
                    self.rejected.add(Rejection.TOO_MUCH_WORK, f"of {peer.name}, no requests")
                    self.overdone[peer.name] += 1
                    peers.end_connections(peer)
        if now >= self._swept_at + (_SWEEP_BEHIND_S if self._is_behind else _SWEEP_S):
            self._swept_at = now
            for error in peers.sweep():
                self.rejected.add(_REASONS_TO_CUT_OFF[type(error)], error)
                # What it has sent is in our memory until it was read and dropped.
                self._charge(error.peer, _WORK_OF_UNREAD_S)

    def _charge(self, peer: KeyOwner | None, work_s: float, size: int = 0) -> None:
        if peer is not None and peer.broker_id is not None:
            self._pace.charge(peer, work_s, size=size)

    def _send_answers(self, peers: Peers) -> None:
        while self._outbox:
            peer, route, weight, frames = self._outbox.popleft()
            self._outstanding -= weight
            self._outstanding_of[peer] -= weight
            if not self._outstanding_of[peer]:
                del self._outstanding_of[peer]
            self._send(peers, route, frames)
            self._last_answer_at = time.monotonic()

    def _receive(self, peers: Peers) -> None:
        end_of_turn = time.monotonic() + _TURN_S
        self._is_behind = True
        worked_s = time.thread_time()
        while time.monotonic() < end_of_turn:
            payer, size = None, 0
            try:
                message = peers.receive()
                if message is None:
                    self._is_behind = False
                    return
                payer, size = self._handle(peers, message), message.sent_bytes
                self._send_answers(peers)  # those that dispatch gave itself
            except PeerError as error:
                self.rejected.add(_REASONS_TO_CUT_OFF[type(error)], error)
                payer, size = error.peer, error.sent_bytes
            before_s, worked_s = worked_s, time.thread_time()
            self._charge(payer, worked_s - before_s, size)
            rest_s = self._pace.take_rest()
            if rest_s:
                self._rests_until = time.monotonic() + rest_s
                return

    def _handle(self, peers: Peers, message: Message) -> KeyOwner | None:
        """Dispatch or refuse a message; return whose work that is, None: the controller's."""
        if message.frames is None:
            return message.peer
        try:
            return None if self._accept(message, message.frames) else message.peer
        except _RefusalError as refusal:
            self.rejected.add(refusal.reason, refusal)
            if refusal.reason is Rejection.UNAUTHORIZED:
                self.unauthorized[message.peer.name] += 1
            is_overdone = refusal.reason is Rejection.TOO_MUCH_WORK
            self.overdone[message.peer.name] += is_overdone
            self._refuse(peers, message, message.frames, refusal.error_code)
            if is_overdone and self._pace.leeway(message.peer) is Leeway.CUT_OFF:
                peers.cut_off(message.route)
            return message.peer

    def _accept(self, message: Message, frames: list[RecordBytes]) -> bool:
        """Dispatch a request; return whether it is the controller's. Raises _RefusalError."""
        if tuple(frames) == codec.PING:
            self._check_leeway(message.peer)
            self._take_on(message, 1)(codec.PING[1:])
            return False
        header, encoded_body = self._open(message.peer, frames)
        is_controller = self._is_of_controller(message.peer, header.control_header)
        weight = 1 if is_controller else 1 + len(encoded_body) // _BYTES_OF_ONE
        self._check_load(message.peer, weight, is_controller=is_controller)
        api_key = ApiKey(header.api_key)
        self.requests[api_key] += 1
        answer = self._screened(message.peer, header, api_key, encoded_body)
        if answer is not None:
            encoded = codec.encode_body(answer)
            reply_header = codec.encode_reply_header(header.correlation_id)
            self._take_on(message, weight)((reply_header, *encoded))
            return is_controller
        try:
            body = codec.decode_request_body(api_key, encoded_body)
        except BadDataError as error:
            raise _RefusalError(Rejection.BAD_BODY, error, Errors.INVALID_REQUEST) from None
        if not is_about(message.peer, body):
            raise _unauthorized(message.peer, api_key)
        reply = WireReply(api_key, header.correlation_id, self._take_on(message, weight))
        # What is done for an envelope is its client's work, see ``pace``.
        is_own = message.peer.broker_id is not None and api_key is not ApiKey.ENVELOPE
        is_counted = is_own and not is_controller
        request = IncomingRequest(
            message.peer,
            api_key,
            header.control_header,
            header.correlation_id,
            header.client_id,
            body,
            reply,
            functools.partial(self._pace.charge, message.peer) if is_counted else _charge_nothing,
        )
        try:
            self._dispatch(request)
        except Exception as error:  # the loop must survive any error of a dispatch
            logger.exception("%s cannot dispatch %s", self._name, api_key.name)
            self.rejected.add(Rejection.DISPATCH_FAILED, error)
            reply.fail(Errors.UNKNOWN_SERVER_ERROR)
        return is_controller

    def _is_of_controller(self, peer: KeyOwner, control: ControlHeader | None) -> bool:
        """Whether a request has no limits. What a header says proves nothing without the key."""
        if control is None or peer.broker_id != control.controller_id:
            return False
        return self._screen.is_heard(control)

    def _check_leeway(self, peer: KeyOwner) -> Leeway:
        """Return what may be done for a peer; raises _RefusalError."""
        leeway = Leeway.EASY if peer.broker_id is None else self._pace.leeway(peer)
        if leeway >= Leeway.REFUSED:
            detail = f"requests of {peer.name}; if they are not its own, revoke its key"
            raise _RefusalError(Rejection.TOO_MUCH_WORK, detail, Errors.BROKER_NOT_AVAILABLE)
        return leeway

    def _check_load(self, peer: KeyOwner, weight: int, *, is_controller: bool) -> None:
        """Raise _RefusalError if there is no room for a request."""
        limit = self._max_of_peer
        if peer.broker_id is not None and not is_controller:
            is_slow = self._check_leeway(peer) is Leeway.SLOW
            limit = min(limit, _MAX_OF_SLOW_BROKER if is_slow else _MAX_OF_BROKER)
        of_peer = self._outstanding_of[peer]
        if self._outstanding >= self._max_outstanding or (of_peer and of_peer + weight > limit):
            detail = f"{self._outstanding} requests, {of_peer} of {peer.name}"
            raise _RefusalError(Rejection.OVERLOADED, detail, Errors.BROKER_NOT_AVAILABLE)

    def _screened(
        self, peer: KeyOwner, header: RequestHeader, api_key: ApiKey, body: RecordBytes
    ) -> ControlResponse | None:
        """Return the answer to a request that needs no decoding, or None; raises _RefusalError."""
        try:
            codec.check_request_size(api_key, body)
        except BadDataError as error:
            raise _RefusalError(Rejection.TOO_LARGE, error, Errors.INVALID_REQUEST) from None
        control = header.control_header
        if control is None or len(body) <= codec.LARGE_REQUEST_BYTES:
            return None
        is_control = api_key in codec.CONTROL_REQUESTS
        answer = self._screen.answer(api_key, control) if is_control else None
        if isinstance(answer, Errors):
            raise _RefusalError(Rejection.UNCONFIRMED, f"{api_key.name} of {peer.name}", answer)
        return answer

    def _open(self, peer: KeyOwner, frames: list[RecordBytes]) -> tuple[RequestHeader, RecordBytes]:
        """Return the checked header, and the body; raises _RefusalError."""
        if len(frames) < 3 or frames[0]:
            detail = f"{len(frames)} frames"
            raise _RefusalError(Rejection.BAD_ENVELOPE, detail, Errors.INVALID_REQUEST)
        try:
            header = codec.decode_request_header(frames[1])
        except BadDataError as error:
            raise _RefusalError(Rejection.BAD_HEADER, error, Errors.INVALID_REQUEST) from None
        versions = (header.header_version, header.api_version)
        if versions != (codec.HEADER_VERSION, codec.API_VERSION):
            detail = f"header version {versions[0]}, api version {versions[1]}"
            raise _RefusalError(Rejection.UNSUPPORTED_VERSION, detail, Errors.UNSUPPORTED_VERSION)
        if header.api_key not in codec.KNOWN_APIS:
            raise _RefusalError(Rejection.UNKNOWN_API, header.api_key, Errors.INVALID_REQUEST)
        if header.api_key in codec.CONTROL_REQUESTS and header.control_header is None:
            raise _RefusalError(Rejection.UNFENCED, header.api_key, Errors.INVALID_REQUEST)
        if not may_send(peer, ApiKey(header.api_key), header.control_header):
            raise _unauthorized(peer, ApiKey(header.api_key))
        return header, joined(frames[2:])

    def _refuse(
        self, peers: Peers, message: Message, frames: list[RecordBytes], error_code: Errors
    ) -> None:
        """Answer a message that was refused, if its correlation id is known."""
        correlation_id = codec.peek_correlation_id(frames[1]) if len(frames) > 1 else None
        if correlation_id is not None:
            header = codec.encode_reply_header(correlation_id, error_code)
            self._send(peers, message.route, (header,))

    def _take_on(self, message: Message, weight: int) -> Callable[[Frames], None]:
        """Count a request until it is answered; return what delivers the answer, once."""
        self._outstanding += weight
        self._outstanding_of[message.peer] += weight
        return functools.partial(self._deliver, message.peer, message.route, weight)

    def _deliver(self, peer: KeyOwner, route: bytes, weight: int, frames: Frames) -> None:
        """Hand an answer to the I/O thread; called from any thread, even after ``stop``."""
        self._outbox.append(_Answer(peer, route, weight, frames))
        if threading.current_thread() is not self._thread:  # which checks the outbox itself
            self._wakeup.set()

    def _send(self, peers: Peers, route: bytes, frames: Frames) -> None:
        try:
            peers.send(route, (b"", *frames))
        except zmq.ZMQError as error:  # EHOSTUNREACH: the peer left; EAGAIN: it does not read
            self.rejected.add(Rejection.UNROUTABLE_ANSWER, error)


def _unauthorized(peer: KeyOwner, api_key: ApiKey) -> _RefusalError:
    detail = f"{peer.name} may not send {api_key.name}, which is for {SENDERS[api_key].value}"
    return _RefusalError(Rejection.UNAUTHORIZED, detail, Errors.CLUSTER_AUTHORIZATION_FAILED)


def _cannot_listen(address: str, error: Exception) -> RegentError:
    if getattr(error, "errno", None) == errno.EADDRINUSE:
        return PortInUseError(
            f"{address} is in use: stop the process that listens there, or configure another port"
            " (0 takes a free one)"
        )
    return RegentError(f"cannot listen on {address}: {error}")
