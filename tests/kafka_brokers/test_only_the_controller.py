"""Brokers of ours without replicas are the controllers of genuine brokers of Kafka."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from regent.cluster.embedded_zookeeper import EmbeddedZooKeeper
from regent.cluster.jvm_launcher import ending_with_this_process
from regent.config.command_line import COMMAND
from regent.testing.waits import eventually, next_line, scaled
from tests.kafka_brokers.genuine_broker import JARS, GenuineBroker
from tests.support.free_ports import free_ports

pytestmark = [pytest.mark.system, pytest.mark.zookeeper]

FIRST, SECOND = KAFKA = 1, 2
OURS = 10, 11
WAIT_S = scaled(30.0)
ASK_S = scaled(3.0)


@contextmanager
def controller_only(
    zookeeper: str, directory: Path, broker_id: int
) -> Iterator[subprocess.Popen[str]]:
    """Run a broker of ours with ``--no-replicas`` until the end of the block."""
    (port,) = free_ports(1)
    command = [*COMMAND, "broker", "--id", str(broker_id), "--no-replicas"]
    command += ["--zookeeper", zookeeper, "--session-timeout-ms", "4000", "--control-port", "0"]
    command += ["--metrics-port", "0"]
    command += ["--data-dir", str(directory), "--listeners", f"PLAINTEXT://127.0.0.1:{port}"]
    process = subprocess.Popen(ending_with_this_process(command), stdout=subprocess.PIPE, text=True)
    try:
        next_line(process, "the broker is ready", WAIT_S)
        yield process
    finally:
        process.kill()
        process.communicate(timeout=WAIT_S)


def rulers(admin: AdminClient) -> set[int]:
    """Return the controllers that brokers name; none if a broker does not answer."""
    found = set()
    for broker in admin.list_topics(timeout=WAIT_S).brokers.values():
        one = AdminClient({"bootstrap.servers": f"{broker.host}:{broker.port}"})
        try:
            found.add(int(one.list_topics(timeout=ASK_S).controller_id))
        except KafkaException:
            return set()
    return found


def stop(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGTERM)
    assert process.wait(WAIT_S) == 0


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
@pytest.mark.parametrize("version", JARS)
def test_brokers_without_replicas_rule_brokers_of_kafka_until_the_last_one_has_stopped(
    version: str, jars: None, zookeeper_server: EmbeddedZooKeeper, tmp_path: Path
):
    del jars
    zookeeper, keys = f"{zookeeper_server.address}/{tmp_path.name}", tmp_path / "11" / "keys"
    with (
        GenuineBroker(tmp_path / "1", FIRST, zookeeper, version=version) as first,
        GenuineBroker(tmp_path / "2", SECOND, zookeeper, version=version) as second,
    ):
        first.await_serving()
        second.await_serving()
        admin = AdminClient({"bootstrap.servers": first.bootstrap_server})

        def ruler() -> int:
            return int(admin.list_topics(timeout=WAIT_S).controller_id)

        def await_ruler(*broker_ids: int) -> None:
            """Wait until all brokers know it: a client may ask any, also the controller itself."""
            what = f"all know that one of {broker_ids} rules"
            eventually(lambda: [*rulers(admin)] in [[one] for one in broker_ids], what, WAIT_S)

        await_ruler(*KAFKA)
        with controller_only(zookeeper, tmp_path / "10", OURS[0]) as one:
            await_ruler(OURS[0])
            admin.create_topics([NewTopic("t", 6, 2)])["t"].result(WAIT_S)
            eventually(lambda: placed(admin, "t") == set(KAFKA), "it is placed", WAIT_S)
            with controller_only(zookeeper, tmp_path / "11", OURS[1]) as other:
                assert ruler() == OURS[0]
                refused = move(zookeeper, keys, FIRST)
                assert "broker 1 is one of Kafka" in refused.stderr
                assert "The controller moved" in move(zookeeper, keys, OURS[1]).stdout
                await_ruler(OURS[1])
                other.kill()
                await_ruler(OURS[0])
            admin.create_topics([NewTopic("u", 6, 2)])["u"].result(WAIT_S)
            eventually(lambda: placed(admin, "u") == set(KAFKA), "it is placed", WAIT_S)
            stop(one)
        await_ruler(*KAFKA)
        assert placed(admin, "t") == set(KAFKA)
