"""What a ``ControlChannel`` promises, in both protocols: ZeroMQ's and Kafka's."""

from __future__ import annotations

import queue
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Final

import msgpack
import pytest
import zmq

from regent.actors.request_send_thread import ControlBody, ControlChannel
from regent.config.addresses import keyed_endpoint
from regent.config.closing import Closing
from regent.core.errors import Errors
from regent.core.protocol.control import (
    ControlHeader,
    PartitionError,
    StopReplicaPartition,
    StopReplicaRequest,
    StopReplicaResponse,
    StopReplicaTopic,
)
from regent.core.protocol.messages import control as kafka
from regent.testing.waits import scaled
from regent.transport.control import codec
from regent.transport.control.client import (
    RequestAbandonedError,
    RequestClient,
    RequestError,
    RequestFailedError,
)
from regent.transport.kafka import broker_connection
from regent.transport.kafka.api import KafkaApiKey
from regent.transport.kafka.control_channel import KafkaControlBody, KafkaControlChannel
from regent.transport.kafka.message_codec import decoded, encoded
from tests.support.free_ports import free_ports
from tests.support.keys import KEYS, context_for_test

SOON_MS: Final = round(scaled(0.4) * 1000)
TIMEOUT_MS: Final = round(scaled(10.0) * 1000)
LIMIT: Final = 2_000  # of an answer, in bytes
_STOP_VERSION: Final = 3
_POLL_S: Final = 0.02


class Act(Enum):
    """What a peer does with a request; ``ANSWER`` when nothing else is said."""

    ANSWER = auto()
    ANSWER_ANOTHER = auto()
    """It answers a request that it did not get."""
    SILENCE = auto()
    HANG_UP = auto()
    TOO_LARGE = auto()


@dataclass
class Peer:
    """A broker that gets ``stops(n)``; ``acts`` say what it does with the next ones."""

    port: int
    received: list[int] = field(default_factory=list)
    acts: queue.SimpleQueue[Act] = field(default_factory=queue.SimpleQueue)
    arrived: queue.SimpleQueue[int] = field(default_factory=queue.SimpleQueue)
    _thread: threading.Thread | None = None
    _is_stopping: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        """Listen at the port."""
        self._is_stopping.clear()
        is_listening = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(is_listening.set,), daemon=True)
        self._thread.start()
        assert is_listening.wait(scaled(10.0))

    def stop(self) -> None:
        """Close everything. Idempotent."""
        self._is_stopping.set()
        if self._thread is not None:
            self._thread.join(scaled(10.0))
            self._thread = None

    def channel(self) -> AbstractContextManager[ControlChannel]:
        """Open a channel to this peer for a block."""
        raise NotImplementedError

    def body(self, request: StopReplicaRequest) -> ControlBody:
        """Return a request in the form of the channel."""
        raise NotImplementedError

    def _run(self, listening: Callable[[], None]) -> None:
        raise NotImplementedError

    def _next_act(self, number: int) -> Act:
        self.received.append(number)
        self.arrived.put(number)
        return Act.ANSWER if self.acts.empty() else self.acts.get_nowait()


class PeerOfOurs(Peer):
    """A ROUTER of ZeroMQ, with the keys of the test."""

    @contextmanager
    def channel(self) -> Iterator[ControlChannel]:
        context = context_for_test()
        client = RequestClient(
            context,
            keyed_endpoint(f"tcp://127.0.0.1:{self.port}", KEYS.public),
            client_id="controller-7",
            connect_timeout_ms=TIMEOUT_MS,
            silent_s=SOON_MS / 1000,
            gone_s=SOON_MS / 1000,
        )
        try:
            yield client
        finally:
            client.close()
            context.destroy(linger=0)

    def body(self, request: StopReplicaRequest) -> ControlBody:
        return codec.encode_request(request)

    def _run(self, listening: Callable[[], None]) -> None:
        context = context_for_test()
        try:
            while not self._is_stopping.is_set():
                with context.socket(zmq.ROUTER) as router:
                    router.linger = 0
                    router.curve_server = True
                    try:
                        router.bind(f"tcp://127.0.0.1:{self.port}")
                    except zmq.ZMQError:  # ZeroMQ closes the former socket a little later
                        router.poll(round(_POLL_S * 1000))
                        continue
                    listening()
                    self._serve(router)
        finally:
            context.destroy(linger=0)

    def _serve(self, router: Any) -> None:
        """Answer until the peer stops, or hangs up."""
        while not self._is_stopping.is_set():
            if not router.poll(round(_POLL_S * 1000)):
                continue
            route, _, header, *body = router.recv_multipart()
            if not body:
                continue  # it asks whether a silent peer still runs
            api_key, correlation_id = msgpack.unpackb(header)[1], msgpack.unpackb(header)[3]
            request: Any = codec.decode_request_body(api_key, b"".join(body))
            number = request.topic_states[0].partition_states[0].partition_index
            match self._next_act(number):
                case Act.SILENCE:
                    continue
                case Act.HANG_UP:
                    return
                case Act.ANSWER_ANOTHER:
                    frames, correlation_id = codec.encode_body(answered(99)), correlation_id + 1_000
                case Act.TOO_LARGE:
                    frames = _LARGE
                case Act.ANSWER:
                    frames = codec.encode_body(answered(number))
            sent = (b"", codec.encode_reply_header(correlation_id), *frames)
            router.send_multipart([route, *map(bytes, sent)])


