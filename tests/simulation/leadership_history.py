"""Check all transactions in ZooKeeper: controller elections, leaderships, fences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from regent.core.admin.topic_settings import UNCLEAN_LEADER_ELECTION
from regent.core.errors import BadDataError
from regent.core.model import (
    NO_CONTROLLER,
    NO_LEADER,
    BrokerId,
    LeaderAndIsr,
    LeaderRecoveryState,
    ReplicaAssignment,
    TopicPartition,
)
from regent.core.protocol.controller import (
    AlterPartitionRequest,
    AlterPartitionRow,
    ControlledShutdownRequest,
)
from regent.core.protocol.messages.partitions import (
    ElectionType,
    ElectLeadersRequest,
)
from regent.zk.client.operations import Check, Create, Delete, Operation, SetData
from regent.zk.codecs.broker_znodes import SuspectZnodes
from regent.zk.stores.znode_store import decode_suspects
from regent.zk.znodes import (
    BrokerIdZNode,
    ConfigEntityZNode,
    ControllerEpochZNode,
    ControllerZNode,
    DeleteTopicsZNode,
    TopicPartitionStateZNode,
    TopicZNode,
    partition_of_state,
    suspect_paths,
)
from tests.simulation.broker import SimulatedBroker
from tests.simulation.cluster import Cluster
from tests.simulation.kafka_protocol import KafkaCall
from tests.simulation.network import Exchange
from tests.simulation.situations import Situation, Situations
from tests.support.zookeeper_replica import Transaction

TOPIC_CONFIGS = "/config/topics/"
BROKER_CONFIGS = "/config/brokers/"


class Belief(NamedTuple):
    """A leadership in a metadata cache or in a LeaderAndIsr request."""

    leader: BrokerId
    leader_epoch: int
    isr: tuple[BrokerId, ...]
    partition_epoch: int


class LeadershipHistory:
    """Checks every transaction once; raises ``AssertionError``.

    S1, S2: only the active controller writes, with a fence; an election is one transaction.
    S3: every leadership follows from the one before. S12: unclean elections only where allowed.
    """

    def __init__(self, cluster: Cluster, situations: Situations) -> None:
        self._situations = situations
        self._being_deleted: set[str] = set()  # topics queued for deletion
        self._deletions_in_term: Counter[int] = Counter()
        self.controller_epoch = 0
        self.elections = 0  # of controllers; includes epochs that they raised
        self.elected: set[tuple[BrokerId, int]] = set()  # controllers and their epochs
        self.ever_held: dict[TopicPartition, set[Belief]] = {}
        self.ever_led: set[tuple[TopicPartition, BrokerId, int]] = set()
        self.current: dict[TopicPartition, LeaderAndIsr] = {}
        self.elected_zxids: dict[TopicPartition, int] = {}  # of the present leader epoch
        self.allow_unclean_everywhere = False
        self.leaders_write_isrs = False
        self.is_epoch_tampered_with = False
        self.is_ruled_by_kafka = False  # the controller that was elected last
        self._of_kafka: set[int] = set()  # sessions of brokers of Kafka
        self._writers: set[int] = set()  # sessions of leaders that write ISRs themselves
        self.leave_requests: Counter[ControlledShutdownRequest] = Counter()
        self.on_deletion_requested: Callable[[str], None] = lambda topic: None
        self.on_topic_lost: Callable[[str, str, Mapping[int, ReplicaAssignment]], None] = (
            lambda topic, topic_id, assignment: None
        )
        self.on_given_up: Callable[[str], None] = lambda topic: None
        self.on_operation: Callable[[Operation], None] = lambda operation: None
        self.on_unclean_election: Callable[[TopicPartition, str, int], None] = lambda *election: (
            None
        )
        self.on_state: Callable[[TopicPartition, LeaderAndIsr], None] = lambda *state: None
        self._cluster = cluster
        self._read = 0
        self._controller_session = 0
        self._controller_id = NO_CONTROLLER
        self._assignments: dict[str, dict[int, ReplicaAssignment]] = {}
        self._topic_ids: dict[str, str] = {}
        self._unreadable: set[str] = set()
        self._unclean_topics: set[str] = set()
        self._unclean_partitions: set[TopicPartition] = set()
        self._proposals: dict[TopicPartition, list[tuple[AlterPartitionRequest, AlterPartitionRow]]]
        self._proposals = {}
        self._unclean_elections: dict[SimulatedBroker, int] = {}
        self._successors: dict[BrokerId, dict[TopicPartition, tuple[BrokerId, int, int]]] = {}

    def note_sent(self, exchange: Exchange) -> None:
        """Store a request: it may justify a write."""
        request = exchange.request
        if isinstance(request, KafkaCall):
            request = request.request
        if isinstance(request, AlterPartitionRequest):
            if exchange.sender is None:
                return  # a forgery justifies nothing
            assert isinstance(exchange.sender, SimulatedBroker), exchange
            for row in request.partitions:
                if not self._of_kafka:  # old brokers of Kafka do not say which life a fetch is of
                    _check_proposal(exchange.sender, row)
                self._proposals.setdefault(row.topic_partition, []).append((request, row))
        elif isinstance(request, ControlledShutdownRequest):
            self.leave_requests[request] += 1
        elif (
            isinstance(request, ElectLeadersRequest)
            and request.election_type == ElectionType.UNCLEAN
        ):
            self.allow_unclean_everywhere |= request.partitions is None
            self._unclean_partitions.update(request.partitions or ())

    def is_active_controller(self, broker: SimulatedBroker) -> bool:
        """Whether a broker is the active controller in its own view and in ZooKeeper's."""
        is_its_term = broker.controller.context.epoch == self.controller_epoch
        return is_its_term and broker.session.session_id == self._controller_session

    def topic_id(self, topic: str) -> str:
        """Return the id of a topic; empty if it has none, or does not exist."""
        return self._topic_ids.get(topic, "")

    def assignment(self, partition: TopicPartition) -> ReplicaAssignment | None:
        """Return the assignment of a partition, if its topic is readable."""
        is_readable = partition.topic not in self._unreadable
        stored = self._assignments.get(partition.topic, {}) if is_readable else {}
        return stored.get(partition.partition)

    def is_proposed(self, broker_id: BrokerId, partition: TopicPartition) -> bool:
        """Whether a sent request, perhaps of a dead leader, can still add a broker to the ISR."""
        now = self.current.get(partition)
        return now is not None and any(
            broker_id in row.new_isr
            and row.topic_id == self.topic_id(partition.topic)
            and (row.leader_epoch, row.partition_epoch) == (now.leader_epoch, now.partition_epoch)
            for _, row in self._proposals.get(partition, ())
        )

    def successors(
        self, broker_id: BrokerId
    ) -> list[tuple[TopicPartition, tuple[BrokerId, int, int]]]:
        """Return the new leaders of partitions: leader, leader epoch, number of the event."""
        return sorted(self._successors.get(broker_id, {}).items())

    def check(self) -> None:
        """Check the transactions since the last call."""
        for broker in self._cluster.brokers.values():
            if broker.settings.isr_changes_through_zookeeper:
                self._writers.add(broker.session.session_id)
            if broker.is_of_kafka:
                self._of_kafka.add(broker.session.session_id)
        transactions = self._cluster.zookeeper.transactions
        while self._read < len(transactions):
            self._check_transaction(transactions[self._read])
            self._read += 1

    def _check_transaction(self, transaction: Transaction) -> None:
        is_brokers = transaction.session_id != 0 and not transaction.ends_session
        if is_brokers:
            self._check_election(transaction)
            self._check_fence(transaction)
        for operation in transaction.operations:
            if isinstance(operation, Check):
                continue
            self.on_operation(operation)
            parent, _, name = operation.path.rpartition("/")
            if parent == "/brokers/topics":
                self._note_topic(name, operation, is_brokers=is_brokers)
            elif parent == DeleteTopicsZNode.PATH and isinstance(operation, Create | Delete):
                (self.on_deletion_requested if isinstance(operation, Create) else self.on_given_up)(
                    name
                )
                if isinstance(operation, Create):
                    self._being_deleted.add(name)
                    self._deletions_in_term[self.controller_epoch] += 1
                    is_second = self._deletions_in_term[self.controller_epoch] > 1
                    self._situations.meet_if(is_second, Situation.SECOND_DELETION_IN_ONE_TERM)
                else:
                    self._being_deleted.discard(name)
            elif operation.path.startswith("/config/"):
                self._note_config(operation)
            elif name == "state":
                self._check_state(transaction, operation)
                partition = partition_of_state(operation.path)
                if partition in self.current:
                    self.on_state(partition, self.current[partition])

    # --- elections and fences ---

    def _check_election(self, transaction: Transaction) -> None:
        created = {op.path for op in transaction.operations if isinstance(op, Create)}
        for operation in transaction.operations:
            if not isinstance(operation, Create | SetData):
                continue
            if operation.path != ControllerEpochZNode.PATH:
                continue
            epoch = ControllerEpochZNode.decode(operation.data)
            if isinstance(operation, Create):
                assert epoch == 0, "the first epoch is 0"
                continue
            is_next = epoch == self.controller_epoch + 1 or self.is_epoch_tampered_with
            assert is_next, f"MonotonicControllerEpoch: {epoch}"
            if ControllerZNode.PATH not in created:
                self._check_raised_epoch(transaction)
            moving = any(
                assignment.is_being_reassigned
                for stored in self._assignments.values()
                for assignment in stored.values()
            )
            self._situations.meet_if(moving, Situation.FAILOVER_IN_MOVE)
            self._situations.meet_if(self._being_deleted, Situation.FAILOVER_IN_DELETION)
            self.controller_epoch = epoch
            self.elections += 1
            self._controller_session = transaction.session_id
            self._controller_id = _controller_of(transaction, self._controller_id)
            self.is_ruled_by_kafka = transaction.session_id in self._of_kafka
            self.elected.add((self._controller_id, epoch))
            return
        assert ControllerZNode.PATH not in created, "an election is one transaction"

    def _check_raised_epoch(self, transaction: Transaction) -> None:
        """A controller whose epoch was refused raises it while it holds ``/controller``."""
        assert self.is_epoch_tampered_with, "an election is one transaction"
        assert transaction.session_id == self._controller_session, (
            "a deposed controller raises the epoch"
        )
        fence, *_ = transaction.operations
        assert isinstance(fence, Check), transaction
        assert fence.path == ControllerZNode.PATH, transaction

    def _check_fence(self, transaction: Transaction) -> None:
        fenced = [op for op in transaction.operations if _is_duty(op)]
        if not fenced or self._is_of_leader(transaction):
            return
        fence, *_ = transaction.operations
        is_fenced = isinstance(fence, Check) and fence.path == ControllerEpochZNode.PATH
        takes_over = any(  # the election of one that takes the place of a controller
            isinstance(op, SetData) and op.path == ControllerEpochZNode.PATH and op.version >= 0
            for op in transaction.operations
        )
        assert is_fenced or takes_over, f"an unfenced write: {fenced[0]}"
        if fenced[0].path != ControllerZNode.PATH:  # a candidate may remove it as well
            assert transaction.session_id == self._controller_session, (
                f"session {transaction.session_id} wrote {fenced[0]} and is not the controller"
            )

    # --- what leaderships depend on ---

    def _note_topic(self, topic: str, operation: Operation, *, is_brokers: bool) -> None:
        if isinstance(operation, Delete):
            if is_brokers:  # a tool does not check for logs
                self._check_logs_are_gone(topic)
            elif self._topic_ids.get(topic) is not None:
                self.on_topic_lost(topic, self._topic_ids[topic], self._assignments[topic])
            self.on_given_up(topic)
            self._assignments.pop(topic, None)
            self._topic_ids.pop(topic, None)
        elif isinstance(operation, Create | SetData):
            try:
                stored = TopicZNode.decode(operation.data)
            except BadDataError:
                self._unreadable.add(topic)
                return
            self._unreadable.discard(topic)
            if is_brokers and isinstance(operation, SetData):
                assert operation.version >= 0, f"a topic is written without a version: {operation}"
                self._check_moves(topic, stored.partitions)
            self._assignments[topic] = dict(stored.partitions)
            if stored.topic_id is not None:
                first = self._topic_ids.setdefault(topic, stored.topic_id)
                is_led = any(partition.topic == topic for partition in self.current)
                is_kept = first == stored.topic_id or not is_led  # brokers do not know it before
                assert is_kept, f"TopicKeepsItsId: {topic} had {first}: {stored}"
                self._topic_ids[topic] = stored.topic_id

    def _check_moves(self, topic: str, now: Mapping[int, ReplicaAssignment]) -> None:
        """A reassignment ends when no removed replica can still believe to be a replica."""
        for number, before in self._assignments.get(topic, {}).items():
            after, partition = now.get(number, before), TopicPartition(topic, number)
            if not before.is_being_reassigned or after == before:
                continue
            if after.is_being_reassigned:
                self._situations.meet(Situation.MOVE_SUPERSEDED)
                continue
            is_done = set(after.replicas) == set(before.target_replicas)
            kind = Situation.MOVE_FINISHED if is_done else Situation.MOVE_CANCELLED
            self._situations.meet(kind)
            state = self.current.get(partition)
            if not is_done or state is None:
                continue
            gone = set(before.replicas) - set(after.replicas)
            assert state.leader not in gone, f"{partition} moved, and is led by {state.leader}"
            for broker_id in gone & self._cluster.brokers.keys():
                hosted = self._cluster.brokers[broker_id].replica_manager.partitions.get(partition)
                is_behind = hosted is None or hosted.leader_epoch < state.leader_epoch
                is_same = hosted is not None and hosted.topic_id == self._topic_ids.get(topic)
                assert is_behind or not is_same, f"{broker_id} knows the epoch: {hosted}, {state}"

    def _check_logs_are_gone(self, topic: str) -> None:
        """S10: a topic is forgotten when no replica has a log; not checked if it is unreadable.

        Not checked either if it never had an id: no broker was told of it. A log without an id is
        of an earlier topic of the same name then, which an admin removed by hand.
        """
        topic_id = self._topic_ids.get(topic)
        if topic in self._unreadable or topic_id is None:
            return
        for number, assignment in self._assignments.get(topic, {}).items():
            partition = TopicPartition(topic, number)
            for broker_id in assignment.replicas:
                log_id = self._cluster.disks[broker_id].kept_topic_id(partition)
                where = f"{topic} is deleted, and broker {broker_id} has a log of {partition}"
                assert log_id != topic_id, where

    def _note_config(self, operation: Operation) -> None:
        is_of_entity = operation.path.startswith((TOPIC_CONFIGS, BROKER_CONFIGS))
        if not is_of_entity or not isinstance(operation, Create | SetData):
            return
        if ConfigEntityZNode.decode(operation.data).get(UNCLEAN_LEADER_ELECTION) == "true":
            self._unclean_topics.add(operation.path.removeprefix(TOPIC_CONFIGS))
            self.allow_unclean_everywhere |= operation.path.startswith(BROKER_CONFIGS)

    # --- leaderships ---

    def may_be_withheld(self, partition: TopicPartition, leader_epoch: int) -> bool:
        """Whether brokers may learn "no leader" in an epoch in which there was a leader.

        The leader may have lost records, and the controller cannot elect another one: the state
        znode is deleted, or the controller does not know yet that it is deposed.
        """
        held = self.ever_held.get(partition, ())
        return any(belief.leader_epoch == leader_epoch for belief in held)

    def _check_state(self, transaction: Transaction, operation: Operation) -> None:
        partition = partition_of_state(operation.path)
        if partition is None:
            return
        if isinstance(operation, Delete):
            self.current.pop(partition, None)
            return
        assert isinstance(operation, Create | SetData)
        before = self.current.get(partition)
        version = 0 if before is None else before.partition_epoch + 1
        state = TopicPartitionStateZNode.decode(operation.data, version)
        now = state.leader_and_isr
        where = f"{partition} at zxid {transaction.zxid}: {before} → {now}"
        self._note_state(partition, now, transaction.zxid)
        self._check_leadership(partition, before, now, where)
        if self._is_of_leader(transaction):
            assert isinstance(operation, SetData), where
            assert before is not None, where
            assert operation.version == before.partition_epoch, f"VersionChain, {where}"
            kept = now._replace(
                isr=before.isr,
                leader_recovery_state=before.leader_recovery_state,
                eligible_leader_replicas=before.eligible_leader_replicas,
            )
            assert kept == before.with_partition_epoch(version), f"more than the ISR, {where}"
            return
        assert state.controller_epoch == self.controller_epoch, f"a fenced write, {where}"
        if before is None:
            assert isinstance(operation, Create), where
            return
        assert isinstance(operation, SetData), where
        assert operation.version == before.partition_epoch, f"VersionChain, {where}"
        assert now.leader_epoch >= before.leader_epoch, f"MonotonicLeaderEpoch, {where}"
        writer = self._writer(transaction)
        assignment = self._assignments[partition.topic][partition.partition]
        is_in_move = assignment.is_being_reassigned and now.leader != before.leader
        self._situations.meet_if(is_in_move, Situation.LEADER_CHANGES_IN_MOVE)
        is_last = len(before.isr) == 1 and before.leader >= 0 > now.leader
        self._situations.meet_if(is_last, Situation.LAST_IN_SYNC_DIES)
        if now.leader_epoch == before.leader_epoch:
            self._check_isr_change(partition, before, now, writer, where)
        elif now.leader not in (NO_LEADER, before.leader):
            if writer and before.leader in writer.controller.context.shutting_down_broker_ids:
                taken_over = self._successors.setdefault(before.leader, {})
                taken_over[partition] = now.leader, now.leader_epoch, writer.handled_events
            self._check_new_leader(partition, before, now, writer, where)
        elif now.leader >= 0 and now.leader_recovery_state is LeaderRecoveryState.RECOVERING:
            # A leader that is recovering cannot be marked again after another loss.
            is_marked = now.leader_recovery_state != before.leader_recovery_state
            is_last_resort = self._are_all_suspect(before.isr, partition, writer)
            if not is_marked and not is_last_resort:
                return
            is_allowed = is_last_resort or self._may_be_unclean(partition)
            assert is_allowed, f"no replica lost records, {where}"
            assert now.isr == (now.leader,), f"an unclean leader must be the only member, {where}"
            self.on_unclean_election(partition, self.topic_id(partition.topic), now.leader_epoch)

    def _note_state(self, partition: TopicPartition, now: LeaderAndIsr, zxid: int) -> None:
        before = self.current.get(partition)
        if before is None or before.leader_epoch != now.leader_epoch:
            self.elected_zxids[partition] = zxid
        self.current[partition] = now
        belief = Belief(now.leader, now.leader_epoch, now.isr, now.partition_epoch)
        self.ever_held.setdefault(partition, set()).add(belief)
        self.ever_led.add((partition, now.leader, now.leader_epoch))

    def _is_of_leader(self, transaction: Transaction) -> bool:
        """Whether this is a leader's own write of an ISR, which has no fence."""
        return transaction.session_id in self._writers and all(
            isinstance(op, SetData) and partition_of_state(op.path) is not None
            for op in transaction.operations
        )

    def _check_leadership(
        self,
        partition: TopicPartition,
        before: LeaderAndIsr | None,
        now: LeaderAndIsr,
        where: str,
    ) -> None:
        assert now.isr, f"IsrNotEmpty, {where}"
        assert len(set(now.isr)) == len(now.isr), f"IsrIsASet, {where}"
        assert now.leader == NO_LEADER or now.leader in now.isr, f"LeaderInIsr, {where}"
        replicas = self._assignments[partition.topic][partition.partition].replicas
        # A cancelled move removes unassigned members one by one, and keeps them while no replica
        # can lead. A leader that writes itself may not know yet that a replica is removed.
        adds_none = before is not None and set(now.isr) <= set(before.isr)
        is_subset = adds_none or self._writers or set(now.isr) <= set(replicas)
        assert is_subset, f"IsrSubsetOfReplicas, {where}, {replicas}"

    def _check_isr_change(
        self,
        partition: TopicPartition,
        before: LeaderAndIsr,
        now: LeaderAndIsr,
        writer: SimulatedBroker | None,
        where: str,
    ) -> None:
        """Check a write that only a leader's proposal can have caused."""
        assert now.leader == before.leader, f"SingleLeaderPerEpoch, {where}"
        causes = [
            (request, row)
            for request, row in self._proposals.get(partition, ())
            if request.broker_id == now.leader
            and row.leader_epoch == before.leader_epoch
            and row.partition_epoch == before.partition_epoch
            and sorted(row.new_isr) == sorted(now.isr)
            and row.leader_recovery_state == now.leader_recovery_state
        ]
        assert causes, f"no leader proposed it, {where}"
        if writer is None:
            return
        epochs = writer.controller.context.live_broker_epochs
        leaving = writer.controller.context.shutting_down_broker_ids
        added = set(now.isr) - set(before.isr)
        assert added <= epochs.keys() - leaving, f"IneligibleReplica, {where}"
        assert any(
            request.broker_epoch == epochs.get(now.leader)
            and all(
                epoch in (-1, epochs.get(member))
                for member, epoch in zip(row.new_isr, row.isr_broker_epochs, strict=True)
            )
            for request, row in causes
        ), f"proposed with former broker epochs, {where}, {epochs}"

    def _check_new_leader(
        self,
        partition: TopicPartition,
        before: LeaderAndIsr,
        now: LeaderAndIsr,
        writer: SimulatedBroker | None,
        where: str,
    ) -> None:
        if writer is not None:
            context = writer.controller.context
            usable = context.live_broker_epochs.keys() - context.shutting_down_broker_ids
            assert now.leader in usable, f"LeaderIsAlive, {where}"
        replicas = self._assignments[partition.topic][partition.partition].replicas
        members = [r for r in (*before.isr, *before.eligible_leader_replicas) if r in replicas]
        is_last_resort = now.leader in members and self._are_all_suspect(members, partition, writer)
        is_recovering = now.leader_recovery_state is LeaderRecoveryState.RECOVERING
        is_known_as_such = now.leader_recovery_state == before.leader_recovery_state
        is_unclean = is_recovering and (is_last_resort or not is_known_as_such)
        if now.leader in members and not is_unclean:
            return
        topic_id = self.topic_id(partition.topic)
        self._situations.meet(Situation.UNCLEAN_ELECTION)
        self.on_unclean_election(partition, topic_id, now.leader_epoch)
        assert is_last_resort or self._may_be_unclean(partition), (
            f"an unclean election that is not allowed, {where}"
        )
        assert now.isr == (now.leader,), f"an unclean leader must be the only member, {where}"
        assert now.leader_recovery_state is LeaderRecoveryState.RECOVERING, where
        if writer is not None and not is_known_as_such:
            count = self._unclean_elections.get(writer, 0) + 1
            self._unclean_elections[writer] = count
            recorded = writer.controller.context.stats.unclean_leader_elections
            assert recorded >= count, f"an unclean election was not recorded, {where}"

    def _may_be_unclean(self, partition: TopicPartition) -> bool:
        return (
            self.allow_unclean_everywhere
            or partition.topic in self._unclean_topics
            or partition in self._unclean_partitions
        )

    def _are_all_suspect(
        self,
        members: Collection[BrokerId],
        partition: TopicPartition,
        writer: SimulatedBroker | None,
    ) -> bool:
        """Whether all of these are registered and say that they may have lost records.

        Or said so when the controller last read the registrations.
        """
        if writer is not None and all(
            writer.controller.context.suspect_end(member, partition) is not None
            for member in members
        ):
            return True
        nodes = self._cluster.zookeeper.snapshot()
        for member in members:
            member_path = BrokerIdZNode.path(member)
            node = nodes.get(member_path)
            if node is None:
                return False
            try:
                where = SuspectZnodes.decode(node.data, member_path)
            except BadDataError:  # an admin has overwritten it
                return False
            listed = suspect_paths(where, member, node.stat.ephemeral_owner)
            suspects = decode_suspects([nodes[path].data for path in listed])
            if suspects.end_of(partition) is None:
                return False
        return True

    def _writer(self, transaction: Transaction) -> SimulatedBroker | None:
        """Return the controller that wrote, if it is still active in the same term."""
        for broker in self._cluster.brokers.values():
            if broker.session.session_id == transaction.session_id:
                is_same_term = broker.controller.context.epoch == self.controller_epoch
                return broker if broker.controller.is_active and is_same_term else None
        return None


