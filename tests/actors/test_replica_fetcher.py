"""Fetcher threads: which leaders they fetch from, and what happens without an answer."""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic
from typing import Any

import pytest
from pykka import ActorRef

from regent.actors import replica_fetcher_manager
from regent.actors.broker import Broker, StopFetching
from regent.actors.control_request_check import ControlRequestReceived
from regent.actors.replica_fetcher_manager import ReplicaFetcherManager
from regent.actors.replica_fetcher_thread import FetcherStats, ReplicaFetcherThread
from regent.actors.runtime import start_actor, stop_actor
from regent.core.errors import Errors
from regent.core.protocol.broker import DescribeMetadataRequest, FetchRequest, FetchResponse
from regent.core.replication.replica_manager import ReplicaManager
from regent.core.replication.replication_settings import ReplicationSettings
from regent.testing.waits import scaled
from tests.support.replicas import PARTITION, alive, lead_and_follow
from tests.support.stage import (
    TIMEOUT_S,
    BrokenChannelError,
    Stage,
    actor_of,
    ask,
    replication_endpoint,
)

AT_ONCE = ReplicationSettings(replica_fetch_wait_max_ms=20, replica_fetch_backoff_ms=10)
PATIENT = ReplicationSettings(replica_fetch_wait_max_ms=60_000, replica_fetch_backoff_ms=60_000)
ENDPOINTS = {1: replication_endpoint(1), 2: replication_endpoint(2)}
STOPS_AT_ONCE_S = scaled(1.0)


def tell(broker: ActorRef[Broker], received: ControlRequestReceived) -> None:
    """Send a broker a request and wait until it is applied."""
    ask(broker, received)
    ask(broker, DescribeMetadataRequest())


def lead_and_follow_on(brokers: list[ActorRef[Broker]], leader_epoch: int = 0) -> None:
    """Let broker 1 lead, and broker 2, which is not in sync, follow."""
    for broker in brokers:
        tell(broker, alive(ENDPOINTS))
        tell(broker, lead_and_follow(1, (1, 2), isr=(1,), leader_epoch=leader_epoch))


def fetchers() -> set[threading.Thread]:
    return {t for t in threading.enumerate() if t.name.startswith("ReplicaFetcherThread-0-")}


def test_a_follower_fetches_until_its_leader_proposes_it_for_the_isr(stage: Stage):
    leader, follower = stage.broker(1), stage.broker(2, settings=AT_ONCE)
    fetched = threading.Event()
    stage.replication_server(leader, fetched.set)
    lead_and_follow_on([leader, follower])
    assert fetched.wait(TIMEOUT_S)
    proposed = actor_of(leader).replica_manager.alter_partition_request()
    assert proposed is not None
    assert [(row.topic_partition, row.new_isr) for row in proposed.partitions] == [
        (PARTITION, (1, 2))
    ]


def test_there_is_one_fetcher_per_leader_and_none_on_the_leader_itself(stage: Stage):
    leader, follower = stage.broker(1), stage.broker(2, settings=AT_ONCE)
    lead_and_follow_on([leader, follower])
    lead_and_follow_on([leader, follower], leader_epoch=1)
    assert (actor_of(leader).fetchers.size, actor_of(follower).fetchers.size) == (0, 1)
    assert {thread.name for thread in fetchers()} == {"ReplicaFetcherThread-0-1"}


@pytest.mark.parametrize("settings", [AT_ONCE, PATIENT], ids=["failing", "backing off"])
def test_the_fetcher_of_an_offline_leader_stops(stage: Stage, settings: ReplicationSettings):
    follower = stage.broker(2, settings=settings)
    lead_and_follow_on([follower])
    assert len(fetchers()) == 1
    tell(follower, alive({2: ENDPOINTS[2]}))
    assert fetchers() == set()


def test_a_leader_with_a_new_endpoint_gets_a_new_fetcher(stage: Stage):
    leader, follower = stage.broker(1), stage.broker(2, settings=PATIENT)
    fetched = threading.Event()
    lead_and_follow_on([follower])
    (before,) = fetchers()
    server = stage.replication_server(leader, fetched.set)
    tell(leader, lead_and_follow(1, (1, 2), isr=(1,)))
    stage.replication_servers["inproc://elsewhere"] = server
    tell(follower, alive({1: "inproc://elsewhere", 2: ENDPOINTS[2]}))
    assert fetched.wait(TIMEOUT_S)
    (now,) = fetchers()
    assert now is not before


def test_a_fetch_without_an_answer_is_repeated(stage: Stage):
    leader, follower = stage.broker(1), stage.broker(2, settings=AT_ONCE)
    fetched = threading.Event()
    lead_and_follow_on([leader, follower])
    stage.replication_server(leader, fetched.set)
    assert fetched.wait(TIMEOUT_S)


def test_a_leader_and_isr_request_ends_the_pause_after_a_failure(stage: Stage):
    leader, follower = stage.broker(1), stage.broker(2, settings=PATIENT)
    fetched = threading.Event()
    lead_and_follow_on([leader, follower])
    stage.replication_server(leader, fetched.set)
    lead_and_follow_on([leader, follower], leader_epoch=1)
    assert fetched.wait(TIMEOUT_S)


