"""The overrides of topics, brokers and clients in ``/config``.

Brokers read them and follow the notifications; administrators read and change them. Mirrors
``kafka.zk.AdminZkClient.changeTopicConfig``, except that concurrent changes are not undone.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence

from regent.core.admin.config_alterations import ChangeConfig
from regent.core.admin.config_problems import is_of_keys
from regent.core.admin.dynamic_config_manager import ConfigChange
from regent.core.errors import BadDataError, RegentError
from regent.core.model import BrokerId
from regent.core.quota.quota_entities import CLIENTS, IPS, USERS
from regent.zk.client.operations import (
    ANY_VERSION,
    MAX_ATTEMPTS,
    Check,
    Committed,
    ConflictError,
    ConnectionLossError,
    Create,
    Delete,
    Operation,
    SetData,
    UnreadableZnode,
    Znode,
)
from regent.zk.codecs.admin_znodes import DEFAULT_ENTITY_NAME, sequence_number
from regent.zk.stores.fenced_writes import change_znodes, write_unfenced
from regent.zk.stores.znode_store import WatchingStore
from regent.zk.znodes import (
    ConfigEntityChangeNotificationSequenceZNode,
    ConfigEntityChangeNotificationZNode,
    ConfigEntityZNode,
    TopicZNode,
)

log = logging.getLogger(__name__)

BROKERS = "brokers"
TOPICS = "topics"
_CHANGES = ConfigEntityChangeNotificationZNode.PATH


class UnknownTopicError(RegentError):
    """The topic does not exist."""


class ZkConfigStore(WatchingStore):
    """The znodes below ``/config`` over one ZooKeeper session.

    An entity is ``topics/T``, ``brokers/N``, ``users/U/clients/C`` or the like. Implements
    ``core.admin.dynamic_config_manager.ConfigStore``, ``BrokerConfigStore`` and
    ``TopicConfigStore``.
    """

    def sync(self) -> None:
        """Make later reads see every change that was acknowledged before this call."""
        self._zookeeper.sync()

    def read_changes(self) -> Sequence[ConfigChange]:
        """Read all notifications, oldest first, and watch for new ones."""
        names = self._watch_requests(_CHANGES)
        nodes = self._zookeeper.get_many([f"{_CHANGES}/{name}" for name in names])
        changes = [
            _change(name, node)
            for name, node in zip(names, nodes, strict=True)
            if node is not None  # another broker has deleted it
        ]
        return sorted(changes, key=lambda change: change.sequence)

    def read_configs(self, entities: Collection[str]) -> Mapping[str, Mapping[str, str]]:
        """Read the overrides of entities; one without overrides, or with bad data, is missing."""
        configs: dict[str, Mapping[str, str]] = {}
        for entity, found in self.read_each(entities).items():
            if isinstance(found, BadDataError):
                log.error("the configuration of %s cannot be read: %s", entity, found)
            elif found:
                configs[entity] = found
        return configs

    def read_each(
        self, entities: Collection[str]
    ) -> Mapping[str, Mapping[str, str] | BadDataError]:
        """Read the overrides of each entity; empty if none was ever set."""
        return self._read(entities)

    def read_topic_configs(
        self, topics: Collection[str]
    ) -> dict[str, dict[str, str] | BadDataError]:
        """Read the overrides of each topic; empty if none was ever set."""
        return self._read_named(TOPICS, topics)

    def read_all_topic_configs(self) -> Mapping[str, Mapping[str, str]]:
        """Read the overrides of all topics that have some, as ``read_configs``."""
        names = self._zookeeper.children(f"/config/{TOPICS}") or ()
        return self.read_configs([f"{TOPICS}/{name}" for name in names])

    def read_broker_configs(
        self, broker_ids: Iterable[BrokerId]
    ) -> dict[str, dict[str, str] | BadDataError]:
        """Read the dynamic settings of brokers by id, and of all brokers by ``<default>``."""
        return self._read_named(BROKERS, [DEFAULT_ENTITY_NAME, *map(str, broker_ids)])

    def _read_named(
        self, entity_type: str, names: Collection[str]
    ) -> dict[str, dict[str, str] | BadDataError]:
        found = self._read([f"{entity_type}/{name}" for name in names])
        return dict(zip(names, found.values(), strict=True))

    def _read(self, entities: Collection[str]) -> dict[str, dict[str, str] | BadDataError]:
        paths = [f"/config/{entity}" for entity in entities]
        nodes = self._zookeeper.get_many(paths)
        configs: dict[str, dict[str, str] | BadDataError] = {}
        for entity, path, node in zip(entities, paths, nodes, strict=True):
            try:
                configs[entity] = {} if node is None else ConfigEntityZNode.decode(node.data, path)
            except BadDataError as error:
                configs[entity] = error.with_traceback(None)
        return configs

    def read_client_quotas(self) -> Mapping[str, Mapping[str, str]]:
        """Read the overrides of all users, client ids and addresses, as ``read_configs``."""
        lists = self._zookeeper.children_many([f"/config/{kind}" for kind in (USERS, CLIENTS, IPS)])
        users, clients, ips = ([*(names or ())] for names in lists)
        entities = [f"{USERS}/{user}" for user in users]
        pairs = self._zookeeper.children_many([f"/config/{user}/{CLIENTS}" for user in entities])
        entities += [
            f"{USERS}/{user}/{CLIENTS}/{client_id}"
            for user, names in zip(users, pairs, strict=True)
            for client_id in names or ()
        ]
        entities += [f"{CLIENTS}/{client_id}" for client_id in clients]
        entities += [f"{IPS}/{ip}" for ip in ips]
        return self.read_configs(entities) if entities else {}

    def check_listed(self) -> None:
        """Raise ``UnreadableError`` if users, client ids or addresses may not be listed.

        ``read_client_quotas`` finds none then.
        """
        for node in self._zookeeper.get_many([f"/config/{kind}" for kind in (USERS, CLIENTS, IPS)]):
            _ = b"" if node is None else node.data

    def delete_changes(self, names: Collection[str]) -> None:
        """Delete notifications; absent ones are skipped."""
        write_unfenced(
            self._zookeeper, [[Delete(f"{_CHANGES}/{name}", ANY_VERSION)] for name in names]
        )

    def alter_topic_config(self, topic: str, changes: Mapping[str, str | None]) -> dict[str, str]:
        """Set some overrides of a topic, drop those that are None; return its new overrides.

        The write is conditional on the version that was read, in one transaction with the
        notification to brokers. After a lost answer it is repeated, which is harmless: brokers get
        a second notification.
        Raises ``UnknownTopicError``, ``BadDataError`` and ``ConflictError``.
        """
        topic_path, path = TopicZNode.path(topic), ConfigEntityZNode.path(TOPICS, topic)

        def decide() -> tuple[dict[str, str], list[Operation]]:
            topic_node, node = self._zookeeper.get_many([topic_path, path])
            if topic_node is None:
                raise UnknownTopicError(f"topic {topic} does not exist")
            config = _merged(_overrides(node, path), changes)
            write = _write(f"{TOPICS}/{topic}", config, node)
            return config, [Check(topic_path, ANY_VERSION), *write]

        contested = f"topic {topic}: other clients keep changing its configuration"
        return change_znodes(self._zookeeper, decide, contested)

    def change_config(self, entity: str, change: ChangeConfig) -> dict[str, str]:
        """Change the overrides of ``brokers/N``, ``users/U/clients/C`` or the like; return the new.

        ``change`` decides for the overrides that were read, and again if another client has changed
        them before they are written. Overrides that do not change are not written, except those of
        keys: brokers then read the files again. Raises what ``change`` raises, ``BadDataError`` and
        ``ConflictError``.
        """
        path = f"/config/{entity}"

        def decide() -> tuple[dict[str, str], list[Operation]]:
            (node,) = self._zookeeper.get_many([path])
            old = _overrides(node, path)
            changes = change(old)
            config = _merged(old, changes)
            if config == old and not any(map(is_of_keys, changes)):
                return config, []
            parents = self._missing_parents(entity) if node is None else []
            return config, [*parents, *_write(entity, config, node)]

        contested = f"{entity}: other clients keep changing its configuration"
        return change_znodes(self._zookeeper, decide, contested)

    def _missing_parents(self, entity: str) -> list[Operation]:
        """Return the creations of the nodes above the entity; they have no overrides.

        Before a broker has run for the first time there are none at all.
        """
        names = entity.split("/")
        paths = ["/config", _CHANGES]
        paths += [f"/config/{'/'.join(names[:end])}" for end in range(1, len(names))]
        nodes = self._zookeeper.get_many(paths)
        return [Create(p, b"") for p, node in zip(paths, nodes, strict=True) if node is None]

    def alter_configs(self, changes: Mapping[str, Mapping[str, str | None]]) -> set[str]:
        """Change overrides of many entities at once; return the entities that were changed.

        An entity is ``topics/T`` or ``brokers/N``; a value of None drops the override. Overrides
        that do not change are not written. Raises ``BadDataError`` before anything is written, and
        ``ConflictError``.
        """
        changed: set[str] = set()
        remaining = set(changes)
        for _ in range(MAX_ATTEMPTS):
            writes = self._changes({entity: changes[entity] for entity in sorted(remaining)})
            changed |= writes.keys()
            remaining = set(writes)
            if not writes:
                return changed
            try:
                results = self._zookeeper.multi_many(list(writes.values()))
            except ConnectionLossError:
                self._zookeeper.wait_connected()
                continue
            written = zip(writes, results, strict=True)
            remaining -= {entity for entity, result in written if isinstance(result, Committed)}
            if not remaining:
                return changed
        raise ConflictError(
            f"{', '.join(sorted(remaining))}:"
            " other clients keep changing the configuration; try again"
        )

    def _changes(
        self, changes: Mapping[str, Mapping[str, str | None]]
    ) -> dict[str, list[Operation]]:
        """Return the transaction of each entity whose overrides must change."""
        paths = [f"/config/{entity}" for entity in changes]
        writes = {}
        nodes = self._zookeeper.get_many(paths)
        for (entity, wanted), path, node in zip(changes.items(), paths, nodes, strict=True):
            old = _overrides(node, path)
            config = _merged(old, wanted)
            if config != old:
                writes[entity] = _write(entity, config, node)
        return writes


def _change(name: str, node: Znode) -> ConfigChange:
    entity: str | None = None
    sequence = -1
    if isinstance(node, UnreadableZnode):
        return ConfigChange(name, sequence, entity, created_ms=None)
    try:
        sequence = sequence_number(name)
        entity = ConfigEntityChangeNotificationSequenceZNode.decode(node.data)
        if "/" not in entity:
            raise BadDataError(f"{_CHANGES}/{name}: {entity!r} is not <type>/<name>")
    except BadDataError:
        entity = None
    return ConfigChange(name, sequence, entity, node.stat.ctime_ms)


def _overrides(node: Znode | None, path: str) -> dict[str, str]:
    return {} if node is None else ConfigEntityZNode.decode(node.data, path)


def _merged(old: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    merged: dict[str, str | None] = {**old, **changes}
    return {name: value for name, value in merged.items() if value is not None}


def _write(entity: str, config: Mapping[str, str], node: Znode | None) -> list[Operation]:
    """Return the conditional write of an entity's overrides and the notification of brokers."""
    path, data = f"/config/{entity}", ConfigEntityZNode.encode(config)
    change = ConfigEntityChangeNotificationSequenceZNode
    return [
        Create(path, data) if node is None else SetData(path, data, node.stat.version),
        Create(change.PATH_PREFIX, change.encode(entity), sequential=True),
    ]
