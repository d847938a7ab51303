"""The brokers of v1 and v2: they register, and start and stop replicas."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any, Final

from pykka import ActorDeadError, ActorRef

from regent.core.errors import BadDataError
from regent.core.model import BrokerId, TopicPartition
from regent.designs.design_replica import LockOf, PeerRestarted, Surroundings
from regent.designs.leader_lock import NameLock
from regent.designs.memory_log import MemoryLog
from regent.designs.pooled_actor import PooledActor
from regent.designs.state_change_queue import (
    ADMIN_EPOCH,
    QUEUE_FULL_WAIT_MS,
    StateChange,
    StateChangeCommand,
    StateChangeQueue,
)
from regent.designs.v1 import ReplicaV1
from regent.designs.v2 import ReplicaV2
from regent.designs.watched_zookeeper import ChildrenChanged, SessionBegan
from regent.designs.znodes import (
    BROKER_IDS,
    PARTITIONS_ADD,
    PERSISTENT_PATHS,
    TOPICS,
    StoredLeadership,
    broker_path,
    decode_ids,
    encode_ids,
    leader_and_isr_path,
    partition_of,
    partition_path,
    replicas_path,
    topic_path,
)

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
        for topic_partition in list(self._around.replicas):
            self._around.replicas.pop(topic_partition).stop(block=False)

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


class BrokerV1(DesignBroker):
    """Listens to topics and partitions, and starts the replicas that are on it."""

    def __init__(self, around: Surroundings, address: bytes, lock_of: LockOf) -> None:
        super().__init__(around, address)
        self._lock_of = lock_of

    def on_start(self) -> None:
        """Register, and start the replicas."""
        super().on_start()
        self._on_children(TOPICS, self._zookeeper.listen_to_children(TOPICS, self.actor_ref))

    def _new_replica(self, topic_partition: TopicPartition, log: MemoryLog) -> ActorRef[Any]:
        return ReplicaV1.start(self._around, topic_partition, log, self._lock_of)

    def _on_children(self, path: str, names: frozenset[str]) -> None:
        if path == TOPICS:
            for topic in sorted(names):
                path = topic_path(topic)
                partitions = self._zookeeper.listen_to_children(path, self.actor_ref)
                self._on_children(path, partitions)
        else:
            topic = path.rpartition("/")[2]
            self._forget_all_but(topic, names)
            self._start_assigned(topic, names)

    def _forget_all_but(self, topic: str, partitions: frozenset[str]) -> None:
        """Forget replicas of partitions that are gone; they notice it themselves."""
        for topic_partition in list(self._around.replicas):
            if topic_partition.topic == topic and str(topic_partition.partition) not in partitions:
                self._stop_replica(topic_partition)


class BrokerV2(DesignBroker):
    """Does what the commands in its queue say, one after the other."""

    def __init__(self, around: Surroundings, address: bytes) -> None:
        super().__init__(around, address)
        self._queue = StateChangeQueue(around.zookeeper, around.broker_id)
        self._seen: frozenset[str] = frozenset()  # of the partitions to add

    def on_start(self) -> None:
        """Register, start the replicas, and listen to the queue and to new partitions."""
        super().on_start()
        for topic in self._zookeeper.children(TOPICS):
            self._start_assigned(topic, self._zookeeper.children(topic_path(topic)))
        self._zookeeper.create(self._queue.path)
        for path in (self._queue.path, PARTITIONS_ADD, BROKER_IDS):
            self._on_children(path, self._zookeeper.listen_to_children(path, self.actor_ref))

    def _new_replica(self, topic_partition: TopicPartition, log: MemoryLog) -> ActorRef[Any]:
        return ReplicaV2.start(self._around, topic_partition, log, NameLock)

    def _on_children(self, path: str, names: frozenset[str]) -> None:
        if path == self._queue.path:
            self._queue.handle_new(names, self._apply)
        elif path == PARTITIONS_ADD:
            new, self._seen = names - self._seen, names
            for name in sorted(new):
                try:
                    self._add_partition(name)
                except BadDataError as error:
                    logger.warning("%s/%s is ignored, delete it: %s", path, name, error)
        else:  # another broker may be the first live one now
            self._seen = frozenset()
            listed = self._zookeeper.listen_to_children(PARTITIONS_ADD, self.actor_ref)
            self._on_children(PARTITIONS_ADD, listed)

    def _apply(self, change: StateChange) -> None:
        """Start a replica for the present leader only; stop one for anybody, as Kafka had it.

        A topic was to be deleted even from a broker that was down meanwhile, so that the command to
        stop a replica is not compared with the epoch. A leader of the past can stop one, too.
        """
        topic_partition = change.topic_partition
        if change.command is StateChangeCommand.STOP_REPLICA:
            self._stop_replica(topic_partition)
            return
        znode = self._zookeeper.get(leader_and_isr_path(topic_partition))
        epoch = ADMIN_EPOCH if znode is None else StoredLeadership.decode(znode.data).epoch
        if change.epoch in (epoch, ADMIN_EPOCH):
            self._start_replica(topic_partition)

    def _add_partition(self, name: str) -> None:
        """Create a partition, if this broker is the first live one of its replicas."""
        path, topic_partition = f"{PARTITIONS_ADD}/{name}", partition_of(name)
        znode = self._zookeeper.get(path)
        replicas = () if znode is None else decode_ids(znode.data)
        alive = self._zookeeper.children(BROKER_IDS) if replicas else []
        if next((b for b in replicas if str(b) in alive), None) != self._around.broker_id:
            return
        self._zookeeper.create(topic_path(topic_partition.topic))
        self._zookeeper.create(partition_path(topic_partition))
        self._zookeeper.create(leader_and_isr_path(topic_partition), StoredLeadership().encode())
        self._zookeeper.create(replicas_path(topic_partition), encode_ids(replicas))
        change = StateChange(StateChangeCommand.START_REPLICA, topic_partition, ADMIN_EPOCH)
        for broker_id in replicas:
            if not StateChangeQueue(self._zookeeper, broker_id).put(change):
                self._later(QUEUE_FULL_WAIT_MS, partial(self._add_partition, name))
                return
        self._zookeeper.delete(path)
