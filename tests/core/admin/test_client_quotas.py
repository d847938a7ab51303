"""Which quotas a filter selects, and which changes are refused."""

from __future__ import annotations

import pytest

from regent.core.admin.client_quotas import (
    EntityNames,
    MatchType,
    QuotaChange,
    QuotaFilter,
    QuotaRefusedError,
    changed,
    described,
    entity_named,
    names_of,
)
from regent.core.errors import Errors
from regent.core.quota.quota_entities import QuotaEntity

RATE = {"producer_byte_rate": "5"}
CONFIGS = {
    "users/alice": {**RATE, "SCRAM-SHA-256": "secret"},
    "users/bob": {"SCRAM-SHA-256": "secret"},
    "users/<default>": RATE,
    "users/alice/clients/c": {"request_percentage": "12.5", "consumer_byte_rate": "many"},
    "users/<default>/clients/<default>": RATE,
    "clients/c": RATE,
    "clients/<default>": {},
    "ips/127.0.0.1": {"connection_creation_rate": "3"},
    "ips/<default>": {"connection_creation_rate": "4"},
}
EXACT, DEFAULT, ANY = MatchType.EXACT, MatchType.DEFAULT, MatchType.SPECIFIED


def paths(*filters: QuotaFilter, is_strict: bool = False) -> set[str]:
    return {row.entity.path for row in described(filters, CONFIGS, is_strict=is_strict)}


def test_without_a_filter_all_entities_with_quotas_are_described():
    with_quotas = CONFIGS.keys() - {"users/bob", "clients/<default>"}
    assert paths() == with_quotas
    assert paths(is_strict=True) == set()


@pytest.mark.parametrize(
    ("filters", "is_strict", "expected"),
    [
        ([("user", EXACT, "alice")], True, {"users/alice"}),
        ([("user", EXACT, "alice")], False, {"users/alice", "users/alice/clients/c"}),
        ([("user", DEFAULT, None)], True, {"users/<default>"}),
        ([("user", ANY, None)], True, {"users/alice", "users/<default>"}),
        ([("client-id", ANY, None)], True, {"clients/c"}),
        ([("client-id", EXACT, "c")], False, {"clients/c", "users/alice/clients/c"}),
        (
            [("user", EXACT, "alice"), ("client-id", EXACT, "c")],
            False,
            {"users/alice/clients/c"},
        ),
        (
            [("user", DEFAULT, None), ("client-id", DEFAULT, None)],
            True,
            {"users/<default>/clients/<default>"},
        ),
        ([("ip", EXACT, "127.0.0.1")], True, {"ips/127.0.0.1"}),
        ([("ip", ANY, None)], False, {"ips/127.0.0.1", "ips/<default>"}),
        ([("user", EXACT, "")], False, set()),
        ([("user", EXACT, "nobody")], False, set()),
    ],
)
def test_filters_select_as_with_kafka(
    filters: list[tuple[str, int, str | None]], is_strict: bool, expected: set[str]
):
    assert paths(*(QuotaFilter(*row) for row in filters), is_strict=is_strict) == expected


def test_values_are_numbers_and_secrets_are_hidden():
    (row,) = described([QuotaFilter("user", EXACT, "alice")], CONFIGS, is_strict=True)
    assert row.values == {"producer_byte_rate": 5.0}


@pytest.mark.parametrize(
    ("filters", "error", "message"),
    [
        ([("", ANY, None)], Errors.INVALID_REQUEST, "a filter of quotas has no entity type"),
        (
            [("group", ANY, None)],
            Errors.UNSUPPORTED_VERSION,
            "there are no quotas of 'group': it must be one of client-id, ip, user",
        ),
        (
            [("user", ANY, None), ("user", DEFAULT, None)],
            Errors.INVALID_REQUEST,
            "there is more than one filter for the user",
        ),
        (
            [("user", 3, None)],
            Errors.INVALID_REQUEST,
            "the filter for the user has an unknown match type: 3",
        ),
        (
            [("user", EXACT, None)],
            Errors.INVALID_REQUEST,
            "the filter for the user must have a name if it is exact, else none",
        ),
        (
            [("ip", ANY, None), ("user", ANY, None)],
            Errors.INVALID_REQUEST,
            "a filter for the ip cannot be combined with one for user or client-id",
        ),
    ],
)
def test_an_impossible_filter_is_refused(
    filters: list[tuple[str, int, str | None]], error: Errors, message: str
):
    with pytest.raises(QuotaRefusedError) as refused:
        described([QuotaFilter(*row) for row in filters], CONFIGS, is_strict=False)
    assert (refused.value.error_code, str(refused.value)) == (error, message)