class PeerOfKafka(Peer):
    """A listener of Kafka's protocol, for one connection at a time."""

    @contextmanager
    def channel(self) -> Iterator[ControlChannel]:
        endpoint = f"tcp://127.0.0.1:{self.port}"
        with closing(KafkaControlChannel(endpoint, client_id="controller-7")) as client:
            yield client

    def body(self, request: StopReplicaRequest) -> ControlBody:
        return KafkaControlBody(request)

    def _run(self, listening: Callable[[], None]) -> None:
        with socket.create_server(("127.0.0.1", self.port)) as listener:
            listener.settimeout(_POLL_S)
            listening()
            while not self._is_stopping.is_set():
                with suppress(TimeoutError, EOFError, ConnectionError):
                    connection, _ = listener.accept()
                    connection.settimeout(_POLL_S)
                    with connection:
                        while self._serve(connection):
                            pass

    def _serve(self, connection: socket.socket) -> bool:
        """Answer a request; return False to hang up."""
        (size,) = struct.unpack(">i", self._received(connection, 4))
        frame = memoryview(self._received(connection, size))
        key, version, correlation_id, client = struct.unpack_from(">hhih", frame)
        head = struct.pack(">i", correlation_id)
        if key == KafkaApiKey.API_VERSIONS:
            _send(connection, head + struct.pack(">hi3h", 0, 1, KafkaApiKey.STOP_REPLICA, 0, 3))
            return True
        assert version == _STOP_VERSION
        body = frame[10 + client + 1 :]
        asked = decoded(kafka.StopReplicaRequest, body, version, is_flexible=True)
        number = asked.topic_states[0].partition_states[0].partition_index
        match self._next_act(number):
            case Act.SILENCE:
                return True
            case Act.HANG_UP:
                return False
            case Act.ANSWER_ANOTHER:
                answer, head = answered(99), struct.pack(">i", correlation_id + 1_000)
            case Act.TOO_LARGE:
                answer = answered(*range(LIMIT))
            case Act.ANSWER:
                answer = answered(number)
        rows = tuple(
            kafka.StopReplicaPartitionError(
                topic_name=row.topic_name, partition_index=row.partition_index, error_code=0
            )
            for row in answer.partition_errors
        )
        message = kafka.StopReplicaResponse(error_code=0, partition_errors=rows)
        _send(connection, head + b"\0" + encoded(message, version, is_flexible=True))
        return True

    def _received(self, connection: socket.socket, size: int) -> bytes:
        data = b""
        while len(data) < size:
            if self._is_stopping.is_set():
                raise EOFError
            with suppress(TimeoutError):
                piece = connection.recv(size - len(data))
                if not piece:
                    raise EOFError
                data += piece
        return data


def _send(connection: socket.socket, data: bytes) -> None:
    connection.settimeout(scaled(10.0))
    connection.sendall(struct.pack(">i", len(data)) + data)
    connection.settimeout(_POLL_S)


def answered(*numbers: int) -> StopReplicaResponse:
    rows = tuple(PartitionError("a", number, Errors.NONE) for number in numbers)
    return StopReplicaResponse(Errors.NONE, rows)


def stops(number: int) -> StopReplicaRequest:
    row = StopReplicaPartition(number, 5, delete_partition=False)
    return StopReplicaRequest((StopReplicaTopic("a", None, (row,)),))


_LARGE: Final = codec.encode_body(answered(*range(LIMIT)))


@pytest.fixture(params=[PeerOfOurs, PeerOfKafka], ids=["zeromq", "kafka"])
def peer(request: pytest.FixtureRequest) -> Iterator[Peer]:
    (port,) = free_ports(1)
    served: Peer = request.param(port)
    served.start()
    yield served
    served.stop()


@pytest.fixture
def channel(peer: Peer) -> Iterator[ControlChannel]:
    with peer.channel() as opened:
        yield opened


