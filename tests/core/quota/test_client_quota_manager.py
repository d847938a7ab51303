"""Whose quota applies, and who shares it."""

from __future__ import annotations

import pytest

from regent.core.quota.client_quota_manager import (
    MAX_CLIENTS,
    ClientQuotaManager,
    ControllerMutationQuotaManager,
    QuotaClient,
)
from regent.core.quota.connection_rates import ConnectionRate, ConnectionRates
from regent.core.quota.quota_config import QuotaConfig, QuotaWindow
from regent.core.quota.quota_managers import QuotaManagers
from regent.core.setting import INT_MAX

WINDOW = QuotaWindow(11, 1_000)
BURST = 10  # bytes a second over the window may be used at once, ten times as many
ALICE = QuotaClient("alice", "app")

PRECEDENCE = [
    "users/alice/clients/app",
    "users/alice/clients/<default>",
    "users/alice",
    "users/<default>/clients/app",
    "users/<default>/clients/<default>",
    "users/<default>",
    "clients/app",
    "clients/<default>",
]


def limit_of(manager: ClientQuotaManager, client: QuotaClient) -> int:
    return manager.max_amount(client) // BURST


@pytest.mark.parametrize("first", range(len(PRECEDENCE)))
def test_the_most_specific_quota_applies(first: int):
    manager = ClientQuotaManager(WINDOW)
    manager.set_limits({path: 100 + n for n, path in enumerate(PRECEDENCE) if n >= first})
    assert limit_of(manager, ALICE) == 100 + first


@pytest.mark.parametrize(
    ("path", "other", "is_shared"),
    [
        ("users/alice", QuotaClient("alice", "other"), True),
        ("users/<default>", QuotaClient("alice", "other"), True),
        ("users/<default>", QuotaClient("bob", "app"), False),
        ("clients/app", QuotaClient("bob", "app"), True),
        ("clients/<default>", QuotaClient("alice", "other"), False),
        ("users/<default>/clients/<default>", QuotaClient("bob", "app"), False),
        ("users/alice/clients/<default>", QuotaClient("alice", "other"), False),
    ],
)
def test_clients_share_a_quota_as_with_kafka(path: str, other: QuotaClient, is_shared: bool):
    manager = ClientQuotaManager(WINDOW)
    manager.set_limits({path: 1})
    assert manager.record(ALICE, 20, 0) > 0
    assert (manager.record(other, 0, 0) > 0) is is_shared


def test_a_client_without_an_id_has_the_quota_of_the_others():
    manager = ClientQuotaManager(WINDOW)
    manager.set_limits({"clients/<default>": 7})
    assert limit_of(manager, QuotaClient("ANONYMOUS", "")) == 7


def test_a_client_keeps_what_it_has_used_when_its_quota_changes():
    manager = ClientQuotaManager(WINDOW)
    manager.set_limits({"clients/app": 1})
    before = manager.record(ALICE, 100, 0)
    manager.set_limits({"clients/app": 2})
    assert 0 < manager.record(ALICE, 0, 0) < before
    manager.set_limits({})
    assert manager.record(ALICE, 1_000_000, 0) == 0


def test_a_wait_for_requests_is_not_longer_than_a_sample():
    manager = ClientQuotaManager(WINDOW, max_throttle_time_ms=1_000)
    manager.set_limits({"clients/app": 1})
    assert manager.record(ALICE, 1_000_000, 0) == 1_000


def test_only_the_last_clients_are_remembered():
    manager = ClientQuotaManager(WINDOW)
    manager.set_limits({"clients/<default>": 1})
    assert manager.record(ALICE, 100, 0) > 0
    assert manager.record(QuotaClient("alice", "other"), 100, 0) > 0
    for number in range(MAX_CLIENTS - 1):
        manager.record(QuotaClient("alice", f"stranger-{number}"), 0, 0)
        manager.record(QuotaClient("alice", "other"), 0, 0)
    assert manager.record(ALICE, 0, 0) == 0
    assert manager.record(QuotaClient("alice", "other"), 0, 0) > 0


def test_mutations_beyond_a_strict_quota_are_refused():
    manager = ControllerMutationQuotaManager(WINDOW)
    manager.set_limits({"users/<default>": 1})
    assert manager.record(ALICE, 15, 0, is_strict=True) == (True, 0)
    assert manager.record(ALICE, 1, 0, is_strict=True) == (False, 4_000)
    assert manager.record(ALICE, 1, 4_000, is_strict=True) == (True, 0)


def test_mutations_beyond_a_lenient_quota_make_the_client_wait():
    manager = ControllerMutationQuotaManager(WINDOW)
    manager.set_limits({"users/<default>": 1})
    assert manager.record(ALICE, 15, 0, is_strict=False) == (True, 4_000)
    assert manager.record(ALICE, 1, 0, is_strict=False) == (True, 5_000)


def test_connections_of_an_address_are_limited():
    rates = ConnectionRates(WINDOW)
    rates.set_limits({"ips/127.0.0.1": 1, "ips/%3A%3A1": 2})
    waits = [rates.record("127.0.0.1", 0) for _ in range(12)]
    assert waits == [0] * 10 + [1_000] * 2
    assert rates.record("127.0.0.1", 11_000) == 0
    assert [rates.record("::1", 0) for _ in range(20)] == [0] * 20
    assert [rates.record("127.0.0.9", 0) for _ in range(20)] == [0] * 20


