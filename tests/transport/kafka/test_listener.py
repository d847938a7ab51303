from __future__ import annotations

import asyncio
import gc
import os
import queue
import resource
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from itertools import count, islice

import pytest
from kafka.protocol.metadata import ApiVersionsRequest

from regent.core.errors import RegentError
from regent.core.model import EndPoint
from regent.core.security.session import Session, network_of
from regent.testing.waits import eventually, scaled
from regent.transport.control.server import PortInUseError
from regent.transport.descriptors import RESERVED_DESCRIPTORS, Descriptors
from regent.transport.kafka.acceptor import AddressQuotas, SharedLimits
from regent.transport.kafka.api import KafkaAnswer, KafkaApi, KafkaApiKey, KafkaRequest
from regent.transport.kafka.api_versions import ClientSoftware
from regent.transport.kafka.framing import Outgoing
from regent.transport.kafka.handshakes import first_to_go
from regent.transport.kafka.limits import MAX_BYTES_WITHOUT_RECORDS, KafkaLimits
from regent.transport.kafka.listener import KafkaListener
from regent.transport.kafka.listener_loop import ListenerLoop
from regent.transport.kafka.metrics import Closed, ListenerMetrics, RequestMetrics
from regent.transport.kafka.primitives import MalformedRequestError
from regent.transport.kafka.replies import AwaitedReply, Replies
from tests.support.descriptors import no_descriptor_left
from tests.transport.kafka.conftest import Listen
from tests.transport.kafka.raw_client import METADATA, WAIT_S, Desk, RawClient, request_bytes
from tests.transport.kafka.wire import read

MIB = 1024 * 1024


@contextmanager
def few_descriptors() -> Iterator[None]:
    """Leave this process eight: one for each side of a connection, the others for its threads."""
    before, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = {int(name) for name in os.listdir("/dev/fd")}
    eighth = next(islice((number for number in count() if number not in used), 7, None))
    resource.setrlimit(resource.RLIMIT_NOFILE, (eighth + 1, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before, most))


def settle(client: RawClient) -> None:
    """Return when whatever was sent before has been looked at: the loop went round in between."""
    for _ in range(3):
        assert client.ask(b"now settle") == b"now settle"


def test_a_request_is_answered_however_it_arrives(listen: Listen):
    with RawClient(listen(Desk().apis)) as client:
        for byte in request_bytes(b"now", correlation_id=7):
            client.send(bytes([byte]))
        assert client.answer() == (7, b"now")


def test_answers_go_out_in_the_order_of_the_requests(listen: Listen):
    desk = Desk()
    with RawClient(listen(desk.apis)) as client:
        bodies = [b"first", b"second", b"now", b"third"]
        client.send(b"".join(request_bytes(body, number) for number, body in enumerate(bodies)))
        assert [desk.next_begun() for _ in range(3)] == [b"first", b"second", b"third"]

        desk.answer(b"third")
        desk.answer(b"second")
        desk.answer(b"first")
        assert [client.answer() for _ in bodies] == list(enumerate(bodies))


def test_the_headers_of_flexible_messages_have_tagged_fields(listen: Listen):
    seen: list[KafkaRequest] = []

    async def handle(request: KafkaRequest) -> KafkaAnswer:
        seen.append(request)
        return (b"body",)

    unknown_field = b"\x01\x05\x02xx"  # one field: tag 5, two bytes
    with RawClient(listen([KafkaApi(METADATA, 0, 12, handle)])) as client:
        client.send(request_bytes(unknown_field + b"asked", 7, version=9))
        assert client.answer() == (7, b"\x00body")
    assert [(bytes(request.body), request.client_id) for request in seen] == [(b"asked", "client")]


def test_the_response_to_api_versions_has_the_old_header(listen: Listen):
    with RawClient(listen(Desk().apis)) as client:
        client.send(request_bytes(b"\x00\x02a\x02b\x00", 7, api_key=18, version=3))
        correlation_id, body = client.answer()
    assert correlation_id == 7
    assert read(ApiVersionsRequest, 3, body).error_code == 0


def test_nothing_is_sent_for_a_request_without_an_answer(listen: Listen):
    async def handle(request: KafkaRequest) -> KafkaAnswer:
        return None if bytes(request.body) == b"acks=0" else (b"acks=1",)

    with RawClient(listen([KafkaApi(METADATA, 0, 8, handle)])) as client:
        client.send(request_bytes(b"acks=0", 1) + request_bytes(b"acks=1", 2))
        assert client.answer() == (2, b"acks=1")


