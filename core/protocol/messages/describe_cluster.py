"""DescribeCluster."""

from __future__ import annotations

from regent.core.protocol.message import Int8, Int16, Int32, message, since


@message
class DescribeClusterRequest:
    """A client asks for the brokers (endpoint type 1) or the controllers (2, KIP-919)."""

    include_cluster_authorized_operations: bool
    endpoint_type: Int8 = since(1, default=1)


@message
class DescribeClusterBroker:
    """A broker, and its address for clients of this listener."""

    broker_id: Int32
    host: str
    port: Int32
    rack: str | None


@message
class DescribeClusterResponse:
    """The brokers, or an error and what is wrong."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None
    endpoint_type: Int8 = since(1, default=1)
    cluster_id: str = ""
    controller_id: Int32 = -1
    brokers: tuple[DescribeClusterBroker, ...] = ()
    authorized_operations: Int32 = -(2**31)
