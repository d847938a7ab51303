"""v2: the queue of commands for a broker, in ZooKeeper (``ZkQueue``, ``StateChangeCommand``).

A command takes six operations: the sender lists the queue, to see whether it is full, and creates a
node; the watch of the receiver fires; the receiver lists the queue, reads the node, handles the
command and deletes the node. The deletion fires the watch once more, and the receiver lists the
queue. A command is handled again when the receiver dies before the deletion.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Final, NamedTuple

from regent.core.errors import BadDataError
from regent.core.model import BrokerId, TopicPartition
from regent.designs.watched_zookeeper import WatchedZooKeeper
from regent.designs.znodes import state_path

logger = logging.getLogger(__name__)

MAX_QUEUED: Final = 1_000
"""How many commands may wait for a broker (``state.change.queue.size``)."""

QUEUE_FULL_WAIT_MS: Final = 100
"""The pause before a sender tries a full queue again."""

ADMIN_EPOCH: Final = -1
"""The epoch of a command that no leader sent."""


class StateChangeCommand(StrEnum):
    """What a broker is to do with a replica."""

    START_REPLICA = "start-replica"
    STOP_REPLICA = "stop-replica"


class StateChange(NamedTuple):
    """A command, and the epoch of the leader that sent it."""

    command: StateChangeCommand
    topic_partition: TopicPartition
    epoch: int

    def encode(self) -> bytes:
        """Encode."""
        topic, partition = self.topic_partition
        return f"{self.command};{topic};{partition};{self.epoch}".encode()

    @classmethod
    def decode(cls, data: bytes) -> StateChange:
        """Decode. Raises ``BadDataError``."""
        try:
            command, topic, partition, epoch = data.decode().split(";")
            topic_partition = TopicPartition(topic, int(partition))
            return cls(StateChangeCommand(command), topic_partition, int(epoch))
        except ValueError:
            raise BadDataError(f"not a state change: {data[:80]!r}") from None


class StateChangeQueue:
    """The queue of one broker: any broker may ``put``, its own broker handles the commands."""

    def __init__(self, zookeeper: WatchedZooKeeper, broker_id: BrokerId) -> None:
        self.path = state_path(broker_id)
        self._zookeeper = zookeeper
        self._latest = ""

    def put(self, change: StateChange) -> bool:
        """Queue a command; False when the queue is full."""
        if len(self._zookeeper.children(self.path)) >= MAX_QUEUED:
            return False
        while self._zookeeper.create_sequential(f"{self.path}/command-", change.encode()) is None:
            self._zookeeper.create(self.path)  # the broker has never run
        return True

    def handle_new(self, names: Iterable[str], apply: Callable[[StateChange], None]) -> None:
        """Handle the commands among these nodes that are new, in their sequence."""
        for name in sorted(name for name in names if name > self._latest):
            self._latest = name
            path = f"{self.path}/{name}"
            znode = self._zookeeper.get(path)
            if znode is None:
                continue
            try:
                change = StateChange.decode(znode.data)
            except BadDataError as error:
                logger.warning("%s is dropped: %s", path, error)
            else:
                apply(change)
            self._zookeeper.delete(path)
