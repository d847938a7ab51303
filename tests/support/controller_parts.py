"""The controller's parts without an actor, over the fake ZooKeeper; their effects can be read.

``ControllerParts`` is a world with the parts of a controller that won its election. ``Candidate``
is the whole ``Controller`` of one broker of a world.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from typing import TypeAlias, TypeVar

from regent.core.controller.brokers.broker_changes import BrokerChanges
from regent.core.controller.brokers.controlled_shutdown import ControlledShutdowns
from regent.core.controller.brokers.notifications import Notifications
from regent.core.controller.brokers.responses import ControlResponses
from regent.core.controller.controller import Controller
from regent.core.controller.controller_election import ControllerElection
from regent.core.controller.effects import Effect, SendControlRequest, SendResponse
from regent.core.controller.election.alter_partition import AlterPartitions
from regent.core.controller.election.leader_elections import LeaderElections
from regent.core.controller.events import (
    ControllerEvent,
    Expire,
    RegisterBrokerAndReelect,
    RequestId,
    collapse_key,
)
from regent.core.controller.partition_state_machine import PartitionStateMachine
from regent.core.controller.quarantine import Quarantine
from regent.core.controller.reassignment.partition_reassignment import Reassignments
from regent.core.controller.replica_state_machine import ReplicaStateMachine
from regent.core.controller.services import ControllerServices, ControllerSettings
from regent.core.controller.states import PartitionState, ReplicaState
from regent.core.controller.topics.topic_changes import TopicChanges
from regent.core.controller.topics.topic_deletion import TopicDeletions
from regent.core.model import (
    BrokerId,
    PartitionAndReplica,
    ReplicaAssignment,
    TopicPartition,
)
from regent.core.protocol.api import ActorResponse
from regent.core.protocol.control import (
    ControlHeader,
    LeaderAndIsrPartition,
    LeaderAndIsrRequest,
    StopReplicaPartition,
    StopReplicaRequest,
    UpdateMetadataPartition,
    UpdateMetadataRequest,
)
from regent.zk.client.operations import WatchEvent
from regent.zk.stores.controller_store import ZkControllerStore
from regent.zk.stores.watches import controller_event
from tests.support.world import (
    KeptSession,
    Replicas,
    TopicIds,
    World,
    broker_info,
    full_assignment,
    topic_id,
)

T = TypeVar("T")
ByBroker: TypeAlias = dict[BrokerId, dict[TopicPartition, T]]


class ControllerParts(World):
    """Broker 0's term in controller epoch 1, with these brokers registered and known."""

    def __init__(
        self, brokers: Iterable[BrokerId], settings: ControllerSettings | None = None
    ) -> None:
        super().__init__()
        self.watches: list[WatchEvent] = []
        self.session = KeptSession(self.zookeeper, self.watches.append)
        self.store = ZkControllerStore(self.session)
        self.topic_ids = TopicIds()
        self.services = ControllerServices(
            0, self.store, self.topic_ids, settings or ControllerSettings()
        )
        self.context = self.services.context
        self.partitions = PartitionStateMachine(self.services)
        self.replicas = ReplicaStateMachine(self.services)
        machines = (self.services, self.partitions, self.replicas)
        self.deletions = TopicDeletions(*machines)
        self.reassignments = Reassignments(*machines, self.deletions)
        self.brokers = BrokerChanges(*machines, self.deletions, self.reassignments)
        self.topics = TopicChanges(*machines, self.deletions, Quarantine(self.services))
        self.shutdowns = ControlledShutdowns(*machines)
        self.elections = LeaderElections(self.services, self.partitions)
        self.alter_partitions = AlterPartitions(self.services)
        self.notifications = Notifications(self.services, self.replicas, self.reassignments)
        self.responses = ControlResponses(
            self.services, self.replicas, self.brokers, self.deletions
        )
        self._produced: list[Effect] = []
        self._answers: dict[RequestId, ActorResponse] = {}
        won = ControllerElection(broker_info(0), self.store).elect(0)
        assert won is not None
        self.context.epoch, self.context.epoch_zk_version = won
        for broker_id in brokers:
            self.context.add_live_broker(self.register(broker_id))

    def effects(self) -> list[Effect]:
        """Return the effects since the last call."""
        self._produced, produced = [], [*self._produced, *self._drain()]
        return produced

    @property
    def answers(self) -> dict[RequestId, ActorResponse]:
        """Every answer so far; the effects stay for ``effects``."""
        self._produced += self._drain()
        return dict(self._answers)

    def _drain(self) -> list[Effect]:
        drained = self.services.outbox.drain(self.context.epoch)
        for reply in of_type(drained, SendResponse):
            assert reply.request_id not in self._answers, "a request has one answer"
            self._answers[reply.request_id] = reply.response
        return drained

    def sent(self) -> list[SendControlRequest]:
        """Return the control requests since the last call."""
        return requests(self.effects())

    def assign(
        self,
        partition: TopicPartition,
        replicas: Replicas | ReplicaAssignment,
        state: PartitionState = PartitionState.NEW,
    ) -> None:
        """Make a partition known; its topic's znode lists the last partition assigned only."""
        self.put_topic(partition.topic, {partition.partition: replicas}, topic_id(7))
        self.context.topic_created_zxids[partition.topic] = self.topic(partition.topic).created_zxid
        self.context.update_partition_full_replica_assignment(partition, full_assignment(replicas))
        self.context.put_partition_state(partition, state)

    def lead(
        self,
        partition: TopicPartition,
        replicas: Replicas | ReplicaAssignment,
        leader: BrokerId,
        isr: Replicas,
        state: PartitionState = PartitionState.ONLINE,
    ) -> None:
        """Make a led partition known, to ZooKeeper as well, with all its replicas online."""
        self.assign(partition, replicas, state)
        self.put_state(partition, leader, isr)
        stored = self.state(partition)
        assert stored is not None
        self.context.put_partition_leadership_info(partition, stored)
        for replica in full_assignment(replicas).replicas:
            self.put_replica_state(partition, replica, ReplicaState.ONLINE)

    def put_replica_state(
        self, partition: TopicPartition, replica: BrokerId, state: ReplicaState
    ) -> None:
        """Put a replica into a state."""
        self.context.put_replica_state(PartitionAndReplica(partition, replica), state)

    def replica_state(self, partition: TopicPartition, replica: BrokerId) -> ReplicaState:
        """Return the state of a replica."""
        return self.context.replica_state(PartitionAndReplica(partition, replica))

    def known(self, partition: TopicPartition) -> tuple[BrokerId, Replicas, int] | None:
        """Return leader, ISR and leader epoch in the controller's memory."""
        leadership = self.context.partition_leadership_info(partition)
        if leadership is None:
            return None
        now = leadership.leader_and_isr
        return now.leader, now.isr, now.leader_epoch


