"""Reads and changes the overrides of topics, brokers and clients, for administrators.

Mirrors ``kafka.zk.AdminZkClient.changeTopicConfig``, except that concurrent changes are not undone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from regent.core.admin.broker_config_manager import ChangeConfig
from regent.core.errors import BadDataError, RegentError
from regent.core.model import BrokerId
from regent.zk.client.operations import (
    ANY_VERSION,
    MAX_ATTEMPTS,
    Check,
    Committed,
    ConflictError,
    ConnectionLossError,
    Create,
    Operation,
    SetData,
    Znode,
)
from regent.zk.client.zookeeper import ZooKeeper
from regent.zk.codecs.admin_znodes import (
    DEFAULT_ENTITY_NAME,
    ConfigEntityChangeNotificationSequenceZNode,
    ConfigEntityZNode,
)
from regent.zk.codecs.znodes import TopicZNode

BROKERS = "brokers"
TOPICS = "topics"


class UnknownTopicError(RegentError):
    """The topic does not exist."""


class ZkEntityConfigs:
    """The nodes below ``/config`` over one ZooKeeper session."""

    def __init__(self, zookeeper: ZooKeeper) -> None:
        self._zookeeper = zookeeper

    def read_topic_configs(
        self, topics: Collection[str]
    ) -> dict[str, dict[str, str] | BadDataError]:
        """Read the overrides of each topic; empty if none was ever set."""
        return self._read_configs(TOPICS, topics)

    def read_broker_configs(
        self, broker_ids: Iterable[BrokerId]
    ) -> dict[str, dict[str, str] | BadDataError]:
        """Read the dynamic settings of brokers by id, and of all brokers by ``<default>``."""
        return self._read_configs(BROKERS, [DEFAULT_ENTITY_NAME, *map(str, broker_ids)])

    def _read_configs(
        self, entity_type: str, names: Collection[str]
    ) -> dict[str, dict[str, str] | BadDataError]:
        paths = [ConfigEntityZNode.path(entity_type, name) for name in names]
        nodes = self._zookeeper.get_many(paths)
        configs: dict[str, dict[str, str] | BadDataError] = {}
        for name, path, node in zip(names, paths, nodes, strict=True):
            try:
                configs[name] = {} if node is None else ConfigEntityZNode.decode(node.data, path)
            except BadDataError as error:
                configs[name] = error.with_traceback(None)
        return configs

    def alter_topic_config(self, topic: str, changes: Mapping[str, str | None]) -> dict[str, str]:
        """Set some overrides of a topic, drop those that are None; return its new overrides.

        The write is conditional on the version that was read, in one transaction with the
        notification to brokers. After a lost answer it is repeated, which is harmless: brokers get
        a second notification.
        Raises ``UnknownTopicError``, ``BadDataError`` and ``ConflictError``.
        """
        path = ConfigEntityZNode.path(TOPICS, topic)
        for _ in range(MAX_ATTEMPTS):
            topic_node, node = self._zookeeper.get_many([TopicZNode.path(topic), path])
            if topic_node is None:
                raise UnknownTopicError(f"topic {topic} does not exist")
            old = _overrides(node, path)
            config = _merged(old, changes)
            operations = [
                Check(TopicZNode.path(topic), ANY_VERSION),
                *_write(f"{TOPICS}/{topic}", config, node),
            ]
            try:
                if isinstance(self._zookeeper.multi(operations), Committed):
                    return config
            except ConnectionLossError:
                self._zookeeper.wait_connected()
        raise ConflictError(
            f"topic {topic}: other clients keep changing its configuration; try again"
        )

    def change_config(self, entity: str, change: ChangeConfig) -> dict[str, str]:
        """Change the overrides of ``brokers/N``, ``users/U/clients/C`` or the like; return the new.

        ``change`` decides for the overrides that were read, and again if another client has changed
        them before they are written. Overrides that do not change are not written. Raises what
        ``change`` raises, ``BadDataError`` and ``ConflictError``.
        """
        path = f"/config/{entity}"
        for _ in range(MAX_ATTEMPTS):
            (node,) = self._zookeeper.get_many([path])
            old = _overrides(node, path)
            config = _merged(old, change(old))
            if config == old:
                return config
            write = _write(entity, config, node)
            if node is None:
                write = [*self._missing_parents(entity), *write]
            try:
                if isinstance(self._zookeeper.multi(write), Committed):
                    return config
            except ConnectionLossError:
                self._zookeeper.wait_connected()
        raise ConflictError(f"{entity}: other clients keep changing its configuration; try again")

    def _missing_parents(self, entity: str) -> list[Operation]:
        """Return the creations of the nodes of a user above the entity; they have no overrides."""
        names = entity.split("/")
        paths = [f"/config/{'/'.join(names[:end])}" for end in range(2, len(names))]
        nodes = self._zookeeper.get_many(paths) if paths else []
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
