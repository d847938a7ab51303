"""``/regent/progress_mark``: written soon after anything else is, to detect restored older data.

The transaction id of a znode's last write only grows. When the id of this znode is lower than a
broker has noted, ZooKeeper has older data than before (a restored backup, for example). The newest
transaction id of an ensemble does not show this: servers begin a new epoch when they start, and the
epoch is the upper half of all later ids, so that older data continue with higher ids.
"""

from __future__ import annotations

from regent.core.errors import UnreadableError
from regent.zk.client.operations import ANY_VERSION, Create, Refused, SetData, ZkError, Znode
from regent.zk.client.zookeeper import ZooKeeper

PATH = "/regent/progress_mark"


def write_mark(zookeeper: ZooKeeper) -> None:
    """Write the mark. A lost answer or a refusal is ignored: the mark is written again later.

    Raises ``ConnectionLossError`` and ``SessionExpiredError``.
    """
    result = zookeeper.multi([SetData(PATH, b"", ANY_VERSION)])
    if isinstance(result, Refused) and result.error is ZkError.NO_NODE:
        for path in (PATH.rpartition("/")[0], PATH):
            zookeeper.multi([Create(path)])


def read_mark(zookeeper: ZooKeeper) -> int | None:
    """Return the id of the mark's last write; 0: there is no mark, None: it cannot be read.

    Raises ``SessionExpiredError``.
    """
    return mark_of(zookeeper.get(PATH))


def mark_of(node: Znode | None) -> int | None:
    """Return the id of the last write of a mark; see ``read_mark``."""
    try:
        return 0 if node is None else node.stat.mzxid
    except UnreadableError:
        return None
