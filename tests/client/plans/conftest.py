"""Four brokers, of which broker 0 is the controller."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from regent.core.model import ReplicaAssignment
from tests.support.fake_cluster import FakeCluster
from tests.support.plan_controller import BEFORE, MovingController, write_plan


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    cluster = FakeCluster()
    cluster.with_brokers(4)
    yield cluster
    cluster.close()


@pytest.fixture
def controller(cluster: FakeCluster) -> MovingController:
    """Four brokers and a topic with three partitions on the first two."""
    controller = MovingController(cluster)
    controller.assign(dict.fromkeys(range(3), ReplicaAssignment(BEFORE)))
    return controller


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    """Partitions 0, 1 and 2."""
    return write_plan(tmp_path / "plan", 0, 1, 2)
