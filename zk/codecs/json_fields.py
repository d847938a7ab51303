"""Reads typed fields out of a znode's JSON.

The bytes are not trusted: for any bytes the result is a value of the declared type, or a
``BadDataError`` of one short line that names the type of znode, the field and the problem.
Integers have 32 bits, as Kafka's, unless a range is given. A null counts as an absent field.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

import orjson

from regent.core.errors import BadDataError
from regent.core.model import BrokerId

MAX_INT16 = 2**15 - 1
MAX_INT32 = 2**31 - 1
MAX_INT64 = 2**63 - 1

P = ParamSpec("P")
Encode = TypeVar("Encode")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Codec(Generic[Encode, P, T]):
    """Turns values into the data of a znode, and back.

    ``encode`` returns bytes. ``decode`` gets the path that errors name and the bytes, and raises
    only ``BadDataError``.
    """

    encode: Encode
    decode: Callable[Concatenate[str, bytes, P], T]


EMPTY = Codec(lambda: b"", lambda _node, _data: None)
"""For znodes whose names or children say everything."""

_brief = reprlib.Repr()
_brief.maxlevel = 2
_brief.maxstring = 60


def bad_field(node: str, key: str, expected: str, value: object) -> BadDataError:
    """Return the error for an invalid field."""
    problem = "is missing" if value is None else f"must be {expected}, not {_brief.repr(value)}"
    return BadDataError(f"{node}: {_shown(key)} {problem}")


def decode_object(data: bytes, node: str) -> JsonObject:
    """Parse a JSON object; ``node`` is the path pattern that errors name."""
    try:
        values = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise BadDataError(f"{node}: not JSON: {error}") from None
    if type(values) is not dict:
        raise BadDataError(f"{node}: must be a JSON object, not {_brief.repr(values)}")
    return JsonObject(values, node)


def decode_broker_ids(value: object, node: str, key: str) -> tuple[BrokerId, ...]:
    """Return a list of distinct, non-negative broker ids, in the order of the list."""
    if type(value) is not list:
        raise bad_field(node, key, "a list of broker ids", value)
    for broker_id in value:
        if type(broker_id) is not int or not 0 <= broker_id <= MAX_INT32:
            raise bad_field(node, key, "a list of broker ids", value)
    if len(set(value)) != len(value):
        raise bad_field(node, key, "free of duplicates", value)
    return tuple(value)


def decode_decimal(text: object, node: str, key: str, maximum: int = MAX_INT32) -> int:
    """Return a number written as a string: digits only, no leading zeros."""
    if type(text) is str and text.isascii() and text.isdigit() and len(text) <= len(str(maximum)):
        number = int(text)
        if number <= maximum and str(number) == text:
            return number
    raise bad_field(node, key, f"a decimal number up to {maximum}", text)


class JsonObject:
    """A parsed JSON object; every accessor raises ``BadDataError`` for a field it cannot return."""

    __slots__ = ("node", "values")

    def __init__(self, values: dict[str, Any], node: str) -> None:
        self.values = values
        self.node = node

    def integer(
        self, key: str, minimum: int = 0, maximum: int = MAX_INT32, default: int | None = None
    ) -> int:
        """Return an integer of the range; ``default`` when the field is absent."""
        value = self.values.get(key)
        if type(value) is int and minimum <= value <= maximum:
            return value
        if value is None and default is not None:
            return default
        raise bad_field(self.node, key, f"an integer from {minimum} to {maximum}", value)

    def decimal(self, key: str, maximum: int = MAX_INT32) -> int:
        """Return a non-negative number that is written as a string."""
        return decode_decimal(self.values.get(key), self.node, key, maximum)

    def string(self, key: str) -> str:
        """Return a string."""
        value = self.values.get(key)
        if type(value) is not str:
            raise bad_field(self.node, key, "a string", value)
        return value

    def optional_string(self, key: str) -> str | None:
        """Return a string, or None when the field is absent."""
        return None if self.values.get(key) is None else self.string(key)

    def broker_ids(self, key: str) -> tuple[BrokerId, ...]:
        """Return distinct broker ids in the order of the list."""
        return decode_broker_ids(self.values.get(key), self.node, key)

    def optional_broker_ids(self, key: str) -> tuple[BrokerId, ...]:
        """Return distinct broker ids; none when the field is absent."""
        return () if self.values.get(key) is None else self.broker_ids(key)

    def array(self, key: str) -> list[Any]:
        """Return a list of unchecked elements."""
        value = self.values.get(key)
        if type(value) is not list:
            raise bad_field(self.node, key, "a list", value)
        return value

    def objects(self, key: str) -> list[JsonObject]:
        """Return a list of objects."""
        return [self._nested(f"an element of {key}", element) for element in self.array(key)]

    def nested(self, key: str) -> JsonObject:
        """Return an object."""
        return self._nested(key, self.values.get(key))

    def optional_nested(self, key: str) -> JsonObject:
        """Return an object, an empty one when the field is absent."""
        value = self.values.get(key)
        return self._nested(key, {} if value is None else value)

    def _nested(self, key: str, value: object) -> JsonObject:
        if type(value) is not dict:
            raise bad_field(self.node, key, "an object", value)
        return JsonObject(value, f"{self.node}: {_shown(key)}")


def _shown(key: str) -> str:
    """Return ``key`` for an error message; a key from data may have any length and content."""
    return key if len(key) <= 60 and key.isprintable() else _brief.repr(key)
