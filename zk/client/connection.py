"""kazoo's connection with a read timeout, watches that survive a reconnect, and a lease.

These two classes extend internals of kazoo 2.11. ``tests/zk/test_connection.py`` checks all three
features with a real server.
"""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Callable, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionDropped, SessionExpiredError
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.connection import ConnectionHandler
from kazoo.protocol.serialization import Connect, Watch
from kazoo.retry import KazooRetry

from regent.config.threads import NamedThread
from regent.zk.client.operations import ZkError
from regent.zk.client.requests import Exists, decode_stat, kazoo_log

if TYPE_CHECKING:
    from regent.zk.client.zookeeper_client import ZooKeeperClient

# The peer closed its side. Linux only; on other systems the next read detects it.
_POLLRDHUP = getattr(select, "POLLRDHUP", 0)
_HUNG_UP = select.POLLHUP | select.POLLERR | select.POLLNVAL | _POLLRDHUP


class ConnectionState(Enum):
    """The state of a session."""

    CONNECTED = "connected"
    SUSPENDED = "suspended"  # no connection: the session may have expired or not
    LOST = "lost"  # final


class SessionCredentials(NamedTuple):
    """Attaches a connection to a session. A client that has them can also close the session."""

    session_id: int
    password: bytes

    def __repr__(self) -> str:
        return f"SessionCredentials({self.session_id:#x}, ...)"


class RequiredWrite(NamedTuple):
    """A write that the data of every server must include: of ``path``, at ``zxid`` or later."""

    path: str
    zxid: int


