"""The ACLs of resources in ``/kafka-acl`` and ``/kafka-acl-extended``.

Mirrors ``kafka.zk.ZkAclStore``, ``ZkAclChangeStore`` and the ACL methods of ``KafkaZkClient``,
except that ACLs and the notification about them are written in one transaction.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

from regent.core.errors import BadDataError
from regent.core.security.acl_cache import AclChange, ChangeEntries
from regent.core.security.acls import (
    AccessControlEntry,
    PatternType,
    ResourcePattern,
    ResourceType,
)
from regent.core.security.authorizer import Entries
from regent.zk.client.operations import (
    ANY_VERSION,
    Create,
    Delete,
    Operation,
    SetData,
    UnreadableZnode,
    Znode,
)
from regent.zk.client.zookeeper import ZooKeeper
from regent.zk.codecs.acl_znodes import resource_type_named
from regent.zk.codecs.admin_znodes import sequence_number
from regent.zk.stores.fenced_writes import change_znodes, write_unfenced
from regent.zk.stores.znode_store import WatchingStore, decode_each
from regent.zk.znodes import (
    AclChangeNotificationSequenceZNode,
    AclChangesZNode,
    AclsZNode,
    ExtendedAclChangeNotificationSequenceZNode,
    ExtendedAclChangesZNode,
    ExtendedAclsZNode,
    PrefixedAclsZNode,
    PrefixedResourceZNode,
    PrefixedTypeZNode,
    ResourceTypeZNode,
    ResourceZNode,
)

log = logging.getLogger(__name__)

_TYPES: Final = [kind for kind in ResourceType if kind is not ResourceType.ANY]


_ROOTS: Final = {
    PatternType.LITERAL: AclsZNode.PATH,
    PatternType.PREFIXED: PrefixedAclsZNode.PATH,
}
_CHANGES: Final = {
    PatternType.LITERAL: AclChangesZNode.PATH,
    PatternType.PREFIXED: ExtendedAclChangesZNode.PATH,
}


class ZkAclStore(WatchingStore):
    """Implements ``core.security.acl_cache.AclStore`` over one ZooKeeper session."""

    def __init__(self, zookeeper: ZooKeeper) -> None:
        super().__init__(zookeeper)
        self._damaged: dict[ResourcePattern, str] = {}  # what is in the log

    def create_paths(self) -> None:
        """Create the parents of all ACLs and notifications, if they are missing."""
        paths = [
            *(AclsZNode.PATH, ExtendedAclsZNode.PATH, PrefixedAclsZNode.PATH),
            *_CHANGES.values(),
            *(ResourceTypeZNode.path(kind.text) for kind in _TYPES),
            *(PrefixedTypeZNode.path(kind.text) for kind in _TYPES),
        ]
        found = self._zookeeper.get_many(paths)
        missing = [path for path, node in zip(paths, found, strict=True) if node is None]
        for path in missing:  # parents are first
            write_unfenced(self._zookeeper, [[Create(path)]])

    def sync(self) -> None:
        """Make later reads see every change that was acknowledged before this call."""
        self._zookeeper.sync()

    def read_changes(self) -> Sequence[AclChange]:
        """Read all notifications, and watch for new ones."""
        changes: list[AclChange] = []
        for kind, parent in _CHANGES.items():
            names = self._watch_children(parent)
            nodes = self._zookeeper.get_many([f"{parent}/{name}" for name in names])
            changes += [
                _change(kind, name, node)
                for name, node in zip(names, nodes, strict=True)
                if node is not None  # another broker has deleted it
            ]
        return changes

    def delete_changes(self, changes: Iterable[AclChange]) -> None:
        """Delete notifications; absent ones are skipped."""
        paths = [f"{_CHANGES[change.kind]}/{change.name}" for change in changes]
        write_unfenced(self._zookeeper, [[Delete(path, ANY_VERSION)] for path in paths])

    def read_all(self) -> Mapping[ResourcePattern, Entries]:
        """Read all ACLs. Raises ``UnreadableError`` if a list of resources is refused."""
        return self.read(list(self._all_patterns()))

    def _all_patterns(self) -> Iterator[ResourcePattern]:
        for pattern_type, root in _ROOTS.items():
            for type_name in self._zookeeper.children(root) or ():
                resource_type = resource_type_named(type_name)
                if resource_type is None or resource_type.text != type_name:
                    log.warning("%s/%s: unknown type of resources: ignored", root, type_name)
                    continue
                for name in self._zookeeper.children(f"{root}/{type_name}") or ():
                    yield ResourcePattern(resource_type, name, pattern_type)

    def read(self, patterns: Collection[ResourcePattern]) -> Mapping[ResourcePattern, Entries]:
        """Read the ACLs of patterns; a pattern without any is missing."""
        found = decode_each(
            patterns, self._zookeeper.get_many(list(map(_path, patterns))), _entries
        )
        entries: dict[ResourcePattern, Entries] = {}
        for pattern, decoded in found.items():
            if isinstance(decoded, BadDataError):
                if self._damaged.get(pattern) != str(decoded):
                    log.error("%s is denied to all but super users: %s", pattern, decoded)
                    self._damaged[pattern] = str(decoded)
                entries[pattern] = None
                continue
            self._damaged.pop(pattern, None)
            if decoded:
                entries[pattern] = decoded
        return entries

    def change(
        self, pattern: ResourcePattern, change: ChangeEntries
    ) -> frozenset[AccessControlEntry]:
        """Change the entries of a pattern and notify all brokers; return the new entries.

        Raises what ``change`` raises, ``BadDataError`` and ``ConflictError``.
        """
        path = _path(pattern)
        self._zookeeper.sync()  # else entries that another broker has just written may be missed

        def decide() -> tuple[frozenset[AccessControlEntry], list[Operation]]:
            node = self._zookeeper.get(path)
            old = frozenset[AccessControlEntry]() if node is None else _entries(pattern, node)
            new = change(old)
            if new == old:
                return new, []
            return new, [_write(pattern, new, node), _notification(pattern)]

        return change_znodes(self._zookeeper, decide, f"{path}: other clients keep changing it")


def _path(pattern: ResourcePattern) -> str:
    row = ResourceZNode if pattern.pattern_type is PatternType.LITERAL else PrefixedResourceZNode
    return row.path(pattern.resource_type.text, pattern.name)


def _entries(pattern: ResourcePattern, node: Znode) -> frozenset[AccessControlEntry]:
    try:
        return ResourceZNode.decode(node.data)
    except BadDataError as error:
        raise type(error)(f"the ACLs in {_path(pattern)}: {error}") from None


def _write(
    pattern: ResourcePattern, entries: frozenset[AccessControlEntry], node: Znode | None
) -> Operation:
    path, data = _path(pattern), ResourceZNode.encode(entries)
    if node is None:
        return Create(path, data)
    version = node.stat.version
    return SetData(path, data, version) if entries else Delete(path, version)


def _notification(pattern: ResourcePattern) -> Operation:
    row = AclChangeNotificationSequenceZNode
    if pattern.pattern_type is PatternType.PREFIXED:
        row = ExtendedAclChangeNotificationSequenceZNode
    return Create(row.PATH_PREFIX, row.encode(pattern), sequential=True)


def _change(kind: PatternType, name: str, node: Znode) -> AclChange:
    row = AclChangeNotificationSequenceZNode
    if kind is PatternType.PREFIXED:
        row = ExtendedAclChangeNotificationSequenceZNode
    sequence, pattern = -1, None
    try:
        sequence = sequence_number(name)
        pattern = row.decode(node.data)
    except BadDataError as error:
        log.warning("%s/%s: %s", _CHANGES[kind], name, error)
    readable = not isinstance(node, UnreadableZnode)
    return AclChange(kind, name, sequence, pattern, node.stat.ctime_ms if readable else None)
