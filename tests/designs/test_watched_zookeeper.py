"""Listeners, repeated operations, sessions and locks, on the fake ZooKeeper."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pykka import ActorRef

from regent.designs.leader_lock import NameLock, SequentialLock
from regent.designs.pooled_actor import PooledActor
from regent.designs.watched_zookeeper import (
    ChildrenChanged,
    DataChanged,
    SessionBegan,
    WatchedZooKeeper,
)
from regent.zk.client.operations import WatchEvent
from tests.designs.virtual_time import VirtualTime
from tests.support.fake_zookeeper import (
    FakeZooKeeper,
    FakeZooKeeperServer,
    Moment,
    act_once,
    lose_connection,
)


class Hearing(PooledActor):
    """Keeps what it is told."""

    def __init__(self, time: VirtualTime, heard: list[Any]) -> None:
        super().__init__(time)
        self._heard = heard

    def handle(self, message: object) -> None:
        self._heard.append(message)


class Ensemble:
    """The server, clients of it, and time."""

    def __init__(self) -> None:
        self.time = VirtualTime(1)
        self.server = FakeZooKeeperServer(self.time.now_ms)
        self.server.put("/a")
        self.server.put("/a/b", b"1")
        self.session: FakeZooKeeper

    def client(self) -> WatchedZooKeeper:
        """Start a client; ``session`` is its present one."""
        return WatchedZooKeeper(self.time, self._connect)

    def listener(self) -> tuple[ActorRef[Hearing], list[Any]]:
        """Return an actor, and what it hears."""
        heard: list[Any] = []
        return Hearing.start(self.time, heard), heard

    def three_locks(
        self, kind: type[NameLock] | type[SequentialLock], path: str
    ) -> tuple[list[NameLock | SequentialLock], list[list[Any]]]:
        """Return a lock of each of three clients, and what their listeners hear."""
        listeners = [self.listener() for _ in range(3)]
        locks = [
            kind(self.client(), path, number, listener)
            for number, (listener, _) in enumerate(listeners)
        ]
        return locks, [heard for _, heard in listeners]

    def run(self) -> None:
        """Deliver everything."""
        self.time.run_for(1)

    def _connect(
        self, on_watch: Callable[[WatchEvent], None], on_expired: Callable[[], None]
    ) -> FakeZooKeeper:
        del on_expired  # the next call notices it
        self.session = FakeZooKeeper(self.server, on_watch)
        return self.session


@pytest.fixture
def ensemble() -> Ensemble:
    return Ensemble()


def test_a_listener_gets_every_change_with_the_present_value(ensemble: Ensemble):
    zookeeper, (listener, heard) = ensemble.client(), ensemble.listener()
    node = zookeeper.listen_to_data("/a/b", listener)
    assert node is not None
    assert node.data == b"1"
    for data in (b"2", b"3"):
        assert zookeeper.set("/a/b", data)
        ensemble.run()
    zookeeper.delete("/a/b")
    ensemble.run()
    assert [change.znode and change.znode.data for change in heard] == [b"2", b"3", None]


def test_many_listeners_of_a_path_share_one_watch(ensemble: Ensemble):
    zookeeper, listeners = ensemble.client(), [ensemble.listener() for _ in range(100)]
    for listener, _ in listeners:
        assert zookeeper.listen_to_children("/a", listener) == {"b"}
    assert (zookeeper.counts.reads, zookeeper.counts.watches_set) == (1, 1)
    zookeeper.create("/a/c")
    ensemble.run()
    assert all(heard == [ChildrenChanged("/a", frozenset({"b", "c"}))] for _, heard in listeners)
    counts = zookeeper.counts
    assert (counts.watches_fired, counts.watches_set, counts.listeners_called) == (1, 2, 100)


def test_a_node_that_was_deleted_and_created_again_is_read_for_the_next_listener(
    ensemble: Ensemble,
):
    """ZooKeeper keeps no watch on the children of a node that is gone."""
    zookeeper, (listener, heard) = ensemble.client(), ensemble.listener()
    zookeeper.listen_to_children("/a/b", listener)
    zookeeper.delete("/a/b")
    ensemble.run()
    ensemble.server.put("/a/b")
    ensemble.server.put("/a/b/c")
    assert zookeeper.listen_to_children("/a/b", listener) == {"c"}
    ensemble.server.put("/a/b/d")
    ensemble.run()
    assert heard[-1] == ChildrenChanged("/a/b", frozenset({"c", "d"}))


def test_a_removed_listener_gets_no_changes(ensemble: Ensemble):
    zookeeper, (listener, heard) = ensemble.client(), ensemble.listener()
    zookeeper.listen_to_data("/a/b", listener)
    zookeeper.unlisten("/a/b", listener)
    zookeeper.set("/a/b", b"2")
    ensemble.run()
    assert heard == []


def test_a_new_session_has_all_listeners_and_tells_them_what_is_there(ensemble: Ensemble):
    zookeeper, (listener, heard) = ensemble.client(), ensemble.listener()
    zookeeper.listen_to_data("/a/b", listener)
    zookeeper.listen_to_session(listener)
    ensemble.server.expire(ensemble.session.session_id)
    ensemble.server.put("/a/b", b"2")
    assert zookeeper.children("/a") == ["b"]  # begins the next session
    ensemble.run()
    assert heard[0] == SessionBegan()
    assert isinstance(heard[1], DataChanged)
    assert heard[1].znode is not None
    assert heard[1].znode.data == b"2"
    zookeeper.set("/a/b", b"3")
    ensemble.run()
    assert len(heard) == 3


def test_a_write_of_an_expired_session_is_repeated_in_the_next_one(ensemble: Ensemble):
    zookeeper = ensemble.client()
    ensemble.server.expire(ensemble.session.session_id)
    assert zookeeper.set("/a/b", b"late")
    node = zookeeper.get("/a/b")
    assert node is not None
    assert node.data == b"late"


def test_a_node_that_was_created_in_spite_of_a_lost_reply_is_ours(ensemble: Ensemble):
    zookeeper = ensemble.client()
    act_once(ensemble.session, lose_connection, moment=Moment.AFTER, method="multi")
    assert zookeeper.create("/a/lock", b"1", ephemeral=True)
    assert not ensemble.client().create("/a/lock", b"2", ephemeral=True)


def test_a_candidate_that_was_created_in_spite_of_a_lost_reply_is_used(ensemble: Ensemble):
    zookeeper = ensemble.client()
    act_once(ensemble.session, lose_connection, moment=Moment.AFTER, method="multi")
    created = zookeeper.create_sequential("/a/b/candidate-", b"1", ephemeral=True)
    assert zookeeper.children("/a/b") == [str(created).rpartition("/")[2]]


def test_a_sequential_lock_passes_to_the_next_candidate_and_wakes_only_that_one(
    ensemble: Ensemble,
):
    locks, heard = ensemble.three_locks(SequentialLock, "/a/b")
    assert [lock.take() for lock in locks] == [True, False, False]
    assert [lock.leader() for lock in locks] == [0, 0, 0]
    locks[0].release()
    ensemble.run()
    assert [len(changes) for changes in heard] == [0, 1, 0]
    assert [lock.take() for lock in locks[1:]] == [True, False]


def test_a_name_lock_wakes_all_when_it_is_free(ensemble: Ensemble):
    locks, heard = ensemble.three_locks(NameLock, "/a/lock")
    assert [lock.watch() for lock in locks] == [None, None, None]
    assert [lock.take() for lock in locks] == [True, False, False]
    ensemble.run()
    for changes in heard:
        changes.clear()
    locks[0].release()
    ensemble.run()
    assert [len(changes) for changes in heard] == [1, 1, 1]
