"""ZooKeeper's data lost, set back or exchanged under running brokers: all end, the logs stay."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import Producer

from core.model import BrokerId
from tests.support.breakable_cluster import BROKERS, BreakableCluster
from zk.client import ZooKeeperClient
from zk.cluster_identity import join_cluster
from zk.embedded import EmbeddedZooKeeper

pytestmark = [pytest.mark.system, pytest.mark.zookeeper]

RECORDS = 60
TIMEOUT_S = 60.0


class ReplaceableData:
    """A cluster whose ZooKeeper is given other data; the topic ``late`` is younger than ``older``.

    ``newest`` is what the cluster left behind when its brokers ended for the first time.
    """

    def __init__(self, cluster: BreakableCluster, directory: Path) -> None:
        self.cluster = cluster
        self.older, self.newest = directory / "older", directory / "newest"
        self._tree = directory / "zookeeper-alone" / "version-2"
        self.partitions = cluster.create_safe_topic("early", 1)
        self._produce("early")
        shutil.copytree(self._tree, self.older)  # while it is in use, and brokers are registered
        self.partitions += cluster.create_safe_topic("late", 2)
        self._produce("late")
        cluster.agreed_logs(self.partitions)
        self._files = self._read_files()

    def replace(self, data: Path | None) -> None:
        """Put other data, or none, in the place of ZooKeeper's."""
        self.cluster.server.stop()
        if not self.newest.exists():
            shutil.copytree(self._tree, self.newest)
        shutil.rmtree(self._tree)
        if data is not None:
            shutil.copytree(data, self._tree)
        self.cluster.server.start()
        self.cluster.renew_session()

    def await_the_end_of_all(self) -> str:
        """Wait until every broker has ended by itself; return what one of them says of it."""
        for broker_id in BROKERS:
            self.cluster.await_end(broker_id, self.cluster.pid(broker_id))
        self.assert_untouched()
        log = (self.cluster.data_dir / "broker-0" / "broker.log").read_text()
        return next(line for line in reversed(log.splitlines()) if "broker 0 ends" in line)

    def assert_untouched(self) -> None:
        """Check that every replica is where it was, byte for byte."""
        assert self._read_files() == self._files

    def start_in_vain(self, broker_id: BrokerId) -> str:
        """Start a broker that refuses to run, and return why."""
        command = self.cluster.broker_command(broker_id, *self.cluster.broker_arguments(broker_id))
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert ended.returncode == 1, ended
        (line,) = (text for text in ended.stderr.splitlines() if text.startswith("regent: "))
        self.assert_untouched()
        return line

    def start_all(self) -> None:
        """Start the brokers again, and check that nothing is missing and all goes on."""
        with ThreadPoolExecutor() as pool:
            list(pool.map(self.cluster.revive, BROKERS))
        for topic in ("early", "late"):
            self.cluster.await_isrs(topic, set(BROKERS))
        self.assert_untouched()
        self._produce("late")
        self.cluster.agreed_logs(self.partitions)
        self._files = self._read_files()
        if self.newest.exists():
            shutil.rmtree(self.newest)

    def _produce(self, topic: str) -> None:
        producer = Producer({"bootstrap.servers": self.cluster.bootstrap, "acks": "all"})
        for number in range(RECORDS):
            producer.produce(topic, b"%d" % number)
        assert producer.flush(TIMEOUT_S) == 0

    def _read_files(self) -> dict[Path, bytes]:
        """Return every file of records there is."""
        return {
            path: path.read_bytes()
            for broker_id in BROKERS
            for directory in self.cluster.log_directories(broker_id)
            for path in directory.glob("*/*.log")
        }


@pytest.fixture(scope="module")
def replaceable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplaceableData]:
    directory = tmp_path_factory.mktemp("replaceable")
    with BreakableCluster(directory) as cluster:
        yield ReplaceableData(cluster, directory)


def test_brokers_end_when_zookeeper_has_lost_its_data_or_has_those_of_another_cluster(
    replaceable: ReplaceableData, tmp_path: Path
) -> None:
    replaceable.replace(None)
    said = "but ZooKeeper has no /cluster/id: the ZooKeeper data was deleted or replaced"
    assert said in replaceable.await_the_end_of_all()
    assert said in replaceable.start_in_vain(0)
    assert said in replaceable.cluster.status()["reasons"][0]
    assert replaceable.cluster.zookeeper.children("/") == ["zookeeper"], "nobody wrote anything"
    server = EmbeddedZooKeeper(tmp_path)
    server.start()
    client = ZooKeeperClient(server.address, 10_000, on_watch=lambda _: None)
    with closing(client):
        client.start(10)
        other_id = join_cluster(client)
    server.stop()
    replaceable.replace(tmp_path / "version-2")
    assert f"but ZooKeeper says {other_id}: " in replaceable.start_in_vain(1)
    replaceable.replace(replaceable.newest)
    replaceable.start_all()


def test_brokers_end_when_zookeeper_was_set_back(replaceable: ReplaceableData) -> None:
    replaceable.replace(replaceable.older)
    said = "the ZooKeeper data is older than what this broker has seen"
    assert said in replaceable.await_the_end_of_all()
    assert said in replaceable.start_in_vain(2)
    assert said in replaceable.cluster.status()["reasons"][0]
    replaceable.replace(replaceable.newest)
    assert said in replaceable.start_in_vain(2), "until somebody says that it is well"
    for broker_id in BROKERS:
        for directory in replaceable.cluster.log_directories(broker_id):
            (directory / "control-plane.properties").unlink()
    replaceable.start_all()
