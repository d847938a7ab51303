from __future__ import annotations

import errno
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from typing import Any

import pytest

from regent.cluster.embedded_zookeeper import EmbeddedZooKeeper
from regent.core.errors import ForeignDirectoryError, SessionExpiredError
from regent.testing.waits import eventually, scaled
from regent.zk.client.connection import ConnectionState, PollHandler
from regent.zk.client.operations import ConnectionLossError, Create, SetData, WatchEvent
from regent.zk.client.orphaned_session import close_session
from regent.zk.client.session import SessionKeeper
from regent.zk.client.zookeeper import ZooKeeper
from regent.zk.client.zookeeper_client import ZooKeeperClient
from tests.support.tcp_proxy import TcpProxy

pytestmark = pytest.mark.zookeeper


class Owner:
    """The owner of a kept session: stores its notifications in sequence."""

    def __init__(
        self,
        address: str,
        timeout_ms: int,
        expire: Callable[[], Future[None] | None] = lambda: None,
    ) -> None:
        self.notified: queue.Queue[tuple[str, object]] = queue.Queue()
        self.events: queue.Queue[WatchEvent] = queue.Queue()
        self._expire = expire
        self.keeper = SessionKeeper(
            address,
            timeout_ms,
            on_watch=self.events.put,
            on_session_starting=self._starting,
            on_established=lambda client: self.notified.put(("established", client.session_id)),
            on_expired=self._expired,
        )

    def next(self) -> tuple[str, object]:
        return self.notified.get(timeout=scaled(5.0))

    def _starting(self, client: ZooKeeperClient) -> None:
        self.notified.put(("starting", client.session_id))
        self.notified.put(("usable", self._usable()))

    def _expired(self) -> Future[None] | None:
        self.notified.put(("expired", None))
        self.notified.put(("usable", self._usable()))
        return self._expire()

    def _usable(self) -> bool:
        try:
            return self.keeper.children("/") is not None
        except SessionExpiredError:
            return False


class Keep:
    """Starts keepers that are closed after the test."""

    def __init__(self, stack: ExitStack, address: str) -> None:
        self._stack = stack
        self._address = address

    def __call__(
        self,
        address: str | None = None,
        timeout_ms: int = 6000,
        expire: Callable[[], Future[None] | None] = lambda: None,
    ) -> Owner:
        owner = Owner(address or self._address, timeout_ms, expire)
        self._stack.callback(owner.keeper.close)
        owner.keeper.start(timeout_s=scaled(10.0))
        assert owner.next() == ("starting", owner.keeper.session_id)
        assert owner.next() == ("usable", False)
        assert owner.next() == ("established", owner.keeper.session_id)
        return owner


@pytest.fixture
def keep(zookeeper_address: str) -> Iterator[Keep]:
    with ExitStack() as stack:
        yield Keep(stack, zookeeper_address)


@pytest.fixture
def observer(zookeeper_address: str) -> Iterator[ZooKeeperClient]:
    client = ZooKeeperClient(zookeeper_address, 6000, on_watch=lambda _: None)
    client.start(timeout_s=scaled(10.0))
    yield client
    client.close()


def test_an_expired_session_is_followed_by_another(
    keep: Keep, observer: ZooKeeperClient, zookeeper_address: str
) -> None:
    """ZK-26: each end and each start of a session is notified once."""
    owner = keep()
    keeper: ZooKeeper = owner.keeper
    first = keeper.session_id
    keeper.multi([Create("/e", ephemeral=True)])
    old_client = owner.keeper.client

    assert close_session(zookeeper_address, old_client.credentials, timeout_s=scaled(5.0))

    notified = [owner.next() for _ in range(5)]
    second = keeper.session_id
    assert second != first
    assert notified == [
        ("expired", None),
        ("usable", False),
        ("starting", second),
        ("usable", False),
        ("established", second),
    ]
    assert observer.get("/e") is None
    keeper.multi([Create("/e", ephemeral=True)])
    assert keeper.get("/e", watch=True) == observer.get("/e")
    observer.multi([SetData("/e", b"", 0)])
    assert owner.events.get(timeout=scaled(5.0)).path == "/e"
    with pytest.raises(SessionExpiredError):
        old_client.get("/e")


