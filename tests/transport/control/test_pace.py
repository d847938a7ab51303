"""How much work a broker may cause, with a clock that the test sets; what a server does then."""

from __future__ import annotations

import itertools
import queue
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import zmq

from regent.core.admin.admin_requests import refuse
from regent.core.errors import Errors
from regent.core.protocol.api import ApiKey
from regent.core.protocol.control import ControlHeader, StopReplicaRequest, StopReplicaResponse
from regent.core.protocol.envelope import EnvelopeRequest, EnvelopeResponse
from regent.core.security.roles import KeyOwner
from regent.testing.waits import eventually, scaled
from regent.transport.control.client import PeerUnreachableError, RequestFailedError
from regent.transport.control.key_files import new_key_pair
from regent.transport.control.pace import Leeway, Pace
from regent.transport.control.peers import MessageTooLargeError, Peers
from regent.transport.control.rejections import Rejection
from regent.transport.control.server import IncomingRequest, Screen
from regent.transport.control.sockets import (
    Context,
    IoThread,
    Socket,
    connect_to,
    new_context,
    open_socket,
    pieces,
)
from tests.support.keys import EVERYBODY_OPERATES, KEYS, everybody_is_broker
from tests.support.topic_requests import delete_topics
from tests.transport.control.conftest import Connect, Serve
from tests.transport.control.raw_peer import READY, STATUS, TIMEOUT_MS, RawPeer, answer_ready

ONE, OTHER = KeyOwner.broker(1), KeyOwner.broker(2)


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def pace(clock: Clock) -> Pace:
    return Pace(clock)


@pytest.mark.parametrize(
    ("work_s", "leeway"),
    [
        (0.01, Leeway.EASY),
        (0.03, Leeway.SLOW),
        (0.99, Leeway.SLOW),
        (1.01, Leeway.REFUSED),
        (1.51, Leeway.CUT_OFF),
    ],
)
def test_the_more_work_a_broker_has_caused_the_less_it_may_do(
    pace: Pace, work_s: float, leeway: Leeway
) -> None:
    pace.charge(ONE, work_s)
    assert pace.leeway(ONE) is leeway
    assert pace.may_connect(ONE) is (leeway < Leeway.REFUSED)
    assert pace.leeway(OTHER) is Leeway.EASY


def test_the_bytes_of_a_message_are_work_too(pace: Pace) -> None:
    pace.charge(ONE, 0.0, size=220_000_000)
    assert pace.leeway(ONE) is Leeway.REFUSED


def test_a_broker_is_served_again_after_twenty_seconds_whatever_it_did(
    pace: Pace, clock: Clock
) -> None:
    pace.charge(ONE, 1_000.0)
    clock.now_s += 19
    assert pace.leeway(ONE) is Leeway.REFUSED
    clock.now_s += 2
    assert pace.leeway(ONE) is Leeway.SLOW
    clock.now_s += 1_000
    assert pace.leeway(ONE) is Leeway.EASY
    pace.charge(ONE, 1.01)
    assert pace.leeway(ONE) is Leeway.REFUSED, "what was not used is not saved for ever"


def test_a_broker_may_propose_isrs_of_all_its_partitions_at_once(pace: Pace) -> None:
    """After a crash, ten thousand in each request; a change takes the controller 0.2 ms."""
    for first in range(0, 30_000, 10_000):
        pace.charge(ONE, 0.1, size=1_500_000)  # to decode it
        pace.charge(ONE, 2.0, changed=range(first, first + 10_000))
        assert pace.leeway(ONE) < Leeway.REFUSED


def test_changes_are_not_counted_twice_a_minute_for_each_partition(
    pace: Pace, clock: Clock
) -> None:
    for _ in range(2):  # a replica leaves the ISRs, and comes back
        pace.charge(ONE, 1.5, changed=range(10_000))
        assert pace.leeway(ONE) is Leeway.EASY
    pace.charge(ONE, 1.2, changed=range(10_000))
    assert pace.leeway(ONE) is Leeway.REFUSED, "a broker could keep the controller busy for ever"
    clock.now_s += 61
    pace.charge(ONE, 1.5, changed=range(10_000))
    assert pace.leeway(ONE) < Leeway.REFUSED


def test_work_that_changes_little_is_counted(pace: Pace) -> None:
    pace.charge(ONE, 1.1, changed=[7] * 10_000)
    assert pace.leeway(ONE) is Leeway.REFUSED