class PollHandler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo is untyped
    """kazoo's threading handler, with one ``poll`` per wait and a time limit for silence.

    ``connect_timeout_s`` limits the connect, and then the wait for the first answer. kazoo itself
    checks only whether *no* socket was ready after a ping; so a client with requests to send never
    notices that the server stopped answering. kazoo's callback threads are not used: the I/O thread
    completes replies and watches, by code that only enqueues.
    """

    def __init__(self, connect_timeout_s: float) -> None:
        super().__init__()
        self.silence_limit_s = connect_timeout_s
        self._connect_timeout_s = connect_timeout_s
        self._server: Any = None
        self._heard_at = time.monotonic()
        self._abandoned = False

    def start(self) -> None:
        """Start no threads."""
        self._running = True

    def stop(self) -> None:
        """Stop no threads."""
        self._running = False

    def spawn(self, func: Callable[..., None], *args: Any, **kwargs: Any) -> threading.Thread:
        """Start the I/O thread."""
        thread = NamedThread(func, "zookeeper-io", args, kwargs)
        thread.start()
        return thread

    def create_connection(self, *args: Any, timeout: float, **kwargs: Any) -> Any:
        """Connect to a server; the connect counts as received data."""
        timeout = min(timeout, self._connect_timeout_s)
        self.silence_limit_s = self._connect_timeout_s  # until the session is granted
        server = super().create_connection(*args, timeout=timeout, **kwargs)
        self._server = server
        self._heard_at = time.monotonic()
        return server

    def select(
        self,
        readers: Sequence[Any],
        writers: Sequence[Any],
        _errors: Sequence[Any],
        timeout: float | None = None,
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """Wait like ``select.select``; raise ``ConnectionDropped`` if no byte came for too long."""
        if self._abandoned:
            raise ConnectionDropped("abandoned")
        poller = select.poll()
        sockets = {}
        for sock in readers:
            poller.register(sock, select.POLLIN | _POLLRDHUP)
            sockets[sock.fileno()] = sock
        for sock in writers:
            poller.register(sock, select.POLLOUT)
            sockets[sock.fileno()] = sock
        silent_until = self._heard_at + self.silence_limit_s
        wait_s = silent_until - time.monotonic()
        if timeout is not None:
            wait_s = min(wait_s, timeout)
        ready = [(sockets[fd], flags) for fd, flags in poller.poll(max(wait_s, 0.0) * 1000)]
        for sock, flags in ready:
            if sock is self._server:
                # Old bytes of a peer that has closed the connection do not renew the deadline.
                if flags & select.POLLIN and not flags & _HUNG_UP:
                    self._heard_at = time.monotonic()
                break
        else:
            if time.monotonic() >= silent_until:
                raise ConnectionDropped(f"no byte received for {self.silence_limit_s:.1f} s")
        ready_sockets = [sock for sock, _ in ready]
        return (
            [sock for sock in ready_sockets if sock in readers],
            [sock for sock in ready_sockets if sock in writers],
            [],
        )

    def drop(self) -> None:
        """Cut the current connection, from any thread; kazoo connects again."""
        try:
            self._server.shutdown(2)
        except (AttributeError, OSError):
            kazoo_log.debug("no connection to drop")

    def abandon(self) -> None:
        """Cut the current connection and every later one, from any thread."""
        self._abandoned = True
        self.drop()


class ZkConnection(ConnectionHandler):  # type: ignore[misc]  # kazoo is untyped
    """kazoo's connection, with re-armed watches ahead of all requests, and a lease.

    The lease starts when a request that was answered was *sent*: the server restarts the session
    timeout when the request arrives, which is later. Only one request at a time is timed. That is
    enough, because pings are requests too.
    """

    def __init__(self, kazoo: KazooClient, retry: KazooRetry, owner: ZooKeeperClient) -> None:
        super().__init__(kazoo, retry, logger=kazoo_log)
        self._owner = owner
        self._timed: tuple[int | None, float] | None = None
        self.lease_start = float("-inf")
        """The latest ``time.monotonic()`` at which the session is known to have existed."""
        self.newest_zxid = 0
        """The newest zxid in any answer of a server, also in answers to pings."""
        self.required_write: RequiredWrite | None = None
        """If a server's data lack this write, the session ends before any watch can fire."""

    def _connect(self, host: str, hostip: str, port: int) -> Any:
        self._timed = None
        timeouts = super()._connect(host, hostip, port)
        if not self._has_required_write(timeouts[1] / 1000):
            self._owner.data_set_back()
            raise SessionExpiredError
        for request, reply in self._owner.requests_on_connect():
            self._xid += 1
            self._submit(request, timeouts[1] / 1000, self._xid)
            self.client._pending.append((request, reply, self._xid))
        self._owner.connected()
        return timeouts

    def _has_required_write(self, timeout_s: float) -> bool:
        required = self.required_write
        if required is None:
            return True
        self._xid += 1
        self._submit(Exists(required.path, watch=False), timeout_s, self._xid)
        header, buffer, offset = self._read_header(timeout_s)
        if header.err:
            return bool(header.err != ZkError.NO_NODE)
        return decode_stat(buffer, offset).mzxid >= required.zxid

    def _invoke(self, timeout: float, request: Any, xid: int | None = None) -> Any:
        answer = super()._invoke(timeout, request, xid)
        if isinstance(request, Connect):
            session = answer[0]
            if session.time_out <= 0:
                self._owner.session_refused()
                return answer
            if self._timed is not None:
                self.lease_start = self._timed[1]
                self._timed = None
            self.handler.silence_limit_s = session.time_out / 1000 * 2 / 3
            credentials = SessionCredentials(session.session_id, session.passwd)
            self._owner.session_granted(credentials, session.time_out)
        return answer

    def _submit(self, request: Any, timeout: float, xid: int | None = None) -> None:
        if self._timed is None:
            self._timed = (xid, time.monotonic())
        super()._submit(request, timeout, xid)

    def _read_header(self, timeout: float) -> Any:
        answer = super()._read_header(timeout)
        self.newest_zxid = max(self.newest_zxid, answer[0].zxid)
        if self._timed is not None and answer[0].xid == self._timed[0]:
            self.lease_start = self._timed[1]
            self._timed = None
        return answer

    def _read_watch_event(self, buffer: bytes, offset: int) -> None:
        watch, _ = Watch.deserialize(buffer, offset)
        self._owner.watch_fired(watch.type, watch.path)
