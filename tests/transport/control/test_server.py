"""A ControlServer against real sockets and peers that behave."""

from __future__ import annotations

import queue
import resource
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue

import pytest
import zmq

from regent.config.addresses import port_of
from regent.core.errors import Errors, RegentError
from regent.core.model import TopicPartition
from regent.core.protocol.api import ApiKey
from regent.core.protocol.control import ControlHeader, StopReplicaRequest, StopReplicaResponse
from regent.core.protocol.envelope import EnvelopeRequest, EnvelopeResponse
from regent.core.protocol.messages.partitions import (
    NO_ERROR,
    ElectionType,
    ElectLeadersRequest,
    ElectLeadersResponse,
)
from regent.core.protocol.placement import PlacementStatusResponse
from regent.testing.waits import scaled
from regent.transport.control.client import RequestFailedError
from regent.transport.control.rejections import Rejection
from regent.transport.control.server import ControlServer, IncomingRequest, PortInUseError
from regent.transport.control.sockets import Context, open_socket
from tests.support.ipv6 import needs_ipv6
from tests.support.keys import EVERYBODY_OPERATES, KEYS, everybody_is_broker
from tests.support.killed_threads import kill_thread
from tests.support.topic_requests import forwarded_deletion
from tests.transport.control.conftest import Connect, Serve
from tests.transport.control.raw_peer import READY, STATUS, TIMEOUT_MS, RawPeer, answer_ready


@pytest.fixture
def server(serve: Serve) -> ControlServer:
    return serve(answer_ready)


def test_a_request_arrives_whole_and_its_answer_comes_back(serve: Serve, connect: Connect) -> None:
    requests: queue.Queue[IncomingRequest] = queue.Queue()

    def dispatch(request: IncomingRequest) -> None:
        requests.put(request)
        request.reply(StopReplicaResponse(Errors.STALE_BROKER_EPOCH))

    client = connect(serve(dispatch).endpoint)
    header = ControlHeader(1, 7, 4_294_967_300, broker_id=2)
    response = client.request(StopReplicaRequest(()), control_header=header, timeout_ms=TIMEOUT_MS)
    assert response == StopReplicaResponse(Errors.STALE_BROKER_EPOCH)
    request = requests.get(timeout=scaled(5))
    assert request.api_key is ApiKey.STOP_REPLICA
    assert request.control_header == header
    assert request.client_id == "tester"
    assert request.body == StopReplicaRequest(())


def test_an_answer_may_come_from_another_thread_later(serve: Serve, connect: Connect) -> None:
    inbox: queue.Queue[IncomingRequest] = queue.Queue()
    client = connect(serve(inbox.put).endpoint)

    def answer_one() -> None:
        inbox.get(timeout=scaled(5)).reply(READY)

    thread = threading.Thread(target=answer_one)
    thread.start()
    assert client.request(STATUS, timeout_ms=TIMEOUT_MS) == READY
    thread.join(scaled(5))


def test_requests_are_counted_by_their_api(server: ControlServer, connect: Connect) -> None:
    client = connect(server.endpoint)
    for _ in range(2):
        client.request(STATUS, timeout_ms=TIMEOUT_MS)
    assert server.requests == {ApiKey.PLACEMENT_STATUS: 2}


def test_a_request_is_answered_once(serve: Serve, connect: Connect) -> None:
    def dispatch(request: IncomingRequest) -> None:
        request.reply(READY)
        request.reply(PlacementStatusResponse(Errors.NONE, "failed"))
        request.reply.fail(Errors.NOT_CONTROLLER)

    client = connect(serve(dispatch).endpoint)
    for _ in range(3):
        assert client.request(STATUS, timeout_ms=TIMEOUT_MS) == READY


def test_a_refusal_has_only_an_error_code(serve: Serve, connect: Connect) -> None:
    client = connect(serve(lambda request: request.reply.fail(Errors.NOT_CONTROLLER)).endpoint)
    with pytest.raises(RequestFailedError, match="NOT_CONTROLLER") as caught:
        client.request(STATUS, timeout_ms=TIMEOUT_MS)
    assert caught.value.error_code is Errors.NOT_CONTROLLER


def test_a_forgotten_request_is_answered_with_an_error(serve: Serve, connect: Connect) -> None:
    client = connect(serve(lambda _: None, max_outstanding=1).endpoint)
    for _ in range(3):
        with pytest.raises(RequestFailedError) as caught:
            client.request(STATUS, timeout_ms=TIMEOUT_MS)
        assert caught.value.error_code is Errors.UNKNOWN_SERVER_ERROR