def test_there_are_rests_only_for_the_work_of_slow_brokers(pace: Pace) -> None:
    pace.charge(ONE, 0.01)
    assert pace.take_rest() == 0
    pace.charge(ONE, 0.0115)
    assert pace.take_rest() == pytest.approx(0.02), "a long rest would keep others waiting"
    pace.charge(OTHER, 0.01)
    assert pace.take_rest() == 0
    for _ in range(3):
        pace.charge(ONE, 0.00034)
    assert pace.take_rest() == pytest.approx(19 * 0.00102)
    assert pace.take_rest() == 0


def test_a_broker_that_causes_too_much_work_is_refused_and_the_others_are_served(
    serve: Serve, connect: Connect, clock: Clock
) -> None:
    class TwoBrokers:
        """Knows the key of the test as that of broker 1, and another one."""

        def peer(self, key: str) -> KeyOwner | None:
            return {KEYS.public: ONE, other.public: OTHER}.get(key)

        def read_again(self, then: Callable[[], None]) -> None:
            then()

    def work(request: IncomingRequest) -> None:
        request.charge(1.01)
        request.reply(READY)

    other = new_key_pair()
    server = serve(work, known=TwoBrokers(), screen=Screen(pace=Pace(clock)))
    client = connect(server.endpoint)
    assert client.request(STATUS, timeout_ms=TIMEOUT_MS) == READY
    with pytest.raises(RequestFailedError) as caught:
        client.request(STATUS, timeout_ms=TIMEOUT_MS)
    assert caught.value.error_code is Errors.BROKER_NOT_AVAILABLE, "its sender repeats it"
    assert server.overdone == {"broker-1": 1}
    assert server.rejected.counts == {Rejection.TOO_MUCH_WORK: 1}
    context = new_context(other)
    try:
        dealer = open_socket(context, zmq.DEALER)
        assert RawPeer(dealer, server.endpoint).receive_own_answer()
    finally:
        context.destroy(linger=0)
    clock.now_s += 10
    assert client.request(STATUS, timeout_ms=TIMEOUT_MS) == READY


def test_a_broker_may_forward_much_work_of_its_clients(
    serve: Serve, connect: Connect, clock: Clock
) -> None:
    request = delete_topics(["t"])
    envelope = EnvelopeRequest.of(request)
    response = EnvelopeResponse.of(refuse(request, Errors.NOT_CONTROLLER, "test"))

    def work(request: IncomingRequest) -> None:
        request.charge(5.0)
        request.reply(response)

    server = serve(work, known=everybody_is_broker(1), screen=Screen(pace=Pace(clock)))
    client = connect(server.endpoint)
    for _ in range(3):
        assert client.request(envelope, timeout_ms=TIMEOUT_MS) == response
    assert not server.overdone


def test_neither_the_controller_nor_an_operator_is_limited(
    serve: Serve, connect: Connect, clock: Clock
) -> None:
    def stop(request: IncomingRequest) -> None:
        request.charge(1.2)
        request.reply(StopReplicaResponse(Errors.NONE))

    pace = Pace(clock)
    is_heard = ControlHeader(1, 7, 3, broker_id=2).__eq__
    client = connect(serve(stop, screen=Screen(is_heard=is_heard, pace=pace)).endpoint)

    def ask(epoch: int) -> object:
        header = ControlHeader(1, epoch, 3, broker_id=2)
        return client.request(StopReplicaRequest(()), control_header=header, timeout_ms=TIMEOUT_MS)

    for _ in range(3):
        assert ask(7) == StopReplicaResponse(Errors.NONE)
    assert ask(8) == StopReplicaResponse(Errors.NONE)
    with pytest.raises(RequestFailedError, match="BROKER_NOT_AVAILABLE"):
        ask(8)
    assert ask(7) == StopReplicaResponse(Errors.NONE)
    client = connect(serve(answer_ready, known=EVERYBODY_OPERATES, screen=Screen()).endpoint)
    for _ in range(30):
        assert client.request(STATUS, timeout_ms=TIMEOUT_MS) == READY


def test_a_broker_that_goes_on_when_it_is_refused_is_cut_off_and_may_come_back_later(
    serve: Serve, connect: Connect, context: Context, clock: Clock
) -> None:
    pace = Pace(clock)
    server = serve(answer_ready, screen=Screen(pace=pace))
    dealer = open_socket(context, zmq.DEALER)
    monitor = dealer.get_monitor_socket(zmq.EVENT_DISCONNECTED)
    try:
        peer = RawPeer(dealer, server.endpoint)
        assert peer.receive_own_answer()
        pace.charge(ONE, 1.6)
        peer.send_header([1, ApiKey.PLACEMENT_STATUS, 0, 1, "c", None, None, None])
        assert monitor.poll(round(scaled(5_000)))
    finally:
        dealer.disable_monitor()
        monitor.close()
        dealer.close()
    with pytest.raises(PeerUnreachableError):
        connect(server.endpoint, 300).request(STATUS, timeout_ms=TIMEOUT_MS)
    clock.now_s += 20
    assert connect(server.endpoint).request(STATUS, timeout_ms=TIMEOUT_MS) == READY


