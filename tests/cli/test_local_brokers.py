"""``brokers start`` and ``brokers pid``, and ``broker`` on the folder of a cluster."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from regent.cluster.cluster_file import ClusterFile, listed_processes
from regent.config.cluster_location import CLUSTER_FILE
from tests.support.fake_cluster import ADDRESS, FakeCluster, failing, write_cluster_file


@pytest.fixture
def data_dir(cluster: FakeCluster, tmp_path: Path) -> str:
    """The folder of a cluster whose controller is broker 1."""
    cluster.add_broker(0)
    cluster.add_broker(1)
    cluster.elect(1)
    write_cluster_file(tmp_path, brokers={n: f"tcp://127.0.0.1:{n + 1}" for n in range(2)})
    return str(tmp_path)


def test_processes_are_named_by_broker_or_as_the_controller(
    cluster: FakeCluster, data_dir: str
) -> None:
    for broker, pid in (("0", "4710\n"), ("1", "4711\n"), ("controller", "4711\n")):
        assert cluster.run("brokers", "pid", broker, "--data-dir", data_dir).stdout == pid


def test_a_broker_of_another_machine_has_no_process_here(
    cluster: FakeCluster, data_dir: str
) -> None:
    here = ("--data-dir", data_dir)
    line = failing(cluster.run("brokers", "pid", "7", *here))
    assert line == "broker 7 was not started on this machine; known: 0, 1"
    assert cluster.run("brokers", "pid", "first", *here).exit_code == 2
    line = failing(cluster.run("brokers", "pid", "0", "--zookeeper", ADDRESS))
    assert line == "broker 0 was not started on this machine; known: none"


def test_the_process_id_of_a_broker_that_has_ended_is_not_named(
    cluster: FakeCluster, data_dir: str, tmp_path: Path
) -> None:
    """Another program may have it by now."""
    file = ClusterFile.read(tmp_path / CLUSTER_FILE)
    assert file is not None
    file.brokers[0] = replace(file.brokers[0], ended="ended by SIGKILL", ended_ms=1)
    file.write()
    line = failing(cluster.run("brokers", "pid", "0", "--data-dir", data_dir))
    assert line == "broker 0 does not run: it ended by SIGKILL"
    assert listed_processes(tmp_path) == [4711]


def test_only_a_running_cluster_can_start_brokers(
    cluster: FakeCluster, data_dir: str, tmp_path: Path
) -> None:
    for command in (("brokers", "start"), ("broker", "--id", "2")):
        line = failing(cluster.run(*command, "--data-dir", data_dir))
        assert line.startswith(f"no cluster runs on {data_dir}: start it with `")
        assert line.endswith(f" cluster --data-dir {data_dir}`")
        nowhere = str(tmp_path / "nowhere")
        line = failing(cluster.run(*command, "--data-dir", nowhere))
        assert line.startswith(f"no cluster in {nowhere}: ")


def test_a_broker_of_a_local_cluster_refuses_other_settings(
    cluster: FakeCluster, data_dir: str
) -> None:
    result = cluster.run("broker", "--id", "1", "--data-dir", data_dir, "--port", "9093")
    assert result.exit_code == 2
    assert "settings need --zookeeper" in result.stderr
