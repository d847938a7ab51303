"""ZooKeeper's wire format: requests for kazoo's connection, and their replies.

kazoo lacks multiRead (opcode 22, ZOOKEEPER-3402), SetWatches (opcode 101) and removeWatches (opcode
18), and it decodes the answers on the I/O thread. These classes return the raw frame: the caller
decodes it in its own thread, so that decoding does not delay pings.

All paths are absolute: they include the chroot.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from functools import cache, partial
from typing import ClassVar, NamedTuple, TypeAlias, TypeVar, assert_never

from kazoo.protocol.serialization import Close

from regent.core.errors import RegentError
from regent.zk.client.login import Acl, Login, acl_of
from regent.zk.client.operations import (
    AclEntry,
    Check,
    Committed,
    Create,
    Delete,
    MultiResult,
    Operation,
    Permission,
    Refused,
    SetData,
    ZkError,
    Znode,
    ZnodeStat,
)

# kazoo logs one line for each attempt while a server is down.
kazoo_log = logging.getLogger("regent.zk.kazoo")
kazoo_log.setLevel(logging.ERROR)

T = TypeVar("T")

# NamedTuples of tuples that have their fields already.
_new_stat = partial(tuple.__new__, ZnodeStat)
_new_znode = partial(tuple.__new__, Znode)

Answer: TypeAlias = tuple[bytes, int]
"""A frame and the offset at which the body of the answer starts."""

MAX_REQUEST_BYTES = 1_000_000  # the server's jute.maxbuffer is 1,048,575
MAX_BULK_REQUEST_BYTES = 512 * 1024
MAX_WATCHES = 5_000  # paths in a SetWatches

_INT = struct.Struct("!i")
_LONG = struct.Struct("!q")
_MULTI_HEADER = struct.Struct("!iBi")
_MULTI_END = _MULTI_HEADER.pack(-1, 1, -1)
_ERROR_RESULT = -1
_NULL = -1  # the length of no data
# Of the 68 bytes of a stat: czxid, mzxid, ctime, version, ephemeralOwner, as in ``ZnodeStat``.
_STAT = struct.Struct("!qqq8xi8xq16x")
_DATA_RESULT = struct.Struct("!iBii")  # in a multiRead: a header, and the length of the data

_ROLLED_BACK = 0
_RUNTIME_INCONSISTENCY = -2
_EPHEMERAL = 1
_SEQUENTIAL = 2


class RequestTooLargeError(RegentError):
    """A request would exceed what the server accepts; sending it would cut the connection."""


class RequestRefusedError(RegentError):
    """The server answered a request with an unexpected error, for example because of an ACL.

    ``error`` is ZooKeeper's name of the error, if the server gave one.
    """

    def __init__(self, message: str, error: str = "") -> None:
        super().__init__(message)
        self.error = error


class UnimplementedByServerError(RegentError):
    """The server does not implement a request type."""


class ZkReply(Future[Answer | None]):
    """The answer to one request, filled in by kazoo on its I/O thread.

    ``on_answer`` runs on that thread before the next frame is read. kazoo may complete a request
    twice (its writer is closed, then its queue is cleared): only the first time counts.
    """

    def __init__(self, on_answer: Callable[[Answer | None], None] | None = None) -> None:
        super().__init__()
        self._on_answer = on_answer

    def set(self, answer: Answer | None) -> None:
        """Called by kazoo with the answer, None for an Exists of an absent node."""
        if self._on_answer is not None:
            self._on_answer(answer)
        try:
            self.set_result(answer)
        except InvalidStateError:
            kazoo_log.debug("answer to a request that was completed before")

    def set_exception(self, exception: BaseException | None) -> None:
        """Called by kazoo with an error."""
        try:
            super().set_exception(exception)
        except InvalidStateError:
            kazoo_log.debug("error of a request that was completed before: %r", exception)


class ReadRefused(NamedTuple):
    """The server refused to read one path; ``error`` is ZooKeeper's name of the error."""

    error: str


def _string(text: str) -> bytes:
    encoded = text.encode()
    return _INT.pack(len(encoded)) + encoded


def _strings(texts: Sequence[str]) -> bytes:
    return _INT.pack(len(texts)) + b"".join(map(_string, texts))


