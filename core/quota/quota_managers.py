"""All quotas of the clients of a broker. Mirrors ``kafka.server.QuotaFactory.QuotaManagers``."""

from __future__ import annotations

from collections.abc import Mapping

from regent.core.quota.client_quota_manager import (
    ClientQuotaManager,
    ControllerMutationQuotaManager,
)
from regent.core.quota.connection_rates import ConnectionRates
from regent.core.quota.quota_config import QuotaConfig
from regent.core.quota.quota_entities import (
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    entity_of,
    quota_value,
)


class QuotaManagers:
    """``configure`` may be called on any thread.

    The listener's thread records bytes, requests and connections; the thread that decides requests
    about topics records controller mutations.
    """

    def __init__(self, config: QuotaConfig) -> None:
        window = config.window
        self.produce = ClientQuotaManager(window)
        self.fetch = ClientQuotaManager(window)
        self.request = ClientQuotaManager(window, max_throttle_time_ms=window.sample_ms)
        self.controller_mutation = ControllerMutationQuotaManager(config.controller_window)
        self.connections = ConnectionRates(window)
        self.are_any_of_clients = False
        """Whether any quota limits users or client ids."""

    def configure(self, configs: Mapping[str, Mapping[str, str]]) -> None:
        """Set all quotas, by the paths of their entities; invalid ones are ignored."""
        has_any = False
        for key, manager in (
            (PRODUCER_BYTE_RATE, self.produce),
            (CONSUMER_BYTE_RATE, self.fetch),
            (REQUEST_PERCENTAGE, self.request),
            (CONTROLLER_MUTATION_RATE, self.controller_mutation),
            (CONNECTION_CREATION_RATE, self.connections),
        ):
            limits = _limits(key, configs)
            manager.set_limits(limits)
            has_any |= bool(limits) and key != CONNECTION_CREATION_RATE
        self.are_any_of_clients = has_any


def _limits(key: str, configs: Mapping[str, Mapping[str, str]]) -> Mapping[str, float]:
    limits = {}
    for path, config in configs.items():
        entity = entity_of(path)
        if key not in config or entity is None or key not in entity.quotas:
            continue
        try:
            limits[path] = quota_value(key, config[key])
        except ValueError:
            continue  # who reads the quotas has logged why it is ignored
    return limits
