"""Faults that tests can cause in the fake ZooKeeper, and what sessions then see."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from regent.core.errors import SessionExpiredError
from regent.testing.waits import scaled
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
from regent.zk.client.zookeeper import ZooKeeper
from tests.support.fake_zookeeper import (
    Call,
    FakeZooKeeper,
    FakeZooKeeperServer,
    Hook,
    Moment,
)
from tests.support.zookeeper_replica import Transaction
from tests.support.zookeeper_sessions import apply, changed, children_changed, created, deleted


class SimulatedCrashError(Exception):
    """The caller's process has crashed."""


@pytest.fixture
def server() -> FakeZooKeeperServer:
    server = FakeZooKeeperServer()
    server.put("/ids")
    server.put("/epoch", b"0")
    server.transactions.clear()
    return server


@pytest.fixture
def zk(server: FakeZooKeeperServer) -> FakeZooKeeper:
    return FakeZooKeeper(server)


def raise_at(moment: Moment, error: Exception, *, number: int = 1) -> Hook:
    """Return a hook that raises at the ``number``-th occurrence of the moment."""
    left = number

    def hook(call: Call) -> None:
        nonlocal left
        left -= call.moment is moment
        if call.moment is moment and left == 0:
            raise error

    return hook


def test_the_fake_is_a_zookeeper(zk: FakeZooKeeper) -> None:
    session: ZooKeeper = zk
    assert session.session_id == 1


# --- transactions ---------------------------------------------------------------------------------


def test_transactions_have_their_session_and_operations(
    server: FakeZooKeeperServer, zk: FakeZooKeeper
) -> None:
    elect = (Create("/controller", b"1", ephemeral=True), SetData("/epoch", b"1", 0))
    apply(zk, *elect)
    assert zk.multi(elect) == Refused(0, ZkError.NODE_EXISTS)
    apply(zk, Create("/ids/n_", sequential=True), Check("/epoch", 1))
    zk.close()
    first = server.zxid - 2
    assert server.transactions == [
        Transaction(first, 1, elect),
        Transaction(
            first + 1, 1, (Create("/ids/n_0000000000", sequential=True), Check("/epoch", 1))
        ),
        Transaction(first + 2, 1, (Delete("/controller", 0),), ends_session=True),
    ]


def test_a_tool_puts_nodes_with_their_parents(server: FakeZooKeeperServer) -> None:
    events: list[WatchEvent] = []
    zk = FakeZooKeeper(server, events.append)
    zk.get("/config/topics/t", watch=True)
    server.put("/config/topics/t", b"1")
    zk.get("/config/topics/t", watch=True)
    server.put("/config/topics/t", b"2")
    assert events == [created("/config/topics/t"), changed("/config/topics/t")]
    assert {path: node.data for path, node in server.snapshot().items()} == {
        "/config": b"",
        "/config/topics": b"",
        "/config/topics/t": b"2",
        "/epoch": b"0",
        "/ids": b"",
    }
    assert server.snapshot()["/config/topics/t"].stat.version == 1


def test_the_clock_of_the_test_is_the_ctime_of_nodes() -> None:
    server = FakeZooKeeperServer(now_ms=iter([17, 18]).__next__)
    server.put("/node")
    server.put("/node")
    assert server.snapshot()["/node"].stat.ctime_ms == 17


@pytest.mark.parametrize("path", ["", "node", "/node/", "//node", "/a//b", "/a/../b"])
def test_an_invalid_path_is_an_error_of_the_test(zk: FakeZooKeeper, path: str) -> None:
    for call in (lambda: zk.get(path), lambda: zk.children(path), lambda: zk.multi([Create(path)])):
        with pytest.raises(ValueError, match="not a znode path"):
            call()


# --- sessions -------------------------------------------------------------------------------------


def test_an_expired_session_loses_its_nodes_in_one_transaction_and_its_watches(
    server: FakeZooKeeperServer,
) -> None:
    own: list[WatchEvent] = []
    events: list[WatchEvent] = []
    zk, other = FakeZooKeeper(server, own.append), FakeZooKeeper(server, events.append)
    apply(zk, Create("/controller", ephemeral=True), Create("/ids/1", ephemeral=True))
    for session in (zk, other):
        session.get_many(["/controller", "/ids/1"], watch=True)
        session.children("/ids", watch=True)
    server.expire(zk.session_id)
    server.expire(zk.session_id)
    assert events == [deleted("/controller"), deleted("/ids/1"), children_changed("/ids")]
    assert own == []
    assert server.transactions[-1].operations == (Delete("/controller", 0), Delete("/ids/1", 0))
    assert other.get_many(["/controller", "/ids/1"]) == [None, None]
    with pytest.raises(SessionExpiredError):
        zk.get("/ids")
    with pytest.raises(SessionExpiredError):
        zk.multi([Create("/new")])


