"""The bytes of the messages that ``core.protocol.messages`` declares.

The reader and the writer of each version are made once. Mirrors Kafka's MessageGenerator.

kio has generated classes of all messages, but its reader is not safe for requests (see
``primitives``), and its schemas lack the versions that Kafka 4.0 removed.
"""

from __future__ import annotations

import dataclasses
import logging
import time
import types
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import chain
from typing import (
    Annotated,
    Any,
    Final,
    NamedTuple,
    TypeAlias,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

from regent.core.errors import Errors
from regent.core.protocol.message import FIRST_VERSION, LAST_VERSION, NEWEST_VERSION, TAG
from regent.core.repeated_lines import RepeatedLines
from regent.transport.kafka.api import KafkaAnswer, KafkaRequest
from regent.transport.kafka.primitives import Reader, Writer

T = TypeVar("T")

logger = logging.getLogger(__name__)

_LINES: Final = RepeatedLines()
_ERROR_CODE: Final = "error_code"
_THROTTLE_TIME: Final = "throttle_time_ms"
_ERROR_CODES: Final = frozenset(map(int, Errors))
_PRIMITIVES: Final = {str: "string", bool: "boolean", bytes: "bytes_", float: "float64"}

_Read: TypeAlias = Callable[[Reader], Any]
_Write: TypeAlias = Callable[[Writer, Any], None]


def decode(message_type: type[T], request: KafkaRequest) -> T:
    """Return the body of a request; raises ``MalformedRequestError``."""
    return _read_struct(message_type, request.api_version, request.reader())


def decoded(message_type: type[T], body: memoryview, version: int, *, is_flexible: bool) -> T:
    """Return a message of these bytes; raises ``MalformedRequestError``."""
    return _read_struct(message_type, version, Reader(body, is_flexible=is_flexible))


def _read_struct(message_type: type[T], version: int, reader: Reader) -> T:
    kind: Any = message_type
    value: T = _struct_reader(kind, version)(reader)
    return value


def answer(response: object, request: KafkaRequest) -> KafkaAnswer:
    """Return a response in the version and form of its request, and count its errors.

    The response tells how long the client must wait.
    """
    writer, kind = request.answer_writer(), _class_of(response)
    if request.throttle_time_ms and hasattr(response, _THROTTLE_TIME):
        changes = {_THROTTLE_TIME: request.throttle_time_ms}
        response = dataclasses.replace(response, **changes)  # type: ignore[type-var]
    _count_errors(request.errors, response)
    left_out = writer.left_out = []
    _struct_writer(kind, request.api_version)(writer, response)
    note_left_out(kind.__name__, left_out)
    return writer.pieces()


def note_left_out(answer_name: str, rows: Sequence[object]) -> None:
    """Log the rows that an answer lacks because they do not fit the wire."""
    if rows and _LINES.is_due(answer_name, round(time.monotonic() * 1000)):
        text = "%s without %d rows that do not fit Kafka's protocol, the first: %.300r"
        logger.error(text, answer_name, len(rows), rows[0])


def encoded(value: object, version: int, *, is_flexible: bool) -> bytes:
    """Return the bytes of a message or structure."""
    writer = Writer(is_flexible=is_flexible)
    _struct_writer(_class_of(value), version)(writer, value)
    return writer.whole()


def _count_errors(counts: Counter[str], response: object) -> None:
    """Count every error code in a response; NONE if there is no error."""
    find = _error_finder(_class_of(response))
    failed = [code for code in (() if find is None else find(response)) if code]
    counts.update(map(_error_name, failed) if failed else (Errors.NONE.name,))


def _error_name(code: int) -> str:
    return Errors(code).name if code in _ERROR_CODES else str(code)


@cache
def _error_finder(kind: Any) -> Callable[[Any], Iterable[int]] | None:
    """Return what yields the error codes in a value; None: it has none."""
    kind, _ = _split(kind)
    if (element := _element(kind)) is not None:
        find = _error_finder(element)
        return find and (lambda values: chain.from_iterable(map(find, values or ())))
    if not _is_struct(kind):
        return None
    kinds = get_type_hints(kind, include_extras=True)
    has_own = _ERROR_CODE in kinds
    inner = [(name, find) for name, kind in kinds.items() if (find := _error_finder(kind))]

    def find_all(value: Any) -> Iterator[int]:
        if value is None:
            return
        if has_own:
            yield value.error_code
        for name, find in inner:
            yield from find(getattr(value, name))

    return find_all if has_own or inner else None


class _Field(NamedTuple):
    """A field; ``tag`` None: it has a place of its own."""

    name: str
    kind: Any
    default: Any
    is_present: bool
    tag: int | None


@cache
def _fields(message_type: Any, version: int) -> list[_Field]:
    kinds = get_type_hints(message_type, include_extras=True)
    return [
        _Field(
            field.name,
            kinds[field.name],
            field.default,
            field.metadata.get(FIRST_VERSION, 0)
            <= version
            <= field.metadata.get(LAST_VERSION, NEWEST_VERSION),
            field.metadata.get(TAG),
        )
        for field in dataclasses.fields(message_type)
    ]


@cache
def _struct_reader(message_type: Any, version: int) -> _Read:
    every = _fields(message_type, version)
    fields = [field for field in every if field.is_present]
    places = [(_setter(message_type, f), _reader(f.kind, version)) for f in fields if f.tag is None]
    tagged = {
        f.tag: (_setter(message_type, f), _reader(f.kind, version))
        for f in fields
        if f.tag is not None
    }
    defaults = [
        (_setter(message_type, f), f.default)
        for f in every
        if not f.is_present or f.tag is not None
    ]

    def read(reader: Reader) -> Any:
        value = object.__new__(message_type)
        for set_field, read_value in places:
            set_field(value, read_value(reader))
        for set_field, default in defaults:
            set_field(value, default)
        for tag, data in reader.end_struct().items():
            if tag in tagged:
                set_field, read_value = tagged[tag]
                set_field(value, read_value(Reader(data, is_flexible=True)))
        return value

    return read


def _setter(message_type: Any, field: _Field) -> Callable[[Any, Any], None]:
    """Return what sets a field of a new message, in a fraction of the time of its ``__init__``."""
    setter: Callable[[Any, Any], None] = getattr(message_type, field.name).__set__
    return setter


@cache
def _struct_writer(message_type: Any, version: int) -> _Write:
    fields = [field for field in _fields(message_type, version) if field.is_present]
    places = [(f.name, _writer(f.kind, version)) for f in fields if f.tag is None]
    tagged = [(f.tag, f, _writer(f.kind, version)) for f in fields if f.tag is not None]

    def write(writer: Writer, value: Any) -> None:
        for name, write_value in places:
            write_value(writer, getattr(value, name))
        tags: dict[int, bytes] = {}
        for tag, field, write_value in tagged:
            if (content := getattr(value, field.name)) != field.default:
                inner = Writer(is_flexible=True)
                write_value(inner, content)
                tags[tag] = inner.whole()
        writer.end_struct(tags)

    return write


def _reader(kind: Any, version: int) -> _Read:
    kind, is_nullable = _split(kind)
    if (element := _element(kind)) is not None:
        read = _reader(element, version)
        if is_nullable:
            return lambda reader: _tuple(reader.nullable_array(lambda: read(reader)))
        return lambda reader: tuple(reader.array(lambda: read(reader)))
    if _is_struct(kind):
        return _struct_reader(kind, version)
    method = getattr(Reader, _primitive(kind, is_nullable))
    if kind is bytes:  # a copy, because a view would keep the whole request in memory
        return lambda reader: None if (view := method(reader)) is None else bytes(view)
    return method  # type: ignore[no-any-return]


def _writer(kind: Any, version: int) -> _Write:
    kind, is_nullable = _split(kind)
    if (element := _element(kind)) is not None:
        write = _writer(element, version)
        whole = Writer.rows if _is_struct(_split(element)[0]) else Writer.array
        return lambda writer, values: (
            writer.null_array()
            if is_nullable and values is None
            else whole(writer, values, lambda value: write(writer, value))
        )
    if _is_struct(kind):
        return _struct_writer(kind, version)
    return getattr(Writer, _primitive(kind, is_nullable))  # type: ignore[no-any-return]


def _split(kind: Any) -> tuple[Any, bool]:
    """Return a type without ``| None``, and whether it had that."""
    if get_origin(kind) is not types.UnionType:
        return kind, False
    (inner,) = [part for part in get_args(kind) if part is not types.NoneType]
    return inner, True


def _is_struct(kind: Any) -> bool:
    return dataclasses.is_dataclass(kind)


def _element(kind: Any) -> Any:
    """Return the type of the elements of an array; None: it is no array."""
    return get_args(kind)[0] if get_origin(kind) is tuple else None


def _primitive(kind: Any, is_nullable: bool) -> str:
    """Return the name of the methods of ``Reader`` and ``Writer`` for a type."""
    if get_origin(kind) is Annotated:
        return str(get_args(kind)[1])
    name = _PRIMITIVES[kind].rstrip("_") if is_nullable else _PRIMITIVES[kind]
    return f"nullable_{name}" if is_nullable else name


def _class_of(value: object) -> Any:
    return type(value)


def _tuple(values: list[T] | None) -> tuple[T, ...] | None:
    return None if values is None else tuple(values)
