"""What is configured is what the machines decide by."""

from __future__ import annotations

from actors.machine_settings import (
    controller_settings,
    isr_changes_through_zookeeper,
    replication_settings,
)
from config.settings import Settings, load_settings
from core.controller.term import ControllerSettings
from core.replication.replica_manager import ReplicationSettings


def test_the_defaults_are_those_of_the_machines():
    assert controller_settings(Settings()) == ControllerSettings()
    assert replication_settings(Settings()) == ReplicationSettings()
    assert not isr_changes_through_zookeeper(Settings())


def test_every_setting_arrives():
    settings = load_settings(
        None,
        {
            "broker": {
                "replica_lag_time_max_ms": 2_000,
                "replica_fetch_wait_max_ms": 30,
                "replica_fetch_backoff_ms": 40,
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
    assert replication_settings(settings) == ReplicationSettings(2_000, 30, 40)
    assert isr_changes_through_zookeeper(settings)
    assert controller_settings(settings) == ControllerSettings(
        unclean_leader_election_enable=True,
        delete_topic_enable=False,
        auto_leader_rebalance_enable=False,
        leader_imbalance_per_broker_percentage=20,
        leader_imbalance_check_interval_ms=3_000,
        isr_changes_through_zookeeper=True,
    )
