"""The fields of the records of internal topics: a version, then numbers, strings and arrays.

Lengths are fixed-size numbers, or varints in the flexible versions (KIP-482).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, TypeVar

from regent.core.errors import BadDataError

T = TypeVar("T")

INT8: Final = struct.Struct(">b")
INT16: Final = struct.Struct(">h")
INT32: Final = struct.Struct(">i")
INT64: Final = struct.Struct(">q")
_NULL: Final = -1


class RecordReader:
    """Reads the fields of a key or value in sequence; every method raises ``BadDataError``."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0
        self._is_flexible = False

    def version(self, flexible: int, what: str) -> int:
        """Return the version; ``flexible`` is the only flexible one, and the newest known."""
        version = self.int16()
        if not 0 <= version <= flexible:
            raise BadDataError(f"a record of {what} has the unknown version {version}")
        self._is_flexible = version == flexible
        return version

    def int8(self) -> int:
        """Return a number of one byte."""
        return self._unpack(INT8)

    def int16(self) -> int:
        """Return a number of two bytes."""
        return self._unpack(INT16)

    def int32(self) -> int:
        """Return a number of four bytes."""
        return self._unpack(INT32)

    def int64(self) -> int:
        """Return a number of eight bytes."""
        return self._unpack(INT64)

    def string(self) -> str:
        """Return a string; null is empty."""
        return self.nullable_string() or ""

    def nullable_string(self) -> str | None:
        """Return a string or null."""
        data = self._take(self._length(INT16))
        try:
            return None if data is None else data.decode()
        except UnicodeDecodeError as error:
            raise BadDataError(f"a record has a bad string: {error}") from None

    def bytes_(self) -> bytes:
        """Return bytes; null is empty."""
        return self._take(self._length(INT32)) or b""

    def array(self, read: Callable[[], T]) -> list[T]:
        """Return the elements of an array, each read by ``read``; null is empty."""
        return self.nullable_array(read) or []

    def nullable_array(self, read: Callable[[], T]) -> list[T] | None:
        """Return the elements of an array, each read by ``read``, or null."""
        count = self._length(INT32)
        if count == _NULL:
            return None
        if not 0 <= count <= len(self._data):
            raise BadDataError(f"a record has an array of {count} elements")
        return [read() for _ in range(count)]

    def end_struct(self) -> None:
        """Skip the tagged fields at the end of a struct, in flexible versions."""
        if self._is_flexible:
            for _ in range(self._varint()):
                self._varint()
                self._take(self._varint())

    def _length(self, layout: struct.Struct) -> int:
        return self._varint() - 1 if self._is_flexible else self._unpack(layout)

    def _varint(self) -> int:
        value = shift = 0
        while shift < 35:
            byte = self._unpack_byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
        raise BadDataError("a record has a varint of more than five bytes")

    def _unpack_byte(self) -> int:
        data = self._take(1)
        assert data is not None
        return data[0]

    def _unpack(self, layout: struct.Struct) -> int:
        data = self._take(layout.size)
        assert data is not None
        value: int = layout.unpack(data)[0]
        return value

    def _take(self, length: int) -> bytes | None:
        if length == _NULL:
            return None
        end = self._position + length
        if length < 0 or end > len(self._data):
            raise BadDataError(f"a record ends in the middle, after {len(self._data)} B")
        taken = self._data[self._position : end]
        self._position = end
        return taken


def string_field(text: str | None) -> bytes:
    """Return a string, or null, with its length."""
    if text is None:
        return INT16.pack(_NULL)
    encoded = text.encode()
    return INT16.pack(len(encoded)) + encoded


def bytes_field(data: bytes) -> bytes:
    """Return bytes with their length."""
    return INT32.pack(len(data)) + data
