"""A loaded cluster moves from Kafka's brokers to ours, and back, by the commands of the page."""

from __future__ import annotations

from pathlib import Path

import pytest

from regent.cluster.embedded_zookeeper import EmbeddedZooKeeper
from regent.testing.waits import eventually
from tests.kafka_brokers.genuine_broker import JARS, VERSION
from tests.kafka_brokers.moved_cluster import BROKERS, WAIT_S, MovedCluster
from tests.kafka_brokers.moving_load import MovingLoad
from tests.kafka_brokers.secured import APP, STRANGER, Secured, add_users, allow_app

pytestmark = [pytest.mark.system, pytest.mark.zookeeper, pytest.mark.nightly, pytest.mark.slow]

THERE_AND_BACK = [(block, broker) for block in ("move", "back") for broker in BROKERS]
BACK_AT_EACH_STEP = [
    *(("move", 1), ("back", 1)),
    *(("move", 1), ("move", 2), ("back", 2), ("back", 1)),
]

AFTER_KILLS = [("move", 1), ("move", 2), ("back", 1), ("move", 3), ("back", 2), ("back", 3)]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("version", "steps"),
    [
        *(pytest.param(version, THERE_AND_BACK, id=version) for version in JARS),
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
        _move_under_load(cluster, steps)


@pytest.mark.timeout(900)
def test_requests_of_the_controller_have_their_own_listener(
    jars: None, zookeeper_server: EmbeddedZooKeeper, tmp_path: Path
):
    del jars
    zookeeper = f"{zookeeper_server.address}/{tmp_path.name}"
    settings = {"control.plane.listener.name": "CONTROL"}
    settings["listener.security.protocol.map"] = "PLAINTEXT:PLAINTEXT,CONTROL:PLAINTEXT"
    more = ",CONTROL://127.0.0.1:0"
    with MovedCluster(tmp_path, zookeeper, settings=settings, more_listeners=more) as cluster:
        _move_under_load(cluster, THERE_AND_BACK)


def _move_under_load(cluster: MovedCluster, steps: list[tuple[str, int]]) -> None:
    cluster.create_topics()
    cluster.follow("check", BROKERS[0])
    with MovingLoad(cluster.clients) as load:
        load.await_progress()
        for block, broker in steps:
            cluster.follow(block, broker)
            load.await_progress()
        assert load.finish() == ""
        eventually(lambda: not cluster.differing_logs(), "equal logs", WAIT_S)


@pytest.mark.timeout(1_500)
@pytest.mark.parametrize("version", JARS)
def test_no_client_notices_deaths_in_the_middle_of_the_move(
    version: str, jars: None, zookeeper_server: EmbeddedZooKeeper, tmp_path: Path
):
    """Each step begins with ``kill -9``; between two steps each kind takes over as controller."""
    del jars
    zookeeper = f"{zookeeper_server.address}/{tmp_path.name}"
    with MovedCluster(tmp_path, zookeeper, version=version) as cluster:
        cluster.create_topics()
        with MovingLoad(cluster.clients) as load:
            load.await_progress()
            for block, broker in AFTER_KILLS:
                cluster.kill(broker)
                load.await_progress()
                cluster.follow(block, broker, has_ended=True)
                load.await_progress()
                kinds = 2 if 0 < len(cluster.ours) < len(BROKERS) else 0
                for _ in range(kinds):
                    of_ours = cluster.ours
                    ended = cluster.kill_controller()
                    load.await_progress()
                    cluster.restart(ended, is_ours=ended in of_ours)
                    load.await_progress()
            assert load.finish() == ""
            eventually(lambda: not cluster.differing_logs(), "equal logs", WAIT_S)


@pytest.mark.timeout(1_500)
@pytest.mark.parametrize("version", JARS)
def test_logins_encryption_and_acls_stay_through_the_move(
    version: str, jars: None, zookeeper_server: EmbeddedZooKeeper, tmp_path: Path
):
    """Brokers log in to each other with SCRAM, too; their stores are PKCS12, as of keytool."""
    del jars
    zookeeper = f"{zookeeper_server.address}/{tmp_path.name}"
    secured = Secured(tmp_path / "secured")
    with MovedCluster(tmp_path, zookeeper, version=version, secured=secured) as cluster:
        admin = cluster.admin()
        add_users(admin, (APP, STRANGER))
        allow_app(admin)
        cluster.create_topics()
        cluster.follow("secured-check", BROKERS[0])
        with MovingLoad(cluster.clients) as load:
            load.await_progress()
            is_allowed = False
            for block, broker in THERE_AND_BACK:
                cluster.follow(block, broker)
                load.await_progress()
                cluster.allow_stranger(is_allowed := not is_allowed)
            assert load.finish() == ""
            eventually(lambda: not cluster.differing_logs(), "equal logs", WAIT_S)