def test_a_request_in_an_unknown_version_gets_the_versions(listen: Listen):
    with RawClient(listen(Desk().apis)) as client:
        software = b"\0\2a\2b\0"
        for version, body, error in [(0, b"", 0), (3, software, 0), (99, b"\0\0\0\0", 35)]:
            client.send(request_bytes(body, version, api_key=18, version=version))
            correlation_id, answer = client.answer()
            assert correlation_id == version
            told = read(ApiVersionsRequest, version if error == 0 else 0, answer)
            assert told.error_code == error


# --- limits ---


def test_the_requests_of_a_connection_are_limited_and_other_connections_continue(listen: Listen):
    desk = Desk()
    listener = listen(desk.apis, KafkaLimits(queued_requests_per_connection=2))
    with RawClient(listener) as busy, RawClient(listener) as other:
        busy.send(b"".join(request_bytes(b"%d" % number, number) for number in range(5)))
        assert [desk.next_begun(), desk.next_begun()] == [b"0", b"1"]
        settle(other)
        assert desk.begun.empty()
        assert listener.metrics.throttled == 1

        for number in range(5):
            desk.answer(b"%d" % number)
            assert busy.answer() == (number, b"%d" % number)
            if number < 3:
                assert desk.next_begun() == b"%d" % (number + 2)


@pytest.mark.parametrize("size", [300_000, 1_500_000, 4_000_000])
def test_a_client_that_reads_no_answers_gets_no_further_request_handled(listen: Listen, size: int):
    requests = 80_000_000 // size
    taken: list[int] = []
    answer = bytes(size)

    async def handle(request: KafkaRequest) -> KafkaAnswer:
        if request.body:
            return (request.body,)
        taken.append(request.correlation_id)
        return (answer,)

    listener = listen([KafkaApi(METADATA, 0, 8, handle)])
    with RawClient(listener) as lazy, RawClient(listener) as other:
        lazy.send(b"".join(request_bytes(correlation_id=number) for number in range(requests)))
        settle(other)
        assert len(taken) < requests
        for number in range(requests):
            assert lazy.answer() == (number, answer)


def test_large_requests_wait_for_memory_and_small_ones_do_not(listen: Listen):
    desk = Desk()
    listener = listen(desk.apis, KafkaLimits(queued_max_request_bytes=150_000))
    large = [b"%d" % number + bytes(100_000) for number in range(2)]
    with RawClient(listener) as first, RawClient(listener) as second:
        first.send(request_bytes(large[0]))
        assert desk.next_begun() == large[0]
        second.send(request_bytes(large[1]))
        with RawClient(listener) as other:
            settle(other)
        assert desk.begun.empty()

        desk.answer(large[0], b"done")
        assert first.answer() == (1, b"done")
        assert desk.next_begun() == large[1]


def test_an_announced_request_that_does_not_arrive_takes_no_memory(listen: Listen):
    desk = Desk()
    listener = listen(desk.apis, KafkaLimits(queued_max_request_bytes=150_000))
    with ExitStack() as silent:
        for _ in range(4):
            client = silent.enter_context(RawClient(listener))
            client.send(request_bytes(bytes(10_000_000), api_key=KafkaApiKey.METADATA)[:12])
        with RawClient(listener) as other:
            settle(other)
            assert other.ask(b"now" + bytes(140_000))[:3] == b"now"


def test_a_client_that_pauses_in_a_request_is_cut_off_when_others_wait(listen: Listen):
    listener = listen(Desk().apis, KafkaLimits(queued_max_request_bytes=1_000_000))
    with RawClient(listener) as stalled, RawClient(listener) as other:
        stalled.send(request_bytes(bytes(1_000_000))[:900_000])
        settle(other)
        assert other.ask(b"now" + bytes(300_000))[:3] == b"now"
        assert stalled.is_closed()
        assert +listener.metrics.closed == {Closed.SLOW: 1}


def test_a_client_may_pause_in_the_middle_of_a_request_that_blocks_no_other(
    listen: Listen,
):
    listener = listen(Desk().apis, KafkaLimits(queued_max_request_bytes=1_000_000))
    request = request_bytes(b"now" + bytes(900_000))
    with RawClient(listener) as slow, RawClient(listener) as other:
        slow.send(request[:500_000])
        for _ in range(3):
            settle(other)
            assert other.ask(b"now" + bytes(30_000))[:3] == b"now"
        slow.send(request[500_000:])
        assert slow.answer()[1][:3] == b"now"


