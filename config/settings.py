"""All settings: every table, and every setting with its name, type, default, limits and meaning.

Each table is a module in ``config.tables``. Names are Kafka's with underscores for dots. Times are
in milliseconds and sizes in bytes unless the name says otherwise. ``config/broker.toml`` and
``docs/configuration.md`` are generated from here (``python -m regent.config.reference``);
``config.settings_file`` reads files of settings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Final

from regent.config.tables.authorizer import AuthorizerConfig
from regent.config.tables.broker import BrokerConfig
from regent.config.tables.controller import ControllerConfig
from regent.config.tables.groups import GroupsConfig
from regent.config.tables.log import LogsConfig
from regent.config.tables.logging import LoggingConfig
from regent.config.tables.transactions import TransactionsConfig
from regent.config.tables.zookeeper import ZooKeeperConfig
from regent.core.admin.config_descriptions import DYNAMIC_ONLY, LISTENER_SETTINGS
from regent.core.admin.kafka_only_settings import KAFKA_ONLY_SETTINGS
from regent.core.quota.quota_config import QuotaConfig
from regent.core.setting import Setting, settings_of


@dataclass(frozen=True)
class Settings:
    """All settings of one process: a field for each table.

    ``given`` names those that a file or the command line has, as ``table.name``; the others have
    their defaults.
    """

    broker: BrokerConfig = field(default_factory=BrokerConfig)
    controller: ControllerConfig = field(default_factory=ControllerConfig)
    log: LogsConfig = field(default_factory=LogsConfig)
    groups: GroupsConfig = field(default_factory=GroupsConfig)
    transactions: TransactionsConfig = field(default_factory=TransactionsConfig)
    quotas: QuotaConfig = field(default_factory=QuotaConfig)
    zookeeper: ZooKeeperConfig = field(default_factory=ZooKeeperConfig)
    authorizer: AuthorizerConfig = field(default_factory=AuthorizerConfig)
    logging: LoggingConfig = field(default_factory=LoggingConfig)
    given: frozenset[str] = field(default=frozenset(), compare=False)


TABLES = tuple(table.name for table in fields(Settings) if table.name != "given")
"""The names of the tables."""


def rows() -> Iterator[tuple[str, Setting]]:
    """Yield every setting after the name of its table."""
    for table in TABLES:
        yield from ((table, row) for row in settings_of(getattr(Settings(), table)))


KAFKA_SETTINGS: Final[Mapping[str, Setting]] = {
    **KAFKA_ONLY_SETTINGS,
    **LISTENER_SETTINGS,
    **{row.kafka_name: row for _, row in rows() if row.kafka_name is not None},
    **DYNAMIC_ONLY,
}
"""The settings of brokers by Kafka's names.

With those that are only in ZooKeeper, and those that have no effect here.
"""


def _option_name(table: str, row: Setting) -> str:
    return "log_level" if (table, row.name) == ("logging", "level") else row.name


SETTING_OPTIONS: Final[dict[str, tuple[str, Setting]]] = {
    _option_name(table, row): (table, row)
    for table, row in rows()
    if not isinstance(row.default, Mapping)
}
"""Tables and settings by the names of the options of ``regent broker``."""
