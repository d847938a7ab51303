"""A cluster a test, and what a command line may find of it on disk."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.fake_cluster import ADDRESS, FakeCluster


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCluster]:
    """A cluster that commands find by default, at a ZooKeeper address."""
    monkeypatch.setenv("REGENT_ZOOKEEPER", ADDRESS)
    monkeypatch.delenv("REGENT_DATA_DIR", raising=False)
    cluster = FakeCluster()
    yield cluster
    cluster.close()