def test_an_exception_in_dispatch_is_answered_and_the_next_request_served(
    serve: Serve, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    def dispatch(request: IncomingRequest) -> None:
        if isinstance(request.body, EnvelopeRequest):
            raise KeyError("surprise")
        request.reply(READY)

    server = serve(dispatch)
    client = connect(server.endpoint)
    with pytest.raises(RequestFailedError) as caught:
        client.request(forwarded_deletion("t"), timeout_ms=TIMEOUT_MS)
    assert caught.value.error_code is Errors.UNKNOWN_SERVER_ERROR
    assert client.request(STATUS, timeout_ms=TIMEOUT_MS) == READY
    assert server.rejected.counts == {Rejection.DISPATCH_FAILED: 1}
    assert "surprise" in caplog.text


@pytest.mark.parametrize(
    "response",
    [EnvelopeResponse(), PlacementStatusResponse(Errors.NONE, "\ud800")],
)
def test_an_answer_that_cannot_be_sent_becomes_an_error(
    serve: Serve, connect: Connect, response: PlacementStatusResponse
) -> None:
    client = connect(serve(lambda request: request.reply(response)).endpoint)
    with pytest.raises(RequestFailedError) as caught:
        client.request(STATUS, timeout_ms=TIMEOUT_MS)
    assert caught.value.error_code is Errors.UNKNOWN_SERVER_ERROR


@contextmanager
def many_open_files() -> Iterator[None]:
    """Room for the five descriptors of a connection whose both ends are in this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 4096 if hard == resource.RLIM_INFINITY else min(4096, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def elected(partitions: Iterable[TopicPartition]) -> ElectLeadersResponse:
    return ElectLeadersResponse.of(dict.fromkeys(partitions, NO_ERROR))


def test_200_clients_at_once_get_their_own_answers(serve: Serve, connect: Connect) -> None:
    def echo(request: IncomingRequest) -> None:
        asked = request.body
        assert isinstance(asked, ElectLeadersRequest)
        request.reply(elected(asked.partitions or ()))

    # Commands of operators: 200 connections of one broker would be more work than it may cause.
    server = serve(echo, known=EVERYBODY_OPERATES)
    everybody = threading.Barrier(200)
    wrong: queue.Queue[object] = queue.Queue()

    def ask(number: int) -> None:
        client = connect(server.endpoint)
        for offset in (0, 1000):
            everybody.wait(scaled(20))
            asked = [TopicPartition("t", number + offset)]
            request = ElectLeadersRequest.of(ElectionType.PREFERRED, asked)
            response = client.request(request, timeout_ms=TIMEOUT_MS)
            if response != elected(asked):
                wrong.put(response)
        client.close()

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(200)]
    with many_open_files():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(scaled(20))
    assert not any(thread.is_alive() for thread in threads)
    assert wrong.empty()
    # One that asked whether the server lives may have got its answer and left.
    assert server.rejected.counts.keys() <= {Rejection.UNROUTABLE_ANSWER}


def test_a_port_in_use_is_named_with_the_remedy(server: ControlServer) -> None:
    second = ControlServer(KEYS, EVERYBODY_OPERATES, server.endpoint, answer_ready, name="second")
    with pytest.raises(PortInUseError, match=r"tcp://127.0.0.1:\d+ is in use: .* another port"):
        second.start()
    second.stop()


@pytest.mark.parametrize(
    ("bind", "reached"),
    [
        pytest.param("tcp://[::1]:0", ["[::1]"], marks=needs_ipv6),
        pytest.param("tcp://[::]:0", ["[::1]", "127.0.0.1", "localhost"], marks=needs_ipv6),
        ("tcp://0.0.0.0:0", ["127.0.0.1"]),
        ("tcp://localhost:0", ["localhost", "127.0.0.1"]),
    ],
)
def test_a_server_is_reached_where_it_listens(
    serve: Serve, connect: Connect, bind: str, reached: list[str]
) -> None:
    server = serve(answer_ready, bind)
    for host in reached:
        client = connect(f"tcp://{host}:{port_of(server.endpoint)}")
        assert client.request(STATUS, timeout_ms=TIMEOUT_MS) == READY


def test_an_unknown_host_name_is_named() -> None:
    for name in ("nobody.invalid", "x" * 64):
        server = ControlServer(
            KEYS, EVERYBODY_OPERATES, f"tcp://{name}:0", answer_ready, name="nowhere"
        )
        with pytest.raises(RegentError, match=f"cannot listen on tcp://{name}:0"):
            server.start()


def test_an_unusable_address_is_named() -> None:
    server = ControlServer(KEYS, EVERYBODY_OPERATES, "nonsense", answer_ready, name="nowhere")
    with pytest.raises(RegentError, match="cannot listen on nonsense"):
        server.start()


def test_stopping_leaves_no_thread_and_frees_the_port(serve: Serve, connect: Connect) -> None:
    held: queue.Queue[IncomingRequest] = queue.Queue()
    server = serve(held.put)
    server.stop()
    server.stop()
    assert "test-server" not in {thread.name for thread in threading.enumerate()}
    again = serve(answer_ready, server.endpoint)
    assert connect(again.endpoint).request(STATUS, timeout_ms=TIMEOUT_MS) == READY


def test_an_answer_given_before_the_stop_is_sent(serve: Serve, connect: Connect) -> None:
    stop = threading.Event()

    def answer_and_stop(request: IncomingRequest) -> None:
        request.reply(READY)
        stop.set()

    server = serve(answer_and_stop)

    def stop_server() -> None:
        assert stop.wait(scaled(5))
        server.stop()

    thread = threading.Thread(target=stop_server)
    thread.start()
    assert connect(server.endpoint).request(STATUS, timeout_ms=TIMEOUT_MS) == READY
    thread.join(scaled(5))


def test_an_answer_after_the_stop_is_ignored(serve: Serve, context: Context) -> None:
    held: queue.Queue[IncomingRequest] = queue.Queue()
    server = serve(held.put)
    socket = open_socket(context, zmq.DEALER)
    RawPeer(socket, server.endpoint).send_header(
        [1, ApiKey.PLACEMENT_STATUS, 0, 1, "c", None, None, None]
    )
    request = held.get(timeout=scaled(5))
    server.stop()
    request.reply(READY)
    socket.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_the_end_of_the_thread_is_reported_unless_it_was_asked_for(connect: Connect) -> None:
    failures: SimpleQueue[RegentError] = SimpleQueue()
    for is_killed in (False, True):
        server = ControlServer(
            KEYS, everybody_is_broker(1), "tcp://127.0.0.1:0", answer_ready, name="test-server"
        )
        server.start(failures.put)
        assert connect(server.endpoint).request(STATUS, timeout_ms=TIMEOUT_MS) == READY
        if is_killed:
            kill_thread("test-server", "_take_turn")
            assert "test-server has ended" in str(failures.get(timeout=scaled(20)))
        server.stop()
        assert failures.empty()
