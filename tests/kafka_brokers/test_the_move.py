"""A loaded cluster moves from Kafka's brokers to ours, and back, by the commands of the page."""

from __future__ import annotations

from pathlib import Path

import pytest

from regent.cluster.embedded_zookeeper import EmbeddedZooKeeper
from regent.testing.waits import eventually
from tests.kafka_brokers.genuine_broker import VERSION
from tests.kafka_brokers.moved_cluster import BROKERS, WAIT_S, MovedCluster
from tests.kafka_brokers.moving_load import MovingLoad

pytestmark = [pytest.mark.system, pytest.mark.zookeeper, pytest.mark.nightly, pytest.mark.slow]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("version", [VERSION])
def test_a_loaded_cluster_moves_there_and_back(
    version: str, jars: None, zookeeper_server: EmbeddedZooKeeper, tmp_path: Path
):
    del jars
    zookeeper = f"{zookeeper_server.address}/{tmp_path.name}"
    with MovedCluster(tmp_path, zookeeper, version=version) as cluster:
        cluster.create_topics()
        with MovingLoad(cluster.clients) as load:
            load.await_progress()
            for block in ("move", "back"):
                for broker in BROKERS:
                    cluster.follow(block, broker)
                    load.await_progress()
                    print(block, broker, cluster.controller, load.counts())
            assert load.finish() == ""
            eventually(lambda: not cluster.differing_logs(), "equal logs", WAIT_S)
