"""Which brokers of a history are Kafka's: none, some, or all but one; a restart may change it."""

from __future__ import annotations

import random
from collections.abc import Callable

from regent.core.model import BrokerId
from tests.simulation.cluster import Cluster
from tests.simulation.kafka_protocol import RELEASES, KafkaRelease
from tests.simulation.odds import BROKERS

KAFKA_HISTORIES = 0.12
RULING_PROBABILITY = 0.5  # of a history with brokers of Kafka
MOVE_PROBABILITY = 0.3  # of a restart
DEPOSED_PROBABILITY = 0.02  # of a controller of Kafka, in a step
COUNTS = (1, 1, 2, BROKERS - 1)


class KafkaKinds:
    """Draws the kind of each process; one broker is always of this project.

    It has random numbers of its own: histories without brokers of Kafka do not change.
    """

    def __init__(self, seed: int, note: Callable[..., None]) -> None:
        self._random = random.Random(f"{seed}, brokers of Kafka")
        self._note = note
        self.is_on = self._random.random() < KAFKA_HISTORIES
        self._releases: dict[BrokerId, KafkaRelease | None] = dict.fromkeys(range(BROKERS))
        self._started: set[BrokerId] = set()
        self._may_rule = self._random.random() < RULING_PROBABILITY
        self._is_moving = self._random.random() < 0.5
        for broker_id in self._random.sample(range(BROKERS), self._random.choice(COUNTS)):
            self._releases[broker_id] = self._random.choice(RELEASES)

    def watch(self, cluster: Cluster) -> None:
        """Decide about the processes of a cluster from now on."""
        self._cluster = cluster
        if self.is_on:
            cluster.release_for = self._release_for
            cluster.let_kafka_rule(may_rule=self._may_rule)

    def is_last_of_ours(self, broker_id: BrokerId) -> bool:
        """Whether no other broker is of this project."""
        return all(r is not None for b, r in self._releases.items() if b != broker_id)

    def _release_for(self, broker_id: BrokerId) -> KafkaRelease | None:
        may_move = broker_id in self._started and self._is_moving
        self._started.add(broker_id)
        if may_move and self._random.random() < MOVE_PROBABILITY:
            release = self._releases[broker_id]
            if release is not None:
                release = None
            elif not self.is_last_of_ours(broker_id):
                release = self._random.choice(RELEASES)
            self._releases[broker_id] = release
        release = self._releases[broker_id]
        if release is not None:
            self._note("%d is a broker of Kafka %s", broker_id, release.name)
        return release

    def act(self) -> None:
        """Sometimes end a controller of Kafka, so that another broker rules."""
        if self.is_on and self._random.random() < DEPOSED_PROBABILITY:
            self._depose()

    def rest(self) -> None:
        """Let no broker of Kafka rule any more: only ours are checked at rest."""
        if self.is_on:
            self._cluster.let_kafka_rule(may_rule=False)
            self._is_moving = False
            self._depose()

    def _depose(self) -> None:
        for broker in self._cluster.kafka_controllers:
            if broker.broker_id not in self._cluster.in_call:
                self._note("%d of Kafka is deposed", broker.broker_id)
                self._cluster.expire(broker.session.session_id)