@pytest.mark.parametrize(
    ("names", "entity"),
    [
        ([("user", "alice")], QuotaEntity(user="alice")),
        ([("user", None)], QuotaEntity(user="")),
        ([("client-id", "c"), ("user", None)], QuotaEntity(user="", client_id="c")),
        ([("ip", "::1")], QuotaEntity(ip="::1")),
        ([("ip", None)], QuotaEntity(ip="")),
    ],
)
def test_an_entity_is_named_by_its_parts(names: EntityNames, entity: QuotaEntity):
    assert entity_named(names) == entity
    assert sorted(names_of(entity)) == sorted(names)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([], "an entity of a quota must have a user, a client-id or an ip"),
        (
            [("group", "g")],
            "an entity of a quota has no 'group': it must be one of client-id, ip, user",
        ),
        ([("user", "a"), ("user", "b")], "an entity of a quota has one user, not several"),
        ([("client-id", "")], "the client-id of a quota must not be empty"),
        ([("user", "u" * 1_001)], "the user of a quota is longer than 1000 characters"),
        (
            [("ip", "1.2.3.4"), ("user", "a")],
            "the quota of an ip has no user and no client-id",
        ),
        ([("ip", "nowhere")], "'nowhere' is not an IP address"),
    ],
)
def test_an_impossible_entity_is_refused(names: EntityNames, message: str):
    with pytest.raises(QuotaRefusedError) as refused:
        entity_named(names)
    assert (refused.value.error_code, str(refused.value)) == (Errors.INVALID_REQUEST, message)


def test_changes_are_settings_and_removed_ones_none():
    changes = [
        QuotaChange("producer_byte_rate", 1024.0, remove=False),
        QuotaChange("request_percentage", 0.0, remove=True),
    ]
    assert changed(QuotaEntity(user="a"), changes) == {
        "producer_byte_rate": "1024",
        "request_percentage": None,
    }


@pytest.mark.parametrize(
    ("entity", "changes", "message"),
    [
        (
            QuotaEntity(user="admin"),
            [("SCRAM-SHA-512", 0.0, True)],
            "'SCRAM-SHA-512' cannot be limited: it must be one of consumer_byte_rate,"
            " controller_mutation_rate, producer_byte_rate, request_percentage",
        ),
        (
            QuotaEntity(user="a"),
            [("connection_creation_rate", 1.0, False)],
            "'connection_creation_rate' cannot be limited: it must be one of consumer_byte_rate,"
            " controller_mutation_rate, producer_byte_rate, request_percentage",
        ),
        (
            QuotaEntity(ip="::1"),
            [("producer_byte_rate", 1.0, False)],
            "'producer_byte_rate' cannot be limited: it must be one of connection_creation_rate",
        ),
        (
            QuotaEntity(user="a"),
            [("producer_byte_rate", 0.0, False)],
            "producer_byte_rate must be greater than 0, not 0",
        ),
        (
            QuotaEntity(user="a"),
            [("producer_byte_rate", 1.0, False), ("producer_byte_rate", 2.0, True)],
            "producer_byte_rate is there more than once",
        ),
    ],
)
def test_an_impossible_change_is_refused(
    entity: QuotaEntity, changes: list[tuple[str, float, bool]], message: str
):
    with pytest.raises(QuotaRefusedError) as refused:
        changed(entity, [QuotaChange(*row) for row in changes])
    assert str(refused.value) == message