def attempt(
    channel: ControlChannel,
    peer: Peer,
    *numbers: int,
    timeout_ms: int = TIMEOUT_MS,
    stop: Closing | None = None,
) -> Sequence[object]:
    """Send requests once; return what came for each, in their order."""
    bodies = [
        (peer.body(stops(number)), ControlHeader(7, 8, 9, sequence=number, broker_id=1))
        for number in numbers
    ]
    found = dict(channel.request_each(bodies, timeout_ms=timeout_ms, closing=stop))
    answers = [found[place] for place in range(len(numbers))]
    for answer in answers:
        if isinstance(answer, RequestFailedError):
            raise answer
    return answers


def deliver(channel: ControlChannel, peer: Peer, number: int) -> object:
    """Send a request until it is answered, as a ``RequestSendThread`` does."""
    deadline = time.monotonic() + scaled(10.0)
    while True:
        try:
            (answer,) = attempt(channel, peer, number, timeout_ms=SOON_MS)
        except RequestError:
            assert time.monotonic() < deadline
        else:
            return answer


def test_requests_arrive_in_their_order_and_each_has_its_own_answer(
    peer: Peer, channel: ControlChannel
):
    assert attempt(channel, peer, 1, 2, 3) == [answered(1), answered(2), answered(3)]
    assert attempt(channel, peer, 4) == [answered(4)]
    assert peer.received == [1, 2, 3, 4]


def test_an_answer_to_another_request_is_never_taken_for_the_answer(
    peer: Peer, channel: ControlChannel
):
    peer.acts.put(Act.ANSWER_ANOTHER)
    with pytest.raises(RequestError):
        attempt(channel, peer, 1, timeout_ms=SOON_MS)
    assert attempt(channel, peer, 2) == [answered(2)]


def test_a_peer_that_hangs_costs_no_more_than_the_timeout(peer: Peer, channel: ControlChannel):
    attempt(channel, peer, 0)  # the connection is there
    peer.acts.put(Act.SILENCE)
    began = time.monotonic()
    with pytest.raises(RequestError):
        attempt(channel, peer, 1, timeout_ms=SOON_MS)
    assert time.monotonic() - began < scaled(5.0)
    assert attempt(channel, peer, 1) == [answered(1)]
    assert peer.received == [0, 1, 1]


@pytest.mark.parametrize("act", [Act.HANG_UP, Act.SILENCE, Act.ANSWER_ANOTHER])
def test_a_request_is_sent_again_until_it_is_answered(
    peer: Peer, channel: ControlChannel, act: Act
):
    peer.acts.put(act)
    peer.acts.put(act)
    assert deliver(channel, peer, 1) == answered(1)
    assert peer.received == [1, 1, 1]
    assert deliver(channel, peer, 2) == answered(2)


def test_the_next_process_at_the_same_address_is_found(peer: Peer, channel: ControlChannel):
    assert deliver(channel, peer, 1) == answered(1)
    peer.stop()
    with pytest.raises(RequestError):
        attempt(channel, peer, 2, timeout_ms=SOON_MS)
    peer.start()
    assert deliver(channel, peer, 3) == answered(3)
    assert peer.received == [1, 3]


def test_an_answer_above_the_limit_is_an_error_and_the_next_one_counts(
    peer: Peer, channel: ControlChannel, monkeypatch: pytest.MonkeyPatch
):
    peer.acts.put(Act.TOO_LARGE)
    with monkeypatch.context() as patched:
        patched.setattr(broker_connection, "MAX_RESPONSE_BYTES", LIMIT)
        patched.setattr(codec, "MAX_BODY_BYTES", LIMIT)
        with pytest.raises(RequestFailedError):
            attempt(channel, peer, 1)
        assert attempt(channel, peer, 2) == [answered(2)]


def test_a_wait_ends_soon_after_the_caller_closes_and_nothing_more_is_sent(
    peer: Peer, channel: ControlChannel
):
    stop = Closing()
    peer.acts.put(Act.SILENCE)

    def close_then() -> None:
        peer.arrived.get(timeout=scaled(10.0))
        stop.set()

    closer = threading.Thread(target=close_then)
    closer.start()
    began = time.monotonic()
    with pytest.raises(RequestAbandonedError):
        attempt(channel, peer, 1, stop=stop)
    assert time.monotonic() - began < scaled(5.0)
    closer.join(scaled(10.0))
    with pytest.raises(RequestAbandonedError):
        attempt(channel, peer, 2, stop=stop)
    assert peer.received == [1]


def test_a_closed_channel_opens_a_new_connection(peer: Peer, channel: ControlChannel):
    attempt(channel, peer, 1)
    channel.close()
    channel.close()
    assert attempt(channel, peer, 2) == [answered(2)]
