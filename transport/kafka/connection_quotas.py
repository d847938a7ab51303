"""Limits of connections by the address of the client.

Mirrors ``kafka.network.ConnectionQuotas``, with Kafka's settings.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Mapping

from regent.core.errors import RegentError


class AddressQuotas:
    """At most ``limit`` connections of each address; ``overrides`` has other limits of hosts.

    Names of hosts are looked up once, here. Raises ``RegentError`` for a host without an address.
    """

    def __init__(self, limit: int, overrides: Mapping[str, int]) -> None:
        self._limit = limit
        self._overrides = {
            address: count for host, count in overrides.items() for address in _addresses(host)
        }
        self._open: Counter[str] = Counter()

    def admit(self, address: str) -> str | None:
        """Count a connection and return None, or return why it is refused."""
        limit = self._overrides.get(address, self._limit)
        if self._open[address] >= limit:
            return f"it has the {limit} connections that max_connections_per_ip allows"
        self._open[address] += 1
        return None

    def release(self, address: str) -> None:
        """Uncount a closed connection."""
        self._open[address] -= 1
        if not self._open[address]:
            del self._open[address]


def _addresses(host: str) -> set[str]:
    try:
        return {str(found[4][0]) for found in socket.getaddrinfo(host, None)}
    except OSError as error:
        raise RegentError(
            f"max_connections_per_ip_overrides: {host} has no address: {error.strerror}"
        ) from None
