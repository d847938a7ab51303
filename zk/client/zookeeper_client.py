"""One ZooKeeper session (``kafka.zookeeper.ZooKeeperClient``, ``org.apache.zookeeper.ZooKeeper``).

Nodes are read in bulk and written in multis. Watches last as long as the session. A new session
needs a new client (``zk.client.session``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

from regent.core.errors import SessionExpiredError
from regent.zk.client.bulk import BulkOperations
from regent.zk.client.channel import ConnectionState, SessionChannel
from regent.zk.client.connection import RequiredWrite, SessionCredentials
from regent.zk.client.operations import (
    Committed,
    ConnectionLossError,
    Create,
    MultiResult,
    Operation,
    Refused,
    WatchEvent,
    ZkError,
    Znode,
)
from regent.zk.client.requests import (
    MAX_REQUEST_BYTES,
    Multi,
    RemoveWatches,
    RequestRefusedError,
    Sync,
    absolute,
)

__all__ = ["ConnectionState", "SessionCredentials", "ZooKeeperClient"]

_RETRY_PAUSE_S = 0.05

T = TypeVar("T")


class ZooKeeperClient:
    """One session: it implements ``operations.ZooKeeper`` until it is lost, which is final.

    ``hosts`` is ``host:port[,host:port...][/chroot]``; with ``credentials`` the client attaches to
    an existing session. ``on_watch`` and ``on_state`` are called on the I/O thread (``on_state``
    also on a timer's): they must only enqueue, and must not call the client. ``on_state`` gets
    every change from the first CONNECTED on, until ``close`` or ``abandon``.

    Reads wait for the connection and are repeated after a connection loss. Writes wait for the
    connection too, but are sent once.

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
        self._channel = SessionChannel(
            hosts,
            session_timeout_ms,
            on_watch=on_watch,
            on_state=on_state,
            credentials=credentials,
        )
        self._chroot = self._channel.chroot
        self._bulk = BulkOperations(self._channel, self._channel.watches)

    def start(self, timeout_s: float, *, create_chroot: bool = True) -> None:
        """Connect, and create the chroot if it does not exist.

        Raises ``ConnectionLossError`` when no server answers in time, and ``SessionExpiredError``
        when the session to attach to is over. The client cannot be used after that.
        """
        self._channel.start(timeout_s)
        if create_chroot and self._chroot and self.get("/") is None:
            self._create_chroot()

    def close(self, timeout_s: float = 5.0) -> bool:
        """End the session, which deletes its ephemeral nodes; True when the server confirmed it."""
        return self._channel.close(timeout_s)

    def abandon(self) -> None:
        """Drop the connection without closing the session, which ends at its timeout.

        Calls blocked in this client raise ``SessionExpiredError`` at once.
        """
        self._channel.abandon()

    @property
    def state(self) -> ConnectionState:
        """The state of the session."""
        return self._channel.state

    @property
    def credentials(self) -> SessionCredentials:
        """The session's credentials, also after its end.

        Raises ``SessionExpiredError`` when there never was a session.
        """
        if self._channel.credentials is None:
            raise SessionExpiredError("there is no ZooKeeper session yet")
        return self._channel.credentials

    @property
    def session_id(self) -> int:
        """The session id: ``ephemeral_owner`` of the ephemeral nodes that it creates."""
        return self.credentials.session_id

    def lease_valid(self) -> bool:
        """Whether the server confirmed the session within the last 2/3 of its timeout.

        False: the session may soon expire, although ``state`` is CONNECTED. The caller must not
        send decisions then.
        """
        return self._channel.lease_valid()

    @property
    def newest_zxid(self) -> int:
        """The newest zxid in any answer of a server; at most a third of the session timeout old.

        0 before the first answer. Also works after the end of the session.
        """
        return self._channel.newest_zxid

    @property
    def max_request_bytes(self) -> int:
        """See ``ZooKeeper.max_request_bytes``."""
        return MAX_REQUEST_BYTES

    def require_write(self, path: str, zxid: int) -> None:
        """End the session instead of continuing it on data that lack a write of a node.

        ``zxid`` is that of the write, or an earlier one. Needed when an operator restores older
        data of an ensemble: the session may exist in those data too, and so would continue.
        """
        self._channel.require(RequiredWrite(absolute(self._chroot, path), zxid))

    def wait_connected(self) -> None:
        """Return when connected; raise ``SessionExpiredError`` when the session is over."""
        self._channel.wait_connected()

    def get(self, path: str, *, watch: bool = False) -> Znode | None:
        """See ``ZooKeeper.get``."""
        path = absolute(self._chroot, path)
        if watch:
            return self._reading(lambda: self._bulk.get_and_watch_one(path))
        return self._reading(lambda: self._bulk.get([path])[0])

    def get_many(self, paths: Sequence[str], *, watch: bool = False) -> list[Znode | None]:
        """See ``ZooKeeper.get_many``."""
        absolute_paths = [absolute(self._chroot, path) for path in paths]
        get = self._bulk.get_and_watch if watch else self._bulk.get
        return self._reading(lambda: get(absolute_paths))

    def children(self, path: str, *, watch: bool = False) -> list[str] | None:
        """See ``ZooKeeper.children``."""
        path = absolute(self._chroot, path)
        return self._reading(lambda: self._bulk.children_of_one(path, watch=watch))

    def children_many(self, paths: Sequence[str]) -> list[list[str] | None]:
        """See ``ZooKeeper.children_many``."""
        absolute_paths = [absolute(self._chroot, path) for path in paths]
        return self._reading(lambda: self._bulk.children(absolute_paths))

    def latest_zxid(self) -> int:
        """See ``ZooKeeper.latest_zxid``."""
        return self._reading(self._channel.latest_zxid)

    def multi(self, operations: Sequence[Operation]) -> MultiResult:
        """See ``ZooKeeper.multi``. Raises ``RequestTooLargeError`` above a megabyte."""
        return self.multi_many([operations])[0]

    def multi_many(self, batches: Sequence[Sequence[Operation]]) -> list[MultiResult]:
        """See ``ZooKeeper.multi_many``. Raises ``RequestTooLargeError`` before sending any."""
        requests = [Multi(operations, self._chroot) for operations in batches if operations]
        self.wait_connected()
        results = iter(self._bulk.commit(requests, self._chroot))
        return [next(results) if operations else Committed(()) for operations in batches]

    def sync(self) -> None:
        """See ``ZooKeeper.sync``."""
        request = Sync(absolute(self._chroot, "/"))
        self._reading(lambda: self._channel.receive(self._channel.send(request)))

    def unwatch(self, paths: Sequence[str]) -> None:
        """See ``ZooKeeper.unwatch``; does not wait for the server, which keeps the sequence.

        A server that is not connected has forgotten the watches.
        """
        for path in self._channel.watches.discard(absolute(self._chroot, p) for p in paths):
            if self.state is not ConnectionState.CONNECTED:
                return
            with suppress(ConnectionLossError, SessionExpiredError):
                self._channel.send(RemoveWatches(path))

    def _reading(self, attempt: Callable[[], T]) -> T:
        while True:
            self.wait_connected()
            try:
                return attempt()
            except ConnectionLossError:
                self._channel.pause(_RETRY_PAUSE_S)

    def _create_chroot(self) -> None:
        names = self._chroot.strip("/").split("/")
        parents = ["/" + "/".join(names[: depth + 1]) for depth in range(len(names))]
        requests = [Multi([Create(parent)], chroot="") for parent in parents]
        for parent, result in zip(parents, self._bulk.commit(requests, ""), strict=True):
            if isinstance(result, Refused) and result.error is not ZkError.NODE_EXISTS:
                raise RequestRefusedError(f"cannot create {parent}: {result.error.name}")
