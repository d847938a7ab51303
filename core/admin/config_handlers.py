"""What a broker does with the configurations of topics, of brokers and of clients.

Mirrors ``kafka.server.ConfigHandler`` and ``DynamicBrokerConfig``. Settings that cannot be used are
left out, and named in the log. One thread calls ``process``; see ``TopicConfigHandler.lock``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Final, Protocol, TypeAlias

from regent.core.admin.config_problems import (
    base_name,
    is_of_keys,
    unusable_in_broker,
    unusable_in_quota,
    unusable_in_topic,
)
from regent.core.admin.topic_settings import UNCLEAN_LEADER_ELECTION, unclean_leader_election
from regent.core.controller.events import (
    ControllerEvent,
    TopicUncleanLeaderElectionEnable,
    UncleanLeaderElectionEnable,
)
from regent.core.log_config import BROKER_NAMES, LogConfig
from regent.core.model import BrokerId
from regent.core.quota.quota_entities import entity_of
from regent.core.replication.replication_quota import THROTTLED_REPLICAS
from regent.core.setting import Setting, SettingValues

log = logging.getLogger(__name__)

DEFAULT_BROKER: Final = "brokers/<default>"
TOPICS: Final = "topics/"

Configs: TypeAlias = Mapping[str, Mapping[str, str]]
"""Overrides, by the paths of their entities below ``/config``."""


class _IgnoredSettings:
    """Logs the settings in ZooKeeper that cannot be used, each value once."""

    def __init__(self) -> None:
        self._known: dict[str, dict[str, str]] = {}

    def usable(
        self, entity: str, config: Mapping[str, str], problems: Mapping[str, str]
    ) -> Mapping[str, str]:
        """Return the overrides that have no problem; log the problems that are new."""
        known = self._known.pop(entity, {})
        for name, problem in problems.items():
            if known.get(name) != config[name]:
                log.warning("%s: the setting %s %s; it is ignored", entity, name, problem)
        if problems:
            self._known[entity] = {name: config[name] for name in problems}
        return {name: value for name, value in config.items() if name not in problems}


# --- brokers --------------------------------------------------------------------------------------


class BrokerReconfigurable(Protocol):
    """A part of a broker that follows settings while the broker runs."""

    @property
    def reconfigurable_configs(self) -> Collection[str]:
        """The settings that it follows, by Kafka's names, also those of single listeners."""
        ...

    def reconfigure(self, old: SettingValues, new: SettingValues) -> None:
        """Follow a change of one of them, or of several.

        Settings of keys (``is_of_keys``) may have been set to the value that they had.
        Both have the values in force of all settings that can change while a broker runs.
        """
        ...


def values_in_force(
    started: SettingValues, config: Mapping[str, str], settings: Mapping[str, Setting]
) -> SettingValues:
    """Return the values that a broker was started with, after the valid overrides in ``config``."""
    changed = {
        name: settings[name].parsed(text)
        for name, text in config.items()
        if name in started and settings[name].text_problem(text) is None
    }
    return {**started, **changed}


class BrokerConfigHandler:
    """Tells the parts of a broker when the values of their settings change.

    ``settings`` are those of brokers by Kafka's names. ``started`` has the values that the broker
    was started with, of the settings that can change while it runs.
    """

    def __init__(
        self,
        broker_id: BrokerId,
        settings: Mapping[str, Setting],
        started: SettingValues,
        parts: Sequence[BrokerReconfigurable],
    ) -> None:
        self.entities = DEFAULT_BROKER, f"brokers/{broker_id}"  # the second counts before the first
        self._settings = settings
        self._started = started
        self._parts = parts
        self._values = started
        self._overrides: dict[str, Mapping[str, str]] = {}
        self._ignored = _IgnoredSettings()

    def process(self, configs: Configs) -> None:
        """Apply the overrides of all brokers and of this one; those of other brokers are ignored.

        An entity that is missing in ``configs`` has not changed.
        """
        for entity in configs.keys() & self.entities:
            is_of_all = entity == DEFAULT_BROKER
            problems = unusable_in_broker(configs[entity], self._settings, of_all=is_of_all)
            self._overrides[entity] = self._ignored.usable(entity, configs[entity], problems)
        of_all, own = (self._overrides.get(entity, {}) for entity in self.entities)
        old, new = self._values, values_in_force(self._started, {**of_all, **own}, self._settings)
        changed = {name for name, value in new.items() if value != old[name]}
        if self.entities[1] in configs:
            changed |= {name for name in own if is_of_keys(name)}
        changed |= set(map(base_name, changed))
        self._values = new
        for part in self._parts:
            if not changed.isdisjoint(part.reconfigurable_configs):
                part.reconfigure(old, new)


# --- topics ---------------------------------------------------------------------------------------


