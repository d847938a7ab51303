"""The rates of clients with quotas."""

from __future__ import annotations

from regent.broker.metrics.listener_metrics import MAX_CLIENTS, QuotaMetrics
from regent.core.quota.client_quota_manager import QuotaClient
from regent.core.quota.quota_config import QuotaConfig
from regent.core.quota.quota_managers import QuotaManagers

NOW_MS = 1_000_000


def values(quotas: QuotaManagers) -> dict[str, float]:
    found: dict[str, float] = {}
    for family in QuotaMetrics(quotas, lambda: NOW_MS).collect():
        found |= family.values()
    return found


def test_a_client_with_a_quota_has_its_rate_and_its_limit():
    quotas = QuotaManagers(QuotaConfig())
    quotas.configure(
        {
            "clients/<default>": {"producer_byte_rate": "100"},
            "users/<default>": {"request_percentage": "50"},
        }
    )
    client = QuotaClient("ANONYMOUS", 'app "1"')
    quotas.produce.record(client, 5_000, NOW_MS)
    quotas.request.record(client, 0, NOW_MS)
    of_client = r'{user="",client_id="app \"1\""}'
    assert values(quotas) == {
        f"kafka_server_produce_byte_rate{of_client}": 500.0,
        f"regent_produce_byte_rate_limit{of_client}": 100.0,
        'kafka_server_request_request_time{user="ANONYMOUS",client_id=""}': 0.0,
        'regent_request_request_time_limit{user="ANONYMOUS",client_id=""}': 50.0,
    }


def test_only_the_clients_nearest_to_their_quotas_are_shown():
    quotas = QuotaManagers(QuotaConfig())
    quotas.configure({"clients/<default>": {"consumer_byte_rate": "100"}})
    for number in range(MAX_CLIENTS + 10):
        quotas.fetch.record(QuotaClient("u", f"c{number}"), number + 1, NOW_MS)
    shown = values(quotas)
    assert len(shown) == 2 * MAX_CLIENTS
    assert 'kafka_server_fetch_byte_rate{user="",client_id="c9"}' not in shown
    assert 'kafka_server_fetch_byte_rate{user="",client_id="c10"}' in shown


def test_there_is_nothing_without_quotas():
    assert values(QuotaManagers(QuotaConfig())) == {}
