"""Has logs and replication follow what ``/config`` says of their topics and of this broker."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from typing import Protocol

from regent.core.admin.config_changes import ConfigStore
from regent.core.log_config import LogConfig


class ConfigurableLogs(Protocol):
    """``storage.log_manager.LogManager``, as far as configurations go."""

    def configure(self, configs: Mapping[str, LogConfig]) -> None:
        """Set the configurations of topics, for the logs there are and those to come."""
        ...


class ThrottledReplication(Protocol):
    """``core.replication.replica_manager.ReplicaManager``, as far as configurations go."""

    def on_broker_config(self, overrides: Mapping[str, str]) -> None:
        """Take what this broker overrides: at which rates it replicates."""
        ...

    def on_topic_config(self, topic: str, overrides: Mapping[str, str]) -> None:
        """Take what a topic overrides: for which replicas those rates hold."""
        ...


class TopicConfigs:
    """What every topic overrides that this broker has, or had, replicas of. Thread-safe."""

    def __init__(
        self,
        logs: ConfigurableLogs,
        replication: ThrottledReplication,
        store: ConfigStore,
        defaults: LogConfig,
    ) -> None:
        self._logs = logs
        self._replication = replication
        self._store = store
        self._static_defaults = defaults
        self._defaults = defaults
        self._overrides: dict[str, Mapping[str, str]] = {}
        # Held from reading to applying: a thread that read older values must not apply them last.
        self._lock = threading.Lock()

    @property
    def topics(self) -> Collection[str]:
        """The topics whose configurations were loaded."""
        with self._lock:
            return list(self._overrides)

    def load(self, topics: Collection[str]) -> None:
        """Read the configurations of topics and apply them. Raises ``SessionExpiredError``."""
        if not topics:
            return
        with self._lock:
            configs = self._store.read_configs([f"topics/{topic}" for topic in topics])
            self._overrides |= {topic: configs.get(f"topics/{topic}", {}) for topic in topics}
            self._apply(topics)

    def set_broker_config(self, config: Mapping[str, str]) -> None:
        """Apply what this broker overrides now; topics that say nothing else follow it."""
        with self._lock:
            self._replication.on_broker_config(config)
            self._defaults = self._static_defaults.with_broker_config(config)
            self._apply(self._overrides)

    def _apply(self, topics: Collection[str]) -> None:
        overrides, defaults = self._overrides, self._defaults
        self._logs.configure({topic: defaults.overridden(overrides[topic]) for topic in topics})
        for topic in topics:
            self._replication.on_topic_config(topic, overrides[topic])
