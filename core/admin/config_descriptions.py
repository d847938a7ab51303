"""The values of a topic's or a broker's settings, and the source of each value.

Mirrors ``kafka.server.ConfigHelper`` and ``LogConfig.TopicConfigSynonyms``. A topic that does not
override a setting has the value of the broker's setting of a similar name. A broker has its dynamic
value, else the value that it was started with, else the default.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import dropwhile
from typing import Final, NamedTuple

from regent.core.admin.config_problems import base_name, unusable_in_broker, unusable_in_topic
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

    ``static``: the values at its start. ``own``: the values in ZooKeeper for this broker that it
    can use. ``of_all``: those for all brokers. See ``broker_settings_in_force``.
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
        scope=Scope.CLUSTER_WIDE,
    )
    follower_replication_throttled_rate: int = setting(
        LONG_MAX,
        "How many bytes a second the throttled replicas on this broker may fetch together"
        " (KIP-73).",
        limits=(0, LONG_MAX),
        scope=Scope.CLUSTER_WIDE,
    )
    replica_alter_log_dirs_io_max_bytes_per_second: int = setting(
        LONG_MAX,
        "How many bytes a second this broker may copy together for replicas that move between its"
        " log directories (KIP-113).",
        limits=(0, LONG_MAX),
        scope=Scope.CLUSTER_WIDE,
    )


DYNAMIC_ONLY: Mapping[str, Setting] = {
    row.dotted_name: row for row in settings_of(DynamicBrokerSettings())
}
"""These settings by Kafka's names."""


_SYNONYMS: Final[Mapping[str, Sequence[str]]] = {
    "log.retention.ms": ("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
    "log.roll.ms": ("log.roll.ms", "log.roll.hours"),
    "log.roll.jitter.ms": ("log.roll.jitter.ms", "log.roll.jitter.hours"),
    "log.flush.interval.ms": ("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
}
"""The names of settings that Kafka has more than once, the one that counts first."""


def broker_settings_in_force(
    static: Mapping[str, BrokerSetting], own: Mapping[str, str], of_all: Mapping[str, str]
) -> BrokerSettings:
    """Return the settings of a broker without those in ZooKeeper that it cannot use."""
    rows = {**DYNAMIC_ONLY, **{name: started.setting for name, started in static.items()}}
    unusable_own = unusable_in_broker(own, rows, of_all=False)
    unusable_of_all = unusable_in_broker(of_all, rows, of_all=True)
    return BrokerSettings(
        static,
        {name: value for name, value in own.items() if name not in unusable_own},
        {name: value for name, value in of_all.items() if name not in unusable_of_all},
    )


def describe_topic(overrides: Mapping[str, str], broker: BrokerSettings) -> list[ConfigDescription]:
    """Return all settings of a topic, sorted by name; overrides that cannot be used are missing."""
    unusable = unusable_in_topic(overrides)
    described = []
    for name, row in sorted(TOPIC_SETTINGS.items()):
        synonyms = []
        if name in overrides and name not in unusable:
            synonyms.append(ConfigSynonym(name, overrides[name], ConfigSource.TOPIC))
        if row.declared.broker_name is not None:
            synonyms += _of_broker(row.declared.broker_name, broker)
        described.append(_description(name, row, synonyms, text_of(row.default)))
    return described


def describe_broker(broker: BrokerSettings) -> list[ConfigDescription]:
    """Return the settings of a broker, sorted by name."""
    described = []
    for name in sorted({*broker.static, *broker.own, *broker.of_all}):
        started = broker.static.get(name)
        value = None if started is None else started.value
        described.append(_description(name, _row(name, broker), _of_broker(name, broker), value))
    return described


def describe_all_brokers(broker: BrokerSettings) -> list[ConfigDescription]:
    """Return the settings in ZooKeeper for all brokers, sorted by name."""
    return [
        _description(
            name,
            _row(name, broker),
            [ConfigSynonym(name, value, ConfigSource.DYNAMIC_DEFAULT_BROKER)],
            None,
        )
        for name, value in sorted(broker.of_all.items())
    ]


def _row(name: str, broker: BrokerSettings) -> Setting | None:
    """Return the declaration of a broker's setting; None: an unknown name in ZooKeeper."""
    base = base_name(name)
    started = broker.static.get(base)
    return DYNAMIC_ONLY.get(base) if started is None else started.setting


def _of_broker(name: str, broker: BrokerSettings) -> list[ConfigSynonym]:
    """Return the values of a broker's setting, the one in effect first; none: its default is null.

    The values of its other names follow if it has a value under its own.
    """
    base = base_name(name)
    names = (name, base) if base != name else _SYNONYMS.get(name, (name,))
    static = {n: broker.static[n] for n in names if n in broker.static}
    layers: Sequence[tuple[Mapping[str, str | None], ConfigSource]] = (
        (broker.own, ConfigSource.DYNAMIC_BROKER),
        (broker.of_all, ConfigSource.DYNAMIC_DEFAULT_BROKER),
        ({n: s.value for n, s in static.items() if s.is_given}, ConfigSource.STATIC_BROKER),
        ({n: s.default for n, s in static.items()}, ConfigSource.DEFAULT),
    )
    synonyms = [
        ConfigSynonym(n, values[n], source)
        for values, source in layers
        for n in names
        if values.get(n) is not None
    ]
    return list(dropwhile(lambda synonym: synonym.name != name, synonyms))


def _description(
    name: str, row: Setting | None, synonyms: Sequence[ConfigSynonym], default: str | None
) -> ConfigDescription:
    """Describe a setting; an unknown one may be a password, as in Kafka.

    ``default`` is the value if there are no synonyms.
    """
    is_sensitive = row is None or row.type is ConfigType.PASSWORD
    if is_sensitive:
        synonyms = [synonym._replace(value=None) for synonym in synonyms]
        default = None
    return ConfigDescription(
        name,
        synonyms[0].value if synonyms else default,
        synonyms[0].source if synonyms else ConfigSource.DEFAULT,
        ConfigType.UNKNOWN if row is None else row.type,
        row is None or row.scope is Scope.READ_ONLY or name != base_name(name),
        tuple(synonyms),
        None if row is None else row.meaning,
        is_sensitive,
    )
