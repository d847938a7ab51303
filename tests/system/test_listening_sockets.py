"""Every socket on which a process of a local cluster listens, and who may connect to it.

A process that a library starts, or a port that it opens, is not in the table until somebody has
decided what a stranger on this machine may do there.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from regent.config.addresses import port_of
from regent.core.protocol.placement import PlacementStatusRequest, PlacementStatusResponse
from regent.testing.regent_cluster import RegentCluster
from regent.testing.waits import eventually, scaled
from regent.transport.control.remote_ref import RemoteActorRef
from tests.support.listening_sockets import (
    LOOPBACK,
    ListeningSocket,
    answers_of_spark,
    asks_for_token,
    listening_sockets,
    process_tree,
)

pytestmark = [
    pytest.mark.system,
    pytest.mark.zookeeper,
    pytest.mark.spark,
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]

TIMEOUT_S = 110.0
BROKERS = 3

WHO_MAY_CONNECT = {
    "broker: port": (BROKERS, "everybody: a client, as with Kafka without an authorizer"),
    "broker: replication_port": (BROKERS, "everybody: it answers followers (SECURITY.md)"),
    "broker: control_port": (BROKERS, "who has an allowed key (docs/security.md)"),
    "broker: metrics_port": (BROKERS, "everybody: it only shows numbers"),
    "zookeeper: port": (1, "everybody: ZooKeeper without authentication (SECURITY.md)"),
    "placement service: endpoint": (1, "who has an allowed key (docs/security.md)"),
    "supervisor: unix": (1, "the owner: the mode of the socket; it starts brokers"),
    "Spark's JVM: Py4J": (1, "who has the token in a file of mode 0600"),
    "Spark's JVM: RPC, blocks": (2, "who has the secret that Spark has made: nobody"),
}
OF_PYTHON_WORKERS = {
    "tcp": {
        "placement service: accumulators": (1, "who has the token of Py4J"),
        "Spark's daemon: tcp": (1, "who has the secret in the environment of the daemon"),
    },
    "unix": {
        "placement service: unix": (1, "the owner: the mode of the directory"),
        "Spark's daemon: unix": (1, "the owner: the mode of the directory"),
    },
}


@pytest.fixture(scope="module", params=["tcp", pytest.param("unix", marks=pytest.mark.nightly)])
def workers(request: pytest.FixtureRequest) -> str:
    """How the JVM reaches its Python workers; paths of Unix sockets have a limit."""
    kind: str = request.param
    return kind


@pytest.fixture(scope="module")
def cluster(workers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegentCluster]:
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp") as short:
        folder = Path(short) if workers == "unix" else tmp_path_factory.mktemp("sockets")
        # Below the folder, which only its owner can enter: that of a user may be open to others.
        with RegentCluster(folder / "c", "--brokers", str(BROKERS)) as cluster:
            _await_warm(cluster)
            yield cluster


def _await_warm(cluster: RegentCluster) -> None:
    endpoint = cluster.description["placement"]["endpoint"]
    service = RemoteActorRef(cluster.context, endpoint, client_id="test")

    def is_ready() -> bool:
        status = service.ask(PlacementStatusRequest(), timeout=scaled(10.0))
        assert isinstance(status, PlacementStatusResponse)
        return status.state == "ready"

    try:
        eventually(is_ready, "the placement service is warm", TIMEOUT_S)
    finally:
        service.close()


def _named(cluster: RegentCluster) -> Counter[str]:
    """Return what every listening socket of the cluster is for."""
    tree = process_tree(cluster.process.pid)
    description = cluster.description
    names = {server["port"]: "zookeeper: port" for server in description["zookeeper_nodes"]}
    for broker in description["brokers"]:
        names |= {port: f"broker: {name}" for name, port in broker.items() if "port" in name}
    names[port_of(description["placement"]["endpoint"])] = "placement service: endpoint"
    return Counter(
        names.get(found.port) or _name(found, cluster, tree)
        for found in set(listening_sockets(tree))
    )


def _name(found: ListeningSocket, cluster: RegentCluster, tree: dict[int, str]) -> str:
    process = _process(found.pid, cluster, tree[found.pid])
    if process == "Spark's JVM" and found.kind == "tcp":
        return f"{process}: {'Py4J' if asks_for_token(found.port) else 'RPC, blocks'}"
    if process == "placement service" and found.kind == "tcp":
        return f"{process}: accumulators"
    return f"{process}: {found.kind}"


def _process(pid: int, cluster: RegentCluster, command: str) -> str:
    known = {
        cluster.process.pid: "supervisor",
        cluster.description["placement"]["pid"]: "placement service",
    }
    if "SparkSubmit" in command:
        return "Spark's JVM"
    return "Spark's daemon" if "python_daemon" in command else known.get(pid, command)


def test_every_listening_socket_is_in_the_table(cluster: RegentCluster, workers: str):
    expected = WHO_MAY_CONNECT | OF_PYTHON_WORKERS[workers]
    assert _named(cluster) == {name: count for name, (count, _) in expected.items()}


def test_nothing_listens_beyond_loopback(cluster: RegentCluster):
    found = [*listening_sockets(process_tree(cluster.process.pid))]
    assert {each.address for each in found if each.kind != "unix"} == {LOOPBACK}


def test_only_the_owner_reaches_unix_sockets(cluster: RegentCluster):
    found = [*listening_sockets(process_tree(cluster.process.pid))]
    unix = [each for each in found if each.kind == "unix"]
    assert unix
    for each in unix:
        assert each.is_of_the_owner(below=cluster.data_dir), each


def test_spark_answers_no_request_without_its_secret(cluster: RegentCluster):
    tree = process_tree(cluster.process.pid)
    of_spark = {pid for pid, command in tree.items() if "SparkSubmit" in command}
    ports = {each.port for each in listening_sockets(of_spark) if each.kind == "tcp"}
    assert ports
    assert [answer for port in ports for answer in answers_of_spark(port)] == []
