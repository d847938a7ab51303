"""The whole tree of a cluster: read as one document, and written into an empty tree.

What belongs to a process or to a moment is left out: ephemeral znodes (``/controller``, the
registrations and terms of brokers), notifications, whose numbers ZooKeeper counts itself, and the
progress mark. What others have below the same root is neither read nor written. ``/cluster/id`` is
written last: a tree that has it is complete.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, Final, TypeAlias

from regent.core.errors import BadDataError, RegentError
from regent.zk.client.operations import ConflictError, Create, Znode
from regent.zk.codecs.admin_znodes import ProducerIdBlock
from regent.zk.stores.fenced_writes import WriteRefused, write_unfenced
from regent.zk.stores.tree_acls import is_of_cluster, levels, roots_of_cluster
from regent.zk.stores.znode_store import ZnodeStore
from regent.zk.znodes import (
    ZNODES,
    BrokerIdsZNode,
    ClusterIdZNode,
    ControllerZNode,
    ProducerIdBlockZNode,
    ProgressMarkZNode,
)

SKIPPED_PRODUCER_IDS: Final = 1_000_000_000
"""So many ids are not given out after a restore: those since the backup belong to producers."""

_ROOT: Final = "/"
_NOTIFICATIONS: Final = tuple(row for row in ZNODES if row.PATH.endswith("_<n>"))
_VERSION: Final = 1
_BASE64: Final = "base64"

Document: TypeAlias = Mapping[str, Any]
"""``tree`` has the content of each znode by its path: a text, or ``{"base64": …}``."""


class TreeInUseError(RegentError):
    """There is a cluster in the tree, or something else that a restore would change."""


class ZkTreeStore(ZnodeStore):
    """Reads and writes the whole tree over one ZooKeeper session."""

    def read(self) -> Document:
        """Return the tree. Raises ``BadDataError`` for a znode that cannot be read.

        Znodes are read one after the other, while the cluster may change them.
        """
        self._zookeeper.sync()
        tree: dict[str, object] = {}
        for level in levels(self._zookeeper, roots_of_cluster(self._zookeeper)):
            paths = [path for path in level if _parent(path) == _ROOT or _parent(path) in tree]
            for path, node in zip(paths, self._zookeeper.get_many(paths), strict=True):
                if node is not None and _is_kept(path, node):
                    tree[path] = _text(node.data)
        return {"version": _VERSION, "tree": tree}

    def check_unused(self, znodes: Mapping[str, bytes]) -> Sequence[str]:
        """Return the paths of a document that are not there yet.

        Raises ``TreeInUseError`` if brokers or a whole cluster are, or a znode with other data.
        """
        brokers = self._zookeeper.children(BrokerIdsZNode.PATH) or []
        if brokers:
            raise TreeInUseError(
                f"brokers are registered here: {', '.join(brokers)}: stop them, and restore into an"
                " empty ZooKeeper or chroot"
            )
        for path in (ControllerZNode.PATH, ClusterIdZNode.PATH):
            if self._zookeeper.get(path) is not None:
                raise TreeInUseError(
                    f"there is a cluster here already ({path}): restore into an empty ZooKeeper or"
                    " chroot"
                )
        paths = list(znodes)
        missing = []
        for path, node in zip(paths, self._zookeeper.get_many(paths), strict=True):
            if node is None:
                missing.append(path)
            elif node.data != znodes[path]:
                raise TreeInUseError(
                    f"{path} exists with other data: restore into an empty ZooKeeper or chroot"
                )
        return missing

    def write(self, znodes: Mapping[str, bytes]) -> int:
        """Write a document into an empty tree, or the rest of it; return how many were written.

        Raises ``TreeInUseError``, and ``ConflictError`` if somebody else writes meanwhile.
        """
        missing = self.check_unused(znodes)
        last = ClusterIdZNode.PATH
        others = sorted((path for path in missing if path != last), key=_depth)
        batches = [list(paths) for _, paths in groupby(others, key=_depth)]
        for paths in [*batches, [path for path in missing if path == last]]:
            outcomes = write_unfenced(self._zookeeper, [[Create(p, znodes[p])] for p in paths])
            there = self._zookeeper.get_many(paths)
            for path, outcome, node in zip(paths, outcomes, there, strict=True):
                # A write may be refused because its first attempt, whose answer was lost, was not.
                if isinstance(outcome, WriteRefused) and (
                    node is None or node.data != znodes[path]
                ):
                    raise ConflictError(
                        f"{path} cannot be written: {outcome.error.name}: keep brokers stopped, and"
                        " restore into an empty ZooKeeper or chroot"
                    )
        return len(missing)


def check_tree(document: object) -> dict[str, bytes]:
    """Return the data of the znodes of a document as they are restored. Raises ``BadDataError``."""
    if not isinstance(document, dict) or not isinstance(document.get("tree"), dict):
        raise BadDataError("it is no backup of a tree")
    if document.get("version") != _VERSION:
        found = document.get("version")
        raise BadDataError(f"its version is {found}: this release reads {_VERSION}")
    znodes = {path: _data(path, content) for path, content in document["tree"].items()}
    for path in znodes:
        parent = _parent(path)
        if not path.startswith(_ROOT) or not (parent == _ROOT or parent in znodes):
            raise BadDataError(f"{path} has no parent")
    znodes = {path: data for path, data in znodes.items() if is_of_cluster(path)}
    if ClusterIdZNode.PATH not in znodes:
        raise BadDataError(f"it has no {ClusterIdZNode.PATH}")
    ClusterIdZNode.decode(znodes[ClusterIdZNode.PATH])
    path = ProducerIdBlockZNode.PATH
    block = ProducerIdBlockZNode.decode(znodes.get(path, b""))
    if block is not None:
        skipped = [number + SKIPPED_PRODUCER_IDS for number in block[1:]]
        znodes[path] = ProducerIdBlockZNode.encode(ProducerIdBlock(block.broker_id, *skipped))
    return znodes


def _is_kept(path: str, node: Znode) -> bool:
    return not (
        node.stat.ephemeral_owner
        or path == ProgressMarkZNode.PATH
        or any(row.names(path) is not None for row in _NOTIFICATIONS)
    )


def _text(data: bytes) -> object:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {_BASE64: base64.b64encode(data).decode()}


def _data(path: str, content: object) -> bytes:
    if isinstance(content, str):
        return content.encode()
    try:
        if isinstance(content, dict) and content.keys() == {_BASE64}:
            return base64.b64decode(content[_BASE64], validate=True)
    except (ValueError, TypeError):
        pass
    raise BadDataError(f'{path} must be a text, or {{"{_BASE64}": …}}')


def _parent(path: str) -> str:
    return path.rpartition("/")[0] or _ROOT


def _depth(path: str) -> int:
    return path.count("/")
