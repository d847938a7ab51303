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

THERE_AND_BACK = [(block, broker) for block in ("move", "back") for broker in BROKERS]
BACK_AT_EACH_STEP = [
    *(("move", 1), ("back", 1)),
    *(("move", 1), ("move", 2), ("back", 2), ("back", 1)),
]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("version", "steps"),
    [
        pytest.param(VERSION, THERE_AND_BACK, id="there-and-back"),
        pytest.param("2.8.2", THERE_AND_BACK, id="2.8.2"),
        pytest.param(VERSION, BACK_AT_EACH_STEP, id="back-at-each-step"),
    ],
)
def test_no_client_notices_the_move(
    version: str,
    steps: list[tuple[str, int]],
    jars: None,
    zookeeper_server: EmbeddedZooKeeper,
    tmp_path: Path,
):
    del jars
    zookeeper = f"{zookeeper_server.address}/{tmp_path.name}"
    with MovedCluster(tmp_path, zookeeper, version=version) as cluster:
        cluster.create_topics()
        cluster.follow("check", BROKERS[0])
        with MovingLoad(cluster.clients) as load:
            load.await_progress()
            for block, broker in steps:
                cluster.follow(block, broker)
                load.await_progress()
            assert load.finish() == ""
            eventually(lambda: not cluster.differing_logs(), "equal logs", WAIT_S)
