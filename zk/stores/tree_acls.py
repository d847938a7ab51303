"""The ACLs of a whole tree: secured for the login of a session, or opened to everybody.

Mirrors ``kafka.admin.ZkSecurityMigrator``. ZooKeeper does not let znodes inherit an ACL, and the
ACL of its parent decides who may delete a znode. So a secured tree begins at its root.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from regent.zk.client.login import Acl, acl_of
from regent.zk.client.operations import AclEntry, Permission
from regent.zk.client.zookeeper import ZooKeeper
from regent.zk.client.zookeeper_client import ZooKeeperClient
from regent.zk.stores.znode_store import NoClusterError

_ROOT: Final = "/"
_EVERYTHING: Final = ~Permission(0)
_LEVELS_OF_NEW_SERVER: Final = 3  # /, /zookeeper, and what is in that
_SESSION_TIMEOUT_MS: Final = 30_000
_SECRET_WORDS: Final = ("/delegation_token", "secret", "password")


def secure_tree(hosts: str, *, again: bool = False) -> bool:
    """Secure the tree at a connect string, for which this process has a login, unless it is.

    The root is last, so that a migration that was interrupted is repeated. ``again``: secure it
    even if the root is secured. Return whether there was something to secure. Raises
    ``ConnectionLossError``, ``RequestRefusedError``, and ``NoClusterError`` without the chroot.
    """
    with _session(hosts) as client:
        if not again and not is_open(client.acls_many([_ROOT])[0]):
            return False
        found = list(levels(client))
        for level in reversed(found):
            client.set_acls({path: acl_of(path) for path in level})
        return len(found) > _LEVELS_OF_NEW_SERVER


def open_tree(hosts: str) -> None:
    """Let everybody change every znode again; see ``secure_tree``."""
    with _session(hosts) as client:
        for level in reversed(list(levels(client))):
            client.set_acls(dict.fromkeys(level, Acl.OPEN))


def is_open(acl: Sequence[AclEntry] | None) -> bool:
    """Whether everybody may do everything; False for a znode that does not exist."""
    return acl is not None and any(
        entry.is_everybody and entry.permissions == _EVERYTHING for entry in acl
    )


def read_tree(zookeeper: ZooKeeper) -> Iterator[tuple[str, Sequence[AclEntry]]]:
    """Yield the path and the ACL of every znode that this session may find."""
    for level in levels(zookeeper):
        for path, acl in zip(level, zookeeper.acls_many(level), strict=True):
            if acl is not None:
                yield path, acl


def read_tree_data(zookeeper: ZooKeeper) -> Iterator[tuple[str, bytes | None]]:
    """Yield the path and the data of every znode; None if it has secrets, or may not be read."""
    for level in levels(zookeeper):
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
