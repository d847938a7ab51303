from __future__ import annotations

import threading

import pytest

from regent.cluster.embedded_zookeeper import EmbeddedZooKeeper
from regent.designs.measuring.zookeeper_counts import mntr
from regent.testing.waits import scaled
from regent.zk.client.connection import ConnectionState, SessionCredentials
from regent.zk.client.operations import (
    Check,
    Committed,
    ConnectionLossError,
    Create,
    Delete,
    Refused,
    SetData,
    WatchEvent,
    WatchKind,
    ZkError,
)
from regent.zk.client.requests import MAX_REQUEST_BYTES, RequestTooLargeError
from regent.zk.client.zookeeper_client import ZooKeeperClient
from tests.support.connected_sessions import Connect, read
from tests.support.tcp_proxy import TcpProxy

pytestmark = pytest.mark.zookeeper

CONNECTED, SUSPENDED, LOST = ConnectionState


def test_paths_are_relative_to_the_chroot(
    connect: Connect, zookeeper_server: EmbeddedZooKeeper, zookeeper_address: str
) -> None:
    session = connect()
    client = session.client
    outside = connect(zookeeper_server.address).client
    chroot = zookeeper_address[zookeeper_address.index("/") :]

    client.get("/", watch=True)
    client.children("/", watch=True)
    result = client.multi([Create("/a", b"1"), Create("/a/n-", sequential=True)])

    assert result == Committed(("/a", "/a/n-0000000000"))
    assert read(outside, f"{chroot}/a").data == b"1"
    assert session.events.get(timeout=scaled(5.0)) == WatchEvent(WatchKind.CHILDREN, "/")
    assert client.children("/") == ["a"]
    assert client.get_many(["/", "/a", "/b"]) == [client.get("/"), client.get("/a"), None]
    client.multi([SetData("/", b"root", 0)])
    assert session.events.get(timeout=scaled(5.0)) == WatchEvent(WatchKind.CHANGED, "/")


def test_a_chroot_that_does_not_exist_is_created(connect: Connect, zookeeper_address: str) -> None:
    """REC-10."""
    client = connect(f"{zookeeper_address}/some/depth").client

    assert client.children("/") == []


def test_no_server_within_the_time_limit_is_one_clear_error(
    zookeeper_server: EmbeddedZooKeeper,
) -> None:
    with TcpProxy(zookeeper_server.address) as proxy:
        proxy.cut()
        client = ZooKeeperClient(f"{proxy.address}/x", 6000, on_watch=lambda _: None)

        with pytest.raises(
            ConnectionLossError, match=rf"no .* answered at {proxy.address}/x within 0\.2 s"
        ):
            client.start(timeout_s=0.2)


@pytest.mark.parametrize("address", ["", "host:port", ":2181", "/chroot"])
def test_an_invalid_address_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="expected host:port"):
        ZooKeeperClient(address, 6000, on_watch=lambda _: None)


def test_a_refused_multi_names_the_operation_and_changes_nothing(connect: Connect) -> None:
    client = connect().client
    client.multi([Create("/a")])

    refusals = [
        client.multi([Check("/a", 0), Create("/b"), Check("/a", 1), Delete("/none", 0)]),
        client.multi([Create("/a")]),
        client.multi([SetData("/none", b"", -1)]),
        client.multi([Create("/e", ephemeral=True), Create("/e/child")]),
        client.multi([Create("/a/b"), Delete("/a", 0)]),
    ]

    assert refusals == [
        Refused(2, ZkError.BAD_VERSION),
        Refused(0, ZkError.NODE_EXISTS),
        Refused(0, ZkError.NO_NODE),
        Refused(1, ZkError.NO_CHILDREN_FOR_EPHEMERALS),
        Refused(1, ZkError.NOT_EMPTY),
    ]
    assert client.children("/") == ["a"]
    assert client.children("/a") == []


