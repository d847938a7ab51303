"""Many reads, watches and writes at the cost of a few requests.

Measured with ZooKeeper 3.9 on two cores, in znodes per second: reads one at a time 3,000, pipelined
9,000, with multiRead 300,000; watches armed by reads 7,000, by SetWatches 700,000; writes one at a
time 2,000, in multis of 1,000 operations 100,000. A server that lacks multiRead (before 3.6) or
SetWatches answers the first one with an error and cuts the connection; from then on it gets
pipelined single requests.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Protocol, TypeVar

from regent.core.errors import RegentError, UnreadableError
from regent.zk.client.connection import ZkReply
from regent.zk.client.operations import MultiResult, UnreadableZnode, Znode, why_unreadable
from regent.zk.client.requests import (
    Answer,
    BulkRead,
    Exists,
    GetChildren,
    GetData,
    Multi,
    MultiRead,
    ReadRefused,
    RequestRefusedError,
    SetWatches,
    ZkRequest,
    decode_children,
    decode_multi_read,
    decode_znode,
    decode_znodes,
)
from regent.zk.client.watch_registry import ArmedWatches, WatchRegistry

MAX_BULK_REQUEST_BYTES = 512 * 1024
MAX_READS = 2_000  # paths in a multiRead
MAX_WATCHES = 5_000  # paths in a SetWatches
READ_WINDOW = 2  # multiReads in flight
WRITE_WINDOW = 4  # SetWatches or multis in flight

# A znode can have a megabyte, and the server builds the whole answer in its heap. So the first
# multiReads are small, and the size of each answer decides the size of the next request.
_FIRST_READS = 50
_MAX_GROWTH = 4
_AIM_ANSWER_BYTES = 2 * 1024 * 1024

T = TypeVar("T")
R = TypeVar("R", bound=ZkRequest)


class UnimplementedByServerError(RegentError):
    """The server does not implement a request type."""


class Channel(Protocol):
    """Sends requests over one connection and waits for their answers."""

    has_set_watches: bool
    """False: a server does not implement SetWatches."""

    def send(
        self, request: ZkRequest, on_answer: Callable[[Answer | None], None] | None = None
    ) -> ZkReply:
        """Send a request; wait first while too many are in flight."""
        ...

    def receive(self, reply: ZkReply) -> Answer | None:
        """Wait for an answer; None means that the node is absent.

        Raises ``ConnectionLossError``, ``SessionExpiredError``, ``UnimplementedByServerError``,
        ``RequestRefusedError``.
        """
        ...

    def latest_zxid(self) -> int:
        """Return a zxid; all later reads include the transactions up to it."""
        ...


class BulkOperations:
    """The bulk operations of one connection. Paths are absolute."""

    def __init__(self, channel: Channel, watches: WatchRegistry) -> None:
        self._channel = channel
        self._watches = watches
        self._has_multi_read = True

    def get(self, paths: Sequence[str]) -> list[Znode | None]:
        """Read nodes, in the order of ``paths``."""
        read = self._read(GetData, paths, decode_znode, decode_znodes)
        return [
            _unreadable(path, node) if isinstance(node, ReadRefused) else node
            for path, node in zip(paths, read, strict=True)
        ]

    def get_and_watch(self, paths: Sequence[str]) -> list[Znode | None]:
        """Read nodes and watch each for change and deletion, or for creation if absent."""
        if self._channel.has_set_watches:
            # A node that changes between its read and SetWatches has a greater mzxid than this
            # zxid. So its watch fires at once.
            zxid = self._channel.latest_zxid()
            znodes = self.get(paths)
            present: list[str] = []
            absent: list[str] = []
            for path, znode in zip(paths, znodes, strict=True):
                (absent if znode is None else present).append(path)
            if self._arm(zxid, ArmedWatches(present, absent, [])):
                return znodes
        replies = [self._get_and_watch(path) for path in paths]
        read = [self._received(reply, decode_znode) for reply in replies]
        found: list[Znode | None] = []
        for path, node in zip(paths, read, strict=True):
            if isinstance(node, ReadRefused):
                found.append(_unreadable(path, node))
            else:
                found.append(self.get_and_watch_one(path) if node is None else node)
        return found

    def get_and_watch_one(self, path: str) -> Znode | None:
        """Read one node and watch it, without bulk requests."""
        while True:
            node = self._received(self._get_and_watch(path), decode_znode)
            if isinstance(node, ReadRefused):
                return _unreadable(path, node)
            if node is not None:
                return node
            reply = self._channel.send(
                Exists(path, watch=True),
                lambda stat: self._watches.add(**{"data" if stat else "exist": [path]}),
            )
            if self._channel.receive(reply) is None:
                return None

    def _get_and_watch(self, path: str) -> ZkReply:
        return self._channel.send(
            GetData(path, watch=True), lambda _: self._watches.add(data=[path])
        )

    def children(self, paths: Sequence[str]) -> list[list[str] | None]:
        """List the children of nodes, in the order of ``paths``; None: absent or not readable."""
        decode_all = partial(decode_multi_read, decode=decode_children)
        found = self._read(GetChildren, paths, decode_children, decode_all)
        return [None if isinstance(names, ReadRefused) else names for names in found]

    def children_of_one(self, path: str, *, watch: bool) -> list[str] | None:
        """List one node's children; an absent node is not watched. Raises ``UnreadableError``."""
        request = GetChildren(path, watch=watch)
        on_answer = (lambda _: self._watches.add(child=[path])) if watch else None
        names = self._received(self._channel.send(request, on_answer), decode_children)
        if isinstance(names, ReadRefused):
            raise UnreadableError(why_unreadable(path, names.error))
        return names

    def commit(self, multis: Sequence[Multi], chroot: str) -> list[MultiResult]:
        """Send multis, a few in flight; they are applied in order."""
        results = []
        for multi, answer in self._windowed(multis):
            if answer is None:
                raise UnimplementedByServerError("a multi was answered with: no such node")
            results.append(multi.decode(answer, chroot))
        return results

    def _arm(self, zxid: int, watches: ArmedWatches) -> bool:
        """Arm watches by SetWatches; False when the server does not implement it."""
        # The server fires the watches of changed nodes before it answers.
        self._watches.add(data=watches.data, exist=watches.exist, child=watches.child)
        try:
            for _ in self._windowed(set_watches_requests(zxid, watches)):
                pass
        except UnimplementedByServerError:
            self._channel.has_set_watches = False
            return False
        return True

    def _read(
        self,
        read: BulkRead,
        paths: Sequence[str],
        decode: Callable[[bytes, int], tuple[T, int]],
        decode_all: Callable[[Answer], Iterable[T | ReadRefused | None]],
    ) -> list[T | ReadRefused | None]:
        if self._has_multi_read:
            try:
                return self._multi_read(read, paths, decode_all)
            except UnimplementedByServerError:
                self._has_multi_read = False
            except RequestRefusedError:
                pass  # the whole request failed: read the paths one by one to find the cause
        replies = [self._channel.send(read(path, watch=False)) for path in paths]
        return [self._received(reply, decode) for reply in replies]

    def _received(
        self, reply: ZkReply, decode: Callable[[bytes, int], tuple[T, int]]
    ) -> T | ReadRefused | None:
        """Return the result of one read."""
        try:
            answer = self._channel.receive(reply)
        except RequestRefusedError as refused:
            return ReadRefused(refused.error or str(refused))
        return None if answer is None else decode(*answer)[0]

    def _multi_read(
        self,
        read: BulkRead,
        paths: Sequence[str],
        decode_all: Callable[[Answer], Iterable[T | ReadRefused | None]],
    ) -> list[T | ReadRefused | None]:
        size = _FIRST_READS

        def requests() -> Iterator[MultiRead]:
            position = 0
            while position < len(paths):
                chunk = _fitting(paths, position, size)
                position += len(chunk)
                yield MultiRead(read, chunk)

        results: list[T | ReadRefused | None] = []
        for request, answer in self._windowed(requests(), READ_WINDOW):
            if answer is None:
                raise UnimplementedByServerError("a multiRead was answered with: no such node")
            results.extend(decode_all(answer))
            fitting = _AIM_ANSWER_BYTES * request.count // len(answer[0])
            size = max(min(fitting, _MAX_GROWTH * request.count, MAX_READS), 1)
        return results

    def _windowed(
        self, requests: Iterable[R], window: int = WRITE_WINDOW
    ) -> Iterator[tuple[R, Answer | None]]:
        """Send requests, a few in flight, and yield each with its answer, in order."""
        in_flight: deque[tuple[R, ZkReply]] = deque()
        for request in requests:
            in_flight.append((request, self._channel.send(request)))
            if len(in_flight) == window:
                sent, reply = in_flight.popleft()
                yield sent, self._channel.receive(reply)
        for sent, reply in in_flight:
            yield sent, self._channel.receive(reply)


def _unreadable(path: str, refused: ReadRefused) -> Znode:
    return UnreadableZnode.because(why_unreadable(path, refused.error))


def set_watches_requests(zxid: int, watches: ArmedWatches) -> Iterator[SetWatches]:
    """Return requests of bounded size that arm any number of watches.

    Watches on nodes that changed after ``zxid`` fire at once.
    """
    for kind in ArmedWatches._fields:
        paths: Sequence[str] = getattr(watches, kind)
        position = 0
        while position < len(paths):
            chunk = _fitting(paths, position, MAX_WATCHES)
            position += len(chunk)
            yield SetWatches(zxid, **{kind: chunk})


def _fitting(paths: Sequence[str], start: int, max_count: int) -> Sequence[str]:
    """Return the paths from ``start`` on that fit into one request, at least one."""
    size = 0
    for end in range(start, min(start + max_count, len(paths))):
        size += len(paths[end].encode()) + 14
        if size > MAX_BULK_REQUEST_BYTES and end > start:
            return paths[start:end]
    return paths[start : start + max_count]