@pytest.mark.parametrize(
    ("work_s", "body", "held"), [(0.0, b"\x80", 16), (0.1, b"\x80", 2), (0.0, bytes(600_000), 1)]
)
def test_a_broker_has_few_unanswered_requests_or_one_large(
    serve: Serve, context: Context, clock: Clock, work_s: float, body: bytes, held: int
) -> None:
    pace = Pace(clock)
    pace.charge(ONE, work_s)
    requests: queue.Queue[IncomingRequest] = queue.Queue()
    server = serve(requests.put, screen=Screen(pace=pace))
    dealer = open_socket(context, zmq.DEALER)
    try:
        peer = RawPeer(dealer, server.endpoint)
        body = b"\x81\xa1x" + b"\xdd" + (len(body)).to_bytes(4, "big") + b"\1" * len(body)
        for number in range(held + 1):
            peer.send_header([1, ApiKey.ENVELOPE, 0, number, "c", None, None, None], body)
        assert peer.receive() == [1, held, Errors.BROKER_NOT_AVAILABLE]
        assert requests.qsize() == held
        requests.get(timeout=scaled(5)).reply.fail(Errors.NOT_CONTROLLER)
        assert peer.receive() == [1, 0, Errors.NOT_CONTROLLER]
    finally:
        dealer.close()


def flood(dealer: Socket, count: int) -> None:
    for _ in range(count):
        assert dealer.poll(TIMEOUT_MS, zmq.POLLOUT)
        dealer.send_multipart([b"", b""])


def test_a_peer_that_sends_faster_than_it_is_read_is_cut_off(context: Context) -> None:
    listening = Peers(KEYS, everybody_is_broker(1), "tcp://127.0.0.1:0", 1_000)
    dealer = open_socket(context, zmq.DEALER)
    try:
        dealer.setsockopt(zmq.RECONNECT_IVL, -1)
        connect_to(dealer, f"{listening.endpoint}#{KEYS.public}")

        def is_connected() -> bool:
            listening.take_events()
            return bool(dealer.poll(0, zmq.POLLOUT))

        def receive() -> bool:
            listening.take_events()
            return listening.receive() is not None

        eventually(is_connected, "it is let in")
        for _ in range(2_000):  # read at once they are no burden, however many
            flood(dealer, 1)
            eventually(receive, "a message arrives")
        assert not listening.sweep()
        flood(dealer, 2_000)
        eventually(
            lambda: isinstance(next(iter(listening.sweep()), None), MessageTooLargeError), ""
        )
        message = listening.receive()
        assert message is not None
        assert message.frames is None, "what has arrived is dropped"
    finally:
        dealer.close()
        listening.close()


# --- what ZeroMQ does without a message -----------------------------------------------------------


@pytest.fixture
def busy_zeromq(monkeypatch: pytest.MonkeyPatch) -> None:
    """ZeroMQ's thread has always worked a second more than before."""
    worked_s = itertools.count(1.0)
    monkeypatch.setattr(IoThread, "worked_s", lambda _: next(worked_s))


@pytest.fixture
def idle_zeromq(monkeypatch: pytest.MonkeyPatch) -> None:
    """ZeroMQ's thread has always worked a nanosecond more than before."""
    worked_ns = itertools.count(1.0)
    monkeypatch.setattr(IoThread, "worked_s", lambda _: next(worked_ns) / 1e9)


@contextmanager
def connected_peers(context: Context, heartbeat_ms: int) -> Iterator[tuple[Peers, Socket]]:
    """Listening peers, and a connected one, of broker 1, that sends ZeroMQ's PING so often."""
    listening = Peers(KEYS, everybody_is_broker(1), "tcp://127.0.0.1:0", 1_000_000)
    dealer = open_socket(context, zmq.DEALER)
    try:
        dealer.setsockopt(zmq.HEARTBEAT_IVL, heartbeat_ms)
        dealer.setsockopt(zmq.HEARTBEAT_TIMEOUT, TIMEOUT_MS)
        connect_to(dealer, f"{listening.endpoint}#{KEYS.public}")

        def is_connected() -> bool:
            listening.take_events()
            return bool(dealer.poll(0, zmq.POLLOUT))

        eventually(is_connected, "it is let in")
        yield listening, dealer
    finally:
        dealer.close()
        listening.close()


