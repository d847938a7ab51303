"""A term whose store gives scripted answers, and whose batches are recorded.

Upstream tests the state machines with a mocked ZooKeeper and a mocked request batch. Here the
machines, the context and the batch are the real ones; the store uses the fake ZooKeeper and
gives scripted answers for partition states, versions included.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from regent.core.controller.context import ControllerContext
from regent.core.controller.partition_entries import PartitionEntry
from regent.core.controller.request_batch import ControlRequestBatch
from regent.core.controller.services import ControllerServices
from regent.core.controller.states import PartitionState, ReplicaState
from regent.core.errors import BadDataError, SessionExpiredError
from regent.core.model import (
    BrokerId,
    BrokerRegistration,
    LeaderIsrAndControllerEpoch,
    PartitionAndReplica,
    ReplicaAssignment,
    TopicPartition,
)
from regent.core.ports import WriteError
from regent.zk.stores.controller_store import ZkControllerStore
from tests.conformance.fields import Fields, assignment, leadership, one_of, partition
from tests.support.fake_zookeeper import FakeZooKeeper, FakeZooKeeperServer
from tests.support.world import TopicIds, broker_info

PARTITION_STATES = {
    "NonExistent": PartitionState.NON_EXISTENT,
    "New": PartitionState.NEW,
    "Online": PartitionState.ONLINE,
    "Offline": PartitionState.OFFLINE,
}
REPLICA_STATES = {
    None: ReplicaState.NON_EXISTENT,
    "NonExistent": ReplicaState.NON_EXISTENT,
    "New": ReplicaState.NEW,
    "Online": ReplicaState.ONLINE,
    "Offline": ReplicaState.OFFLINE,
    "DeletionStarted": ReplicaState.DELETION_STARTED,
    "DeletionSuccessful": ReplicaState.DELETION_SUCCESSFUL,
    "DeletionIneligible": ReplicaState.DELETION_INELIGIBLE,
}

EXCEPTION = "EXCEPTION"
_WRITE_OUTCOMES: Mapping[str, WriteError | None] = {
    "OK": None,
    "NODEEXISTS": WriteError.NODE_EXISTS,
    "NONODE": WriteError.NO_NODE,
    "BADVERSION": WriteError.BAD_VERSION,
}


class ScriptedStore(ZkControllerStore):
    """A store with scripted answers for partition states; it records the calls."""

    def __init__(self) -> None:
        super().__init__(FakeZooKeeper(FakeZooKeeperServer()))
        self.states: dict[TopicPartition, LeaderIsrAndControllerEpoch] = {}
        self.reads = self.creations = "OK"
        self.version_after_write: int | None = None
        self.created: dict[TopicPartition, LeaderIsrAndControllerEpoch] = {}
        self.updated: dict[TopicPartition, LeaderIsrAndControllerEpoch] = {}
        self.configs_read: list[str] = []

    def read_partition_states(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, LeaderIsrAndControllerEpoch]:
        """Give the scripted answer."""
        _fail_on_exception(self.reads)
        if one_of(self.reads, _WRITE_OUTCOMES, "the answer to a read") is not None:
            return {}
        return {
            topic_partition: self.states[topic_partition]
            for topic_partition in partitions
            if topic_partition in self.states
        }

    def create_partition_states(
        self,
        states: Mapping[TopicPartition, LeaderIsrAndControllerEpoch],
        epoch_zk_version: int,
        topic_ids: Mapping[str, str | None] | None = None,
        coordinated_partitions: Mapping[str, int] | None = None,
    ) -> Mapping[TopicPartition, int | WriteError]:
        """Record the states and give the scripted answer."""
        del epoch_zk_version, topic_ids, coordinated_partitions
        _fail_on_exception(self.creations)
        refusal = one_of(self.creations, _WRITE_OUTCOMES, "the answer to a creation")
        if refusal is None:
            self.created.update(states)
        return dict.fromkeys(states, 0 if refusal is None else refusal)

    def update_partition_states(
        self, states: Mapping[TopicPartition, LeaderIsrAndControllerEpoch], epoch_zk_version: int
    ) -> Mapping[TopicPartition, int | WriteError]:
        """Record the states that ZooKeeper would accept, and return the scripted version."""
        del epoch_zk_version
        stored = self.read_partition_states(states)
        outcomes: dict[TopicPartition, int | WriteError] = {}
        for topic_partition, state in states.items():
            expected = state.leader_and_isr.partition_epoch
            before = stored.get(topic_partition)
            if before is None:
                outcomes[topic_partition] = WriteError.NO_NODE
            elif before.leader_and_isr.partition_epoch != expected:
                outcomes[topic_partition] = WriteError.BAD_VERSION
            else:
                self.updated[topic_partition] = state
                scripted = self.version_after_write
                outcomes[topic_partition] = expected + 1 if scripted is None else scripted
        return outcomes

    def read_unclean_leader_election(
        self, topics: Collection[str]
    ) -> Mapping[str, bool | BadDataError]:
        """Record the topics; none has overrides."""
        self.configs_read += topics
        return {}


def _fail_on_exception(code: str) -> None:
    if code == EXCEPTION:
        raise SessionExpiredError("as the case has it")


class AddedRow(NamedTuple):
    """A LeaderAndIsr that was added to a batch."""

    broker_ids: list[BrokerId]
    leadership: LeaderIsrAndControllerEpoch
    assignment: ReplicaAssignment
    is_new: bool


class Stopped(NamedTuple):
    """A StopReplica that was added to a batch."""

    broker_id: BrokerId
    topic_partition: TopicPartition
    delete: bool


class WatchedBatch(ControlRequestBatch):
    """A batch that records its content, also for dead receivers."""

    def __init__(self, controller_id: BrokerId, context: ControllerContext) -> None:
        super().__init__(controller_id, context)
        self.added: list[AddedRow] = []
        self.stopped: list[Stopped] = []
        self.metadata: list[tuple[list[TopicPartition], Collection[BrokerId] | None]] = []

    def add_entry(
        self, broker_ids: Iterable[BrokerId], entry: PartitionEntry, *, is_new: bool = False
    ) -> None:
        """Record and add."""
        receivers = list(broker_ids)
        if entry.leadership is not None:
            self.added.append(AddedRow(receivers, entry.leadership, entry.assignment, is_new))
        super().add_entry(receivers, entry, is_new=is_new)

    def add_stop_replica(
        self,
        broker_id: BrokerId,
        partitions: Iterable[TopicPartition],
        *,
        delete: bool,
        is_topic_lost: bool = False,
    ) -> None:
        """Record and add."""
        named = list(partitions)
        self.stopped += [Stopped(broker_id, topic_partition, delete) for topic_partition in named]
        super().add_stop_replica(broker_id, named, delete=delete, is_topic_lost=is_topic_lost)

    def add_update_metadata(
        self,
        partitions: Iterable[TopicPartition],
        broker_ids: Collection[BrokerId] | None = None,
    ) -> None:
        """Record and add."""
        named = list(partitions)
        if named:
            self.metadata.append((named, broker_ids))
        super().add_update_metadata(named, broker_ids)


@dataclass(frozen=True)
class WatchedServices(ControllerServices):
    """A term that records its batches, and which of them were sent."""

    batches: list[WatchedBatch] = field(default_factory=list)
    announced: list[ControlRequestBatch] = field(default_factory=list)

    def new_batch(self) -> ControlRequestBatch:
        """Return an empty batch and record it."""
        self.batches.append(WatchedBatch(self.broker_id, self.context))
        return self.batches[-1]

    def announce(self, batch: ControlRequestBatch) -> None:
        """Record and send."""
        self.announced.append(batch)
        super().announce(batch)

    @property
    def added(self) -> list[AddedRow]:
        """Every LeaderAndIsr, in sequence."""
        return [added for batch in self.batches for added in batch.added]

    @property
    def stopped(self) -> list[Stopped]:
        """Every StopReplica, in sequence."""
        return [stopped for batch in self.batches for stopped in batch.stopped]


def watched_services(store: ScriptedStore) -> WatchedServices:
    """Return a term of broker 0."""
    return WatchedServices(0, store, TopicIds())


def arrange(context: ControllerContext, store: ScriptedStore, given: Fields) -> TopicPartition:
    """Set context and store for one partition as the case says; return the partition.

    The replicas of a partition with a leadership are online: Kafka does not read their states, so
    its tests leave them out.
    """
    topic_partition = partition(given.take("partition", "t-0"))
    context.epoch = given.take("controller_epoch", 50)
    replicas = given.take("assignment", None)
    shutting_down = given.take("shutting_down", [])
    live = given.take("live", replicas or [])
    for broker_id in {*live, *shutting_down}:
        context.add_live_broker(BrokerRegistration(broker_info(broker_id), broker_epoch=1))
    context.shutting_down_broker_ids.update(shutting_down)
    if replicas is not None:
        context.update_partition_full_replica_assignment(topic_partition, assignment(replicas))
    cached = given.take("cached", None)
    if cached is not None:
        known = leadership(cached, context.epoch, "cached")
        context.put_partition_leadership_info(topic_partition, known)
        store.states[topic_partition] = known  # ZooKeeper's content, unless the case gives another
        for replica in context.replicas_of([topic_partition]):
            context.put_replica_state(replica, ReplicaState.ONLINE)
    _script(store, topic_partition, given, context.epoch)
    return topic_partition


def _script(
    store: ScriptedStore, topic_partition: TopicPartition, given: Fields, epoch: int
) -> None:
    store.creations = given.take("zk_create", "OK")
    with given.nested("zk_get") as answer:
        store.reads = answer.take("code", "OK")
        controller_epoch = answer.take("controller_epoch", epoch)
        value: Any = answer.take("value", None)
        if value is not None:
            store.states[topic_partition] = leadership(value, controller_epoch, "zk_get.value")


def put_replica_state(
    context: ControllerContext, topic_partition: TopicPartition, replica: int, state: Any
):
    """Put a replica into a state of that name."""
    context.put_replica_state(
        PartitionAndReplica(topic_partition, replica),
        one_of(state, REPLICA_STATES, "the replica's state"),
    )
