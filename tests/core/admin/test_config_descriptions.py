"""Descriptions of settings: value, source and synonyms."""

from __future__ import annotations

from regent.broker.broker_settings import broker_settings
from regent.config.settings_file import load_settings
from regent.core.admin.config_descriptions import (
    ConfigDescription,
    ConfigSource,
    broker_settings_in_force,
    describe_all_brokers,
    describe_broker,
    describe_topic,
)
from regent.core.admin.topic_settings import TOPIC_SETTINGS
from regent.core.setting import ConfigType

STATIC = broker_settings(
    load_settings(None, {"log": {"log_retention_ms": 100}, "broker": {"num_partitions": 3}}), 1
)


def one(described: list[ConfigDescription], name: str) -> ConfigDescription:
    (found,) = [config for config in described if config.name == name]
    return found


def test_an_override_of_the_topic_has_the_highest_priority():
    own, of_all = {"log.retention.ms": "30"}, {"log.retention.ms": "20"}
    broker = broker_settings_in_force(STATIC, own, of_all)
    config = one(describe_topic({"retention.ms": "40"}, broker), "retention.ms")
    assert (config.value, config.source, config.is_read_only) == ("40", ConfigSource.TOPIC, False)
    assert config.type is ConfigType.LONG
    assert config.synonyms == (
        ("retention.ms", "40", ConfigSource.TOPIC),
        ("log.retention.ms", "30", ConfigSource.DYNAMIC_BROKER),
        ("log.retention.ms", "20", ConfigSource.DYNAMIC_DEFAULT_BROKER),
        ("log.retention.ms", "100", ConfigSource.STATIC_BROKER),
        ("log.retention.hours", "168", ConfigSource.DEFAULT),
    )


def test_without_an_override_the_setting_of_the_broker_is_used():
    described = describe_topic({}, broker_settings_in_force(STATIC, {}, {}))
    retention, in_sync = (one(described, n) for n in ("retention.ms", "min.insync.replicas"))
    assert (retention.value, retention.source) == ("100", ConfigSource.STATIC_BROKER)
    assert (in_sync.value, in_sync.source) == ("1", ConfigSource.DEFAULT)
    compression = one(described, "compression.type")
    assert (compression.value, compression.source) == ("producer", ConfigSource.DEFAULT)


def test_settings_without_effect_are_described_and_unknown_names_are_not():
    overrides = {"preallocate": "true", "made.up": "1"}
    described = describe_topic(overrides, broker_settings_in_force(STATIC, {}, {}))
    config = one(described, "preallocate")
    assert (config.value, config.source, config.type) == ("true", 1, ConfigType.BOOLEAN)
    assert [config.name for config in described] == sorted(TOPIC_SETTINGS)


def test_a_broker_reads_some_settings_from_zookeeper():
    own = {
        "log.retention.ms": "30",
        "num.partitions": "9",
        "leader.replication.throttled.rate": "1",
    }
    described = describe_broker(broker_settings_in_force(STATIC, own, {"log.retention.ms": "20"}))
    retention, partitions = (one(described, n) for n in ("log.retention.ms", "num.partitions"))
    assert (retention.value, retention.source, retention.is_read_only) == ("30", 2, False)
    assert (partitions.value, partitions.source, partitions.is_read_only) == ("3", 4, True)
    rate = one(described, "leader.replication.throttled.rate")
    assert (rate.value, rate.source) == ("1", ConfigSource.DYNAMIC_BROKER)
    assert (rate.type, rate.is_read_only) == (ConfigType.LONG, False)


def test_a_given_value_is_static_even_if_it_equals_the_default():
    given = load_settings(None, {"broker": {"num_partitions": 1}})
    described = describe_broker(broker_settings_in_force(broker_settings(given, 1), {}, {}))
    partitions, factor = (
        one(described, n) for n in ("num.partitions", "default.replication.factor")
    )
    assert (partitions.value, partitions.source) == ("1", ConfigSource.STATIC_BROKER)
    assert (factor.value, factor.source) == ("1", ConfigSource.DEFAULT)


def test_the_default_broker_has_only_cluster_wide_settings():
    of_all = {"log.retention.ms": "20", "num.partitions": "9", "log.roll.ms": "soon"}
    (config,) = describe_all_brokers(
        broker_settings_in_force(STATIC, {"log.retention.ms": "1"}, of_all)
    )
    assert (config.name, config.value) == ("log.retention.ms", "20")
    assert (config.source, config.type) == (ConfigSource.DYNAMIC_DEFAULT_BROKER, ConfigType.LONG)
    assert len(config.synonyms) == 1


def test_values_in_zookeeper_that_are_not_valid_are_not_in_effect():
    own = {"log.retention.ms": "soon", "leader.replication.throttled.rate": "-1"}
    described = describe_broker(broker_settings_in_force(STATIC, own, {"log.retention.ms": "20"}))
    retention = one(described, "log.retention.ms")
    assert (retention.value, retention.source) == ("20", ConfigSource.DYNAMIC_DEFAULT_BROKER)
    assert "leader.replication.throttled.rate" not in [config.name for config in described]


def test_the_value_of_an_unknown_setting_is_not_shown_because_it_may_be_a_password():
    described = describe_broker(broker_settings_in_force(STATIC, {"my.password": "secret"}, {}))
    config = one(described, "my.password")
    assert (config.value, config.is_sensitive) == (None, True)
    assert [synonym.value for synonym in config.synonyms] == [None]
    assert (config.type, config.is_read_only) == (ConfigType.UNKNOWN, True)


def test_settings_that_kafka_has_by_several_names_have_kafkas_synonyms():
    """Kafka has no default for log.retention.ms: that is log.retention.hours."""
    static = broker_settings(load_settings(None, {}), 1)
    plain = describe_topic({}, broker_settings_in_force(static, {}, {}))
    retention = one(plain, "retention.ms")
    assert (retention.value, retention.source) == ("604800000", ConfigSource.DEFAULT)
    assert retention.synonyms == ()
    own = broker_settings_in_force(static, {"log.flush.interval.ms": "5"}, {})
    assert [name for name, *_ in one(describe_topic({}, own), "flush.ms").synonyms] == [
        "log.flush.interval.ms",
        "log.flush.scheduler.interval.ms",
    ]
    of_broker = {c.name: c.value for c in describe_broker(own)}
    assert of_broker["log.retention.ms"] is None
    assert of_broker["log.retention.hours"] == "168"


def test_a_setting_of_one_listener_has_the_settings_of_all_as_its_synonym():
    static = broker_settings(load_settings(None, {}), 1)
    name = "listener.name.internal.num.network.threads"
    config = one(describe_broker(broker_settings_in_force(static, {name: "5"}, {})), name)
    assert config.synonyms == ((name, "5", 2), ("num.network.threads", "3", 5))
    assert (config.type, config.is_read_only) == (ConfigType.INT, True)
