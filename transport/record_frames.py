"""Record batches on the wire: in frames after the body, unchanged.

In a body a field of type ``core.records.RecordBytes`` is only its length. The bytes follow in
separate frames, in the same sequence, none split over two frames. A large batch is one frame, which
ZeroMQ sends without a copy. Small batches in sequence share a frame, because a frame costs more
than copying them. A receiver gets views of the frames, never a copy.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, TypeAlias

from regent.core.errors import BadDataError
from regent.core.records import RecordBytes

LARGE_BYTES: Final = 64 * 1024  # from here ZeroMQ sends without copying (``zmq.COPY_THRESHOLD``)

Detach: TypeAlias = Callable[[Any, list[RecordBytes]], Any]
"""Appends the records in a value to the list; returns it with their lengths instead of them."""


def detacher(hint: Any) -> Detach | None:
    """Return a function that takes the records out of values of a type; None if it has none.

    Raises TypeError when two fields of one class hold records: the decoder cannot tell them apart.
    """
    if hint == RecordBytes:
        return _detach_one
    if isinstance(hint, types.UnionType):
        (inner,) = (arg for arg in typing.get_args(hint) if arg is not types.NoneType)
        return _optional(detacher(inner))
    if typing.get_origin(hint) is tuple:
        return _of_items(detacher(typing.get_args(hint)[0]))
    if dataclasses.is_dataclass(hint):
        return _of_map(hint)
    if isinstance(hint, type) and issubclass(hint, tuple) and hasattr(hint, "_fields"):
        return _of_row(hint)
    return None


def _detach_one(value: RecordBytes, records: list[RecordBytes]) -> int:
    records.append(value)
    return len(value)


def _optional(detach: Detach | None) -> Detach | None:
    if detach is None:
        return None
    return lambda value, records: None if value is None else detach(value, records)


def _of_items(detach: Detach | None) -> Detach | None:
    if detach is None:
        return None
    return lambda values, records: tuple([detach(value, records) for value in values])


def _of_map(cls: Any) -> Detach | None:
    names = [field.name for field in dataclasses.fields(cls)]
    carrier = _carrier(cls, names)
    if carrier is None:
        return None
    carrying, detach_field = carrier

    def detach(value: Any, records: list[RecordBytes]) -> dict[str, Any]:
        fields = {name: getattr(value, name) for name in names}
        fields[carrying] = detach_field(fields[carrying], records)
        return fields

    return detach


def _of_row(cls: Any) -> Detach | None:
    carrier = _carrier(cls, cls._fields)
    if carrier is None:
        return None
    detach_field = carrier[1]
    index = cls._fields.index(carrier[0])

    def detach(value: Any, records: list[RecordBytes]) -> tuple[Any, ...]:
        fields = list(value)
        fields[index] = detach_field(fields[index], records)
        return tuple(fields)

    return detach


def _carrier(cls: Any, names: Iterable[str]) -> tuple[str, Detach] | None:
    """Return the field that holds records, if one does."""
    hints = typing.get_type_hints(cls)
    detachers = {name: detacher(hints[name]) for name in names}
    carriers = [(name, detach) for name, detach in detachers.items() if detach is not None]
    if len(carriers) > 1:
        raise TypeError(f"{cls.__name__}: records in {len(carriers)} fields")
    return carriers[0] if carriers else None


def join_small(records: Iterable[RecordBytes]) -> Iterator[RecordBytes]:
    """Yield the frames for ``records``."""
    small: list[RecordBytes] = []
    for data in records:
        if len(data) < LARGE_BYTES:
            small.append(data)
            continue
        if joined := b"".join(small):
            yield joined
        small = []
        yield data
    if joined := b"".join(small):
        yield joined


class RecordFrames:
    """The frames after one body; records are taken in their original sequence."""

    def __init__(self, frames: Sequence[RecordBytes] = ()) -> None:
        self._frames = iter(frames)
        self._rest = memoryview(b"")

    def take(self, lengths: Sequence[int]) -> list[RecordBytes]:
        """Return the next records, of these lengths. Raises ``BadDataError``."""
        return [self._take(length) for length in lengths]

    def check_all_taken(self) -> None:
        """Raise ``BadDataError`` when there are more bytes than the body refers to."""
        if len(self._rest) or next(self._frames, None) is not None:
            raise BadDataError("more records than the body refers to")

    def _take(self, length: int) -> RecordBytes:
        if length == 0:
            return b""
        if not len(self._rest):
            self._rest = memoryview(next(self._frames, b""))
        if not 0 < length <= len(self._rest):
            raise BadDataError("records of another length than the body says")
        taken, self._rest = self._rest[:length], self._rest[length:]
        return taken
