"""Brokers whose addresses change while they run; the others must follow to the new ones."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from regent.core.errors import BadDataError
from regent.core.model import EndPoint
from regent.zk.znodes import BrokerIdZNode
from tests.simulation.broker import SimulatedBroker
from tests.simulation.cluster import Cluster
from tests.simulation.situations import Situation, Situations

CHANGING_PROBABILITY = 0.15  # of a history
ACTION_PROBABILITY = 0.03
FIRST_PORT = 40_000


class Addresses:
    """Moves brokers; a broker can only be reached at the addresses of its registration.

    It has random numbers of its own: histories without it do not change.
    """

    def __init__(
        self, cluster: Cluster, seed: int, situations: Situations, note: Callable[..., None]
    ) -> None:
        self._random = random.Random(f"addresses of {seed}")
        self._cluster = cluster
        self._situations = situations
        self._note = note
        self._port = FIRST_PORT
        self._followed_zxid = 0
        self._is_on = self._random.random() < CHANGING_PROBABILITY

    def act(self) -> None:
        """Sometimes give a broker new addresses."""
        brokers = list(self._cluster.brokers.values())
        if self._is_on and brokers and self._random.random() < ACTION_PROBABILITY:
            self._move(self._random.choice(brokers))
        self.follow()

    def follow(self) -> None:
        """Let brokers listen at the addresses of their registrations."""
        zxid = self._cluster.zookeeper.zxid
        if not self._is_on or zxid == self._followed_zxid:
            return
        self._followed_zxid = zxid
        for broker in self._cluster.brokers.values():
            node = self._cluster.zookeeper.node(BrokerIdZNode.path(broker.broker_id))
            if node is None or node.stat.ephemeral_owner != broker.session.session_id:
                continue
            try:
                info = BrokerIdZNode.decode(node.data, broker.broker_id)
            except BadDataError:
                continue  # an admin has overwritten it
            assert info.control_endpoint is not None
            assert info.replication_endpoint is not None
            broker.listen_at(info.control_endpoint, info.replication_endpoint)

    def _move(self, broker: SimulatedBroker) -> None:
        broker_id = broker.broker_id
        node = self._cluster.zookeeper.node(BrokerIdZNode.path(broker_id))
        if node is None or node.stat.ephemeral_owner != broker.session.session_id:
            return
        self._port += 1
        self._note("%d moves to port %d", broker_id, self._port)
        self._situations.meet(Situation.ADDRESS_CHANGED)
        info = broker.info
        control, replication = info.control_endpoint, info.replication_endpoint
        kind = self._random.randrange(3)
        if kind != 0:
            control = f"tcp://broker-{broker_id}:{self._port}"
        if kind != 1:
            replication = f"tcp://replication-{broker_id}:{self._port}"
        moved = replace(
            info,
            endpoints=(EndPoint("PLAINTEXT", "127.0.0.1", self._port),),
            control_endpoint=control,
            replication_endpoint=replication,
        )
        broker.move(moved)
