"""v2: the leader of a partition is its one brain, and queues in ZooKeeper carry its commands.

``leaderAndISR`` has leader, in-sync replicas and an epoch, and is written conditionally: a leader
that lost its session cannot change it any more. The leader adds and removes replicas by commands in
the queues of their brokers (``ZkQueue``, ``StateChangeCommand``). Elections do not wait in these
queues: each replica watches ``leader``, the ephemeral node. So there are still a watch and an
election for every partition.

A command takes six operations: the sender lists the queue, to see whether it is full, and creates a
node; the watch of the receiver fires; the receiver lists the queue, reads the node, handles the
command and deletes the node. The deletion fires the watch once more, and the receiver lists the
queue. A command is handled again when the receiver dies before the deletion.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from enum import StrEnum
from functools import partial
from typing import Any, Final, NamedTuple

from pykka import ActorRef

from regent.core.errors import BadDataError
from regent.core.model import BrokerId, TopicPartition
from regent.designs.commit_thread import ReplicasChanged
from regent.designs.design_broker import DesignBroker
from regent.designs.design_replica import (
    BegunLeadership,
    DesignReplica,
    ReplicaRole,
    Surroundings,
)
from regent.designs.leader_lock import NameLock
from regent.designs.memory_log import MemoryLog
from regent.designs.watched_zookeeper import ChildrenChanged, WatchedZooKeeper
from regent.designs.znodes import (
    BROKER_IDS,
    PARTITIONS_ADD,
    PARTITIONS_REASSIGNED,
    PARTITIONS_REMOVE,
    TOPICS,
    StoredLeadership,
    decode_ids,
    encode_ids,
    leader_and_isr_path,
    leader_path,
    partition_name,
    partition_of,
    partition_path,
    replicas_path,
    state_path,
    topic_path,
)
from regent.zk.client.operations import ANY_VERSION

logger = logging.getLogger(__name__)

_LEADER_LISTENS_TO: Final = (PARTITIONS_REASSIGNED, PARTITIONS_REMOVE)

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


class ReplicaV2(DesignReplica):
    """A replica of a partition; while it leads, it alone decides about the partition."""

    _epoch = 0
    _isr: tuple[BrokerId, ...] = ()
    _target: tuple[BrokerId, ...] | None = None  # of the reassignment in progress

    # --- leadership ---

    def _read_isr(self) -> tuple[BrokerId, ...]:
        return self._read()[0].isr

    def _begin_leadership(self) -> BegunLeadership | None:
        me, (stored, version) = self._around.broker_id, self._read()
        isr = tuple(b for b in stored.isr if b in self._replicas) or (me,)
        epoch = self._epoch = stored.epoch + 1
        path = leader_and_isr_path(self._topic_partition)

        def write_isr(isr: tuple[BrokerId, ...]) -> bool:
            """Write the ISR, if nobody else has written since this leadership began."""
            nonlocal version
            data = StoredLeadership(me, isr, epoch).encode()
            is_written = self._zookeeper.set(path, data, version)
            version += is_written
            return is_written

        return BegunLeadership(isr, write_isr) if me in isr and write_isr(isr) else None

    def _read(self) -> tuple[StoredLeadership, int]:
        """Read ``leaderAndISR`` and its version."""
        znode = self._zookeeper.get(leader_and_isr_path(self._topic_partition))
        if znode is None:
            return StoredLeadership(), ANY_VERSION
        return StoredLeadership.decode(znode.data), znode.stat.version

    def _lead(self, leadership: BegunLeadership) -> None:
        super()._lead(leadership)
        self._isr, self._target = leadership.isr, None
        for path in _LEADER_LISTENS_TO:
            names = self._zookeeper.listen_to_children(path, self.actor_ref)
            self._on_change(ChildrenChanged(path, names))

    def _become(self, role: ReplicaRole, leader: BrokerId | None) -> None:
        if self._role is ReplicaRole.LEADER:
            for path in _LEADER_LISTENS_TO:
                self._zookeeper.unlisten(path, self.actor_ref)
        super()._become(role, leader)

    # --- what only the leader does ---

    def _on_change(self, message: Any) -> None:
        name = partition_name(self._topic_partition)
        match message:
            case _ if self._role is not ReplicaRole.LEADER:
                pass
            case ChildrenChanged(path, names) if path == PARTITIONS_REMOVE and name in names:
                self._remove()
            case ChildrenChanged(path, names) if path == PARTITIONS_REASSIGNED:
                if name not in names:
                    self._target = None
                elif self._target is None:
                    self._reassign(self._ids_in(f"{path}/{name}"))

    def _reassign(self, target: tuple[BrokerId, ...]) -> None:
        """Start the replicas that are not in sync; the others stop when these are.

        The leader before may have sent such commands, too: they are void in this epoch.
        """
        self._target = target
        added = tuple(b for b in target if b not in self._replicas)
        self._use_replicas(self._replicas + added)
        for broker_id in target:
            if broker_id not in self._isr:
                self._command(broker_id, StateChangeCommand.START_REPLICA)
        self._on_isr(self._isr)

    def _on_isr(self, isr: tuple[BrokerId, ...]) -> None:
        self._isr = isr
        target = self._target
        if target is None or not set(target) <= set(isr):
            return
        me, removed = self._around.broker_id, set(self._replicas) - set(target)
        self._use_replicas(target)
        self._zookeeper.delete(f"{PARTITIONS_REASSIGNED}/{partition_name(self._topic_partition)}")
        self._target = None
        for broker_id in sorted(removed, key=lambda b: b == me):  # this replica comes last
            self._command(broker_id, StateChangeCommand.STOP_REPLICA)
        if me in removed:
            self._lock.release()  # its session goes on, and would keep the lock

    def _remove(self) -> None:
        """Stop every replica, and delete the partition."""
        name, me = partition_name(self._topic_partition), self._around.broker_id
        for broker_id in sorted(self._replicas, key=lambda b: b == me):
            self._command(broker_id, StateChangeCommand.STOP_REPLICA)
        self._lock.release()
        for path in (
            replicas_path(self._topic_partition),
            leader_and_isr_path(self._topic_partition),
            leader_path(self._topic_partition),
            partition_path(self._topic_partition),
            f"{PARTITIONS_REMOVE}/{name}",
        ):
            self._zookeeper.delete(path)

    def _use_replicas(self, replicas: tuple[BrokerId, ...]) -> None:
        if replicas == self._replicas or self._commit_thread is None:
            return
        self._replicas = replicas
        self._zookeeper.set(replicas_path(self._topic_partition), encode_ids(replicas))
        self._commit_thread.tell(ReplicasChanged(replicas))

    def _command(self, broker_id: BrokerId, command: StateChangeCommand) -> None:
        """Queue a command for a broker; when its queue is full, a little later."""
        change = StateChange(command, self._topic_partition, self._epoch)
        if not StateChangeQueue(self._zookeeper, broker_id).put(change):
            self._later(QUEUE_FULL_WAIT_MS, lambda: self._command(broker_id, command))


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
