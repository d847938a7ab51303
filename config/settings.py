"""All settings: every table, and every setting with its name, type, default, limits and meaning.

Each table is a module in ``config.tables``. Names are Kafka's with underscores for dots. Times are
in milliseconds and sizes in bytes unless the name says otherwise. ``config/broker.toml`` and
``docs/configuration.md`` are generated from here (``python -m regent.config.reference``);
``config.settings_file`` reads files of settings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

from regent.config.addresses import is_loopback
from regent.config.listeners import Listeners
from regent.config.tables.authorizer import AuthorizerConfig
from regent.config.tables.broker import BrokerConfig
from regent.config.tables.controller import ControllerConfig
from regent.config.tables.delegation import DelegationTokensConfig
from regent.config.tables.groups import GroupsConfig
from regent.config.tables.log import LogsConfig
from regent.config.tables.logging import LoggingConfig
from regent.config.tables.sasl import SaslConfig
from regent.config.tables.tls import TlsConfig
from regent.config.tables.transactions import TransactionsConfig
from regent.config.tables.zookeeper import ZooKeeperConfig
from regent.core.admin.config_descriptions import DYNAMIC_ONLY
from regent.core.admin.kafka_only_settings import KAFKA_ONLY_SETTINGS
from regent.core.model import EndPoint
from regent.core.quota.quota_config import QuotaConfig
from regent.core.security.session import SecurityProtocol
from regent.core.setting import ConfigType, Setting, settings_of


@dataclass(frozen=True)
class Settings:
    """All settings of one process: a field for each table.

    ``given`` names those that a file or the command line has, as ``table.name``; the others have
    their defaults. ``listener_name`` has the settings of single listeners by the name of the
    listener in lower case: Kafka's ``listener.name.NAME.SETTING``.
    """

    broker: BrokerConfig = field(default_factory=BrokerConfig)
    controller: ControllerConfig = field(default_factory=ControllerConfig)
    log: LogsConfig = field(default_factory=LogsConfig)
    groups: GroupsConfig = field(default_factory=GroupsConfig)
    transactions: TransactionsConfig = field(default_factory=TransactionsConfig)
    quotas: QuotaConfig = field(default_factory=QuotaConfig)
    delegation_tokens: DelegationTokensConfig = field(default_factory=DelegationTokensConfig)
    zookeeper: ZooKeeperConfig = field(default_factory=ZooKeeperConfig)
    tls: TlsConfig = field(default_factory=TlsConfig)
    sasl: SaslConfig = field(default_factory=SaslConfig)
    authorizer: AuthorizerConfig = field(default_factory=AuthorizerConfig)
    logging: LoggingConfig = field(default_factory=LoggingConfig)
    listener_name: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    given: frozenset[str] = field(default=frozenset(), compare=False)

    @property
    def listeners(self) -> Listeners:
        """The listeners of the broker. Raises ``ListenersError``."""
        return Listeners.of(self.broker, self.given)

    def of_listener(self, name: str) -> Settings:
        """Return the settings of a listener: its own, and those of all listeners."""
        own = self.listener_name.get(name.lower(), {})
        tables: dict[str, Any] = {}
        for key, value in own.items():
            table, _ = LISTENER_OPTIONS[key]
            tables[table] = replace(tables.get(table, getattr(self, table)), **{key: value})
        given = self.given.union(f"{LISTENER_OPTIONS[key][0]}.{key}" for key in own)
        return replace(self, **tables, given=given)

    def unauthenticated_listeners(self) -> tuple[EndPoint, ...]:
        """Return the listeners beyond loopback where nobody proves who they are."""
        return tuple(
            endpoint
            for endpoint in self.listeners.listening
            if not is_loopback(endpoint.host) and not self._logs_in(endpoint)
        )

    def _logs_in(self, endpoint: EndPoint) -> bool:
        protocol = SecurityProtocol(endpoint.security_protocol)
        if protocol.has_sasl:
            return True
        of_tls = self.of_listener(endpoint.listener).tls
        return protocol.has_tls and of_tls.ssl_client_auth == "required"


TABLES = tuple(
    table.name for table in fields(Settings) if table.name not in ("listener_name", "given")
)
"""The names of the tables."""


def rows() -> Iterator[tuple[str, Setting]]:
    """Yield every setting after the name of its table."""
    for table in TABLES:
        yield from ((table, row) for row in settings_of(getattr(Settings(), table)))


KAFKA_SETTINGS: Final[Mapping[str, Setting]] = {
    **KAFKA_ONLY_SETTINGS,
    **{row.kafka_name: row for _, row in rows() if row.kafka_name is not None},
    **DYNAMIC_ONLY,
}
"""The settings of brokers by Kafka's names.

With those that are only in ZooKeeper, and those that have no effect here.
"""


LIMITS_OF_ONE_LISTENER: Final = ("max_connections", "max_connection_creation_rate")
"""Limits of all listeners together, of which each may have its own beside them."""

_TABLES_OF_LISTENERS: Final = frozenset({"tls", "sasl"})

LISTENER_OPTIONS: Final[Mapping[str, tuple[str, Setting]]] = {
    row.name: (table, row)
    for table, row in rows()
    if table in _TABLES_OF_LISTENERS or row.name in LIMITS_OF_ONE_LISTENER
}
"""Tables and settings by the names of those that a single listener may have."""


DYNAMIC_LISTENER_SETTINGS: Final = (
    *LIMITS_OF_ONE_LISTENER,
    *("ssl_keystore_location", "ssl_keystore_type"),
    *("ssl_truststore_location", "ssl_truststore_type"),
    *("ssl_key_password", "ssl_keystore_password", "ssl_truststore_password"),
)
"""Those of them that can change while a broker runs."""


def _option_name(table: str, row: Setting) -> str:
    return "log_level" if (table, row.name) == ("logging", "level") else row.name


SETTING_OPTIONS: Final[dict[str, tuple[str, Setting]]] = {
    _option_name(table, row): (table, row)
    for table, row in rows()
    if not isinstance(row.default, Mapping) and row.type is not ConfigType.PASSWORD
}
"""Tables and settings by the names of the options of ``regent broker``.

Secrets are in files only: all users of a machine see the command lines of its processes.
"""
