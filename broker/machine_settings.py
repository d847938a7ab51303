"""Builds the settings of the parts of a broker from the settings with the same names."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

from regent.config.settings import Settings, rows
from regent.config.settings_file import connections_per_ip_overrides
from regent.config.tables.broker import ISR_CHANGES_THROUGH_ZOOKEEPER
from regent.core.admin.config_descriptions import DYNAMIC_ONLY
from regent.core.controller.services import ControllerSettings
from regent.core.log_config import LogConfig
from regent.core.replication.replication_settings import ReplicationSettings
from regent.core.setting import INT_MAX, Scope, SettingValues
from regent.transport.kafka.limits import KafkaLimits

T = TypeVar("T")


def filled(kind: type[T], settings: Settings, **others: Any) -> T:
    """Return the settings of a part of a broker: a ``kind`` with the values of the same names."""
    names = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    values = {
        row.name: getattr(getattr(settings, table), row.name)
        for table, row in rows()
        if row.name in names
    }
    return kind(**{**values, **others})


def controller_settings(settings: Settings) -> ControllerSettings:
    """Return the settings of the controller."""
    through_zookeeper = isr_changes_through_zookeeper(settings)
    return filled(
        ControllerSettings,
        settings,
        isr_changes_through_zookeeper=through_zookeeper,
        delegation_tokens_are_on=bool(settings.delegation_tokens.delegation_token_secret_key_file),
    )


def replication_settings(settings: Settings) -> ReplicationSettings:
    """Return the settings of followers and of leaders that serve them."""
    inter_broker = settings.listeners.inter_broker
    return filled(
        ReplicationSettings,
        settings,
        inter_broker_listener_name=inter_broker.listener,
        inter_broker_security_protocol=inter_broker.security_protocol,
    )


def log_defaults(settings: Settings) -> LogConfig:
    """Return the default configuration of topics."""
    return LogConfig.of_broker(dynamic_values(settings))


def log_directories(settings: Settings, data_dir: Path) -> list[Path]:
    """Return the log directories."""
    return [data_dir / name.strip() for name in settings.log.log_dirs.split(",")]


def kafka_limits(settings: Settings, listener: str) -> KafkaLimits:
    """Return the limits of clients of a listener. Raises ``SettingsError`` for a contradiction.

    Several listeners have ``max_connections`` together, without that of brokers, as in Kafka.
    """
    limits = filled(
        KafkaLimits,
        settings,
        max_connections_per_ip_overrides=connections_per_ip_overrides(settings.broker),
        max_connections_of_listener=settings.of_listener(listener).broker.max_connections,
    )
    is_apart = settings.listeners.keeps_brokers_apart(listener)
    return replace(limits, max_connections=INT_MAX) if is_apart else limits


def dynamic_values(settings: Settings) -> SettingValues:
    """Return the values of the settings that can change while a broker runs."""
    return {
        **{
            name: row.default
            for name, row in DYNAMIC_ONLY.items()
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
