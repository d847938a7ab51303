"""The operations that a client may do on a resource, as a bit field (KIP-430).

There is no authorizer: every client may do all operations that the type of a resource has, as on
brokers of Kafka without one. Mirrors ``org.apache.kafka.security.authorizer.AclEntry`` and
``kafka.server.AuthHelper.authorizedOperations``.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class AclOperation(IntEnum):
    """Kafka's operations; the number of an operation is its bit."""

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


def _bit_field(*operations: AclOperation) -> int:
    return sum(1 << operation for operation in operations)


OPERATIONS_NOT_ASKED: Final = -(2**31)
"""What a response has in place of the bit field if the request does not ask for it."""

TOPIC_OPERATIONS: Final = _bit_field(
    AclOperation.READ,
    AclOperation.WRITE,
    AclOperation.CREATE,
    AclOperation.DELETE,
    AclOperation.ALTER,
    AclOperation.DESCRIBE,
    AclOperation.DESCRIBE_CONFIGS,
    AclOperation.ALTER_CONFIGS,
)
CLUSTER_OPERATIONS: Final = _bit_field(
    AclOperation.CREATE,
    AclOperation.ALTER,
    AclOperation.DESCRIBE,
    AclOperation.CLUSTER_ACTION,
    AclOperation.DESCRIBE_CONFIGS,
    AclOperation.ALTER_CONFIGS,
    AclOperation.IDEMPOTENT_WRITE,
)
GROUP_OPERATIONS: Final = _bit_field(AclOperation.READ, AclOperation.DELETE, AclOperation.DESCRIBE)


def operations_if(asked: bool, operations: int) -> int:
    """Return the bit field for a response."""
    return operations if asked else OPERATIONS_NOT_ASKED
