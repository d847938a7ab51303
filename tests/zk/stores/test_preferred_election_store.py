"""Requested preferred elections: reads, watches, and deletion by the active controller."""

from __future__ import annotations

import pytest

from regent.core.errors import BadDataError, ControllerMovedError, SessionExpiredError
from regent.core.model import TopicPartition
from regent.testing.waits import scaled
from regent.zk.client.operations import Create, WatchEvent, WatchKind
from regent.zk.stores.controller_store import ZkControllerStore
from regent.zk.znodes import PreferredReplicaElectionZNode
from tests.support.connected_sessions import Connect
from tests.support.fake_zookeeper import FakeZooKeeperServer, Moment, lose_connection, once
from tests.support.world import KeptSession

PATH = PreferredReplicaElectionZNode.PATH
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


class WatchedStore:
    """A store, its session, and the watches that fired; ``/controller_epoch`` has version 0."""

    def __init__(self) -> None:
        self.server = FakeZooKeeperServer()
        self.server.put("/controller_epoch", b"7")
        self.watches: list[WatchEvent] = []
        self.zookeeper = KeptSession(self.server, self.watches.append)
        self.store = ZkControllerStore(self.zookeeper)

    def request(self, *partitions: TopicPartition) -> None:
        self.server.put(PATH, PreferredReplicaElectionZNode.encode(partitions))


@pytest.fixture
def controller() -> WatchedStore:
    return WatchedStore()


def test_requested_elections_are_read(controller: WatchedStore) -> None:
    assert controller.store.read_preferred_elections() is None
    controller.request(T1, T0, T1)
    assert controller.store.read_preferred_elections() == (T1, T0)
    controller.server.put(PATH, b"{")
    assert isinstance(controller.store.read_preferred_elections(), BadDataError)


def test_the_node_is_watched_whether_it_exists_or_not(controller: WatchedStore) -> None:
    controller.store.read_preferred_elections()
    controller.request(T0)
    controller.store.read_preferred_elections()
    controller.request(T1)
    controller.store.read_preferred_elections()
    controller.store.delete_preferred_elections(0)
    kinds = [WatchKind.CREATED, WatchKind.CHANGED, WatchKind.DELETED]
    assert controller.watches == [WatchEvent(kind, PATH) for kind in kinds]
    controller.store.read_preferred_elections()
    controller.store.unwatch_all_but_controller()
    controller.request(T0)
    assert len(controller.watches) == 3


@pytest.mark.parametrize("moment", [Moment.BEFORE, Moment.AFTER])
def test_the_node_is_deleted_after_a_lost_request_or_answer(
    controller: WatchedStore, moment: Moment
) -> None:
    controller.request(T0)
    controller.zookeeper.hook = once(moment, lose_connection)
    controller.store.delete_preferred_elections(0)
    assert PATH not in controller.server.snapshot()
    controller.store.delete_preferred_elections(0)


def test_a_deposed_controller_deletes_nothing(controller: WatchedStore) -> None:
    controller.request(T0)
    controller.server.put("/controller_epoch", b"8")
    with pytest.raises(ControllerMovedError):
        controller.store.delete_preferred_elections(0)
    assert PATH in controller.server.snapshot()


def test_all_calls_fail_after_the_session(controller: WatchedStore) -> None:
    controller.zookeeper.expire()
    with pytest.raises(SessionExpiredError):
        controller.store.read_preferred_elections()
    with pytest.raises(SessionExpiredError):
        controller.store.delete_preferred_elections(0)


def test_a_real_zookeeper_fires_the_watch_for_our_own_deletion(connect: Connect) -> None:
    session = connect()
    store = ZkControllerStore(session.client)
    data = PreferredReplicaElectionZNode.encode([T0])
    session.client.multi([Create("/controller_epoch"), Create("/admin"), Create(PATH, data)])
    assert store.read_preferred_elections() == (T0,)
    store.delete_preferred_elections(0)
    assert session.events.get(timeout=scaled(5.0)) == WatchEvent(WatchKind.DELETED, PATH)
    assert store.read_preferred_elections() is None
