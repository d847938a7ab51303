"""A broker before the controller: it registers, and starts and stops replicas.

How it learns which replicas it has is what the designs differ in: ``v1`` and ``v2``.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final

from pykka import ActorDeadError, ActorRef

from regent.core.errors import BadDataError
from regent.core.model import BrokerId, TopicPartition
from regent.designs.design_replica import PeerRestarted, Surroundings
from regent.designs.memory_log import MemoryLog
from regent.designs.pooled_actor import PooledActor
from regent.designs.watched_zookeeper import ChildrenChanged, SessionBegan
from regent.designs.znodes import PERSISTENT_PATHS, broker_path, decode_ids, replicas_path

logger = logging.getLogger(__name__)

REGISTER_AGAIN_MS: Final = 200
CHECKPOINT_MS: Final = 5_000


class DesignBroker(PooledActor):
    """A broker; ``address`` is where others reach it."""

    def __init__(self, around: Surroundings, address: bytes) -> None:
        super().__init__(around.dispatcher)
        self._around = around
        self._zookeeper = around.zookeeper
        self._address = address

    @abstractmethod
    def _new_replica(self, topic_partition: TopicPartition, log: MemoryLog) -> ActorRef[Any]:
        """Start the actor of a replica."""

    @abstractmethod
    def _on_children(self, path: str, names: frozenset[str]) -> None:
        """Handle what the listeners tell."""

    def on_start(self) -> None:
        """Recover the logs, create the paths that all brokers need, and register."""
        for log in self._around.logs.values():
            log.recover()
        for path in PERSISTENT_PATHS:
            self._zookeeper.create(path)
        self._zookeeper.listen_to_session(self.actor_ref)
        self._register()
        self._checkpoint()

    def handle(self, message: Any) -> object:
        """Handle what listeners, timers and the mail tell."""
        match message:
            case ChildrenChanged(path, names):
                self._on_children(path, names)
            case SessionBegan():
                self._register()
            case PeerRestarted(broker_id):
                self._tell_followers_of(broker_id, message)
            case _ if callable(message):
                message()
        return None

    def on_stop(self) -> None:
        """Stop the replicas."""
        while self._around.replicas:
            self._around.replicas.popitem()[1].stop(block=False)

    def _tell_followers_of(self, broker_id: BrokerId, message: PeerRestarted) -> None:
        for topic_partition, belief in list(self._around.beliefs.items()):
            replica = self._around.replicas.get(topic_partition)
            if belief.leader == broker_id and replica is not None:
                with suppress(ActorDeadError):
                    replica.tell(message)

    def _later(self, after_ms: int, act: Callable[[], None]) -> None:
        self._tell_later(self._around.clock, after_ms, act)

    def _register(self) -> None:
        """Register; while the session of a former process with this id lasts, try again."""
        path = broker_path(self._around.broker_id)
        if not self._zookeeper.create(path, self._address, ephemeral=True):
            self._later(REGISTER_AGAIN_MS, self._register)

    def _checkpoint(self) -> None:
        """Write the high watermarks of all logs, from time to time."""
        for log in self._around.logs.values():
            log.write_checkpoint()
        self._later(CHECKPOINT_MS, self._checkpoint)

    def _start_replica(self, topic_partition: TopicPartition) -> None:
        replica = self._around.replicas.get(topic_partition)
        if replica is None or not replica.is_alive():
            log = self._around.logs.setdefault(topic_partition, MemoryLog())
            self._around.replicas[topic_partition] = self._new_replica(topic_partition, log)

    def _stop_replica(self, topic_partition: TopicPartition) -> None:
        """Stop a replica and delete its log."""
        replica = self._around.replicas.pop(topic_partition, None)
        if replica is not None:
            replica.stop(block=False)
        self._around.logs.pop(topic_partition, None)

    def _start_assigned(self, topic: str, partitions: Iterable[str]) -> None:
        """Start those of these partitions that have a replica on this broker."""
        for number in sorted(int(name) for name in partitions if name.isdecimal()):
            topic_partition = TopicPartition(topic, number)
            if topic_partition not in self._around.replicas and self._has_replica(topic_partition):
                self._start_replica(topic_partition)

    def _has_replica(self, topic_partition: TopicPartition) -> bool:
        path = replicas_path(topic_partition)
        znode = self._zookeeper.get(path)
        try:
            return znode is not None and self._around.broker_id in decode_ids(znode.data)
        except BadDataError as error:
            logger.warning("%s is not started: %s: %s", topic_partition, path, error)
            return False
