"""The configurations in ZooKeeper as broker 1 follows them, and what it tells others."""

from __future__ import annotations

import sys
import threading
from collections.abc import Collection, Mapping
from typing import Any, Final

from regent.broker.broker_settings import broker_settings
from regent.broker.machine_settings import dynamic_values
from regent.config.settings import KAFKA_SETTINGS, Settings
from regent.core.admin.config_handlers import TopicConfigHandler
from regent.core.admin.dynamic_config_manager import DynamicConfigManager
from regent.core.controller.events import ControllerEvent
from regent.core.log_config import LogConfig
from regent.core.model import TopicPartition
from regent.core.replication.replication_quota import ReplicationQuotas
from regent.core.setting import SettingValues
from regent.zk.client.zookeeper import ZooKeeper
from regent.zk.stores.config_store import ZkConfigStore
from regent.zk.znodes import ConfigEntityChangeNotificationSequenceZNode, ConfigEntityZNode
from tests.support.fake_zookeeper import FakeZooKeeperServer
from tests.support.memory_logs import MemoryLogs

BROKER: Final = 1
STARTED: Final = dynamic_values(Settings())


class _CountedLogs(MemoryLogs):
    """Notes which topics are configured."""

    def __init__(self, defaults: LogConfig) -> None:
        super().__init__(defaults=defaults)
        self.configured: list[list[str]] = []

    def configure(self, configs: Mapping[str, LogConfig]) -> None:
        super().configure(configs)
        self.configured.append(sorted(configs))


class FollowedConfigs:
    """A manager of configurations with all that follows it; it takes every setting itself."""

    reconfigurable_configs: Final = tuple(STARTED)

    def __init__(self, zookeeper: ZooKeeper, started: SettingValues = STARTED) -> None:
        self.events: list[ControllerEvent] = []
        self.changes: list[dict[str, Any]] = []  # the new values of what changed, each time
        self.client_quotas: list[Mapping[str, Mapping[str, str]]] = []
        self.logs = _CountedLogs(LogConfig.of_broker(started))
        self.throttles = ReplicationQuotas(BROKER)
        described = broker_settings(Settings(), BROKER)
        self.manager = DynamicConfigManager(
            BROKER,
            ZkConfigStore(zookeeper),
            {**KAFKA_SETTINGS, **{name: row.setting for name, row in described.items()}},
            started,
            TopicConfigHandler(self.logs, self.throttles, started, threading.Lock()),
            (self.throttles, self),
            tell_controller=self.events.append,
            set_client_quotas=self.client_quotas.append,
        )

    def reconfigure(self, old: SettingValues, new: SettingValues) -> None:
        """Note what has changed."""
        self.changes.append({name: value for name, value in new.items() if old[name] != value})

    def log_config(self, topic: str) -> LogConfig:
        """Return the configuration of the logs of a topic."""
        return self.logs.get_or_create(TopicPartition(topic, 0), None, is_new=True).config


def configure(
    server: FakeZooKeeperServer, entity: str, config: Mapping[str, str], number: int = 7
) -> None:
    """Change a configuration as Kafka's tools do; ``number`` is that of the notification."""
    entity_type, _, name = entity.partition("/")
    server.put(ConfigEntityZNode.path(entity_type, name), ConfigEntityZNode.encode(config))
    notification = ConfigEntityChangeNotificationSequenceZNode.encode(entity)
    prefix = ConfigEntityChangeNotificationSequenceZNode.PATH_PREFIX
    server.put(f"{prefix}{number:010d}", notification)


def reconfigurables() -> dict[type, Collection[str]]:
    """Return the classes of the program that follow settings, and which."""
    modules = [module for name, module in sys.modules.items() if name.startswith("regent.")]
    classes = {c for module in modules for c in vars(module).values() if isinstance(c, type)}
    named = {found: getattr(found, "reconfigurable_configs", None) for found in classes}
    return {found: names for found, names in named.items() if isinstance(names, tuple | frozenset)}
