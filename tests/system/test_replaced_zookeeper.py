"""ZooKeeper has lost, older or foreign data under running brokers: all end, and the logs stay."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import Producer

from regent.cluster.embedded_zookeeper import EmbeddedZooKeeper
from regent.core.model import BrokerId, ReplicaAssignment
from regent.testing.waits import eventually, scaled
from regent.zk.client.operations import Create
from regent.zk.client.zookeeper_client import ZooKeeperClient
from regent.zk.codecs.topic_znodes import encode_topic_id
from regent.zk.stores.cluster_identity import join_cluster
from regent.zk.stores.controller_store import ZkControllerStore
from regent.zk.stores.tree_store import ZkTreeStore, check_tree
from regent.zk.znodes import ControllerEpochZNode, TopicZNode
from tests.support.breakable_cluster import ALONE, BROKERS, BreakableCluster
from tests.support.embedded_ensemble import EmbeddedEnsemble

pytestmark = [pytest.mark.system, pytest.mark.zookeeper]

RECORDS = 60
TIMEOUT_S = scaled(60.0)
TREE = "version-2"  # of a server


class ReplaceableData:
    """A cluster whose ZooKeeper gets other data; the topic ``late`` is not yet in ``older``.

    ``newest`` are the data at the first end of the cluster.
    """

    def __init__(self, cluster: BreakableCluster, directory: Path, servers: Sequence[Path]) -> None:
        self.cluster = cluster
        self.older, self.newest = directory / "older", directory / "newest"
        self._servers = servers
        self.partitions = cluster.create_safe_topic("early", 1)
        produce(self.cluster, "early")
        self._copy_to(self.older)  # in use, with registered brokers
        self.partitions += cluster.create_safe_topic("late", 2)
        produce(self.cluster, "late")
        cluster.agreed_logs(self.partitions)
        self._files = self._read_files()
        self._await_notes_of(cluster.zookeeper.latest_zxid())

    def replace(self, data: Path | None) -> None:
        """Replace ZooKeeper's data by others, or by none."""
        self.cluster.server.stop()
        if not self.newest.exists():
            self._copy_to(self.newest)
        for server in self._servers:
            shutil.rmtree(server / TREE)
            if data is not None:
                shutil.copytree(data / server.name / TREE, server / TREE)
        self.cluster.server.start()
        self.cluster.renew_session()

    def _await_notes_of(self, zxid: int) -> None:
        """Wait until every broker has stored a progress mark after ``zxid``."""
        for broker_id in BROKERS:
            notes = self.cluster.log_directories(broker_id)[0] / "control-plane.properties"

            def has_noted(notes: Path = notes) -> bool:
                noted = re.search(r"^zookeeper\.mark=(\d+)$", notes.read_text(), re.MULTILINE)
                return noted is not None and int(noted[1]) > zxid

            eventually(has_noted, f"broker {broker_id} has noted a mark", TIMEOUT_S)

    def await_end_of_all(self) -> str:
        """Wait until every broker has ended by itself; return the last message of one of them."""
        for broker_id in BROKERS:
            self.cluster.await_end(broker_id, self.cluster.pid(broker_id))
        self.assert_untouched()
        log = (self.cluster.data_dir / "broker-0" / "broker.log").read_text()
        return next(line for line in reversed(log.splitlines()) if "broker 0 ends" in line)

    def assert_untouched(self) -> None:
        """Check that all log files are unchanged."""
        assert self._read_files() == self._files

    def start_refused(self, broker_id: BrokerId) -> str:
        """Start a broker that refuses to run; return the reason."""
        command = self.cluster.broker_command(broker_id, *self.cluster.broker_arguments(broker_id))
        ended = subprocess.run(
            command, capture_output=True, text=True, timeout=scaled(60), check=False
        )
        assert ended.returncode == 1, ended
        (line,) = (text for text in ended.stderr.splitlines() if text.startswith("regent: "))
        self.assert_untouched()
        return line

    def start_all(self) -> None:
        """Start the brokers again; check that no record is missing and that produce works."""
        with ThreadPoolExecutor() as pool:
            list(pool.map(self.cluster.revive, BROKERS))
        for topic in ("early", "late"):
            self.cluster.await_isr(topic, set(BROKERS))
        self.assert_untouched()
        produce(self.cluster, "late")
        self.cluster.agreed_logs(self.partitions)
        self._files = self._read_files()
        if self.newest.exists():
            shutil.rmtree(self.newest)

    def _copy_to(self, copy: Path) -> None:
        for server in self._servers:
            shutil.copytree(server / TREE, copy / server.name / TREE)

    def _read_files(self) -> dict[Path, bytes]:
        """Return the contents of all log files."""
        return {
            path: path.read_bytes()
            for broker_id in BROKERS
            for directory in self.cluster.log_directories(broker_id)
            for path in directory.glob("*/*.log")
        }


