"""One broker's ZooKeeper store over a fresh tree."""

from __future__ import annotations

from collections.abc import Mapping

from core.ports import WriteError
from tests.conformance.fields import partition
from tests.support.term import KeptSession, Tree
from zk.operations import Committed, Create, WatchEvent
from zk.store import ZkControllerStore

CODES: Mapping[WriteError, str] = {
    WriteError.BAD_VERSION: "BADVERSION",
    WriteError.NO_NODE: "NONODE",
    WriteError.NODE_EXISTS: "NODEEXISTS",
}


class Client(Tree):
    """One broker's store over a fresh tree, with the controller epoch in it."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[WatchEvent] = []
        self.session = KeptSession(self.server, self.events.append)
        self.store = ZkControllerStore(self.session)
        self.server.put("/brokers/topics")
        self.server.put("/brokers/ids")
        self.server.put("/admin/delete_topics")
        self.server.put("/isr_change_notification")
        self.server.put("/log_dir_event_notification")
        self.server.put("/config/topics")
        self.store.create_controller_epoch()

    @property
    def epoch_zk_version(self) -> int:
        """The version that fences writes."""
        epoch = self.store.read_controller_epoch()
        assert epoch is not None
        return epoch.zk_version

    def put_partitions(self, names: list[str], version: int = 0) -> None:
        """Write states until their nodes have this version."""
        for name in names:
            for _ in range(version + 1):
                self.put_state(partition(name), 0, (0, 1))

    def sequential(self, prefix: str, data: bytes) -> None:
        """Create a notification, as brokers do."""
        created = self.session.multi([Create(prefix, data, sequential=True)])
        assert isinstance(created, Committed)
