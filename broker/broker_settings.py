"""The settings of a broker as DescribeConfigs shows them: by Kafka's names, as text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from regent.config.setting import INT_MAX, settings_of
from regent.config.settings import Settings
from regent.core.admin.config_descriptions import BrokerSetting, ConfigType
from regent.core.model import BrokerId


def broker_settings(settings: Settings, broker_id: BrokerId) -> Mapping[str, BrokerSetting]:
    """Return the values that this broker was started with, and the defaults.

    A setting that Kafka does not have is listed by its own name with ``.`` for ``_``.
    """
    described = {"broker.id": BrokerSetting(str(broker_id), "-1", ConfigType.INT)}
    for table in fields(settings):
        given = getattr(settings, table.name)
        for setting in settings_of(type(given)()):
            name = setting.kafka_name or setting.name.replace("_", ".")
            if table.name == "logging":
                name = f"logging.{name}"
            value, usual = getattr(given, setting.name), setting.default
            described[name] = BrokerSetting(_text(value), _text(usual), _type(usual))
    return described


def _text(value: object) -> str:
    if isinstance(value, Mapping):
        return ",".join(f"{key}={one}" for key, one in value.items())
    return str(value).lower() if isinstance(value, bool) else str(value)


def _type(value: object) -> ConfigType:
    if isinstance(value, bool):
        return ConfigType.BOOLEAN
    if isinstance(value, int):
        return ConfigType.INT if value <= INT_MAX else ConfigType.LONG
    return ConfigType.STRING
