"""Settings reach the classes that use them."""

from __future__ import annotations

from pathlib import Path

from regent.broker.machine_settings import (
    controller_settings,
    dynamic_values,
    filled,
    isr_changes_through_zookeeper,
    kafka_limits,
    log_defaults,
    log_directories,
)
from regent.config.settings import KAFKA_SETTINGS, Settings
from regent.config.settings_file import load_settings
from regent.core.admin.config_handlers import values_in_force
from regent.core.controller.services import ControllerSettings
from regent.core.log_config import BROKER_NAMES, LogConfig
from regent.core.replication.replication_settings import ReplicationSettings
from regent.transport.kafka.limits import KafkaLimits


def test_the_defaults_are_those_of_the_classes():
    assert controller_settings(Settings()) == ControllerSettings()
    assert filled(ReplicationSettings, Settings()) == ReplicationSettings()
    assert log_defaults(Settings()) == LogConfig()
    assert kafka_limits(Settings(), "PLAINTEXT") == KafkaLimits()
    assert not isr_changes_through_zookeeper(Settings())


def test_every_setting_is_used():
    settings = load_settings(
        None,
        {
            "broker": {
                "replica_lag_time_max_ms": 2_000,
                "replica_fetch_wait_max_ms": 30,
                "replica_fetch_backoff_ms": 40,
                "replica_fetch_min_bytes": 50,
                "replica_fetch_max_bytes": 60,
                "replica_fetch_response_max_bytes": 70,
                "isr_change_protocol": "zookeeper",
            },
            "controller": {
                "unclean_leader_election_enable": True,
                "delete_topic_enable": False,
                "auto_leader_rebalance_enable": False,
                "leader_imbalance_per_broker_percentage": 20,
                "leader_imbalance_check_interval_seconds": 3,
            },
        },
    )
    assert filled(ReplicationSettings, settings) == ReplicationSettings(
        replica_lag_time_max_ms=2_000,
        replica_fetch_wait_max_ms=30,
        replica_fetch_backoff_ms=40,
        replica_fetch_min_bytes=50,
        replica_fetch_max_bytes=60,
        replica_fetch_response_max_bytes=70,
    )
    assert isr_changes_through_zookeeper(settings)
    assert controller_settings(settings) == ControllerSettings(
        unclean_leader_election_enable=True,
        delete_topic_enable=False,
        auto_leader_rebalance_enable=False,
        leader_imbalance_per_broker_percentage=20,
        leader_imbalance_check_interval_seconds=3,
        isr_changes_through_zookeeper=True,
    )


def test_every_log_setting_is_used():
    others = {
        "log.message.timestamp.type": "LogAppendTime",
        "log.message.downconversion.enable": False,
        "log.cleaner.min.cleanable.ratio": 0.25,
        "log.cleanup.policy": "compact",
    }
    given = {
        name: others.get(name, 1_001 + number) for number, name in enumerate(BROKER_NAMES.values())
    }
    table = {name.replace(".", "_"): value for name, value in given.items()}
    config = log_defaults(load_settings(None, {"log": table}))
    values = {name: getattr(config, field) for field, name in BROKER_NAMES.items()}
    assert values == given


def test_log_directories_are_in_the_data_directory_or_absolute():
    assert log_directories(Settings(), Path("/data/broker-1")) == [Path("/data/broker-1/log")]
    settings = load_settings(None, {"log": {"log_dirs": "one, /disk2/logs"}})
    assert log_directories(settings, Path("/data")) == [Path("/data/one"), Path("/disk2/logs")]


def test_a_broker_follows_the_valid_settings_in_zookeeper_that_can_change():
    started = load_settings(None, {"broker": {"max_connections": 5}})
    config = {
        "max.connections": " 6 ",
        "max.connections.per.ip": "many",
        "unclean.leader.election.enable": "TRUE",
        "num.partitions": "7",
        "made.up": "8",
    }
    values = dynamic_values(started)
    in_force = values_in_force(values, config, KAFKA_SETTINGS)
    assert in_force == {**values, "max.connections": 6, "unclean.leader.election.enable": True}
    assert values_in_force(values, {}, KAFKA_SETTINGS) == values


def test_every_client_limit_is_used():
    limits = {
        "socket_request_max_bytes": 1,
        "max_connections": 2,
        "max_connections_per_ip": 6,
        "max_connections_per_ip_overrides": "localhost:7, ::1:8,[::2]:9",
        "queued_requests_per_connection": 3,
        "connections_max_idle_ms": 4,
        "queued_max_request_bytes": 5,
        "max_connection_creation_rate": 8,
    }
    settings = load_settings(None, {"broker": limits})
    assert kafka_limits(settings, "PLAINTEXT") == KafkaLimits(
        1, 2, 6, {"localhost": 7, "::1": 8, "::2": 9}, 3, 4, 5, 2, 8
    )
