"""The records of ``__consumer_offsets``: keys and values as bytes, in Kafka's formats.

A key begins with its kind: 0 and 1 a position, 2 a group. A value begins with its version. Kafka
writes positions in version 3 (1 if they have an expire timestamp) and groups in version 3; it reads
0 to 4. Mirrors ``GroupMetadataManager.readMessageKey``, ``offsetCommitValue`` and
``groupMetadataValue``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias, TypeVar

from regent.core.errors import BadDataError
from regent.core.model import NO_EPOCH, TopicPartition
from regent.core.protocol.groups import NO_TIMESTAMP, OffsetAndMetadata

T = TypeVar("T")

NEWEST_VERSION: Final = 3
"""The version in which values are written."""
_FLEXIBLE: Final = 4
_OFFSET_KINDS: Final = (0, 1)
_OFFSET_KIND, _GROUP_KIND = 1, 2
_NULL: Final = -1

_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_INT64: Final = struct.Struct(">q")


class OffsetKey(NamedTuple):
    """The key of a position."""

    group_id: str
    topic_partition: TopicPartition


class GroupKey(NamedTuple):
    """The key of a group."""

    group_id: str


class StoredMember(NamedTuple):
    """A member in the record of its group; ``subscription``: for the protocol of the group."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class StoredGroup:
    """The record of a group; ``state_timestamp_ms``: since when it had its state, -1 unknown."""

    protocol_type: str
    generation_id: int
    protocol_name: str | None
    leader_id: str | None
    state_timestamp_ms: int
    members: tuple[StoredMember, ...]


Key: TypeAlias = OffsetKey | GroupKey


class Record(NamedTuple):
    """A key with its value; None: a tombstone."""

    key: Key
    value: OffsetAndMetadata | StoredGroup | None


def encode_key(key: Key) -> bytes:
    """Return the bytes of a key."""
    if isinstance(key, GroupKey):
        return _INT16.pack(_GROUP_KIND) + _string(key.group_id)
    topic, partition = key.topic_partition
    head = _INT16.pack(_OFFSET_KIND)
    return head + _string(key.group_id) + _string(topic) + _INT32.pack(partition)


def encode_value(value: OffsetAndMetadata | StoredGroup | None) -> bytes | None:
    """Return the bytes of a value, in the version that Kafka writes; None for a tombstone."""
    if value is None:
        return None
    if isinstance(value, StoredGroup):
        return encode_group(value, NEWEST_VERSION)
    has_expiry = value.expire_timestamp_ms != NO_TIMESTAMP
    return encode_offset(value, 1 if has_expiry else NEWEST_VERSION)


def encode_offset(value: OffsetAndMetadata, version: int) -> bytes:
    """Return a position in one of the versions 0 to 3."""
    encoded = _INT16.pack(version) + _INT64.pack(value.offset)
    if version >= 3:
        encoded += _INT32.pack(value.leader_epoch)
    encoded += _string(value.metadata) + _INT64.pack(value.commit_timestamp_ms)
    return encoded + _INT64.pack(value.expire_timestamp_ms) if version == 1 else encoded


def encode_group(value: StoredGroup, version: int) -> bytes:
    """Return a group in one of the versions 0 to 3."""
    pieces = [
        _INT16.pack(version),
        _string(value.protocol_type),
        _INT32.pack(value.generation_id),
        _string(value.protocol_name),
        _string(value.leader_id),
        _INT64.pack(value.state_timestamp_ms) if version >= 2 else b"",
        _INT32.pack(len(value.members)),
    ]
    for member in value.members:
        pieces += (
            _string(member.member_id),
            _string(member.group_instance_id) if version >= 3 else b"",
            _string(member.client_id),
            _string(member.client_host),
            _INT32.pack(member.rebalance_timeout_ms) if version >= 1 else b"",
            _INT32.pack(member.session_timeout_ms),
            _bytes(member.subscription),
            _bytes(member.assignment),
        )
    return b"".join(pieces)


def decode_key(data: bytes) -> Key | None:
    """Return a key; None: of a kind that this coordinator does not know (KAFKA-14869).

    Raises ``BadDataError``.
    """
    reader = _Reader(data)
    kind = reader.int16()
    if kind in _OFFSET_KINDS:
        return OffsetKey(reader.string(), TopicPartition(reader.string(), reader.int32()))
    return GroupKey(reader.string()) if kind == _GROUP_KIND else None


def decode_offset(data: bytes) -> OffsetAndMetadata:
    """Return a position; raises ``BadDataError``."""
    reader = _Reader(data)
    version = reader.version()
    offset = reader.int64()
    leader_epoch = reader.int32() if version >= 3 else NO_EPOCH
    metadata, commit_ms = reader.string(), reader.int64()
    expire_ms = reader.int64() if version == 1 else NO_TIMESTAMP
    return OffsetAndMetadata(offset, leader_epoch, metadata, commit_ms, expire_ms)


def decode_group(data: bytes) -> StoredGroup:
    """Return a group; raises ``BadDataError``."""
    reader = _Reader(data)
    version = reader.version()

    def member() -> StoredMember:
        member_id = reader.string()
        instance_id = reader.nullable_string() if version >= 3 else None
        client_id, client_host = reader.string(), reader.string()
        rebalance_ms = reader.int32() if version >= 1 else None
        session_ms = reader.int32()
        subscription, assignment = reader.bytes_(), reader.bytes_()
        reader.end_struct()
        return StoredMember(
            member_id,
            instance_id,
            client_id,
            client_host,
            session_ms if rebalance_ms is None else rebalance_ms,
            session_ms,
            subscription,
            assignment,
        )

    return StoredGroup(
        reader.string(),
        reader.int32(),
        reader.nullable_string(),
        reader.nullable_string(),
        reader.int64() if version >= 2 else NO_TIMESTAMP,
        tuple(reader.array(member)),
    )


class _Reader:
    """Reads values in sequence; in version 4 the lengths are varints (KIP-482)."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0
        self._is_flexible = False

    def version(self) -> int:
        version = self.int16()
        if not 0 <= version <= _FLEXIBLE:
            raise BadDataError(f"a record of a group has the unknown version {version}")
        self._is_flexible = version == _FLEXIBLE
        return version

    def int16(self) -> int:
        return self._unpack(_INT16)

    def int32(self) -> int:
        return self._unpack(_INT32)

    def int64(self) -> int:
        return self._unpack(_INT64)

    def string(self) -> str:
        return self.nullable_string() or ""

    def nullable_string(self) -> str | None:
        data = self._take(self._length(_INT16))
        try:
            return None if data is None else data.decode()
        except UnicodeDecodeError as error:
            raise BadDataError(f"a record of a group has a bad string: {error}") from None

    def bytes_(self) -> bytes:
        return self._take(self._length(_INT32)) or b""

    def array(self, read: Callable[[], T]) -> list[T]:
        count = self._length(_INT32)
        if count > len(self._data):
            raise BadDataError(f"a record of a group has an array of {count} elements")
        return [read() for _ in range(count)]

    def end_struct(self) -> None:
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
        raise BadDataError("a record of a group has a varint of more than five bytes")

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
            raise BadDataError(f"a record of a group ends in the middle, after {len(self._data)} B")
        taken = self._data[self._position : end]
        self._position = end
        return taken


def _string(text: str | None) -> bytes:
    if text is None:
        return _INT16.pack(_NULL)
    encoded = text.encode()
    return _INT16.pack(len(encoded)) + encoded


def _bytes(data: bytes) -> bytes:
    return _INT32.pack(len(data)) + data
