"""Follows the configurations in ZooKeeper while a broker runs.

Mirrors ``kafka.common.ZkNodeChangeNotificationListener`` and ``kafka.server.ZkConfigManager``. A
notification only names an entity; the configuration is read from the znode of the entity.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from regent.core.admin.config_handlers import (
    TOPICS,
    BrokerConfigHandler,
    BrokerReconfigurable,
    ClientQuotaHandler,
    Configs,
    TopicConfigHandler,
    UncleanElections,
)
from regent.core.controller.events import ControllerEvent
from regent.core.errors import BadDataError
from regent.core.model import BrokerId
from regent.core.setting import Setting, SettingValues

log = logging.getLogger(__name__)

CHANGE_EXPIRATION_MS = 15 * 60 * 1000
DELETE_NOTHING: Final = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
"""What holds for a topic whose overrides could never be read: by the defaults of brokers records
could be deleted that it keeps."""


class ConfigChange(NamedTuple):
    """A notification; ``entity`` is ``<type>/<name>``, None for one that cannot be decoded."""

    name: str
    sequence: int
    entity: str | None
    created_ms: int | None  # wall clock of the ZooKeeper server; None: it cannot be read


class ConfigStore(Protocol):
    """``/config`` as a broker sees it."""

    def sync(self) -> None:
        """Make later reads see every change that was acknowledged before this call."""
        ...

    def read_changes(self) -> Sequence[ConfigChange]:
        """Read all notifications, oldest first, and watch for new ones."""
        ...

    def read_each(
        self, entities: Collection[str]
    ) -> Mapping[str, Mapping[str, str] | BadDataError]:
        """Read the overrides of each entity; empty if none was ever set."""
        ...

    def read_client_quotas(self) -> Configs:
        """Read the overrides of all users, client ids and addresses that can be read."""
        ...

    def delete_changes(self, names: Collection[str]) -> None:
        """Delete notifications. Absent ones are ignored."""
        ...


class DynamicConfigManager:
    """Reads each change once, and passes it to the handlers.

    Notifications are numbered without gaps, and the newest is never deleted. A broker that was
    disconnected while others were deleted sees from the numbers that it missed some: it reads all.
    One thread calls ``catch_up``, any thread ``load``.

    What was known of an entity holds as long as its configuration cannot be read, because it is
    damaged or an ACL hides it: ``catch_up`` reads it again each time.

    ``settings`` are those of brokers by Kafka's names. ``started`` has the values that this broker
    was started with, of the settings that can change while it runs. ``parts`` follow them, as the
    controller and ``topics`` do.
    """

    def __init__(
        self,
        broker_id: BrokerId,
        store: ConfigStore,
        settings: Mapping[str, Setting],
        started: SettingValues,
        topics: TopicConfigHandler,
        parts: Sequence[BrokerReconfigurable],
        *,
        tell_controller: Callable[[ControllerEvent], None],
        set_client_quotas: Callable[[Configs], None],
    ) -> None:
        self._store = store
        self._topics = topics
        self._elections = elections = UncleanElections(tell_controller)
        self._quotas = ClientQuotaHandler(set_client_quotas)
        parts = (elections, topics, *parts)
        self._brokers = BrokerConfigHandler(broker_id, settings, started, parts)
        self._last_sequence = -1
        self._is_first = True
        self.unreadable: frozenset[str] = frozenset()
        """The entities whose configurations could not be read. Call ``catch_up`` in a while."""

    def load(self, topics: Collection[str]) -> None:
        """Read the configurations of topics and apply them. Raises ``SessionExpiredError``."""
        if topics:
            with self._topics.lock:
                found = self._store.read_each([TOPICS + topic for topic in topics])
                self._topics.process(_of_topics(self._readable(found)))

    def catch_up(self, *, sync: bool = False) -> None:
        """Apply what changed since the last call, and delete old notifications.

        ``sync``: include every change that was acknowledged before this call. A call because of a
        watch needs no sync: the server that fired the watch has the change.
        Raises ``SessionExpiredError``; the next call then applies what this one did not.
        """
        if sync:
            self._store.sync()
        changes = self._store.read_changes()
        news = [change for change in changes if change.sequence > self._last_sequence]
        newest = max((change.sequence for change in changes), default=self._last_sequence)
        has_missed_some = len(news) < newest - self._last_sequence and not self._is_first
        reads_all = self._is_first or has_missed_some
        changed = {change.entity for change in news if change.entity is not None}
        with self._topics.lock:
            read = changed | self.unreadable
            entities = set(read)
            entities |= set(self._brokers.entities if reads_all else ())
            if has_missed_some:
                entities |= {TOPICS + topic for topic in self._topics.topics}
            found = self._store.read_each(sorted(entities)) if entities else {}
            quotas = self._store.read_client_quotas() if reads_all else None
            self._purge(changes)
            # Nothing is raised from here on, so every change that is marked as read is applied.
            self._is_first = False
            self._last_sequence = max(self._last_sequence, newest)
            _log_undecodable(news)
            configs = self._readable(found)
            self._topics.process(_of_topics(configs))
        self._brokers.process(configs)
        self._elections.process(_of_topics({e: c for e, c in configs.items() if e in read}))
        if quotas is None:
            self._quotas.process(configs)
        else:
            self._quotas.replace(quotas)

    def _readable(self, found: Mapping[str, Mapping[str, str] | BadDataError]) -> Configs:
        """Return what is to be applied. Call it with the lock of the topics."""
        configs = {e: c for e, c in found.items() if not isinstance(c, BadDataError)}
        unreadable = found.keys() - configs.keys()
        for entity in sorted(unreadable - self.unreadable):
            log.error("the configuration of %s cannot be read: %s", entity, found[entity])
        self.unreadable = self.unreadable - configs.keys() | unreadable
        known = self._topics.topics
        unknown = [e for e in unreadable if e.startswith(TOPICS) and e[len(TOPICS) :] not in known]
        return configs | dict.fromkeys(unknown, DELETE_NOTHING)

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


def _of_topics(configs: Configs) -> Configs:
    return {e.removeprefix(TOPICS): c for e, c in configs.items() if e.startswith(TOPICS)}


def _log_undecodable(changes: Sequence[ConfigChange]) -> None:
    ignored = [change.name for change in changes if change.entity is None]
    if ignored:
        log.warning(
            "%d notifications of changed configurations cannot be decoded, the first: %s",
            len(ignored),
            ignored[0],
        )
