"""How a message of the Kafka protocol is declared: a dataclass with the fields of all versions.

The fields have the order of Kafka's schema and its names, in Python case::

    @message
    class ElectLeadersRequest:
        election_type: Int8 = since(1, default=0)
        topic_partitions: tuple[TopicPartitions, ...] | None
        timeout_ms: Int32

``int8`` to ``int64`` are ``Int8`` to ``Int64``; ``str``, ``bool``, ``bytes``, ``float`` (float64)
and ``Uuid`` stand for themselves. A tuple is an array, ``| None`` makes a value nullable, and a
field may be another message. A declaration is plain data, so that every room may use it as a value;
``transport.kafka.message_codec`` has the bytes.
"""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, Final, TypeAlias, TypeVar, dataclass_transform

from regent.core.protocol.control import TopicId

T = TypeVar("T")

Int8: TypeAlias = Annotated[int, "int8"]
Int16: TypeAlias = Annotated[int, "int16"]
Int32: TypeAlias = Annotated[int, "int32"]
Int64: TypeAlias = Annotated[int, "int64"]
Uuid: TypeAlias = Annotated[TopicId | None, "uuid"]
"""None is the UUID of which all bytes are zero."""

NEWEST_VERSION: Final = 2**15 - 1
_NO_VERSION: Final = NEWEST_VERSION + 1
FIRST_VERSION: Final = "first version"
LAST_VERSION: Final = "last version"
TAG: Final = "tag"
"""The keys of a field's metadata."""


@dataclass_transform(frozen_default=True, kw_only_default=True)
def message(cls: type[T]) -> type[T]:
    """Make a class a message, or a structure inside one."""
    return dataclasses.dataclass(frozen=True, slots=True, kw_only=True)(cls)


def since(
    first: int, *, default: object, until: int = NEWEST_VERSION, tag: int | None = None
) -> Any:
    """Declare a field of the versions ``first`` to ``until``; others have the default.

    A field with a ``tag`` is among the tagged fields. It is not written if it has the default.
    """
    return dataclasses.field(
        default=default, metadata={FIRST_VERSION: first, LAST_VERSION: until, TAG: tag}
    )


def internal(*, default: object) -> Any:
    """Declare a field of no version: only the control port carries it."""
    return since(_NO_VERSION, default=default)


def until(last: int, *, default: object) -> Any:
    """Declare a field that only the versions up to ``last`` have."""
    return since(0, default=default, until=last)
