"""One ZooKeeper session: its state, its requests and answers, and re-armed watches.

kazoo does the socket, the handshake, pings and reconnects. The state of the session is kept here,
as in Java's ``org.apache.zookeeper.ClientCnxn``:

    SUSPENDED ──► CONNECTED ──► SUSPENDED   connection dropped; a reconnect arms the watches again
        │             │
        └──────┬──────┘   the session expired, or no connection for a session timeout,
               ▼          or the owner closed it
             LOST         final: calls blocked here return, kazoo never connects again
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from enum import IntEnum
from functools import partial

from kazoo import exceptions as kazoo_errors
from kazoo.client import KazooClient
from kazoo.hosts import collect_hosts
from kazoo.protocol.states import KazooState
from kazoo.retry import KazooRetry

from regent.config.threads import NamedTimer
from regent.core.errors import SessionExpiredError
from regent.zk.client.connection import (
    ConnectionState,
    PollHandler,
    RequiredWrite,
    SessionCredentials,
    ZkConnection,
)
from regent.zk.client.login import Acl, login_at
from regent.zk.client.operations import (
    ConnectionLossError,
    Create,
    Refused,
    WatchEvent,
    WatchKind,
    ZkError,
)
from regent.zk.client.requests import (
    Answer,
    ArmedWatches,
    CloseSession,
    Multi,
    RequestRefusedError,
    SetAcl,
    UnimplementedByServerError,
    ZkReply,
    ZkRequest,
    absolute,
    error_name,
    kazoo_log,
    set_watches_requests,
)
from regent.zk.client.zookeeper import ZooKeeper

logger = logging.getLogger(__name__)

# kazoo writes one byte per request into a socket pair, which holds 277 bytes.
MAX_IN_FLIGHT = 64
REQUEST_TIMEOUT_S = 30.0

_CONNECTION_LOSS = (
    kazoo_errors.ConnectionLoss,
    kazoo_errors.OperationTimeoutError,
    kazoo_errors.SessionMovedError,
    kazoo_errors.ThrottledOpError,
)
_SESSION_OVER = (kazoo_errors.SessionExpiredError, kazoo_errors.AuthFailedError)


class EventType(IntEnum):
    """The types of a watch event on the wire."""

    CREATED = 1
    DELETED = 2
    CHANGED = 3
    CHILDREN = 4


_KINDS = {
    EventType.CREATED: WatchKind.CREATED,
    EventType.DELETED: WatchKind.DELETED,
    EventType.CHANGED: WatchKind.CHANGED,
    EventType.CHILDREN: WatchKind.CHILDREN,
}


class WatchRegistry:
    """The watches of one session, by absolute path. Safe to use from any thread.

    They are one-shot, and the server forgets them when the connection drops. Java's client keeps
    the same three lists (``ZKWatchManager``), and sends them with SetWatches after a reconnect.

    A watch must be added before its event can arrive: when the answer of the read that arms it is
    received on the I/O thread, or before SetWatches is sent.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._data: set[str] = set()  # on nodes that exist; disjoint from _exist
        self._exist: set[str] = set()  # on nodes that do not exist
        self._child: set[str] = set()

    def add(
        self, *, data: Iterable[str] = (), exist: Iterable[str] = (), child: Iterable[str] = ()
    ) -> None:
        """Remember watches."""
        with self._lock:
            for path in data:
                self._data.add(path)
                self._exist.discard(path)
            for path in exist:
                self._exist.add(path)
                self._data.discard(path)
            self._child.update(child)

    def discard(self, paths: Iterable[str]) -> list[str]:
        """Forget every watch on these paths; return the paths that had any."""
        with self._lock:
            tables = self._data, self._exist, self._child
            armed = [path for path in paths if any(path in table for table in tables)]
            for table in tables:
                table.difference_update(armed)
        return armed

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._data.clear()
            self._exist.clear()
            self._child.clear()

    def fire(self, event_type: int, path: str) -> WatchKind | None:
        """Remove the watches that an event fires; None when there were none.

        A deletion fires the data watch and the child watch of the node with one event, as the
        server sends it. SetWatches may cause a second event, which finds no watch.
        """
        try:
            kind = _KINDS[EventType(event_type)]
        except ValueError:
            return None
        tables = {
            WatchKind.CREATED: (self._data, self._exist),
            WatchKind.CHANGED: (self._data, self._exist),
            WatchKind.DELETED: (self._data, self._exist, self._child),
            WatchKind.CHILDREN: (self._child,),
        }[kind]
        fired = False
        with self._lock:
            for table in tables:
                if path in table:
                    table.discard(path)
                    fired = True
        return kind if fired else None

    def armed(self) -> ArmedWatches:
        """Return all watches."""
        with self._lock:
            return ArmedWatches(sorted(self._data), sorted(self._exist), sorted(self._child))


