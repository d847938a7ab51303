"""The sequential nodes that brokers create to notify the controller."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

from regent.core.errors import BadDataError
from regent.core.model import BrokerId, TopicPartition
from regent.zk.client.operations import ANY_VERSION, Create, Delete
from regent.zk.client.requests import RequestRefusedError
from regent.zk.client.zookeeper import ZooKeeper
from regent.zk.codecs.admin_znodes import (
    IsrChangeNotificationSequenceZNode,
    IsrChangeNotificationZNode,
    LogDirEventNotificationSequenceZNode,
    LogDirEventNotificationZNode,
)
from regent.zk.stores.fenced_writes import WriteRefused, write_unfenced
from regent.zk.stores.watching_store import WatchingStore

log = logging.getLogger(__name__)

NOBODY: BrokerId = -1

T = TypeVar("T")


class ZkNotificationStore(WatchingStore):
    """The part of ``core.ports.ControllerStore`` that is about notifications."""

    def read_isr_changes(self) -> Mapping[str, tuple[TopicPartition, ...]]:
        """Read which partition states leaders changed, oldest first, and watch for new ones."""
        return self._read_notifications(
            IsrChangeNotificationZNode.PATH, IsrChangeNotificationSequenceZNode.decode, ()
        )

    def delete_isr_changes(self, names: Collection[str], epoch_zk_version: int) -> None:
        """Delete notifications."""
        self._delete_notifications(IsrChangeNotificationZNode.PATH, names, epoch_zk_version)

    def read_log_dir_events(self) -> Mapping[str, BrokerId]:
        """Read the brokers whose log directories failed, oldest first; watch for new ones."""
        return self._read_notifications(
            LogDirEventNotificationZNode.PATH, LogDirEventNotificationSequenceZNode.decode, NOBODY
        )

    def delete_log_dir_events(self, names: Collection[str], epoch_zk_version: int) -> None:
        """Delete notifications."""
        self._delete_notifications(LogDirEventNotificationZNode.PATH, names, epoch_zk_version)

    def _read_notifications(
        self, path: str, decode: Callable[[bytes], T], nothing: T
    ) -> dict[str, T]:
        """Read the children of ``path``: ``nothing`` for bad data; deleted ones are left out."""
        names = self._watch_requests(path)
        nodes = self._zookeeper.get_many([f"{path}/{name}" for name in names])
        notifications: dict[str, T] = {}
        undecoded: list[BadDataError] = []
        for name, node in zip(names, nodes, strict=True):
            if node is None:
                continue
            try:
                notifications[name] = decode(node.data)
            except BadDataError as error:
                notifications[name] = nothing
                undecoded.append(error.with_traceback(None))
        if undecoded:
            log.error(
                "%d notifications cannot be decoded, the first: %s", len(undecoded), undecoded[0]
            )
        return notifications

    def _delete_notifications(
        self, path: str, names: Collection[str], epoch_zk_version: int
    ) -> None:
        deletions = [[Delete(f"{path}/{name}", ANY_VERSION)] for name in names]
        self._write_fenced(deletions, epoch_zk_version)


def notify_log_dir_failure(zookeeper: ZooKeeper, broker_id: BrokerId) -> None:
    """Make the controller ask a broker which of its replicas are offline.

    After a lost answer there may be two nodes, which is harmless. Raises ``SessionExpiredError``,
    and ``RequestRefusedError`` when ZooKeeper refuses the write.
    """
    path = LogDirEventNotificationSequenceZNode.PATH_PREFIX
    data = LogDirEventNotificationSequenceZNode.encode(broker_id)
    (outcome,) = write_unfenced(zookeeper, [[Create(path, data, sequential=True)]])
    if isinstance(outcome, WriteRefused):
        raise RequestRefusedError(f"cannot create {path}…: {outcome.error.name}")
