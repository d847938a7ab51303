"""Record batches that are read or sent. The core does not look into them.

Disks, brokers and clients use the same record batches, of magic 2. A broker reads and patches their
61-byte headers and never decodes a record. Batches in a file stay there until they are sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

RecordBytes: TypeAlias = bytes | bytearray | memoryview
"""Whole record batches in memory, one after the other."""


class HasFileno(Protocol):
    """An open file; it stays readable while held, even if deleted."""

    def fileno(self) -> int:
        """Return its descriptor."""
        ...


class FileRange(NamedTuple):
    """Where records are in a file, so that they can be sent from there (sendfile)."""

    file: HasFileno
    position: int


class Records(Protocol):
    """``size`` bytes of whole record batches, in memory or in a file until they are sent.

    The bytes never change, because all of them are before the end of the log.
    """

    @property
    def size(self) -> int:
        """How many bytes there are."""
        ...

    @property
    def file_range(self) -> FileRange | None:
        """Where they are in a file; None when they are in memory."""
        ...

    def read(self) -> RecordBytes:
        """Return the bytes. Raises ``StorageError``."""
        ...


@dataclass(frozen=True, slots=True)
class MemoryRecords:
    """Records in memory."""

    data: RecordBytes = b""

    @property
    def size(self) -> int:
        """How many bytes there are."""
        return len(self.data)

    @property
    def file_range(self) -> FileRange | None:
        """Return None."""
        return None

    def read(self) -> RecordBytes:
        """Return the bytes."""
        return self.data


NO_RECORDS = MemoryRecords()
