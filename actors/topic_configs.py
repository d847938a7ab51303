"""Applies the configurations of topics and of this broker to logs and replication."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from typing import Protocol

from regent.core.admin.config_changes import ConfigStore, IgnoredSettings
from regent.core.admin.config_problems import unusable_in_topic
from regent.core.log_config import LogConfig


class ConfigurableLogs(Protocol):
    """The part of ``storage.log_manager.LogManager`` that is configurable."""

    def configure(self, configs: Mapping[str, LogConfig]) -> None:
        """Set the configurations of topics, for existing and future logs."""
        ...

    def set_defaults(self, defaults: LogConfig) -> None:
        """Set the configuration of other topics and of removed logs."""
        ...


class ThrottledReplication(Protocol):
    """The part of ``core.replication.replica_manager.ReplicaManager`` that is configurable."""

    def on_broker_config(self, overrides: Mapping[str, str]) -> None:
        """Apply this broker's overrides: its rates of throttled replication."""
        ...

    def on_topic_config(self, topic: str, overrides: Mapping[str, str]) -> None:
        """Apply a topic's overrides: its throttled replicas."""
        ...


class TopicConfigs:
    """The overrides of every topic of which this broker has, or had, replicas. Thread-safe.

    Those that cannot be used are left out, and named in the log.
    """

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
        self._ignored = IgnoredSettings()
        # Held from reading to applying, so that older values are never applied after newer ones.
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
            for topic in topics:
                config = configs.get(f"topics/{topic}", {})
                unusable = unusable_in_topic(config)
                self._ignored.tell(f"topics/{topic}", config, unusable)
                self._overrides[topic] = {n: v for n, v in config.items() if n not in unusable}
            self._apply(topics)

    def set_broker_config(self, config: Mapping[str, str]) -> None:
        """Apply this broker's overrides; they are the defaults of topics without their own."""
        with self._lock:
            self._replication.on_broker_config(config)
            self._defaults = self._static_defaults.with_broker_config(config)
            self._logs.set_defaults(self._defaults)
            self._apply(self._overrides)

    def _apply(self, topics: Collection[str]) -> None:
        overrides, defaults = self._overrides, self._defaults
        self._logs.configure({topic: defaults.overridden(overrides[topic]) for topic in topics})
        for topic in topics:
            self._replication.on_topic_config(topic, overrides[topic])
