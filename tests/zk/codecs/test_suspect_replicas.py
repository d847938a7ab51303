"""The list of suspect replicas in ZooKeeper: no controller sees a registration without it."""

from __future__ import annotations

import pytest

from regent.core.errors import BadDataError
from regent.core.model import (
    NO_LOG_END,
    NO_SUSPECTS,
    BrokerInfo,
    BrokerRegistration,
    EndPoint,
    LogEnd,
    SuspectReplicas,
    TopicPartition,
)
from regent.zk.client.operations import ANY_VERSION, Delete, WatchEvent, WatchKind
from regent.zk.stores.controller_store import ZkControllerStore
from regent.zk.znodes import SuspectReplicasPartZNode, SuspectReplicasZNode
from tests.support.fake_zookeeper import Call, FakeZooKeeper, FakeZooKeeperServer, Moment

INFO = BrokerInfo(3, (EndPoint("PLAINTEXT", "127.0.0.1", 9092),))
T0, U7 = TopicPartition("t", 0), TopicPartition("u", 7)
REGISTRATION = "/brokers/ids/3"
SUSPECTS = SuspectReplicas({T0: LogEnd(4, 2**40), U7: NO_LOG_END})


@pytest.fixture
def server() -> FakeZooKeeperServer:
    return FakeZooKeeperServer()


@pytest.fixture
def store(server: FakeZooKeeperServer) -> ZkControllerStore:
    return ZkControllerStore(FakeZooKeeper(server))


def read(server: FakeZooKeeperServer) -> SuspectReplicas:
    """Return the list as another broker's controller reads it."""
    found = ZkControllerStore(FakeZooKeeper(server)).read_broker(3)
    assert isinstance(found, BrokerRegistration)
    return found.suspects


@pytest.mark.parametrize(
    "suspects",
    [
        NO_SUSPECTS,
        SUSPECTS,
        SuspectReplicas(SUSPECTS.ends, frozenset({TopicPartition("t", 1)})),
        SuspectReplicas(sound=frozenset()),
        SuspectReplicas({TopicPartition("t", n): LogEnd(1, n) for n in range(5_000)}),
    ],
)
def test_a_registered_list_is_read(
    server: FakeZooKeeperServer, store: ZkControllerStore, suspects: SuspectReplicas
) -> None:
    store.register_broker(INFO, suspects)
    assert read(server) == suspects


def test_the_list_is_written_before_the_registration(
    server: FakeZooKeeperServer, store: ZkControllerStore
) -> None:
    store.register_broker(INFO, SUSPECTS)
    created = [
        operation.path
        for transaction in server.transactions
        for operation in transaction.operations
        if operation.path.startswith((SuspectReplicasZNode.PATH + "/", "/brokers/ids/"))
    ]
    assert created[0].startswith(SuspectReplicasZNode.PATH)


def test_the_list_is_deleted_with_the_session(server: FakeZooKeeperServer) -> None:
    zookeeper = FakeZooKeeper(server)
    ZkControllerStore(zookeeper).register_broker(INFO, SUSPECTS)
    server.expire(zookeeper.session_id)
    assert not [p for p in server.snapshot() if p.startswith(SuspectReplicasZNode.PATH + "/")]


def test_a_new_list_replaces_the_whole_former_one(
    server: FakeZooKeeperServer, store: ZkControllerStore
) -> None:
    store.register_broker(INFO, SUSPECTS)
    store.publish_suspects(INFO, SuspectReplicas({T0: LogEnd(5, 6)}))
    assert read(server) == SuspectReplicas({T0: LogEnd(5, 6)})
    store.publish_suspects(INFO, NO_SUSPECTS)
    assert read(server) == NO_SUSPECTS
    assert not [p for p in server.snapshot() if p.startswith(SuspectReplicasZNode.PATH + "/")]


def test_a_registration_that_is_written_again_keeps_the_list(
    server: FakeZooKeeperServer, store: ZkControllerStore
) -> None:
    store.register_broker(INFO, SUSPECTS)
    store.publish_suspects(INFO, SuspectReplicas({T0: LogEnd(5, 6)}))
    before = len(server.transactions)
    store.register_broker(INFO, SuspectReplicas({T0: LogEnd(5, 6)}))
    assert len(server.transactions) == before, "the broker's own list is not a change by others"
    server.put("/brokers/ids/3", b"garbage")
    store.register_broker(INFO, SuspectReplicas({T0: LogEnd(5, 6)}))
    assert read(server) == SuspectReplicas({T0: LogEnd(5, 6)})


def test_a_registration_deleted_during_its_check_is_not_created_without_the_list(
    server: FakeZooKeeperServer,
) -> None:
    zookeeper = FakeZooKeeper(server)
    store = ZkControllerStore(zookeeper)
    first = store.register_broker(INFO, SUSPECTS)

    def hook(call: Call) -> None:
        if call == Call(Moment.AFTER, "get", (REGISTRATION,)):
            zookeeper.hook = None
            server.remove(REGISTRATION)

    zookeeper.hook = hook
    assert store.register_broker(INFO, SUSPECTS) > first
    assert read(server) == SUSPECTS


def test_a_deleted_registration_on_a_lagging_server_is_not_created_without_the_list(
    server: FakeZooKeeperServer,
) -> None:
    follower = server.add_follower(lag=10)
    server.connect_to = lambda: follower
    watches: list[WatchEvent] = []
    store = ZkControllerStore(FakeZooKeeper(server, watches.append))
    server.connect_to = lambda: server.leader
    store.register_broker(INFO, SUSPECTS)
    server.remove(REGISTRATION)
    store.register_broker(INFO, SUSPECTS)
    server.catch_up()
    assert watches == [WatchEvent(WatchKind.DELETED, REGISTRATION)]
    store.register_broker(INFO, SUSPECTS)
    assert read(server) == SUSPECTS


def test_a_broker_that_is_not_registered_publishes_nothing(
    server: FakeZooKeeperServer, store: ZkControllerStore
) -> None:
    store.publish_suspects(INFO, SUSPECTS)
    assert not server.snapshot()


def test_an_incomplete_list_means_that_all_replicas_are_suspect(
    server: FakeZooKeeperServer, store: ZkControllerStore
) -> None:
    store.register_broker(INFO, SUSPECTS)
    (listed,) = [p for p in server.snapshot() if p.startswith(SuspectReplicasZNode.PATH + "/")]
    server.put(listed, b"{")
    assert read(server).end_of(TopicPartition("any", 1)) == NO_LOG_END
    FakeZooKeeper(server).multi([Delete(listed, ANY_VERSION)])
    assert read(server).end_of(TopicPartition("any", 1)) == NO_LOG_END


@pytest.mark.parametrize("row", [b"[]", b"[1,2]", b'["a"]', b"[0,0,-2]", b"[0,1,2,3]", b"7"])
def test_an_unreadable_list_is_refused(row: bytes) -> None:
    data = b'{"version":1,"knows_all":true,"replicas":[{"topic":"t","partitions":[%s]}]}' % row
    with pytest.raises(BadDataError):
        SuspectReplicasPartZNode.decode(data)
