"""Log configuration: overrides of topics, settings of brokers, defaults."""

from __future__ import annotations

from dataclasses import fields, replace

from regent.broker.machine_settings import dynamic_values
from regent.config.settings import KAFKA_SETTINGS, Settings
from regent.core.admin.config_handlers import values_in_force
from regent.core.log_config import BROKER_NAMES, DEFAULT_LOG_CONFIG, LogConfig


def configured(overrides: dict[str, str]) -> LogConfig:
    """Return the configuration of topics on a broker with overrides."""
    started = dynamic_values(Settings())
    return LogConfig.of_broker(values_in_force(started, overrides, KAFKA_SETTINGS))


def test_a_topic_overrides_by_kafkas_topic_names():
    config = DEFAULT_LOG_CONFIG.overridden(
        {"retention.ms": "-1", "segment.bytes": " 1024 ", "message.timestamp.type": "LogAppendTime"}
    )
    assert config == replace(
        DEFAULT_LOG_CONFIG,
        retention_ms=-1,
        segment_bytes=1024,
        message_timestamp_type="LogAppendTime",
    )
    assert config.stamps_append_time


def test_a_broker_uses_its_own_names_and_a_topic_overrides_the_broker():
    broker = configured(
        {"log.retention.ms": "5", "min.insync.replicas": "2", "message.max.bytes": "77"}
    )
    assert broker == LogConfig(retention_ms=5, min_insync_replicas=2, max_message_bytes=77)
    assert broker.overridden({"min.insync.replicas": "3"}).min_insync_replicas == 3


def test_invalid_numbers_and_unknown_settings_change_nothing():
    overrides = {"retention.ms": "a week", "segment.bytes": "", "leader.colour": "blue"}
    assert DEFAULT_LOG_CONFIG.overridden(overrides) == DEFAULT_LOG_CONFIG
    assert configured({"log.roll.ms": "x"}) == DEFAULT_LOG_CONFIG


def test_a_value_that_is_not_allowed_counts_as_none():
    texts = {
        "message.max.bytes": "2147483648",
        "min.insync.replicas": "0",
        "log.cleanup.policy": "keep",
        "log.message.downconversion.enable": "yes",
    }
    assert configured(texts) == DEFAULT_LOG_CONFIG
    large = DEFAULT_LOG_CONFIG.overridden({"max.message.bytes": "104857600"})
    assert large.max_message_bytes == 104_857_600


def test_every_setting_but_that_of_a_restore_has_a_broker_name():
    assert set(BROKER_NAMES) == {field.name for field in fields(LogConfig)} - {"keeps_offsets"}
