from __future__ import annotations

import os
import queue
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from core.errors import SessionExpiredError
from tests.support.tcp_proxy import TcpProxy
from zk.channel import SessionChannel
from zk.client import ConnectionState, SessionCredentials, ZooKeeperClient
from zk.embedded import EmbeddedZooKeeper
from zk.operations import (
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
    Znode,
)
from zk.requests import MAX_REQUEST_BYTES, Exists, RequestTooLargeError

pytestmark = pytest.mark.zookeeper

CONNECTED, SUSPENDED, LOST = ConnectionState


class Session:
    """A started client and what it reported."""

    def __init__(
        self, address: str, timeout_ms: int = 6000, credentials: SessionCredentials | None = None
    ) -> None:
        self.events: queue.Queue[WatchEvent] = queue.Queue()
        self.states: queue.Queue[ConnectionState] = queue.Queue()
        self.client = ZooKeeperClient(
            address,
            timeout_ms,
            on_watch=self.events.put,
            on_state=self.states.put,
            credentials=credentials,
        )
        self.client.start(timeout_s=10.0)
        assert self.states.get(timeout=5.0) is CONNECTED


class Connect:
    """Opens sessions that are closed after the test."""

    def __init__(self, stack: ExitStack, address: str) -> None:
        self._stack = stack
        self._address = address

    def __call__(
        self,
        address: str | None = None,
        timeout_ms: int = 6000,
        credentials: SessionCredentials | None = None,
    ) -> Session:
        session = Session(address or self._address, timeout_ms, credentials)
        self._stack.callback(session.client.close)
        return session


@pytest.fixture
def connect(zookeeper_address: str) -> Iterator[Connect]:
    with ExitStack() as stack:
        yield Connect(stack, zookeeper_address)


@pytest.fixture
def proxy(zookeeper_server: EmbeddedZooKeeper) -> Iterator[TcpProxy]:
    with TcpProxy(zookeeper_server.address) as proxy:
        yield proxy


@pytest.fixture
def proxied(proxy: TcpProxy, zookeeper_address: str) -> str:
    """The address of the same chroot through the proxy."""
    return proxy.address + zookeeper_address[zookeeper_address.index("/") :]


def read(client: ZooKeeperClient, path: str, *, watch: bool = False) -> Znode:
    znode = client.get(path, watch=watch)
    assert znode is not None
    return znode


def test_paths_are_relative_to_the_chroot(
    connect: Connect, zookeeper_server: EmbeddedZooKeeper, zookeeper_address: str
):
    session = connect()
    client = session.client
    outside = connect(zookeeper_server.address).client
    chroot = zookeeper_address[zookeeper_address.index("/") :]

    client.get("/", watch=True)
    client.children("/", watch=True)
    result = client.multi([Create("/a", b"1"), Create("/a/n-", sequential=True)])

    assert result == Committed(("/a", "/a/n-0000000000"))
    assert read(outside, f"{chroot}/a").data == b"1"
    assert session.events.get(timeout=5.0) == WatchEvent(WatchKind.CHILDREN, "/")
    assert client.children("/") == ["a"]
    assert client.get_many(["/", "/a", "/b"]) == [client.get("/"), client.get("/a"), None]
    client.multi([SetData("/", b"root", 0)])
    assert session.events.get(timeout=5.0) == WatchEvent(WatchKind.CHANGED, "/")


def test_a_chroot_that_does_not_exist_is_created(connect: Connect, zookeeper_address: str):
    client = connect(f"{zookeeper_address}/some/depth").client

    assert client.children("/") == []


def test_no_server_within_the_time_is_one_clear_error(zookeeper_server: EmbeddedZooKeeper):
    with TcpProxy(zookeeper_server.address) as proxy:
        proxy.cut()
        client = ZooKeeperClient(f"{proxy.address}/x", 6000, on_watch=lambda _: None)

        with pytest.raises(
            ConnectionLossError, match=rf"no .* answered at {proxy.address}/x within 0\.2 s"
        ):
            client.start(timeout_s=0.2)


