"""One broker of ours without replicas is the controller of genuine brokers of Kafka."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from regent.cluster.embedded_zookeeper import EmbeddedZooKeeper
from regent.config.command_line import COMMAND
from regent.testing.waits import eventually, next_line, scaled
from tests.kafka_brokers.genuine_broker import GenuineBroker
from tests.support.free_ports import free_ports

pytestmark = [pytest.mark.system, pytest.mark.zookeeper]

FIRST, SECOND, OURS = 1, 2, 10
WAIT_S = scaled(30.0)


@contextmanager
def controller_only(zookeeper: str, directory: Path) -> Iterator[None]:
    """Run a broker of ours with ``--no-replicas`` until the end of the block."""
    (port,) = free_ports(1)
    command = [*COMMAND, "broker", "--id", str(OURS), "--no-replicas", "--zookeeper", zookeeper]
    command += ["--data-dir", str(directory), "--listeners", f"PLAINTEXT://127.0.0.1:{port}"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        next_line(process, "the broker is ready", WAIT_S)
        yield
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0
    finally:
        process.kill()
        process.communicate(timeout=WAIT_S)


def move(zookeeper: str, keys: Path, to: int) -> subprocess.CompletedProcess[str]:
    command = [*COMMAND, "controller", "move", "--to", str(to), "--zookeeper", zookeeper]
    command += ["--keys", str(keys)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=WAIT_S)


def placed(admin: AdminClient, topic: str) -> set[int]:
    rows = admin.list_topics(topic, timeout=WAIT_S).topics[topic].partitions.values()
    return {replica for row in rows for replica in row.replicas} if rows else set()


@pytest.mark.timeout(300)
@pytest.mark.slow
@pytest.mark.nightly
def test_a_broker_without_replicas_takes_over_from_a_controller_of_kafka_and_gives_back(
    jars: None, zookeeper_server: EmbeddedZooKeeper, tmp_path: Path
):
    del jars
    zookeeper, keys = f"{zookeeper_server.address}/{tmp_path.name}", tmp_path / "ours" / "keys"
    with (
        GenuineBroker(tmp_path / "first", FIRST, zookeeper) as first,
        GenuineBroker(tmp_path / "second", SECOND, zookeeper) as second,
    ):
        first.await_serving()
        second.await_serving()
        admin = AdminClient({"bootstrap.servers": first.bootstrap_server})

        def ruler() -> int:
            return int(admin.list_topics(timeout=WAIT_S).controller_id)

        eventually(lambda: ruler() in (FIRST, SECOND), "a broker of Kafka rules", WAIT_S)
        with controller_only(zookeeper, tmp_path / "ours"):
            assert "The controller moved" in move(zookeeper, keys, OURS).stdout
            eventually(lambda: ruler() == OURS, "Kafka's brokers know the controller", WAIT_S)
            admin.create_topics([NewTopic("t", 6, 2)])["t"].result(WAIT_S)
            eventually(lambda: placed(admin, "t") == {FIRST, SECOND}, "it is placed", WAIT_S)
            refused = move(zookeeper, keys, FIRST)
            assert "broker 1 is one of Kafka" in refused.stderr
        eventually(lambda: ruler() in (FIRST, SECOND), "a broker of Kafka rules again", WAIT_S)
        assert placed(admin, "t") == {FIRST, SECOND}