def test_the_next_session_waits_until_the_end_of_the_last_is_handled(
    keep: Keep, zookeeper_address: str
) -> None:
    handled: Future[None] = Future()
    owner = keep(expire=lambda: handled)

    close_session(zookeeper_address, owner.keeper.client.credentials, timeout_s=scaled(5.0))

    assert owner.next() == ("expired", None)
    assert owner.next() == ("usable", False)
    with pytest.raises(queue.Empty):
        owner.notified.get(timeout=0.3)
    assert owner.keeper.state is ConnectionState.LOST
    handled.set_result(None)
    assert owner.next()[0] == "starting"


def test_an_owner_whose_callback_fails_gets_a_session(
    keep: Keep, zookeeper_address: str, caplog: pytest.LogCaptureFixture
) -> None:
    """ZK-28."""

    def fail() -> Future[None]:
        raise ZeroDivisionError

    owner = keep(expire=fail)

    close_session(zookeeper_address, owner.keeper.client.credentials, timeout_s=scaled(5.0))

    assert [owner.next()[0] for _ in range(5)][-1] == "established"
    assert "a callback of the session keeper failed" in caplog.text


def test_a_session_given_up_without_connection_is_closed_by_its_successor(
    keep: Keep,
    observer: ZooKeeperClient,
    zookeeper_server: EmbeddedZooKeeper,
    zookeeper_address: str,
) -> None:
    chroot = zookeeper_address[zookeeper_address.index("/") :]
    with TcpProxy(zookeeper_server.address) as proxy:
        owner = keep(proxy.address + chroot, timeout_ms=min(round(scaled(1000)), 20_000))
        owner.keeper.multi([Create("/e", ephemeral=True)])
        credentials = owner.keeper.client.credentials
        # Keeps the session alive on the server, although the client cannot reach it.
        twin = ZooKeeperClient(
            zookeeper_address, 60_000, on_watch=lambda _: None, credentials=credentials
        )
        twin.start(timeout_s=scaled(5.0))

        proxy.cut()
        assert owner.next() == ("expired", None)
        assert observer.get("/e") is not None
        proxy.restore()

        assert owner.next() == ("usable", False)
        assert owner.next() == ("starting", owner.keeper.session_id)
        assert owner.keeper.session_id != credentials.session_id
        assert observer.get("/e") is None
        twin.abandon()
        owner.keeper.close()


def test_the_keeper_retries_until_the_server_is_back(
    keep: Keep, zookeeper_server: EmbeddedZooKeeper, zookeeper_address: str
) -> None:
    chroot = zookeeper_address[zookeeper_address.index("/") :]
    with TcpProxy(zookeeper_server.address) as proxy:
        timeout_ms = min(round(scaled(400)), 20_000)
        owner = keep(proxy.address + chroot, timeout_ms=timeout_ms)

        proxy.cut()
        assert owner.next() == ("expired", None)
        assert owner.next() == ("usable", False)
        with pytest.raises(queue.Empty):  # more than one attempt
            owner.notified.get(timeout=2.5 * timeout_ms / 1000)
        proxy.restore()

        assert owner.next()[0] == "starting"
        owner.keeper.close()


@pytest.mark.parametrize(
    ("step", "error"),
    [
        ("create_socket_pair", OSError(errno.EMFILE, "no descriptor is left")),
        ("spawn", RuntimeError("can't start new thread")),
    ],
)
def test_a_session_that_could_not_be_opened_for_want_of_something_is_opened_later(
    keep: Keep,
    zookeeper_address: str,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    error: Exception,
) -> None:
    """The thread of the keeper must survive: nobody else opens a session."""
    owner = keep()
    failures = [error, error]
    original = getattr(PollHandler, step)

    def fails_twice(*arguments: Any, **options: Any) -> Any:
        if failures:
            raise failures.pop()
        return original(*arguments, **options)

    monkeypatch.setattr(PollHandler, step, fails_twice)
    credentials = owner.keeper.client.credentials
    assert close_session(zookeeper_address, credentials, timeout_s=scaled(5.0))
    assert [owner.next()[0] for _ in range(5)][-1] == "established"
    assert not failures
    assert owner.keeper.children("/") is not None


def test_closing_ends_the_session_without_further_notifications(
    keep: Keep, observer: ZooKeeperClient
) -> None:
    owner = keep()
    owner.keeper.multi([Create("/e", ephemeral=True)])

    owner.keeper.close()

    assert observer.get("/e") is None
    assert owner.notified.empty()
    assert not any(thread.name == "zookeeper-session" for thread in threading.enumerate())
    with pytest.raises(SessionExpiredError):
        owner.keeper.get("/")