_READ, _ALL = 1, 31


def _acls(*entries: tuple[int, str, str]) -> bytes:
    rows = (_INT.pack(rights) + _string(scheme) + _string(id_) for rights, scheme, id_ in entries)
    return _INT.pack(len(entries)) + b"".join(rows)


_OPEN_ACL = _acls((_ALL, "world", "anyone"))


@cache
def _encoded(acl: Acl, login: Login | None) -> bytes:
    """Return an ACL for znodes that a login creates; without one they are open.

    The login is named: ZooKeeper logs an error for its scheme ``auth`` and a super user.
    """
    if login is None or acl is Acl.OPEN:
        return _OPEN_ACL
    creator = _ALL, "digest", login.digest
    if acl is Acl.SENSITIVE:
        return _acls(creator)
    return _acls(creator, (_READ, "world", "anyone"))


class ZkRequest:
    """A request as kazoo's connection needs it: an opcode, a body, a decoder of the answer."""

    __slots__ = ("body",)

    type: ClassVar[int]

    def __init__(self, body: bytes) -> None:
        self.body = body

    def serialize(self) -> bytes:
        """Return the body."""
        return self.body

    def deserialize(self, buffer: bytes, offset: int) -> Answer:
        """Keep the answer as it is."""
        return buffer, offset


class Sync(ZkRequest):
    """Make the server catch up with the leader of its ensemble before it answers."""

    __slots__ = ()
    type = 9

    def __init__(self, path: str) -> None:
        super().__init__(_string(path))


class _ReadRequest(ZkRequest):
    __slots__ = ("path",)

    def __init__(self, path: str, *, watch: bool) -> None:
        super().__init__(_string(path) + bytes([watch]))
        self.path = path


class GetData(_ReadRequest):
    """Read one node."""

    __slots__ = ()
    type = 4


class Exists(_ReadRequest):
    """Read a node's stat; kazoo answers None when the node is absent."""

    __slots__ = ()
    type = 3


class GetChildren(_ReadRequest):
    """List one node's children."""

    __slots__ = ()
    type = 8


BulkRead: TypeAlias = type[GetData] | type[GetChildren]


class MultiRead(ZkRequest):
    """Many reads (all GetData or all GetChildren) in one request. They cannot arm watches."""

    __slots__ = ("count",)
    type = 22

    def __init__(self, read: BulkRead, paths: Sequence[str]) -> None:
        header = _MULTI_HEADER.pack(read.type, 0, -1)
        parts = [b"".join((header, _string(path), b"\0")) for path in paths]
        super().__init__(b"".join(parts) + _MULTI_END)
        self.count = len(paths)


class SetWatches(ZkRequest):
    """Arm watches; those on nodes that changed after ``zxid`` fire at once, before the answer."""

    __slots__ = ()
    type = 101

    def __init__(
        self,
        zxid: int,
        data: Sequence[str] = (),
        exist: Sequence[str] = (),
        child: Sequence[str] = (),
    ) -> None:
        super().__init__(_LONG.pack(zxid) + _strings(data) + _strings(exist) + _strings(child))


class ArmedWatches(NamedTuple):
    """The absolute paths of all armed watches, by list of SetWatches, sorted."""

    data: list[str]
    exist: list[str]
    child: list[str]


def set_watches_requests(zxid: int, watches: ArmedWatches) -> Iterator[SetWatches]:
    """Return requests of bounded size that arm any number of watches.

    Watches on nodes that changed after ``zxid`` fire at once.
    """
    for kind in ArmedWatches._fields:
        paths: Sequence[str] = getattr(watches, kind)
        position = 0
        while position < len(paths):
            chunk = fitting(paths, position, MAX_WATCHES)
            position += len(chunk)
            yield SetWatches(zxid, **{kind: chunk})


def fitting(paths: Sequence[str], start: int, max_count: int) -> Sequence[str]:
    """Return the paths from ``start`` on that fit into one request, at least one."""
    size = 0
    for end in range(start, min(start + max_count, len(paths))):
        size += len(paths[end].encode()) + 14
        if size > MAX_BULK_REQUEST_BYTES and end > start:
            return paths[start:end]
    return paths[start : start + max_count]


