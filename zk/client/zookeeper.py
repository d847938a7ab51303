"""The operations on znodes, over the present session.

Measured with ZooKeeper 3.9 on two cores, in znodes per second: reads one at a time 3,000, pipelined
9,000, with multiRead 300,000; watches armed by reads 7,000, by SetWatches 700,000; writes one at a
time 2,000, in multis of 1,000 operations 100,000. A server that lacks multiRead (before 3.6) or
SetWatches answers the first one with an error and cuts the connection; from then on it gets
pipelined single requests.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from regent.core.errors import SessionExpiredError, UnreadableError
from regent.core.timers import Timer
from regent.zk.client.connection import ConnectionState
from regent.zk.client.operations import (
    AclEntry,
    Committed,
    ConnectionLossError,
    MultiResult,
    Operation,
    UnreadableZnode,
    Znode,
    why_unreadable,
)
from regent.zk.client.requests import (
    MAX_REQUEST_BYTES,
    Answer,
    ArmedWatches,
    BulkRead,
    Exists,
    GetAcl,
    GetChildren,
    GetData,
    Multi,
    MultiRead,
    ReadRefused,
    RemoveWatches,
    RequestRefusedError,
    Sync,
    UnimplementedByServerError,
    ZkReply,
    ZkRequest,
    absolute,
    decode_acl,
    decode_children,
    decode_multi_read,
    decode_znode,
    decode_znodes,
    fitting,
    set_watches_requests,
)

if TYPE_CHECKING:
    from regent.zk.client.zookeeper_client import ZooKeeperClient

MAX_READS = 2_000  # paths in a multiRead
READ_WINDOW = 2  # multiReads in flight
WRITE_WINDOW = 4  # SetWatches or multis in flight

# A znode can have a megabyte, and the server builds the whole answer in its heap. So the first
# multiReads are small, and the size of each answer decides the size of the next request.
_FIRST_READS = 50
_MAX_GROWTH = 4
_AIM_ANSWER_BYTES = 2 * 1024 * 1024
_RETRY_PAUSE_S = 0.05

T = TypeVar("T")
R = TypeVar("R", bound=ZkRequest)
Decode: TypeAlias = Callable[[bytes, int], tuple[T, int]]
DecodeAll: TypeAlias = Callable[[Answer], Iterable[T | ReadRefused | None]]


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


class ZooKeeper:
    """The operations of one ZooKeeper session; each call uses the session there is at its start.

    Reads wait for the connection and are repeated after a connection loss, in the same session.
    Writes wait for the connection too, but are sent once: they raise ``ConnectionLossError`` when
    their outcome is unknown. Every method raises ``core.errors.SessionExpiredError`` once the
    session is over, and between sessions. A call with no path or no operation sends nothing.

    Two kinds have a session: ``ZooKeeperClient`` is one session, ``SessionKeeper`` opens the next
    one. The tests' fake passes the same contract tests.
    """

    tells_all = True
    """Whether what is absent does not exist. False: brokers answer, and do not know all znodes."""

    def __init__(self) -> None:
        self._client: ZooKeeperClient | None = None
        self._earlier_zxid = 0  # the newest zxid of earlier sessions
        self.statistics = SessionStatistics()

    def _current(self) -> ZooKeeperClient:
        """Return the present session."""
        client = self._client
        if client is None:
            raise SessionExpiredError("there is no ZooKeeper session now")
        return client

    @property
    def session_id(self) -> int:
        """The session id: ``ephemeral_owner`` of the ephemeral nodes that it creates."""
        return self._current().credentials.session_id

    @property
    def newest_zxid(self) -> int:
        """The newest zxid in any answer of this or an earlier session; 0 before the first.

        It is at most a third of the session timeout old. Sends nothing and never raises.
        """
        client = self._client
        return max(self._earlier_zxid, 0 if client is None else client.received_zxid)

    @property
    def max_request_bytes(self) -> int:
        """The maximum size of a multi; a server cuts the connection at a larger request."""
        return MAX_REQUEST_BYTES

    def wait_connected(self) -> None:
        """Return when connected; raise ``SessionExpiredError`` when the session is over."""
        self._current().wait_until_connected()

    # ---- reads ----------------------------------------------------------------------------------

    def get(self, path: str, *, watch: bool = False) -> Znode | None:
        """Read one node; None when absent. The watch covers change, deletion and creation.

        For a node whose ACL forbids reading, this method and ``get_many`` return an
        ``UnreadableZnode``.
        """
        if watch:
            return self._reading(lambda client: _get_and_watch_one(client, _at(client, path)))
        return self._reading(lambda client: _get(client, [_at(client, path)])[0])

    def get_many(self, paths: Sequence[str], *, watch: bool = False) -> list[Znode | None]:
        """Read many nodes at the cost of a few requests, in the order of ``paths``.

        This is not a snapshot: each node is read at its own time. A change between the read and the
        arming of the watch fires the watch.
        """
        if not paths:
            return []
        get = _get_and_watch if watch else _get
        return self._reading(lambda client: get(client, _all_at(client, paths)))

    def children(self, path: str, *, watch: bool = False) -> list[str] | None:
        """List the children's names, sorted; None when the node is absent (no watch then).

        Raises ``UnreadableError`` when the server refuses to list them.
        """
        return self._reading(lambda client: _children(client, _at(client, path), watch=watch))

    def children_many(self, paths: Sequence[str]) -> list[list[str] | None]:
        """List the children of many nodes at the cost of a few requests.

        None for a node that is absent, or whose children the server refuses to list.
        """
        if not paths:
            return []
        return self._reading(lambda client: _children_many(client, _all_at(client, paths)))

    def acls_many(self, paths: Sequence[str]) -> list[tuple[AclEntry, ...] | None]:
        """Read the ACLs of many nodes, a request each; None for a node that is absent.

        A node whose ACL the server refuses to show has no entries: it lets us do nothing.
        """
        return self._reading(lambda client: _acls_many(client, _all_at(client, paths)))

    def sync(self) -> None:
        """Make later reads see every write that was acknowledged before this call.

        Without it a server of the ensemble that lags behind may answer a read.
        """
        self._reading(lambda client: client.receive(client.send(Sync(_at(client, "/")))))

    def latest_zxid(self) -> int:
        """Ask for a zxid; all later reads include the transactions up to it."""
        return self._reading(_latest_zxid)

    def unwatch(self, paths: Sequence[str]) -> None:
        """Drop the watches on these paths, also at the server.

        Their events are not delivered from now on. Does not wait for the server, which keeps the
        sequence. A server that is not connected has forgotten the watches.
        """
        client = self._current()
        for path in client.watches.discard(_all_at(client, paths)):
            if client.state is not ConnectionState.CONNECTED:
                return
            with suppress(ConnectionLossError, SessionExpiredError):
                client.send(RemoveWatches(path))

    def _reading(self, attempt: Callable[[ZooKeeperClient], T]) -> T:
        with self.statistics.request():
            client = self._current()
            while True:
                client.wait_until_connected()
                try:
                    return attempt(client)
                except ConnectionLossError:
                    client.pause(_RETRY_PAUSE_S)

    # ---- writes ---------------------------------------------------------------------------------

    def multi(self, operations: Sequence[Operation]) -> MultiResult:
        """Apply all operations or none. Raises ``RequestTooLargeError`` above a megabyte."""
        return self.multi_many([operations])[0]

    def multi_many(self, batches: Sequence[Sequence[Operation]]) -> list[MultiResult]:
        """Apply several multis in order, pipelined; each is atomic by itself.

        Raises ``ConnectionLossError`` when the outcome of any of them is unknown, and
        ``RequestTooLargeError`` before sending any.
        """
        with self.statistics.request():
            client = self._current()
            chroot = client.chroot
            multis = [Multi(ops, chroot, client.login) for ops in batches if ops]
            client.wait_until_connected()
            sent = _windowed(client, multis)
            results = iter([_decode(multi, answer, chroot) for multi, answer in sent])
            return [next(results) if operations else Committed(()) for operations in batches]


def _at(client: ZooKeeperClient, path: str) -> str:
    return absolute(client.chroot, path)


def _all_at(client: ZooKeeperClient, paths: Sequence[str]) -> Sequence[str]:
    return [absolute(client.chroot, path) for path in paths] if client.chroot else paths


def _latest_zxid(client: ZooKeeperClient) -> int:
    zxids: list[int] = []
    request = Exists(_at(client, "/"), watch=False)
    client.receive(client.send(request, lambda _: zxids.append(client.answered_zxid)))
    return zxids[0]


def _get(client: ZooKeeperClient, paths: Sequence[str]) -> list[Znode | None]:
    read = _read(client, GetData, paths, decode_znode, decode_znodes)
    return [
        _unreadable(path, node) if isinstance(node, ReadRefused) else node
        for path, node in zip(paths, read, strict=True)
    ]


def _get_and_watch(client: ZooKeeperClient, paths: Sequence[str]) -> list[Znode | None]:
    """Read nodes and watch each for change and deletion, or for creation if absent."""
    if client.has_set_watches:
        # A node that changes between its read and SetWatches has a greater mzxid than this zxid. So
        # its watch fires at once.
        zxid = _latest_zxid(client)
        znodes = _get(client, paths)
        present: list[str] = []
        absent: list[str] = []
        for path, znode in zip(paths, znodes, strict=True):
            (absent if znode is None else present).append(path)
        if _arm(client, zxid, ArmedWatches(present, absent, [])):
            return znodes
    replies = [_send_watching_get(client, path) for path in paths]
    read = [_received(client, reply, decode_znode) for reply in replies]
    found: list[Znode | None] = []
    for path, node in zip(paths, read, strict=True):
        if isinstance(node, ReadRefused):
            found.append(_unreadable(path, node))
        else:
            found.append(_get_and_watch_one(client, path) if node is None else node)
    return found


def _get_and_watch_one(client: ZooKeeperClient, path: str) -> Znode | None:
    """Read one node and watch it, without bulk requests."""
    while True:
        node = _received(client, _send_watching_get(client, path), decode_znode)
        if isinstance(node, ReadRefused):
            return _unreadable(path, node)
        if node is not None:
            return node
        reply = client.send(
            Exists(path, watch=True),
            lambda stat: client.watches.add(**{"data" if stat else "exist": [path]}),
        )
        if client.receive(reply) is None:
            return None


def _send_watching_get(client: ZooKeeperClient, path: str) -> ZkReply:
    return client.send(GetData(path, watch=True), lambda _: client.watches.add(data=[path]))


def _children(client: ZooKeeperClient, path: str, *, watch: bool) -> list[str] | None:
    on_answer = (lambda _: client.watches.add(child=[path])) if watch else None
    reply = client.send(GetChildren(path, watch=watch), on_answer)
    names = _received(client, reply, decode_children)
    if isinstance(names, ReadRefused):
        raise UnreadableError(why_unreadable(path, names.error))
    return names


def _children_many(client: ZooKeeperClient, paths: Sequence[str]) -> list[list[str] | None]:
    decode_all = partial(decode_multi_read, decode=decode_children)
    found = _read(client, GetChildren, paths, decode_children, decode_all)
    return [None if isinstance(names, ReadRefused) else names for names in found]


def _acls_many(client: ZooKeeperClient, paths: Sequence[str]) -> list[tuple[AclEntry, ...] | None]:
    replies = [client.send(GetAcl(path)) for path in paths]
    found = [_received(client, reply, decode_acl) for reply in replies]
    return [() if isinstance(acl, ReadRefused) else acl for acl in found]


def _arm(client: ZooKeeperClient, zxid: int, watches: ArmedWatches) -> bool:
    """Arm watches by SetWatches; False when the server does not implement it."""
    # The server fires the watches of changed nodes before it answers.
    client.watches.add(data=watches.data, exist=watches.exist, child=watches.child)
    try:
        for _ in _windowed(client, set_watches_requests(zxid, watches)):
            pass
    except UnimplementedByServerError:
        client.has_set_watches = False
        return False
    return True


def _read(
    client: ZooKeeperClient,
    read: BulkRead,
    paths: Sequence[str],
    decode: Decode[T],
    decode_all: DecodeAll[T],
) -> list[T | ReadRefused | None]:
    if client.has_multi_read:
        try:
            return _multi_read(client, read, paths, decode_all)
        except UnimplementedByServerError:
            client.has_multi_read = False
        except RequestRefusedError:
            pass  # the whole request failed: read the paths one by one to find the cause
    replies = [client.send(read(path, watch=False)) for path in paths]
    return [_received(client, reply, decode) for reply in replies]


def _received(client: ZooKeeperClient, reply: ZkReply, decode: Decode[T]) -> T | ReadRefused | None:
    """Return the result of one read."""
    try:
        answer = client.receive(reply)
    except RequestRefusedError as refused:
        return ReadRefused(refused.error or str(refused))
    return None if answer is None else decode(*answer)[0]


def _multi_read(
    client: ZooKeeperClient, read: BulkRead, paths: Sequence[str], decode_all: DecodeAll[T]
) -> list[T | ReadRefused | None]:
    size = _FIRST_READS

    def requests() -> Iterator[MultiRead]:
        position = 0
        while position < len(paths):
            chunk = fitting(paths, position, size)
            position += len(chunk)
            yield MultiRead(read, chunk)

    results: list[T | ReadRefused | None] = []
    for request, answer in _windowed(client, requests(), READ_WINDOW):
        if answer is None:
            raise UnimplementedByServerError("a multiRead was answered with: no such node")
        results.extend(decode_all(answer))
        fits = _AIM_ANSWER_BYTES * request.count // len(answer[0])
        size = max(min(fits, _MAX_GROWTH * request.count, MAX_READS), 1)
    return results


def _windowed(
    client: ZooKeeperClient, requests: Iterable[R], window: int = WRITE_WINDOW
) -> Iterator[tuple[R, Answer | None]]:
    """Send requests, a few in flight, and yield each with its answer, in order."""
    in_flight: deque[tuple[R, ZkReply]] = deque()
    for request in requests:
        in_flight.append((request, client.send(request)))
        if len(in_flight) == window:
            sent, reply = in_flight.popleft()
            yield sent, client.receive(reply)
    for sent, reply in in_flight:
        yield sent, client.receive(reply)


def _decode(multi: Multi, answer: Answer | None, chroot: str) -> MultiResult:
    if answer is None:
        raise UnimplementedByServerError("a multi was answered with: no such node")
    return multi.decode(answer, chroot)


def _unreadable(path: str, refused: ReadRefused) -> Znode:
    return UnreadableZnode.because(why_unreadable(path, refused.error))
