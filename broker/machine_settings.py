"""Builds the settings of the parts of a broker from the settings with the same names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

from regent.actors.transaction_coordinator import TransactionIntervals
from regent.config.settings import Settings, rows
from regent.config.settings_file import connections_per_ip_overrides
from regent.config.tables.broker import ISR_CHANGES_THROUGH_ZOOKEEPER
from regent.core.controller.services import ControllerSettings
from regent.core.coordinator.group.group_metadata_manager import GroupConfig, GroupLogSettings
from regent.core.coordinator.transaction.transaction_state_manager import (
    TransactionConfig,
    TransactionLogSettings,
)
from regent.core.log_config import BROKER_NAMES, CleanerSettings, LogConfig
from regent.core.replication.replication_settings import ReplicationSettings
from regent.core.setting import Scope
from regent.transport.kafka.connection import KafkaLimits

T = TypeVar("T")


def _filled(kind: type[T], *tables: object, **others: Any) -> T:
    """Return a ``kind`` with the values of the same names in the tables."""
    values = {
        field.name: getattr(table, field.name)
        for table in tables
        for field in fields(kind)  # type: ignore[arg-type]
        if hasattr(table, field.name)
    }
    return kind(**{**values, **others})


def controller_settings(settings: Settings) -> ControllerSettings:
    """Return the settings of the controller."""
    return _filled(
        ControllerSettings,
        settings.controller,
        settings.log,
        isr_changes_through_zookeeper=isr_changes_through_zookeeper(settings),
    )


def replication_settings(settings: Settings) -> ReplicationSettings:
    """Return the settings of the replica manager."""
    return _filled(ReplicationSettings, settings.broker, settings.transactions)


def group_config(settings: Settings) -> GroupConfig:
    """Return the settings of the group coordinator."""
    return _filled(GroupConfig, settings.groups)


def group_log_settings(settings: Settings) -> GroupLogSettings:
    """Return how the group coordinator stores positions."""
    return _filled(GroupLogSettings, settings.groups)


def transaction_config(settings: Settings) -> TransactionConfig:
    """Return the settings of the transaction coordinator."""
    return _filled(TransactionConfig, settings.transactions)


def transaction_log_settings(settings: Settings) -> TransactionLogSettings:
    """Return how the transaction coordinator stores transactions."""
    return _filled(TransactionLogSettings, settings.transactions, settings.controller)


def transaction_intervals(settings: Settings) -> TransactionIntervals:
    """Return how often the transaction coordinator looks for what takes too long."""
    return _filled(TransactionIntervals, settings.transactions)


def log_defaults(settings: Settings) -> LogConfig:
    """Return the default configuration of topics."""
    return LogConfig(
        **{
            field: getattr(settings.log, name.replace(".", "_"))
            for field, name in BROKER_NAMES.items()
        }
    )


def cleaner_settings(settings: Settings) -> CleanerSettings:
    """Return the settings of the log cleaner."""
    return _filled(CleanerSettings, settings.log)


def log_directories(settings: Settings, data_dir: Path) -> list[Path]:
    """Return the log directories."""
    return [data_dir / name.strip() for name in settings.log.log_dirs.split(",")]


def kafka_limits(settings: Settings) -> KafkaLimits:
    """Return the limits of Kafka clients."""
    config = settings.broker
    overrides = connections_per_ip_overrides(config)
    return _filled(KafkaLimits, config, max_connections_per_ip_overrides=overrides)


def with_broker_config(settings: Settings, config: Mapping[str, str]) -> Settings:
    """Return the settings with the valid values that ``/config/brokers`` has for a broker."""
    changed: dict[str, dict[str, Any]] = {}
    for table, row in rows():
        text = None if row.scope is Scope.READ_ONLY else config.get(row.dotted_name)
        if text is not None and row.text_problem(text) is None:
            changed.setdefault(table, {})[row.name] = row.parsed(text)
    tables: dict[str, Any] = {
        table: replace(getattr(settings, table), **values) for table, values in changed.items()
    }
    return replace(settings, **tables)


def isr_changes_through_zookeeper(settings: Settings) -> bool:
    """Return whether leaders write their ISRs to ZooKeeper themselves."""
    return settings.broker.isr_change_protocol == ISR_CHANGES_THROUGH_ZOOKEEPER
