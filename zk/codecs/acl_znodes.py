"""The data of ACLs and of their notifications; see ``zk.codecs.topic_znodes``.

Mirrors ``org.apache.kafka.security.authorizer.AclEntry`` and ``kafka.zk.ZkAclChangeStore``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeVar

import orjson

from regent.core.errors import BadDataError
from regent.core.security.acls import (
    AccessControlEntry,
    AclOperation,
    AclPermissionType,
    AclWord,
    PatternType,
    ResourcePattern,
    ResourceType,
)
from regent.zk.codecs.json_fields import Codec, JsonObject, bad_field, decode_object

W = TypeVar("W", bound=AclWord)

_VERSION: Final = 1


def _encode_entries(entries: Iterable[AccessControlEntry]) -> bytes:
    acls = [
        {
            "principal": entry.principal,
            "permissionType": entry.permission_type.text,
            "operation": entry.operation.text,
            "host": entry.host,
        }
        for entry in sorted(entries)
    ]
    return orjson.dumps({"version": _VERSION, "acls": acls})


def _decode_entries(node: str, data: bytes) -> frozenset[AccessControlEntry]:
    """Return the entries, none for empty data."""
    if not data:
        return frozenset()
    values = decode_object(data, node)
    values.integer("version", _VERSION, _VERSION)
    return frozenset(map(_decode_entry, values.objects("acls")))


def _decode_entry(entry: JsonObject) -> AccessControlEntry:
    principal = entry.string("principal")
    if ":" not in principal:
        raise bad_field(entry.node, "principal", "Type:name", principal)
    return AccessControlEntry(
        principal,
        entry.string("host"),
        _word(AclOperation, entry, "operation"),
        _word(AclPermissionType, entry, "permissionType"),
    )


def _word(words: type[W], values: JsonObject, key: str) -> W:
    text = values.string(key)
    for word in words:
        if word.text == text and word.name != "ANY":
            return word
    raise bad_field(values.node, key, f"one of {', '.join(w.text for w in words)}", text)


def resource_type_named(name: str) -> ResourceType | None:
    """Return the type with a name, in any case and with or without underscores; None: unknown."""
    wanted = name.replace("_", "").lower()
    for resource_type in ResourceType:
        if resource_type.text.lower() == wanted and resource_type is not ResourceType.ANY:
            return resource_type
    return None


def _encode_change(pattern: ResourcePattern) -> bytes:
    """Encode as brokers do whose types are Java's: the type is in upper case."""
    return f"{pattern.resource_type.name}:{pattern.name}".encode()


def _decode_change(node: str, data: bytes) -> ResourcePattern:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise BadDataError(f"{node}: not text") from None
    type_name, colon, name = text.partition(":")
    resource_type = resource_type_named(type_name)
    if resource_type is None or not colon or not name:
        raise bad_field(node, "the data", "a type of resources, a colon and a name", text)
    return ResourcePattern(resource_type, name, PatternType.LITERAL)


def _encode_extended_change(pattern: ResourcePattern) -> bytes:
    return orjson.dumps(
        {
            "version": _VERSION,
            "resourceType": pattern.resource_type.name,
            "name": pattern.name,
            "patternType": pattern.pattern_type.name,
        }
    )


def _decode_extended_change(node: str, data: bytes) -> ResourcePattern:
    values = decode_object(data, node)
    values.integer("version", 0, _VERSION)
    type_name, name = values.string("resourceType"), values.string("name")
    resource_type = resource_type_named(type_name)
    pattern_type = values.string("patternType").upper()
    if resource_type is None:
        raise bad_field(node, "resourceType", "a type of resources", type_name)
    if pattern_type != PatternType.PREFIXED.name:
        raise bad_field(node, "patternType", PatternType.PREFIXED.name, pattern_type)
    return ResourcePattern(resource_type, name, PatternType.PREFIXED)


ENTRIES = Codec(_encode_entries, _decode_entries)
CHANGE = Codec(_encode_change, _decode_change)
EXTENDED_CHANGE = Codec(_encode_extended_change, _decode_extended_change)
