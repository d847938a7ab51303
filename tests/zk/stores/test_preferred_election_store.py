"""The preferred elections somebody wishes: read, watched, deleted by who rules."""

from __future__ import annotations

import pytest

from regent.core.errors import BadDataError, ControllerMovedError, SessionExpiredError
from regent.core.model import TopicPartition
from regent.zk.client.operations import ConnectionLossError, Create, WatchEvent, WatchKind
from regent.zk.codecs.admin_znodes import PreferredReplicaElectionZNode
from regent.zk.stores.controller_store import ZkControllerStore
from tests.support.connected_sessions import Connect
from tests.support.fake_zookeeper import Call, FakeZooKeeperServer, Moment
from tests.support.term import KeptSession

PATH = PreferredReplicaElectionZNode.PATH
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


class Ruler:
    """A store, its session, and the watches that fired; ``/controller_epoch`` has version 0."""

    def __init__(self) -> None:
        self.server = FakeZooKeeperServer()
        self.server.put("/controller_epoch", b"7")
        self.watches: list[WatchEvent] = []
        self.zookeeper = KeptSession(self.server, self.watches.append)
        self.store = ZkControllerStore(self.zookeeper)

    def wish(self, *partitions: TopicPartition) -> None:
        self.server.put(PATH, PreferredReplicaElectionZNode.encode(partitions))


@pytest.fixture
def ruler() -> Ruler:
    return Ruler()


def test_wishes_as_read(ruler: Ruler) -> None:
    assert ruler.store.read_preferred_elections() is None
    ruler.wish(T1, T0, T1)
    assert ruler.store.read_preferred_elections() == (T1, T0)
    ruler.server.put(PATH, b"{")
    assert isinstance(ruler.store.read_preferred_elections(), BadDataError)


def test_the_node_is_watched_whether_it_exists_or_not(ruler: Ruler) -> None:
    ruler.store.read_preferred_elections()
    ruler.wish(T0)
    ruler.store.read_preferred_elections()
    ruler.wish(T1)
    ruler.store.read_preferred_elections()
    ruler.store.delete_preferred_elections(0)
    kinds = [WatchKind.CREATED, WatchKind.CHANGED, WatchKind.DELETED]
    assert ruler.watches == [WatchEvent(kind, PATH) for kind in kinds]
    ruler.store.read_preferred_elections()
    ruler.store.unwatch_all_but_controller()
    ruler.wish(T0)
    assert len(ruler.watches) == 3


@pytest.mark.parametrize("moment", [Moment.BEFORE, Moment.AFTER])
def test_it_is_deleted_whatever_is_lost(ruler: Ruler, moment: Moment) -> None:
    def hook(call: Call) -> None:
        if call.moment is moment:
            ruler.zookeeper.hook = None
            raise ConnectionLossError("lost")

    ruler.wish(T0)
    ruler.zookeeper.hook = hook
    ruler.store.delete_preferred_elections(0)
    assert PATH not in ruler.server.snapshot()
    ruler.store.delete_preferred_elections(0)


def test_who_was_deposed_deletes_nothing(ruler: Ruler) -> None:
    ruler.wish(T0)
    ruler.server.put("/controller_epoch", b"8")
    with pytest.raises(ControllerMovedError):
        ruler.store.delete_preferred_elections(0)
    assert PATH in ruler.server.snapshot()


def test_nothing_works_when_the_session_is_over(ruler: Ruler) -> None:
    ruler.zookeeper.expire()
    with pytest.raises(SessionExpiredError):
        ruler.store.read_preferred_elections()
    with pytest.raises(SessionExpiredError):
        ruler.store.delete_preferred_elections(0)


def test_a_real_zookeeper_tells_of_our_own_deletion_too(connect: Connect) -> None:
    session = connect()
    store = ZkControllerStore(session.client)
    data = PreferredReplicaElectionZNode.encode([T0])
    session.client.multi([Create("/controller_epoch"), Create("/admin"), Create(PATH, data)])
    assert store.read_preferred_elections() == (T0,)
    store.delete_preferred_elections(0)
    assert session.events.get(timeout=5.0) == WatchEvent(WatchKind.DELETED, PATH)
    assert store.read_preferred_elections() is None
