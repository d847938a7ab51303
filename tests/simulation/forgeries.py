"""Requests that nobody of ours sends, and that must be refused.

Proposals stand for leaders of other releases, for delayed requests, for defects of brokers. Each is
acceptable except for one field. Control requests stand for strangers, and for addresses that lead
to another broker.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from regent.core.model import (
    EPOCH_DURING_DELETE,
    MAX_CONTROLLER_EPOCH,
    LeaderRecoveryState,
)
from regent.core.protocol.control import (
    ControlHeader,
    ControlRequest,
    LeaderAndIsrRequest,
    LeaderAndIsrType,
    StopReplicaPartition,
    StopReplicaRequest,
    StopReplicaTopic,
    UpdateMetadataRequest,
)
from regent.core.protocol.controller import AlterPartitionRequest, AlterPartitionRow
from regent.core.replication.partition import Partition, Role
from tests.simulation.broker import SimulatedBroker
from tests.simulation.cluster import Cluster

UNKNOWN = -1

FAR_AHEAD = 1_000_000  # more than any epoch of a history, also one that was raised by hand


class Forgeries:
    """Sends invalid proposals; ``note`` writes the history."""

    def __init__(self, cluster: Cluster, dice: random.Random, note: Callable[..., None]) -> None:
        self._cluster = cluster
        self._random = dice
        self._note = note

    def propose(self) -> None:
        """Send one in the name of a random leader."""
        controllers = self._cluster.active_controllers
        led = [
            (broker, partition)
            for _, broker in sorted(self._cluster.brokers.items())
            for _, partition in sorted(broker.replica_manager.partitions.items())
            if partition.role is Role.LEADER and len(partition.assignment.replicas) > 1
        ]
        if not led or not controllers:
            return
        request = self._forge(*self._random.choice(led))
        self._note("forge %s", request)
        endpoint = controllers[0].control_endpoint
        self._cluster.network.ask(None, endpoint, request, lambda answer: None)

    def _forge(  # noqa: C901 - every mistake there is
        self, broker: SimulatedBroker, led: Partition
    ) -> AlterPartitionRequest:
        row = self._acceptable(broker, led)
        broker_id, broker_epoch = broker.broker_id, broker.broker_epoch
        others = [b for b in self._cluster.brokers if b != broker_id]
        unassigned = [b for b in others if b not in led.assignment.replicas]
        dead = [r for r in led.assignment.replicas if r not in self._cluster.brokers]
        dead = [r for r in dead if r not in led.isr]
        without = tuple(r for r in led.assignment.replicas if r != broker_id)
        match self._random.randrange(14):
            case 0:
                row = row._replace(topic_id="another topic's id")
            case 1:
                row = row._replace(leader_epoch=row.leader_epoch - 1)
            case 2:
                row = row._replace(leader_epoch=row.leader_epoch + FAR_AHEAD)
            case 3:
                row = row._replace(partition_epoch=row.partition_epoch - 1)
            case 4:
                row = row._replace(partition_epoch=row.partition_epoch + FAR_AHEAD)
            case 5 if others:
                broker_id = self._random.choice(others)
                broker_epoch = self._cluster.brokers[broker_id].broker_epoch
            case 6:
                row = _with_isr(row, without)
            case 12 if dead:
                row = _with_isr(row, (*led.isr, self._random.choice(dead)))
                # The broker may have restarted on arrival: a former broker epoch must be refused.
                row = row._replace(isr_broker_epochs=(*row.isr_broker_epochs[:-1], 0))
            case 13 if others:
                broker_id = self._random.choice(others)
                broker_epoch = self._cluster.brokers[broker_id].broker_epoch
            case 7:
                row = _with_isr(row, (*row.new_isr, row.new_isr[0]))
            case 8 if unassigned:
                row = _with_isr(row, (*row.new_isr, self._random.choice(unassigned)))
            case 9:
                row = row._replace(isr_broker_epochs=(*row.isr_broker_epochs[:-1], 0))
            case 10:
                row = row._replace(isr_broker_epochs=())
            case 11 if not led.is_recovering:
                row = row._replace(leader_recovery_state=LeaderRecoveryState.RECOVERING)
            case _:
                broker_epoch -= 1
        return AlterPartitionRequest(broker_id, broker_epoch, (row,))

    def _acceptable(self, broker: SimulatedBroker, led: Partition) -> AlterPartitionRow:
        """Return a change of the ISR that the leader could propose."""
        replicas = led.assignment.replicas
        isr = led.isr if len(led.isr) < len(replicas) else (broker.broker_id,)
        if isr == led.isr:
            isr = (*isr, next(r for r in replicas if r not in isr))
        row = AlterPartitionRow(
            *led.topic_partition,
            led.topic_id,
            led.leader_epoch,
            (),
            (),
            LeaderRecoveryState.RECOVERED,
            led.partition_epoch,
        )
        return _with_isr(row, isr)


def _with_isr(row: AlterPartitionRow, isr: tuple[int, ...]) -> AlterPartitionRow:
    return row._replace(new_isr=isr, isr_broker_epochs=(UNKNOWN,) * len(isr))


FORGED_ORDERS_PROBABILITY = 0.3  # of a history
ORDER_PROBABILITY = 0.03
SLOW_CHECK_PROBABILITY = 0.5  # of a check in these histories
SLOWEST_CHECK_MS = 400
UNUSED_BROKER_ID = 66  # of a registration that somebody made up


class ForgedOrders:
    """Sends control requests of no controller, and such for other brokers.

    It has random numbers of its own: histories without it do not change.
    """

    def __init__(self, cluster: Cluster, seed: int, note: Callable[..., None]) -> None:
        self._cluster = cluster
        self._random = random.Random(f"forged orders of {seed}")
        self._note = note
        self._is_on = self._random.random() < FORGED_ORDERS_PROBABILITY
        if self._is_on:
            cluster.delay_checks(self._check_delay_ms)

    def act(self) -> None:
        """Sometimes send one."""
        brokers = [b for _, b in sorted(self._cluster.brokers.items()) if b.broker_epoch >= 0]
        if self._is_on and brokers and self._random.random() < ORDER_PROBABILITY:
            receiver = self._random.choice(brokers)
            if self._random.random() < 0.5:
                self._send_of_no_controller(receiver)
            else:
                self._redirect(receiver)

    def _check_delay_ms(self) -> int:
        if self._random.random() >= SLOW_CHECK_PROBABILITY:
            return 0
        return self._random.randrange(1, SLOWEST_CHECK_MS)

    def _send_of_no_controller(self, receiver: SimulatedBroker) -> None:
        known = receiver.replica_manager.controller_epoch
        epoch = self._random.choice((MAX_CONTROLLER_EPOCH, known + FAR_AHEAD, known))
        sender = self._random.choice((UNUSED_BROKER_ID, *self._cluster.brokers))
        if epoch == known:
            sender = UNUSED_BROKER_ID
        header = ControlHeader(sender, epoch, receiver.broker_epoch, broker_id=receiver.broker_id)
        self._send(receiver, header, self._order(receiver))

    def _redirect(self, receiver: SimulatedBroker) -> None:
        """Send a request for another broker, as the controller does where the address is wrong."""
        under_way = [
            packet.exchange
            for packet in self._cluster.network.packets.values()
            if packet.answer is None
            and packet.exchange.header is not None
            and packet.exchange.header.broker_id != receiver.broker_id
        ]
        controllers = self._cluster.active_controllers
        if under_way:
            exchange = self._random.choice(under_way)
            assert exchange.header is not None
            assert isinstance(exchange.request, ControlRequest)
            self._send(receiver, exchange.header, exchange.request)
        elif controllers:
            epoch = controllers[0].controller.context.epoch
            later = self._cluster.zookeeper.zxid + 1
            header = ControlHeader(
                controllers[0].broker_id, epoch, later, broker_id=UNUSED_BROKER_ID
            )
            self._send(receiver, header, self._order(receiver))

    def _order(self, receiver: SimulatedBroker) -> ControlRequest:
        """Return a request that would do harm."""
        hosted = sorted(receiver.disk.hosted().items())
        match self._random.randrange(3):
            case 0:
                return UpdateMetadataRequest((), (), is_full=True)
            case 1 if hosted:
                (topic, number), topic_id = self._random.choice(hosted)
                stop = StopReplicaPartition(number, EPOCH_DURING_DELETE, delete_partition=True)
                return StopReplicaRequest((StopReplicaTopic(topic, topic_id, (stop,)),))
            case _:
                return LeaderAndIsrRequest(LeaderAndIsrType.FULL, (), ())

    def _send(
        self, receiver: SimulatedBroker, header: ControlHeader, request: ControlRequest
    ) -> None:
        self._note("forge for %d: %s %s", receiver.broker_id, header, request)
        endpoint = receiver.control_endpoint
        self._cluster.network.ask(None, endpoint, request, lambda answer: None, header)
