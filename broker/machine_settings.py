"""Builds the settings of the parts of a broker from the settings with the same names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Final, TypeVar

from regent.config.settings import (
    DYNAMIC_LISTENER_SETTINGS,
    KAFKA_SETTINGS,
    LIMITS_OF_ONE_LISTENER,
    LISTENER_OPTIONS,
    Settings,
    rows,
)
from regent.config.settings_file import connections_per_ip_overrides
from regent.config.tables.broker import ISR_CHANGES_THROUGH_ZOOKEEPER
from regent.core.admin.config_descriptions import DYNAMIC_ONLY, BrokerSetting
from regent.core.controller.services import ControllerSettings
from regent.core.log_config import LogConfig
from regent.core.model import BrokerId
from regent.core.replication.replication_settings import ReplicationSettings
from regent.core.setting import INT_MAX, Scope, Setting, SettingValues
from regent.transport.kafka.limits import KafkaLimits
from regent.zk.client.zookeeper import ZooKeeper
from regent.zk.stores.broker_passwords import BrokerPasswords, FollowedConfigs

T = TypeVar("T")

LIMITS_OF_CONNECTIONS: Final = (
    "max.connections",
    "max.connection.creation.rate",
    "max.connections.per.ip",
    "max.connections.per.ip.overrides",
)


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


def kafka_limits(
    settings: Settings, listener: str, values: SettingValues | None = None
) -> KafkaLimits:
    """Return the limits of clients of a listener, with other dynamic ``values`` if there are some.

    Several listeners have ``max_connections`` and ``max_connection_creation_rate`` together,
    without that of brokers, as in Kafka.
    Raises ``SettingsError`` for a contradiction.
    """
    values = dynamic_values(settings) if values is None else values
    broker = with_values(settings.broker, values, LIMITS_OF_CONNECTIONS)
    settings = replace(settings, broker=broker)
    overrides = connections_per_ip_overrides(settings.broker)
    of_listener = values[listener_setting(listener, "max_connections")]
    is_apart = settings.listeners.keeps_brokers_apart(listener)
    limits = filled(
        KafkaLimits,
        settings,
        max_connections_per_ip_overrides=overrides,
        max_connections_of_listener=(
            of_listener if is_apart else min(of_listener, broker.max_connections)
        ),
        max_connection_creation_rate_of_listener=values[
            listener_setting(listener, "max_connection_creation_rate")
        ],
    )
    if not is_apart:
        return limits
    return replace(limits, max_connections=INT_MAX, max_connection_creation_rate=INT_MAX)


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
        **{
            listener_setting(listener, name): _of_listener(settings, listener, name)
            for listener in _listener_names(settings)
            for name in DYNAMIC_LISTENER_SETTINGS
        },
    }


def dynamic_rows(
    settings: Settings, described: Mapping[str, BrokerSetting]
) -> Mapping[str, Setting]:
    """Return all settings of brokers, with those of the listeners that can change.

    Those in ``described`` are of this broker.
    """
    own = {name: row.setting for name, row in described.items()}
    return {**KAFKA_SETTINGS, **own, **listener_rows(settings)}


def listener_rows(settings: Settings) -> Mapping[str, Setting]:
    """Return the settings of the single listeners that can change while a broker runs."""
    return {
        listener_setting(listener, name): LISTENER_OPTIONS[name][1]
        for listener in _listener_names(settings)
        for name in DYNAMIC_LISTENER_SETTINGS
    }


def listener_setting(listener: str, name: str) -> str:
    """Return Kafka's name of a setting of one listener."""
    return f"listener.name.{listener.lower()}.{name.replace('_', '.')}"


def _listener_names(settings: Settings) -> list[str]:
    return [endpoint.listener for endpoint in settings.listeners.listening]


def _of_listener(settings: Settings, listener: str, name: str) -> Any:
    """Return the value of a listener at the start; it has no limit of connections but its own."""
    if name in LIMITS_OF_ONE_LISTENER:
        return settings.listener_name.get(listener.lower(), {}).get(name, INT_MAX)
    return getattr(getattr(settings.of_listener(listener), LISTENER_OPTIONS[name][0]), name)


def with_values(table: T, values: SettingValues, names: Iterable[str]) -> T:
    """Return a table with other values of the settings with these names, which are Kafka's."""
    changes: dict[str, Any] = {name.replace(".", "_"): values[name] for name in names}
    return replace(table, **changes)  # type: ignore[type-var]


def broker_passwords(settings: Settings) -> BrokerPasswords:
    """Return what encodes the passwords of this broker's listeners in ZooKeeper."""
    broker = settings.broker
    return BrokerPasswords(
        broker.password_encoder_secret, broker.password_encoder_old_secret, KAFKA_SETTINGS
    )


def followed_configs(
    settings: Settings, broker_id: BrokerId, zookeeper: ZooKeeper
) -> FollowedConfigs:
    """Return the configurations in ZooKeeper that a broker follows."""
    return FollowedConfigs(zookeeper, broker_id, broker_passwords(settings))


def isr_changes_through_zookeeper(settings: Settings) -> bool:
    """Return whether leaders write their ISRs to ZooKeeper themselves."""
    return settings.broker.isr_change_protocol == ISR_CHANGES_THROUGH_ZOOKEEPER