class Candidate:
    """One broker's controller and its session; events from watches wait in ``inbox``."""

    def __init__(
        self,
        world: World,
        broker_id: BrokerId,
        settings: ControllerSettings | None = None,
        *,
        no_replicas: bool = False,
    ) -> None:
        self._broker_id = broker_id
        info = replace(broker_info(broker_id), no_replicas=no_replicas)
        self.inbox: deque[ControllerEvent] = deque()
        self.now_ms = 1_700_000_000_000
        self.session = KeptSession(world.zookeeper, self.on_watch)
        self.topic_ids = TopicIds()
        store = ZkControllerStore(self.session)
        self.controller = Controller(info, store, self.topic_ids, settings)

    def handle(self, event: ControllerEvent) -> list[Effect]:
        """Handle one event, then validate the indexes of the context."""
        effects = self.controller.handle(event, self.now_ms)
        self.controller.context.validate()
        return effects

    def start(self) -> list[Effect]:
        """Register and stand for election."""
        return self.handle(RegisterBrokerAndReelect())

    def catch_up(self) -> list[Effect]:
        """Handle all events from watches; return the effects."""
        effects: list[Effect] = []
        while self.inbox:
            effects += self.handle(self.inbox.popleft())
        return effects

    def expire(self) -> list[Effect]:
        """End the session and open the next one."""
        self.session.expire()
        self.inbox.clear()
        effects = self.handle(Expire())
        self.session.renew(self.on_watch)
        return effects

    def on_watch(self, watch: WatchEvent) -> None:
        event = controller_event(watch, self._broker_id)
        if event is not None and collapse_key(event) not in map(collapse_key, self.inbox):
            self.inbox.append(event)


# --- reading effects ------------------------------------------------------------------------------


def requests(effects: Iterable[Effect]) -> list[SendControlRequest]:
    """Return the control requests among effects."""
    return [effect for effect in effects if isinstance(effect, SendControlRequest)]


def kinds(effects: Iterable[Effect]) -> list[tuple[BrokerId, str]]:
    """Return receiver and kind of every control request, in order."""
    return [
        (sent.broker_id, type(sent.request).__name__.removesuffix("Request"))
        for sent in requests(effects)
    ]


def of_type(effects: Iterable[Effect], effect_type: type[T]) -> list[T]:
    """Return the effects of one type."""
    return [effect for effect in effects if isinstance(effect, effect_type)]


def leader_and_isr_requests(
    effects: Iterable[Effect], broker_id: BrokerId
) -> list[tuple[ControlHeader, LeaderAndIsrRequest]]:
    """Return the LeaderAndIsr requests to a broker."""
    return [
        (sent.header, sent.request)
        for sent in requests(effects)
        if sent.broker_id == broker_id and isinstance(sent.request, LeaderAndIsrRequest)
    ]


def leader_and_isr_rows(effects: Iterable[Effect]) -> ByBroker[LeaderAndIsrPartition]:
    """Return the last LeaderAndIsr row of each partition and broker."""
    rows: ByBroker[LeaderAndIsrPartition] = {}
    for sent in requests(effects):
        if isinstance(sent.request, LeaderAndIsrRequest):
            rows.setdefault(sent.broker_id, {}).update(sent.request.partitions())
    return rows


def metadata_rows(effects: Iterable[Effect]) -> ByBroker[UpdateMetadataPartition]:
    """Return what each broker is last sent for each partition; brokers without any are included."""
    rows: ByBroker[UpdateMetadataPartition] = {}
    for sent in requests(effects):
        if isinstance(sent.request, UpdateMetadataRequest):
            rows.setdefault(sent.broker_id, {}).update(sent.request.partitions())
    return rows


def stop_replica_rows(effects: Iterable[Effect]) -> ByBroker[StopReplicaPartition]:
    """Return what each broker was last requested to stop."""
    rows: ByBroker[StopReplicaPartition] = {}
    for sent in requests(effects):
        if isinstance(sent.request, StopReplicaRequest):
            rows.setdefault(sent.broker_id, {}).update(sent.request.partitions())
    return rows
