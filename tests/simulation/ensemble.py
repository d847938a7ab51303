"""Histories in which ZooKeeper has servers that lag, so that brokers read old data."""

from __future__ import annotations

import random

from tests.support.fake_zookeeper import FakeZooKeeperServer

LAGGING_PROBABILITY = 0.25  # of a history
LAGS = (1, 3, 10, 40)  # transactions
CATCHING_UP_PROBABILITY = 0.05


class Ensemble:
    """Two followers; each session uses one of them, or the leader, and may change.

    It has random numbers of its own: histories with one server do not change.
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
        """Sometimes let the servers catch up."""
        if self.is_lagging and self._random.random() < CATCHING_UP_PROBABILITY:
            self._zookeeper.catch_up()
