"""Check controller terms: one active controller, no older state, nothing left after a term."""

from __future__ import annotations

from regent.core.controller.effects import error_response
from regent.core.controller.events import (
    Reelect,
    RegisterBrokerAndReelect,
    ReplicasGivenUp,
    StandAgain,
    SuspectReplicasChanged,
)
from regent.core.model import TopicPartition
from regent.core.protocol.controller import ControlledShutdownRequest
from regent.zk.znodes import (
    BrokerIdZNode,
    ConfigEntityChangeNotificationZNode,
    ControllerZNode,
    DelegationTokenChangeNotificationZNode,
)
from tests.simulation.broker import SimulatedBroker
from tests.simulation.cluster import Cluster
from tests.simulation.leadership_history import Belief, LeadershipHistory


class Terms:
    """Checks every controller that is not in the middle of a call."""

    def __init__(self, cluster: Cluster, history: LeadershipHistory) -> None:
        self._cluster = cluster
        self._history = history
        self._checked: dict[SimulatedBroker, int] = {}
        self._checked_at: tuple[int, int, tuple[int, ...]] = (0, 0, ())
        self._learnt: dict[tuple[SimulatedBroker, int, TopicPartition], tuple[int, int]] = {}

    def check(self) -> None:
        """Check every controller; raises ``AssertionError``."""
        cluster = self._cluster
        present = cluster.events_handled, len(cluster.brokers), tuple(cluster.in_call)
        if present == self._checked_at:
            return
        self._checked_at = present
        active = self._cluster.active_controllers
        epochs = [broker.controller.context.epoch for broker in active]
        if not self._history.is_epoch_tampered_with:  # then brokers accept only one of them
            assert len(set(epochs)) == len(epochs), f"SingleControllerPerEpoch: {epochs}"
            assert all(epoch <= self._history.controller_epoch for epoch in epochs), epochs
        for broker_id, broker in self._cluster.brokers.items():
            handled = broker.handled_events
            if broker_id in self._cluster.in_call or self._checked.get(broker) == handled:
                continue
            self._checked[broker] = handled
            self._check_owed_answers(broker)
            if broker.is_of_kafka:
                continue  # its controller is a model
            if broker.controller.is_active:
                self._check_memory(broker)
            else:
                self._check_nothing_is_left(broker)

    def _check_owed_answers(self, broker: SimulatedBroker) -> None:
        """Requests are answered at once, except for shutdowns that wait for new leaders."""
        queued = {reply.request_id for event in broker.inbox if (reply := error_response(event))}
        owed = [exchange for i, exchange in broker.unanswered.items() if i not in queued]
        for exchange in owed:
            is_shutdown = isinstance(exchange.request, ControlledShutdownRequest)
            may_wait = is_shutdown and broker.controller.is_active
            assert may_wait, f"broker {broker.broker_id} does not answer {exchange.request}"

    def _check_nothing_is_left(self, broker: SimulatedBroker) -> None:
        where = f"broker {broker.broker_id} is not active and"
        context = broker.controller.context
        assert not broker.channels, f"{where} has channels to {list(broker.channels)}"
        assert context.epoch == 0, f"{where} remembers its term"
        assert not context.registrations, f"{where} knows brokers"
        assert not context.all_topics, f"{where} knows topics"
        assert not context.topics_to_be_deleted, f"{where} deletes topics"
        assert not context.partitions_being_reassigned, f"{where} moves partitions"
        assert context.offline_partition_count == 0, f"{where} counts offline partitions"
        assert context.preferred_replica_imbalance_count == 0, f"{where} counts imbalance"
        scheduled = self._cluster.time.events_of(broker)
        allowed = (
            Reelect,
            RegisterBrokerAndReelect,
            ReplicasGivenUp,
            StandAgain,
            SuspectReplicasChanged,
        )
        assert all(isinstance(event, allowed) for event in scheduled), f"{where} waits: {scheduled}"
        watched = self._cluster.zookeeper.watched(broker.session.session_id)
        allowed_watches = {
            ControllerZNode.PATH,
            BrokerIdZNode.path(broker.broker_id),
            ConfigEntityChangeNotificationZNode.PATH,
            DelegationTokenChangeNotificationZNode.PATH,
        }
        if broker.info.no_replicas:  # it looks what kind of broker the controller is
            allowed_watches |= set(map(BrokerIdZNode.path, self._cluster.disks))
        assert watched <= allowed_watches, f"{where} watches {sorted(watched)}"

    def _check_memory(self, broker: SimulatedBroker) -> None:
        """S6: a controller knows states that ZooKeeper had, and never returns to an older one."""
        context = broker.controller.context
        for partition in filter(context.partition_leadership_info, context.all_partitions()):
            leadership = context.partition_leadership_info(partition)
            assert leadership is not None
            now = leadership.leader_and_isr
            belief = Belief(now.leader, now.leader_epoch, now.isr, now.partition_epoch)
            assert belief in self._history.ever_held.get(partition, ()), (
                f"controller {broker.broker_id} has {partition} {now}: ZooKeeper never had it"
            )
            created = context.topic_created_zxids.get(partition.topic, 0)
            key = (broker, context.epoch, partition)
            before = self._learnt.get(key, (0, -1))
            assert (created, now.partition_epoch) >= before, f"{partition} was forgotten: {now}"
            self._learnt[key] = (created, now.partition_epoch)
