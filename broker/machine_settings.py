"""What the machines of ``core``, and who else knows no settings, are told of them."""

from __future__ import annotations

from pathlib import Path

from regent.config.settings import (
    ISR_CHANGES_THROUGH_ZOOKEEPER,
    Settings,
    connections_per_ip_overrides,
)
from regent.core.controller.term import ControllerSettings
from regent.core.log_config import BROKER_NAMES, LogConfig
from regent.core.replication.replica_manager import ReplicationSettings
from regent.transport.kafka.connection import KafkaLimits


def controller_settings(settings: Settings) -> ControllerSettings:
    """Return what the controller decides by."""
    config = settings.controller
    return ControllerSettings(
        unclean_leader_election_enable=config.unclean_leader_election_enable,
        min_insync_replicas=settings.log.min_insync_replicas,
        delete_topic_enable=config.delete_topic_enable,
        auto_leader_rebalance_enable=config.auto_leader_rebalance_enable,
        leader_imbalance_per_broker_percentage=config.leader_imbalance_per_broker_percentage,
        leader_imbalance_check_interval_ms=config.leader_imbalance_check_interval_seconds * 1000,
        broker_answer_timeout_ms=config.broker_answer_timeout_ms,
        isr_changes_through_zookeeper=isr_changes_through_zookeeper(settings),
    )


def replication_settings(settings: Settings) -> ReplicationSettings:
    """Return what the replica manager decides by."""
    config = settings.broker
    return ReplicationSettings(
        replica_lag_time_max_ms=config.replica_lag_time_max_ms,
        replica_fetch_wait_max_ms=config.replica_fetch_wait_max_ms,
        replica_fetch_backoff_ms=config.replica_fetch_backoff_ms,
        replica_fetch_min_bytes=config.replica_fetch_min_bytes,
        replica_fetch_max_bytes=config.replica_fetch_max_bytes,
        replica_fetch_response_max_bytes=config.replica_fetch_response_max_bytes,
    )


def log_defaults(settings: Settings) -> LogConfig:
    """Return what holds for topics that do not say otherwise."""
    return LogConfig(
        **{
            field: getattr(settings.log, name.replace(".", "_"))
            for field, name in BROKER_NAMES.items()
        }
    )


def log_directories(settings: Settings, data_dir: Path) -> list[Path]:
    """Return where logs are."""
    return [data_dir / name.strip() for name in settings.log.log_dirs.split(",")]


def kafka_limits(settings: Settings) -> KafkaLimits:
    """Return what Kafka clients may take."""
    config = settings.broker
    return KafkaLimits(
        config.socket_request_max_bytes,
        config.max_connections,
        config.max_connections_per_ip,
        connections_per_ip_overrides(config),
        config.queued_requests_per_connection,
        config.connections_max_idle_ms,
        config.queued_max_request_bytes,
    )


def isr_changes_through_zookeeper(settings: Settings) -> bool:
    """Return whether leaders write their ISRs themselves."""
    return settings.broker.isr_change_protocol == ISR_CHANGES_THROUGH_ZOOKEEPER
