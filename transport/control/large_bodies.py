"""Decodes large request bodies in pieces, so that other threads do not wait.

msgpack decodes its whole input while no other thread of this process runs, and the decoded objects
may be twenty times as large. Here ``PIECE_BYTES`` are decoded at once, and each piece is checked
against the schema before the next. Decoding ends at the first value of a wrong form, or after
``max_values`` arrays, maps and elements. An element that is larger than a piece is decoded field by
field.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple, TypeAlias

import msgpack

from regent.core.errors import BadDataError
from regent.core.records import RecordBytes
from regent.transport.control.schema import ColumnDecoder, column_decoder, hints_of, without_none

PIECE_BYTES: Final = 64 * 1024
_NIL: Final = 0xC0

NewUnpacker: TypeAlias = Callable[[Callable[[], None]], msgpack.Unpacker]
"""Makes an unpacker with every limit, which calls its argument for each array and map."""


class Form(NamedTuple):
    """What a value must be: an array, an object of a class, or neither."""

    name: str
    decode: ColumnDecoder
    is_optional: bool = False
    element: Form | None = None  # of an array
    fields: dict[str, Form] | None = None  # of a class
    cls: type[Any] | None = None


def form_of(cls: type[Any]) -> Form:
    """Return the form of a body; call it once for each class."""
    return _form(cls, cls.__name__)


def decode_in_pieces(
    form: Form,
    data: RecordBytes,
    new_unpacker: NewUnpacker,
    *,
    max_values: int,
    piece_bytes: int = PIECE_BYTES,
) -> Any:
    """Return the object in ``data``. Raises ``BadDataError``."""
    cursor = _Cursor(memoryview(data), new_unpacker, max_values, piece_bytes)
    value = cursor.value(form)
    if cursor.position != len(data):
        raise BadDataError("bytes follow the body")
    return value


def _form(hint: Any, name: str) -> Form:
    decode = column_decoder(hint, name)
    if (inner := without_none(hint)) is not None:
        return _form(inner, name)._replace(is_optional=True, decode=decode)
    if typing.get_origin(hint) is tuple:
        return Form(name, decode, element=_form(typing.get_args(hint)[0], name))
    if isinstance(hint, type) and (dataclasses.is_dataclass(hint) or hasattr(hint, "_fields")):
        hints = hints_of(hint)
        names: Iterable[str] = getattr(hint, "_fields", None) or [
            field.name for field in dataclasses.fields(hint)
        ]
        fields = {n: _form(hints[n], f"{hint.__name__}.{n}") for n in names}
        return Form(name, decode, fields=fields, cls=hint)
    return Form(name, decode)


class _Cursor:
    """The position in a body."""

    def __init__(
        self, data: memoryview, new_unpacker: NewUnpacker, max_values: int, piece_bytes: int
    ) -> None:
        self.position = 0
        self._data = data
        self._new_unpacker = new_unpacker
        self._left = self._max_values = max_values
        self._piece_bytes = piece_bytes

    def value(self, form: Form) -> Any:
        """Decode the next value."""
        if form.is_optional and self._byte() == _NIL:
            self.position += 1
            return None
        if form.element is not None:
            return self._array(form, form.element)
        if form.fields is not None:
            return self._object(form, form.fields)
        (value,) = form.decode((self._one(form),))
        return value

    def _array(self, form: Form, element: Form) -> tuple[Any, ...]:
        left = self._length(form, "array", 0x90, 0xDC)
        values: list[Any] = []
        while left:
            piece = self._whole(left)
            if piece:
                values += element.decode(piece)
                left -= len(piece)
            else:
                values.append(self.value(element))
                left -= 1
        return tuple(values)

    def _object(self, form: Form, fields: dict[str, Form]) -> Any:
        cls = form.cls
        assert cls is not None
        if hasattr(cls, "_fields"):
            if self._length(form, "array", 0x90, 0xDC) != len(fields):
                raise BadDataError(f"{form.name}: a {cls.__name__} has {len(fields)} fields")
            return cls(*[self.value(field) for field in fields.values()])
        given: dict[str, Any] = {}
        for _ in range(self._length(form, "map", 0x80, 0xDE)):
            key = self._one(form)
            if not isinstance(key, str) or key in given:
                raise BadDataError(f"{form.name}: a key is not a string, or is there twice")
            given[key] = self.value(fields[key]) if key in fields else self._one(form)
        known = {key: value for key, value in given.items() if key in fields}
        try:
            return cls(**known)
        except TypeError:
            missing = ", ".join(sorted(fields.keys() - known.keys()))
            raise BadDataError(f"{form.name}: {missing} is missing") from None

    def _length(self, form: Form, kind: str, short: int, long: int) -> int:
        """Read the length of an array or a map, and count it.

        ``short`` and ``long`` are msgpack's first bytes of this kind.
        """
        self._count()
        first = self._byte()
        self.position += 1
        if short <= first < short + 16:
            return first - short
        if first not in (long, long + 1):
            raise BadDataError(f"{form.name}: expected {kind}")
        size = 2 if first == long else 4
        self.position += size
        return int.from_bytes(self._data[self.position - size : self.position])

    def _byte(self) -> int:
        if self.position >= len(self._data):
            raise BadDataError("the body ends too early")
        return self._data[self.position]

    def _one(self, form: Form) -> Any:
        """Decode the next value, which must be small."""
        values = self._whole(1)
        if not values:
            raise BadDataError(f"{form.name}: a value is too large or incomplete")
        return values[0]

    def _whole(self, at_most: int) -> tuple[Any, ...]:
        """Decode at most ``at_most`` complete values of the next piece."""
        unpacker = self._new_unpacker(self._count)
        unpacker.feed(self._data[self.position : self.position + self._piece_bytes])
        values: list[Any] = []
        end = 0
        try:
            while len(values) < at_most:
                values.append(unpacker.unpack())
                end = unpacker.tell()
                self._count()
        except msgpack.OutOfData:
            pass
        self.position += end
        return tuple(values)

    def _count(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise BadDataError(f"more than {self._max_values} values")