def test_a_multi_above_the_servers_limit_is_not_sent(connect: Connect) -> None:
    client = connect().client

    with pytest.raises(RequestTooLargeError, match=r"1 operations has 10\d+ bytes.*/a"):
        client.multi_many([[Create("/small")], [Create("/a", bytes(MAX_REQUEST_BYTES))]])

    assert client.multi([Create("/a", bytes(MAX_REQUEST_BYTES - 200))]) == Committed(("/a",))
    assert client.children("/") == ["a"]


def test_a_deleted_node_with_both_watches_is_one_event(connect: Connect) -> None:
    session = connect()
    session.client.multi([Create("/a"), Create("/sentinel")])
    session.client.get_many(["/a", "/sentinel"], watch=True)
    session.client.children("/a", watch=True)

    session.client.multi([Delete("/a", 0), SetData("/sentinel", b"", 0)])

    assert session.events.get(timeout=scaled(5.0)) == WatchEvent(WatchKind.DELETED, "/a")
    assert session.events.get(timeout=scaled(5.0)) == WatchEvent(WatchKind.CHANGED, "/sentinel")


def test_a_dropped_watch_does_not_fire_until_it_is_set_again(connect: Connect) -> None:
    session = connect()
    session.client.multi([Create("/a"), Create("/sentinel")])
    session.client.get_many(["/a", "/sentinel"], watch=True)
    session.client.children("/a", watch=True)

    session.client.unwatch(["/a"])
    session.client.multi([SetData("/a", b"1", 0), Create("/a/b"), SetData("/sentinel", b"", 0)])
    assert session.events.get(timeout=scaled(5.0)).path == "/sentinel"

    session.client.get("/a", watch=True)
    session.client.multi([SetData("/a", b"2", 1)])
    assert session.events.get(timeout=scaled(5.0)) == WatchEvent(WatchKind.CHANGED, "/a")


def test_the_server_keeps_no_watch_that_was_dropped(
    connect: Connect, zookeeper_server: EmbeddedZooKeeper
) -> None:
    def watches() -> float:
        client.sync()
        return mntr(port)["watch_count"]

    port = int(zookeeper_server.address.rpartition(":")[2])
    session = connect()
    client = session.client
    before = watches()
    client.multi([Create("/a"), Create("/a/b")])
    client.get_many(["/a", "/a/b", "/absent"], watch=True)
    client.children("/a", watch=True)
    assert watches() == before + 4
    client.unwatch(["/a", "/absent", "/never-watched"])
    assert watches() == before + 1, "that of /a/b"
    client.get("/a", watch=True)
    client.unwatch(["/a"])
    client.get("/a", watch=True)  # the server keeps the sequence
    client.multi([SetData("/a/b", b"", 0), SetData("/a", b"", 0)])
    assert session.events.get(timeout=scaled(5.0)) == WatchEvent(WatchKind.CHANGED, "/a/b")
    assert session.events.get(timeout=scaled(5.0)) == WatchEvent(WatchKind.CHANGED, "/a")
    client.get("/a", watch=True)
    client.multi([SetData("/a", b"", 1)])
    client.unwatch(["/a"])  # it has fired
    assert client.get("/a") is not None
    assert watches() == before


def test_credentials_do_not_print_their_password() -> None:
    assert "secret" not in repr(SessionCredentials(0x1234, b"secret"))


def test_closing_ends_the_session_and_is_not_reported(connect: Connect) -> None:
    session, other = connect(), connect().client
    session.client.multi([Create("/e", ephemeral=True)])

    assert session.client.close()

    assert other.get("/e") is None
    assert session.states.empty()
    assert not session.client.close()


def test_a_callback_that_fails_does_not_end_the_connection(
    zookeeper_address: str, caplog: pytest.LogCaptureFixture
) -> None:
    called = threading.Event()

    def fail(event: WatchEvent) -> None:
        called.set()
        raise ZeroDivisionError

    client = ZooKeeperClient(zookeeper_address, 6000, on_watch=fail)
    client.start(timeout_s=scaled(10.0))
    client.get("/", watch=True)
    client.multi([SetData("/", b"", -1)])

    assert called.wait(scaled(5.0))
    assert client.get("/") is not None
    assert client.close()
    assert "was not delivered" in caplog.text