def test_a_disconnected_session_cannot_write_and_its_reads_wait(
    server: FakeZooKeeperServer,
) -> None:
    waits: list[None] = []
    zk = FakeZooKeeper(server)

    def wait() -> None:
        waits.append(None)
        if len(waits) == 3:
            server.reconnect(zk.session_id)

    zk.wait = wait
    server.disconnect(zk.session_id)
    with pytest.raises(ConnectionLossError):
        zk.multi([Create("/new")])
    assert server.transactions == []
    assert zk.get("/new") is None
    assert len(waits) == 3
    zk.wait_connected()
    apply(zk, Create("/new"))


def test_a_read_waits_for_another_thread_to_reconnect_the_session(
    server: FakeZooKeeperServer, zk: FakeZooKeeper
) -> None:
    server.disconnect(zk.session_id)
    reading = threading.Event()
    zk.hook = lambda call: reading.set()
    names: list[list[str] | None] = []
    reader = threading.Thread(target=lambda: names.append(zk.children("/")))
    reader.start()
    assert reading.wait(scaled(10.0))
    server.reconnect(zk.session_id)
    reader.join(scaled(10.0))
    assert names == [["epoch", "ids"]]


def test_a_disconnected_session_learns_of_its_expiry_when_it_reconnects(
    server: FakeZooKeeperServer, zk: FakeZooKeeper
) -> None:
    apply(zk, Create("/controller", ephemeral=True))
    server.disconnect(zk.session_id)
    server.expire(zk.session_id)
    assert "/controller" not in server.snapshot()
    with pytest.raises(ConnectionLossError):
        zk.multi([Create("/new")])
    zk.wait = lambda: server.reconnect(zk.session_id)
    with pytest.raises(SessionExpiredError):
        zk.get("/controller")


def test_watches_fire_at_the_reconnection_for_missed_changes(
    server: FakeZooKeeperServer,
) -> None:
    events: list[WatchEvent] = []
    zk, other = FakeZooKeeper(server, events.append), FakeZooKeeper(server)
    paths = ["/changed", "/deleted", "/recreated", "/untouched", "/created", "/absent", "/parent"]
    apply(other, *(Create(path) for path in paths if path not in {"/created", "/absent"}))
    apply(other, Create("/parent/child"))
    zk.get_many(paths, watch=True)
    for path in ("/parent", "/deleted", "/untouched"):
        zk.children(path, watch=True)
    server.disconnect(zk.session_id)
    apply(other, SetData("/changed", b"", 0), Delete("/deleted", 0), Delete("/recreated", 0))
    apply(other, Create("/recreated"), Create("/created"), Create("/absent"), Delete("/absent", 0))
    apply(other, Delete("/parent/child", 0))
    assert events == []
    server.reconnect(zk.session_id)
    server.reconnect(zk.session_id)
    assert events == [
        changed("/changed"),
        deleted("/deleted"),
        changed("/recreated"),
        created("/created"),
        children_changed("/parent"),
    ]
    events.clear()
    apply(other, *(SetData(path, b"", 0) for path in ("/untouched", "/parent", "/created")))
    apply(other, Create("/absent"), SetData("/changed", b"", 1))
    assert events == [changed("/untouched"), changed("/parent"), created("/absent")]


# --- hooks ----------------------------------------------------------------------------------------


def test_a_hook_is_called_at_every_moment_of_a_call(zk: FakeZooKeeper) -> None:
    calls: list[Call] = []
    zk.hook = calls.append
    zk.get_many(["/a", "/b", "/c"])
    zk.multi_many([[Create("/a"), Create("/b")], [Delete("/a", 0)]])
    paths, written = ("/a", "/b", "/c"), ("/a", "/b", "/a")
    assert calls == [
        Call(Moment.BEFORE, "get_many", paths),
        Call(Moment.BETWEEN, "get_many", paths),
        Call(Moment.BETWEEN, "get_many", paths),
        Call(Moment.AFTER, "get_many", paths),
        Call(Moment.BEFORE, "multi_many", written),
        Call(Moment.BETWEEN, "multi_many", written),
        Call(Moment.AFTER, "multi_many", written),
    ]


@pytest.mark.parametrize(
    ("moment", "applied"),
    [(Moment.BEFORE, []), (Moment.BETWEEN, ["/a"]), (Moment.AFTER, ["/a", "/b"])],
)
@pytest.mark.parametrize("error", [SimulatedCrashError(), ConnectionLossError()])
def test_a_caller_may_crash_or_lose_the_connection_at_every_moment_of_a_write(
    server: FakeZooKeeperServer,
    zk: FakeZooKeeper,
    moment: Moment,
    applied: list[str],
    error: Exception,
) -> None:
    zk.hook = raise_at(moment, error)
    with pytest.raises(type(error)):
        zk.multi_many([[Create("/a")], [Create("/b")]])
    assert [path for path in server.snapshot() if path in {"/a", "/b"}] == applied
    assert zk.multi([Create("/c")]) == Committed(("/c",))