@pytest.mark.parametrize("address", ["", "host:port", ":2181", "/chroot"])
def test_an_address_that_makes_no_sense_is_refused(address: str):
    with pytest.raises(ValueError, match="expected host:port"):
        ZooKeeperClient(address, 6000, on_watch=lambda _: None)


def test_a_refused_multi_names_the_operation_and_changes_nothing(connect: Connect):
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


def test_a_multi_above_the_servers_limit_is_not_sent(connect: Connect):
    client = connect().client

    with pytest.raises(RequestTooLargeError, match=r"1 operations has 10\d+ bytes.*/a"):
        client.multi_many([[Create("/small")], [Create("/a", bytes(MAX_REQUEST_BYTES))]])

    assert client.multi([Create("/a", bytes(MAX_REQUEST_BYTES - 200))]) == Committed(("/a",))
    assert client.children("/") == ["a"]


def test_a_deleted_node_with_both_watches_is_one_event(connect: Connect):
    session = connect()
    session.client.multi([Create("/a"), Create("/sentinel")])
    session.client.get_many(["/a", "/sentinel"], watch=True)
    session.client.children("/a", watch=True)

    session.client.multi([Delete("/a", 0), SetData("/sentinel", b"", 0)])

    assert session.events.get(timeout=5.0) == WatchEvent(WatchKind.DELETED, "/a")
    assert session.events.get(timeout=5.0) == WatchEvent(WatchKind.CHANGED, "/sentinel")


def test_an_unwatched_path_is_silent_until_it_is_watched_again(connect: Connect):
    session = connect()
    session.client.multi([Create("/a"), Create("/sentinel")])
    session.client.get_many(["/a", "/sentinel"], watch=True)
    session.client.children("/a", watch=True)

    session.client.unwatch(["/a"])
    session.client.multi([SetData("/a", b"1", 0), Create("/a/b"), SetData("/sentinel", b"", 0)])
    assert session.events.get(timeout=5.0).path == "/sentinel"

    session.client.get("/a", watch=True)
    session.client.multi([SetData("/a", b"2", 1)])
    assert session.events.get(timeout=5.0) == WatchEvent(WatchKind.CHANGED, "/a")


def test_changes_while_the_connection_is_cut_fire_their_watches(
    connect: Connect, proxy: TcpProxy, proxied: str
):
    session, other = connect(proxied), connect().client
    names = ("changed", "deleted", "parent", "orphan", "quiet")
    other.multi([Create(f"/{name}") for name in names])
    session.client.get_many(["/changed", "/deleted", "/quiet", "/created"], watch=True)
    session.client.get("/absent", watch=True)
    for path in ("/parent", "/orphan", "/quiet"):
        session.client.children(path, watch=True)

    proxy.cut()
    assert session.states.get(timeout=5.0) is SUSPENDED
    other.multi([SetData("/changed", b"", 0), Delete("/deleted", 0), Create("/created")])
    other.multi([Create("/parent/child"), Delete("/orphan", 0)])
    proxy.restore()
    assert session.states.get(timeout=5.0) is CONNECTED

    assert {session.events.get(timeout=5.0) for _ in range(5)} == {
        WatchEvent(WatchKind.CHANGED, "/changed"),
        WatchEvent(WatchKind.DELETED, "/deleted"),
        WatchEvent(WatchKind.CREATED, "/created"),
        WatchEvent(WatchKind.CHILDREN, "/parent"),
        WatchEvent(WatchKind.DELETED, "/orphan"),
    }
    for change, kind in (
        (SetData("/quiet", b"", 0), WatchKind.CHANGED),
        (Create("/quiet/child"), WatchKind.CHILDREN),
        (Create("/absent"), WatchKind.CREATED),
    ):
        other.multi([change])
        assert session.events.get(timeout=5.0).kind is kind
    assert session.events.empty()


