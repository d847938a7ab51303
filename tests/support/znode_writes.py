"""Writes to the ZooKeeper of a running cluster, in a form that tests can compare."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import Any, NamedTuple

from regent.core.model import BrokerId
from regent.testing.regent_cluster import RegentCluster
from tests.support.transaction_log import Transaction, ZooKeeperLog

MS = "<milliseconds, a string>"
ID = "<a topic id>"
OURS_ALONE = ("/regent",)


class Written(NamedTuple):
    """One write: "create", "set" or "delete", the path, and the JSON (None: no data)."""

    kind: str
    path: str
    content: Any = None


def create(path: str, content: Any = None) -> Written:
    """A znode is created."""
    return Written("create", path, content)


def change(path: str, content: Any) -> Written:
    """A znode is set."""
    return Written("set", path, content)


def delete(path: str) -> Written:
    """A znode is deleted."""
    return Written("delete", path)


def state_path(topic: str, partition: int = 0) -> str:
    """Return the path of a partition's state."""
    return f"/brokers/topics/{topic}/partitions/{partition}/state"


def state(
    leader: BrokerId, isr: Collection[BrokerId], leader_epoch: int, controller_epoch: int
) -> dict[str, Any]:
    """Return the complete content of a ``state`` znode."""
    return {
        "version": 1,
        "leader": leader,
        "leader_epoch": leader_epoch,
        "isr": list(isr),
        "controller_epoch": controller_epoch,
    }


def topic_znode(
    partitions: list[list[BrokerId]],
    adding: dict[str, list[BrokerId]] | None = None,
    removing: dict[str, list[BrokerId]] | None = None,
) -> dict[str, Any]:
    """Return the complete content of a topic's znode as a broker writes it."""
    return {
        "version": 3,
        "topic_id": ID,
        "partitions": {str(p): replicas for p, replicas in enumerate(partitions)},
        "adding_replicas": adding or {},
        "removing_replicas": removing or {},
    }


class History:
    """The writes since some moment, from ZooKeeper's own transaction log."""

    def __init__(self, cluster: RegentCluster) -> None:
        self._directory = cluster.data_dir / "zookeeper-0" / "version-2"
        self._after = max((t.zxid for t in self.everything()), default=0)

    def everything(self) -> list[Transaction]:
        """Return all transactions since the cluster was created that wrote or ended a session."""
        transactions = ZooKeeperLog(self._directory).read_new()
        return [t for t in transactions if t.writes or t.closes_session]

    def transactions(self) -> list[Transaction]:
        """Return the transactions since this object was created."""
        return [t for t in self.everything() if t.zxid > self._after]

    def writes(self, *roots: str) -> list[Written]:
        """Return the writes to these znodes and to all below them, in sequence."""
        return [w for t in self.transactions() for w in written(t) if _is_below(w.path, roots)]


def written(transaction: Transaction) -> list[Written]:
    """Return the writes of one transaction, without those to our own znodes."""
    return [
        Written(w.kind, w.path, _content(w.data))
        for w in transaction.writes
        if not _is_below(w.path, OURS_ALONE)
    ]


def _is_below(path: str, roots: Collection[str]) -> bool:
    return any(path == root or path.startswith(f"{root}/") for root in roots)


def _content(data: bytes) -> Any:
    """Decode data; values that differ in each run are replaced if their form is right."""
    content = json.loads(data) if data else None
    if isinstance(content, dict):
        if re.fullmatch(r"\d{13}", str(content.get("timestamp"))):
            content["timestamp"] = MS if isinstance(content["timestamp"], str) else None
        if re.fullmatch(r"[\w-]{22}", str(content.get("topic_id"))):
            content["topic_id"] = ID
    return content