class RemoveWatches(ZkRequest):
    """Let the server forget all watches of this session on a path.

    Its answer is an error when there is none: the watch has just fired.
    """

    __slots__ = ()
    type = 18
    _ANY_TYPE = _INT.pack(3)

    def __init__(self, path: str) -> None:
        super().__init__(_string(path) + self._ANY_TYPE)


class GetAcl(ZkRequest):
    """Read the ACL of a node."""

    __slots__ = ()
    type = 6

    def __init__(self, path: str) -> None:
        super().__init__(_string(path))


class SetAcl(ZkRequest):
    """Change the ACL of a node."""

    __slots__ = ()
    type = 7

    def __init__(self, path: str, acl: Acl, login: Login | None) -> None:
        super().__init__(_string(path) + _encoded(acl, login) + _INT.pack(-1))


class CloseSession(Close):  # type: ignore[misc]  # kazoo is untyped
    """kazoo's request to close the session, with an answer that the caller can wait for."""

    def __bool__(self) -> bool:
        """True: kazoo completes only truthy requests, and an empty tuple is false."""
        return True

    def deserialize(self, buffer: bytes, offset: int) -> Answer:
        """Keep the answer as it is."""
        return buffer, offset


class Multi(ZkRequest):
    """Conditional operations applied together or not at all.

    What they create gets Kafka's ACLs for the ``login``. Raises ``RequestTooLargeError`` when they
    do not fit into one request.
    """

    __slots__ = ("operations",)
    type = 14

    def __init__(
        self, operations: Sequence[Operation], chroot: str, login: Login | None = None
    ) -> None:
        encoded = [_encode_operation(op, chroot, login) for op in operations]
        body = b"".join(encoded) + _MULTI_END
        if len(body) > MAX_REQUEST_BYTES:
            raise RequestTooLargeError(
                f"a multi of {len(operations)} operations has {len(body)} bytes, more than the "
                f"{MAX_REQUEST_BYTES} ZooKeeper accepts: split it (first path: "
                f"{operations[0].path})"
            )
        super().__init__(body)
        self.operations = operations

    def decode(self, answer: Answer, chroot: str) -> MultiResult:
        """Return the result of the operations."""
        buffer, offset = answer
        results: list[str | ZnodeStat | None] = []
        for index, operation in enumerate(self.operations):
            kind, _, _ = _MULTI_HEADER.unpack_from(buffer, offset)
            offset += _MULTI_HEADER.size
            if kind == _ERROR_RESULT:
                (code,) = _INT.unpack_from(buffer, offset)
                offset += _INT.size
                if code not in (_ROLLED_BACK, _RUNTIME_INCONSISTENCY):
                    return Refused(index, zk_error(code))
                continue
            match operation:
                case Create():
                    path, offset = _decode_string(buffer, offset)
                    results.append(path[len(chroot) :])
                case SetData():
                    results.append(decode_stat(buffer, offset))
                    offset += _STAT.size
                case Delete() | Check():
                    results.append(None)
        if len(results) < len(self.operations):
            return Refused(len(results), ZkError.OTHER)
        return Committed(tuple(results))


def absolute(chroot: str, path: str) -> str:
    """Put the chroot in front of a path."""
    return chroot + path if path != "/" else chroot or "/"


def zk_error(code: int) -> ZkError:
    """Return the member for one of ZooKeeper's error codes."""
    try:
        return ZkError(code)
    except ValueError:
        return ZkError.OTHER


def error_name(code: int) -> str:
    """Return the name of one of ZooKeeper's error codes, for messages."""
    error = zk_error(code)
    return f"error {code}" if error is ZkError.OTHER else error.name


