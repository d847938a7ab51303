"""What an ACL says: who may, or may not, do what on which resource. Values without behaviour.

Mirrors ``org.apache.kafka.common.acl`` and ``org.apache.kafka.common.resource``. The numbers are
those of Kafka's messages. ANY and MATCH are in filters only.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

ANYBODY: Final = "User:*"
"""The principal of an entry for every user."""
ANY_HOST: Final = "*"
EVERY_NAME: Final = "*"
"""The literal name of a pattern for every resource of a type."""
CLUSTER_NAME: Final = "kafka-cluster"
"""The only name of a resource of the type CLUSTER."""


class AclWord(IntEnum):
    """A word of an ACL; ``text`` is how znodes and people write it, ``DescribeConfigs``."""

    @property
    def text(self) -> str:
        """The name in PascalCase."""
        return self.name.title().replace("_", "")


class ResourceType(AclWord):
    """The kinds of resources."""

    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(AclWord):
    """How the name of a pattern names resources."""

    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class AclOperation(AclWord):
    """What a client does; the number of an operation is its bit in a field of operations."""

    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14


class AclPermissionType(AclWord):
    """Whether an entry allows or denies."""

    ANY = 1
    DENY = 2
    ALLOW = 3


OPERATIONS: Final = {
    ResourceType.TOPIC: (
        AclOperation.READ,
        AclOperation.WRITE,
        AclOperation.CREATE,
        AclOperation.DELETE,
        AclOperation.ALTER,
        AclOperation.DESCRIBE,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (AclOperation.READ, AclOperation.DELETE, AclOperation.DESCRIBE),
    ResourceType.CLUSTER: (
        AclOperation.CREATE,
        AclOperation.ALTER,
        AclOperation.DESCRIBE,
        AclOperation.CLUSTER_ACTION,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
        AclOperation.IDEMPOTENT_WRITE,
    ),
    ResourceType.TRANSACTIONAL_ID: (AclOperation.WRITE, AclOperation.DESCRIBE),
    ResourceType.DELEGATION_TOKEN: (AclOperation.DESCRIBE,),
    ResourceType.USER: (AclOperation.CREATE_TOKENS, AclOperation.DESCRIBE_TOKENS),
}
"""The operations that each type of resources has."""


class Resource(NamedTuple):
    """What a client wants to use."""

    resource_type: ResourceType
    name: str


CLUSTER: Final = Resource(ResourceType.CLUSTER, CLUSTER_NAME)


class ResourcePattern(NamedTuple):
    """The resources of an ACL; ``pattern_type`` is LITERAL or PREFIXED."""

    resource_type: ResourceType
    name: str
    pattern_type: PatternType

    def __str__(self) -> str:
        return f"{self.resource_type.text}:{self.pattern_type.name}:{self.name}"


class AccessControlEntry(NamedTuple):
    """One rule about the resources of a pattern; ``principal`` is ``User:name``."""

    principal: str
    host: str
    operation: AclOperation
    permission_type: AclPermissionType


class AclBinding(NamedTuple):
    """One rule with its resources."""

    pattern: ResourcePattern
    entry: AccessControlEntry

    @property
    def problem(self) -> str:
        """Why it cannot be created, as Kafka says it; empty: it can."""
        (resource_type, name, pattern_type), entry = self
        if not name:
            return "Invalid empty resource name"
        if resource_type is ResourceType.CLUSTER and name != CLUSTER_NAME:
            return f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}"
        is_vague = (
            resource_type is ResourceType.ANY
            or pattern_type in (PatternType.ANY, PatternType.MATCH)
            or entry.operation is AclOperation.ANY
            or entry.permission_type is AclPermissionType.ANY
        )
        if is_vague:
            return "an ACL must name one type of resources, one operation and one permission"
        # The name becomes that of a znode.
        if "/" in name or name in (".", "..") or not name.isprintable():
            return f"ACL binding contains invalid resource name: {name!r}"
        if ":" not in entry.principal or not entry.host:
            return "an ACL must have a principal, Type:name, and a host, * for every host"
        return ""


class AclBindingFilter(NamedTuple):
    """Which rules are meant; None and ANY: all."""

    resource_type: ResourceType
    name: str | None
    pattern_type: PatternType
    principal: str | None
    host: str | None
    operation: AclOperation
    permission_type: AclPermissionType

    def has_pattern(self, pattern: ResourcePattern) -> bool:
        """Whether rules about these resources may be meant."""
        if self.resource_type not in (ResourceType.ANY, pattern.resource_type):
            return False
        if self.pattern_type not in (PatternType.ANY, PatternType.MATCH, pattern.pattern_type):
            return False
        if self.name is None or self.name == pattern.name:
            return True
        if self.pattern_type is not PatternType.MATCH:
            return False
        if pattern.pattern_type is PatternType.LITERAL:
            return pattern.name == EVERY_NAME
        return self.name.startswith(pattern.name)

    def has_entry(self, entry: AccessControlEntry) -> bool:
        """Whether this rule is meant, if its resources are."""
        return (
            self.principal in (None, entry.principal)
            and self.host in (None, entry.host)
            and self.operation in (AclOperation.ANY, entry.operation)
            and self.permission_type in (AclPermissionType.ANY, entry.permission_type)
        )

    @property
    def named_patterns(self) -> tuple[ResourcePattern, ...]:
        """The patterns that may be meant, if the filter names a resource; else none."""
        if self.name is None or self.resource_type is ResourceType.ANY:
            return ()
        kinds = [PatternType.LITERAL, PatternType.PREFIXED]
        if self.pattern_type is PatternType.MATCH:
            return ()
        if self.pattern_type is not PatternType.ANY:
            kinds = [self.pattern_type]
        return tuple(ResourcePattern(self.resource_type, self.name, kind) for kind in kinds)