def test_requests_that_all_wait_for_more_memory_are_served_one_after_the_other(listen: Listen):
    listener = listen(Desk().apis, KafkaLimits(queued_max_request_bytes=600_000))
    request = request_bytes(b"now" + bytes(500_000))
    with ExitStack() as clients, RawClient(listener) as other:
        begun = [clients.enter_context(RawClient(listener)) for _ in range(4)]
        for client in begun:
            client.send(request[:150_000])
        settle(other)
        for client in begun:
            client.send(request[150_000:])
        for client in begun:
            assert client.answer()[1][:3] == b"now"


def test_only_records_make_a_request_very_large(listen: Listen):
    async def handle(request: KafkaRequest) -> KafkaAnswer:
        return (b"%d" % len(request.body),)

    apis = [KafkaApi(METADATA, 0, 8, handle), KafkaApi(KafkaApiKey.PRODUCE, 0, 8, handle)]
    listener = listen(apis)
    with RawClient(listener) as client:
        size = MAX_BYTES_WITHOUT_RECORDS + 1
        client.send(request_bytes(bytes(size), api_key=KafkaApiKey.PRODUCE))
        assert client.answer() == (1, b"%d" % size)
        client.send(request_bytes(bytes(size))[: size // 2])
        assert client.is_closed()
    assert +listener.metrics.closed == {Closed.MALFORMED: 1}


def test_memory_is_free_again_when_a_client_leaves(listen: Listen):
    desk = Desk()
    listener = listen(desk.apis, KafkaLimits(queued_max_request_bytes=150_000))
    with RawClient(listener) as waiting, RawClient(listener) as other:
        with RawClient(listener) as first, RawClient(listener) as begun:
            first.send(request_bytes(bytes(100_000)))
            desk.next_begun()
            begun.send(request_bytes(bytes(140_000))[:70_000])
            settle(other)
            waiting.send(request_bytes(b"waiting" + bytes(100_000)))
            settle(other)
        assert desk.next_begun().startswith(b"waiting")


def test_a_new_connection_waits_while_there_are_max_connections(listen: Listen):
    listener = listen(Desk().apis, KafkaLimits(max_connections=2))
    with RawClient(listener) as first, RawClient(listener) as second, RawClient(listener) as third:
        assert second.ask(b"now") == first.ask(b"now") == b"now"
        third.send(request_bytes(b"now later"))
        settle(first)
        assert listener.metrics.connections == 2
        second.socket.close()
        assert third.answer() == (1, b"now later")
        assert listener.metrics.accept_pauses >= 1
    assert +listener.metrics.closed == {}


def test_reaching_the_limit_of_connections_is_reported_once(
    listen: Listen, caplog: pytest.LogCaptureFixture
):
    listener = listen(Desk().apis, KafkaLimits(max_connections=1))
    with RawClient(listener) as first, RawClient(listener):
        deadline = time.monotonic() + WAIT_S
        while not listener.metrics.warnings:
            settle(first)
            assert time.monotonic() < deadline
        assert "as many as max_connections allows" in listener.metrics.warnings[0]
    assert len(caplog.records) == 1


def test_the_connections_of_an_address_are_limited_and_other_addresses_can_connect(listen: Listen):
    limits = KafkaLimits(
        max_connections_per_ip=1, max_connections_per_ip_overrides={"127.0.0.3": 2}
    )
    listener = listen(Desk().apis, limits)
    with RawClient(listener) as first, RawClient(listener, "127.0.0.2") as elsewhere:
        with RawClient(listener) as second:
            assert second.is_closed()
        assert first.ask(b"now") == elsewhere.ask(b"now") == b"now"
        with RawClient(listener, "127.0.0.3") as one, RawClient(listener, "127.0.0.3") as two:
            assert one.ask(b"now") == two.ask(b"now") == b"now"
            with RawClient(listener, "127.0.0.3") as three:
                assert three.is_closed()
        assert +listener.metrics.closed == {Closed.TOO_MANY_OF_ADDRESS: 2}
        while listener.metrics.connections > 2:
            settle(first)
        with RawClient(listener, "127.0.0.3") as again:
            assert again.ask(b"now") == b"now"


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("fe80::5%eth0", "fe80::%eth0/64"),
    ],
)
def test_a_client_counts_for_its_network(host: str, network: str):
    assert network_of(host) == network


def test_each_address_of_a_network_has_the_limit_of_connections():
    quotas = AddressQuotas(2, {"2001:db8::9": 3})
    for address, limit in {"2001:db8::1": 2, "2001:db8::2": 2, "2001:db8::9": 3}.items():
        assert [quotas.admit(address) is None for _ in range(4)].count(True) == limit


@dataclass
class Waits:
    client_host: str


