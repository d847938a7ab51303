"""The ACLs of a whole tree: secured for the login of a session, or opened to everybody.

Mirrors ``kafka.admin.ZkSecurityMigrator``. ZooKeeper does not let znodes inherit an ACL, and the
ACL of its parent decides who may delete a znode. So a secured tree begins at its root.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from regent.zk.client.login import Acl, acl_of
from regent.zk.client.zookeeper_client import ZooKeeperClient

_ROOT: Final = "/"
_LEVELS_OF_NEW_SERVER: Final = 3  # /, /zookeeper, and what is in that
_SESSION_TIMEOUT_MS: Final = 30_000


def secure_tree(hosts: str) -> bool:
    """Secure the tree at a connect string, for which this process has a login, unless it is.

    The root is last, so that a migration that was interrupted is repeated. Return whether there was
    something to secure. Raises ``ConnectionLossError`` and ``RequestRefusedError``.
    """
    with _session(hosts) as client:
        if not client.is_open(_ROOT):
            return False
        levels = list(_levels(client))
        for level in reversed(levels):
            client.set_acls({path: acl_of(path) for path in level})
        return len(levels) > _LEVELS_OF_NEW_SERVER


def open_tree(hosts: str) -> None:
    """Let everybody change every znode again; see ``secure_tree``."""
    with _session(hosts) as client:
        for level in reversed(list(_levels(client))):
            client.set_acls(dict.fromkeys(level, Acl.OPEN))


@contextmanager
def _session(hosts: str) -> Iterator[ZooKeeperClient]:
    client = ZooKeeperClient(hosts, _SESSION_TIMEOUT_MS, on_watch=lambda _: None)
    try:
        client.start(_SESSION_TIMEOUT_MS / 1000)
        yield client
    finally:
        client.close()


def _levels(client: ZooKeeperClient) -> Iterator[list[str]]:
    """Yield the paths of the tree by their depth, the root first."""
    level = [_ROOT]
    while level:
        yield level
        children = client.children_many(level)
        level = [
            f"{path.rstrip('/')}/{name}"
            for path, names in zip(level, children, strict=True)
            for name in names or ()
        ]
