"""UpdateFeatures, versions 0 and 1 (KIP-584).

Brokers have no features, so every change is refused; the reasons are those of Kafka. Mirrors
``kafka.controller.KafkaController.validateFeatureUpdate``.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Final

from regent.core.errors import Errors
from regent.core.protocol.messages.features import (
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from regent.transport.kafka.api import KafkaAnswer, KafkaApi, KafkaApiKey, KafkaRequest
from regent.transport.kafka.message_codec import answer, decode

_FIRST_WITH_UPGRADE_TYPE: Final = 1


class _UpgradeType(IntEnum):
    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


def feature_apis() -> Sequence[KafkaApi]:
    """Return the API."""
    return [KafkaApi(KafkaApiKey.UPDATE_FEATURES, 0, 1, _update)]


async def _update(request: KafkaRequest) -> KafkaAnswer:
    updates = {row.feature: row for row in decode(UpdateFeaturesRequest, request).feature_updates}
    results = tuple(
        UpdatableFeatureResult(
            feature=feature,
            error_code=Errors.INVALID_REQUEST,
            error_message=_problem(update, request.api_version),
        )
        for feature, update in updates.items()
    )
    return answer(UpdateFeaturesResponse(error_code=Errors.NONE, results=results), request)


def _problem(update: FeatureUpdateKey, version: int) -> str:
    upgrade_type, level = update.upgrade_type, update.max_version_level
    if version < _FIRST_WITH_UPGRADE_TYPE and update.allow_downgrade:
        upgrade_type = _UpgradeType.SAFE_DOWNGRADE
    if not update.feature:
        return "Feature name can not be empty."
    if upgrade_type not in list(_UpgradeType):
        return "Received unknown upgrade type."
    if level >= 1:
        return (
            "Could not apply finalized feature update because the provided feature is not"
            " supported."
        )
    if upgrade_type != _UpgradeType.UPGRADE:
        return "Can not delete non-existing finalized feature."
    return (
        f"Can not provide versionLevel: {level} less than 1 without setting the SAFE downgradeType"
        " in the request."
    )
