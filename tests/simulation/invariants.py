"""What must hold after every step, and what must hold once the cluster is left in peace."""

from __future__ import annotations

from contextlib import suppress

from core.errors import BadDataError
from core.model import NO_LEADER, BrokerId, ReplicaAssignment, TopicPartition
from core.replication.partition import Role
from tests.simulation.cluster import Cluster
from tests.support.fake_zookeeper import Transaction
from zk.operations import Create, Delete, SetData
from zk.znodes import (
    BrokerIdsZNode,
    ControllerEpochZNode,
    ControllerZNode,
    TopicPartitionStateZNode,
    TopicZNode,
)


def partition_of(path: str) -> TopicPartition | None:
    """Return the partition whose ``state`` znode ``path`` is."""
    parts = path.split("/")
    if len(parts) == 7 and parts[1:3] == ["brokers", "topics"] and parts[6] == "state":
        return TopicPartition(parts[3], int(parts[5]))
    return None


class Invariants:
    """Reads the transactions since it was last asked; raises ``AssertionError``."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._read = 0
        self._controller_epoch = 0
        self._leaders: dict[tuple[TopicPartition, int], BrokerId] = {}
        self._leader_epochs: dict[TopicPartition, int] = {}
        self._assignments: dict[str, dict[int, ReplicaAssignment]] = {}
        self._obeyed: dict[tuple[int, TopicPartition], int] = {}
        self._controller_epochs_seen: dict[int, int] = {}

    def check(self) -> None:
        """Check everything that happened since the last time."""
        transactions = self._cluster.zookeeper.transactions
        for transaction in transactions[self._read :]:
            self._check_transaction(transaction)
        self._read = len(transactions)
        self._check_obedience()

    def _check_transaction(self, transaction: Transaction) -> None:
        writes = {
            operation.path: operation.data
            for operation in transaction.operations
            if isinstance(operation, Create | SetData)
        }
        created = {op.path for op in transaction.operations if isinstance(op, Create)}
        if ControllerEpochZNode.PATH in writes and transaction.session_id:
            self._check_election(writes, created)
        for operation in transaction.operations:
            if isinstance(operation, Delete):
                self._forget(operation.path)
        for path, data in writes.items():
            parent, _, topic = path.rpartition("/")
            if parent == "/brokers/topics":
                with suppress(BadDataError):  # an unreadable znode changes no assignment
                    self._assignments[topic] = dict(TopicZNode.decode(data).partitions)
            partition = partition_of(path)
            if partition is not None:
                self._check_leadership(transaction, partition, data)

    def _check_election(self, writes: dict[str, bytes], created: set[str]) -> None:
        epoch = ControllerEpochZNode.decode(writes[ControllerEpochZNode.PATH])
        if ControllerEpochZNode.PATH in created:
            assert epoch == 0
            return
        assert epoch == self._controller_epoch + 1, "MonotonicControllerEpoch"
        assert ControllerZNode.PATH in created, "an election is one transaction"
        self._controller_epoch = epoch

    def _check_leadership(
        self, transaction: Transaction, partition: TopicPartition, data: bytes
    ) -> None:
        state = TopicPartitionStateZNode.decode(data, 0)
        now = state.leader_and_isr
        where = f"{partition} at zxid {transaction.zxid}: {state}"
        assert state.controller_epoch == self._controller_epoch, f"a fenced write, {where}"
        assert now.isr, f"IsrNotEmpty, {where}"
        assert now.leader == NO_LEADER or now.leader in now.isr, f"LeaderInIsr, {where}"
        replicas = self._assignments[partition.topic][partition.partition].replicas
        assert set(now.isr) <= set(replicas), f"IsrSubsetOfReplicas, {where}"
        before = self._leader_epochs.get(partition, -1)
        assert now.leader_epoch > before, f"MonotonicLeaderEpoch, {where}"
        self._leader_epochs[partition] = now.leader_epoch
        led_by = self._leaders.setdefault((partition, now.leader_epoch), now.leader)
        assert led_by == now.leader, f"SingleLeader, {where}"

    def _forget(self, path: str) -> None:
        partition = partition_of(path)
        if partition is not None:
            self._leader_epochs.pop(partition, None)

    def _check_obedience(self) -> None:
        for broker in self._cluster.brokers.values():
            seen = self._controller_epochs_seen.get(id(broker), 0)
            now = broker.replica_manager.controller_epoch
            assert now >= seen, f"broker {broker.broker_id} obeyed a deposed controller"
            self._controller_epochs_seen[id(broker)] = now
            for name, partition in broker.replica_manager.partitions.items():
                key = (id(broker), name)
                epoch = self._obeyed.get(key, -1)
                assert partition.leader_epoch >= epoch, f"{name} obeyed an old leader epoch"
                self._obeyed[key] = partition.leader_epoch


def assert_converged(cluster: Cluster) -> None:
    """Check a cluster without faults in which nothing is left to do."""
    nodes = cluster.zookeeper.snapshot()
    prefix = BrokerIdsZNode.PATH + "/"
    registered = {int(path.removeprefix(prefix)) for path in nodes if path.startswith(prefix)}
    assert registered == set(cluster.brokers), f"registered {registered}"
    ruling = cluster.active_controllers
    assert len(ruling) == 1, f"SingleController: {[b.broker_id for b in ruling]} rule"
    assert ControllerZNode.decode(nodes[ControllerZNode.PATH].data) == ruling[0].broker_id
    epoch = ControllerEpochZNode.decode(nodes[ControllerEpochZNode.PATH].data)
    assert ruling[0].controller.context.epoch == epoch
    for path, node in nodes.items():
        parent, _, topic = path.rpartition("/")
        if parent != "/brokers/topics":
            continue
        stored = TopicZNode.decode(node.data)
        assert stored.topic_id is not None, f"{topic} has no id"
        for number, assignment in stored.partitions.items():
            _assert_partition_converged(cluster, TopicPartition(topic, number), assignment)


def _assert_partition_converged(
    cluster: Cluster, partition: TopicPartition, assignment: ReplicaAssignment
) -> None:
    live = set(cluster.brokers)
    stored = cluster.leadership(partition)
    if stored is None:
        assert not live & set(assignment.replicas), f"{partition} was never led"
        return
    now = stored.leader_and_isr
    if live & set(now.isr):
        assert now.leader in live, f"{partition} could be led: {now}"
        assert set(now.isr) <= live, f"{partition} has dead members in its ISR: {now}"
    else:
        assert now.leader == NO_LEADER, f"{partition} is led by a dead broker: {now}"
    for broker_id, broker in cluster.brokers.items():
        row = broker.cache.snapshot.partitions.get(partition)
        assert row is not None, f"broker {broker_id} does not know {partition}"
        assert (row.leader, row.leader_epoch, row.isr) == (now.leader, now.leader_epoch, now.isr), (
            f"broker {broker_id} believes {row}, ZooKeeper says {now}"
        )
        hosted = broker.replica_manager.partitions.get(partition)
        if broker_id not in assignment.replicas:
            continue
        assert hosted is not None, f"broker {broker_id} does not host {partition}"
        assert (hosted.leader, hosted.leader_epoch) == (now.leader, now.leader_epoch), (
            f"broker {broker_id} obeys {hosted}, ZooKeeper says {now}"
        )
        assert (hosted.role is Role.LEADER) == (now.leader == broker_id)