def test_a_watch_survives_any_number_of_reconnections(
    connect: Connect, proxy: TcpProxy, proxied: str
):
    session, other = connect(proxied), connect().client
    other.multi([Create("/a")])
    session.client.get("/a", watch=True)

    for _ in range(3):
        proxy.cut()
        assert session.states.get(timeout=5.0) is SUSPENDED
        proxy.restore()
        assert session.states.get(timeout=5.0) is CONNECTED
    other.multi([SetData("/a", b"", 0)])

    assert session.events.get(timeout=5.0) == WatchEvent(WatchKind.CHANGED, "/a")


def test_a_server_restart_keeps_the_session_and_its_watches(tmp_path: Path):
    server = EmbeddedZooKeeper(tmp_path)
    server.start()
    with ExitStack() as stack:
        stack.callback(server.stop)
        session = Session(server.address)
        stack.callback(session.client.close)
        session.client.multi([Create("/a", b"kept"), Create("/e", ephemeral=True)])
        session.client.get("/a", watch=True)
        session_id = session.client.session_id

        server.stop()
        assert session.states.get(timeout=5.0) is SUSPENDED
        server.start()

        assert read(session.client, "/a").data == b"kept"  # the read waits for the connection
        assert session.states.get(timeout=5.0) is CONNECTED
        assert read(session.client, "/e").stat.ephemeral_owner == session_id
        session.client.multi([SetData("/a", b"", 0)])
        assert session.events.get(timeout=5.0) == WatchEvent(WatchKind.CHANGED, "/a")


def test_a_server_that_hangs_is_noticed_while_requests_are_sent(tmp_path: Path):
    server = EmbeddedZooKeeper(tmp_path)
    server.start()
    states: queue.Queue[ConnectionState] = queue.Queue()
    channel = SessionChannel(
        server.address, 2000, on_watch=lambda _: None, on_state=states.put, credentials=None
    )
    try:
        channel.start(timeout_s=10.0)
        assert states.get(timeout=5.0) is CONNECTED
        channel.latest_zxid()
        assert channel.lease_valid()

        os.kill(server.pid, signal.SIGSTOP)
        stopped_at = time.monotonic()
        noticed = None
        while noticed is None and time.monotonic() < stopped_at + 5.0:
            channel.send(Exists("/", watch=False))
            try:
                noticed = states.get(timeout=0.05)
            except queue.Empty:
                continue

        assert noticed is SUSPENDED
        assert time.monotonic() - stopped_at < 2.0
        assert not channel.lease_valid()
        # The server cannot say so: the client gives the session up by itself.
        assert states.get(timeout=5.0) is LOST
        assert 3.0 < time.monotonic() - stopped_at < 4.5
        with pytest.raises(SessionExpiredError, match="no connection for 2 s"):
            channel.wait_connected()
    finally:
        channel.abandon()
        server.stop(timeout_s=0.0)


def test_a_session_ended_elsewhere_is_lost_at_once_and_for_good(connect: Connect):
    session = connect()
    session.client.multi([Create("/e", ephemeral=True)])
    twin = connect(credentials=session.client.credentials).client
    assert twin.session_id == session.client.session_id

    assert twin.close()

    while session.states.get(timeout=2.0) is not LOST:
        pass
    assert session.client.state is LOST
    assert not session.client.lease_valid()
    with pytest.raises(SessionExpiredError):
        session.client.get("/e")
    with pytest.raises(SessionExpiredError):
        session.client.multi([Create("/x")])
    with pytest.raises(SessionExpiredError):
        session.client.wait_connected()
    assert connect().client.get("/e") is None