def test_a_machine_with_many_addresses_drives_no_user_out():
    user = Waits("2001:db8:0:1::1")
    strangers = [Waits(f"2001:db8::{number:x}") for number in range(1, 64)]
    assert first_to_go([user, *strangers]) is strangers[0]


def test_an_address_drives_no_user_of_its_network_out():
    user, elsewhere = Waits("2001:db8::1"), [Waits("2001:db8:0:1::1") for _ in range(3)]
    strangers = [Waits("2001:db8::bad") for _ in range(3)]
    assert first_to_go([*elsewhere, user, *strangers]) is strangers[0]


def test_a_host_that_has_no_address_can_have_no_limit(listen: Listen):
    limits = KafkaLimits(max_connections_per_ip_overrides={"no such host": 1})
    with pytest.raises(RegentError, match="no such host has no address"):
        KafkaListener("127.0.0.1", 0, [], limits)
    with pytest.raises(RegentError, match="no such host has no address"):
        listen(Desk().apis).limit_connections(limits)


def test_limits_of_connections_change_while_clients_are_connected(listen: Listen):
    listener = listen(Desk().apis, KafkaLimits(max_connections=1))
    with RawClient(listener) as first, RawClient(listener) as second:
        assert first.ask(b"now") == b"now"
        listener.limit_connections(KafkaLimits(max_connections=2))
        assert second.ask(b"now") == b"now"
        listener.limit_connections(KafkaLimits(max_connections_per_ip=2))
        with RawClient(listener) as third:
            assert third.is_closed()
        listener.limit_connections(KafkaLimits(max_connections_per_ip=1))
        assert first.ask(b"now") == second.ask(b"now") == b"now", "present connections stay"
    assert +listener.metrics.closed == {Closed.TOO_MANY_OF_ADDRESS: 1}


@pytest.mark.parametrize(
    "limits",
    [
        KafkaLimits(max_connection_creation_rate=1),
        KafkaLimits(max_connection_creation_rate_of_listener=1),
    ],
)
def test_connections_beyond_the_rate_of_all_wait_and_are_served(
    listen: Listen, limits: KafkaLimits
):
    listener = listen(Desk().apis, limits)
    with ExitStack() as stack:
        clients = [stack.enter_context(RawClient(listener)) for _ in range(11)]
        for client in clients:
            assert client.ask(b"now") == b"now"
    assert listener.metrics.accept_pauses >= 1
    assert listener.metrics.accept_paused_s > 0
    assert not +listener.metrics.closed


def test_the_last_descriptors_are_not_for_clients(listen: Listen):
    listener = listen(Desk().apis)
    with RawClient(listener) as early:
        assert early.ask(b"now") == b"now"
        with few_descriptors(), RawClient(listener) as late:
            assert late.is_closed()
            assert early.ask(b"now") == b"now"
        with RawClient(listener) as later:
            assert later.ask(b"now") == b"now"
    assert +listener.metrics.closed == {Closed.NO_DESCRIPTORS: 1}


def test_new_clients_wait_while_no_descriptor_is_free(
    listen: Listen, caplog: pytest.LogCaptureFixture
):
    listener = listen(Desk().apis)
    with RawClient(listener) as early, socket.socket() as late:
        assert early.ask(b"now") == b"now"
        with no_descriptor_left():
            late.connect(("127.0.0.1", listener.port))
            settle(early)
        late.settimeout(scaled(5))
        late.sendall(request_bytes(b"now", correlation_id=7))
        assert late.recv(1)
    [line] = [record.getMessage() for record in caplog.records]
    assert line == "test-listener: clients wait to be accepted: Too many open files: " + (
        "raise the limit (ulimit -n)"
    )


def test_descriptors_of_logs_keep_clients_out_only_when_few_descriptors_are_free(
    listen: Listen, caplog: pytest.LogCaptureFixture
):
    in_use = 1_000_000 - RESERVED_DESCRIPTORS  # 99.99 percent
    listener = listen(Desk().apis, descriptors=Descriptors(lambda: in_use, lambda: 1_000_000))
    with ExitStack() as clients:
        for _ in range(16):
            client = clients.enter_context(RawClient(listener))
            assert client.ask(b"now") == b"now"
        for _ in range(3):
            late = clients.enter_context(RawClient(listener))
            assert late.is_closed()
    (warning,) = listener.metrics.warnings
    assert "file descriptors are left" in warning
    assert "ulimit -n" in warning
    assert [record.getMessage() for record in caplog.records] == [f"test-listener: {warning}"]


