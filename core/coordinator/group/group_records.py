"""The records of ``__consumer_offsets``: keys and values as bytes, in Kafka's formats.

A key begins with its kind: 0 and 1 a position, 2 a group. A value begins with its version. Kafka
writes positions in version 3 (1 if they have an expire timestamp) and groups in version 3; it reads
0 to 4. Mirrors ``GroupMetadataManager.readMessageKey``, ``offsetCommitValue`` and
``groupMetadataValue``.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from sys import intern
from typing import Final, NamedTuple, TypeAlias

from regent.core.coordinator.record_fields import (
    INT16,
    INT32,
    INT64,
    RecordReader,
    bytes_field,
    string_field,
)
from regent.core.model import NO_EPOCH, TopicPartition
from regent.core.protocol.groups import NO_TIMESTAMP, OffsetAndMetadata

NEWEST_VERSION: Final = 3
"""The version in which values are written."""
_FLEXIBLE: Final = 4
_OFFSET_KINDS: Final = (0, 1)
_OFFSET_KIND, _GROUP_KIND = 1, 2
_KIND_OF_OFFSET: Final = INT16.pack(_OFFSET_KIND)
_OFFSET: Final = struct.Struct(">hq")
_OFFSET_WITH_EPOCH: Final = struct.Struct(">hqi")


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
        return INT16.pack(_GROUP_KIND) + string_field(key.group_id)
    topic, partition = key.topic_partition
    return b"".join(
        (_KIND_OF_OFFSET, string_field(key.group_id), string_field(topic), INT32.pack(partition))
    )


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
    metadata, committed = string_field(value.metadata), INT64.pack(value.commit_timestamp_ms)
    if version >= 3:
        head = _OFFSET_WITH_EPOCH.pack(version, value.offset, value.leader_epoch)
        return head + metadata + committed
    encoded = _OFFSET.pack(version, value.offset) + metadata + committed
    return encoded + INT64.pack(value.expire_timestamp_ms) if version == 1 else encoded


def encode_group(value: StoredGroup, version: int) -> bytes:
    """Return a group in one of the versions 0 to 3."""
    pieces = [
        INT16.pack(version),
        string_field(value.protocol_type),
        INT32.pack(value.generation_id),
        string_field(value.protocol_name),
        string_field(value.leader_id),
        INT64.pack(value.state_timestamp_ms) if version >= 2 else b"",
        INT32.pack(len(value.members)),
    ]
    for member in value.members:
        pieces += (
            string_field(member.member_id),
            string_field(member.group_instance_id) if version >= 3 else b"",
            string_field(member.client_id),
            string_field(member.client_host),
            INT32.pack(member.rebalance_timeout_ms) if version >= 1 else b"",
            INT32.pack(member.session_timeout_ms),
            bytes_field(member.subscription),
            bytes_field(member.assignment),
        )
    return b"".join(pieces)


def decode_key(data: bytes) -> Key | None:
    """Return a key; None: of a kind that this coordinator does not know (KAFKA-14869).

    Raises ``BadDataError``.
    """
    reader = RecordReader(data)
    kind = reader.int16()
    if kind in _OFFSET_KINDS:
        group_id, topic = reader.string(), intern(reader.string())  # one text for many positions
        return OffsetKey(group_id, TopicPartition(topic, reader.int32()))
    return GroupKey(reader.string()) if kind == _GROUP_KIND else None


def decode_offset(data: bytes) -> OffsetAndMetadata:
    """Return a position; raises ``BadDataError``."""
    reader = RecordReader(data)
    version = reader.version(_FLEXIBLE, "a group")
    offset = reader.int64()
    leader_epoch = reader.int32() if version >= 3 else NO_EPOCH
    metadata, commit_ms = reader.string(), reader.int64()
    expire_ms = reader.int64() if version == 1 else NO_TIMESTAMP
    return OffsetAndMetadata(offset, leader_epoch, metadata, commit_ms, expire_ms)


def decode_group(data: bytes) -> StoredGroup:
    """Return a group; raises ``BadDataError``."""
    reader = RecordReader(data)
    version = reader.version(_FLEXIBLE, "a group")

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
