"""Mistakes of people and failures of networks: each is one clear line, and no process ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
import urllib.request
from contextlib import suppress
from pathlib import Path

import pytest

from regent.config.addresses import host_of, port_of
from regent.config.command_line import COMMAND
from regent.testing.regent_cluster import SESSION_TIMEOUT_MS, START_TIMEOUT_S, RegentCluster
from regent.testing.waits import eventually, next_line, pause_process, scaled
from regent.zk.client.login import SECRET_FILE
from regent.zk.client.operations import ANY_VERSION, Create, SetData
from regent.zk.znodes import TopicZNode
from tests.support.free_ports import ANY_PORTS_OF_A_BROKER, free_ports

pytestmark = [pytest.mark.system, pytest.mark.zookeeper]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory):
    with RegentCluster(tmp_path_factory.mktemp("cluster"), "--no-placement-service") as cluster:
        cluster.create_topic("payments", 6)
        yield cluster


def start_second(
    cluster: RegentCluster, data_dir: Path, *arguments: str, broker_id: int = 1
) -> subprocess.CompletedProcess[str]:
    """Start a broker that cannot run, and wait for its end."""
    return subprocess.run(
        [
            *COMMAND,
            "broker",
            "--id",
            str(broker_id),
            "--zookeeper",
            cluster.description["zookeeper"],
            "--data-dir",
            str(data_dir),
            "--session-timeout-ms",
            str(SESSION_TIMEOUT_MS),
            "--secret-file",
            str(cluster.data_dir / SECRET_FILE),
            *ANY_PORTS_OF_A_BROKER,
            *arguments,
        ],
        capture_output=True,
        text=True,
        timeout=scaled(60),
        check=False,
    )


def assert_one_line(ended: subprocess.CompletedProcess[str], *words: str) -> None:
    assert ended.returncode == 1, ended
    assert ended.stdout == ""
    lines = ended.stderr.strip().splitlines()
    assert len(lines) == 1, ended.stderr
    for word in words:
        assert word in lines[0]


def test_a_second_broker_with_a_used_id_gives_up_in_one_line(
    cluster: RegentCluster, tmp_path: Path
):
    assert_one_line(start_second(cluster, tmp_path), "broker id 1 is registered by another process")
    cluster.await_agreement([0, 1, 2], "payments")


def test_a_data_directory_has_one_broker(cluster: RegentCluster):
    ended = start_second(cluster, cluster.data_dir / "broker-1")
    assert_one_line(ended, "in use by another process")
    ended = start_second(cluster, cluster.data_dir / "broker-1", broker_id=7)
    assert_one_line(ended, "in use by another process")


@pytest.mark.parametrize(
    "option",
    [
        "--port",
        *(
            pytest.param(name, marks=pytest.mark.nightly)
            for name in ("--control-port", "--replication-port")
        ),
    ],
)
def test_a_taken_port_is_named(cluster: RegentCluster, tmp_path: Path, option: str):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ended = start_second(cluster, tmp_path, option, port, broker_id=7)
    assert_one_line(ended, f"127.0.0.1:{port} is in use", "a second broker", option)
    last = (tmp_path / "broker.log").read_text().splitlines()[-1]
    assert f"127.0.0.1:{port} is in use" in last


def test_no_zookeeper_is_one_line(cluster: RegentCluster, tmp_path: Path):
    """REC-06, the part without a log."""
    (unused,) = free_ports(1)
    config = tmp_path / "broker.toml"
    config.write_text("[zookeeper]\nconnection_timeout_ms = 1000\n")
    arguments = ["--zookeeper", f"127.0.0.1:{unused}", "--config", str(config)]
    ended = start_second(cluster, tmp_path, *arguments, broker_id=7)
    assert_one_line(ended, f"127.0.0.1:{unused}")


def test_garbage_on_the_control_port_is_counted_and_survived(cluster: RegentCluster):
    endpoint = cluster.control_endpoint(0)
    address = host_of(endpoint), port_of(endpoint)
    without_keys = b"\xff\0\0\0\0\0\0\0\1\x7f\3\0" + b"NULL".ljust(52, b"\0")  # of ZMTP 3
    other_protocols = (b"\x00" * 4096, b"GET / HTTP/1.1\r\n\r\n", os.urandom(65_536))
    for garbage in (*other_protocols, without_keys):
        with socket.create_connection(address, timeout=scaled(5)) as connection:
            connection.sendall(garbage)
            with suppress(ConnectionError):  # closed with unread bytes
                while connection.recv(4096):
                    pass
    broker = next(b for b in cluster.description["brokers"] if b["id"] == 0)

    def is_counted() -> bool:
        url = f"http://127.0.0.1:{broker['metrics_port']}/metrics"
        with urllib.request.urlopen(url, timeout=scaled(5)) as page:
            return b'regent_rejected_frames_total{reason="no proof of a key"}' in page.read()

    eventually(is_counted, "the rejected frames are counted")
    cluster.await_agreement([0, 1, 2], "payments")


def test_an_unreadable_topic_is_quarantined_until_it_is_repaired(cluster: RegentCluster):
    path = TopicZNode.path("broken")
    cluster.zookeeper.multi([Create(path, b'{"version":1,"partitions":')])
    cluster.create_topic("whole", 2)
    cluster.await_agreement([0, 1, 2], "whole")
    good = b'{"version":1,"partitions":{"0":[1,2]}}'
    cluster.zookeeper.multi([SetData(path, good, ANY_VERSION)])
    rows = cluster.await_agreement([0, 1, 2], "broken")
    assert rows[0].isr == (1, 2)
    assert rows[0].topic_id is not None
    cluster.await_agreement([0, 1, 2], "payments")


def test_a_topic_rewritten_by_an_old_tool_grows_and_keeps_its_id(cluster: RegentCluster):
    cluster.create_topic("orders", 2)
    before = cluster.await_agreement([0, 1, 2], "orders")[0].topic_id
    grown = b'{"version":1,"partitions":{"0":[0,1,2],"1":[1,2,0],"2":[2,0,1]}}'
    cluster.zookeeper.multi([SetData(TopicZNode.path("orders"), grown, ANY_VERSION)])
    eventually(
        lambda: len(cluster.partition_states("orders")) == 3, "the third partition has a leader"
    )
    rows = cluster.await_agreement([0, 1, 2], "orders")
    assert {row.topic_id for row in rows.values()} == {before}
    node = cluster.zookeeper.get(TopicZNode.path("orders"))
    assert node is not None
    assert TopicZNode.decode(node.data).topic_id == before


@pytest.mark.nightly
def test_two_signals_at_once_are_one_request(cluster: RegentCluster):
    for _ in range(5):
        fourth = cluster.start_broker(3)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGINT):
            fourth.send_signal(number)
        assert fourth.wait(timeout=scaled(30)) == 0


@pytest.mark.nightly
def test_a_broker_paused_and_resumed_still_handles_a_signal(cluster: RegentCluster):
    fourth = cluster.start_broker(3)
    pause_process(fourth.pid)
    fourth.send_signal(signal.SIGTERM)
    fourth.send_signal(signal.SIGCONT)
    assert fourth.wait(timeout=scaled(30)) == 0


@pytest.mark.nightly
def test_the_cluster_outlives_a_zookeeper_that_hangs(cluster: RegentCluster):
    (node,) = cluster.description["zookeeper_nodes"]
    pause_process(node["pid"])
    try:
        threading.Event().wait(
            1.5 * SESSION_TIMEOUT_MS / 1000
        )  # the test needs an outage of this time
    finally:
        os.kill(node["pid"], signal.SIGCONT)
    cluster.await_agreement([0, 1, 2], "payments")


def test_the_cluster_outlives_a_zookeeper_that_is_killed_and_restarted(cluster: RegentCluster):
    (node,) = cluster.description["zookeeper_nodes"]
    os.kill(node["pid"], signal.SIGKILL)
    again = subprocess.Popen(
        [
            *COMMAND,
            "zookeeper",
            "--data-dir",
            str(cluster.data_dir / "zookeeper-0"),
            "--port",
            str(node["port"]),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        line = next_line(again, "ZooKeeper is ready again", START_TIMEOUT_S)
        assert line.startswith("ready: ")
        cluster.await_agreement([0, 1, 2], "payments")
        cluster.create_topic("afterwards", 3)
        cluster.await_agreement([0, 1, 2], "afterwards")
    finally:
        cluster.close()
        again.send_signal(signal.SIGINT)
        again.communicate(timeout=scaled(30))


def test_after_ctrl_c_no_process_remains(tmp_path: Path):
    with RegentCluster(tmp_path, "--no-placement-service") as cluster:
        description = cluster.description
        pids = [b["pid"] for b in description["brokers"]]
        pids += [n["pid"] for n in description["zookeeper_nodes"]]
        children = set(pids) | _guardians(pids)
        cluster.process.send_signal(signal.SIGINT)
        cluster.process.communicate(timeout=scaled(60))
        assert cluster.process.returncode == 0
        eventually(lambda: not [p for p in children if _is_alive(p)], "every process is gone")
        assert not (tmp_path / "cluster.json").exists()


def test_after_the_death_of_the_supervisor_no_process_remains(tmp_path: Path):
    with RegentCluster(tmp_path, "--no-placement-service") as cluster:
        description = cluster.description
        pids = [b["pid"] for b in description["brokers"]]
        pids += [n["pid"] for n in description["zookeeper_nodes"]]
        children = set(pids) | _guardians(pids)
        cluster.process.kill()
        cluster.process.communicate(timeout=scaled(60))
        eventually(lambda: not [p for p in children if _is_alive(p)], "every process is gone")


def _guardians(pids: list[int]) -> set[int]:
    """Return the guardians among the children of these processes."""
    found: set[int] = set()
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").iterdir():
            found |= set(map(int, (task / "children").read_text().split()))
    return found


def _is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"
