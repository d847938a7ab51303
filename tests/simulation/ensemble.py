"""In some histories ZooKeeper has servers that lag: brokers read there what is old by then."""

from __future__ import annotations

import random

from tests.support.fake_zookeeper import FakeZooKeeperServer

LAGGING_PROBABILITY = 0.25  # of a history
LAGS = (1, 3, 10, 40)  # transactions
CATCHING_UP_PROBABILITY = 0.05


class Ensemble:
    """Two followers; each session begins, and goes on, at one of them or at the leader.

    Its dice are its own, so that histories with one server are as they would be.
    """

    def __init__(self, zookeeper: FakeZooKeeperServer, seed: int) -> None:
        self._random = random.Random(f"ensemble of {seed}")
        self._zookeeper = zookeeper
        self.is_lagging = self._random.random() < LAGGING_PROBABILITY
        if self.is_lagging:
            lags = self._random.choices(LAGS, k=2)
            servers = [zookeeper.leader, *map(zookeeper.add_follower, lags)]
            zookeeper.connect_to = lambda: self._random.choice(servers)

    def act(self) -> None:
        """Let the servers catch up now and then."""
        if self.is_lagging and self._random.random() < CATCHING_UP_PROBABILITY:
            self._zookeeper.catch_up()
