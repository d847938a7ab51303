"""A listener for clients and brokers serves only followers that are registered brokers."""

from __future__ import annotations

import asyncio
import socket
import threading
from dataclasses import replace

import pytest
from kafka.protocol.consumer import FetchRequest

from regent.broker.api.fetch import fetch_apis
from regent.broker.api.offsets import offset_apis
from regent.broker.api.registered_followers import BrokerSenders, RegisteredFollowers
from regent.core.errors import Errors
from regent.core.model import UNKNOWN_BROKER_EPOCH, TopicPartition
from regent.core.protocol.client import OffsetQuery
from regent.core.replication.metadata_cache import MetadataCache
from regent.core.security.authorizer import (
    ALLOW_ALL,
    AclAuthorizer,
    Authorizer,
    AuthorizerSettings,
)
from regent.core.security.session import KafkaPrincipal, Session
from regent.testing.waits import scaled
from regent.transport.kafka.api import KafkaApiKey, KafkaRequest
from tests.broker.api.canned_replicas import EXECUTOR, CannedReplicas, cached
from tests.broker.api.test_offsets import list_offsets, partitions
from tests.transport.kafka.wire import ask, request_of

EPOCH = 5  # of broker 2, the only one


def of_this_project() -> MetadataCache:
    """Return the metadata with the control port of broker 2."""
    cache = cached()
    broker = replace(cache.snapshot.brokers[2], control_endpoint="tcp://broker:1")
    cache.snapshot = replace(cache.snapshot, brokers={2: broker})
    return cache


@pytest.mark.parametrize(
    ("replica_id", "epoch", "expected"),
    [
        (2, EPOCH, None),
        (2, EPOCH - 1, Errors.STALE_BROKER_EPOCH),
        (2, EPOCH + 1, Errors.STALE_BROKER_EPOCH),
        (2, 2**62, Errors.STALE_BROKER_EPOCH),
        (2, UNKNOWN_BROKER_EPOCH, Errors.CLUSTER_AUTHORIZATION_FAILED),
        (1, EPOCH, Errors.CLUSTER_AUTHORIZATION_FAILED),
        (2**31 - 1, EPOCH, Errors.CLUSTER_AUTHORIZATION_FAILED),
    ],
)
def test_a_follower_is_a_registered_broker_with_its_current_epoch(
    replica_id: int, epoch: int, expected: Errors | None
):
    assert RegisteredFollowers(of_this_project()).refusal(replica_id, epoch) is expected


@pytest.mark.parametrize(
    ("known", "epoch", "expected"),
    [
        (EPOCH, EPOCH, None),
        (EPOCH, UNKNOWN_BROKER_EPOCH, None),  # Kafka before 3.5 does not send it
        (EPOCH, EPOCH - 1, Errors.STALE_BROKER_EPOCH),
        (UNKNOWN_BROKER_EPOCH, EPOCH, None),  # a controller of Kafka does not tell it
        (UNKNOWN_BROKER_EPOCH, UNKNOWN_BROKER_EPOCH, None),
    ],
)
def test_a_broker_of_kafka_is_believed_where_kafka_has_no_epochs(
    known: int, epoch: int, expected: Errors | None
):
    cache = cached()
    broker = replace(cache.snapshot.brokers[2], broker_epoch=known)
    cache.snapshot = replace(cache.snapshot, brokers={2: broker})
    assert RegisteredFollowers(cache).refusal(2, epoch) is expected
    assert RegisteredFollowers(cache).refusal(3, epoch) is Errors.CLUSTER_AUTHORIZATION_FAILED


@pytest.mark.parametrize("version", range(12, 18))
@pytest.mark.parametrize(("replica_id", "epoch"), [(1, EPOCH), (2, EPOCH + 1), (2, -1)])
def test_the_position_of_a_stranger_never_reaches_the_replicas(
    version: int, replica_id: int, epoch: int
):
    replicas = CannedReplicas()
    state = FetchRequest.ReplicaState(replica_id=replica_id, replica_epoch=epoch)
    request = FetchRequest(
        replica_id=replica_id, replica_state=state, session_epoch=0, topics=[], max_wait_ms=1
    )
    apis = fetch_apis(
        replicas, cached(), EXECUTOR, registered=RegisteredFollowers(of_this_project())
    )
    answer = ask(apis, request, version)
    assert answer.error_code in (
        Errors.CLUSTER_AUTHORIZATION_FAILED,
        Errors.STALE_BROKER_EPOCH,
    )
    assert replicas.consumer_fetch is None


