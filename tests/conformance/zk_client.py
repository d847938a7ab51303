"""One broker's ZooKeeper store over a fresh tree, on the fake ZooKeeper or on a real server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from regent.core.model import (
    BrokerId,
)
from regent.core.ports import WriteError
from regent.zk.client.operations import ANY_VERSION, Committed, Create, Delete, SetData, Znode
from regent.zk.client.zookeeper import ZooKeeper
from regent.zk.stores.controller_store import ZkControllerStore
from tests.conformance.fields import partition
from tests.support.world import Znodes, broker_info
from tests.support.zookeeper_sessions import FENCES, Ensemble, WatchingSession

CODES: Mapping[WriteError, str] = {
    WriteError.BAD_VERSION: "BADVERSION",
    WriteError.NO_NODE: "NONODE",
    WriteError.NODE_EXISTS: "NODEEXISTS",
}
_PATHS = (
    *("/brokers/topics", "/brokers/ids", "/admin/delete_topics", "/isr_change_notification"),
    *("/log_dir_event_notification", "/config/topics"),
)


class CurrentSession:
    """The present session of a broker."""

    def __init__(self, watching: WatchingSession) -> None:
        self.watching = watching

    def __getattr__(self, name: str) -> Any:
        return getattr(self.watching.zk, name)


class Client(Znodes):
    """One broker's store over a fresh tree, with the controller epoch in it."""

    def __init__(self, ensemble: Ensemble) -> None:
        self._ensemble = ensemble
        self._tool = ensemble.open_session().zk
        self._current = CurrentSession(ensemble.open_session())
        self.session = cast("ZooKeeper", self._current)
        self.store = ZkControllerStore(self.session)
        for path in _PATHS:
            self.put(path)
        self.store.create_controller_epoch()

    def renew_session(self) -> None:
        """Continue in another session; the server has not expired the first one yet."""
        self._current.watching = self._ensemble.open_session()

    def another_session(self) -> ZooKeeper:
        """Return another client's session."""
        return self._ensemble.open_session().zk

    def events(self) -> list[str]:
        """Return the paths of the broker's watch events since the last call."""
        return [event.path for event in self._current.watching.events()]

    # --- the tree, as tools see it ---

    def put(self, path: str, data: bytes = b"") -> None:
        """Create a node and its parents, or replace its data."""
        if self._tool.get(path) is not None:
            assert isinstance(self._tool.multi([SetData(path, data, ANY_VERSION)]), Committed)
            return
        parent = path.rpartition("/")[0]
        if parent and self._tool.get(parent) is None:
            self.put(parent)
        assert isinstance(self._tool.multi([Create(path, data)]), Committed)

    def remove(self, path: str) -> None:
        """Delete a node."""
        assert isinstance(self._tool.multi([Delete(path, ANY_VERSION)]), Committed)

    def node(self, path: str) -> Znode | None:
        """Return a node."""
        return self._tool.get(path)

    def snapshot(self, path: str = "") -> dict[str, Znode | None]:
        """Return every node by its path."""
        found: dict[str, Znode | None] = {path or "/": self._tool.get(path or "/")}
        for name in self._tool.children(path or "/") or ():
            if f"{path}/{name}" not in (FENCES, "/zookeeper"):
                found |= self.snapshot(f"{path}/{name}")
        return found

    @property
    def epoch_zk_version(self) -> int:
        """The version of ``/controller_epoch``."""
        epoch = self.store.read_controller_epoch()
        assert epoch is not None
        return epoch.zk_version

    def register(self, broker_id: BrokerId) -> None:
        """Register another broker."""
        ZkControllerStore(self.another_session()).register_broker(broker_info(broker_id))

    def put_partitions(self, names: list[str], version: int = 0) -> None:
        """Write states until their nodes have this version."""
        for name in names:
            for _ in range(version + 1):
                self.put_state(partition(name), 0, (0, 1))

    def sequential(self, prefix: str, data: bytes) -> None:
        """Create a notification, as brokers do."""
        created = self.session.multi([Create(prefix, data, sequential=True)])
        assert isinstance(created, Committed)
