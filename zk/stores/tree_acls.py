"""The ACLs of a cluster's tree: secured for the login of a session, or opened to everybody.

Mirrors ``kafka.admin.ZkSecurityMigrator``. ZooKeeper does not let znodes inherit an ACL, and the
ACL of its parent decides who may delete a znode. So a secured tree begins at its root. What others
have below the same root is left alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Final

from regent.zk.client.login import Acl, acl_of
from regent.zk.client.operations import AclEntry, Permission
from regent.zk.client.requests import RequestRefusedError
from regent.zk.client.zookeeper import ZooKeeper
from regent.zk.client.zookeeper_client import ZooKeeperClient
from regent.zk.stores.znode_store import NoClusterError
from regent.zk.znodes import ZNODES, BrokerIdsZNode

_ROOT: Final = "/"
_EVERYTHING: Final = ~Permission(0)
_SESSION_TIMEOUT_MS: Final = 30_000
_MAX_CHROOT_NAMES: Final = 4
_SERVERS: Final = "zookeeper"
_OF_CLUSTER: Final = {"feature", "migration"} | {row.PATH.split("/")[1] for row in ZNODES}
"""What a cluster of Regent or Kafka has below its root."""

_SECRET_WORDS: Final = ("/delegation_token", "secret", "password")


def secure_tree(hosts: str, *, again: bool = False) -> bool:
    """Secure the cluster at a connect string, for which this process has a login, unless it is.

    The root is last, so that a migration that was interrupted is repeated. ``again``: secure it
    even if the root is secured. Return whether there was something to secure. Raises
    ``ConnectionLossError``, ``RequestRefusedError``, and ``NoClusterError`` without the chroot.
    """
    with _session(hosts) as client:
        if not again and not is_open(client.acls_many([_ROOT])[0]):
            return False
        found = list(_levels_of_cluster(client))
        for level in reversed(found):
            _change(client, {path: acl_of(path) for path in level})
        return any(path != _ROOT and not _is_of_server(path) for level in found for path in level)


def open_tree(hosts: str) -> None:
    """Let everybody change every znode of a cluster again; see ``secure_tree``.

    The root is first, so that ``secure_tree`` secures again what was opened before an interruption.
    """
    with _session(hosts) as client:
        for level in _levels_of_cluster(client):
            _change(client, dict.fromkeys(level, Acl.OPEN))


def check_root(hosts: str) -> None:
    """Raise ``NoClusterError`` if the cluster that is meant may have a chroot that is missing.

    An empty tree is the place of a new cluster.
    """
    with _session(hosts) as client:
        if client.get(BrokerIdsZNode.PATH) is not None:
            return
        for level in islice(levels(client), 1, _MAX_CHROOT_NAMES + 1):
            paths = [f"{path}{BrokerIdsZNode.PATH}" for path in level]
            for path, znode in zip(level, client.get_many(paths), strict=True):
                if znode is not None:
                    raise NoClusterError(f"there is one at {client.chroot}{path}: name that chroot")
        others = sorted(set(client.children(_ROOT) or ()) - _OF_CLUSTER - {_SERVERS})
        if others and not client.chroot:
            raise NoClusterError(
                f"there are znodes of others, as /{others[0]}: name the chroot of the cluster, or"
                " start its brokers first"
            )


def _change(client: ZooKeeperClient, acls: Mapping[str, Acl]) -> None:
    """Change ACLs; those of ZooKeeper's own znodes only if this login may."""
    client.set_acls({path: acl for path, acl in acls.items() if not _is_of_server(path)})
    for path in filter(_is_of_server, acls):
        with suppress(RequestRefusedError):
            client.set_acls({path: acls[path]})


def _is_of_server(path: str) -> bool:
    return path.startswith(f"/{_SERVERS}")


def _levels_of_cluster(zookeeper: ZooKeeper) -> Iterator[list[str]]:
    """Yield the paths of a cluster by their depth, its root first.

    What ZooKeeper has for itself belongs to a cluster that is alone there.
    """
    yield [_ROOT]
    names = set(zookeeper.children(_ROOT) or ())
    is_alone = names <= _OF_CLUSTER | {_SERVERS}
    own = names if is_alone else names & _OF_CLUSTER
    yield from levels(zookeeper, [f"{_ROOT}{name}" for name in sorted(own)])


def roots_of_cluster(zookeeper: ZooKeeper) -> list[str]:
    """Return what a cluster has directly below its root, which it may share with others."""
    names = set(zookeeper.children(_ROOT) or ())
    return [f"{_ROOT}{name}" for name in sorted(names & _OF_CLUSTER)]


def is_of_cluster(path: str) -> bool:
    """Whether a path is one of a cluster, not of others that share its root."""
    return path.split("/")[1] in _OF_CLUSTER


def is_open(acl: Sequence[AclEntry] | None) -> bool:
    """Whether everybody may do everything; False for a znode that does not exist."""
    return acl is not None and any(
        entry.is_everybody and entry.permissions == _EVERYTHING for entry in acl
    )


def read_tree(zookeeper: ZooKeeper) -> Iterator[tuple[str, Sequence[AclEntry]]]:
    """Yield the path and the ACL of every znode of the cluster that this session may find."""
    for level in _levels_of_cluster(zookeeper):
        for path, acl in zip(level, zookeeper.acls_many(level), strict=True):
            if acl is not None:
                yield path, acl


def read_tree_data(zookeeper: ZooKeeper) -> Iterator[tuple[str, bytes | None]]:
    """Yield the path and the data of every znode of the cluster.

    None if it has secrets, or may not be read.
    """
    for level in _levels_of_cluster(zookeeper):
        public = [path for path in level if not _may_have_secrets(path)]
        yield from ((path, None) for path in level if _may_have_secrets(path))
        found = zookeeper.get_many(public)
        for path, znode in zip(public, found, strict=True):
            yield path, None if znode is None else znode.data


def _may_have_secrets(path: str) -> bool:
    """Whether only the cluster may read a znode, or its name says that it has secrets."""
    return acl_of(path) is Acl.SENSITIVE or any(word in path for word in _SECRET_WORDS)


def create_chroot(hosts: str) -> None:
    """Create the chroot of a connect string that has one; see ``secure_tree``."""
    if "/" in hosts:
        with _session(hosts, create_chroot=True):
            pass


@contextmanager
def _session(hosts: str, *, create_chroot: bool = False) -> Iterator[ZooKeeperClient]:
    client = ZooKeeperClient(hosts, _SESSION_TIMEOUT_MS, on_watch=lambda _: None)
    try:
        client.start(_SESSION_TIMEOUT_MS / 1000, create_chroot=create_chroot)
        if client.chroot and client.get(_ROOT) is None:
            raise NoClusterError(f"there is no znode {client.chroot}")
        yield client
    finally:
        client.close()


def levels(zookeeper: ZooKeeper, roots: Sequence[str] = (_ROOT,)) -> Iterator[list[str]]:
    """Yield the paths at and below ``roots`` by their depth, the roots first."""
    level = list(roots)
    while level:
        yield level
        children = zookeeper.children_many(level)
        level = [
            f"{path.rstrip('/')}/{name}"
            for path, names in zip(level, children, strict=True)
            for name in names or ()
        ]
