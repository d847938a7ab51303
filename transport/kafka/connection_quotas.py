"""How many connections clients may have: together, of one address, and for want of descriptors.

Mirrors ``kafka.network.ConnectionQuotas``, with Kafka's settings. The rule about descriptors is
ours: a log directory whose files cannot be opened for want of one would be given up as if its disk
had failed.
"""

from __future__ import annotations

import os
import resource
import socket
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

from core.errors import RegentError

UNLIMITED: Final = 2**31 - 1
RESERVED_DESCRIPTORS: Final = 128
"""So many are left for files and the other brokers."""
_FEW_CONNECTIONS: Final = 16  # these may use what is reserved: an operator must be able to connect
_MEASURE_INTERVAL_S: Final = 1.0
_MEASURE_SHARE: Final = 0.01  # of the time, at most, is spent on counting descriptors


class AddressQuotas:
    """``limit`` connections of each address, and other limits for those that ``overrides`` name.

    Names of hosts are looked up once, here. Raises ``RegentError`` for one that has no address.
    """

    def __init__(self, limit: int, overrides: Mapping[str, int]) -> None:
        self._limit = limit
        self._overrides = {
            address: count for host, count in overrides.items() for address in _addresses(host)
        }
        self._open: Counter[str] = Counter()

    def admit(self, address: str) -> str | None:
        """Count a connection, or return why there is none for this address."""
        limit = self._overrides.get(address, self._limit)
        if self._open[address] >= limit:
            return f"it has the {limit} connections that max_connections_per_ip allows"
        self._open[address] += 1
        return None

    def release(self, address: str) -> None:
        """Forget a connection that was counted."""
        self._open[address] -= 1
        if not self._open[address]:
            del self._open[address]


class Descriptors:
    """The file descriptors of this process, counted now and then."""

    def __init__(
        self,
        count: Callable[[], int] | None = None,
        limit: Callable[[], int] | None = None,
    ) -> None:
        self._count = count or _open_descriptors
        self._limit = limit or _descriptor_limit
        self._of_others = 0
        self._measure_at = 0.0

    def shortage(self, connections: int) -> str | None:
        """Return why there is no descriptor for one more connection than these; None: there is."""
        now = time.monotonic()
        if now >= self._measure_at:
            self._of_others = self._count() - connections
            took = time.monotonic() - now
            self._measure_at = now + max(_MEASURE_INTERVAL_S, took / _MEASURE_SHARE)
        limit = self._limit()
        left = limit - self._of_others - connections
        if left > (RESERVED_DESCRIPTORS if connections >= _FEW_CONNECTIONS else _FEW_CONNECTIONS):
            return None
        return (
            f"{left} of {limit} file descriptors are left, {self._of_others} are in use by logs"
            " and other brokers: raise the limit (ulimit -n)"
        )


def _descriptor_limit() -> int:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return UNLIMITED if limit == resource.RLIM_INFINITY else limit


def _open_descriptors() -> int:
    return len(os.listdir("/dev/fd")) - 1  # the one it is read with


def _addresses(host: str) -> set[str]:
    try:
        return {str(found[4][0]) for found in socket.getaddrinfo(host, None)}
    except OSError as error:
        raise RegentError(
            f"max_connections_per_ip_overrides: {host} has no address: {error.strerror}"
        ) from None
