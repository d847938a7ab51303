"""An empty ZooKeeper with the persistent paths of a cluster, and one session."""

from __future__ import annotations

import pytest

from regent.zk.znodes import PERSISTENT_PATHS
from tests.support.fake_zookeeper import FakeZooKeeper, FakeZooKeeperServer


@pytest.fixture
def server() -> FakeZooKeeperServer:
    server = FakeZooKeeperServer()
    for path in PERSISTENT_PATHS:
        server.put(path)
    return server


@pytest.fixture
def zookeeper(server: FakeZooKeeperServer) -> FakeZooKeeper:
    return FakeZooKeeper(server)
