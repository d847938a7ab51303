"""The settings that topics and brokers override, as administrators read and change them.

Mirrors ``kafka.zk.AdminZkClient.changeTopicConfig``, except that nobody else's change is undone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

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
    ZooKeeper,
)
from regent.zk.codecs.admin_znodes import (
    DEFAULT_ENTITY_NAME,
    ConfigEntityChangeNotificationSequenceZNode,
    ConfigEntityZNode,
)
from regent.zk.codecs.znodes import TopicZNode

BROKERS = "brokers"
TOPICS = "topics"


class UnknownTopicError(RegentError):
    """There is no topic of this name."""


class ZkEntityConfigs:
    """``/config/topics`` and ``/config/brokers`` over one ZooKeeper session."""

    def __init__(self, zookeeper: ZooKeeper) -> None:
        self._zookeeper = zookeeper

    def read_topic_configs(
        self, topics: Collection[str]
    ) -> dict[str, dict[str, str] | BadDataError]:
        """Read what each topic overrides; empty where nothing was ever set."""
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
                configs[name] = error
        return configs

    def alter_topic_config(self, topic: str, changes: Mapping[str, str | None]) -> dict[str, str]:
        """Set some overrides of a topic, drop those that are None; return what it has then.

        Written on condition of what was read, in one transaction with the notification that makes
        brokers read it. After a lost answer it is written again: brokers only hear of it twice.
        Raises ``UnknownTopicError``, ``BadDataError`` and ``ConflictError``.
        """
        path = ConfigEntityZNode.path(TOPICS, topic)
        change = ConfigEntityChangeNotificationSequenceZNode
        for _ in range(MAX_ATTEMPTS):
            topic_node, node = self._zookeeper.get_many([TopicZNode.path(topic), path])
            if topic_node is None:
                raise UnknownTopicError(f"topic {topic} does not exist")
            old = {} if node is None else ConfigEntityZNode.decode(node.data, path)
            merged: dict[str, str | None] = {**old, **changes}
            config = {name: value for name, value in merged.items() if value is not None}
            data = ConfigEntityZNode.encode(config)
            operations: list[Operation] = [
                Check(TopicZNode.path(topic), ANY_VERSION),
                Create(path, data) if node is None else SetData(path, data, node.stat.version),
                Create(change.PATH_PREFIX, change.encode(f"{TOPICS}/{topic}"), sequential=True),
            ]
            try:
                if isinstance(self._zookeeper.multi(operations), Committed):
                    return config
            except ConnectionLossError:
                self._zookeeper.wait_connected()
        raise ConflictError(f"topic {topic}: others keep changing its configuration; try again")