def check_address(hosts: str) -> None:
    """Raise ``ValueError`` for an invalid address."""
    split_address(hosts)


def split_address(hosts: str) -> tuple[frozenset[tuple[str, int]], str]:
    """Return the servers and the chroot of an address, or "" without one; see ``check_address``."""
    try:
        servers, chroot = collect_hosts(hosts)
    except ValueError as error:
        raise ValueError(
            f"ZooKeeper address {hosts!r}: expected host:port[,host:port...][/chroot]"
        ) from error
    return frozenset(servers), (chroot or "").rstrip("/")


class ZooKeeperClient(ZooKeeper):
    """One session, until it is lost, which is final.

    ``hosts`` is ``host:port[,host:port...][/chroot]``; with ``credentials`` the client attaches to
    an existing session. ``on_watch`` and ``on_state`` are called on the I/O thread (``on_state``
    also on a timer's): they must only enqueue, and must not call the client. ``on_state`` gets
    every change from the first CONNECTED on, until ``close`` or ``abandon``.

    Raises ``ValueError`` for an invalid address.
    """

    def __init__(
        self,
        hosts: str,
        session_timeout_ms: int,
        *,
        on_watch: Callable[[WatchEvent], None],
        on_state: Callable[[ConnectionState], None] | None = None,
        credentials: SessionCredentials | None = None,
    ) -> None:
        super().__init__()
        self._client = self
        check_address(hosts)
        self._hosts = hosts
        self._on_watch = on_watch
        self._on_state = on_state
        self._credentials = credentials
        self.login = login_at(hosts)
        """Who this client is to ZooKeeper; None: nobody."""
        self._timeout_ms = session_timeout_ms
        self.watches = WatchRegistry()
        self.has_multi_read = self.has_set_watches = True  # until a server does not implement it
        self.state = ConnectionState.SUSPENDED
        self._end = ""  # why the session is LOST
        self._changed = threading.Condition()
        self._release = threading.Lock()
        self._outstanding: set[ZkReply] = set()
        self._window = threading.BoundedSemaphore(MAX_IN_FLIGHT)
        self._suspension: NamedTimer | None = None
        # The newest zxid when the connection dropped. Kept until all watches are armed again.
        self._rearm_zxid: int | None = None
        timeout_s = session_timeout_ms / 1000
        retry = KazooRetry(max_tries=-1, delay=0.1, backoff=1.5, max_jitter=0.4, max_delay=1.0)
        self._handler = PollHandler(_connect_timeout_s(timeout_s, hosts.count(",") + 1))
        self._kazoo = KazooClient(
            hosts,
            timeout=timeout_s,
            client_id=credentials,
            auth_data=() if self.login is None else (self.login.auth_data,),
            handler=self._handler,
            connection_retry=retry,
            logger=kazoo_log,
        )
        self.chroot: str = self._kazoo.chroot
        self._connection = ZkConnection(self._kazoo, self._kazoo._conn_retry.copy(), self)
        self._kazoo._connection = self._connection
        self._kazoo.add_listener(self._kazoo_state_changed)

    def start(self, timeout_s: float, *, create_chroot: bool = True) -> None:
        """Connect, and create the chroot if it does not exist.

        Raises ``ConnectionLossError`` when no server answers in time, and ``SessionExpiredError``
        when the session to attach to is over. The client cannot be used after that.
        """
        self._connect(timeout_s)
        if create_chroot and self.chroot and self.get("/") is None:
            self._create_chroot()

    def _connect(self, timeout_s: float) -> None:
        self._kazoo.start_async()
        with self._changed:
            self._changed.wait_for(lambda: self.state is not ConnectionState.SUSPENDED, timeout_s)
            state = self.state
        if state is ConnectionState.SUSPENDED:
            self.abandon()
            raise ConnectionLossError(
                f"no ZooKeeper server answered at {self._hosts} within {timeout_s:g} s"
            )
        if state is ConnectionState.LOST:
            self.abandon()
            raise SessionExpiredError(self._end)

    def _create_chroot(self) -> None:
        names = self.chroot.strip("/").split("/")
        parents = ["/" + "/".join(names[: depth + 1]) for depth in range(len(names))]
        for parent in parents:
            multi = Multi([Create(parent)], "", self.login)
            answer = self.receive(self.send(multi))
            result = None if answer is None else multi.decode(answer, chroot="")
            if isinstance(result, Refused) and result.error is not ZkError.NODE_EXISTS:
                raise RequestRefusedError(f"cannot create {parent}: {result.error.name}")

    def close(self, timeout_s: float = 5.0) -> bool:
        """End the session, which deletes its ephemeral nodes; True when the server confirmed it."""
        self._on_state = None
        confirmed = False
        if self.state is ConnectionState.CONNECTED:
            reply = ZkReply()
            self._kazoo._stopped.set()
            self._kazoo._call(CloseSession(), reply)
            try:
                reply.result(timeout_s)
                confirmed = True
            except (kazoo_errors.KazooException, TimeoutError) as error:
                logger.warning("the session was not closed; it ends at its timeout: %r", error)
        self.abandon()
        return confirmed

    def abandon(self) -> None:
        """Drop the connection without closing the session, which ends at its timeout.

        Calls blocked in this client raise ``SessionExpiredError`` at once.
        """
        self._on_state = None
        self._lose("abandoned by its owner")
        self._kazoo._stopped.set()  # set it again: a concurrent start clears it
        with self._release:
            if self._connection.connection_stopped.wait(1.0):
                self._kazoo._safe_close()
                self._kazoo.close()

    def set_acls(self, acls: Mapping[str, Acl]) -> None:
        """Change the ACLs of znodes; one that does not exist any more is left out.

        Raises ``RequestRefusedError`` when ZooKeeper refuses the login.
        """
        sent = [
            self.send(SetAcl(absolute(self.chroot, path), acl, self.login))
            for path, acl in acls.items()
        ]
        for reply in sent:
            self.receive(reply)

    def lease_valid(self) -> bool:
        """Whether the server confirmed the session within the last 2/3 of its timeout.

        False: the session may soon expire, although ``state`` is CONNECTED. The caller must not
        send decisions then.
        """
        age_s = time.monotonic() - self._connection.lease_start
        return self.state is not ConnectionState.LOST and age_s * 1000 < self._timeout_ms * 2 / 3

    @property
    def credentials(self) -> SessionCredentials:
        """The session's credentials, also after its end.

        Raises ``SessionExpiredError`` when there never was a session.
        """
        if self._credentials is None:
            raise SessionExpiredError("there is no ZooKeeper session yet")
        return self._credentials

    @property
    def received_zxid(self) -> int:
        """The newest zxid in any answer of a server; 0 before the first."""
        return self._connection.newest_zxid

    @property
    def answered_zxid(self) -> int:
        """The zxid in the latest answer; older than others when a server has older data."""
        return int(self._kazoo.last_zxid)

    def require_write(self, path: str, zxid: int) -> None:
        """End the session instead of continuing it on data that lack a write of a node.

        ``zxid`` is that of the write, or an earlier one. Needed when an operator restores older
        data of an ensemble: the session may exist in those data too, and so would continue.
        """
        self._connection.required_write = RequiredWrite(absolute(self.chroot, path), zxid)

    def wait_until_connected(self) -> None:
        """Return when connected; raise ``SessionExpiredError`` when LOST."""
        with self._changed:
            while self.state is ConnectionState.SUSPENDED:
                self._changed.wait(1.0)
            if self.state is ConnectionState.LOST:
                raise SessionExpiredError(self._end)

    def pause(self, timeout_s: float) -> None:
        """Wait until the state changes, or until the timeout."""
        with self._changed:
            self._changed.wait(timeout_s)

    # ---- requests -------------------------------------------------------------------------------

    def send(
        self, request: ZkRequest, on_answer: Callable[[Answer | None], None] | None = None
    ) -> ZkReply:
        """Send a request; wait first while too many are in flight.

        ``on_answer`` runs on the I/O thread. Raises ``SessionExpiredError``.
        """
        if not self._window.acquire(timeout=REQUEST_TIMEOUT_S):
            raise ConnectionLossError(f"ZooKeeper did not answer {MAX_IN_FLIGHT} requests")
        reply = ZkReply(on_answer)
        with self._changed:
            if self.state is ConnectionState.LOST:
                self._window.release()
                raise SessionExpiredError(self._end)
            self._outstanding.add(reply)
        reply.add_done_callback(self._settled)
        self._kazoo._call(request, reply)
        return reply

    def receive(self, reply: ZkReply) -> Answer | None:
        """Wait for an answer; None means that the node is absent.

        Raises ``ConnectionLossError``, ``SessionExpiredError``, ``UnimplementedByServerError``,
        ``RequestRefusedError``.
        """
        try:
            # Not raised: its traceback would keep the frames of all callers, and they the reply.
            error = reply.exception(REQUEST_TIMEOUT_S)
        except TimeoutError as late:
            self._handler.drop()
            raise ConnectionLossError(
                f"no answer from ZooKeeper in {REQUEST_TIMEOUT_S:g} s"
            ) from late
        if error is None:
            return reply.result()
        if isinstance(error, kazoo_errors.NoNodeError):
            return None
        raise self._failure(error) from error

    def _failure(self, error: BaseException) -> BaseException:
        if isinstance(error, _CONNECTION_LOSS):
            return ConnectionLossError("the connection to ZooKeeper was lost")
        if isinstance(error, _SESSION_OVER):
            return SessionExpiredError(self._end or "the session is over")
        if isinstance(error, kazoo_errors.UnimplementedError):
            return UnimplementedByServerError(
                "this ZooKeeper server does not implement the request"
            )
        if isinstance(error, kazoo_errors.KazooException):
            name = error_name(getattr(error, "code", ZkError.OTHER))
            return RequestRefusedError(f"ZooKeeper refused a request: {name}", name)
        return error

    def _settled(self, reply: Future[Answer | None]) -> None:
        with self._changed:
            self._outstanding.discard(reply)
        self._window.release()

    # ---- callbacks of the connection, on the I/O thread ----------------------------------------

    def session_granted(self, credentials: SessionCredentials, timeout_ms: int) -> None:
        """The server accepted the session."""
        self._credentials = credentials
        self._timeout_ms = timeout_ms

    def session_refused(self) -> None:
        """The server answered that the session has expired."""
        self._lose("expired")

    def data_set_back(self) -> None:
        """An operator restored older data while the connection was lost: end the session."""
        self._lose("ZooKeeper's data are older than data this session has seen")

    def requests_on_connect(self) -> Sequence[tuple[ZkRequest, ZkReply]]:
        """Return the requests that arm all watches again, with the zxid at the disconnect.

        The old zxid is kept until the last request is answered. Otherwise, if the connection drops
        between two requests, the watches of the second would miss changes.
        """
        if self._rearm_zxid is None:
            return ()
        if not self.has_set_watches:
            self._rearm_zxid = None
            self._fire_all()
            return ()
        requests = [
            (request, ZkReply())
            for request in set_watches_requests(self._rearm_zxid, self.watches.armed())
        ]
        for _, reply in requests:
            reply.add_done_callback(self._check_rearmed)
        if requests:
            requests[-1][1].add_done_callback(self._finish_rearming)
        else:
            self._rearm_zxid = None
        return requests

    def connected(self) -> None:
        """The connection accepts requests from now on."""
        with self._changed:
            if self.state is not ConnectionState.SUSPENDED:
                return
            self.state = ConnectionState.CONNECTED
            if self._suspension is not None:
                self._suspension.cancel()
            self._changed.notify_all()
        logger.info("connected to ZooKeeper at %s in %r", self._hosts, self._credentials)
        self._report(ConnectionState.CONNECTED)

    def watch_fired(self, event_type: int, path: str) -> None:
        """Deliver a watch event if the watch is armed."""
        kind = self.watches.fire(event_type, path)
        if kind is None:
            return
        event = WatchEvent(kind, path[len(self.chroot) :] or "/")
        try:
            self._on_watch(event)
        except Exception:  # an error of a callback must not end the I/O thread
            logger.exception("%r was not delivered", event)

    def _check_rearmed(self, reply: Future[Answer | None]) -> None:
        error = reply.exception()
        if error is not None and not isinstance(error, _CONNECTION_LOSS + _SESSION_OVER):
            logger.warning("cannot arm the watches again (%r): sending an event for each", error)
            self.has_set_watches = False
            self._fire_all()

    def _finish_rearming(self, reply: Future[Answer | None]) -> None:
        if reply.exception() is None:
            self._rearm_zxid = None

    def _fire_all(self) -> None:
        data, exist, child = self.watches.armed()
        for event_type, paths in (
            (EventType.CHANGED, data),
            (EventType.CREATED, exist),
            (EventType.CHILDREN, child),
        ):
            for path in paths:
                self.watch_fired(event_type, path)

    def _kazoo_state_changed(self, state: str) -> None:
        if state == KazooState.SUSPENDED:
            self._suspend()
        elif state == KazooState.LOST:
            self._lose(f"kazoo: {self._kazoo.client_state}")

    def _suspend(self) -> None:
        with self._changed:
            if self.state is not ConnectionState.CONNECTED:
                return
            self.state = ConnectionState.SUSPENDED
            if self._rearm_zxid is None:
                self._rearm_zxid = self._kazoo.last_zxid
            # No server can be reached that would report the end of the session.
            timeout_s = self._timeout_ms / 1000
            reason = f"no connection for {timeout_s:g} s, the session timeout"
            self._suspension = NamedTimer(
                timeout_s, partial(self._lose, reason), "zookeeper-suspension"
            )
            self._suspension.start()
            self._changed.notify_all()
        logger.warning("lost the connection to ZooKeeper at %s", self._hosts)
        self._report(ConnectionState.SUSPENDED)

    def _lose(self, reason: str) -> None:
        with self._changed:
            if self.state is ConnectionState.LOST:
                return
            self.state = ConnectionState.LOST
            session_id = self._credentials.session_id if self._credentials else 0
            self._end = f"ZooKeeper session {session_id:#x} is over: {reason}"
            if self._suspension is not None:
                self._suspension.cancel()
            outstanding = list(self._outstanding)
            self._changed.notify_all()
        # Stop kazoo: it would open a new session.
        self._kazoo._stopped.set()
        self._handler.abandon()
        for reply in outstanding:
            reply.set_exception(kazoo_errors.SessionExpiredError(reason))
        self.watches.clear()
        self._report(ConnectionState.LOST)

    def _report(self, state: ConnectionState) -> None:
        on_state = self._on_state
        if on_state is None:
            return
        try:
            on_state(state)
        except Exception:  # an error of a callback must not end the I/O thread
            logger.exception("state %s was not delivered", state)


def _connect_timeout_s(session_timeout_s: float, servers: int) -> float:
    """Return how long one server may take to answer: another attempt must fit into the session.

    A ZooKeeper server that is loading its data neither answers nor closes a new connection (a
    NullPointerException in ``NIOServerCnxn.close``). A busy server has at least a second.
    """
    a_third = max(session_timeout_s / 3, min(session_timeout_s, 1.0))
    return min(a_third, session_timeout_s / servers)