def test_each_address_has_the_default_for_itself():
    rates = ConnectionRates(WINDOW)
    rates.set_limits({"ips/<default>": 1})
    for address in ("10.0.0.1", "10.0.0.2", "2001:db8::1", "2001:db8::2"):
        assert [rates.record(address, 0) for _ in range(10)] == [0] * 10
        assert rates.record(address, 0) > 0


def test_new_connections_wait_while_there_are_too_many_a_second():
    rate = ConnectionRate(WINDOW, 1)
    assert [rate.record(0) for _ in range(12)] == [0] * 10 + [1_000] * 2
    assert rate.record(13_000) == 0


def test_connections_that_were_refused_do_not_count():
    rate = ConnectionRate(WINDOW, 1)
    for _ in range(20):
        assert rate.record(0) == 0
        rate.take_back(0)


@pytest.mark.parametrize(("limit", "wait_ms"), [(0, 1_000), (INT_MAX, 0)])
def test_a_rate_of_connections_may_be_nothing_or_without_limit(limit: int, wait_ms: int):
    rate = ConnectionRate(WINDOW, limit)
    assert {rate.record(0) for _ in range(100)} == {wait_ms}


def test_invalid_quotas_are_ignored():
    quotas = QuotaManagers(QuotaConfig())
    quotas.configure(
        {
            "clients/a": {"producer_byte_rate": "none", "consumer_byte_rate": "5"},
            "users/u": {"SCRAM-SHA-256": "salt=x", "request_percentage": "0"},
            "topics/t": {"producer_byte_rate": "1"},
            "ips/<default>": {"producer_byte_rate": "1"},
        }
    )
    assert quotas.produce.max_amount(QuotaClient("u", "a")) == 2**31 - 1
    assert quotas.fetch.max_amount(QuotaClient("u", "a")) == 50


@pytest.mark.parametrize(
    ("path", "config", "expected"),
    [
        ("users/u", {"controller_mutation_rate": "1"}, True),
        ("clients/c", {"request_percentage": "1"}, True),
        ("ips/1.2.3.4", {"connection_creation_rate": "1"}, False),
        ("clients/c", {}, False),
    ],
)
def test_without_quotas_nothing_is_counted(path: str, config: dict[str, str], expected: bool):
    quotas = QuotaManagers(QuotaConfig())
    assert not quotas.are_any_of_clients
    quotas.configure({path: config})
    assert quotas.are_any_of_clients is expected


@pytest.mark.parametrize("path", PRECEDENCE)
def test_a_quota_that_is_set_later_limits_a_client_that_is_known(path: str):
    manager = ClientQuotaManager(WINDOW)
    assert manager.record(ALICE, 1_000, 0) == 0
    manager.set_limits({path: 1})
    assert manager.record(ALICE, 100, 0) > 0


def test_a_quota_of_mutations_that_is_set_later_limits_a_client_that_is_known():
    manager = ControllerMutationQuotaManager(WINDOW)
    assert manager.record(ALICE, 1_000, 0, is_strict=True) == (True, 0)
    manager.set_limits({"users/alice": 1})
    assert manager.record(ALICE, 15, 0, is_strict=True) == (True, 0)
    assert manager.record(ALICE, 1, 0, is_strict=True) == (False, 4_000)


def test_a_known_client_gets_the_next_matching_quota_when_its_own_is_removed():
    manager = ClientQuotaManager(WINDOW)
    manager.set_limits({"users/alice": 9, "clients/<default>": 4})
    assert limit_of(manager, ALICE) == 9
    manager.set_limits({"clients/<default>": 4})
    assert limit_of(manager, ALICE) == 4


def test_a_quota_that_is_set_later_limits_an_address_that_is_known():
    rates = ConnectionRates(WINDOW)
    assert [rates.record("10.0.0.1", 0) for _ in range(20)] == [0] * 20
    rates.set_limits({"ips/10.0.0.1": 1})
    assert [rates.record("10.0.0.1", 0) for _ in range(11)] == [0] * 10 + [1_000]
    rates.set_limits({"ips/10.0.0.1": 3})
    assert rates.record("10.0.0.1", 0) == 0


def test_a_connection_that_is_one_too_many_is_not_counted():
    """An address that tries again and again gets as many connections as one that waits."""
    rates = ConnectionRates(WINDOW)
    rates.set_limits({"ips/10.0.0.1": 1})
    assert [rates.record("10.0.0.1", 0) for _ in range(10)] == [0] * 10
    for second in range(1, 11):
        assert rates.record("10.0.0.1", second * 1_000) > 0
    assert [rates.record("10.0.0.1", 11_000) for _ in range(11)] == [0] * 10 + [1_000]


def test_only_the_last_addresses_are_remembered():
    rates = ConnectionRates(WINDOW)
    rates.set_limits({"ips/<default>": 1})
    for address in ("10.0.0.1", "10.0.0.2", "2001:db8::1", "2001:db8::2"):
        assert [rates.record(address, 0) for _ in range(11)] == [0] * 10 + [1_000]
    for number in range(MAX_CLIENTS - 1):
        rates.record(f"stranger-{number}", 0)
        if number == 0:
            assert rates.record("10.0.0.2", 0) > 0
    assert rates.record("10.0.0.1", 0) == 0
    assert rates.record("10.0.0.2", 0) > 0
