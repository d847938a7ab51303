"""Builds the settings of the parts of a broker from the settings with the same names."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

from regent.actors.transaction_coordinator import TransactionIntervals
from regent.config.settings import Settings, rows
from regent.config.settings_file import connections_per_ip_overrides
from regent.config.tables.broker import ISR_CHANGES_THROUGH_ZOOKEEPER, BrokerConfig
from regent.core.admin.config_descriptions import DYNAMIC_ONLY, LISTENER_SETTINGS
from regent.core.controller.services import ControllerSettings
from regent.core.coordinator.group.group_metadata_manager import GroupConfig, GroupLogSettings
from regent.core.coordinator.transaction.transaction_state_manager import (
    TransactionConfig,
    TransactionLogSettings,
)
from regent.core.log_config import CleanerSettings, LogConfig
from regent.core.replication.replication_settings import ReplicationSettings
from regent.core.setting import Scope, SettingValues
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
    return LogConfig.of_broker(dynamic_values(settings))


def cleaner_settings(settings: Settings) -> CleanerSettings:
    """Return the settings of the log cleaner."""
    return _filled(CleanerSettings, settings.log)


def log_directories(settings: Settings, data_dir: Path) -> list[Path]:
    """Return the log directories."""
    return [data_dir / name.strip() for name in settings.log.log_dirs.split(",")]


def kafka_limits(broker: BrokerConfig) -> KafkaLimits:
    """Return the limits of Kafka clients. Raises ``SettingsError`` for a contradiction."""
    overrides = connections_per_ip_overrides(broker)
    return _filled(KafkaLimits, broker, max_connections_per_ip_overrides=overrides)


def dynamic_values(settings: Settings) -> SettingValues:
    """Return the values of the settings that can change while a broker runs."""
    return {
        **{
            name: row.default
            for name, row in {**DYNAMIC_ONLY, **LISTENER_SETTINGS}.items()
            if row.scope is not Scope.READ_ONLY
        },
        **{
            row.dotted_name: getattr(getattr(settings, table), row.name)
            for table, row in rows()
            if row.scope is not Scope.READ_ONLY
        },
    }


def with_values(table: T, values: SettingValues, names: Iterable[str]) -> T:
    """Return a table with other values of the settings with these names, which are Kafka's."""
    changes: dict[str, Any] = {name.replace(".", "_"): values[name] for name in names}
    return replace(table, **changes)  # type: ignore[type-var]


def isr_changes_through_zookeeper(settings: Settings) -> bool:
    """Return whether leaders write their ISRs to ZooKeeper themselves."""
    return settings.broker.isr_change_protocol == ISR_CHANGES_THROUGH_ZOOKEEPER
