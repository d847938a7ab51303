"""Every socket on which a process of a local cluster listens, and who may connect to it.

``doctor`` says who may connect to each. A process that a library starts, or a port that it opens,
is not in its tables until somebody has decided what a stranger on this machine may do there.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from regent.client.doctor.listening_sockets import listening_sockets, process_tree
from regent.client.doctor.spark_ports import LOOPBACK, SparkPort, spark_port
from regent.config.command_line import COMMAND
from regent.core.protocol.placement import PlacementStatusRequest, PlacementStatusResponse
from regent.testing.regent_cluster import RegentCluster
from regent.testing.waits import eventually, scaled
from regent.transport.control.remote_ref import RemoteActorRef
from regent.zk.client.login import Acl

pytestmark = [
    pytest.mark.system,
    pytest.mark.zookeeper,
    pytest.mark.spark,
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]

TIMEOUT_S = 110.0
BROKERS = 3

SOCKETS = {
    "broker: listener PLAINTEXT": BROKERS,
    "broker: followers": BROKERS,
    "broker: control requests": BROKERS,
    "broker: metrics": BROKERS,
    "zookeeper: ZooKeeper's clients": 1,
    "placement service: requests to place partitions": 1,
    "supervisor: commands that start brokers": 1,
    "Spark's JVM: Py4J": 1,
    "Spark's JVM: RPC, blocks": 2,
}
OF_PYTHON_WORKERS = {
    "tcp": {
        "placement service: accumulators of Spark": 1,
        "Spark's daemon: Python workers": 1,
    },
    "unix": {
        "placement service: Python workers": 1,
        "Spark's daemon: Python workers": 1,
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
        options = ("--brokers", str(BROKERS), "--placement-at-once")
        with RegentCluster(folder / "c", *options) as cluster:
            _await_warm(cluster)
            yield cluster


def _await_warm(cluster: RegentCluster) -> None:
    endpoint = eventually(
        lambda: cluster.description["placement"]["endpoint"], "the service listens", TIMEOUT_S
    )
    service = RemoteActorRef(cluster.context, endpoint, client_id="test")

    def is_ready() -> bool:
        status = service.ask(PlacementStatusRequest(), timeout=scaled(10.0))
        assert isinstance(status, PlacementStatusResponse)
        return status.state == "ready"

    try:
        eventually(is_ready, "the placement service is warm", TIMEOUT_S)
    finally:
        service.close()


def _doctor(cluster: RegentCluster) -> list[dict[str, Any]]:
    """Return what doctor finds; its exit code says how bad the worst is."""
    ended = subprocess.run(
        [*COMMAND, "doctor", "-o", "json", "--data-dir", cluster.data_dir],
        capture_output=True,
        text=True,
        timeout=scaled(60.0),
        check=False,
    )
    findings: list[dict[str, Any]] = json.loads(ended.stdout)
    worst = max(("ok", "warning", "problem").index(finding["severity"]) for finding in findings)
    assert ended.returncode == worst, ended.stderr
    return findings


def _sockets(findings: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [finding["facts"] for finding in findings if finding["check"] == "sockets"]


def test_doctor_knows_every_listening_socket(cluster: RegentCluster, workers: str):
    found = _sockets(_doctor(cluster))
    names = (f"{each['process'].rstrip('0123456789 ')}: {each['purpose']}" for each in found)
    assert Counter(names) == SOCKETS | OF_PYTHON_WORKERS[workers]
    assert all(each["who_may_connect"] and each["why"] for each in found)


def test_doctor_finds_nothing_to_close_in_a_default_cluster(cluster: RegentCluster):
    assert [found for found in _doctor(cluster) if found["severity"] != "ok"] == []


@pytest.mark.skipif(shutil.which("ss") is None, reason="asks iproute2's ss")
def test_doctor_lists_what_another_program_sees(cluster: RegentCluster):
    tree = process_tree(cluster.process.pid)
    limit_s = scaled(10.0)
    command = ["ss", "-ltunxpH"]
    told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=limit_s)
    seen = set()
    for line in told.stdout.splitlines():
        kind, state, _, _, address, *_ = line.split()
        pids = {int(pid) for pid in re.findall(r"pid=([0-9]+)", line)} & tree.keys()
        if kind in ("tcp", "udp"):
            address = address.rpartition(":")[2]  # ss writes IPv4 in IPv6 in its own way
        elif kind.startswith("u_") and state != "LISTEN":
            continue  # two ends of a connection
        seen |= {(pid, address) for pid in pids}
    listed = {
        (each["pid"], str(each["port"]) if each["kind"] != "unix" else each["address"])
        for each in _sockets(_doctor(cluster))
    }
    assert listed == seen


@pytest.mark.skipif(shutil.which("ss") is None, reason="asks iproute2's ss")
def test_fifty_may_wait_at_each_port_until_they_are_let_in(cluster: RegentCluster):
    """Who comes to a full queue tries again a second later, and strangers fill a short one."""
    names = {each["pid"]: each["process"] for each in _sockets(_doctor(cluster))}
    ours = {pid for pid, name in names.items() if name.startswith(("broker", "zoo", "supervisor"))}
    limit_s = scaled(10.0)
    command = ["ss", "-ltnpH"]
    told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=limit_s)
    waiting: dict[str, int] = {}
    for line in told.stdout.splitlines():
        _, _, most, address, *_ = line.split()
        if {int(pid) for pid in re.findall(r"pid=([0-9]+)", line)} & ours:
            waiting[address] = int(most)
    assert len(waiting) >= 4 * BROKERS + 1
    assert {address: most for address, most in waiting.items() if most < 50} == {}


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
    found = Counter(spark_port(port, scaled(20.0)) for port in ports)
    assert found == {SparkPort.PY4J: 1, SparkPort.RPC: 2}


def test_doctor_finds_what_is_opened_and_names_what_closes_it(cluster: RegentCluster):
    segment = next((cluster.data_dir / "broker-0").rglob("*.log"))
    secret = cluster.data_dir / "keys" / "operator.secret"
    key, old = secret.stat(), 400 * 86_400
    segment.chmod(0o644)
    cluster.data_dir.chmod(0o755)
    with _open_znode(cluster, "/brokers/topics"):
        os.utime(secret, (key.st_atime - old, key.st_mtime - old))
        try:
            found = [finding for finding in _doctor(cluster) if finding["severity"] != "ok"]
        finally:
            os.utime(secret, (key.st_atime, key.st_mtime))
            segment.chmod(0o600)
            cluster.data_dir.chmod(0o700)
    remedies = {finding["subject"]: finding["remedy"] for finding in found}
    assert remedies[str(segment)] == f"`chmod go-rwx {segment}`"
    assert remedies[str(cluster.data_dir)] == f"`chmod go-rwx {cluster.data_dir}`"
    assert "zookeeper acl secure" in remedies["/brokers/topics"]
    assert "keys rotate" in remedies[str(secret)]
    assert len(remedies) == 4


@contextmanager
def _open_znode(cluster: RegentCluster, path: str) -> Iterator[None]:
    """Let everybody change a znode for the block."""
    cluster.zookeeper.set_acls({path: Acl.OPEN})
    try:
        yield
    finally:
        cluster.zookeeper.set_acls({path: Acl.READABLE})
