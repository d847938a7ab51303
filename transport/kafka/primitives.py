"""Kafka's primitive types on the wire, in both forms of messages.

Integers are big-endian. Strings, byte sequences and arrays follow their length. In a flexible
message (KIP-482) the length plus one is an unsigned varint, and 0 is null; tagged fields end every
structure. In other messages the length is an integer, and -1 is null. Mirrors
``org.apache.kafka.common.protocol.types.Type``.

Requests are not decoded with kio (0.6.5): it allocates an array by its declared length before it
reads the elements. In DeleteTopics version 4, a body of 13 bytes with the length 2^32 - 2 aborts
the process. kio also refuses tagged fields that it does not know, and has no limit of elements.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from regent.core.protocol.control import TopicId
from regent.core.records import RecordBytes, Records

T = TypeVar("T")

INT8: Final = struct.Struct(">b")
INT16: Final = struct.Struct(">h")
INT32: Final = struct.Struct(">i")
INT64: Final = struct.Struct(">q")
FLOAT64: Final = struct.Struct(">d")
UUID_BYTES: Final = 16

MAX_ELEMENTS: Final = 50_000
"""Maximum number of elements in all arrays of a request.

Each costs some microseconds, and all clients wait meanwhile.
"""

OUT_OF_RANGE: Final = (struct.error, UnicodeEncodeError)
"""What a value raises that does not fit the wire."""

_NULL: Final = -1
_ZERO_UUID: Final = bytes(UUID_BYTES)
_NO_FIELDS: Final[Mapping[int, memoryview]] = {}
_VARINT_BITS: Final = range(0, 35, 7)  # five bytes: 32 bits


class MalformedRequestError(Exception):
    """A malformed request; its connection is closed."""


class Reader:
    """Reads values in sequence from ``view``; byte sequences are views of it, not copies.

    Every method raises ``MalformedRequestError`` when the value is incomplete.
    """

    __slots__ = ("_elements_left", "_end", "_is_flexible", "_max_elements", "_view", "position")

    def __init__(
        self,
        view: memoryview,
        position: int = 0,
        *,
        is_flexible: bool = False,
        max_elements: int = MAX_ELEMENTS,
    ) -> None:
        self._elements_left = self._max_elements = max_elements
        self._is_flexible = is_flexible
        self._view = view
        self._end = len(view)
        self.position = position

    @property
    def remaining(self) -> int:
        """The number of bytes left."""
        return self._end - self.position

    def unpack(self, layout: struct.Struct) -> tuple[Any, ...]:
        """Read several values of fixed size at once."""
        try:
            values = layout.unpack_from(self._view, self.position)
        except struct.error:
            raise self._too_short(layout.size) from None
        self.position += layout.size
        return values

    def int8(self) -> int:
        """Read a signed byte."""
        return self.unpack(INT8)[0]  # type: ignore[no-any-return]

    def int16(self) -> int:
        """Read two bytes."""
        return self.unpack(INT16)[0]  # type: ignore[no-any-return]

    def int32(self) -> int:
        """Read four bytes."""
        return self.unpack(INT32)[0]  # type: ignore[no-any-return]

    def int64(self) -> int:
        """Read eight bytes."""
        return self.unpack(INT64)[0]  # type: ignore[no-any-return]

    def float64(self) -> float:
        """Read eight bytes, IEEE 754."""
        return self.unpack(FLOAT64)[0]  # type: ignore[no-any-return]

    def boolean(self) -> bool:
        """Read a byte; every value but 0 is true."""
        return self.int8() != 0

    def uuid(self) -> TopicId | None:
        """Read a UUID; None: all its bytes are zero, which is Kafka's null."""
        encoded = bytes(self._take(UUID_BYTES))
        return None if encoded == _ZERO_UUID else uuid_text(encoded)

    def unsigned_varint(self) -> int:
        """Read up to 32 bits, seven in each byte, the lowest first."""
        if self.position < self._end and (byte := self._view[self.position]) < 0x80:
            self.position += 1
            return byte  # as nearly always
        value = 0
        for shift in _VARINT_BITS:
            if self.position >= self._end:
                raise self._too_short(1)
            byte = self._view[self.position]
            self.position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise MalformedRequestError("a varint of more than five bytes")

    def string(self) -> str:
        """Read a string that must not be null."""
        return _not_null(self.nullable_string())

    def nullable_string(self) -> str | None:
        """Read a string."""
        length = self._length(INT16)
        if length == _NULL:
            return None
        try:
            return str(self._take(length), "utf-8")
        except UnicodeDecodeError as error:
            raise MalformedRequestError(f"a string that is not UTF-8: {error}") from None

    def bytes_(self) -> memoryview:
        """Read a byte sequence that must not be null."""
        return _not_null(self.nullable_bytes())

    def nullable_bytes(self) -> memoryview | None:
        """Read a byte sequence, record batches for instance."""
        length = self._length(INT32)
        return None if length == _NULL else self._take(length)

    def array(self, read: Callable[[], T]) -> list[T]:
        """Read an array that must not be null, each element with ``read``."""
        return _not_null(self.nullable_array(read))

    def nullable_array(self, read: Callable[[], T]) -> list[T] | None:
        """Read an array, each element with ``read``."""
        count = self.nullable_array_length()
        return None if count is None else [read() for _ in range(count)]

    def array_length(self) -> int:
        """Read the beginning of an array that must not be null; its elements follow."""
        count = self._length(INT32)
        self._count_elements(count)
        return count

    def nullable_array_length(self) -> int | None:
        """Read the beginning of an array; its elements follow."""
        count = self._length(INT32)
        if count == _NULL:
            return None
        self._count_elements(count)
        return count

    def end_struct(self) -> Mapping[int, memoryview]:
        """Read the tagged fields that end a structure: bytes by tag; none if not flexible."""
        if not self._is_flexible or (count := self.unsigned_varint()) == 0:
            return _NO_FIELDS
        self._count_elements(count)
        fields: dict[int, memoryview] = {}
        for _ in range(count):
            tag, size = self.unsigned_varint(), self.unsigned_varint()
            fields[tag] = self._take(size)
        return fields

    def _length(self, layout: struct.Struct) -> int:
        if self._is_flexible:
            return self.unsigned_varint() - 1
        return self.unpack(layout)[0]  # type: ignore[no-any-return]

    def _count_elements(self, count: int) -> None:
        if not 0 <= count <= self.remaining:  # an element takes a byte at least
            raise MalformedRequestError(f"an array of {count} elements in {self.remaining} bytes")
        self._elements_left -= count
        if self._elements_left < 0:
            raise MalformedRequestError(f"more than {self._max_elements} elements in one message")

    def _take(self, length: int) -> memoryview:
        start, end = self.position, self.position + length
        if length < 0 or end > self._end:
            raise self._too_short(length)
        self.position = end
        return self._view[start:end]

    def _too_short(self, wanted: int) -> MalformedRequestError:
        return MalformedRequestError(
            f"a value of {wanted} bytes at {self.position}, but {self.remaining} bytes are left"
        )