@pytest.mark.parametrize("replica_id", [1, 2])
def test_the_offsets_of_a_partition_are_for_its_replicas(replica_id: int):
    query = {TopicPartition("orders", 0): OffsetQuery(-1)}
    apis = offset_apis(CannedReplicas(), EXECUTOR, registered=RegisteredFollowers(cached()))
    (row,) = partitions(ask(apis, list_offsets(query, replica_id=replica_id), 9))
    assert row.error_code == Errors.CLUSTER_AUTHORIZATION_FAILED


# --- who is a broker ------------------------------------------------------------------------------


def is_broker(
    session: Session, authorizer: Authorizer = ALLOW_ALL, own_user: str = "kafka"
) -> bool:
    """Whether a request counts as one of a broker; broker 2 is at 127.0.0.1 and ::1."""
    cache = cached()
    announce(cache, "localhost", "::1", "x" * 99)
    request = markers(session)
    request.authorizer = authorizer
    return asyncio.run(BrokerSenders(cache, own_user, EXECUTOR).has_sent(request))


def announce(cache: MetadataCache, *hosts: str) -> None:
    """Let broker 2 have an endpoint at each host."""
    (endpoint, *_) = cache.snapshot.brokers[2].endpoints
    endpoints = tuple(endpoint._replace(host=host) for host in hosts)
    broker = replace(cache.snapshot.brokers[2], endpoints=endpoints)
    cache.snapshot = replace(cache.snapshot, brokers={2: broker})


def markers(session: Session) -> KafkaRequest:
    return request_of(KafkaApiKey.WRITE_TXN_MARKERS, 1, b"", session=session)


@pytest.mark.parametrize(
    ("address", "expected"), [("127.0.0.1", True), ("::1", True), ("10.9.9.9", False)]
)
def test_without_a_login_a_broker_has_the_address_of_a_registered_one(address: str, expected: bool):
    assert is_broker(Session(address)) == expected


def test_a_host_is_looked_up_once_however_many_ask(monkeypatch: pytest.MonkeyPatch):
    """A stranger may ask as often as it likes, and a name server may take seconds."""
    asked: list[str] = []
    may_answer = threading.Event()

    def look_up(host: str, _: None) -> list[object]:
        asked.append(host)
        assert may_answer.wait(scaled(10.0))
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("192.0.2.7", 0))]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    cache = cached()
    announce(cache, "a.example")
    brokers = BrokerSenders(cache, "", EXECUTOR)

    async def ask() -> list[bool]:
        addresses = ["192.0.2.7", *["10.9.9.9"] * 9]
        asking = [asyncio.create_task(brokers.has_sent(markers(Session(a)))) for a in addresses]
        await asyncio.sleep(0)
        asking.pop().cancel()  # its client has gone
        may_answer.set()
        return await asyncio.gather(*asking)

    for _ in range(2):
        assert asyncio.run(ask()) == [True, *[False] * 8]
    assert asked == ["a.example"]
    announce(cache, "b.example")
    assert asyncio.run(ask())[0]
    assert asked == ["a.example", "b.example"]


@pytest.mark.parametrize(
    ("user", "expected"),
    [("kafka", True), ("broker-2", True), ("broker-3", False), ("alice", False)],
)
def test_without_an_authorizer_a_broker_has_the_user_of_brokers(user: str, expected: bool):
    assert is_broker(Session("127.0.0.1", KafkaPrincipal("User", user))) == expected


def test_a_certificate_without_a_name_is_of_no_broker():
    session = Session("127.0.0.1", KafkaPrincipal("User", ""))
    assert not is_broker(session, own_user="")  # our broker logs in without a user


@pytest.mark.parametrize(("user", "expected"), [("root", True), ("kafka", False)])
def test_an_authorizer_decides_which_users_act_as_brokers(user: str, expected: bool):
    authorizer = AclAuthorizer(
        AuthorizerSettings(frozenset({KafkaPrincipal("User", "root")})), lambda: 0.0
    )
    assert is_broker(Session("127.0.0.1", KafkaPrincipal("User", user)), authorizer) == expected
