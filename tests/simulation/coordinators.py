"""Where clients look for coordinators, and how they ask them."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from regent.core.coordinator.partition_for import partition_for
from regent.core.model import BrokerId, TopicPartition
from regent.zk.znodes import DeleteTopicsTopicZNode, TopicZNode
from tests.simulation.broker import SimulatedBroker
from tests.simulation.client_requests import (
    CoordinatorCall,
    GroupAnswer,
    GroupCall,
    TransactionAnswer,
    TransactionCall,
)
from tests.simulation.cluster import Cluster
from tests.simulation.network import AnswerBody, Exchange, Peer
from tests.simulation.odds import BROKERS


class Coordinators:
    """Those of one topic. They are found in the metadata of some broker.

    ``call`` makes the request of a client from one of a coordinator.
    """

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        partitions: int,
        dice: random.Random,
        call: type[GroupCall] | type[TransactionCall],
    ) -> None:
        self.cluster = cluster
        self.dice = dice
        self._topic = topic
        self._partitions = partitions
        self._call = call

    def partition_of(self, key: str) -> TopicPartition:
        """Return the partition that has the records of a group or a transactional id."""
        return TopicPartition(self._topic, partition_for(key, self._partitions))

    def find(self, key: str) -> BrokerId | None:
        """Return the coordinator, as some broker answers FindCoordinator."""
        broker = self._some_broker()
        server = None if broker is None else broker.coordinator_of(self._topic)
        if broker is None or server is None:
            return None
        return self._leader(broker, TopicPartition(self._topic, server.partition_of(key)))

    def leader(self, name: TopicPartition) -> BrokerId | None:
        """Return the leader of a partition, as some broker knows it."""
        broker = self._some_broker()
        return None if broker is None else self._leader(broker, name)

    def _some_broker(self) -> SimulatedBroker | None:
        brokers = [b for _, b in sorted(self.cluster.brokers.items())]
        return self.dice.choice(brokers) if brokers else None

    def _leader(self, broker: SimulatedBroker, name: TopicPartition) -> BrokerId | None:
        row = broker.cache.snapshot.partitions.get(name)
        return row.leader if row is not None and row.leader in self.cluster.brokers else None

    def able_leader(self, name: TopicPartition) -> SimulatedBroker | None:
        """Return the present leader of a partition, if enough of its replicas are in sync."""
        if self.cluster.zookeeper.node(DeleteTopicsTopicZNode.path(name.topic)):
            return None  # the deletion waits for a broker
        state = self.cluster.state(name)
        leader = None if state is None else self.cluster.brokers.get(state.leader_and_isr.leader)
        if leader is None:
            return None
        led = leader.replica_manager.partitions.get(name)
        return leader if led is not None and len(led.isr) >= led.min_isr else None

    def ask(
        self,
        sender: Peer | None,
        broker_id: BrokerId,
        request: Any,
        on_answer: Callable[[Any], None],
    ) -> Exchange:
        """Send a request."""

        def unpack(answer: AnswerBody) -> None:
            assert isinstance(answer, GroupAnswer | TransactionAnswer)
            on_answer(answer.result)

        endpoint = self.cluster.brokers[broker_id].client_endpoint
        call: CoordinatorCall = self._call(request)
        return self.cluster.network.ask(sender, endpoint, call, unpack)


def create_topic(
    cluster: Cluster, dice: random.Random, note: Callable[..., None], topic: str, partitions: int
) -> None:
    """Create a topic with three replicas, unless it exists."""
    if cluster.zookeeper.node(TopicZNode.path(topic)):
        return
    replicas = {number: tuple(dice.sample(range(BROKERS), 3)) for number in range(partitions)}
    note("create %s %s", topic, replicas)
    cluster.put_topic(topic, replicas)