class Writer:
    """Writes values in sequence; records are not copied."""

    __slots__ = ("_buffer", "_is_flexible", "_pieces", "left_out")

    def __init__(self, *, is_flexible: bool = False) -> None:
        self._buffer = bytearray()
        self._is_flexible = is_flexible
        self._pieces: list[RecordBytes | Records] = [self._buffer]
        self.left_out: list[object] | None = None
        """Rows that do not fit the wire, if they may be left out; None: they are an error."""

    def pieces(self) -> list[RecordBytes | Records]:
        """Return the written pieces in sequence."""
        return self._pieces

    def whole(self) -> bytes:
        """Return the written bytes, which have no records."""
        assert len(self._pieces) == 1
        return bytes(self._buffer)

    def pack(self, layout: struct.Struct, *values: object) -> None:
        """Write several values of fixed size at once."""
        self._buffer += layout.pack(*values)

    def int8(self, value: int) -> None:
        """Write a signed byte."""
        self._buffer += INT8.pack(value)

    def int16(self, value: int) -> None:
        """Write two bytes."""
        self._buffer += INT16.pack(value)

    def int32(self, value: int) -> None:
        """Write four bytes."""
        self._buffer += INT32.pack(value)

    def int64(self, value: int) -> None:
        """Write eight bytes."""
        self._buffer += INT64.pack(value)

    def float64(self, value: float) -> None:
        """Write eight bytes, IEEE 754."""
        self._buffer += FLOAT64.pack(value)

    def boolean(self, value: bool) -> None:
        """Write a byte."""
        self._buffer.append(value)

    def uuid(self, value: TopicId | None) -> None:
        """Write a UUID; None: all its bytes are zero, which is Kafka's null."""
        self._buffer += uuid_bytes(value)

    def unsigned_varint(self, value: int) -> None:
        """Write up to 32 bits, seven in each byte, the lowest first."""
        while value > 0x7F:
            self._buffer.append(value & 0x7F | 0x80)
            value >>= 7
        self._buffer.append(value)

    def string(self, value: str) -> None:
        """Write a string."""
        encoded = value.encode()
        self._length(len(encoded), INT16)
        self._buffer += encoded

    def nullable_string(self, value: str | None) -> None:
        """Write a string or null."""
        if value is None:
            self._length(_NULL, INT16)
        else:
            self.string(value)

    def bytes_(self, value: RecordBytes) -> None:
        """Write a byte sequence."""
        self._length(len(value), INT32)
        self._buffer += value

    def nullable_bytes(self, value: RecordBytes | None) -> None:
        """Write a byte sequence or null."""
        if value is None:
            self._length(_NULL, INT32)
        else:
            self.bytes_(value)

    def array(self, values: Iterable[T], write: Callable[[T], None]) -> None:
        """Write an array, each element with ``write``."""
        elements = list(values)
        self.array_length(len(elements))
        for element in elements:
            write(element)

    def rows(self, values: Iterable[T], write: Callable[[T], None]) -> None:
        """Write an array of structures; without those that do not fit, if these may be left out.

        Raises ``struct.error`` otherwise.
        """
        elements = list(values)
        pieces, buffer = len(self._pieces), self._buffer
        size = len(buffer)
        try:
            self.array(elements, write)
        except OUT_OF_RANGE:
            if self.left_out is None:
                raise
            del self._pieces[pieces:], buffer[size:]
            self._buffer = buffer
            self.array(self._fitting(elements, write), write)

    def _fitting(self, elements: Sequence[T], write: Callable[[T], None]) -> list[T]:
        """Return the elements that can be written; add the others to ``left_out``."""
        fitting: list[T] = []
        pieces, buffer = self._pieces, self._buffer
        for element in elements:
            self._buffer = bytearray()
            self._pieces = [self._buffer]
            try:
                write(element)
                fitting.append(element)
            except OUT_OF_RANGE:
                assert self.left_out is not None
                self.left_out.append(element)
        self._pieces, self._buffer = pieces, buffer
        return fitting

    def nullable_array(self, values: Iterable[T] | None, write: Callable[[T], None]) -> None:
        """Write an array or null."""
        if values is None:
            self._length(_NULL, INT32)
        else:
            self.array(values, write)

    def array_length(self, count: int) -> None:
        """Write the beginning of an array; its ``count`` elements follow."""
        self._length(count, INT32)

    def null_array(self) -> None:
        """Write an array that is null."""
        self._length(_NULL, INT32)

    def end_struct(self, tagged: Mapping[int, bytes] | None = None) -> None:
        """Write the tagged fields that end a structure, if the message is flexible."""
        if not self._is_flexible:
            return
        if not tagged:
            self._buffer.append(0)
            return
        self.unsigned_varint(len(tagged))
        for tag, data in sorted(tagged.items()):
            self.unsigned_varint(tag)
            self.unsigned_varint(len(data))
            self._buffer += data

    def encoded(self, data: RecordBytes) -> None:
        """Write bytes that are encoded already."""
        self._buffer += data

    def records(self, records: Records) -> None:
        """Write record batches as a byte sequence, by reference."""
        size = records.size
        self._length(size, INT32)
        if size:
            self._buffer = bytearray()
            self._pieces += (records, self._buffer)

    def _length(self, length: int, layout: struct.Struct) -> None:
        if self._is_flexible:
            self.unsigned_varint(length + 1)
        else:
            self._buffer += layout.pack(length)


def uuid_bytes(uuid: TopicId | None) -> bytes:
    """Return the 16 bytes of a UUID; all are zero for None."""
    return _ZERO_UUID if uuid is None else base64.urlsafe_b64decode(f"{uuid}==")


def uuid_text(encoded: bytes) -> TopicId:
    """Return Kafka's form of a UUID of 16 bytes: 22 characters of base64url."""
    return base64.urlsafe_b64encode(encoded).decode().rstrip("=")


def _not_null(value: T | None) -> T:
    if value is None:
        raise MalformedRequestError("a value is null that must not be")
    return value
