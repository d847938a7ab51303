"""Our design, measured in a real cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from regent.designs.measuring.failure import FailureCase, FailureMeter
from regent.designs.measuring.v3_cluster import V3Cluster

pytestmark = [pytest.mark.nightly, pytest.mark.system]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[V3Cluster]:
    monkeypatch.setattr(V3Cluster, "period_s", 0.5)  # what is counted by chance does not matter
    with closing(V3Cluster(tmp_path, 3)) as cluster:
        yield cluster


def test_a_failure_costs_what_the_controller_writes_and_what_its_watches_tell(cluster: V3Cluster):
    found = FailureMeter(cluster).measure(FailureCase(6), lambda _: None)

    assert 0 < found.times.led_ms <= found.times.known_ms
    assert found.zookeeper.znodes_written >= 6  # the dead broker was in every ISR
    assert found.zookeeper.ephemerals_deleted == 1
    assert found.zookeeper.watches_fired == 2  # the children of /brokers/ids, and the broker's own
    assert found.zookeeper.watches_set == 1  # the former again
    assert found.zookeeper.read_requests <= found.zookeeper.packets / 2
    assert found.broker_requests >= 4  # LeaderAndIsr and UpdateMetadata for each survivor
    assert (found.rest.sessions, found.rest.watches) == (3, 20)

    assert found.zookeeper.by_log == found.zookeeper.by_mntr


def test_a_stopped_leader_says_that_it_leads_but_acknowledges_nothing(cluster: V3Cluster):
    cluster.create_partitions(1)
    found = cluster.believers()
    assert found is not None
    assert (found.leaders, found.has_acknowledged) == (2, False)