def test_a_keeper_closes_while_the_end_of_a_session_is_being_handled(
    keep: Keep, zookeeper_address: str
) -> None:
    owner = keep(expire=Future)
    close_session(zookeeper_address, owner.keeper.client.credentials, timeout_s=scaled(5.0))
    assert owner.next() == ("expired", None)

    owner.keeper.close()

    assert not any(thread.name == "zookeeper-session" for thread in threading.enumerate())


def test_a_keeper_without_a_server_raises_and_is_closed(
    zookeeper_server: EmbeddedZooKeeper,
) -> None:
    with TcpProxy(zookeeper_server.address) as proxy:
        proxy.cut()
        owner = Owner(proxy.address, 6000)

        with pytest.raises(ConnectionLossError, match=f"no ZooKeeper session at {proxy.address}"):
            owner.keeper.start(timeout_s=0.3)

    assert not any(thread.name == "zookeeper-session" for thread in threading.enumerate())
    assert owner.notified.empty()


def test_a_keeper_learns_the_newest_zxid_from_pings(
    keep: Keep, observer: ZooKeeperClient, zookeeper_address: str
) -> None:
    owner = keep(timeout_ms=1500)  # pings come twice a second
    observer.multi([Create("/e")])
    node = observer.get("/e")
    assert node is not None
    created = node.stat.czxid
    eventually(lambda: owner.keeper.newest_zxid >= created, "a ping returned it")
    close_session(zookeeper_address, owner.keeper.client.credentials, timeout_s=scaled(5.0))
    assert owner.next() == ("expired", None)
    assert owner.keeper.newest_zxid >= created, "it remembers"
    assert observer.latest_zxid() > created


def test_a_keeper_refuses_an_invalid_address() -> None:
    with pytest.raises(ValueError, match="expected host:port"):
        Owner("host:port", 6000)


def test_a_session_is_closed_from_outside_once(
    keep: Keep, observer: ZooKeeperClient, zookeeper_address: str
) -> None:
    owner = keep()
    owner.keeper.multi([Create("/e", ephemeral=True)])
    credentials = owner.keeper.client.credentials

    assert close_session(zookeeper_address, credentials, timeout_s=scaled(5.0))
    assert observer.get("/e") is None
    assert not close_session(zookeeper_address, credentials, timeout_s=scaled(5.0))


def test_a_session_is_closed_through_the_first_server_that_answers(
    keep: Keep, observer: ZooKeeperClient, zookeeper_address: str
) -> None:
    owner = keep()
    owner.keeper.multi([Create("/e", ephemeral=True)])
    credentials = owner.keeper.client.credentials

    with pytest.raises(ConnectionError, match=r"127\.0\.0\.1:1,\[::1\]:1/chroot"):
        close_session("127.0.0.1:1,[::1]:1/chroot", credentials, timeout_s=0.1)
    assert close_session(
        f"127.0.0.1:1,{zookeeper_address}/chroot", credentials, timeout_s=scaled(5.0)
    )
    assert observer.get("/e") is None


def test_a_session_that_the_owner_refuses_is_the_last_one(
    zookeeper_address: str, observer: ZooKeeperClient
) -> None:
    sessions: list[int] = []

    def refuse(client: ZooKeeperClient) -> None:
        sessions.append(client.session_id)
        client.multi([Create("/e", ephemeral=True)])
        raise ForeignDirectoryError("these are the data of another cluster")

    notified: list[object] = []
    keeper = SessionKeeper(
        zookeeper_address,
        6000,
        on_watch=lambda _: None,
        on_session_starting=refuse,
        on_established=notified.append,
        on_expired=lambda: notified.append("expired"),
    )
    with pytest.raises(ForeignDirectoryError, match="another cluster"):
        keeper.start(timeout_s=scaled(10.0))
    keeper.close()
    assert len(sessions) == 1
    assert notified == []
    assert observer.get("/e") is None, "the session is closed"


def test_a_session_that_expires_during_the_owners_check_is_followed_by_another(
    zookeeper_address: str,
) -> None:
    sessions: list[int] = []

    def lose_the_first(client: ZooKeeperClient) -> None:
        sessions.append(client.session_id)
        if len(sessions) == 1:
            assert close_session(zookeeper_address, client.credentials, timeout_s=scaled(5.0))
            client.get("/")
            raise SessionExpiredError("it is over")

    keeper = SessionKeeper(
        zookeeper_address,
        6000,
        on_watch=lambda _: None,
        on_session_starting=lose_the_first,
        on_established=lambda _: None,
        on_expired=lambda: None,
    )
    keeper.start(timeout_s=scaled(10.0))
    assert keeper.session_id == sessions[1] != sessions[0]
    keeper.close()
