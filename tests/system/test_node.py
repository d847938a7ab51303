"""Two machines of two brokers each: one of the machines dies under load, and comes back."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from regent.client.cluster_connection import cluster_admin
from regent.client.partitions import DescribedPartition, read_partitions
from regent.cluster.cluster_file import ClusterFile
from regent.cluster.embedded_zookeeper import EmbeddedZooKeeper
from regent.config.command_line import COMMAND
from regent.core.model import BrokerId, TopicPartition
from regent.testing.waits import eventually, next_line, scaled
from tests.support.breakable_cluster import read_log
from tests.support.histories import Logs, check, summary
from tests.support.load import Load

pytestmark = [pytest.mark.nightly, pytest.mark.system, pytest.mark.zookeeper]

TIMEOUT_S = scaled(60)


class Node:
    """One machine; its brokers have the ids ``first_id`` and the next."""

    def __init__(self, directory: Path, zookeeper: str, first_id: BrokerId) -> None:
        self.data_dir = directory / f"node-{first_id}"
        self.first_id = first_id
        self._zookeeper = zookeeper
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        command = [*COMMAND, "node", "--zookeeper", self._zookeeper, "--brokers", "2"]
        command += ["--first-id", str(self.first_id), "--data-dir", str(self.data_dir)]
        command += ["--base-port", "0", "--node-host", f"m{self.first_id}"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert next_line(self._process, "the node is ready").startswith("ready: 2 brokers on ")

    @property
    def file(self) -> ClusterFile:
        file = ClusterFile.read(self.data_dir / "cluster.json")
        assert file is not None
        return file

    def kill(self) -> None:
        """Kill the supervisor and all its brokers, as a loss of power does."""
        assert self._process is not None
        for pid in (self._process.pid, *(broker.pid for broker in self.file.brokers.values())):
            os.kill(pid, signal.SIGKILL)
        self._process.communicate(timeout=TIMEOUT_S)

    def stop(self) -> None:
        """Stop in order, if it runs."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            self._process.communicate(timeout=TIMEOUT_S)


class TwoNodes:
    """Brokers 100 and 101 on one machine, 200 and 201 on the other."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        server = EmbeddedZooKeeper(directory / "zookeeper")
        stack.callback(server.stop)
        server.start()
        self.zookeeper = server.address
        self.nodes = [Node(directory, server.address, first_id) for first_id in (100, 200)]
        for node in self.nodes:
            stack.callback(node.stop)
            node.start()

    @property
    def bootstrap(self) -> str:
        brokers = [broker for node in self.nodes for broker in node.file.brokers.values()]
        return ",".join(f"{broker.host}:{broker.port}" for broker in brokers)

    def run(self, *arguments: str) -> str:
        command = [*COMMAND, *arguments, "--zookeeper", self.zookeeper]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    def partitions(self) -> Sequence[DescribedPartition]:
        with cluster_admin(self.zookeeper) as admin:
            return read_partitions(admin, ["t"]).partitions

    def logs(self, rows: Mapping[TopicPartition, Sequence[BrokerId]]) -> Logs:
        """Return the records of the partitions on the disks of their brokers."""
        return {
            partition: {broker: read_log(self._log(partition, broker)) for broker in brokers}
            for partition, brokers in rows.items()
        }

    def _log(self, partition: TopicPartition, broker: BrokerId) -> Path:
        node = self.nodes[broker // 100 - 1]
        return node.data_dir / f"broker-{broker}" / "log" / str(partition)


def are_equal(logs: Logs) -> bool:
    return all(log == logs[p][b] for p in logs for b in logs[p] for log in logs[p].values())


@pytest.fixture
def two(tmp_path: Path) -> Iterator[TwoNodes]:
    with ExitStack() as stack:
        yield TwoNodes(tmp_path, stack)


@pytest.mark.timeout(300)
def test_no_acknowledged_record_is_lost_when_a_machine_of_two_brokers_dies(two: TwoNodes) -> None:
    two.run("topics", "create", "t", "--partitions", "8", "--replication-factor", "2")
    rows = {p.topic_partition: p.assignment.replicas for p in two.partitions()}
    assert all({b // 100 for b in replicas} == {1, 2} for replicas in rows.values())
    assert {b for replicas in rows.values() for b in replicas} == {100, 101, 200, 201}
    listed = json.loads(two.run("brokers", "list", "-o", "json"))
    assert [row["node_host"] for row in listed] == ["m100", "m100", "m200", "m200"]
    with Load(two.bootstrap, list(rows)) as load:
        load.await_progress()
        two.nodes[0].kill()
        eventually(lambda: all(p.leader // 100 == 2 for p in two.partitions()), "they moved")
        load.await_progress()
        two.nodes[0].start()
        eventually(
            lambda: not any(p.is_under_replicated for p in two.partitions()), "all are in sync"
        )
        load.await_progress()
        load.stop_producers()
        eventually(lambda: are_equal(two.logs(rows)), "both replicas have the same")
        logs = two.logs(rows)
        load.finish_consumers({p: len(logs[p][rows[p][0]]) for p in rows})
    assert load.acknowledged
    assert not check(load.history, logs), summary(check(load.history, logs))
