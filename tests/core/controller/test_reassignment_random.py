"""Random requests, failures and restarts: each partition ends at one of its targets."""

from __future__ import annotations

import random

import pytest

from regent.core.model import TopicPartition
from regent.core.protocol.control import LeaderAndIsrPartition
from tests.support.fake_zookeeper import Call, Moment
from tests.support.moving_cluster import MovingCluster
from tests.support.world import T0, T1, Replicas, SimulatedCrashError, topic_id

U0 = TopicPartition("u", 0)
ORIGIN: dict[TopicPartition, Replicas] = {T0: (1, 2, 3), T1: (2, 1, 3), U0: (1, 2)}
BROKERS = range(1, 7)
STEPS = 30


class RandomCluster(MovingCluster):
    """A cluster with random events; a follower catches up in half of the attempts."""

    def __init__(self, seed: int) -> None:
        super().__init__(BROKERS)
        self._random = random.Random(seed)
        self._incarnations = 1
        self._is_healthy = True
        self.wanted: dict[TopicPartition, list[frozenset[int]]] = {
            p: [frozenset(replicas)] for p, replicas in ORIGIN.items()
        }
        self.put_topic("t", {0: ORIGIN[T0], 1: ORIGIN[T1]}, topic_id(1))
        self.put_topic("u", {0: ORIGIN[U0]}, topic_id(2))
        self.start_controller()
        self._is_healthy = False

    def step(self) -> None:
        """Run one random step."""
        steps = [
            self.request,
            self.cancel,
            self.write,
            self.kill,
            self.start,
            self.break_controller,
            self.succeed,
        ]
        try:
            self._random.choice(
                [*steps, self.request, self.start, self.break_controller, *[self.catch_up] * 3]
            )()
        except SimulatedCrashError:
            self.succeed()

    def request(self) -> None:
        """Request a reassignment by RPC."""
        self.submit({**self._targets()})

    def cancel(self) -> None:
        """Cancel reassignments by RPC."""
        self.submit(dict.fromkeys(self._partitions()))

    def write(self) -> None:
        """Request by znode; as most tools do, usually wait until the znode is gone."""
        if self.znode() is None or self._random.random() < 0.3:
            self.write_znode(self._targets())

    def kill(self) -> None:
        """Stop a broker while there are more than three."""
        if len(self.sessions) > 3:
            self.unregister(self._random.choice(sorted(self.sessions)))
            self.settle()

    def start(self) -> None:
        """Start an offline broker."""
        for broker_id in self._offline()[:1]:
            self._incarnations += 1
            self.register(broker_id, incarnation=self._incarnations)
            self.settle()

    def break_controller(self) -> None:
        """Let the controller crash, or be deposed without notice, at one of its next writes."""
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
        """Start all brokers and wait until nothing changes."""
        self._is_healthy = True
        self.active.session.hook = None
        while self._offline():
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

    def _offline(self) -> list[int]:
        offline = [b for b in BROKERS if b not in self.sessions]
        return self._random.sample(offline, len(offline))


@pytest.mark.parametrize("seed", range(40))
def test_every_partition_ends_at_one_of_its_targets(seed: int) -> None:
    cluster = RandomCluster(seed)
    for _ in range(STEPS):
        cluster.step()
        cluster.assert_sound()
    cluster.heal()
    cluster.assert_at_rest()
    for partition, wanted in cluster.wanted.items():
        assert frozenset(cluster.replicas(partition)[0]) in wanted
