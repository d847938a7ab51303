"""v2: the leader of a partition is its one brain, and queues in ZooKeeper carry its commands.

``leaderAndISR`` has leader, in-sync replicas and an epoch, and is written conditionally: a leader
that lost its session cannot change it any more. The leader adds and removes replicas by commands in
the queues of their brokers. Elections do not wait in these queues: each replica watches ``leader``,
the ephemeral node. So there are still a watch and an election for every partition.
"""

from __future__ import annotations

from typing import Any, Final

from regent.core.model import BrokerId
from regent.designs.commit_thread import ReplicasChanged
from regent.designs.design_replica import BegunLeadership, DesignReplica
from regent.designs.requests import ReplicaRole
from regent.designs.state_change_queue import (
    QUEUE_FULL_WAIT_MS,
    StateChange,
    StateChangeCommand,
    StateChangeQueue,
)
from regent.designs.watched_zookeeper import ChildrenChanged, WatchedZooKeeper
from regent.designs.znodes import (
    PARTITIONS_REASSIGNED,
    PARTITIONS_REMOVE,
    StoredLeadership,
    encode_ids,
    leader_and_isr_path,
    leader_path,
    partition_name,
    partition_path,
    replicas_path,
)
from regent.zk.client.operations import ANY_VERSION

_LEADER_LISTENS_TO: Final = (PARTITIONS_REASSIGNED, PARTITIONS_REMOVE)


class LeaderAndIsrWriter:
    """``leaderAndISR`` as one leadership writes it: while nobody else has written it since.

    ``version`` is that of the znode when the leadership began.
    """

    def __init__(
        self, zookeeper: WatchedZooKeeper, path: str, leader: BrokerId, epoch: int, version: int
    ) -> None:
        self._zookeeper = zookeeper
        self._path = path
        self._leader = leader
        self._epoch = epoch
        self._version = version

    def write(self, isr: tuple[BrokerId, ...]) -> bool:
        """Write the in-sync replicas; False when that is refused."""
        stored = StoredLeadership(self._leader, isr, self._epoch)
        is_written = self._zookeeper.set(self._path, stored.encode(), self._version)
        self._version += is_written
        return is_written


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
        self._epoch = stored.epoch + 1
        path = leader_and_isr_path(self._topic_partition)
        writer = LeaderAndIsrWriter(self._zookeeper, path, me, self._epoch, version)
        if me in isr and writer.write(isr):
            return BegunLeadership(isr, writer.write)
        return None

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
