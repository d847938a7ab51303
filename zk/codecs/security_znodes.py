"""The znodes of security: ACLs, and notifications of changes of ACLs and delegation tokens.

As in ``zk.codecs.znodes`` there is one class for each path, and ``decode`` raises only
``BadDataError``. Unknown keys are ignored, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import orjson

from regent.core.errors import BadDataError
from regent.zk.codecs.json_fields import bad_field, decode_object


class AccessControlEntry(NamedTuple):
    """Allows or denies a principal an operation from a host."""

    principal: str  # as in "User:alice"
    permission_type: str  # "Allow" or "Deny"
    operation: str
    host: str


class ResourcePattern(NamedTuple):
    """The resources that an ACL applies to."""

    resource_type: str  # as in "Topic"
    name: str
    pattern_type: str = "LITERAL"


class ResourceZNode:
    """``/kafka-acl/<type>/<name>``; ``/kafka-acl-extended/<pattern>/<type>/<name>`` (KIP-290)."""

    _NODE = "/kafka-acl/<type>/<name>"

    @staticmethod
    def path(resource: ResourcePattern) -> str:
        """Return the path of a resource's list."""
        pattern = resource.pattern_type
        base = "/kafka-acl" if pattern == "LITERAL" else f"/kafka-acl-extended/{pattern.lower()}"
        return f"{base}/{resource.resource_type}/{resource.name}"

    @staticmethod
    def encode(entries: Iterable[AccessControlEntry]) -> bytes:
        """Encode as version 1."""
        acls = [
            {
                "principal": entry.principal,
                "permissionType": entry.permission_type,
                "operation": entry.operation,
                "host": entry.host,
            }
            for entry in entries
        ]
        return orjson.dumps({"version": 1, "acls": acls})

    @staticmethod
    def decode(data: bytes) -> tuple[AccessControlEntry, ...]:
        """Return the entries, in their order."""
        return tuple(
            AccessControlEntry(
                acl.string("principal"),
                acl.string("permissionType"),
                acl.string("operation"),
                acl.string("host"),
            )
            for acl in decode_object(data, ResourceZNode._NODE).objects("acls")
        )


class LiteralAclChangeZNode:
    """``/kafka-acl-changes/acl_changes_<sequence>``: the list of a literal resource changed."""

    PATH_PREFIX = "/kafka-acl-changes/acl_changes_"

    @staticmethod
    def encode(resource: ResourcePattern) -> bytes:
        """Encode as text; the pattern is literal."""
        return f"{resource.resource_type}:{resource.name}".encode()

    @staticmethod
    def decode(data: bytes) -> ResourcePattern:
        """Return the resource; its name may itself hold colons."""
        node = f"{LiteralAclChangeZNode.PATH_PREFIX}<n>"
        resource_type, separator, name = decode_text(data, node).partition(":")
        if not (resource_type and separator and name):
            raise bad_field(node, "the text", "TYPE:NAME", data[:60])
        return ResourcePattern(resource_type, name)


class ExtendedAclChangeZNode:
    """``/kafka-acl-extended-changes/acl_changes_<sequence>``: another pattern's list changed."""

    PATH_PREFIX = "/kafka-acl-extended-changes/acl_changes_"

    @staticmethod
    def encode(resource: ResourcePattern) -> bytes:
        """Encode as version 1."""
        return orjson.dumps(
            {
                "version": 1,
                "resourceType": resource.resource_type,
                "name": resource.name,
                "patternType": resource.pattern_type,
            }
        )

    @staticmethod
    def decode(data: bytes) -> ResourcePattern:
        """Return the resource."""
        json = decode_object(data, f"{ExtendedAclChangeZNode.PATH_PREFIX}<n>")
        return ResourcePattern(
            json.string("resourceType"), json.string("name"), json.string("patternType")
        )


class DelegationTokenChangeZNode:
    """``/delegation_token/token_changes/token_change_<sequence>``: the id of a changed token."""

    PATH_PREFIX = "/delegation_token/token_changes/token_change_"

    @staticmethod
    def encode(token_id: str) -> bytes:
        """Encode: the bare id."""
        return token_id.encode()

    @staticmethod
    def decode(data: bytes) -> str:
        """Return the token's id."""
        return decode_text(data, f"{DelegationTokenChangeZNode.PATH_PREFIX}<n>")


def decode_text(data: bytes, node: str) -> str:
    """Return a znode's bytes as text."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise BadDataError(f"{node}: not UTF-8: {error.reason}") from None
