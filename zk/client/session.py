"""Keeps a ZooKeeper session: when a session is over, opens the next one with a new client.

The sequence is Kafka's (``ZooKeeperClient.scheduleReinitialize``, ``KafkaController`` on
``beforeInitializingSession`` / ``afterInitializingSession``), on a thread of its own:
first the owner finishes with the old session, then a new one is opened, then the owner is notified.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager

from regent.config.threads import NamedThread
from regent.core.errors import RegentError, SessionExpiredError
from regent.core.timers import Timer
from regent.zk.client.channel import check_address
from regent.zk.client.operations import (
    ConnectionLossError,
    MultiResult,
    Operation,
    WatchEvent,
    Znode,
)
from regent.zk.client.orphaned_session import close_session
from regent.zk.client.requests import MAX_REQUEST_BYTES
from regent.zk.client.zookeeper_client import ConnectionState, SessionCredentials, ZooKeeperClient

logger = logging.getLogger(__name__)

EXPIRY_TIMEOUT_S = 30.0
_FIRST_BACKOFF_S = 0.1
_MAX_BACKOFF_S = 1.0


class SessionStatistics:
    """Counts state changes of the session and measures the duration of requests."""

    def __init__(self) -> None:
        self.connects = 0
        self.disconnects = 0
        self.expires = 0
        self.request_latency = Timer()

    def note(self, state: ConnectionState) -> None:
        """Count a change of state."""
        self.connects += state is ConnectionState.CONNECTED
        self.disconnects += state is ConnectionState.SUSPENDED
        self.expires += state is ConnectionState.LOST

    @contextmanager
    def request(self) -> Iterator[None]:
        """Measure the duration of a call."""
        started = time.monotonic()
        try:
            yield
        finally:
            self.request_latency.record((time.monotonic() - started) * 1000)


class SessionKeeper:
    """Implements ``zk.client.operations.ZooKeeper`` with the current session.

    Between sessions every call raises ``SessionExpiredError``. ``on_watch`` is called on an I/O
    thread and must only enqueue. The other callbacks run on the keeper's own thread, for the first
    session and every later one:

    * ``on_session_starting(client)``: connected; no other caller can use the session yet. An
      exception rejects the session: after ``SessionExpiredError`` the next one is opened, after
      any other ``RegentError`` no session is opened;
    * ``on_established(client)``: the session is in use;
    * ``on_expired()``: the session is over. The next one is opened when the returned future is
      done, or after 30 s.

    Raises ``ValueError`` for an invalid address.
    """

    def __init__(
        self,
        hosts: str,
        session_timeout_ms: int,
        *,
        on_watch: Callable[[WatchEvent], None],
        on_session_starting: Callable[[ZooKeeperClient], None] = lambda _: None,
        on_established: Callable[[ZooKeeperClient], None],
        on_expired: Callable[[], Future[None] | None],
    ) -> None:
        check_address(hosts)
        self._hosts = hosts
        self._session_timeout_ms = session_timeout_ms
        self._on_watch = on_watch
        self._on_session_starting = on_session_starting
        self._on_established = on_established
        self._on_expired = on_expired
        self._changed = threading.Condition()
        self._connecting: ZooKeeperClient | None = None  # not in use yet
        self._client: ZooKeeperClient | None = None
        self._predecessor: SessionCredentials | None = None
        self._newest_zxid = 0
        self._established = False
        self._closed = False
        self._failure: RegentError | None = None  # of the latest attempt to connect
        self._refusal: RegentError | None = None  # of a session that the owner rejected
        self.statistics = SessionStatistics()
        self._thread = NamedThread(self._run, "zookeeper-session")

    def start(self, timeout_s: float) -> None:
        """Open the first session; return when ``on_established`` has returned.

        Raises ``ConnectionLossError`` at the timeout, or the exception of ``on_session_starting``;
        the keeper is closed then.
        """
        self._thread.start()
        with self._changed:
            if self._changed.wait_for(lambda: self._established or self._closed, timeout_s):
                if self._refusal is not None:
                    raise self._refusal
                return
            failure = self._failure
        self.close()
        raise ConnectionLossError(
            f"no ZooKeeper session at {self._hosts} within {timeout_s:g} s"
            + (f": {failure}" if failure else "")
        )

    def close(self, timeout_s: float = 5.0) -> None:
        """Close the session; open no other."""
        with self._changed:
            self._closed = True
            client = self._connecting or self._client
            self._changed.notify_all()
        if client is not None:
            client.close(timeout_s)
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    @property
    def client(self) -> ZooKeeperClient:
        """The client of the current session; raises ``SessionExpiredError`` when there is none."""
        client = self._client
        if client is None:
            raise SessionExpiredError("there is no ZooKeeper session now")
        return client

    @property
    def newest_zxid(self) -> int:
        """The newest zxid in an answer of this or an earlier session; sends nothing."""
        client = self._client
        return max(self._newest_zxid, 0 if client is None else client.newest_zxid)

    @property
    def max_request_bytes(self) -> int:
        """See ``ZooKeeper.max_request_bytes``; also works between sessions."""
        return MAX_REQUEST_BYTES

    # ---- the current session --------------------------------------------------------------------

    @property
    def state(self) -> ConnectionState:
        """The state of the connection; LOST between sessions."""
        client = self._client
        return ConnectionState.LOST if client is None else client.state

    @property
    def session_id(self) -> int:
        """See ``ZooKeeper.session_id``."""
        return self.client.session_id

    def lease_valid(self) -> bool:
        """See ``ZooKeeperClient.lease_valid``; False between sessions."""
        client = self._client
        return client is not None and client.lease_valid()

    def get(self, path: str, *, watch: bool = False) -> Znode | None:
        """See ``ZooKeeper.get``."""
        with self.statistics.request():
            return self.client.get(path, watch=watch)

    def get_many(self, paths: Sequence[str], *, watch: bool = False) -> list[Znode | None]:
        """See ``ZooKeeper.get_many``."""
        with self.statistics.request():
            return self.client.get_many(paths, watch=watch)

    def children(self, path: str, *, watch: bool = False) -> list[str] | None:
        """See ``ZooKeeper.children``."""
        with self.statistics.request():
            return self.client.children(path, watch=watch)

    def children_many(self, paths: Sequence[str]) -> list[list[str] | None]:
        """See ``ZooKeeper.children_many``."""
        with self.statistics.request():
            return self.client.children_many(paths)

    def latest_zxid(self) -> int:
        """See ``ZooKeeper.latest_zxid``."""
        return self.client.latest_zxid()

    def multi(self, operations: Sequence[Operation]) -> MultiResult:
        """See ``ZooKeeper.multi``."""
        with self.statistics.request():
            return self.client.multi(operations)

    def multi_many(self, batches: Sequence[Sequence[Operation]]) -> list[MultiResult]:
        """See ``ZooKeeper.multi_many``."""
        with self.statistics.request():
            return self.client.multi_many(batches)

    def sync(self) -> None:
        """See ``ZooKeeper.sync``."""
        with self.statistics.request():
            self.client.sync()

    def require_write(self, path: str, zxid: int) -> None:
        """See ``ZooKeeperClient.require_write``; for the current session."""
        self.client.require_write(path, zxid)

    def wait_connected(self) -> None:
        """See ``ZooKeeper.wait_connected``."""
        self.client.wait_connected()

    def unwatch(self, paths: Sequence[str]) -> None:
        """See ``ZooKeeper.unwatch``."""
        self.client.unwatch(paths)

    # ---- the keeper's thread --------------------------------------------------------------------

    def _run(self) -> None:
        backoff_s = _FIRST_BACKOFF_S
        while not self._closed:
            client = self._open()
            if client is None:
                with self._changed:
                    self._changed.wait_for(lambda: self._closed, backoff_s)
                backoff_s = min(backoff_s * 1.5, _MAX_BACKOFF_S)
                continue
            backoff_s = _FIRST_BACKOFF_S
            self._establish(client)
            self._await_loss(client)
            if not self._closed:
                self._expire(client)

    def _open(self) -> ZooKeeperClient | None:
        """Try to open a session; None when that failed."""
        client = ZooKeeperClient(
            self._hosts,
            self._session_timeout_ms,
            on_watch=self._on_watch,
            on_state=self._on_state,
        )
        with self._changed:
            if self._closed:
                return None
            self._connecting = client
        try:
            client.start(self._session_timeout_ms / 1000)
            return client
        except RegentError as error:
            self._failure = error.with_traceback(None)
            client.abandon()
            return None

    def _establish(self, client: ZooKeeperClient) -> None:
        self._end_predecessor(client.credentials)
        if not self._is_wanted(client):
            return
        with self._changed:
            self._client = client
            self._connecting = None
            closed = self._closed
        if closed:
            client.close()
            return
        logger.info("ZooKeeper session %#x established", client.session_id)
        self._tell(lambda: self._on_established(client))
        with self._changed:
            self._established = True
            self._changed.notify_all()

    def _is_wanted(self, client: ZooKeeperClient) -> bool:
        """Whether the owner accepts the session; if not, it is closed."""
        try:
            self._on_session_starting(client)
        except SessionExpiredError as expired:
            logger.info("%s", expired)
        except RegentError as refusal:
            logger.error("ZooKeeper session %#x is not used: %s", client.session_id, refusal)
            with self._changed:
                self._refusal, self._closed = refusal.with_traceback(None), True
                self._changed.notify_all()
        except Exception:  # an error of the owner must not prevent the next session
            logger.exception("ZooKeeper session %#x cannot be used", client.session_id)
            with self._changed:
                self._changed.wait_for(lambda: self._closed, _MAX_BACKOFF_S)
        else:
            return True
        client.close()
        return False

    def _end_predecessor(self, credentials: SessionCredentials) -> None:
        """Close the previous session, because the server may still keep it.

        The client gives up a session after a session timeout without an answer. A server that was
        down keeps it, with its ephemeral nodes: the new ones could not be created.
        """
        predecessor, self._predecessor = self._predecessor, credentials
        if predecessor is None:
            return
        try:
            close_session(self._hosts, predecessor, self._session_timeout_ms / 1000)
        except ConnectionError as error:
            logger.warning("the previous session was not closed; it ends at its timeout: %s", error)

    def _await_loss(self, client: ZooKeeperClient) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or client.state is ConnectionState.LOST)

    def _expire(self, client: ZooKeeperClient) -> None:
        """Handle the end of a session."""
        logger.warning("ZooKeeper session %#x is over", client.session_id)
        with self._changed:
            self._newest_zxid = self.newest_zxid
            self._client = None
        client.abandon()
        finished: list[Future[None] | None] = []
        self._tell(lambda: finished.append(self._on_expired()))
        future = finished[0] if finished else None
        if future is None:
            return
        future.add_done_callback(lambda _: self._wake())
        with self._changed:
            done = self._changed.wait_for(lambda: future.done() or self._closed, EXPIRY_TIMEOUT_S)
        if not done:
            logger.error(
                "the end of session %#x was not handled in %g s: continuing",
                client.session_id,
                EXPIRY_TIMEOUT_S,
            )
        elif future.done() and not future.cancelled() and future.exception() is not None:
            logger.error(
                "handling the end of session %#x failed",
                client.session_id,
                exc_info=future.exception(),
            )

    def _tell(self, callback: Callable[[], None]) -> None:
        try:
            callback()
        except Exception:  # an error of the owner must not prevent the next session
            logger.exception("a callback of the session keeper failed")

    def _on_state(self, state: ConnectionState) -> None:
        self.statistics.note(state)
        self._wake()

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()
