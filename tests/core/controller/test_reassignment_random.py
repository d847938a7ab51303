"""Requests, deaths and returns at random: in the end everything is where somebody wanted it."""

from __future__ import annotations

import random

import pytest

from regent.core.model import TopicPartition
from regent.core.protocol.control import LeaderAndIsrPartition
from tests.support.fake_zookeeper import Call, Moment
from tests.support.moving_cluster import MovingCluster
from tests.support.term import T0, T1, Replicas, topic_id

U0 = TopicPartition("u", 0)
ORIGIN: dict[TopicPartition, Replicas] = {T0: (1, 2, 3), T1: (2, 1, 3), U0: (1, 2)}
BROKERS = range(1, 7)
STEPS = 30


class SimulatedCrashError(Exception):
    """The controller's process ends here."""


class Chance(MovingCluster):
    """A cluster to which things happen; every other follower of a moment is too slow."""

    def __init__(self, seed: int) -> None:
        super().__init__(BROKERS)
        self._random = random.Random(seed)
        self._lives = 1
        self._is_healthy = True
        self.wanted: dict[TopicPartition, list[frozenset[int]]] = {
            p: [frozenset(replicas)] for p, replicas in ORIGIN.items()
        }
        self.put_topic("t", {0: ORIGIN[T0], 1: ORIGIN[T1]}, topic_id(1))
        self.put_topic("u", {0: ORIGIN[U0]}, topic_id(2))
        self.start_controller()
        self._is_healthy = False

    def step(self) -> None:
        """Let one thing happen."""
        steps = [self.ask, self.cancel, self.write, self.kill, self.start, self.doom, self.succeed]
        try:
            self._random.choice([*steps, self.ask, self.start, self.doom, *[self.catch_up] * 3])()
        except SimulatedCrashError:
            self.succeed()

    def ask(self) -> None:
        """Ask by RPC."""
        self.submit({**self._targets()})

    def cancel(self) -> None:
        """Cancel by RPC."""
        self.submit(dict.fromkeys(self._partitions()))

    def write(self) -> None:
        """Ask as tools do, which wait for each other most of the time."""
        if self.znode() is None or self._random.random() < 0.3:
            self.write_znode(self._targets())

    def kill(self) -> None:
        """Kill a broker while there are more than three."""
        if len(self.sessions) > 3:
            self.unregister(self._random.choice(sorted(self.sessions)))
            self.settle()

    def start(self) -> None:
        """Start a dead broker."""
        for broker_id in self._dead()[:1]:
            self._lives += 1
            self.register(broker_id, incarnation=self._lives)
            self.settle()

    def doom(self) -> None:
        """Have the controller crash, or be deposed unknowingly, at one of its next writes."""
        left, moment = self._random.randrange(10), self._random.choice(list(Moment))
        is_crash = self._random.random() < 0.5

        def hook(call: Call) -> None:
            nonlocal left
            if call.method in ("multi", "multi_many") and call.moment is moment:
                left -= 1
                if left == -1 and is_crash:
                    raise SimulatedCrashError
                if left == -1:
                    self.depose()

        self.active.session.hook = hook

    def heal(self) -> None:
        """Bring everything back and let it come to rest."""
        self._is_healthy = True
        self.active.session.hook = None
        while self._dead():
            self.start()
        self.settle()
        self.catch_up_with_everything()

    def _follows(
        self, broker_id: int, partition: TopicPartition, leading: LeaderAndIsrPartition
    ) -> bool:
        is_fast = self._is_healthy or self._random.random() < 0.5
        return is_fast and super()._follows(broker_id, partition, leading)

    def _targets(self) -> dict[TopicPartition, Replicas]:
        targets = {
            p: tuple(self._random.sample(BROKERS, self._random.randint(1, 3)))
            for p in self._partitions()
        }
        for partition, target in targets.items():
            self.wanted[partition].append(frozenset(target))
        return targets

    def _partitions(self) -> list[TopicPartition]:
        return self._random.sample(list(ORIGIN), self._random.randint(1, 3))

    def _dead(self) -> list[int]:
        dead = [b for b in BROKERS if b not in self.sessions]
        return self._random.sample(dead, len(dead))


@pytest.mark.parametrize("seed", range(40))
def test_everything_ends_where_somebody_wanted_it(seed: int) -> None:
    cluster = Chance(seed)
    for _ in range(STEPS):
        cluster.step()
        cluster.assert_sound()
    cluster.heal()
    cluster.assert_at_rest()
    for partition, wanted in cluster.wanted.items():
        assert frozenset(cluster.replicas(partition)[0]) in wanted