def test_a_broker_with_a_waiting_fetch_stops_at_once(stage: Stage):
    leader, follower = stage.broker(1), stage.broker(2, settings=PATIENT)
    fetched = threading.Event()
    stage.replication_server(leader, fetched.set)
    lead_and_follow_on([leader, follower])
    assert fetched.wait(TIMEOUT_S)
    started = monotonic()
    ask(follower, StopFetching())
    assert monotonic() - started < STOPS_AT_ONCE_S
    assert fetchers() == set()


def test_after_stop_fetching_requests_are_applied_without_a_fetcher(stage: Stage):
    follower = stage.broker(2, settings=AT_ONCE)
    ask(follower, StopFetching())
    lead_and_follow_on([follower])
    assert actor_of(follower).replica_manager.partitions[PARTITION].leader == 1
    assert actor_of(follower).fetchers.size == 0


class ScriptedChannel:
    """A leader with scripted answers, after which it does not answer."""

    def __init__(self, *script: FetchResponse | Exception) -> None:
        self.asked: list[FetchRequest] = []
        self.exhausted = threading.Event()
        self.hurried = threading.Event()
        self.closed = threading.Event()
        self._script = list(script)

    def request(
        self, body: FetchRequest, *, timeout_ms: int, closing: threading.Event | None = None
    ) -> FetchResponse:
        self.asked.append(body)
        if not self._script:
            self.exhausted.set()
            assert closing is not None
            closing.wait(timeout_ms / 1000)
            raise BrokenChannelError
        answer = self._script.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def hurry(self) -> None:
        self.hurried.set()

    def close(self) -> None:
        self.closed.set()


@pytest.fixture
def fetcher(stage: Stage):
    """Start a fetcher for a scripted leader."""
    refs: list[ActorRef[ReplicaFetcherThread]] = []

    def start(manager: ReplicaManager, channel: ScriptedChannel) -> ActorRef[ReplicaFetcherThread]:
        refs.append(
            start_actor(
                ReplicaFetcherThread,
                1,
                channel,
                manager,
                scheduler=stage.scheduler("fetcher"),
                backoff_ms=1,
                stats=FetcherStats(),
            )
        )
        return refs[0]

    yield start
    for ref in refs:
        stop_actor(ref, TIMEOUT_S)


StartFetcher = Callable[[ReplicaManager, ScriptedChannel], ActorRef[ReplicaFetcherThread]]


def following(stage: Stage) -> ReplicaManager:
    """Return the replicas of broker 2, which follows broker 1 without its own fetchers."""
    broker = stage.broker(2, settings=AT_ONCE)
    ask(broker, StopFetching())
    lead_and_follow_on([broker])
    return actor_of(broker).replica_manager


@pytest.mark.parametrize(
    "failure",
    [BrokenChannelError(), FetchResponse(Errors.BROKER_NOT_AVAILABLE), ValueError("a defect")],
    ids=["no answer", "refused", "defect"],
)
def test_no_failure_ends_the_fetcher(
    stage: Stage, fetcher: StartFetcher, failure: FetchResponse | Exception
):
    channel = ScriptedChannel(failure, failure, failure)
    fetcher(following(stage), channel)
    assert channel.exhausted.wait(TIMEOUT_S)
    assert len(channel.asked) == 4


def test_a_fetcher_disconnects_when_it_stops(stage: Stage, fetcher: StartFetcher):
    channel = ScriptedChannel()
    ref = fetcher(following(stage), channel)
    assert channel.exhausted.wait(TIMEOUT_S)
    assert stop_actor(ref, STOPS_AT_ONCE_S)
    assert channel.closed.is_set()


def test_a_waiting_fetch_is_hurried_when_there_is_more_to_fetch(stage: Stage):
    manager, channel = following(stage), ScriptedChannel()
    fetchers = ReplicaFetcherManager(
        manager, lambda _: channel, scheduler=stage.scheduler("fetchers"), backoff_ms=1
    )
    try:
        fetchers.update()
        assert channel.exhausted.wait(TIMEOUT_S)
        fetchers.update()
        assert not channel.hurried.is_set(), "nothing has changed"
        request = lead_and_follow(1, (1, 2), isr=(1,), leader_epoch=1)
        assert request.request is not None
        manager.handle(request.header, request.request, 0)
        fetchers.update()
        assert channel.hurried.is_set()
    finally:
        fetchers.close()


def test_a_fetcher_that_could_not_be_started_is_started_later(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
):
    """The answer to the control request is given by then: the controller does not repeat it."""
    failures = [RuntimeError("can't start new thread")] * 2
    start = start_actor

    def start_if_there_is_a_thread(*arguments: Any, **options: Any) -> Any:
        if failures:
            raise failures.pop()
        return start(*arguments, **options)

    monkeypatch.setattr(replica_fetcher_manager, "start_actor", start_if_there_is_a_thread)
    monkeypatch.setattr("regent.actors.broker._FETCHERS_RETRY_MS", 1)
    leader, follower = stage.broker(1), stage.broker(2, settings=AT_ONCE)
    fetched = threading.Event()
    stage.replication_server(leader, fetched.set)
    lead_and_follow_on([leader, follower])
    assert fetched.wait(TIMEOUT_S)
    assert not failures
