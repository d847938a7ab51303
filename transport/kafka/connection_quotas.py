"""Limits of connections by the address of the client.

Mirrors ``kafka.network.ConnectionQuotas``, with Kafka's settings.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Mapping

from regent.core.errors import RegentError


class AddressQuotas:
    """At most ``limit`` connections of each address, or as many as ``overrides`` has for it."""

    def __init__(self, limit: int, overrides: Mapping[str, int]) -> None:
        self._open: Counter[str] = Counter()
        self.change(limit, overrides)

    def change(self, limit: int, overrides: Mapping[str, int]) -> None:
        """Set other limits; present connections stay."""
        self._limit = limit
        self._overrides = overrides

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


def limits_of_addresses(limits: Mapping[str, int]) -> dict[str, int]:
    """Return limits of hosts by their addresses; names are looked up.

    Raises ``RegentError`` for a host without an address.
    """
    return {address: count for host, count in limits.items() for address in _addresses(host)}


def _addresses(host: str) -> set[str]:
    try:
        return {str(found[4][0]) for found in socket.getaddrinfo(host, None)}
    except OSError as error:
        raise RegentError(
            f"max_connections_per_ip_overrides: {host} has no address: {error.strerror}"
        ) from None
