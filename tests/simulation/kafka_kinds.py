"""Which brokers of a history are Kafka's: none, some, or all but one; a restart may change it."""

from __future__ import annotations

import random
from collections.abc import Callable

from regent.core.model import BrokerId
from regent.zk.znodes import ControllerZNode
from tests.simulation.cluster import Cluster
from tests.simulation.convergence import assert_online_under_kafka
from tests.simulation.kafka_protocol import RELEASES, KafkaRelease
from tests.simulation.odds import BROKERS
from tests.support.fake_zookeeper import Call, Moment

KAFKA_HISTORIES = 0.12
RULING_PROBABILITY = 0.5  # of a history with brokers of Kafka
MOVE_PROBABILITY = 0.3  # of a restart
DEPOSED_PROBABILITY = 0.02  # of a controller of Kafka, in a step
OBSERVED_MS = 10_000
REPLACED_PROBABILITY = 0.04  # of a controller of Kafka, in a step
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
        self._is_observed = False
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
        if not self.is_on:
            return
        dice = self._random.random()
        if dice < DEPOSED_PROBABILITY:
            self._depose()
        elif dice < DEPOSED_PROBABILITY + REPLACED_PROBABILITY:
            self._replace_ruler()

    def _replace_ruler(self) -> None:
        """Start ours in the place of a dead controller of Kafka, before its death is handled.

        The next controller of Kafka is elected first, and then reads the brokers: among them ours.
        """
        cluster = self._cluster
        free = [
            broker
            for broker_id, broker in sorted(cluster.brokers.items())
            if broker_id not in cluster.in_call and not broker.is_paused and broker.has_session()
        ]
        rulers = [b for b in free if b.is_of_kafka and b.is_controller and not b.disk.has_failed]
        others = [b for b in free if b.is_of_kafka and b not in rulers]
        if not rulers or not others:
            return
        dead, heir = rulers[0], self._random.choice(others)
        self._note("%d of Kafka dies, and ours takes its place", dead.broker_id)
        cluster.kill(dead.broker_id)
        self._releases[dead.broker_id] = None
        ours = cluster.start(dead.broker_id)
        cluster.expire(dead.session.session_id)
        faults = heir.session.hook

        def register_first(call: Call) -> None:
            if faults is not None:
                faults(call)
            is_elected = call.method == "multi" and ControllerZNode.PATH in call.paths
            is_unknown = not ours.is_dead and ours.broker_epoch < 0
            if is_elected and call.moment is Moment.AFTER and is_unknown and ours.inbox:
                cluster.take(("event", ours.broker_id))

        heir.session.hook = register_first
        for _ in range(len(heir.inbox)):
            if not heir.is_dead and heir.inbox and not heir.is_controller:
                cluster.take(("event", heir.broker_id))
        heir.session.hook = faults

    def end_moves(self) -> None:
        """Let brokers stay of their kind from now on."""
        self._is_moving = False

    def observe(self) -> None:
        """Let a controller of Kafka rule on without faults, and look at what it uses then."""
        if self.is_on and self._may_rule:
            self._is_observed = True
            self._cluster.run_for(OBSERVED_MS)
            assert_online_under_kafka(self._cluster)
            self._is_observed = False

    def rest(self) -> None:
        """Let no broker of Kafka rule any more: only ours are checked at rest."""
        if self.is_on and not self._is_observed:
            self._cluster.let_kafka_rule(may_rule=False)
            self._depose()

    def _depose(self) -> None:
        for broker in self._cluster.kafka_controllers:
            if broker.broker_id not in self._cluster.in_call:
                self._note("%d of Kafka is deposed", broker.broker_id)
                self._cluster.expire(broker.session.session_id)
