"""The replication server: fetches of followers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Hashable, Iterator
from time import monotonic

import pytest
from pykka import ActorRef

import regent.broker.replication_server
from regent.actors.broker import Broker
from regent.actors.scheduler import Handle, Scheduler
from regent.broker.replication_server import ReplicationServer
from regent.core.errors import Errors
from regent.core.protocol.broker import DescribeMetadataRequest, FetchResponse
from regent.transport.client import RequestClient, RequestFailedError
from regent.transport.server import ControlServer
from regent.transport.sockets import new_context
from tests.support.record_batches import batch
from tests.support.replicas import PARTITION, fetch, lead_and_follow
from tests.support.stage import TIMEOUT_S, Stage, actor_of, ask, fetch_from

LONG_MS = 60_000


@pytest.fixture
def leader(stage: Stage) -> ActorRef[Broker]:
    """Broker 1, which leads, with broker 2 in sync."""
    broker = stage.broker(1)
    ask(broker, lead_and_follow(1, (1, 2), isr=(1, 2)))
    return broker


def errors(response: FetchResponse) -> dict[object, Errors]:
    return {topic_partition: row.error_code for topic_partition, row in response.partitions()}


def test_a_follower_at_the_log_end_waits_for_its_max_wait(stage: Stage, leader: ActorRef[Broker]):
    server = stage.replication_server(leader)
    started = monotonic()
    response = fetch_from(server, fetch(2, max_wait_ms=50)).get(timeout=TIMEOUT_S)
    assert monotonic() - started >= 0.05
    assert errors(response) == {PARTITION: Errors.NONE}


def test_a_fetch_without_max_wait_is_answered_at_once(stage: Stage, leader: ActorRef[Broker]):
    server = stage.replication_server(leader)
    assert errors(fetch_from(server, fetch(2)).get(timeout=0)) == {PARTITION: Errors.NONE}


def test_an_error_is_answered_at_once(stage: Stage, leader: ActorRef[Broker]):
    server = stage.replication_server(leader)
    response = fetch_from(server, fetch(2, max_wait_ms=LONG_MS, leader_epoch=7)).get(timeout=0)
    assert errors(response) == {PARTITION: Errors.UNKNOWN_LEADER_EPOCH}


def test_a_waiting_fetch_is_answered_when_records_are_appended(
    stage: Stage, leader: ActorRef[Broker]
):
    fetched = threading.Event()
    server = stage.replication_server(leader, fetched.set)
    answer = fetch_from(server, fetch(2, max_wait_ms=LONG_MS))
    assert fetched.is_set()  # before the answer, because an ISR may be proposed
    assert answer.empty()
    records = batch(b"hello")
    actor_of(leader).replica_manager.produce(1, {PARTITION: records}, 0, lambda _: None)
    ((_, row),) = answer.get(timeout=0).partitions()
    assert bytes(row.records) == bytes(records)


def test_a_fetch_answered_early_leaves_no_timer(stage: Stage, leader: ActorRef[Broker]):
    reaper = stage.scheduler("reaper")
    server = ReplicationServer(actor_of(leader).replica_manager, reaper, on_fetched=lambda: None)
    answer = fetch_from(server, fetch(2, max_wait_ms=LONG_MS))
    assert reaper.size == 1
    actor_of(leader).replica_manager.produce(1, {PARTITION: batch(b"hello")}, 0, lambda _: None)
    assert answer.qsize() == 1
    assert reaper.size == 0


class SlowReaper(Scheduler):
    """Calls a function before it schedules a timer."""

    def __init__(self, meanwhile: Callable[[], None]) -> None:
        super().__init__("slow-reaper")
        self._meanwhile = meanwhile

    def schedule(
        self, after_ms: float, callback: Callable[[], None], *, key: Hashable | None = None
    ) -> Handle:
        self._meanwhile()
        return super().schedule(after_ms, callback, key=key)


def test_a_fetch_answered_before_its_timer_is_set_leaves_no_timer(
    stage: Stage, leader: ActorRef[Broker]
):
    manager = actor_of(leader).replica_manager
    records = {PARTITION: batch(b"hello")}

    def produce() -> None:
        manager.produce(1, records, 0, lambda _: None)

    reaper = SlowReaper(produce)
    try:
        server = ReplicationServer(manager, reaper, on_fetched=lambda: None)
        assert fetch_from(server, fetch(2, max_wait_ms=LONG_MS)).qsize() == 1
        assert reaper.size == 0
    finally:
        reaper.shutdown()


def test_the_wait_of_a_fetch_is_limited(
    stage: Stage, leader: ActorRef[Broker], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(regent.broker.replication_server, "MAX_WAIT_MS", 20)
    server = stage.replication_server(leader)
    response = fetch_from(server, fetch(2, max_wait_ms=2**31)).get(timeout=TIMEOUT_S)
    assert errors(response) == {PARTITION: Errors.NONE}


def test_the_number_of_waiting_fetches_is_limited(stage: Stage, leader: ActorRef[Broker]):
    reaper = Scheduler("small", limit=2)
    try:
        server = ReplicationServer(
            actor_of(leader).replica_manager, reaper, on_fetched=lambda: None
        )
        held = [fetch_from(server, fetch(2, max_wait_ms=LONG_MS)) for _ in range(2)]
        assert errors(fetch_from(server, fetch(2, max_wait_ms=LONG_MS)).get(timeout=0)) == {
            PARTITION: Errors.NONE
        }
        assert all(answer.empty() for answer in held)
    finally:
        reaper.shutdown()


# --- over the network -----------------------------------------------------------------------------


@pytest.fixture
def client(stage: Stage, leader: ActorRef[Broker]) -> Iterator[RequestClient]:
    """A follower connected to the leader."""
    context = new_context()
    dispatch = stage.replication_server(leader)
    server = ControlServer(context, "tcp://127.0.0.1:0", dispatch, name="replication-server")
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


def test_the_replication_port_accepts_only_fetches(client: RequestClient):
    with pytest.raises(RequestFailedError) as refused:
        client.request(DescribeMetadataRequest(), timeout_ms=5000)
    assert refused.value.error_code is Errors.UNSUPPORTED_VERSION


def test_garbage_on_the_replication_port_does_not_affect_other_clients(client: RequestClient):
    host, _, port = client.endpoint.removeprefix("tcp://").rpartition(":")
    with socket.create_connection((host, int(port)), timeout=5) as stranger:
        stranger.sendall(b"\x00" * 4096)
    assert isinstance(client.request(fetch(2), timeout_ms=5000), FetchResponse)
