"""A genuine KRaft controller takes ``/controller`` from ours, to migrate the cluster to KRaft."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic
from kazoo.client import KazooClient

from regent.cluster.embedded_zookeeper import LOOPBACK, EmbeddedZooKeeper
from regent.cluster.jvm_launcher import ending_with_this_process
from regent.config.command_line import COMMAND
from regent.testing.waits import eventually, scaled
from tests.kafka_brokers.genuine_broker import VERSION, GenuineBroker, command_of_kafka
from tests.kafka_brokers.test_only_the_controller import controller_only
from tests.support.free_ports import free_ports

pytestmark = [pytest.mark.system, pytest.mark.zookeeper, pytest.mark.nightly, pytest.mark.slow]

KRAFT: Final = 3000
KAFKA: Final = 1
OURS: Final = 10
WAIT_S: Final = scaled(60.0)


@contextmanager
def kraft_controller(folder: Path, zookeeper: str, port: int, cluster_id: str) -> Iterator[Path]:
    """Run a controller that waits until it may migrate the cluster; its output is yielded."""
    folder.mkdir()
    properties, output = folder / "controller.properties", folder / "output.log"
    named: dict[str, object] = {
        "process.roles": "controller",
        "node.id": KRAFT,
        "listeners": f"CONTROLLER://{LOOPBACK}:{port}",
        **of_migration(port),
        "zookeeper.connect": zookeeper,
        "log.dirs": folder / "metadata",
    }
    properties.write_text("".join(f"{name}={value}\n" for name, value in named.items()))
    log4j = folder / "log4j.properties"
    log4j.write_text(
        "log4j.rootLogger=INFO, out\nlog4j.appender.out=org.apache.log4j.ConsoleAppender\n"
        "log4j.appender.out.layout=org.apache.log4j.PatternLayout\n"
        "log4j.appender.out.layout.ConversionPattern=%p %m%n\n"
    )
    java, *words = command_of_kafka(VERSION)
    java_of = [java, f"-Dlog4j.configuration=file:{log4j}", *words]
    formatting = [*java_of, "kafka.tools.StorageTool", "format"]
    formatting += ["-t", cluster_id, "-c", str(properties)]
    subprocess.run(formatting, check=True, capture_output=True, timeout=WAIT_S)
    with output.open("ab") as written:
        command = [*java_of, "kafka.Kafka", str(properties)]
        process = subprocess.Popen(
            ending_with_this_process(command), stdout=written, stderr=written
        )
    try:
        yield output
    finally:
        process.kill()
        process.wait(WAIT_S)


def of_migration(port: int) -> dict[str, object]:
    """Return the settings that a controller and the brokers of a migration have in common."""
    return {
        "zookeeper.metadata.migration.enable": "true",
        "controller.quorum.voters": f"{KRAFT}@{LOOPBACK}:{port}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
    }


def output_of(*words: str) -> str:
    """Return what a command of ours prints; it may find something."""
    command = [*COMMAND, *words]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=WAIT_S)
    return ended.stdout + ended.stderr


def create(kafka: GenuineBroker, topic: str) -> None:
    """Create a topic by a new client, which does not know a former controller.

    A broker of Kafka that may migrate forwards the request until it knows the controller, and no
    broker with ZooKeeper takes that: the client gets UNKNOWN_SERVER_ERROR.
    """
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_server})

    def is_created() -> bool:
        error = admin.create_topics([NewTopic(topic, 1, 1)])[topic].exception(WAIT_S)
        if error is None:
            return True
        assert isinstance(error, KafkaException)
        assert error.args[0].code() == KafkaError.UNKNOWN, error
        return False

    eventually(is_created, f"{topic} is created", WAIT_S)


class Znodes:
    """What ZooKeeper says of the controller and the migration."""

    def __init__(self, zookeeper: str) -> None:
        self.client = KazooClient(zookeeper)
        self.client.start(WAIT_S)

    def close(self) -> None:
        self.client.stop()
        self.client.close()

    def read(self, path: str) -> dict[str, Any]:
        """Return the fields of a znode; none if it is not there."""
        if self.client.exists(path) is None:
            return {}
        fields: dict[str, Any] = json.loads(self.client.get(path)[0])
        return fields

    def await_controller(self, *broker_ids: int) -> None:
        what = f"one of {broker_ids} rules"
        eventually(lambda: self.read("/controller").get("brokerid") in broker_ids, what, WAIT_S)


@pytest.mark.timeout(400)
def test_ours_leave_the_cluster_to_a_kraft_controller_until_it_is_given_back(
    jars: None, zookeeper_server: EmbeddedZooKeeper, tmp_path: Path
):
    del jars
    zookeeper = f"{zookeeper_server.address}/{tmp_path.name}"
    (port,) = free_ports(1)
    with ExitStack() as stack:
        ours = stack.enter_context(controller_only(zookeeper, tmp_path / "ours", OURS))
        kafka = GenuineBroker(tmp_path / "kafka", KAFKA, zookeeper, settings=of_migration(port))
        stack.enter_context(kafka)
        kafka.await_serving()
        znodes = Znodes(zookeeper)
        stack.callback(znodes.close)
        znodes.await_controller(OURS)
        create(kafka, "before")

        with kraft_controller(
            tmp_path / "kraft", zookeeper, port, znodes.read("/cluster/id")["id"]
        ) as output:
            waits = f"Still waiting for ZK brokers [{OURS}] to register"
            eventually(lambda: waits in output.read_text(), "it waits for ours", WAIT_S)
            assert znodes.read("/controller")["brokerid"] == OURS
            check = output_of("migrate", "check", "--zookeeper", zookeeper)
            assert "/migration is there" in check

            ours.send_signal(signal.SIGSTOP)  # its session ends, and the other one waits no more
            znodes.await_controller(KRAFT)
            epoch = znodes.read("/controller")["kraftControllerEpoch"]
            assert epoch >= 0
            ours.send_signal(signal.SIGCONT)
            eventually(lambda: znodes.read(f"/brokers/ids/{OURS}"), "ours is back", WAIT_S)
            log = tmp_path / "ours" / "broker.log"
            held = f"the KRaft controller {KRAFT} holds /controller"
            eventually(lambda: held in log.read_text(), "the log of ours says why", WAIT_S)
            created = znodes.client.exists("/controller").czxid
            assert held in output_of("status", "--zookeeper", zookeeper)
            check = output_of("migrate", "check", "--zookeeper", zookeeper)
            assert f"the controller is one of KRaft (epoch {epoch})" in check
            create(kafka, "during")
            assert znodes.client.exists("/controller").czxid == created
            assert log.read_text().count(held) == 1

        znodes.client.delete("/controller")  # the way back, as status says
        znodes.await_controller(OURS, KAFKA)
        create(kafka, "after")
