from __future__ import annotations

import queue
import shutil
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from regent.cluster.embedded_zookeeper import EmbeddedZooKeeper
from regent.core.errors import SessionExpiredError
from regent.testing.waits import pause_process, scaled
from regent.zk.client.connection import ConnectionState
from regent.zk.client.operations import (
    ANY_VERSION,
    ConnectionLossError,
    Create,
    Delete,
    SetData,
    WatchEvent,
    WatchKind,
    Znode,
)
from regent.zk.client.requests import Exists
from regent.zk.client.zookeeper_client import ZooKeeperClient
from tests.support.connected_sessions import Connect, Session, read
from tests.support.tcp_proxy import TcpProxy

pytestmark = pytest.mark.zookeeper

CONNECTED, SUSPENDED, LOST = ConnectionState

LONG_MS = 60_000
"""The longest session that the server grants: it outlives the start of a JVM on a busy machine."""
RESTART_S = 60.0
"""Half of ``LONG_MS`` for a connection that a starting server does not answer, and the start."""


def test_changes_while_the_connection_is_cut_fire_their_watches(
    connect: Connect, proxy: TcpProxy, proxied: str
) -> None:
    session, other = connect(proxied), connect().client
    names = ("changed", "deleted", "parent", "orphan", "quiet")
    other.multi([Create(f"/{name}") for name in names])
    session.client.get_many(["/changed", "/deleted", "/quiet", "/created"], watch=True)
    session.client.get("/absent", watch=True)
    for path in ("/parent", "/orphan", "/quiet"):
        session.client.children(path, watch=True)

    proxy.cut()
    assert session.states.get(timeout=scaled(5.0)) is SUSPENDED
    other.multi([SetData("/changed", b"", 0), Delete("/deleted", 0), Create("/created")])
    other.multi([Create("/parent/child"), Delete("/orphan", 0)])
    proxy.restore()
    assert session.states.get(timeout=scaled(5.0)) is CONNECTED

    assert {session.events.get(timeout=scaled(5.0)) for _ in range(5)} == {
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
        assert session.events.get(timeout=scaled(5.0)).kind is kind
    assert session.events.empty()


def test_a_watch_survives_any_number_of_reconnections(
    connect: Connect, proxy: TcpProxy, proxied: str
) -> None:
    session, other = connect(proxied), connect().client
    other.multi([Create("/a")])
    session.client.get("/a", watch=True)

    for _ in range(3):
        proxy.cut()
        assert session.states.get(timeout=scaled(5.0)) is SUSPENDED
        proxy.restore()
        assert session.states.get(timeout=scaled(5.0)) is CONNECTED
    other.multi([SetData("/a", b"", 0)])

    assert session.events.get(timeout=scaled(5.0)) == WatchEvent(WatchKind.CHANGED, "/a")


def test_a_server_that_accepts_and_never_answers_does_not_cost_the_session(
    connect: Connect, proxy: TcpProxy, proxied: str
) -> None:
    """A starting ZooKeeper forgets new connections without closing them."""
    timeout_ms = min(round(scaled(3_000)), LONG_MS)
    session = connect(proxied, timeout_ms)
    session_id = session.client.session_id
    proxy.cut()
    assert session.states.get(timeout=scaled(5.0)) is SUSPENDED
    proxy.leave_unanswered(2)
    proxy.restore()
    assert session.states.get(timeout=2 * timeout_ms / 1000) is CONNECTED
    assert session.client.session_id == session_id


def test_a_server_restart_keeps_the_session_and_its_watches(tmp_path: Path) -> None:
    server = EmbeddedZooKeeper(tmp_path)
    server.start()
    with ExitStack() as stack:
        stack.callback(server.stop)
        session = Session(server.address, LONG_MS)
        stack.callback(session.client.close)
        session.client.multi([Create("/a", b"kept"), Create("/e", ephemeral=True)])
        session.client.get("/a", watch=True)
        session_id = session.client.session_id
        session.client.require_write("/a", read(session.client, "/a").stat.mzxid)

        server.stop()
        assert session.states.get(timeout=scaled(5.0)) is SUSPENDED
        server.start()

        assert read(session.client, "/a").data == b"kept"  # the read waits for the connection
        assert session.states.get(timeout=scaled(RESTART_S)) is CONNECTED
        assert read(session.client, "/e").stat.ephemeral_owner == session_id
        session.client.multi([SetData("/a", b"", 0)])
        assert session.events.get(timeout=scaled(5.0)) == WatchEvent(WatchKind.CHANGED, "/a")


def test_a_session_ends_when_the_server_has_older_data_with_the_session(tmp_path: Path) -> None:
    data, copy = tmp_path / "server" / "version-2", tmp_path / "copy"
    server = EmbeddedZooKeeper(data.parent)
    server.start()
    with ExitStack() as stack:
        stack.callback(server.stop)
        proxy = stack.enter_context(TcpProxy(server.address))
        session = Session(proxy.address, LONG_MS)
        stack.callback(session.client.close)
        session.client.multi([Create("/mark"), Create("/watched")])
        shutil.copytree(data, copy)
        session.client.multi([SetData("/mark", b"", 0)])
        session.client.get("/watched", watch=True)
        session.client.require_write("/mark", read(session.client, "/mark").stat.mzxid)

        proxy.cut()
        assert session.states.get(timeout=scaled(5.0)) is SUSPENDED
        server.stop()
        shutil.rmtree(data)
        shutil.copytree(copy, data)
        server.start()
        other = Session(server.address).client
        stack.callback(other.close)
        while other.latest_zxid() <= session.client.newest_zxid:  # as in an ensemble's new epoch
            other.multi([SetData("/watched", b"", ANY_VERSION)])
        proxy.restore()

        assert session.states.get(timeout=scaled(RESTART_S)) is LOST
        with pytest.raises(
            SessionExpiredError, match="data are older than data this session has seen"
        ):
            session.client.get("/mark")
        assert session.events.empty()


def test_a_server_that_hangs_during_requests_is_noticed(tmp_path: Path) -> None:
    server = EmbeddedZooKeeper(tmp_path)
    server.start()
    states: queue.Queue[ConnectionState] = queue.Queue()
    timeout_s = min(scaled(2.0), 20.0)
    client = ZooKeeperClient(
        server.address, round(timeout_s * 1000), on_watch=lambda _: None, on_state=states.put
    )
    try:
        client.start(timeout_s=scaled(10.0))
        assert states.get(timeout=scaled(5.0)) is CONNECTED
        client.latest_zxid()
        assert client.lease_valid()

        pause_process(server.pid)
        stopped_at = time.monotonic()
        noticed = None
        while noticed is None and time.monotonic() < stopped_at + 3 * timeout_s:
            client.send(Exists("/", watch=False))
            try:
                noticed = states.get(timeout=0.05)
            except queue.Empty:
                continue

        assert noticed is SUSPENDED
        assert time.monotonic() - stopped_at < timeout_s
        assert not client.lease_valid()
        # The server cannot end the session: the client gives it up by itself.
        assert states.get(timeout=3 * timeout_s) is LOST
        assert 1.5 * timeout_s < time.monotonic() - stopped_at < 2.25 * timeout_s
        with pytest.raises(SessionExpiredError, match=r"no connection for \d"):
            client.wait_connected()
    finally:
        client.abandon()
        server.stop(timeout_s=0.0)


def test_a_session_closed_from_elsewhere_is_lost_at_once(connect: Connect) -> None:
    session = connect()
    session.client.multi([Create("/e", ephemeral=True)])
    twin = connect(credentials=session.client.credentials).client
    assert twin.session_id == session.client.session_id

    assert twin.close()

    states = iter(lambda: session.states.get(timeout=scaled(5.0)), LOST)
    assert set(states) <= {SUSPENDED, CONNECTED}
    assert session.client.state is LOST
    assert not session.client.lease_valid()
    with pytest.raises(SessionExpiredError):
        session.client.get("/e")
    with pytest.raises(SessionExpiredError):
        session.client.multi([Create("/x")])
    with pytest.raises(SessionExpiredError):
        session.client.wait_connected()
    assert connect().client.get("/e") is None


def test_no_other_session_is_opened_after_a_lost_one(
    zookeeper_address: str, connect: Connect
) -> None:
    before = set(threading.enumerate())
    session = Session(zookeeper_address)
    (io_thread,) = set(threading.enumerate()) - before

    connect(credentials=session.client.credentials).client.close()

    io_thread.join(scaled(5.0))
    assert not io_thread.is_alive()
    assert session.client.state is LOST
    session.client.abandon()


def test_an_expired_session_cannot_be_attached_to(connect: Connect, zookeeper_address: str) -> None:
    credentials = connect().client.credentials
    connect(credentials=credentials).client.close()
    client = ZooKeeperClient(
        zookeeper_address, 6000, on_watch=lambda _: None, credentials=credentials
    )

    with pytest.raises(SessionExpiredError):
        client.start(timeout_s=scaled(5.0))


def test_a_write_whose_answer_is_lost_is_ambiguous_and_sent_once(
    connect: Connect, proxy: TcpProxy, proxied: str
) -> None:
    session, observer = connect(proxied), connect()
    observer.client.children("/", watch=True)
    errors: queue.Queue[Exception] = queue.Queue()

    def write() -> None:
        try:
            session.client.multi([Create("/n-", sequential=True)])
        except ConnectionLossError as error:
            errors.put(error)

    proxy.drop_answers()
    writer = threading.Thread(target=write)
    writer.start()
    assert observer.events.get(timeout=scaled(5.0)).kind is WatchKind.CHILDREN  # it was applied
    proxy.cut()

    assert isinstance(errors.get(timeout=scaled(5.0)), ConnectionLossError)
    writer.join(scaled(5.0))
    proxy.restore()
    assert session.client.children("/") == ["n-0000000000"]


def test_a_read_whose_answer_is_lost_is_repeated(
    connect: Connect, proxy: TcpProxy, proxied: str
) -> None:
    session = connect(proxied)
    session.client.multi([Create("/a", b"1"), Create("/b", b"2")])
    found: queue.Queue[list[Znode | None]] = queue.Queue()

    proxy.drop_answers()
    reader = threading.Thread(
        target=lambda: found.put(session.client.get_many(["/a", "/b"], watch=True))
    )
    reader.start()
    proxy.cut()
    assert session.states.get(timeout=scaled(5.0)) is SUSPENDED
    proxy.restore()

    assert [znode.data for znode in found.get(timeout=scaled(5.0)) if znode] == [b"1", b"2"]
    reader.join(scaled(5.0))
    session.client.multi([SetData("/b", b"", 0)])
    assert session.events.get(timeout=scaled(5.0)) == WatchEvent(WatchKind.CHANGED, "/b")


def test_calls_blocked_in_an_abandoned_client_return_at_once(
    connect: Connect, proxy: TcpProxy, proxied: str
) -> None:
    session = connect(proxied)
    outcomes: queue.Queue[str] = queue.Queue()

    def call() -> None:
        try:
            session.client.get("/")
        except SessionExpiredError as error:
            outcomes.put(str(error))

    proxy.drop_answers()
    reader = threading.Thread(target=call)
    reader.start()
    session.client.abandon()

    assert "abandoned by its owner" in outcomes.get(timeout=scaled(5.0))
    reader.join(scaled(5.0))
    assert session.states.empty()


def test_an_abandoned_session_stays_and_can_be_attached_to(connect: Connect) -> None:
    session = connect()
    session.client.multi([Create("/e", ephemeral=True)])

    session.client.abandon()

    heir = connect(credentials=session.client.credentials).client
    assert read(heir, "/e").stat.ephemeral_owner == heir.session_id