def test_a_session_that_is_over_cannot_be_attached_to(connect: Connect, zookeeper_address: str):
    credentials = connect().client.credentials
    connect(credentials=credentials).client.close()
    client = ZooKeeperClient(
        zookeeper_address, 6000, on_watch=lambda _: None, credentials=credentials
    )

    with pytest.raises(SessionExpiredError):
        client.start(timeout_s=5.0)


def test_credentials_do_not_print_their_password():
    assert "secret" not in repr(SessionCredentials(0x1234, b"secret"))


def test_a_write_whose_answer_is_lost_is_ambiguous_and_sent_once(
    connect: Connect, proxy: TcpProxy, proxied: str
):
    session, observer = connect(proxied), connect()
    observer.client.children("/", watch=True)
    errors: queue.Queue[Exception] = queue.Queue()

    def write() -> None:
        try:
            session.client.multi([Create("/n-", sequential=True)])
        except ConnectionLossError as error:
            errors.put(error)

    proxy.swallow_answers()
    writer = threading.Thread(target=write)
    writer.start()
    assert observer.events.get(timeout=5.0).kind is WatchKind.CHILDREN  # it was applied
    proxy.cut()

    assert isinstance(errors.get(timeout=5.0), ConnectionLossError)
    writer.join(5.0)
    proxy.restore()
    assert session.client.children("/") == ["n-0000000000"]


def test_a_read_whose_answer_is_lost_is_repeated(connect: Connect, proxy: TcpProxy, proxied: str):
    session = connect(proxied)
    session.client.multi([Create("/a", b"1"), Create("/b", b"2")])
    found: queue.Queue[list[Znode | None]] = queue.Queue()

    proxy.swallow_answers()
    reader = threading.Thread(
        target=lambda: found.put(session.client.get_many(["/a", "/b"], watch=True))
    )
    reader.start()
    proxy.cut()
    assert session.states.get(timeout=5.0) is SUSPENDED
    proxy.restore()

    assert [znode.data for znode in found.get(timeout=5.0) if znode] == [b"1", b"2"]
    reader.join(5.0)
    session.client.multi([SetData("/b", b"", 0)])
    assert session.events.get(timeout=5.0) == WatchEvent(WatchKind.CHANGED, "/b")


def test_calls_blocked_in_an_abandoned_client_return_at_once(
    connect: Connect, proxy: TcpProxy, proxied: str
):
    session = connect(proxied)
    outcomes: queue.Queue[str] = queue.Queue()

    def call() -> None:
        try:
            session.client.get("/")
        except SessionExpiredError as error:
            outcomes.put(str(error))

    proxy.swallow_answers()
    reader = threading.Thread(target=call)
    reader.start()
    session.client.abandon()

    assert "given up by its owner" in outcomes.get(timeout=2.0)
    reader.join(5.0)
    assert session.states.empty()


def test_an_abandoned_session_lives_on_and_can_be_attached_to(connect: Connect):
    session = connect()
    session.client.multi([Create("/e", ephemeral=True)])

    session.client.abandon()

    heir = connect(credentials=session.client.credentials).client
    assert read(heir, "/e").stat.ephemeral_owner == heir.session_id


def test_closing_ends_the_session_and_is_not_reported(connect: Connect):
    session, other = connect(), connect().client
    session.client.multi([Create("/e", ephemeral=True)])

    assert session.client.close()

    assert other.get("/e") is None
    assert session.states.empty()
    assert not session.client.close()


def test_a_callback_that_fails_does_not_end_the_connection(
    zookeeper_address: str, caplog: pytest.LogCaptureFixture
):
    called = threading.Event()

    def fail(event: WatchEvent) -> None:
        called.set()
        raise ZeroDivisionError

    client = ZooKeeperClient(zookeeper_address, 6000, on_watch=fail)
    client.start(timeout_s=10.0)
    client.get("/", watch=True)
    client.multi([SetData("/", b"", -1)])

    assert called.wait(5.0)
    assert client.get("/") is not None
    assert client.close()
    assert "was not delivered" in caplog.text
