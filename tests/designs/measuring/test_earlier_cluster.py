"""v1 and v2 in real processes, over a real ZooKeeper."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from regent.designs.design_process import DESIGNS
from regent.designs.measuring.earlier_cluster import EarlierCluster
from regent.designs.measuring.four_letter_words import FourLetterWords
from regent.designs.measuring.measured_cluster import Believers

pytestmark = [pytest.mark.nightly, pytest.mark.system]

PARTITIONS = 6
WATCHES_OF_A_PARTITION = {"v1-name": 6, "v1-sequential": 5, "v2": 3}
SHORT_SESSION_MS = 3_000


@pytest.fixture(params=DESIGNS)
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EarlierCluster]:
    with closing(EarlierCluster(request.param, tmp_path, 3)) as cluster:
        yield cluster


def test_replicas_have_watches_and_others_lead_after_kill_9(cluster: EarlierCluster):
    cluster.create_partitions(PARTITIONS)
    watches = FourLetterWords(cluster.zookeeper.port).mntr()["watch_count"]
    assert watches >= WATCHES_OF_A_PARTITION[cluster.design] * PARTITIONS
    dead = cluster.leader_of(0)
    led = cluster.partitions_led_by([dead])
    before = cluster.broker_counts(set(cluster.brokers) - {dead})
    since = time.monotonic()
    os.kill(cluster.pid(dead), signal.SIGKILL)
    times = cluster.await_leaders([dead], since)
    survivors = set(cluster.brokers) - {dead}
    assert 0 < times.led_ms <= times.known_ms
    assert led >= 1
    assert cluster.partitions_led_by(survivors) == PARTITIONS
    told = cluster.broker_counts(survivors).listeners_called
    assert told is not None
    assert before.listeners_called is not None
    assert told - before.listeners_called > 2 * led


@pytest.mark.parametrize(
    ("design", "acknowledges"), [("v1-name", True), ("v2", False)], ids=["v1-name", "v2"]
)
def test_a_former_leader_believes_that_it_leads_and_in_v1_it_acknowledges(
    design: str, acknowledges: bool, tmp_path: Path
):
    with closing(EarlierCluster(design, tmp_path, 3, SHORT_SESSION_MS)) as cluster:
        cluster.create_partitions(1)
        assert cluster.believers() == Believers(2, acknowledges)


def test_a_command_of_v2_takes_eight_operations_in_zookeeper(tmp_path: Path):
    with closing(EarlierCluster("v2", tmp_path, 3)) as cluster:
        cluster.create_partitions(1)
        cost = cluster.state_change_cost()
        assert cost is not None
        assert cost.zookeeper_operations == 8
