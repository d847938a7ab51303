"""What the machines of ``core`` are told of the settings."""

from __future__ import annotations

from config.settings import ISR_CHANGES_THROUGH_ZOOKEEPER, Settings
from core.controller.term import ControllerSettings
from core.replication.replica_manager import ReplicationSettings


def controller_settings(settings: Settings) -> ControllerSettings:
    """Return what the controller decides by."""
    config = settings.controller
    return ControllerSettings(
        unclean_leader_election_enable=config.unclean_leader_election_enable,
        delete_topic_enable=config.delete_topic_enable,
        auto_leader_rebalance_enable=config.auto_leader_rebalance_enable,
        leader_imbalance_per_broker_percentage=config.leader_imbalance_per_broker_percentage,
        leader_imbalance_check_interval_ms=config.leader_imbalance_check_interval_seconds * 1000,
        isr_changes_through_zookeeper=isr_changes_through_zookeeper(settings),
    )


def replication_settings(settings: Settings) -> ReplicationSettings:
    """Return what the replica manager decides by."""
    config = settings.broker
    return ReplicationSettings(
        replica_lag_time_max_ms=config.replica_lag_time_max_ms,
        replica_fetch_wait_max_ms=config.replica_fetch_wait_max_ms,
        replica_fetch_backoff_ms=config.replica_fetch_backoff_ms,
    )


def isr_changes_through_zookeeper(settings: Settings) -> bool:
    """Return whether leaders write their ISRs themselves."""
    return settings.broker.isr_change_protocol == ISR_CHANGES_THROUGH_ZOOKEEPER
