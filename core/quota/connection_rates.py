"""Limits how many connections a second each address may open, and all together (KIP-612).

Mirrors ``kafka.network.ConnectionQuotas`` for ``connection_creation_rate`` and
``max.connection.creation.rate``.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

from regent.core.quota.client_quota_manager import MAX_CLIENTS
from regent.core.quota.quota_config import QuotaWindow
from regent.core.quota.quota_entities import DEFAULT_NAME, IPS, sanitised
from regent.core.quota.rates import Rate
from regent.core.setting import INT_MAX


class ConnectionRates:
    """The rates of addresses that have a quota. One thread records; any may set the quotas."""

    def __init__(self, window: QuotaWindow) -> None:
        self.window = window
        self._limits: Mapping[str, float] = {}
        self._rates: OrderedDict[str, Rate] = OrderedDict()

    def set_limits(self, limits: Mapping[str, float]) -> None:
        """Set the quotas, connections a second, by the paths of their entities."""
        self._limits = limits

    def record(self, address: str, now_ms: int) -> int:
        """Count a new connection; return for how many milliseconds it is one too many.

        A connection that is one too many is not counted.
        """
        limits = self._limits
        limit = _limit(limits, address) if limits else None
        if limit is None:
            return 0
        rate = self._rates.pop(address, None) or Rate(self.window)
        if len(self._rates) >= MAX_CLIENTS:
            self._rates.popitem(last=False)
        self._rates[address] = rate
        rate.record(1, now_ms)
        throttle_time_ms = rate.throttle_time_ms(limit, now_ms)
        if throttle_time_ms:
            rate.record(-1, now_ms)
        return min(throttle_time_ms, self.window.sample_ms)


class ConnectionRate:
    """The rate of all connections of a listener, or of a broker; ``limit`` a second.

    Belongs to one thread.
    """

    def __init__(self, window: QuotaWindow, limit: int) -> None:
        self.limit = limit
        self._window = window
        self._rate = Rate(window)

    def record(self, now_ms: int) -> int:
        """Count a new connection; return for how many milliseconds it must wait."""
        if self.limit == INT_MAX:
            return 0
        self._rate.record(1, now_ms)
        if not self.limit:
            return self._window.sample_ms
        return min(self._rate.throttle_time_ms(self.limit, now_ms), self._window.sample_ms)

    def take_back(self, now_ms: int) -> None:
        """Do not count a connection that was counted and refused."""
        if self.limit != INT_MAX:
            self._rate.record(-1, now_ms)


def _limit(limits: Mapping[str, float], address: str) -> float | None:
    own = limits.get(f"{IPS}/{sanitised(address)}")
    return limits.get(f"{IPS}/{DEFAULT_NAME}") if own is None else own