@pytest.mark.usefixtures("busy_zeromq")
@pytest.mark.parametrize("has_sent", [True, False])
def test_commands_of_zeromq_are_work_of_the_peer_that_sends_them(
    context: Context, has_sent: bool
) -> None:
    with connected_peers(context, heartbeat_ms=1) as (peers, dealer):
        assert peers.unseen_work()[ONE] > 0, "the proof of its key"
        if has_sent:
            flood(dealer, 1)
            eventually(lambda: peers.receive() is not None, "a message arrives")
        for _ in range(3):
            eventually(lambda: peers.unseen_work().get(ONE, 0.0) > 0, "more PINGs come")


@pytest.mark.usefixtures("busy_zeromq")
def test_messages_that_are_read_are_no_unseen_work(context: Context) -> None:
    with connected_peers(context, heartbeat_ms=0) as (peers, dealer):
        assert peers.unseen_work()[ONE] == pytest.approx(0.001)
        for size in (0, 300, 20_000, 500_000):
            dealer.send_multipart(list(pieces([b"", b"", bytes(size)])))
            eventually(lambda: peers.receive() is not None, "a message arrives")
            assert sum(peers.unseen_work().values()) < 0.0001


@pytest.mark.usefixtures("idle_zeromq")
def test_commands_cost_nothing_while_zeromq_has_little_to_do(context: Context) -> None:
    with connected_peers(context, heartbeat_ms=1) as (peers, _):
        peers.unseen_work()  # the proof of its key
        end_s = time.monotonic() + 0.1  # some PINGs come
        while time.monotonic() < end_s:
            assert not peers.unseen_work()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")
def test_the_time_of_the_thread_of_zeromq_is_measured(context: Context) -> None:
    with connected_peers(context, heartbeat_ms=0):
        router = open_socket(context, zmq.ROUTER)
        try:
            thread = IoThread(context)
            assert 0 < thread.worked_s() < time.process_time()
        finally:
            router.close()


@pytest.mark.usefixtures("busy_zeromq")
def test_a_broker_that_floods_a_server_with_commands_is_cut_off(
    serve: Serve, connect: Connect, context: Context, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("regent.transport.control.peers._S_PER_UNREAD_BYTE", 1.0)
    server = serve(answer_ready, screen=Screen(pace=Pace(clock)))
    dealer = open_socket(context, zmq.DEALER)
    monitor = dealer.get_monitor_socket(zmq.EVENT_DISCONNECTED)
    try:
        dealer.setsockopt(zmq.HEARTBEAT_IVL, 1)
        dealer.setsockopt(zmq.HEARTBEAT_TIMEOUT, TIMEOUT_MS)
        connect_to(dealer, server.endpoint)
        assert monitor.poll(TIMEOUT_MS)
    finally:
        dealer.disable_monitor()
        monitor.close()
        dealer.close()
    assert server.overdone == {"broker-1": 1}
    assert server.rejected.counts == {Rejection.TOO_MUCH_WORK: 1}
    with pytest.raises(PeerUnreachableError):
        connect(server.endpoint, 300).request(STATUS, timeout_ms=TIMEOUT_MS)
    clock.now_s += 21
    assert connect(server.endpoint).request(STATUS, timeout_ms=TIMEOUT_MS) == READY


RESETS = """
from regent.transport.control.rejections import Rejection
from regent.transport.control.server import ControlServer
from tests.support.keys import KEYS, everybody_is_broker
from tests.transport.control.curve_peer import reset_behind_a_ping
from tests.transport.control.raw_peer import answer_ready

server = ControlServer(
    KEYS, everybody_is_broker(1), "tcp://127.0.0.1:0", answer_ready, name="server"
)
server.start()
for _ in range(30):
    reset_behind_a_ping(server.endpoint, KEYS)
server.stop()
print("it serves")
"""


def test_a_ping_of_a_connection_that_was_reset_does_not_end_the_process() -> None:
    """In a process of its own, because that may end."""
    done = subprocess.run(
        [sys.executable, "-c", RESETS],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=scaled(50),
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "it serves\n"), done.stderr


@pytest.mark.parametrize("kind", [zmq.ROUTER, zmq.DEALER])
def test_zeromq_never_stops_reading(context: Context, kind: zmq.SocketType) -> None:
    # It would end the process when it has to send something to a peer that has reset then.
    socket = open_socket(context, kind)
    assert socket.getsockopt(zmq.RCVHWM) == 0
    socket.close()


def test_a_server_sends_no_heartbeats(context: Context) -> None:
    router = open_socket(context, zmq.ROUTER)
    assert router.getsockopt(zmq.HEARTBEAT_IVL) == 0
    router.close()