def test_idle_connections_are_closed_and_waiting_ones_are_not(listen: Listen):
    desk = Desk()
    listener = listen(desk.apis, KafkaLimits(connections_max_idle_ms=500))
    with RawClient(listener) as waiting, RawClient(listener) as begun, RawClient(listener) as idle:
        waiting.send(request_bytes(b"a long poll"))
        desk.next_begun()
        begun.send(request_bytes(b"never whole")[:-1])
        assert idle.is_closed()
        assert begun.is_closed()
        desk.answer(b"a long poll")
        assert waiting.answer() == (1, b"a long poll")
        assert waiting.is_closed()
    assert +listener.metrics.closed == {Closed.IDLE: 3}


def test_a_client_that_does_not_read_its_response_is_closed_as_idle(listen: Listen):
    desk = Desk()
    listener = listen(desk.apis, KafkaLimits(connections_max_idle_ms=100))
    with RawClient(listener) as client:
        client.send(request_bytes(b"much") + request_bytes(b"next"))
        assert {desk.next_begun(), desk.next_begun()} == {b"much", b"next"}
        desk.answer(b"much", bytes(64 * MIB))
        eventually(lambda: listener.metrics.closed[Closed.IDLE] == 1, "the connection stays")
    assert desk.given_up.get(timeout=WAIT_S) == b"next"


def test_a_client_that_sends_and_reads_slowly_is_not_idle(listen: Listen):
    desk, idle_s = Desk(), scaled(0.3)
    listener = listen(desk.apis, KafkaLimits(connections_max_idle_ms=round(idle_s * 1000)))
    request, pause_s = request_bytes(b"x"), idle_s / 10
    with RawClient(listener) as client:
        for byte in request:
            client.send(bytes([byte]))
            time.sleep(pause_s)
        desk.answer(desk.next_begun(), bytes(16 * MIB))
        unread = 8 + 16 * MIB
        while unread:
            some = MIB if unread % MIB == 0 else unread % MIB
            while some:
                got = len(client.socket.recv(some))
                assert got, "it is closed"
                some, unread = some - got, unread - got
            time.sleep(pause_s)
        assert client.ask(b"now") == b"now"
    assert not listener.metrics.closed[Closed.IDLE]


def test_a_flooding_client_does_not_starve_other_clients(listen: Listen):
    flood = 10_000
    handled = 0
    others_had_a_turn = threading.Event()

    async def handle(request: KafkaRequest) -> KafkaAnswer:
        nonlocal handled
        if request.body:
            return (request.body,)
        handled += 1
        others_had_a_turn.wait(0.001)  # a handler that takes its time
        return ()

    listener = listen([KafkaApi(METADATA, 0, 8, handle)])
    with RawClient(listener) as flooding, RawClient(listener) as other:
        flooding.send(request_bytes() * flood)
        settle(other)
        assert handled < flood
        others_had_a_turn.set()
        for _ in range(flood):
            assert flooding.answer() == (1, b"")


# --- what clients do wrong ---


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (struct.pack(">i", -1), Closed.MALFORMED),
        (struct.pack(">i", 3) + b"abc", Closed.MALFORMED),
        (struct.pack(">i", 1_000_001), Closed.MALFORMED),
        (b"GET / HTTP/1.1\r\n\r\n", Closed.MALFORMED),
        (struct.pack(">ihhih", 10, METADATA, 1, 1, 100), Closed.MALFORMED),
        (request_bytes(api_key=6), Closed.UNSUPPORTED),
        (request_bytes(api_key=-1), Closed.UNSUPPORTED),
        (request_bytes(version=9), Closed.UNSUPPORTED),
        (request_bytes(version=-1), Closed.UNSUPPORTED),
    ],
)
def test_a_malformed_request_closes_its_connection_only(
    listen: Listen, data: bytes, reason: Closed
):
    listener = listen(Desk().apis, KafkaLimits(socket_request_max_bytes=1_000_000))
    with RawClient(listener) as other, RawClient(listener) as client:
        client.send(data)
        assert client.is_closed()
        assert +listener.metrics.closed == {reason: 1}
        assert other.ask(b"now") == b"now"


def test_malformed_requests_fill_no_log(listen: Listen, caplog: pytest.LogCaptureFixture):
    listener = listen(Desk().apis)
    for _ in range(20):
        with RawClient(listener) as client:
            client.send(struct.pack(">i", -1))
            assert client.is_closed()
    assert listener.metrics.closed[Closed.MALFORMED] == 20
    assert len(caplog.records) == 1


