"""Configuration that changes while a broker runs.

Mirrors ``kafka.common.ZkNodeChangeNotificationListener`` and ``kafka.server.ConfigHandler``. The
controller gets the topics that allow unclean elections; logs get the overrides of their topic and
broker; the listener gets the quotas of clients. A notification only names an entity; the
configuration is read from the entity's znode.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

from regent.core.admin.config_problems import unusable_in_broker, unusable_in_quota
from regent.core.admin.topic_settings import UNCLEAN_LEADER_ELECTION, unclean_leader_election
from regent.core.controller.events import (
    ControllerEvent,
    TopicUncleanLeaderElectionEnable,
    UncleanLeaderElectionEnable,
)
from regent.core.model import BrokerId
from regent.core.quota.quota_entities import entity_of
from regent.core.setting import Setting

log = logging.getLogger(__name__)

CHANGE_EXPIRATION_MS = 15 * 60 * 1000
DEFAULT_BROKER = "brokers/<default>"
_TOPICS = "topics/"


class ConfigChange(NamedTuple):
    """A notification; ``entity`` is ``<type>/<name>``, None for one that cannot be decoded."""

    name: str
    sequence: int
    entity: str | None
    created_ms: int | None  # wall clock of the ZooKeeper server; None: it cannot be read


class ConfigNews(NamedTuple):
    """What has changed since the configurations were last read."""

    events: Sequence[ControllerEvent] = ()  # for the controller
    topics: Sequence[str] = ()  # their configurations may have changed
    has_missed_some: bool = False  # notifications; the configuration of any topic may differ
    broker_config: Mapping[str, str] | None = None  # all of this broker's; None: unchanged
    client_quotas: Mapping[str, Mapping[str, str]] | None = None  # all, by path; None: unchanged


class ConfigStore(Protocol):
    """``/config`` as a broker sees it."""

    def sync(self) -> None:
        """Make later reads see every change that was acknowledged before this call."""
        ...

    def read_changes(self) -> Sequence[ConfigChange]:
        """Read all notifications, oldest first, and watch for new ones."""
        ...

    def read_configs(self, entities: Collection[str]) -> Mapping[str, Mapping[str, str]]:
        """Read the overrides of entities. Entities without a valid configuration are omitted."""
        ...

    def read_client_quotas(self) -> Mapping[str, Mapping[str, str]]:
        """Read the overrides of all users, client ids and addresses, as ``read_configs``."""
        ...

    def delete_changes(self, names: Collection[str]) -> None:
        """Delete notifications. Absent ones are ignored."""
        ...


class IgnoredSettings:
    """Logs the settings in ZooKeeper that cannot be used, each value once."""

    def __init__(self) -> None:
        self._known: dict[str, dict[str, str]] = {}

    def tell(self, entity: str, config: Mapping[str, str], problems: Mapping[str, str]) -> None:
        """Log what is new in ``problems``, by the names of settings of an entity (``topics/T``)."""
        known = self._known.pop(entity, {})
        now = {name: config[name] for name in problems}
        for name, problem in problems.items():
            if known.get(name) != config[name]:
                log.warning("%s: the setting %s %s; it is ignored", entity, name, problem)
        if now:
            self._known[entity] = now


class ConfigChanges:
    """Reads each change once. A broker that starts reads all of them.

    Notifications are numbered without gaps, and the newest is never deleted. A broker that was
    disconnected while others were deleted sees from the numbers that it missed some.
    """

    def __init__(
        self,
        broker_id: BrokerId,
        store: ConfigStore,
        *,
        unclean_leader_election_enable: bool,
        settings: Mapping[str, Setting] | None = None,
    ) -> None:
        """``settings`` are those of brokers by Kafka's names; others are not checked."""
        self._own_entity = f"brokers/{broker_id}"
        self._store = store
        self._settings = settings or {}
        self._static_default = unclean_leader_election_enable
        self._default = unclean_leader_election_enable
        self._last_sequence = -1
        self._broker_configs: dict[str, Mapping[str, str]] = {}
        self._client_quotas: Mapping[str, Mapping[str, str]] = {}
        self._is_first = True
        self._ignored = IgnoredSettings()

    def catch_up(self, *, sync: bool = False) -> ConfigNews:
        """Read what changed since the last call, and delete old notifications.

        ``sync``: include every change that was acknowledged before this call. A call because of a
        watch needs no sync: the server that fired the watch has the change.
        Raises ``SessionExpiredError``; the next call then reads what this one did not.
        """
        if sync:
            self._store.sync()
        changes = self._store.read_changes()
        news = [c for c in changes if c.sequence > self._last_sequence]
        entities = {c.entity for c in news if c.entity is not None}
        newest = max((c.sequence for c in changes), default=self._last_sequence)
        has_missed_some = len(news) < newest - self._last_sequence and not self._is_first
        if self._is_first or has_missed_some:
            entities |= {DEFAULT_BROKER, self._own_entity}
        configs = self._store.read_configs(sorted(entities)) if entities else {}
        is_complete = self._is_first or has_missed_some
        quotas = self._read_quotas(entities, configs, read_all=is_complete)
        self._purge(changes)
        # Nothing is raised from here on, so every change that is marked as read is returned.
        self._is_first = False
        self._last_sequence = max(self._last_sequence, newest)
        ignored = [c.name for c in news if c.entity is None]
        if ignored:
            log.warning(
                "%d notifications of changed configurations cannot be decoded, the first: %s",
                len(ignored),
                ignored[0],
            )
        before = self._broker_config()
        for entity in (DEFAULT_BROKER, self._own_entity):
            if entity in entities:
                self._broker_configs[entity] = self._usable(entity, configs.get(entity, {}))
        now = self._broker_config()
        topics = [e.removeprefix(_TOPICS) for e in sorted(entities) if e.startswith(_TOPICS)]
        unclean = [t for t in topics if unclean_leader_election(configs.get(_TOPICS + t, {}))]
        events = [*self._default_of_elections(now), *map(TopicUncleanLeaderElectionEnable, unclean)]
        self._client_quotas, former_quotas = quotas, self._client_quotas
        for path in former_quotas.keys() | quotas.keys() if quotas != former_quotas else ():
            config = quotas.get(path, {})
            self._ignored.tell(path, config, unusable_in_quota(path, config))
        return ConfigNews(
            events,
            topics,
            has_missed_some,
            None if now == before else now,
            None if quotas == former_quotas else quotas,
        )

    def _read_quotas(
        self,
        entities: Collection[str],
        configs: Mapping[str, Mapping[str, str]],
        *,
        read_all: bool,
    ) -> Mapping[str, Mapping[str, str]]:
        """Return all quotas, after the changes of ``entities``, whose ``configs`` were read."""
        if read_all:
            return self._store.read_client_quotas()
        changed = frozenset(filter(entity_of, entities))
        if not changed:
            return self._client_quotas
        same = {path: row for path, row in self._client_quotas.items() if path not in changed}
        return {**same, **{path: configs[path] for path in changed & configs.keys()}}

    def _usable(self, entity: str, config: Mapping[str, str]) -> Mapping[str, str]:
        """Return the settings of a broker without those that it ignores."""
        of_all = entity == DEFAULT_BROKER
        unusable = unusable_in_broker(config, self._settings, of_all=of_all)
        self._ignored.tell(entity, config, unusable)
        return {name: value for name, value in config.items() if name not in unusable}

    def _broker_config(self) -> Mapping[str, str]:
        return {
            **self._broker_configs.get(DEFAULT_BROKER, {}),
            **self._broker_configs.get(self._own_entity, {}),
        }

    def _default_of_elections(self, broker_config: Mapping[str, str]) -> list[ControllerEvent]:
        before = self._default
        dynamic = unclean_leader_election(broker_config)
        self._default = self._static_default if dynamic is None else dynamic
        if self._default == before:
            return []
        log.info("the default of %s is now %s", UNCLEAN_LEADER_ELECTION, self._default)
        return [UncleanLeaderElectionEnable(self._default)]

    def _purge(self, changes: Sequence[ConfigChange]) -> None:
        """Delete notifications much older than the newest, by ZooKeeper's clock.

        The clock of this broker may be far ahead. With it, new notifications would be deleted
        before other brokers have read them.
        """
        created_ms = {c.name: c.created_ms for c in changes if c.created_ms is not None}
        newest_ms = max(created_ms.values(), default=0)
        expired = [n for n, ms in created_ms.items() if newest_ms - ms > CHANGE_EXPIRATION_MS]
        if expired:
            self._store.delete_changes(expired)