class UncleanElections:
    """Tells the controller of this broker that unclean elections are allowed, or no longer."""

    reconfigurable_configs: Final = frozenset({UNCLEAN_LEADER_ELECTION})

    def __init__(self, tell_controller: Callable[[ControllerEvent], None]) -> None:
        self._tell_controller = tell_controller

    def reconfigure(self, old: SettingValues, new: SettingValues) -> None:
        """Announce the default of topics."""
        del old
        is_enabled = new[UNCLEAN_LEADER_ELECTION]
        log.info("the default of %s is now %s", UNCLEAN_LEADER_ELECTION, is_enabled)
        self._tell_controller(UncleanLeaderElectionEnable(is_enabled))

    def process(self, configs: Configs) -> None:
        """Announce the topics that allow them."""
        for topic, config in configs.items():
            if unclean_leader_election(config):
                self._tell_controller(TopicUncleanLeaderElectionEnable(topic))


class ConfigurableLogs(Protocol):
    """The part of ``storage.log_manager.LogManager`` that is configurable."""

    def configure(self, configs: Mapping[str, LogConfig]) -> None:
        """Set the configurations of topics, for existing and future logs."""
        ...

    def set_defaults(self, defaults: LogConfig) -> None:
        """Set the configuration of other topics and of removed logs."""
        ...


class ThrottledReplication(Protocol):
    """The part of ``core.replication.replication_quota.ReplicationQuotas`` for topics."""

    def on_topic_config(self, topic: str, overrides: Mapping[str, str]) -> None:
        """Apply a topic's overrides: which of its replicas are throttled."""
        ...


class TopicConfigHandler:
    """The overrides of every topic of which this broker has, or had, replicas.

    ``lock`` is held from reading the overrides to the end of ``process``, so that older ones are
    never applied after newer ones.
    """

    reconfigurable_configs: Final = frozenset(BROKER_NAMES.values())

    def __init__(
        self,
        logs: ConfigurableLogs,
        throttles: ThrottledReplication,
        started: SettingValues,
        lock: AbstractContextManager[object],
    ) -> None:
        self.lock = lock
        self._logs = logs
        self._throttles = throttles
        self._defaults = LogConfig.of_broker(started)
        self._overrides: dict[str, Mapping[str, str]] = {}
        self._configs: dict[str, LogConfig] = {}  # what the logs were told
        self._ignored = _IgnoredSettings()

    @property
    def topics(self) -> Collection[str]:
        """The topics whose configurations were processed. Call it with the lock."""
        return self._overrides.keys()

    def process(self, configs: Configs) -> None:
        """Apply the overrides of topics, by their names. Call it with the lock."""
        for topic, config in configs.items():
            overrides = self._ignored.usable(TOPICS + topic, config, unusable_in_topic(config))
            former, self._overrides[topic] = self._overrides.get(topic, {}), overrides
            if any(former.get(name) != overrides.get(name) for name in THROTTLED_REPLICAS):
                self._throttles.on_topic_config(topic, overrides)
        self._configure_logs(configs.keys())

    def reconfigure(self, old: SettingValues, new: SettingValues) -> None:
        """Apply the settings of the broker: topics without their own have them."""
        del old
        with self.lock:
            self._defaults = LogConfig.of_broker(new)
            self._logs.set_defaults(self._defaults)
            self._configure_logs(self._overrides.keys())

    def _configure_logs(self, topics: Collection[str]) -> None:
        """Configure the logs whose configuration in force has changed."""
        configs = {topic: self._defaults.overridden(self._overrides[topic]) for topic in topics}
        changed = {t: config for t, config in configs.items() if self._configs.get(t) != config}
        if changed:
            self._configs |= changed
            self._logs.configure(changed)


# --- clients --------------------------------------------------------------------------------------


class ClientQuotaHandler:
    """The settings of users, client ids and addresses: quotas, and credentials of users.

    ``set_quotas`` gets all when they are read first, and when one changes.
    """

    def __init__(self, set_quotas: Callable[[Configs], None]) -> None:
        self._set_quotas = set_quotas
        self._quotas: Configs = {}
        self._are_set = False
        self._ignored = _IgnoredSettings()

    def process(self, configs: Configs) -> None:
        """Apply the overrides of some entities; those of topics and brokers are ignored."""
        changed = {path: config for path, config in configs.items() if entity_of(path)}
        same = {path: config for path, config in self._quotas.items() if path not in changed}
        self.replace({**same, **{path: config for path, config in changed.items() if config}})

    def replace(self, quotas: Configs) -> None:
        """Apply the overrides of all entities."""
        former, self._quotas = self._quotas, quotas
        if quotas == former and self._are_set:
            return
        self._are_set = True
        for path in former.keys() | quotas.keys():
            config = quotas.get(path, {})
            self._ignored.usable(path, config, unusable_in_quota(path, config))
        self._set_quotas(quotas)
