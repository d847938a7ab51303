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
array of exactly its fields).
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Callable, Sequence
from enum import IntEnum
from itertools import chain, islice
from operator import itemgetter
from typing import Any, Final, TypeAlias, TypeVar, cast

from regent.core.errors import BadDataError, Errors

Column: TypeAlias = Sequence[Any]
ColumnDecoder: TypeAlias = Callable[[Column], Column]

T = TypeVar("T")
Decoder: TypeAlias = Callable[[object], T]
"""Makes one object from an unpacked value. Raises BadDataError."""

FEW: Final = 100  # arrays; fewer are not worth a search for equal ones
INT64_MIN: Final = -(2**63)
INT64_MAX: Final = 2**63 - 1


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
    if isinstance(hint, types.UnionType):
        (inner,) = (arg for arg in typing.get_args(hint) if arg is not types.NoneType)
        return _filling(column_decoder(inner, path), absent=None, filler=None)
    if typing.get_origin(hint) is tuple:
        item, ellipsis = typing.get_args(hint)
        if ellipsis is ...:
            return _array_decoder(column_decoder(item, path), path)
    if isinstance(hint, type):
        return _class_decoder(hint, path)
    raise TypeError(f"{path}: a body cannot hold {hint!r}")


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


def _decode_ints(path: str, values: Column) -> Column:
    _require(path, int, values)
    if len(values) == 1:
        is_in_range = INT64_MIN <= values[0] <= INT64_MAX
    else:
        is_in_range = not values or INT64_MIN <= min(values) <= max(values) <= INT64_MAX
    if not is_in_range:
        raise BadDataError(f"{path}: a number is out of the 64-bit range")
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
    hints = typing.get_type_hints(cls)
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
    hints = typing.get_type_hints(cls)
    fields = []
    for field in dataclasses.fields(cls):
        decode_field = column_decoder(hints[field.name], f"{cls.__name__}.{field.name}")
        if field.default is not dataclasses.MISSING:
            decode_field = _filling(decode_field, absent=_ABSENT, filler=field.default)
        fields.append((field.name, decode_field))

    def decode(values: Column) -> Column:
        _require(path, dict, values)
        columns = [
            decode_field([value.get(name, _ABSENT) for value in values])
            for name, decode_field in fields
        ]
        return list(map(cls, *columns)) if columns else [cls() for _ in values]

    return decode
