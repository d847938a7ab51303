"""What followers are answered, and when."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from time import monotonic

import pykka
import pytest
from pykka import ActorRef

import actors.replication_server
from actors.broker import Broker
from actors.replication_server import FetchRouter, ReplicationServer
from actors.runtime import stop_actor
from core.errors import Errors
from core.protocol.broker import DescribeMetadataRequest, FetchResponse
from tests.support.replicas import PARTITION, fetch, lead_and_follow
from tests.support.stage import TIMEOUT_S, Stage, ask
from transport.client import RequestClient, RequestFailedError
from transport.server import ControlServer
from transport.sockets import new_context

LONG_MS = 60_000


@pytest.fixture
def stage():
    with Stage() as stage:
        yield stage


@pytest.fixture
def leader(stage: Stage) -> ActorRef[Broker]:
    """Broker 1, which leads, with broker 2 as a follower in sync."""
    broker = stage.broker(1)
    ask(broker, lead_and_follow(1, (1, 2), isr=(1, 2)))
    return broker


def errors(response: FetchResponse) -> dict[object, Errors]:
    return {partition: row.error_code for partition, row in response.partitions()}


def test_a_follower_that_has_everything_waits_as_long_as_it_said(
    stage: Stage, leader: ActorRef[Broker]
):
    server = stage.replication_server(leader)
    started = monotonic()
    response = ask(server, fetch(2, max_wait_ms=50))
    assert monotonic() - started >= 0.05
    assert errors(response) == {PARTITION: Errors.NONE}


def test_nobody_waits_who_does_not_want_to(stage: Stage, leader: ActorRef[Broker]):
    server = stage.replication_server(leader)
    assert errors(ask(server, fetch(2))) == {PARTITION: Errors.NONE}


def test_an_error_is_told_at_once(stage: Stage, leader: ActorRef[Broker]):
    server = stage.replication_server(leader)
    response = ask(server, fetch(2, max_wait_ms=LONG_MS, leader_epoch=7))
    assert errors(response) == {PARTITION: Errors.UNKNOWN_LEADER_EPOCH}


def test_no_follower_makes_an_answer_wait_for_ever(
    stage: Stage, leader: ActorRef[Broker], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(actors.replication_server, "MAX_WAIT_MS", 20)
    server = stage.replication_server(leader)
    assert errors(ask(server, fetch(2, max_wait_ms=2**31))) == {PARTITION: Errors.NONE}


def test_what_is_held_is_answered_when_the_broker_stops(stage: Stage, leader: ActorRef[Broker]):
    fetched = threading.Event()
    server = stage.replication_server(leader, fetched.set)
    held = server.ask(fetch(2, max_wait_ms=2_000), block=False)
    assert fetched.wait(TIMEOUT_S)
    with pytest.raises(pykka.Timeout):
        held.get(timeout=0)
    assert stop_actor(server, TIMEOUT_S)
    assert held.get(timeout=0) == FetchResponse(Errors.BROKER_NOT_AVAILABLE)


# --- on the wire ---


@pytest.fixture
def client(stage: Stage, leader: ActorRef[Broker]) -> Iterator[RequestClient]:
    """A follower that is connected to the leader."""
    context = new_context()
    router = FetchRouter(stage.replication_server(leader))
    server = ControlServer(context, "tcp://127.0.0.1:0", router, name="replication-server")
    server.start()
    client = RequestClient(context, server.endpoint, client_id="follower")
    yield client
    client.close()
    server.stop()
    context.destroy(linger=0)


def test_a_follower_fetches_over_the_wire(client: RequestClient):
    response = client.request(fetch(2, max_wait_ms=20), timeout_ms=5000)
    assert isinstance(response, FetchResponse)
    assert errors(response) == {PARTITION: Errors.NONE}


def test_the_replication_port_serves_nothing_but_fetches(client: RequestClient):
    with pytest.raises(RequestFailedError) as refused:
        client.request(DescribeMetadataRequest(), timeout_ms=5000)
    assert refused.value.error_code is Errors.UNSUPPORTED_VERSION


def test_garbage_on_the_replication_port_hurts_nobody(client: RequestClient):
    host, _, port = client.endpoint.removeprefix("tcp://").rpartition(":")
    with socket.create_connection((host, int(port)), timeout=5) as stranger:
        stranger.sendall(b"\x00" * 4096)
    assert isinstance(client.request(fetch(2), timeout_ms=5000), FetchResponse)


def test_only_so_many_answers_are_held(
    stage: Stage, leader: ActorRef[Broker], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(ReplicationServer, "inbox_limit", 2)
    context = new_context()
    held = threading.Semaphore(0)
    router = FetchRouter(stage.replication_server(leader, held.release))
    server = ControlServer(context, "tcp://127.0.0.1:0", router, name="replication-server")
    server.start()
    clients = [RequestClient(context, server.endpoint, client_id="follower") for _ in range(3)]
    try:
        for waiting in clients[:2]:
            waiting.send(fetch(2, max_wait_ms=2_000))
            assert held.acquire(timeout=TIMEOUT_S)
        with pytest.raises(RequestFailedError) as refused:
            clients[2].request(fetch(2), timeout_ms=5000)
        assert refused.value.error_code is Errors.BROKER_NOT_AVAILABLE
    finally:
        for waiting in clients:
            waiting.close()
        server.stop()
        context.destroy(linger=0)
