"""v1: every replica watches ZooKeeper and decides for itself.

A partition has the nodes ``replicas``, ``leader`` (a lock) and ``ISR``. Every replica has its own
listeners: brokers, topics, partitions, its replica list, its lock. When the lock is free, each
in-sync replica tries to take it; who has it leads. Nobody else decides, and nothing carries an
epoch: a leader that lost its session writes ``ISR`` like the one that replaced it.
"""

from __future__ import annotations

from typing import Any

from pykka import ActorRef

from regent.core.model import BrokerId, TopicPartition
from regent.designs.design_broker import DesignBroker
from regent.designs.design_replica import (
    BegunLeadership,
    DesignReplica,
    LockOf,
    ReplicaRole,
    Surroundings,
)
from regent.designs.memory_log import MemoryLog
from regent.designs.watched_zookeeper import ChildrenChanged, DataChanged
from regent.designs.znodes import (
    BROKER_IDS,
    TOPICS,
    decode_ids,
    encode_ids,
    isr_path,
    replicas_path,
    topic_path,
)
from regent.zk.client.operations import Znode


class ReplicaV1(DesignReplica):
    """A replica of a partition, with its own listeners."""

    def on_start(self) -> None:
        """Listen to everything, and follow or stand for election."""
        zookeeper, listener = self._zookeeper, self.actor_ref
        for path in (BROKER_IDS, TOPICS, topic_path(self._topic_partition.topic)):
            zookeeper.listen_to_children(path, listener)
        self._on_replicas(zookeeper.listen_to_data(replicas_path(self._topic_partition), listener))
        if self._around.broker_id in self._replicas:
            super().on_start()

    def _on_change(self, message: Any) -> None:
        match message:
            case ChildrenChanged(path, names) if path == BROKER_IDS:
                if self._role is ReplicaRole.FOLLOWER and str(self._leader) not in names:
                    self._ask_again()
            case ChildrenChanged(path, names):
                topic, partition = self._topic_partition
                if (topic if path == TOPICS else str(partition)) not in names:
                    self._leave()
            case DataChanged(path, znode) if path == replicas_path(self._topic_partition):
                self._on_replicas(znode)

    def _on_replicas(self, znode: Znode | None) -> None:
        self._replicas = () if znode is None else decode_ids(znode.data)
        if self._around.broker_id not in self._replicas:
            self._leave()

    def _leave(self) -> None:
        """The partition, or this replica of it, is gone."""
        self._lock.release()
        self.stop()

    def _read_isr(self) -> tuple[BrokerId, ...]:
        return self._ids_in(isr_path(self._topic_partition))

    def _begin_leadership(self) -> BegunLeadership:
        isr = self._read_isr() or (self._around.broker_id,)
        self._write_isr(isr)
        return BegunLeadership(isr, self._write_isr)

    def _write_isr(self, isr: tuple[BrokerId, ...]) -> bool:
        """Write the in-sync replicas, also if another replica leads by now: nothing is compared."""
        self._zookeeper.set(isr_path(self._topic_partition), encode_ids(isr))
        return True


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
