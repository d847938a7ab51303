"""Four brokers, of which broker 0 is the controller."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.fake_cluster import FakeCluster


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    cluster = FakeCluster()
    cluster.with_brokers(4)
    yield cluster
    cluster.close()
