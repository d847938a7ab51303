"""ZooKeeper's own transaction log: complete, and in sequence.

Mirrors the records of org.apache.zookeeper.txn, jute encoded: big endian, strings, buffers and
vectors after their length as an int.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import BinaryIO, Final

_MAGIC: Final = b"ZKLG"
_FILE_HEADER_BYTES: Final = 16  # magic, version, database id
_RECORD_HEADER: Final = struct.Struct(">qi")  # checksum, length
_END_OF_RECORD: Final = b"B"

# org.apache.zookeeper.ZooDefs.OpCode
_ERROR: Final = -1
_CREATE: Final = (1, 15, 19, 21)  # plain, with stat, container, with a time to live
_DELETE: Final = (2, 20)  # by hand, of an empty container
_SET_DATA: Final = 5
_MULTI: Final = 14
_CREATE_SESSION: Final = -10
_CLOSE_SESSION: Final = -11


class TransactionKind(StrEnum):
    """What a transaction did. A refused one has a zxid, too; a change may only check versions."""

    CHANGE = "change"
    REFUSED = "refused"
    SESSION_OPENED = "session opened"
    SESSION_CLOSED = "session closed"


_SESSION_KINDS: Final = {
    _CREATE_SESSION: TransactionKind.SESSION_OPENED,
    _CLOSE_SESSION: TransactionKind.SESSION_CLOSED,
}


@dataclass(frozen=True, slots=True)
class Write:
    """One change of one znode; ``kind`` is "create", "set" or "delete"."""

    kind: str
    path: str
    data: bytes = b""


@dataclass(frozen=True, slots=True)
class Transaction:
    """The changes of one zxid; ``session`` is their author.

    ``time_ms`` is when the server took the request. The end of a session deletes its ephemeral
    znodes: these are its writes.
    """

    zxid: int
    session: int
    time_ms: int
    kind: TransactionKind
    writes: tuple[Write, ...]

    @property
    def closes_session(self) -> bool:
        """Whether it is the end of a session."""
        return self.kind is TransactionKind.SESSION_CLOSED


class ZooKeeperLog:
    """The log files of a server, which is running or not; reads each record once.

    ``directory`` is ``version-2`` in the data directory of the server.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._positions: dict[Path, int] = {}

    def read_new(self) -> list[Transaction]:
        """Return the transactions since the last call, or since the first log file."""
        files = sorted(self._directory.glob("log.*"), key=lambda file: int(file.suffix[1:], 16))
        return [transaction for file in files for transaction in self._read(file)]

    def _read(self, path: Path) -> Iterator[Transaction]:
        position = self._positions.get(path, 0)
        with path.open("rb") as file:
            if position == 0:
                if file.read(_FILE_HEADER_BYTES)[:4] != _MAGIC:
                    return  # just created
                position = _FILE_HEADER_BYTES
            file.seek(position)
            while (record := _next_record(file)) is not None:
                yield _transaction(_Reader(record))
                position = file.tell()
        self._positions[path] = position


def _next_record(file: BinaryIO) -> bytes | None:
    """Return the next record, None if there is none yet.

    The server allocates its files ahead, with zeros, and may be writing a record now.
    """
    header = file.read(_RECORD_HEADER.size)
    if len(header) < _RECORD_HEADER.size:
        return None
    _checksum, length = _RECORD_HEADER.unpack(header)
    if length <= 0:
        return None
    record = file.read(length + 1)
    return record[:-1] if len(record) == length + 1 and record[-1:] == _END_OF_RECORD else None


def _transaction(reader: _Reader) -> Transaction:
    session, _cxid, zxid, time_ms, code = reader.numbers(">qiqqi")
    try:
        writes = tuple(_writes(code, reader))
    except _RefusedError:
        return Transaction(zxid, session, time_ms, TransactionKind.REFUSED, ())
    kind = _SESSION_KINDS.get(code, TransactionKind.CHANGE)
    return Transaction(zxid, session, time_ms, kind, writes)


def _writes(code: int, reader: _Reader) -> list[Write]:
    """Return the writes of a transaction; raises _RefusedError."""
    if code == _ERROR:
        raise _RefusedError
    if code in _CREATE:
        return [Write("create", reader.text(), reader.buffer())]
    if code in _DELETE:
        return [Write("delete", reader.text())]
    if code == _SET_DATA:
        return [Write("set", reader.text(), reader.buffer())]
    if code == _CLOSE_SESSION:
        return [Write("delete", path) for path in reader.texts()]
    if code == _MULTI:
        (count,) = reader.numbers(">i")
        parts = [(reader.numbers(">i")[0], reader.buffer()) for _ in range(count)]
        return [write for part, data in parts for write in _writes(part, _Reader(data))]
    return []


class _RefusedError(Exception):
    """The transaction is an error; a refused multi has only errors."""


class _Reader:
    """Reads values from the start of a record."""

    def __init__(self, record: bytes) -> None:
        self._record = record
        self._at = 0

    def numbers(self, layout: str) -> tuple[int, ...]:
        found: tuple[int, ...] = struct.unpack_from(layout, self._record, self._at)
        self._at += struct.calcsize(layout)
        return found

    def buffer(self) -> bytes:
        (length,) = self.numbers(">i")
        start, self._at = self._at, self._at + max(length, 0)  # -1: null
        return self._record[start : self._at]

    def text(self) -> str:
        return self.buffer().decode()

    def texts(self) -> list[str]:
        (count,) = self.numbers(">i")
        return [self.text() for _ in range(count)]
