"""The settings that ZooKeeper has beside topics: read as one document, and written back.

These are the settings of brokers, users (with the verifiers of their passwords), client ids and
addresses, and all ACLs. What is there and not in the document stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

import orjson

from regent.core.errors import BadDataError
from regent.core.quota.quota_entities import CLIENTS, IPS, USERS
from regent.core.security.acls import AccessControlEntry, PatternType, ResourcePattern
from regent.zk.codecs.acl_znodes import resource_type_named
from regent.zk.stores.acl_store import ZkAclStore
from regent.zk.stores.config_store import BROKERS, ZkConfigStore
from regent.zk.stores.tree_acls import levels
from regent.zk.stores.znode_store import ZnodeStore
from regent.zk.znodes import AclsZNode, ConfigEntityZNode, PrefixedAclsZNode, ResourceZNode

_CONFIG: Final = "/config"
_ENTITIES: Final = (BROKERS, USERS, CLIENTS, IPS)
_ACLS: Final = {
    AclsZNode.PATH: PatternType.LITERAL,
    PrefixedAclsZNode.PATH: PatternType.PREFIXED,
}
_VERSION: Final = 1

Document: TypeAlias = Mapping[str, Any]
"""``znodes`` has the content of each znode by its path."""


class ZkSettingsStore(ZnodeStore):
    """Reads and writes these settings over one ZooKeeper session."""

    def read(self) -> Document:
        """Return all settings and ACLs. Raises ``BadDataError`` for what cannot be read."""
        self._zookeeper.sync()
        roots = [*(f"{_CONFIG}/{kind}" for kind in _ENTITIES), *_ACLS]
        paths = sorted(path for level in levels(self._zookeeper, roots) for path in level)
        znodes: dict[str, object] = {}
        for path, node in zip(paths, self._zookeeper.get_many(paths), strict=True):
            # Also of roots: one that we may not read seems to have no children.
            data = b"" if node is None else node.data
            if path not in roots and data:
                _decoded(path, data)
                znodes[path] = orjson.loads(data)
        return {"version": _VERSION, "znodes": znodes}

    def changed(self, znodes: Mapping[str, bytes]) -> dict[str, bytes]:
        """Return what of a document differs from what is there. Raises ``BadDataError``."""
        there = self.read()["znodes"]
        return {
            path: data for path, data in znodes.items() if not _has(there.get(path), path, data)
        }

    def write(self, znodes: Mapping[str, bytes]) -> None:
        """Write settings and ACLs, and tell brokers. Raises ``BadDataError``, ``ConflictError``."""
        configs, acls = ZkConfigStore(self._zookeeper), ZkAclStore(self._zookeeper)
        found = {path: _decoded(path, data) for path, data in znodes.items()}
        if any(isinstance(content, _OfPattern) for content in found.values()):
            acls.create_paths()
        for path, content in found.items():
            if isinstance(content, _OfPattern):
                acls.change(content.pattern, content.entries.union)
            else:
                configs.change_config(path.removeprefix(f"{_CONFIG}/"), partial(_to, content))


def check_settings(document: object) -> Mapping[str, bytes]:
    """Return the data of the znodes of a document. Raises ``BadDataError``."""
    if not isinstance(document, dict) or not isinstance(document.get("znodes"), dict):
        raise BadDataError("it is no backup of settings: it has no znodes")
    if document.get("version") != _VERSION:
        found = document.get("version")
        raise BadDataError(f"its version is {found}: this release reads {_VERSION}")
    data = {path: orjson.dumps(content) for path, content in document["znodes"].items()}
    for path, content in data.items():
        _decoded(path, content)
    return data


class _OfPattern(NamedTuple):
    pattern: ResourcePattern
    entries: frozenset[AccessControlEntry]


def _to(wanted: Mapping[str, str], _old: Mapping[str, str]) -> Mapping[str, str | None]:
    return wanted


def _has(there: object, path: str, data: bytes) -> bool:
    """Whether a znode has all of an entry already."""
    if there is None:
        return False
    old, wanted = _decoded(path, orjson.dumps(there)), _decoded(path, data)
    if isinstance(wanted, _OfPattern):
        return isinstance(old, _OfPattern) and old.entries >= wanted.entries
    return not isinstance(old, _OfPattern) and {**old, **wanted} == old


def _decoded(path: str, data: bytes) -> _OfPattern | dict[str, str]:
    """Return what a znode says. Raises ``BadDataError``."""
    kind = next((kind for kind in _ENTITIES if path.startswith(f"{_CONFIG}/{kind}/")), None)
    if kind is not None:
        return ConfigEntityZNode.decode(data, path)
    for root, pattern_type in _ACLS.items():
        names = path.removeprefix(f"{root}/").split("/", 1)
        resource_type = resource_type_named(names[0]) if path.startswith(f"{root}/") else None
        if resource_type is not None and len(names) == 2:
            pattern = ResourcePattern(resource_type, names[1], pattern_type)
            return _OfPattern(pattern, ResourceZNode.decode(data))
    raise BadDataError(f"{path} is no znode of settings")
