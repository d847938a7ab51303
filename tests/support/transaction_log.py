"""ZooKeeper's own transaction log: complete, and in sequence.

Mirrors the records of org.apache.zookeeper.txn, jute encoded: big endian, strings, buffers and
vectors after their length as an int.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

MAGIC = b"ZKLG"
FILE_HEADER_BYTES = 16  # magic, version, database id
END_OF_RECORD = b"B"

# org.apache.zookeeper.ZooDefs.OpCode
CREATE = (1, 15, 19, 21)  # plain, with stat, container, with a time to live
DELETE = (2, 20)  # by hand, of an empty container
SET_DATA = 5
MULTI = 14
CLOSE_SESSION = -11


@dataclass(frozen=True, slots=True)
class Write:
    """One change of one znode; ``kind`` is "create", "set" or "delete"."""

    kind: str
    path: str
    data: bytes = b""


@dataclass(frozen=True, slots=True)
class Transaction:
    """The changes of one zxid; ``session`` is their author."""

    zxid: int
    session: int
    time_ms: int
    closes_session: bool
    writes: tuple[Write, ...]


def read_transactions(directory: Path) -> list[Transaction]:
    """Return everything written so far by the server whose log files are in ``directory``.

    Without new sessions, refused requests and access lists.
    """
    files = sorted(directory.glob("log.*"), key=lambda file: int(file.suffix[1:], 16))
    return [t for file in files for t in _transactions(file.read_bytes()) if t is not None]


def _transactions(log: bytes) -> list[Transaction | None]:
    if log[:4] != MAGIC:
        return []  # just created
    found = []
    at = FILE_HEADER_BYTES
    while at + 12 <= len(log):
        _checksum, length = struct.unpack_from(">qi", log, at)
        record = log[at + 12 : at + 12 + length]
        at += 12 + length + 1
        if length <= 0 or log[at - 1 : at] != END_OF_RECORD:
            break  # the server allocates its files ahead, and may be writing this record
        found.append(_transaction(_Reader(record)))
    return found


def _transaction(reader: _Reader) -> Transaction | None:
    session, _cxid, zxid, time_ms, kind = reader.numbers(">qiqqi")
    writes = tuple(_writes(kind, reader))
    closes_session = kind == CLOSE_SESSION
    if not writes and not closes_session:
        return None
    return Transaction(zxid, session, time_ms, closes_session, writes)


def _writes(kind: int, reader: _Reader) -> list[Write]:
    if kind in CREATE:
        return [Write("create", reader.text(), reader.buffer())]
    if kind in DELETE:
        return [Write("delete", reader.text())]
    if kind == SET_DATA:
        return [Write("set", reader.text(), reader.buffer())]
    if kind == CLOSE_SESSION:
        return [Write("delete", path) for path in reader.texts()]
    if kind == MULTI:
        (count,) = reader.numbers(">i")
        parts = [(reader.numbers(">i")[0], reader.buffer()) for _ in range(count)]
        return [write for part, data in parts for write in _writes(part, _Reader(data))]
    return []


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
