"""``/regent/progress_mark``: written again and again, so that older data can be told from newer.

The transaction id of a znode's last write only grows. When this znode's is lower than a broker has
noted, ZooKeeper was given older data. Its own transaction id does not tell in an ensemble: the
servers begin a new epoch when they start, which is the upper half of all ids that follow, so that
older data continue with higher ones.
"""

from __future__ import annotations

from regent.core.errors import UnreadableError
from regent.zk.client.operations import ANY_VERSION, Create, Refused, SetData, ZkError, ZooKeeper

PATH = "/regent/progress_mark"


def write_mark(zookeeper: ZooKeeper) -> None:
    """Write the mark; lost answers and refusals do no harm: it is written again.

    Raises ``ConnectionLossError`` and ``SessionExpiredError``.
    """
    result = zookeeper.multi([SetData(PATH, b"", ANY_VERSION)])
    if isinstance(result, Refused) and result.error is ZkError.NO_NODE:
        for path in (PATH.rpartition("/")[0], PATH):
            zookeeper.multi([Create(path)])


def read_mark(zookeeper: ZooKeeper) -> int | None:
    """Return the transaction that wrote the mark last; 0: there is none, None: it is not shown.

    Raises ``SessionExpiredError``.
    """
    node = zookeeper.get(PATH)
    try:
        return 0 if node is None else node.stat.mzxid
    except UnreadableError:
        return None
