"""The settings of a broker as clients are told of them: by Kafka's names, as text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from regent.config.settings import Settings
from regent.core.admin.config_descriptions import BrokerSetting, ConfigType
from regent.core.model import BrokerId

_PREFIXES = {"zookeeper": "zookeeper."}  # tables whose name is part of Kafka's
_INT_MAX = 2**31 - 1


def broker_settings(settings: Settings, broker_id: BrokerId) -> Mapping[str, BrokerSetting]:
    """Return what this broker was started with, beside the defaults."""
    described = {"broker.id": BrokerSetting(str(broker_id), "-1", ConfigType.INT)}
    by_default = Settings()
    for table in fields(settings):
        given, default = getattr(settings, table.name), getattr(by_default, table.name)
        for field in fields(given):
            name = _PREFIXES.get(table.name, "") + field.name.replace("_", ".")
            value, usual = getattr(given, field.name), getattr(default, field.name)
            described[name] = BrokerSetting(_text(value), _text(usual), _type(usual))
    return described


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _type(value: object) -> ConfigType:
    if isinstance(value, bool):
        return ConfigType.BOOLEAN
    if isinstance(value, int):
        return ConfigType.INT if value <= _INT_MAX else ConfigType.LONG
    return ConfigType.STRING