def produce(cluster: BreakableCluster, topic: str) -> None:
    """Write records that are acknowledged."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "acks": "all"})
    for number in range(RECORDS):
        producer.produce(topic, b"%d" % number)
    assert producer.flush(TIMEOUT_S) == 0


@pytest.fixture(scope="module")
def replaceable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplaceableData]:
    directory = tmp_path_factory.mktemp("replaceable")
    with BreakableCluster(directory) as cluster:
        yield ReplaceableData(cluster, directory, [directory / ALONE])


def make_another_cluster(directory: Path) -> str:
    """Create the data of another cluster with a topic of the same name; return its id."""
    server = EmbeddedZooKeeper(directory / ALONE)
    server.start()
    client = ZooKeeperClient(server.address, 10_000, on_watch=lambda _: None)
    with closing(client):
        client.start(10)
        cluster_id = join_cluster(client)
        ZkControllerStore(client).create_persistent_paths()
        assignment = {0: ReplicaAssignment((1,))}
        data = TopicZNode.encode(encode_topic_id(os.urandom(16)), assignment)
        client.multi([Create(TopicZNode.path("early"), data)])
        client.multi([Create(ControllerEpochZNode.PATH, ControllerEpochZNode.encode(1000))])
    server.stop()
    return cluster_id


@pytest.mark.nightly
def test_brokers_end_when_zookeeper_has_lost_its_data_or_has_those_of_another_cluster(
    replaceable: ReplaceableData, tmp_path: Path
) -> None:
    other_id = make_another_cluster(tmp_path)
    replaceable.replace(tmp_path)
    said = f"but ZooKeeper says {other_id}: the ZooKeeper data was replaced"
    assert said in replaceable.await_end_of_all()
    replaceable.replace(replaceable.newest)
    replaceable.start_all()
    replaceable.replace(None)
    said = "but ZooKeeper has no /cluster/id: the ZooKeeper data was deleted or replaced"
    assert said in replaceable.await_end_of_all()
    assert said in replaceable.start_refused(0)
    assert said in replaceable.cluster.status()["reasons"][0]
    assert replaceable.cluster.zookeeper.children("/") == ["zookeeper"], "no broker wrote anything"
    replaceable.replace(replaceable.newest)
    replaceable.start_all()


@pytest.mark.nightly
def test_brokers_end_when_zookeeper_was_set_back(replaceable: ReplaceableData) -> None:
    replaceable.replace(replaceable.older)
    said = "the ZooKeeper data is older than what this broker has seen"
    assert said in replaceable.await_end_of_all()
    assert said in replaceable.start_refused(2)
    assert replaceable.cluster.status()["reasons"][0].startswith("broker 0 not registered since")
    replaceable.replace(replaceable.newest)
    assert said in replaceable.start_refused(2), "until an admin accepts the data"
    for broker_id in BROKERS:
        for directory in replaceable.cluster.log_directories(broker_id):
            (directory / "control-plane.properties").unlink()
    replaceable.start_all()


@pytest.mark.nightly
def test_a_cluster_whose_zookeeper_lost_its_data_goes_on_from_a_backup_of_the_tree(
    replaceable: ReplaceableData,
) -> None:
    backup = check_tree(ZkTreeStore(replaceable.cluster.zookeeper).read())
    replaceable.replace(None)
    replaceable.await_end_of_all()
    ZkTreeStore(replaceable.cluster.zookeeper).write(backup)
    for broker_id in BROKERS:
        for directory in replaceable.cluster.log_directories(broker_id):
            (directory / "control-plane.properties").unlink()
    replaceable.start_all()


@pytest.mark.nightly
def test_brokers_end_when_the_servers_of_an_ensemble_were_set_back_within_their_sessions(
    tmp_path: Path,
) -> None:
    ensemble = EmbeddedEnsemble(tmp_path)
    with BreakableCluster(tmp_path, "--session-timeout-ms", "30000", server=ensemble) as cluster:
        data = ReplaceableData(cluster, tmp_path, ensemble.data_dirs)
        newest = cluster.zookeeper.latest_zxid()
        data.replace(data.older)
        assert cluster.zookeeper.latest_zxid() > newest, "its transactions go on with higher ids"
        said = "the ZooKeeper data is older than what this broker has seen"
        assert said in data.await_end_of_all()


@pytest.mark.nightly
def test_records_that_are_younger_than_the_data_are_kept_when_older_data_are_accepted(
    tmp_path: Path,
) -> None:
    """In the older data a broker leads, and is in sync, that was down when the records came."""
    with BreakableCluster(tmp_path) as cluster:
        (partition,) = cluster.create_safe_topic("payments", 1)
        tree, older = tmp_path / ALONE / TREE, tmp_path / "older"
        shutil.copytree(tree, older)
        first = cluster.leader_of(*partition)
        cluster.kill(first)
        cluster.await_leader(*partition, other_than=first)
        produce(cluster, "payments")
        others = [broker for broker in BROKERS if broker != first]
        cluster.kill(*others)
        cluster.server.stop()
        shutil.rmtree(tree)
        shutil.copytree(older, tree)
        cluster.server.start()
        cluster.renew_session()
        for broker in BROKERS:
            for directory in cluster.log_directories(broker):
                (directory / "control-plane.properties").unlink()
        for broker in (first, *others):
            cluster.revive(broker)
        cluster.await_isr("payments", set(BROKERS))
        logs = cluster.agreed_logs([partition])[partition]
        assert [len(logs[broker]) for broker in BROKERS] == [RECORDS] * 3
