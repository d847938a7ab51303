"""What clients use of their quotas. Mirrors the MBeans of ``kafka.server.ClientQuotaManager``."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from typing import Final

from regent.actors.timer import monotonic_ms
from regent.broker.metrics.exposition import Family, gauge
from regent.core.quota.client_quota_manager import ClientQuotaManager
from regent.core.quota.quota_entities import entity_of
from regent.core.quota.quota_managers import QuotaManagers

MAX_CLIENTS: Final = 100
"""Those who use most of their quotas; there may be thousands."""


class QuotaMetrics:
    """The rates of clients that have a quota, and their quotas.

    ``now_ms`` is the clock that the rates are recorded with.
    """

    def __init__(self, quotas: QuotaManagers, now_ms: Callable[[], int] = monotonic_ms) -> None:
        self._quotas = quotas
        self._now_ms = now_ms

    def collect(self) -> Iterable[Family]:
        """Yield every metric with its present value."""
        quotas, now_ms = self._quotas, self._now_ms()
        for manager, name, meaning in (
            (quotas.produce, "produce_byte_rate", "bytes of produce requests in a second"),
            (quotas.fetch, "fetch_byte_rate", "bytes of fetched records in a second"),
            (quotas.request, "request_request_time", "percentage of the listener's thread"),
        ):
            yield from _metrics(manager, name, meaning, now_ms)


def _metrics(manager: ClientQuotaManager, name: str, meaning: str, now_ms: int) -> Iterable[Family]:
    rate = gauge(f"kafka_server_{name}", f"{meaning}, of clients with a quota")
    limit = gauge(f"regent_{name}_limit", "the quota of the same")
    share = {use: use.rate / use.limit for use in manager.uses(now_ms)}
    for use in heapq.nlargest(MAX_CLIENTS, share, key=share.__getitem__):
        entity = entity_of(use.path)
        assert entity is not None
        labels = {"user": entity.user or "", "client_id": entity.client_id or ""}
        rate.add(use.rate, labels)
        limit.add(use.limit, labels)
    yield rate
    yield limit
