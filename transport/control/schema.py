"""Turns unpacked msgpack values into dataclasses and NamedTuples, checking every field.

Rules:
- A decoder is compiled once from a class's type hints and works on a *column*: all values of one
  field at once. The hundred thousand leader epochs of a request are checked by three C loops
  (types, minimum, maximum) instead of a hundred thousand Python calls.
- A decoder that has nothing to convert returns its input column, so that a row of plain values is
  built from the unpacked tuple without a copy.
- Every decoder raises ``BadDataError`` with class and field but without the value, which may be
  huge.

Understood hints: ``int``, ``bool``, ``str``, ``IntEnum``, ``X | None``, ``tuple[X, ...]``,
dataclass (a map; unknown keys are ignored, missing ones take their default) and ``NamedTuple`` (an
array of exactly its fields). A message of ``core.protocol.messages`` is a dataclass, too: its map
has every declared field, whatever the versions of the field are, and the tagged ones. A number has
the width that its hint names, and a ``Uuid`` is nil or Kafka's text.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import types
import typing
from collections import deque
from collections.abc import Callable, Sequence
from enum import IntEnum
from itertools import chain, islice
from operator import itemgetter
from typing import Any, Final, TypeAlias, TypeVar, cast

from regent.core.errors import BadDataError, Errors
from regent.core.protocol.message import Uuid

Column: TypeAlias = Sequence[Any]
ColumnDecoder: TypeAlias = Callable[[Column], Column]

T = TypeVar("T")
Decoder: TypeAlias = Callable[[object], T]
"""Makes one object from an unpacked value. Raises BadDataError."""

FEW: Final = 100  # arrays; fewer are not worth a search for equal ones
_UUID: Final = re.compile(r"[A-Za-z0-9_-]{22}")
_INT_BITS: Final = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}


class _Absent:
    """The value of a key that is not in its map."""


_ABSENT: Final = _Absent()


def decoder(cls: type[T]) -> Decoder[T]:
    """Return the function that makes one ``cls`` from an unpacked value.

    Tuples are expected for arrays (``use_list=False``). A hint that is not understood raises
    TypeError here, when it is compiled.
    """
    decode = column_decoder(cls, cls.__name__)

    def decode_one(value: object) -> T:
        (decoded,) = decode((value,))
        return cast("T", decoded)

    return decode_one


def column_decoder(hint: Any, path: str) -> ColumnDecoder:
    """Return the decoder of a column of values of a type; errors name ``path``."""
    if hint is int:
        return functools.partial(_decode_ints, path)
    if hint is bool or hint is str:
        return functools.partial(_decode_plain, path, hint)
    if hint == Uuid:
        uuids = functools.partial(_decode_uuids, path)
        return _filling(uuids, absent=None, filler=None)
    if typing.get_origin(hint) is typing.Annotated:
        return functools.partial(_decode_ints, path, bits=_INT_BITS[hint.__metadata__[0]])
    if (inner := without_none(hint)) is not None:
        return _filling(column_decoder(inner, path), absent=None, filler=None)
    if typing.get_origin(hint) is tuple:
        item, ellipsis = typing.get_args(hint)
        if ellipsis is ...:
            return _array_decoder(column_decoder(item, path), path)
    if isinstance(hint, type):
        return _class_decoder(hint, path)
    raise TypeError(f"{path}: a body cannot hold {hint!r}")


def without_none(hint: Any) -> Any:
    """Return X of ``X | None``; None: the hint is no union."""
    if typing.get_origin(hint) not in (types.UnionType, typing.Union):
        return None
    (inner,) = (arg for arg in typing.get_args(hint) if arg is not types.NoneType)
    return inner


def hints_of(cls: type[Any]) -> dict[str, Any]:
    """Return the hints of the fields of a class, with the widths of numbers."""
    return typing.get_type_hints(cls, include_extras=True)


def _class_decoder(cls: type[Any], path: str) -> ColumnDecoder:
    if issubclass(cls, IntEnum):
        return _enum_decoder(cls, path)
    if dataclasses.is_dataclass(cls):
        return _map_decoder(cls, path)
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return _row_decoder(cls, path)
    raise TypeError(f"{path}: a body cannot hold {cls!r}")


def _require(path: str, expected: type, values: Column) -> None:
    if len(values) == 1 and type(values[0]) is expected:
        return
    unexpected = set(map(type, values)) - {expected}
    if _Absent in unexpected:
        raise BadDataError(f"{path} is missing")
    if unexpected:
        found = ", ".join(sorted(kind.__name__ for kind in unexpected))
        raise BadDataError(f"{path}: expected {expected.__name__}, found {found}")


def _decode_plain(path: str, expected: type, values: Column) -> Column:
    _require(path, expected, values)
    return values


def _decode_ints(path: str, values: Column, bits: int = 64) -> Column:
    _require(path, int, values)
    limit = 1 << (bits - 1)
    if len(values) == 1:
        is_in_range = -limit <= values[0] < limit
    else:
        is_in_range = not values or -limit <= min(values) <= max(values) < limit
    if not is_in_range:
        raise BadDataError(f"{path}: a number is out of the {bits}-bit range")
    return values


def _decode_uuids(path: str, values: Column) -> Column:
    _require(path, str, values)
    if not all(map(_UUID.fullmatch, values)):
        raise BadDataError(f"{path}: a text is not a UUID")
    return values


def _enum_decoder(cls: type[IntEnum], path: str) -> ColumnDecoder:
    members = {member.value: member for member in cls}
    # An unknown error code of a newer peer is still an error. Other enums must be known.
    fallback = Errors.UNKNOWN_SERVER_ERROR if cls is Errors else None

    def decode(values: Column) -> Column:
        decoded = [members.get(value, fallback) for value in _decode_ints(path, values)]
        if None in decoded:
            raise BadDataError(f"{path}: a number is not a {cls.__name__}")
        return decoded

    return decode


def _filling(decode: ColumnDecoder, *, absent: object, filler: object) -> ColumnDecoder:
    """Decode the values that are not ``absent``; replace those by ``filler``."""

    def decode_present(values: Column) -> Column:
        if absent not in values:
            return decode(values)
        present = [value for value in values if value is not absent]
        decoded = iter(decode(present))
        return [filler if value is absent else next(decoded) for value in values]

    return decode_present


def _array_decoder(decode_items: ColumnDecoder, path: str) -> ColumnDecoder:
    def decode(values: Column) -> Column:
        _require(path, tuple, values)
        items = values[0] if len(values) == 1 else tuple(chain.from_iterable(values))
        decoded = decode_items(items)
        if decoded is items:
            return _shared(values) if len(values) > FEW else values
        if len(values) == 1:
            return (tuple(decoded),)
        remaining = iter(decoded)
        return [tuple(islice(remaining, len(value))) for value in values]

    return decode


def _shared(values: Column) -> Column:
    """Return equal arrays of plain values as the same object.

    The rows of a cluster have few different lists of replicas, and a broker keeps the rows.
    """
    known: dict[Any, Any] = {}
    return list(map(known.setdefault, values, values))


def _row_decoder(cls: type[Any], path: str) -> ColumnDecoder:
    hints = hints_of(cls)
    names = tuple(cls._fields)
    decoders = [column_decoder(hints[name], f"{cls.__name__}.{name}") for name in names]
    build = functools.partial(tuple.__new__, cls)
    getters = [itemgetter(index) for index in range(len(names))]

    def decode(values: Column) -> Column:
        _require(path, tuple, values)
        if set(map(len, values)) - {len(names)}:
            raise BadDataError(f"{path}: a {cls.__name__} has {len(names)} fields")
        columns = [tuple(map(get, values)) for get in getters]
        decoded = [decode(c) for decode, c in zip(decoders, columns, strict=True)]
        unchanged = all(new is old for new, old in zip(decoded, columns, strict=True))
        return list(map(build, values if unchanged else zip(*decoded, strict=True)))

    return decode


def _map_decoder(cls: type[Any], path: str) -> ColumnDecoder:
    hints = hints_of(cls)
    fields = []
    for field in dataclasses.fields(cls):
        decode_field = column_decoder(hints[field.name], f"{cls.__name__}.{field.name}")
        if field.default is not dataclasses.MISSING:
            decode_field = _filling(decode_field, absent=_ABSENT, filler=field.default)
        fields.append((field.name, decode_field))
    build = _builder(cls)

    def decode(values: Column) -> Column:
        _require(path, dict, values)
        columns = [
            decode_field([value.get(name, _ABSENT) for value in values])
            for name, decode_field in fields
        ]
        return build(len(values), columns)

    return decode


def _builder(cls: type[Any]) -> Callable[[int, Sequence[Column]], Column]:
    """Return what makes a number of ``cls`` from a column for each field."""
    fields = dataclasses.fields(cls)
    if not fields:
        return lambda count, _: [cls() for _ in range(count)]
    if not any(field.kw_only for field in fields):
        return lambda _, columns: list(map(cls, *columns))
    setters = [getattr(cls, field.name).__set__ for field in fields]  # a message has slots

    def build(count: int, columns: Sequence[Column]) -> Column:
        built = [object.__new__(cls) for _ in range(count)]
        for set_field, column in zip(setters, columns, strict=True):
            deque(map(set_field, built, column), maxlen=0)
        return built

    return build
