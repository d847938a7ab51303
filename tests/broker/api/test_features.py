"""A cluster has no features: what clients are told who change one."""

from __future__ import annotations

import pytest
from kafka.protocol.admin import UpdateFeaturesRequest

from regent.broker.api.features import feature_apis
from regent.core.errors import Errors
from tests.transport.kafka.wire import ask

UPGRADE, SAFE_DOWNGRADE, UNKNOWN = 1, 2, 4
NOT_SUPPORTED = (
    "Could not apply finalized feature update because the provided feature is not supported."
)
LESS_THAN_ONE = (
    "Can not provide versionLevel: 0 less than 1 without setting the SAFE downgradeType in the"
    " request."
)
NOT_THERE = "Can not delete non-existing finalized feature."


def update(feature: str, level: int, upgrade_type: int = UPGRADE) -> object:
    return UpdateFeaturesRequest.FeatureUpdateKey(
        feature=feature,
        max_version_level=level,
        allow_downgrade=upgrade_type == SAFE_DOWNGRADE,
        upgrade_type=upgrade_type,
    )


@pytest.mark.parametrize("version", range(2))
def test_every_change_is_refused_with_the_reason_that_kafka_gives(version: int):
    updates = [
        update("a", 1),
        update("b", 0),
        update("c", 0, SAFE_DOWNGRADE),
        update("d", 2, SAFE_DOWNGRADE),
        update("", 1),
    ]
    answer = ask(feature_apis(), UpdateFeaturesRequest(feature_updates=updates), version)
    assert (answer.error_code, answer.error_message) == (Errors.NONE, None)
    assert {row.error_code for row in answer.results} == {Errors.INVALID_REQUEST}
    assert {row.feature: row.error_message for row in answer.results} == {
        "a": NOT_SUPPORTED,
        "b": LESS_THAN_ONE,
        "c": NOT_THERE,
        "d": NOT_SUPPORTED,
        "": "Feature name can not be empty.",
    }


def test_a_kind_of_upgrade_that_does_not_exist_is_refused():
    asked = UpdateFeaturesRequest(feature_updates=[update("a", 1, UNKNOWN)])
    (result,) = ask(feature_apis(), asked, 1).results
    assert result.error_message == "Received unknown upgrade type."
