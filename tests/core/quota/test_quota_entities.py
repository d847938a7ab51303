"""The names of entities and quotas in ZooKeeper."""

from __future__ import annotations

import pytest

from regent.core.quota.quota_entities import QuotaEntity, entity_of, quota_text, quota_value

PATHS = {
    "users/alice": QuotaEntity(user="alice"),
    "users/<default>": QuotaEntity(user=""),
    "clients/c-1": QuotaEntity(client_id="c-1"),
    "clients/<default>": QuotaEntity(client_id=""),
    "users/alice/clients/c": QuotaEntity(user="alice", client_id="c"),
    "users/<default>/clients/<default>": QuotaEntity(user="", client_id=""),
    "users/CN%3Da%2Cou%20b/clients/a%2Fb%7E%2A": QuotaEntity(user="CN=a,ou b", client_id="a/b~*"),
    "clients/%3Cdefault%3E": QuotaEntity(client_id="<default>"),
    "ips/127.0.0.1": QuotaEntity(ip="127.0.0.1"),
    "ips/%3A%3A1": QuotaEntity(ip="::1"),
}


@pytest.mark.parametrize("path", PATHS)
def test_an_entity_has_the_path_that_kafka_gives_it(path: str):
    assert PATHS[path].path == path
    assert entity_of(path) == PATHS[path]


def test_a_space_may_be_written_as_a_plus():
    assert entity_of("users/a+b") == QuotaEntity(user="a b")


@pytest.mark.parametrize(
    "path", ["topics/t", "brokers/1", "users", "users/", "users/a/clients", "users/a/b/c", "x/y/z"]
)
def test_other_paths_have_no_quotas(path: str):
    assert entity_of(path) is None


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("producer_byte_rate", 1_048_576.0, "1048576"),
        ("consumer_byte_rate", 9.000_000_5, "9"),
        ("request_percentage", 12.5, "12.5"),
        ("controller_mutation_rate", 1, "1.0"),
        ("connection_creation_rate", 3.0, "3"),
    ],
)
def test_a_quota_is_stored_as_kafka_stores_it(key: str, value: float, text: str):
    assert quota_text(key, value) == text
    assert quota_value(key, text) == pytest.approx(value)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("producer_byte_rate", 0.0, "producer_byte_rate must be greater than 0, not 0"),
        ("request_percentage", -1.0, "request_percentage must be greater than 0, not -1"),
        ("request_percentage", float("nan"), "request_percentage must be greater than 0, not nan"),
        (
            "consumer_byte_rate",
            1.5,
            "consumer_byte_rate must be a whole number from 1 to 9223372036854775807, not 1.5",
        ),
        (
            "connection_creation_rate",
            2.0**31,
            "connection_creation_rate must be a whole number from 1 to 2147483647, not 2147483648",
        ),
    ],
)
def test_a_quota_that_is_not_allowed_is_explained(key: str, value: float, message: str):
    with pytest.raises(ValueError, match="must be") as refused:
        quota_text(key, value)
    assert str(refused.value) == message


@pytest.mark.parametrize("text", ["", "many", "0", "1e999", "9" * 500])
def test_a_stored_quota_that_is_not_allowed_is_refused(text: str):
    with pytest.raises(ValueError, match="producer_byte_rate must be"):
        quota_value("producer_byte_rate", text)
