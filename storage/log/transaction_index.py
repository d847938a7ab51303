"""The aborted transactions of one segment: those whose abort markers are in it.

Mirrors ``org.apache.kafka.storage.internals.log.TransactionIndex`` and ``AbortedTxn``. Readers of
committed records need it: they skip the records of a producer from the first offset of an aborted
transaction to its marker. Other transactions are not in it, so most segments have no file
``.txnindex``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from regent.core.errors import BadDataError
from regent.storage.files import storage_error, write_atomically

_VERSION: Final = 0
_ENTRY: Final = struct.Struct(">hqqqq")


class AbortedTransaction(NamedTuple):
    """An aborted transaction with the offsets of its first record and of its marker.

    ``last_stable_offset`` is that of the partition when the marker had been appended.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int

    def encode(self) -> bytes:
        """Return the entry of an index."""
        return _ENTRY.pack(_VERSION, *self)


def decode_aborted_transaction(data: bytes) -> AbortedTransaction:
    """Return an entry; raises ``BadDataError``."""
    if len(data) != _ENTRY.size:
        raise BadDataError(f"an entry of a transaction index has {len(data)} bytes")
    version, *fields = _ENTRY.unpack(data)
    if not 0 <= version <= _VERSION:
        raise BadDataError(f"an entry of a transaction index has the unknown version {version}")
    return AbortedTransaction(*fields)


class TransactionIndex:
    """The whole index in memory, by the offsets of the markers."""

    __slots__ = ("_entries", "is_changed")

    def __init__(self, entries: Iterable[AbortedTransaction] = ()) -> None:
        self._entries = list(entries)
        self.is_changed = False  # since it was read from its file or written to it

    @classmethod
    def load(cls, path: Path, base_offset: int) -> TransactionIndex:
        """Read a file; without one, no transaction was aborted.

        Raises ``BadDataError`` if it is not an index of this segment, and ``StorageError``.
        """
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return cls()
        except OSError as error:
            raise storage_error(path, error) from None
        return cls.decode(data, base_offset)

    @classmethod
    def decode(cls, data: bytes, base_offset: int) -> TransactionIndex:
        """Return the index in a file. Raises ``BadDataError``."""
        index, size = cls(), _ENTRY.size
        for position in range(0, len(data), size):
            entry = decode_aborted_transaction(data[position : position + size])
            if entry.last_offset < base_offset:
                raise BadDataError(f"a marker at {entry.last_offset}, before {base_offset}")
            index.append(entry)
        index.is_changed = False
        return index

    def encode(self) -> bytes:
        """Return the content of the file."""
        return b"".join(entry.encode() for entry in self._entries)

    @property
    def entries(self) -> Sequence[AbortedTransaction]:
        """The aborted transactions, in the order of their markers."""
        return self._entries

    @property
    def last_offset(self) -> int:
        """The offset of the last marker; -1 if there is none."""
        return self._entries[-1].last_offset if self._entries else -1

    def append(self, entry: AbortedTransaction) -> None:
        """Add a transaction; its marker must follow the others. Raises ``BadDataError``."""
        if entry.last_offset <= self.last_offset:
            raise BadDataError(f"a marker at {entry.last_offset} after one at {self.last_offset}")
        self._entries.append(entry)
        self.is_changed = True

    def truncate_to(self, offset: int) -> None:
        """Remove the transactions whose markers are at ``offset`` or after it."""
        kept = [entry for entry in self._entries if entry.last_offset < offset]
        self.is_changed |= len(kept) < len(self._entries)
        self._entries = kept

    def collect(self, offset: int, end: int) -> tuple[Sequence[AbortedTransaction], bool]:
        """Return the transactions with records from ``offset`` to before ``end``.

        Also return whether these are all: later segments may have the markers of others.
        """
        found = []
        for entry in self._entries:
            if entry.last_offset >= offset and entry.first_offset < end:
                found.append(entry)
            if entry.last_stable_offset >= end:
                return found, True
        return found, False

    def write(self, path: Path) -> None:
        """Replace the file if anything has changed, and wait until it is on the disk.

        Nothing else would reveal a lost entry, and aborted records would then be read. Raises
        ``StorageError``.
        """
        if not self.is_changed:
            return
        if self._entries:
            write_atomically(path, self.encode())
        else:
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise storage_error(path, error) from None
        self.is_changed = False