def test_a_read_that_loses_the_connection_is_repeated(zk: FakeZooKeeper) -> None:
    for moment in Moment:
        zk.hook = raise_at(moment, ConnectionLossError())
        assert [node and node.data for node in zk.get_many(["/epoch", "/absent"])] == [b"0", None]
    zk.hook = raise_at(Moment.BEFORE, SimulatedCrashError(), number=2)
    zk.get("/epoch")
    with pytest.raises(SimulatedCrashError):
        zk.get("/epoch")


def test_a_read_that_never_gets_through_ends_with_the_session(zk: FakeZooKeeper) -> None:
    def lose(call: Call) -> None:
        raise ConnectionLossError

    zk.hook = lose
    with pytest.raises(SessionExpiredError):
        zk.get("/epoch")


def test_other_sessions_may_act_while_a_call_is_stalled(
    server: FakeZooKeeperServer,
) -> None:
    zombie, successor = FakeZooKeeper(server), FakeZooKeeper(server)
    apply(zombie, Create("/controller", ephemeral=True), SetData("/epoch", b"1", 0))

    def stall(call: Call) -> None:
        zombie.hook = None
        server.expire(zombie.session_id)
        apply(successor, Create("/controller", ephemeral=True), SetData("/epoch", b"2", 1))

    zombie.hook = stall
    with pytest.raises(SessionExpiredError):
        zombie.multi([Check("/epoch", 1), Create("/topic")])
    assert [transaction.session_id for transaction in server.transactions] == [1, 1, 2]


def test_the_nodes_of_a_bulk_read_are_read_at_different_moments(
    server: FakeZooKeeperServer, zk: FakeZooKeeper
) -> None:
    def hook(call: Call) -> None:
        if call.moment is Moment.BETWEEN:
            server.put("/epoch", b"1")

    zk.hook = hook
    nodes = zk.get_many(["/epoch", "/epoch"], watch=True)
    assert [node.data for node in nodes if node] == [b"0", b"1"]


# --- delivery -------------------------------------------------------------------------------------


def test_the_test_decides_when_events_are_delivered() -> None:
    scheduled: list[Callable[[], None]] = []
    server = FakeZooKeeperServer(deliver=scheduled.append)
    events: list[WatchEvent] = []
    zk = FakeZooKeeper(server, events.append)
    zk.get("/a", watch=True)
    zk.get("/b", watch=True)
    server.put("/b")
    server.put("/a")
    assert events == []
    for tell in scheduled:
        tell()
    assert events == [created("/b"), created("/a")]


def test_an_event_on_its_way_to_an_ended_session_is_lost() -> None:
    scheduled: list[Callable[[], None]] = []
    server = FakeZooKeeperServer(deliver=scheduled.append)
    events: list[WatchEvent] = []
    zk = FakeZooKeeper(server, events.append)
    zk.get("/a", watch=True)
    server.put("/a")
    zk.close()
    scheduled[0]()
    assert events == []


def test_events_come_in_the_sequence_of_changes_and_of_setting_watches(
    server: FakeZooKeeperServer,
) -> None:
    events: list[tuple[str, WatchEvent]] = []

    def recorder(name: str) -> Callable[[WatchEvent], None]:
        return lambda event: events.append((name, event))

    sessions = {name: FakeZooKeeper(server, recorder(name)) for name in ("one", "two", "three")}
    for name in ("two", "one", "two", "three"):
        sessions[name].get("/a", watch=True)
    sessions["one"].children("/", watch=True)
    sessions["one"].get("/b", watch=True)
    apply(sessions["three"], Create("/a"), Create("/b"))
    assert events == [
        ("two", created("/a")),
        ("one", created("/a")),
        ("three", created("/a")),
        ("one", children_changed("/")),
        ("one", created("/b")),
    ]


def test_a_watcher_may_read_and_write(server: FakeZooKeeperServer) -> None:
    events: list[WatchEvent] = []

    def on_watch(event: WatchEvent) -> None:
        events.append(event)
        if event == created("/a"):
            watcher.get("/b", watch=True)
            apply(watcher, Create("/b"))

    watcher = FakeZooKeeper(server, on_watch)
    other = FakeZooKeeper(server, events.append)
    watcher.get("/a", watch=True)
    other.get("/a", watch=True)
    server.put("/a")
    assert events == [created("/a"), created("/a"), created("/b")]


def test_a_connection_cut_twice_gets_all_events_since_the_first_cut(
    server: FakeZooKeeperServer,
) -> None:
    seen: list[WatchEvent] = []
    session = FakeZooKeeper(server, seen.append)
    server.put("/a")
    assert session.children("/a", watch=True) == []
    server.disconnect(session.session_id)
    server.put("/a/b")
    server.disconnect(session.session_id)
    server.reconnect(session.session_id)
    assert seen == [WatchEvent(WatchKind.CHILDREN, "/a")]