def _check_proposal(sender: SimulatedBroker, row: AlterPartitionRow) -> None:
    """Check a proposal against what its leader knows."""
    partition = sender.replica_manager.partitions.get(row.topic_partition)
    if partition is None or partition.leader_epoch != row.leader_epoch:
        return  # it was proposed before a control request, and is withdrawn
    where = f"broker {sender.broker_id} proposes {row}: {partition}"
    added = set(row.new_isr) - set(partition.isr)
    assert not (partition.is_recovering and added), f"ItHasNotRecovered: {where}"
    for member, epoch in zip(row.new_isr, row.isr_broker_epochs, strict=True):
        follower = partition.followers.get(member)
        if member in added and follower is not None:
            assert epoch >= 0, f"WhichLife: {where}"


def _is_duty(operation: Operation) -> bool:
    """Whether only the active controller may do this."""
    path = operation.path
    match operation:
        case Check():
            return False
        case Delete():
            owned = (
                "/admin/",
                TOPIC_CONFIGS,
                "/isr_change_",
                "/log_dir_event_",
                "/brokers/topics/",
            )
            return path == ControllerZNode.PATH or path.startswith(owned)
        case Create() | SetData():
            is_admin = path.startswith("/admin/") and path != "/admin/delete_topics"
            return is_admin or path.startswith("/brokers/topics/")


def _controller_of(transaction: Transaction, known: BrokerId) -> BrokerId:
    """Return the controller that a transaction elects; ``known`` if it only raises its epoch."""
    for operation in transaction.operations:
        if isinstance(operation, Create) and operation.path == ControllerZNode.PATH:
            return ControllerZNode.decode(operation.data)
    return known
