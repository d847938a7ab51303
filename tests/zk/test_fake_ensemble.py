"""Lagging servers of the fake ZooKeeper: what their sessions see, and when."""

from __future__ import annotations

import pytest

from regent.core.errors import SessionExpiredError
from regent.zk.client.operations import Create, Delete, Refused, SetData, WatchEvent, ZkError
from tests.support.fake_zookeeper import FakeZooKeeper, FakeZooKeeperServer
from tests.support.zookeeper_replica import Replica
from tests.support.zookeeper_sessions import apply, changed, children_changed, created, read

LAG = 2


@pytest.fixture
def server() -> FakeZooKeeperServer:
    server = FakeZooKeeperServer()
    server.put("/node", b"0")
    return server


@pytest.fixture
def follower(server: FakeZooKeeperServer) -> Replica:
    follower = server.add_follower(LAG)
    server.connect_to = lambda: follower
    return follower


@pytest.fixture
def zk(server: FakeZooKeeperServer, follower: Replica) -> FakeZooKeeper:
    return FakeZooKeeper(server)


def write(server: FakeZooKeeperServer, *values: bytes) -> None:
    for value in values:
        server.put("/node", value)


def test_a_session_reads_what_its_server_has(
    server: FakeZooKeeperServer, zk: FakeZooKeeper
) -> None:
    write(server, b"1", b"2")
    assert read(zk, "/node").data == b"0"
    write(server, b"3")
    assert read(zk, "/node").data == b"1"
    assert zk.newest_zxid == zk.latest_zxid() == server.zxid - LAG
    server.catch_up()
    assert read(zk, "/node") == server.node("/node")


def test_all_servers_get_the_same_nodes(server: FakeZooKeeperServer, follower: Replica) -> None:
    server.connect_to = lambda: server.leader
    writer = FakeZooKeeper(server)
    apply(writer, Create("/node/n_", sequential=True), Create("/mortal", ephemeral=True))
    apply(writer, Delete("/node/n_0000000000", 0), Create("/node/n_", sequential=True))
    writer.close()
    server.catch_up()
    assert follower.tree.nodes == server.leader.tree.nodes


@pytest.mark.parametrize("is_refused", [False, True])
def test_after_a_write_a_session_sees_all_earlier_writes(
    server: FakeZooKeeperServer, zk: FakeZooKeeper, *, is_refused: bool
) -> None:
    write(server, b"1", b"2")
    result = zk.multi([SetData("/node", b"mine", 0 if is_refused else 2)])
    assert (result == Refused(0, ZkError.BAD_VERSION)) is is_refused
    assert read(zk, "/node").data == (b"2" if is_refused else b"mine")


def test_after_a_sync_a_session_sees_all_earlier_writes(
    server: FakeZooKeeperServer, zk: FakeZooKeeper
) -> None:
    write(server, b"1")
    zk.sync()
    assert read(zk, "/node").data == b"1"


def test_a_new_session_sees_all_earlier_writes(
    server: FakeZooKeeperServer, follower: Replica
) -> None:
    write(server, b"1")
    assert read(FakeZooKeeper(server), "/node").data == b"1"


def test_a_watch_fires_when_the_sessions_server_has_the_change(
    server: FakeZooKeeperServer, follower: Replica
) -> None:
    events: list[WatchEvent] = []
    zk = FakeZooKeeper(server, events.append)
    zk.get("/node", watch=True)
    zk.children("/node", watch=True)
    server.put("/node/child")
    write(server, b"1")
    assert events == []
    assert zk.children("/node") == []
    zk.sync()
    assert events == [children_changed("/node"), changed("/node")]


def test_a_session_that_moves_to_another_server_does_not_go_back_in_time(
    server: FakeZooKeeperServer, follower: Replica
) -> None:
    events: list[WatchEvent] = []
    zk = FakeZooKeeper(server, events.append)
    write(server, b"1", b"2")
    zk.sync()
    zk.get("/other", watch=True)
    behind = server.add_follower(100)
    write(server, b"3")
    server.connect_to = lambda: behind
    server.disconnect(zk.session_id)
    server.reconnect(zk.session_id)
    assert read(zk, "/node").data == b"2"
    server.put("/other")
    server.catch_up()
    assert events == [created("/other")]
    assert not follower.watches.of_session(zk.session_id)
    assert read(zk, "/node").data == b"3"


def test_watches_of_a_session_on_a_newer_server_fire_for_missed_changes(
    server: FakeZooKeeperServer, zk: FakeZooKeeper
) -> None:
    events: list[WatchEvent] = []
    watching = FakeZooKeeper(server, events.append)
    watching.get("/node", watch=True)
    write(server, b"1")
    server.connect_to = lambda: server.leader
    server.disconnect(watching.session_id)
    server.reconnect(watching.session_id)
    assert events == [changed("/node")]


def test_a_session_that_expired_connects_again_although_the_data_are_gone(
    server: FakeZooKeeperServer, zk: FakeZooKeeper
) -> None:
    write(server, b"1", b"2")
    server.disconnect(zk.session_id)
    server.expire(zk.session_id)
    server.replace(None)
    server.reconnect(zk.session_id)
    with pytest.raises(SessionExpiredError):
        zk.get("/node")
