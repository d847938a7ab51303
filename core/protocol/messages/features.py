"""UpdateFeatures."""

from __future__ import annotations

from regent.core.protocol.message import Int8, Int16, Int32, message, since, until


@message
class FeatureUpdateKey:
    """The version that a feature shall have."""

    feature: str
    max_version_level: Int16
    allow_downgrade: bool = until(0, default=False)
    upgrade_type: Int8 = since(1, default=1)


@message
class UpdateFeaturesRequest:
    """Changes the versions of features of the cluster (KIP-584)."""

    timeout_ms: Int32
    feature_updates: tuple[FeatureUpdateKey, ...]
    validate_only: bool = since(1, default=False)


@message
class UpdatableFeatureResult:
    """The outcome for a feature."""

    feature: str
    error_code: Int16
    error_message: str | None


@message
class UpdateFeaturesResponse:
    """The outcomes."""

    throttle_time_ms: Int32 = 0
    error_code: Int16
    error_message: str | None = None
    results: tuple[UpdatableFeatureResult, ...]
