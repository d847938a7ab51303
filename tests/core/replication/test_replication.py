"""Three brokers and a controller that loses, repeats and delays messages: ISRs become complete."""

from __future__ import annotations

import random

import pytest

from regent.core.errors import Errors
from regent.core.model import BrokerId, TopicPartition
from regent.core.protocol.controller import (
    AlteredPartition,
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionRow,
)
from regent.core.replication.partition import Role
from tests.core.replication.stage import LAG_MS, BareBroker, leader_and_isr, state

PARTITIONS = [TopicPartition("t", number) for number in range(4)]
REPLICAS: tuple[BrokerId, ...] = (1, 2, 3)


class Authority:
    """Holds leaders and ISRs as the controller does, without ZooKeeper."""

    def __init__(self, brokers: dict[BrokerId, BareBroker]) -> None:
        self.brokers = brokers
        self.held = dict.fromkeys(PARTITIONS, (1, 0, 0, REPLICAS))  # leader, epochs, ISR
        for topic_partition in PARTITIONS:
            self.elect(topic_partition, 1)

    def elect(self, topic_partition: TopicPartition, leader: BrokerId) -> None:
        """Elect another leader, alone in the ISR."""
        _, leader_epoch, partition_epoch, _ = self.held[topic_partition]
        self.held[topic_partition] = (leader, leader_epoch + 1, partition_epoch + 1, (leader,))
        row = state(leader, leader_epoch + 1, isr=(leader,), replicas=REPLICAS)
        row = row._replace(partition_epoch=partition_epoch + 1)
        for broker in self.brokers.values():
            broker.handle(leader_and_isr({topic_partition: row}))

    def alter(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        """Accept proposals that have the present epochs."""
        rows = tuple(self._alter(request.broker_id, row) for row in request.partitions)
        return AlterPartitionResponse(Errors.NONE, rows)

    def _alter(self, sender: BrokerId, row: AlterPartitionRow) -> AlteredPartition:
        leader, leader_epoch, partition_epoch, isr = self.held[row.topic_partition]
        error = Errors.NONE
        if (sender, row.leader_epoch) != (leader, leader_epoch):
            error = Errors.FENCED_LEADER_EPOCH
        elif set(row.new_isr) == set(isr):
            pass  # it was accepted before
        elif row.partition_epoch != partition_epoch:
            error = Errors.INVALID_UPDATE_VERSION
        else:
            assert set(row.new_isr) <= set(REPLICAS)
            partition_epoch, isr = partition_epoch + 1, row.new_isr
            self.held[row.topic_partition] = (leader, leader_epoch, partition_epoch, isr)
        return AlteredPartition(
            *row.topic_partition, error, leader, leader_epoch, isr, 0, partition_epoch
        )


class Net:
    """Messages in transit, in random sequence."""

    def __init__(self, seed: int) -> None:
        self.coin = random.Random(seed)
        self.brokers = {broker_id: BareBroker(broker_id) for broker_id in REPLICAS}
        for broker in self.brokers.values():
            broker.meet(dict.fromkeys(REPLICAS, 100))
        self.authority = Authority(self.brokers)
        self.late: list[tuple[BareBroker, AlterPartitionRequest, AlterPartitionResponse]] = []

    def round(self, loss: float) -> None:
        """Let one second pass in which all brokers fetch and propose."""
        for broker_id, broker in self.brokers.items():
            broker.now_ms += 1_000
            broker.manager.shrink_isrs(broker.now_ms)
            for leader in broker.manager.leaders_to_fetch_from():
                request = broker.manager.fetch_request(leader, broker.now_ms)
                if request is not None and self.coin.random() >= loss:
                    response = self.brokers[leader].fetched(request)
                    if self.coin.random() >= loss:
                        broker.manager.on_fetch_response(leader, request, response, broker.now_ms)
            assert broker_id not in broker.manager.leaders_to_fetch_from()
            self.propose(broker, loss)

    def propose(self, broker: BareBroker, loss: float) -> None:
        request = broker.manager.alter_partition_request()
        if request is None:
            return
        response = self.authority.alter(request) if self.coin.random() >= loss else None
        if response is not None and self.coin.random() < loss:
            self.late.append((broker, request, response))
            response = None
        broker.manager.on_alter_partition_response(request, response, broker.now_ms)
        if self.late and self.coin.random() < loss:
            sender, old, answer = self.late.pop(self.coin.randrange(len(self.late)))
            sender.manager.on_alter_partition_response(old, answer, sender.now_ms)


@pytest.mark.parametrize("seed", range(40))
def test_isrs_become_complete_although_messages_are_lost_or_late(seed: int) -> None:
    net = Net(seed)
    for _ in range(30):
        if net.coin.random() < 0.2:
            net.authority.elect(net.coin.choice(PARTITIONS), net.coin.choice(REPLICAS))
        net.round(loss=0.4)
    for _ in range(2 * LAG_MS // 1_000):
        net.round(loss=0.0)
    for topic_partition, (leader, leader_epoch, partition_epoch, isr) in net.authority.held.items():
        hosted = net.brokers[leader].hosted(topic_partition)
        assert sorted(isr) == [*REPLICAS]
        assert (hosted.role, hosted.leader_epoch) == (Role.LEADER, leader_epoch)
        assert (hosted.isr, hosted.partition_epoch) == (isr, partition_epoch)
        assert hosted.proposal is None
