"""What a topic's or a broker's settings are, and where each of them comes from.

Mirrors ``kafka.server.ConfigHelper`` and ``LogConfig.TopicConfigSynonyms``: what a topic does not
override is the broker's setting of a similar name, which is given to the broker or its default.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

from regent.core.admin.config_changes import UNCLEAN_LEADER_ELECTION
from regent.core.admin.topic_validation import TOPIC_CONFIGS
from regent.core.log_config import BROKER_NAMES


class ConfigSource(IntEnum):
    """Who set it."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5


class ConfigType(IntEnum):
    """What kind of value it takes."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7


class BrokerSetting(NamedTuple):
    """A setting as a broker was started with it."""

    value: str
    default: str
    type: ConfigType


class BrokerSettings(NamedTuple):
    """The settings of this broker by Kafka's names.

    ``own`` and ``of_all`` were set in ZooKeeper, for it alone and for all brokers.
    """

    static: Mapping[str, BrokerSetting]
    own: Mapping[str, str]
    of_all: Mapping[str, str]


class ConfigSynonym(NamedTuple):
    """A value that would hold, or holds, for a setting, and by which name."""

    name: str
    value: str
    source: ConfigSource


class ConfigDescription(NamedTuple):
    """A setting with the value that holds; ``synonyms`` begin with that one."""

    name: str
    value: str
    source: ConfigSource
    type: ConfigType
    is_read_only: bool
    synonyms: tuple[ConfigSynonym, ...]


_BROKER_NAMES: Mapping[str, str] = {
    **{field.replace("_", "."): name for field, name in BROKER_NAMES.items()},
    UNCLEAN_LEADER_ELECTION: UNCLEAN_LEADER_ELECTION,
}
_DYNAMIC = frozenset(_BROKER_NAMES.values())  # of a broker that runs
_DEFAULTS: Mapping[str, str] = {  # of the settings that brokers have no word in
    "compression.type": "producer",
    "follower.replication.throttled.replicas": "",
    "leader.replication.throttled.replicas": "",
}
_TYPES: Mapping[str, ConfigType] = {
    "cleanup.policy": ConfigType.LIST,
    "compression.type": ConfigType.STRING,
    "follower.replication.throttled.replicas": ConfigType.LIST,
    "index.interval.bytes": ConfigType.INT,
    "leader.replication.throttled.replicas": ConfigType.LIST,
    "max.message.bytes": ConfigType.INT,
    "message.downconversion.enable": ConfigType.BOOLEAN,
    "message.format.version": ConfigType.STRING,
    "message.timestamp.type": ConfigType.STRING,
    "min.cleanable.dirty.ratio": ConfigType.DOUBLE,
    "min.insync.replicas": ConfigType.INT,
    "preallocate": ConfigType.BOOLEAN,
    "remote.storage.enable": ConfigType.BOOLEAN,
    "segment.bytes": ConfigType.INT,
    "segment.index.bytes": ConfigType.INT,
    "unclean.leader.election.enable": ConfigType.BOOLEAN,
}

LISTS = frozenset(name for name, type_ in _TYPES.items() if type_ is ConfigType.LIST)
"""The settings of topics that a value may be appended to or taken from."""


def describe_topic(overrides: Mapping[str, str], broker: BrokerSettings) -> list[ConfigDescription]:
    """Return the settings of a topic by name: those that have an effect, and all it overrides."""
    described = []
    for name in sorted({*_DEFAULTS, *_BROKER_NAMES, *(TOPIC_CONFIGS & overrides.keys())}):
        synonyms = []
        if name in overrides:
            synonyms.append(ConfigSynonym(name, overrides[name], ConfigSource.TOPIC))
        if name in _BROKER_NAMES:
            synonyms += _of_broker(_BROKER_NAMES[name], broker)
        elif name in _DEFAULTS:
            synonyms.append(ConfigSynonym(name, _DEFAULTS[name], ConfigSource.DEFAULT))
        type_ = _TYPES.get(name, ConfigType.LONG)
        described.append(_description(name, type_, synonyms, is_read_only=False))
    return described


def describe_broker(broker: BrokerSettings) -> list[ConfigDescription]:
    """Return the settings of a broker by name.

    What it was started with holds until it is started again, unless it can change while it runs.
    """
    described = []
    for name in sorted({*broker.static, *broker.own, *broker.of_all}):
        setting = broker.static.get(name)
        is_dynamic = setting is None or name in _DYNAMIC
        type_ = ConfigType.STRING if setting is None else setting.type
        synonyms = _of_broker(name, broker)
        described.append(_description(name, type_, synonyms, is_read_only=not is_dynamic))
    return described


def describe_all_brokers(of_all: Mapping[str, str]) -> list[ConfigDescription]:
    """Return what is set in ZooKeeper for every broker, by name."""
    return describe_broker(BrokerSettings({}, {}, of_all))


def _of_broker(name: str, broker: BrokerSettings) -> list[ConfigSynonym]:
    """Return the values of a broker's setting, first the one that holds."""
    setting = broker.static.get(name)
    synonyms = []
    if setting is None or name in _DYNAMIC:
        for values, source in (
            (broker.own, ConfigSource.DYNAMIC_BROKER),
            (broker.of_all, ConfigSource.DYNAMIC_DEFAULT_BROKER),
        ):
            if name in values:
                synonyms.append(ConfigSynonym(name, values[name], source))
    if setting is not None:
        if setting.value != setting.default:
            synonyms.append(ConfigSynonym(name, setting.value, ConfigSource.STATIC_BROKER))
        synonyms.append(ConfigSynonym(name, setting.default, ConfigSource.DEFAULT))
    return synonyms


def _description(
    name: str, type_: ConfigType, synonyms: Sequence[ConfigSynonym], *, is_read_only: bool
) -> ConfigDescription:
    effective = synonyms[0]
    return ConfigDescription(
        name, effective.value, effective.source, type_, is_read_only, tuple(synonyms)
    )
