"""A cluster for each test, and its cluster file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.fake_cluster import ADDRESS, FakeCluster, warm_placement, write_cluster_file


@pytest.fixture(autouse=True)
def no_profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands see no profile of the user who runs the tests."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "of-the-user"))
    monkeypatch.delenv("REGENT_PROFILE", raising=False)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCluster]:
    """A cluster that commands find by default, at a ZooKeeper address."""
    monkeypatch.setenv("REGENT_ZOOKEEPER", ADDRESS)
    monkeypatch.delenv("REGENT_DATA_DIR", raising=False)
    cluster = FakeCluster()
    yield cluster
    cluster.close()


@pytest.fixture
def local(cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    """Three brokers and a warm placement service, found by a data directory."""
    monkeypatch.delenv("REGENT_ZOOKEEPER")
    monkeypatch.setenv("REGENT_DATA_DIR", str(tmp_path))
    cluster.with_brokers(3)
    write_cluster_file(tmp_path, placement=cluster.serve(warm_placement))
    return cluster
