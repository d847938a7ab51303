"""The settings of a broker for DescribeConfigs: Kafka's names and text values."""

from __future__ import annotations

from collections.abc import Mapping

from regent.config.settings import Settings, rows
from regent.core.admin.config_descriptions import BrokerSetting
from regent.core.model import BrokerId
from regent.core.setting import INT_MAX, Declaration, Setting, text_of

_BROKER_ID = Setting("broker_id", -1, Declaration("The id of this broker.", (-1, INT_MAX)))


def broker_settings(settings: Settings, broker_id: BrokerId) -> Mapping[str, BrokerSetting]:
    """Return the values that this broker was started with, with their defaults."""
    described = {"broker.id": BrokerSetting(_BROKER_ID, str(broker_id), is_given=True)}
    for table, row in rows():
        value = text_of(getattr(getattr(settings, table), row.name))
        is_given = f"{table}.{row.name}" in settings.given
        described[row.dotted_name] = BrokerSetting(row, value, is_given)
    return described
