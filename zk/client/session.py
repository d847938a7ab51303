"""Keeps a ZooKeeper session: when a session is over, opens the next one with a new client.

The sequence is Kafka's (``ZooKeeperClient.scheduleReinitialize``, ``KafkaController`` on
``beforeInitializingSession`` / ``afterInitializingSession``), on a thread of its own:
first the owner finishes with the old session, then a new one is opened, then the owner is notified.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future

from regent.config.threads import NamedThread
from regent.core.errors import RegentError, SessionExpiredError
from regent.zk.client.connection import ConnectionState, SessionCredentials
from regent.zk.client.operations import ConnectionLossError, WatchEvent
from regent.zk.client.orphaned_session import close_session
from regent.zk.client.zookeeper import ZooKeeper
from regent.zk.client.zookeeper_client import ZooKeeperClient, check_address

logger = logging.getLogger(__name__)

EXPIRY_TIMEOUT_S = 30.0
_FIRST_BACKOFF_S = 0.1
_MAX_BACKOFF_S = 1.0


class SessionKeeper(ZooKeeper):
    """Opens sessions, one after the other. Its operations use the present one.

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
        super().__init__()
        check_address(hosts)
        self._hosts = hosts
        self._session_timeout_ms = session_timeout_ms
        self._on_watch = on_watch
        self._on_session_starting = on_session_starting
        self._on_established = on_established
        self._on_expired = on_expired
        self._changed = threading.Condition()
        self._connecting: ZooKeeperClient | None = None  # not in use yet
        self._predecessor: SessionCredentials | None = None
        self._established = False
        self._closed = False
        self._failure: RegentError | None = None  # of the latest attempt to connect
        self._refusal: RegentError | None = None  # of a session that the owner rejected
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
        """The client of the present session; raises ``SessionExpiredError`` when there is none."""
        return self._current()

    @property
    def state(self) -> ConnectionState:
        """The state of the connection; LOST between sessions."""
        client = self._client
        return ConnectionState.LOST if client is None else client.state

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
        except (OSError, RuntimeError) as error:  # no descriptor, or no thread, is left
            self._failure = ConnectionLossError(f"cannot connect to ZooKeeper: {error}")
            logger.error("%s", self._failure)
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
            self._earlier_zxid = self.newest_zxid
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
