"""Settings that cannot be used: the same rules for requests, for what is applied, and shown."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regent.broker.broker_settings import StartedBroker, broker_settings, described_settings
from regent.broker.machine_settings import dynamic_values
from regent.config.settings import KAFKA_SETTINGS, Settings
from regent.core.admin.config_descriptions import (
    ConfigSource,
    broker_settings_in_force,
    describe_broker,
    describe_topic,
)
from regent.core.admin.config_handlers import values_in_force
from regent.core.admin.config_problems import (
    broker_config_problem,
    unusable_in_broker,
    unusable_in_quota,
    unusable_in_topic,
)
from regent.core.admin.topic_settings import TOPIC_SETTINGS
from regent.core.log_config import BROKER_NAMES, TOPIC_LOG_SETTINGS, LogConfig
from regent.core.model import EndPoint
from regent.core.setting import ConfigType, text_of

KAFKAS = [
    tuple(line.split())
    for line in (Path(__file__).parent / "kafka_broker_settings.txt").read_text().splitlines()
    if not line.startswith("#")
]
CHANGED_HERE_ONLY = {"delete.topic.enable"}  # in Kafka by a restart
KAFKAS = [
    (name, type_name, "all" if name in CHANGED_HERE_ONLY else who)
    for name, type_name, who in KAFKAS
]
LISTENERS = (EndPoint("PLAINTEXT", "127.0.0.1", 9092),)
STATIC = described_settings(Settings(), 0, StartedBroker("z:2181", (), LISTENERS, LISTENERS))
ROWS = {name: started.setting for name, started in STATIC.items()}
ALL_ROWS = {**KAFKA_SETTINGS, **ROWS}
SAMPLES = {
    **dict.fromkeys(("INT", "SHORT", "LONG"), "7"),
    "DOUBLE": "0.7",
    "BOOLEAN": "true",
    "STRING": "x",
    "LIST": "a,b",
    "CLASS": "java.lang.String",
    "PASSWORD": "secret",
}
NUMBERS = ("INT", "SHORT", "LONG", "DOUBLE")
VALUES = {
    "advertised.listeners": "PLAINTEXT://h.example:9092",
    "listeners": "PLAINTEXT://127.0.0.1:9092",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SSL:SSL",
    "max.connections.per.ip.overrides": "h:1",
    "log.cleaner.dedupe.buffer.size": "2000000",
    "log.cleaner.io.buffer.size": "2000",
    "log.cleaner.io.max.bytes.per.second": "1000.5",
    "log.segment.bytes": "1000",
    "ssl.endpoint.identification.algorithm": "https",
    "ssl.keystore.type": "PEM",
    "ssl.truststore.type": "PKCS12",
}


READ_AT_THE_START = {"sasl.enabled.mechanisms", "sasl.mechanism.inter.broker.protocol"}
"""What Kafka can change while a broker runs, and a broker here reads when it starts."""


# --- names, as genuine Kafka has them -------------------------------------------------------------


def test_a_broker_lists_all_settings_of_kafka() -> None:
    described = {c.name: c for c in describe_broker(broker_settings_in_force(STATIC, {}, {}))}
    assert len(KAFKAS) == 314
    for name, type_name, who in KAFKAS:
        config = described[name]
        assert (name, config.type.name) == (name, type_name)
        is_read_only = who == "nobody" or name in READ_AT_THE_START
        assert (name, config.is_read_only) == (name, is_read_only)
        assert config.is_sensitive is (type_name == "PASSWORD")
        assert config.documentation
    of_authorizer = {
        "super.users",
        "allow.everyone.if.no.acl.found",
    }  # of its own in Kafka
    of_kafka = {name for name, *_ in KAFKAS} | of_authorizer
    assert all(name.startswith("regent.") for name in described.keys() - of_kafka)


@pytest.mark.parametrize(("name", "type_name", "who"), KAFKAS)
def test_a_setting_can_be_changed_where_kafka_can_change_it(
    name: str, type_name: str, who: str
) -> None:
    row = ROWS[name]
    value = VALUES.get(name) or (row.declared.choices or [SAMPLES[type_name]])[0]
    of_one, of_all = (
        broker_config_problem(name, value, ROWS, of_all=is_all) is None for is_all in (False, True)
    )
    may_change = who in ("one", "all") and type_name != "PASSWORD"
    may_change = may_change and name not in READ_AT_THE_START
    assert (of_one, of_all) == (may_change, who == "all")
    if type_name in (*NUMBERS, "BOOLEAN"):
        assert broker_config_problem(name, "!bad", ROWS, of_all=False) is not None


@pytest.mark.parametrize(
    ("name", "value", "of_one", "of_all"),
    [
        ("my.plugin.url", "x", "", ""),
        ("log.retention.mss", "x", "", ""),  # as in Kafka: it may be a plug-in's
        ("listener.name.internal.ssl.keystore.location", "/x", "", "broker id must be specified"),
        ("listener.name.internal.max.connections", "5", "", ""),
        ("listener.name.internal.max.connections", "x", "must be a number", "must be a number"),
        ("listener.name.internal.ssl.key.password", "x", "", "broker id must be specified"),
        ("ssl.keystore.location", "/x", "listener.name.LISTENER.ssl.keystore", "for one listener"),
        ("sasl.jaas.config", "x", "for one listener only", "for one listener only"),
        ("leader.replication.throttled.rate", "5", "", ""),
        ("num.io.threads", "0", "must be a number from 1", "must be a number from 1"),
        ("compression.type", "rar", "must be one of", "must be one of"),
        ("num.partitions", "3", "restart the broker", "restart the broker"),
        ("node.id", "3", "restart the broker", "restart the broker"),
        ("advertised.listeners", "PLAINTEXT://0.0.0.0:1", "can reach", "broker id must be"),
        ("advertised.listeners", "SSL://h:1", "must be PLAINTEXT://HOST:PORT", "broker id"),
        ("advertised.listeners", "PLAINTEXT://[::1]:9092", "", "broker id"),
        ("listeners", "PLAINTEXT://127.0.0.1:9093", "restart it to change", "broker id"),
        ("listener.security.protocol.map", "PLAINTEXT:SSL", "with PLAINTEXT:PLAINTEXT", "id"),
    ],
)
def test_a_broker_accepts_the_values_that_kafka_accepts(
    name: str, value: str, of_one: str, of_all: str
) -> None:
    for expected, is_all in ((of_one, False), (of_all, True)):
        problem = broker_config_problem(name, value, ALL_ROWS, of_all=is_all)
        assert expected in (problem or "")
        assert (problem is None) is (expected == "")


# --- shown is what is in force --------------------------------------------------------------------

TEXTS = st.sampled_from(
    [
        *("bad", "", " 7 ", "-1", "-5", "0", "1", "0.5", "nan", "1e400", "true", " FALSE"),
        *("compact", "compact,delete", "delete,x", "LogAppendTime", "createtime"),
        *("2147483648", "9" * 30),
    ]
)
OF_TOPICS = st.dictionaries(st.sampled_from([*TOPIC_SETTINGS, "no.such.setting"]), TEXTS)
OF_BROKERS = st.dictionaries(st.sampled_from([*BROKER_NAMES.values(), "my.own"]), TEXTS)


@settings(deadline=None, max_examples=200, derandomize=True)
@given(OF_TOPICS, OF_BROKERS, OF_BROKERS)
def test_the_shown_value_of_a_topic_is_the_value_in_force(
    overrides: dict[str, str], own: dict[str, str], of_all: dict[str, str]
) -> None:
    static = broker_settings(Settings(), 0)
    broker = broker_settings_in_force(static, own, of_all)
    texts = {**broker.of_all, **broker.own}
    in_force = values_in_force(dynamic_values(Settings()), texts, KAFKA_SETTINGS)
    config = LogConfig.of_broker(in_force).overridden(overrides)
    shown = {c.name: c for c in describe_topic(overrides, broker)}
    for field in fields(config):
        row = TOPIC_LOG_SETTINGS.get(field.name)
        if row is None:
            continue
        found = shown[row.dotted_name]
        assert row.parsed(found.value or "") == getattr(config, field.name), row.dotted_name
        is_own = found.source is ConfigSource.TOPIC
        assert is_own is (row.dotted_name in overrides.keys() - unusable_in_topic(overrides))


@settings(deadline=None, max_examples=200, derandomize=True)
@given(st.dictionaries(st.sampled_from(sorted(KAFKA_SETTINGS)), TEXTS, max_size=8))
def test_a_broker_shows_no_value_that_it_cannot_use(own: dict[str, str]) -> None:
    unusable = unusable_in_broker(own, ALL_ROWS, of_all=False)
    shown = {c.name: c for c in describe_broker(broker_settings_in_force(STATIC, own, {}))}
    for name, value in own.items():
        is_own = name in shown and shown[name].source is ConfigSource.DYNAMIC_BROKER
        assert is_own is (name not in unusable)
        if is_own:
            assert shown[name].value == value
        elif name in STATIC and not shown[name].is_sensitive:
            assert shown[name].value == STATIC[name].value


def test_the_default_of_each_setting_is_allowed_by_its_own_rule() -> None:
    for name, row in KAFKA_SETTINGS.items():
        if row.default is not None and row.type is not ConfigType.PASSWORD:
            assert row.text_problem(text_of(row.default)) is None, name


@pytest.mark.parametrize(
    ("path", "config", "problems"),
    [
        ("clients/app%2Fone", {"producer_byte_rate": "1024", "bogus": "1"}, {"bogus": "no quota"}),
        ("users/<default>", {"consumer_byte_rate": "x"}, {"consumer_byte_rate": "a number"}),
        ("users/a/clients/b", {"request_percentage": "-1"}, {"request_percentage": "greater"}),
        ("ips/10.0.0.1", {"producer_byte_rate": "1"}, {"producer_byte_rate": "no quota"}),
        ("ips/10.0.0.1", {"connection_creation_rate": "5"}, {}),
        ("users/a", {"SCRAM-SHA-256": "salt=x"}, {}),
        ("users/a", {"producer_byte_rat": "1"}, {"producer_byte_rat": "mean producer_byte_rate"}),
    ],
)
def test_quotas_that_cannot_be_used_are_named(
    path: str, config: dict[str, str], problems: dict[str, str]
) -> None:
    found = unusable_in_quota(path, config)
    assert found.keys() == problems.keys()
    assert all(text in found[name].replace("not a", "no") for name, text in problems.items())
