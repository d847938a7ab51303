"""DescribeCluster, versions 0 and 1 (KIP-700): the brokers and the active controller.

Mirrors ``kafka.server.KafkaApis.handleDescribeCluster``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from regent.broker.api.authorized_operations import operations_if
from regent.broker.api.first_metadata import FirstMetadata
from regent.core.errors import Errors
from regent.core.model import NO_CONTROLLER
from regent.core.protocol.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from regent.core.replication.metadata_cache import MetadataCache
from regent.core.replication.metadata_view import alive_endpoints
from regent.core.security.acls import ResourceType
from regent.transport.kafka.api import (
    KafkaAnswer,
    KafkaApi,
    KafkaApiKey,
    KafkaRequest,
    UnansweredRequestError,
)
from regent.transport.kafka.message_codec import answer, decode

_BROKERS: Final = 1
_CONTROLLERS: Final = 2


def describe_cluster_apis(
    cache: MetadataCache, cluster_id: Callable[[], str | None]
) -> Sequence[KafkaApi]:
    """Return DescribeCluster; clients see the brokers that have the listener they came by."""
    first_metadata = FirstMetadata(cache)

    async def handle(request: KafkaRequest) -> KafkaAnswer:
        asked = decode(DescribeClusterRequest, request)
        if asked.endpoint_type != _BROKERS:
            return answer(_wrong_type(asked.endpoint_type), request)
        await first_metadata.arrived()
        snapshot = cache.snapshot
        if not snapshot.brokers:
            raise UnansweredRequestError("no broker is known yet")  # the client asks another
        brokers = tuple(
            DescribeClusterBroker(
                broker_id=broker.broker_id,
                host=endpoint.host,
                port=endpoint.port,
                rack=broker.rack,
            )
            for broker, endpoint in alive_endpoints(snapshot, request.session.listener_name)
        )
        is_listed = any(broker.broker_id == snapshot.controller_id for broker in brokers)
        described = DescribeClusterResponse(
            cluster_id=cluster_id() or "",
            controller_id=snapshot.controller_id if is_listed else NO_CONTROLLER,
            brokers=brokers,
            authorized_operations=operations_if(
                asked.include_cluster_authorized_operations, request, ResourceType.CLUSTER
            ),
        )
        return answer(described, request)

    return [KafkaApi(KafkaApiKey.DESCRIBE_CLUSTER, 0, 1, handle)]


def _wrong_type(endpoint_type: int) -> DescribeClusterResponse:
    if endpoint_type == _CONTROLLERS:
        return DescribeClusterResponse(
            error_code=Errors.MISMATCHED_ENDPOINT_TYPE,
            error_message="this is an endpoint of a broker, not of a KRaft controller",
        )
    return DescribeClusterResponse(
        error_code=Errors.UNSUPPORTED_ENDPOINT_TYPE,
        error_message=f"there is no endpoint type {endpoint_type}; brokers have 1",
    )
