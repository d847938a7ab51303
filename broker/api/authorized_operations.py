"""The operations that a client may do on a resource, as a bit field (KIP-430).

Without an authorizer a client may do all operations that the type of the resource has, as on
brokers of Kafka without one. Mirrors ``kafka.server.AuthHelper.authorizedOperations``.
"""

from __future__ import annotations

from typing import Final

from regent.core.security.acls import CLUSTER_NAME, OPERATIONS, AclOperation, ResourceType
from regent.core.security.authorizer import ALLOW_ALL
from regent.transport.kafka.api import KafkaRequest

OPERATIONS_NOT_ASKED: Final = -(2**31)
"""What a response has in place of the bit field if the request does not ask for it."""

_ALL: Final = {kind: sum(1 << op for op in found) for kind, found in OPERATIONS.items()}


def operations_if(
    asked: bool, request: KafkaRequest, resource_type: ResourceType, name: str = CLUSTER_NAME
) -> int:
    """Return the bit field of a resource for a response.

    Of the cluster it is 0 for a client that may not describe the cluster.
    """
    if not asked:
        return OPERATIONS_NOT_ASKED
    if request.authorizer is ALLOW_ALL:
        return _ALL[resource_type]
    is_cluster = resource_type is ResourceType.CLUSTER
    if is_cluster and not request.may(AclOperation.DESCRIBE, resource_type, is_logged=False):
        return 0
    return sum(
        1 << operation
        for operation in OPERATIONS[resource_type]
        if request.may(operation, resource_type, name, is_logged=False)
    )