def _encode_operation(operation: Operation, chroot: str, login: Login | None) -> bytes:
    path = _string(absolute(chroot, operation.path))
    match operation:
        case Create(data=data, ephemeral=ephemeral, sequential=sequential):
            flags = (_EPHEMERAL if ephemeral else 0) | (_SEQUENTIAL if sequential else 0)
            header = _MULTI_HEADER.pack(1, 0, -1)
            acl = _encoded(acl_of(operation.path), login)
            # No data are null, as in Kafka, some of whose brokers fail to read empty data.
            size = _INT.pack(len(data) or _NULL)
            return b"".join((header, path, size, data, acl, _INT.pack(flags)))
        case SetData(data=data, version=version):
            header = _MULTI_HEADER.pack(5, 0, -1)
            size = _INT.pack(len(data) or _NULL)
            return b"".join((header, path, size, data, _INT.pack(version)))
        case Delete(version=version):
            return _MULTI_HEADER.pack(2, 0, -1) + path + _INT.pack(version)
        case Check(version=version):
            return _MULTI_HEADER.pack(13, 0, -1) + path + _INT.pack(version)
        case _ as unreachable:
            assert_never(unreachable)


def decode_multi_read(
    answer: Answer, decode: Callable[[bytes, int], tuple[T, int]]
) -> Iterator[T | ReadRefused | None]:
    """Decode the answer to MultiRead, each result by ``decode``.

    None for an absent node. ``ReadRefused`` for any other error, which concerns only that path.
    """
    buffer, offset = answer
    while True:
        kind, done, _ = _MULTI_HEADER.unpack_from(buffer, offset)
        offset += _MULTI_HEADER.size
        if done:
            return
        if kind == _ERROR_RESULT:
            (code,) = _INT.unpack_from(buffer, offset)
            offset += _INT.size
            yield None if code == ZkError.NO_NODE else ReadRefused(error_name(code))
        else:
            result, offset = decode(buffer, offset)
            yield result


def decode_znodes(answer: Answer) -> list[Znode | ReadRefused | None]:
    """Decode the answer to a MultiRead of data, as ``decode_multi_read`` does, in half the time."""
    buffer, offset = answer
    results: list[Znode | ReadRefused | None] = []
    last = len(buffer) - _MULTI_HEADER.size
    while offset < last:
        kind, _, _, length = _DATA_RESULT.unpack_from(buffer, offset)
        offset += _DATA_RESULT.size
        if kind == _ERROR_RESULT:  # then this is the code, not a length
            results.append(None if length == ZkError.NO_NODE else ReadRefused(error_name(length)))
            continue
        end = offset + length if length > 0 else offset
        stat = _new_stat(_STAT.unpack_from(buffer, end))
        results.append(_new_znode((buffer[offset:end], stat)))
        offset = end + _STAT.size
    return results


def decode_znode(buffer: bytes, offset: int) -> tuple[Znode, int]:
    """Decode the answer to GetData; return it and the offset after it."""
    (length,) = _INT.unpack_from(buffer, offset)
    offset += _INT.size
    end = offset + max(length, 0)
    return Znode(buffer[offset:end], decode_stat(buffer, end)), end + _STAT.size


def decode_children(buffer: bytes, offset: int) -> tuple[list[str], int]:
    """Decode the answer to GetChildren, sorted; return it and the offset after it."""
    (count,) = _INT.unpack_from(buffer, offset)
    offset += _INT.size
    names = []
    for _ in range(count):
        name, offset = _decode_string(buffer, offset)
        names.append(name)
    names.sort()
    return names, offset


def decode_acl(buffer: bytes, offset: int) -> tuple[tuple[AclEntry, ...], int]:
    """Decode the answer to ``GetAcl``; return the entries and the next offset."""
    (count,) = _INT.unpack_from(buffer, offset)
    offset += _INT.size
    entries = []
    for _ in range(count):
        (permissions,) = _INT.unpack_from(buffer, offset)
        scheme, offset = _decode_string(buffer, offset + _INT.size)
        user, offset = _decode_string(buffer, offset)
        entries.append(AclEntry(Permission(permissions), scheme, user))
    return tuple(entries), offset


def _decode_string(buffer: bytes, offset: int) -> tuple[str, int]:
    (length,) = _INT.unpack_from(buffer, offset)
    offset += _INT.size
    end = offset + length
    return buffer[offset:end].decode(), end


def decode_stat(buffer: bytes, offset: int) -> ZnodeStat:
    """Decode the stat of a znode, as in the answer to Exists."""
    return _new_stat(_STAT.unpack_from(buffer, offset))
