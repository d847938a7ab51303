"""The values of a topic's or a broker's settings, and the source of each value.

Mirrors ``kafka.server.ConfigHelper`` and ``LogConfig.TopicConfigSynonyms``. A topic that does not
override a setting has the value of the broker's setting of a similar name. A broker has its dynamic
value, else the value that it was started with, else the default.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from regent.core.admin.topic_settings import TOPIC_SETTINGS
from regent.core.setting import (
    LONG_MAX,
    ConfigType,
    Scope,
    Setting,
    setting,
    settings_of,
    text_of,
)


class ConfigSource(IntEnum):
    """Where a value was set. The numbers are those in Kafka's DescribeConfigs response."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    DYNAMIC_BROKER_LOGGER = 6


class BrokerSetting(NamedTuple):
    """A setting of a broker at its start; ``is_given``: its file or command line has the value."""

    setting: Setting
    value: str | None
    is_given: bool

    @property
    def default(self) -> str | None:
        """The value in effect when none is given."""
        default = self.setting.default
        return None if default is None else text_of(default)


class BrokerSettings(NamedTuple):
    """The settings of this broker by Kafka's names.

    ``static``: the values at its start. ``own``: the values in ZooKeeper for this broker.
    ``of_all``: the values in ZooKeeper for all brokers. The broker ignores values in ZooKeeper that
    are not valid, and those of settings that cannot change while it runs.
    """

    static: Mapping[str, BrokerSetting]
    own: Mapping[str, str]
    of_all: Mapping[str, str]


class ConfigSynonym(NamedTuple):
    """One value of a setting, the name under which it was set, and its source."""

    name: str
    value: str | None
    source: ConfigSource


class ConfigDescription(NamedTuple):
    """A setting with the value in effect; ``synonyms``: all its values, this one first.

    The values of a sensitive setting are None.
    """

    name: str
    value: str | None
    source: ConfigSource
    type: ConfigType
    is_read_only: bool
    synonyms: tuple[ConfigSynonym, ...]
    documentation: str | None = None
    is_sensitive: bool = False


@dataclass(frozen=True)
class DynamicBrokerSettings:
    """The settings that are only in ZooKeeper: no file or command line has them."""

    leader_replication_throttled_rate: int = setting(
        LONG_MAX,
        "How many bytes a second the throttled replicas of the partitions that this broker leads"
        " may fetch from it together (KIP-73).",
        limits=(0, LONG_MAX),
        scope=Scope.PER_BROKER,
    )
    follower_replication_throttled_rate: int = setting(
        LONG_MAX,
        "How many bytes a second the throttled replicas on this broker may fetch together"
        " (KIP-73).",
        limits=(0, LONG_MAX),
        scope=Scope.PER_BROKER,
    )
    replica_alter_log_dirs_io_max_bytes_per_second: int = setting(
        LONG_MAX,
        "How many bytes a second this broker may copy together for replicas that move between its"
        " log directories (KIP-113).",
        limits=(0, LONG_MAX),
        scope=Scope.PER_BROKER,
    )


DYNAMIC_ONLY: Mapping[str, Setting] = {
    row.dotted_name: row for row in settings_of(DynamicBrokerSettings())
}
"""These settings by Kafka's names."""


def describe_topic(overrides: Mapping[str, str], broker: BrokerSettings) -> list[ConfigDescription]:
    """Return all settings of a topic, sorted by name."""
    described = []
    for name, row in sorted(TOPIC_SETTINGS.items()):
        synonyms = []
        if name in overrides:
            synonyms.append(ConfigSynonym(name, overrides[name], ConfigSource.TOPIC))
        if row.declared.broker_name is not None:
            synonyms += _of_broker(row.declared.broker_name, broker)
        else:
            synonyms.append(ConfigSynonym(name, text_of(row.default), ConfigSource.DEFAULT))
        described.append(_description(name, row, synonyms))
    return described


def describe_broker(broker: BrokerSettings) -> list[ConfigDescription]:
    """Return the settings of a broker, sorted by name."""
    synonyms = {
        name: _of_broker(name, broker)
        for name in sorted({*broker.static, *broker.own, *broker.of_all})
    }
    return [_description(name, _row(name, broker), of) for name, of in synonyms.items() if of]


def describe_all_brokers(broker: BrokerSettings) -> list[ConfigDescription]:
    """Return the settings in ZooKeeper for all brokers, sorted by name."""
    described = []
    for name in sorted(broker.of_all):
        found = _of_broker(name, broker)
        of_all = [s for s in found if s.source is ConfigSource.DYNAMIC_DEFAULT_BROKER]
        if of_all:
            described.append(_description(name, _row(name, broker), of_all))
    return described


def _row(name: str, broker: BrokerSettings) -> Setting | None:
    """Return the declaration of a broker's setting; None: an unknown name in ZooKeeper."""
    started = broker.static.get(name)
    return DYNAMIC_ONLY.get(name) if started is None else started.setting


def _of_broker(name: str, broker: BrokerSettings) -> list[ConfigSynonym]:
    """Return the values of a broker's setting, the one in effect first."""
    row, synonyms = _row(name, broker), []
    for values, source in (
        (broker.own, ConfigSource.DYNAMIC_BROKER),
        (broker.of_all, ConfigSource.DYNAMIC_DEFAULT_BROKER),
    ):
        value = values.get(name)
        if value is not None and (row is None or row.change_problem(value) is None):
            synonyms.append(ConfigSynonym(name, value, source))
    started = broker.static.get(name)
    if started is not None:
        if started.is_given:
            synonyms.append(ConfigSynonym(name, started.value, ConfigSource.STATIC_BROKER))
        synonyms.append(ConfigSynonym(name, started.default, ConfigSource.DEFAULT))
    return synonyms


def _description(
    name: str, row: Setting | None, synonyms: Sequence[ConfigSynonym]
) -> ConfigDescription:
    """Describe a setting; an unknown one may be a password, as in Kafka."""
    is_sensitive = row is None or row.type is ConfigType.PASSWORD
    if is_sensitive:
        synonyms = [synonym._replace(value=None) for synonym in synonyms]
    effective = synonyms[0]
    return ConfigDescription(
        name,
        effective.value,
        effective.source,
        ConfigType.UNKNOWN if row is None else row.type,
        row is not None and row.scope is Scope.READ_ONLY,
        tuple(synonyms),
        None if row is None else row.meaning,
        is_sensitive,
    )
