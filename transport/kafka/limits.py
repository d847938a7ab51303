"""The limits of clients on the Kafka port."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from regent.config.tables.broker import BrokerConfig
from regent.core.setting import INT_MAX

PACE_BYTES: Final = 256 * 1024
"""Bytes per second that a large request must send while others wait for memory."""
MAX_BYTES_WITHOUT_RECORDS: Final = 4 * 1024 * 1024
"""The maximum size of requests other than Produce: these are decoded at once."""


@dataclass(frozen=True, slots=True)
class KafkaLimits:
    """The limits of clients; Kafka's settings, times in milliseconds.

    ``max_connections_per_ip_overrides`` has the limits of hosts, by name or address.
    ``max_connections`` counts all listeners for clients together, and
    ``max_connections_of_listener`` one: Kafka's ``listener.name.NAME.max.connections``.
    ``max_connection_creation_rate``, new connections a second, has the same two limits.
    ``queued_max_request_bytes`` limits all requests of more than 64 KiB together. The smaller
    requests of a connection take about 64 KiB at most.
    """

    socket_request_max_bytes: int = BrokerConfig.socket_request_max_bytes
    max_connections: int = BrokerConfig.max_connections
    max_connections_per_ip: int = BrokerConfig.max_connections_per_ip
    max_connections_per_ip_overrides: Mapping[str, int] = field(default_factory=dict)
    queued_requests_per_connection: int = BrokerConfig.queued_requests_per_connection
    connections_max_idle_ms: int = BrokerConfig.connections_max_idle_ms
    queued_max_request_bytes: int = BrokerConfig.queued_max_request_bytes
    max_connections_of_listener: int = INT_MAX
    max_connection_creation_rate: int = BrokerConfig.max_connection_creation_rate
    max_connection_creation_rate_of_listener: int = INT_MAX
