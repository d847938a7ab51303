"""What brokers believe and obey: only what ZooKeeper held, and never what is stale (S4)."""

from __future__ import annotations

from collections.abc import Hashable

from core.model import TopicPartition
from core.protocol.control import ControlRequest, ControlResponse
from core.replication.partition import Role
from tests.simulation.broker import SimulatedBroker
from tests.simulation.cluster import Cluster
from tests.simulation.leadership_history import Belief, LeadershipHistory
from tests.simulation.network import Exchange


class Obedience:
    """Stands beside every broker that receives an order; raises ``AssertionError``."""

    def __init__(self, cluster: Cluster, history: LeadershipHistory) -> None:
        self._cluster = cluster
        self._history = history
        self._controller_epochs: dict[SimulatedBroker, int] = {}
        self._last_orders: dict[SimulatedBroker, tuple[Exchange, bool]] = {}
        self._leader_epochs: dict[tuple[SimulatedBroker, TopicPartition, str | None], int] = {}
        self._snapshots: dict[SimulatedBroker, object] = {}

    def obey(self, broker: SimulatedBroker, exchange: Exchange) -> ControlResponse:
        """Have a broker obey, and compare what it did with what it was allowed to do."""
        self._history.check()
        must_not_change = self._is_stale(broker, exchange)
        order = exchange, broker.disk.has_failed
        if self._last_orders.get(broker) == order:
            must_not_change = "the same order twice"
        before = _state(broker) if must_not_change else None
        answer = broker.obey(exchange)
        if must_not_change:
            assert _state(broker) == before, (
                f"broker {broker.broker_id} obeyed {must_not_change}: {exchange.header}"
                f" {exchange.request}"
            )
        else:
            assert exchange.header is not None
            self._controller_epochs[broker] = exchange.header.controller_epoch
        self._last_orders[broker] = order
        self._check_replicas(broker, exchange)
        self._check_cache(broker)
        return answer

    def _is_stale(self, broker: SimulatedBroker, exchange: Exchange) -> str:
        header = exchange.header
        assert header is not None
        if -1 < header.broker_epoch < broker.broker_epoch:
            return "an order to an earlier life of its"
        if header.controller_epoch < self._controller_epochs.get(broker, 0):
            return "a deposed controller"
        return ""

    def _check_replicas(self, broker: SimulatedBroker, exchange: Exchange) -> None:
        assert isinstance(exchange.request, ControlRequest)
        named = {name for name, _ in exchange.request.partitions()}
        for name, partition in broker.replica_manager.partitions.items():
            if name not in named or partition.leader_epoch < 0:
                continue
            where = f"broker {broker.broker_id} obeyed: {partition}"
            key = (broker, name, partition.topic_id)
            assert partition.leader_epoch >= self._leader_epochs.get(key, -1), (
                f"an old leader epoch was obeyed, {where}"
            )
            self._leader_epochs[key] = partition.leader_epoch
            if partition.role is Role.LEADER:
                assert partition.leader == broker.broker_id, f"LeadsForAnother, {where}"
            led = (name, partition.leader, partition.leader_epoch)
            assert led in self._history.ever_led, f"an order ZooKeeper never held, {where}"

    def _check_cache(self, broker: SimulatedBroker) -> None:
        snapshot = broker.cache.snapshot
        if self._snapshots.get(broker) is snapshot:
            return
        self._snapshots[broker] = snapshot
        for name, row in snapshot.partitions.items():
            belief = Belief(row.leader, row.leader_epoch, row.isr, row.partition_epoch)
            assert belief in self._history.ever_held.get(name, ()), (
                f"broker {broker.broker_id} believes what ZooKeeper never held, {name}: {row}"
            )


def _state(broker: SimulatedBroker) -> Hashable:
    snapshot = broker.cache.snapshot
    return (
        tuple(
            (name, p.topic_id, p.role, p.leader, p.leader_epoch, p.partition_epoch, p.isr)
            for name, p in sorted(broker.replica_manager.partitions.items())
        ),
        tuple(sorted(broker.disk.hosted())),
        tuple(sorted(snapshot.partitions.items())),
        tuple(sorted(snapshot.brokers)),
    )
