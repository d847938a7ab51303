"""A broker's reads of ``/config``: implements ``core.admin.config_changes.ConfigStore``."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence

from regent.core.admin.config_changes import ConfigChange
from regent.core.errors import BadDataError
from regent.core.quota.quota_entities import CLIENTS, IPS, USERS
from regent.zk.client.operations import ANY_VERSION, Delete, UnreadableZnode, Znode
from regent.zk.codecs.admin_znodes import (
    ConfigEntityChangeNotificationSequenceZNode,
    ConfigEntityChangeNotificationZNode,
    ConfigEntityZNode,
    sequence_number,
)
from regent.zk.stores.fenced_writes import write_unfenced
from regent.zk.stores.watching_store import WatchingStore

log = logging.getLogger(__name__)

_CHANGES = ConfigEntityChangeNotificationZNode.PATH


class ZkConfigStore(WatchingStore):
    """Implements ``core.admin.config_changes.ConfigStore``."""

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
        paths = [ConfigEntityZNode.path(*entity.split("/", 1)) for entity in entities]
        nodes = self._zookeeper.get_many(paths)
        configs: dict[str, Mapping[str, str]] = {}
        for entity, path, node in zip(entities, paths, nodes, strict=True):
            if node is None:
                continue
            try:
                configs[entity] = ConfigEntityZNode.decode(node.data, path)
            except BadDataError as error:
                log.error("the configuration of %s is ignored: %s", entity, error)
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

    def delete_changes(self, names: Collection[str]) -> None:
        """Delete notifications; absent ones are skipped."""
        write_unfenced(
            self._zookeeper, [[Delete(f"{_CHANGES}/{name}", ANY_VERSION)] for name in names]
        )


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