@pytest.mark.parametrize("waits", [False, True])
def test_a_request_that_fails_unexpectedly_closes_its_connection_only(
    listen: Listen, caplog: pytest.LogCaptureFixture, waits: bool
):
    desk = Desk()

    async def handle(request: KafkaRequest) -> KafkaAnswer:
        if bytes(request.body) == b"now":
            return (request.body,)
        if waits:
            await desk.apis[0].handle(request)
        raise ZeroDivisionError("a bug")

    listener = listen([KafkaApi(METADATA, 0, 8, handle)])
    with RawClient(listener) as other, RawClient(listener) as client:
        client.send(request_bytes(b"bad"))
        if waits:
            desk.answer(desk.next_begun())
        assert client.is_closed()
        assert other.ask(b"now") == b"now"
    assert listener.metrics.closed[Closed.FAILED] == 1
    assert "ZeroDivisionError" in caplog.text


def test_an_answer_that_cannot_be_encoded_closes_its_connection_only(
    listen: Listen, caplog: pytest.LogCaptureFixture
):
    replies, waiting = Replies(), queue.Queue[AwaitedReply[bytes]]()

    def encode(value: bytes) -> KafkaAnswer:
        if value == b"bad":
            raise ZeroDivisionError("a bug")
        return (value,)

    def handle(request: KafkaRequest) -> AwaitedReply[KafkaAnswer]:
        reply: AwaitedReply[bytes] = replies.new()
        waiting.put(reply)
        return reply.mapped(encode)

    listener = listen([KafkaApi(METADATA, 0, 8, handle)])
    with RawClient(listener) as client, RawClient(listener) as other:
        client.send(request_bytes(b""))
        bad = waiting.get(timeout=WAIT_S)
        other.send(request_bytes(b"", 7))
        good = waiting.get(timeout=WAIT_S)
        bad.give(b"bad")
        good.give(b"good")
        assert client.is_closed()
        assert other.answer() == (7, b"good")
    assert listener.metrics.closed[Closed.FAILED] == 1
    assert "ZeroDivisionError" in caplog.text


def test_answers_that_another_thread_gives_together_are_sent_together(
    listen: Listen, monkeypatch: pytest.MonkeyPatch
):
    replies, waiting = Replies(), queue.Queue[AwaitedReply[KafkaAnswer]]()
    loops: list[asyncio.AbstractEventLoop] = []
    sent: list[int] = []
    send = Outgoing.send

    def noted(outgoing: Outgoing) -> int:
        sent.append(outgoing.size)  # first: then the client may have the answer
        return send(outgoing)

    monkeypatch.setattr(Outgoing, "send", noted)

    def handle(request: KafkaRequest) -> AwaitedReply[KafkaAnswer]:
        loops.append(replies.loop())
        reply = replies.new()
        waiting.put(reply)
        return reply

    listener = listen([KafkaApi(METADATA, 0, 8, handle)])
    with RawClient(listener) as client, RawClient(listener) as other:
        client.send(b"".join(request_bytes(b"", number) for number in range(3)))
        first, second, third = (waiting.get(timeout=WAIT_S) for _ in range(3))
        other.send(request_bytes(b"", 7))
        of_other = waiting.get(timeout=WAIT_S)
        together = (third, first, of_other, second)

        def give_together() -> None:  # while the loop waits
            with ThreadPoolExecutor(1) as executor:
                for reply in together:
                    executor.submit(reply.give, (b"!",))

        loops[0].call_soon_threadsafe(give_together)
        assert [client.answer() for _ in range(3)] == [(n, b"!") for n in range(3)]
        assert other.answer() == (7, b"!")
    one = len(b"size") + len(b"id..") + len(b"!")
    assert sorted(sent) == [one, 3 * one]


def test_requests_that_fail_after_their_connection_was_closed_log_nothing(
    listen: Listen, caplog: pytest.LogCaptureFixture
):
    may_fail = threading.Event()

    def fail() -> KafkaAnswer:
        assert may_fail.wait(WAIT_S)
        raise MalformedRequestError("found late")

    with ThreadPoolExecutor(1) as executor:

        async def handle(request: KafkaRequest) -> KafkaAnswer:
            if bytes(request.body).startswith(b"now"):
                return (request.body,)
            return await asyncio.get_running_loop().run_in_executor(executor, fail)

        listener = listen([KafkaApi(METADATA, 0, 8, handle)])
        with RawClient(listener) as client, RawClient(listener) as other:
            client.send(request_bytes(b"late") + request_bytes(version=99))
            assert client.is_closed()
            may_fail.set()
            settle(other)
    gc.collect()
    assert listener.metrics.errors == 0
    assert +listener.metrics.closed == {Closed.UNSUPPORTED: 1}
    assert len(caplog.records) == 1


