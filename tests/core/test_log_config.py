"""Log configuration: overrides of topics, settings of brokers, defaults."""

from __future__ import annotations

from dataclasses import fields, replace

from regent.core.log_config import BROKER_NAMES, DEFAULT_LOG_CONFIG, LogConfig


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
    broker = DEFAULT_LOG_CONFIG.with_broker_config(
        {"log.retention.ms": "5", "min.insync.replicas": "2", "message.max.bytes": "77"}
    )
    assert broker == LogConfig(retention_ms=5, min_insync_replicas=2, max_message_bytes=77)
    assert broker.overridden({"min.insync.replicas": "3"}).min_insync_replicas == 3


def test_invalid_numbers_and_unknown_settings_change_nothing():
    overrides = {"retention.ms": "a week", "segment.bytes": "", "leader.colour": "blue"}
    assert DEFAULT_LOG_CONFIG.overridden(overrides) == DEFAULT_LOG_CONFIG
    assert DEFAULT_LOG_CONFIG.with_broker_config({"log.roll.ms": "x"}) == DEFAULT_LOG_CONFIG


def test_a_number_outside_the_limits_counts_as_the_nearest_one_inside():
    """A larger batch than the limit could be appended, but no follower could fetch it."""
    texts = {"message.max.bytes": "100000000", "min.insync.replicas": "0"}
    config = DEFAULT_LOG_CONFIG.with_broker_config(texts)
    assert (config.max_message_bytes, config.min_insync_replicas) == (31 * 1024 * 1024, 1)


def test_every_setting_has_a_broker_name():
    assert set(BROKER_NAMES) == {field.name for field in fields(LogConfig)}