def test_an_error_outside_of_a_request_is_counted_and_logged_at_intervals(
    listen: Listen, caplog: pytest.LogCaptureFixture
):
    async def handle(request: KafkaRequest) -> KafkaAnswer:
        if request.body:
            asyncio.get_running_loop().call_soon(lambda: 1 // 0)
        return (request.body,)

    listener = listen([KafkaApi(METADATA, 0, 8, handle)])
    with RawClient(listener) as client:
        for _ in range(5):
            client.ask(b"fail")
        settle(client)
    assert listener.metrics.errors >= 5
    assert len(caplog.records) == 1


def test_a_request_is_given_up_when_its_client_leaves(listen: Listen):
    desk = Desk()
    listener = listen(desk.apis)
    with RawClient(listener) as client:
        client.send(request_bytes(b"a long poll"))
        desk.next_begun()
    assert desk.given_up.get(timeout=WAIT_S) == b"a long poll"


# --- the listener itself ---


def test_the_listener_counts_requests_and_connections(listen: Listen):
    listener = listen(Desk().apis)
    with RawClient(listener) as client:
        for _ in range(3):
            client.ask(b"now")
        client.send(request_bytes(api_key=18, version=0))
        client.answer()
    metrics = listener.metrics
    counts = {number: api.count for number, api in enumerate(metrics.requests) if api.count}
    assert counts == {METADATA: 3, KafkaApiKey.API_VERSIONS: 1}
    assert metrics.bytes_in == 3 * len(request_bytes(b"now")) + len(request_bytes())
    assert metrics.bytes_out >= 3 * len(b"size" + b"corr" + b"now")


def test_it_counts_connections_and_what_their_clients_are(listen: Listen):
    listener = listen(Desk().apis)
    metrics = listener.metrics
    with RawClient(listener) as silent, RawClient(listener) as named:
        settle(silent)
        asked = b"\x00\x07regent\x042.0\x00"  # between empty lists of tagged fields
        named.send(request_bytes(asked, api_key=18, version=3))
        named.answer()
        assert metrics.software == {("unknown", "unknown"): 1, ("regent", "2.0"): 1}
        assert (metrics.connections, metrics.accepted, metrics.disconnected) == (2, 2, 0)
    with RawClient(listener) as last:
        settle(last)
        assert (metrics.connections, metrics.accepted, metrics.disconnected) == (1, 3, 2)
        assert metrics.software == {("unknown", "unknown"): 1}


def test_the_kinds_of_clients_that_are_counted_one_by_one_are_limited():
    metrics = ListenerMetrics()
    for number in range(1000):
        metrics.named(metrics.connected(), ClientSoftware("scanner", str(number)))
    assert len(metrics.software) <= 200
    assert metrics.software.total() == 1000


def test_the_parts_of_a_request_s_time_are_measured(listen: Listen):
    desk = Desk()
    listener = listen(desk.apis)
    with RawClient(listener) as client:
        client.send(request_bytes(b"wait"))
        desk.next_begun()
        time.sleep(0.02)  # this is what is measured
        desk.answer(b"wait")
        client.answer()
        settle(client)
    times = listener.metrics.requests[METADATA]
    assert times.remote_time.total_ms >= 10
    parts = times.local_time.total_ms + times.remote_time.total_ms
    assert parts <= times.total_time.total_ms + 0.001
    assert times.total_time.count <= times.count


def test_of_many_requests_at_once_one_in_sixteen_is_timed():
    metrics = RequestMetrics()
    assert sum(metrics.is_to_be_timed(now=1.0) for _ in range(160)) in (10, 11)
    assert metrics.is_to_be_timed(now=2.0)


def test_an_idle_loop_is_idle(listen: Listen):
    listener = listen(Desk().apis)
    with RawClient(listener) as client:
        settle(client)

        def is_idle() -> bool:
            before, began = listener.metrics.idle_s(), time.monotonic()
            threading.Event().wait(0.1)
            idle_s, waited_s = listener.metrics.idle_s() - before, time.monotonic() - began
            return 0.8 * waited_s < idle_s <= waited_s + 0.01

        eventually(is_idle, "the loop waits for its clients all the time")


def test_a_closing_listener_lets_answers_go_out_and_takes_nothing_up(listen: Listen):
    desk = Desk()
    listener = listen(desk.apis)
    with RawClient(listener) as waiting, RawClient(listener) as idle:
        settle(idle)
        waiting.send(request_bytes(b"the last one"))
        desk.next_begun()
        closing = threading.Thread(target=listener.close, args=(WAIT_S,))
        closing.start()
        assert idle.is_closed()
        with pytest.raises(OSError, match="refused"):
            RawClient(listener)
        desk.answer(b"the last one")
        assert waiting.answer() == (1, b"the last one")
        assert waiting.is_closed()
        closing.join(WAIT_S)
        assert not closing.is_alive()


def test_a_closing_listener_does_not_wait_for_ever(listen: Listen):
    desk = Desk()
    listener = listen(desk.apis)
    with RawClient(listener) as client:
        client.send(request_bytes(b"never answered"))
        desk.next_begun()
        listener.close(last_answers_s=0.01)
        assert client.is_closed()
    assert desk.given_up.get(timeout=WAIT_S) == b"never answered"
    listener.close()


def test_a_port_in_use_is_an_error_that_names_it_and_free_after_close(listen: Listen):
    listener = listen(Desk().apis)
    again = KafkaListener("127.0.0.1", listener.port, Desk().apis)
    with pytest.raises(PortInUseError, match=f"127.0.0.1:{listener.port}"):
        again.start()
    with RawClient(listener) as client:
        client.ask(b"now")
        listener.close()
    again.start()
    with RawClient(again) as client:
        assert client.ask(b"now") == b"now"
    again.close()


@pytest.mark.parametrize("host", ["192.0.2.1", "no such host"])
def test_an_unusable_address_is_an_error(host: str):
    with pytest.raises(RegentError, match="cannot listen"):
        KafkaListener(host, 0, []).start()


# --- several listeners ----------------------------------------------------------------------------


@pytest.fixture
def two_listeners() -> Iterator[Callable[[int, int], tuple[KafkaListener, KafkaListener]]]:
    """Start two listeners with a limit for both, and one for the first."""
    with ExitStack() as stack:

        def start(of_both: int, of_first: int) -> tuple[KafkaListener, KafkaListener]:
            loop = stack.enter_context(closing(ListenerLoop("test-listeners")))
            limits = KafkaLimits(max_connections=of_both)
            shared = SharedLimits(limits)
            first, second = (
                KafkaListener(
                    "127.0.0.1",
                    0,
                    Desk().apis,
                    replace(limits, max_connections_of_listener=own),
                    name,
                    loop=loop,
                    shared=shared,
                )
                for name, own in (("first", of_first), ("second", of_both))
            )
            for listener in (first, second):
                listener.start()
                stack.callback(listener.close, 0.1)
            return first, second

        yield start


def test_max_connections_counts_all_listeners(
    two_listeners: Callable[[int, int], tuple[KafkaListener, KafkaListener]],
):
    first, second = two_listeners(2, 2)
    with RawClient(first) as one, RawClient(second) as two, RawClient(second) as three:
        assert one.ask(b"now") == two.ask(b"now") == b"now"
        three.send(request_bytes(b"now later"))
        settle(two)
        assert first.metrics.connections == second.metrics.connections == 1
        one.socket.close()  # of the other listener
        assert three.answer() == (1, b"now later")


def test_a_listener_has_a_limit_of_its_own(
    two_listeners: Callable[[int, int], tuple[KafkaListener, KafkaListener]],
):
    first, second = two_listeners(9, 1)
    with RawClient(first) as one, RawClient(first) as waiting, RawClient(second) as other:
        assert one.ask(b"now") == other.ask(b"now") == b"now"
        waiting.send(request_bytes(b"now later"))
        settle(one)
        assert first.metrics.connections == 1
        one.socket.close()
        assert waiting.answer() == (1, b"now later")


@pytest.mark.parametrize("protocol", ["SSL", "SASL_PLAINTEXT", "SASL_SSL"])
def test_a_listener_never_falls_back_to_plaintext(protocol: str):
    endpoint = EndPoint("INSIDE", "127.0.0.1", 0, protocol)
    with pytest.raises(RegentError, match=f"INSIDE has the security protocol {protocol}"):
        KafkaListener("127.0.0.1", 0, [], endpoint=endpoint)


def test_a_request_has_the_name_of_its_listener():
    asked: list[Session] = []

    async def handle(request: KafkaRequest) -> KafkaAnswer:
        asked.append(request.session)
        return [b"done"]

    endpoint = EndPoint("INSIDE", "127.0.0.1", 0)
    listener = KafkaListener("127.0.0.1", 0, [KafkaApi(METADATA, 0, 8, handle)], endpoint=endpoint)
    with closing(listener):
        listener.start()
        with RawClient(listener) as client:
            assert client.ask(b"") == b"done"
    assert asked == [Session("127.0.0.1", listener_name="INSIDE")]
