"""Sockets of the processes of a cluster: this process stands for one."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from regent.client.doctor.examined_cluster import (
    PLACEMENT,
    SUPERVISOR,
    ExaminedCluster,
    Settings,
)
from regent.client.doctor.findings import Finding, Severity
from regent.client.doctor.socket_check import check_sockets
from regent.cluster.cluster_file import (
    BrokerEntry,
    ClusterFile,
    PlacementEntry,
    ZooKeeperEntry,
)
from regent.core.model import BrokerInfo, EndPoint
from regent.zk.client.operations import AclEntry, Permission

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

OK, WARNING, PROBLEM = Severity.OK, Severity.WARNING, Severity.PROBLEM
OPEN = [("/", (AclEntry(~Permission(0), "world", "anyone"),))]


def cluster(data_dir: Path, name: str = PLACEMENT) -> ExaminedCluster:
    file = ClusterFile(data_dir / "cluster.json", "")
    return ExaminedCluster(data_dir=data_dir, file=file, processes={os.getpid(): name})


def found_at(cluster: ExaminedCluster, address: str | int) -> Finding:
    """Return what is found about the socket at a path or a port."""
    key = "port" if isinstance(address, int) else "address"
    (found,) = [each for each in check_sockets(cluster) if each.facts.get(key) == address]
    return found


@contextmanager
def listening(host: str = "127.0.0.1") -> Iterator[int]:
    with socket.create_server((host, 0)) as server:
        yield server.getsockname()[1]


@pytest.mark.parametrize(
    ("folder_mode", "mode", "severity"),
    [
        (0o700, 0o777, OK),
        (0o755, 0o600, OK),
        (0o755, 0o755, OK),  # to connect needs the right to write
        (0o755, 0o666, PROBLEM),
        (0o710, 0o660, PROBLEM),
    ],
)
def test_a_unix_socket_is_as_closed_as_its_mode_and_its_folder(
    tmp_path: Path, folder_mode: int, mode: int, severity: Severity
):
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        path.chmod(mode)
        tmp_path.chmod(folder_mode)
        found = found_at(cluster(tmp_path), str(path))
    assert found.severity is severity
    assert found.remedy == ("" if severity is OK else f"chmod go-rwx {path}")


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM])
def test_a_unix_socket_without_a_path_is_for_everybody(tmp_path: Path, kind: int):
    with socket.socket(socket.AF_UNIX, kind) as server:
        server.bind(f"\0regent-test-{os.getpid()}")
        if kind is socket.SOCK_STREAM:
            server.listen()
        assert found_at(cluster(tmp_path), f"@regent-test-{os.getpid()}").severity is PROBLEM


def test_a_port_that_a_process_opens_beyond_loopback_is_unknown(tmp_path: Path):
    with listening("0.0.0.0") as port:
        assert found_at(cluster(tmp_path), port).severity is PROBLEM
    with listening() as port:
        assert found_at(cluster(tmp_path), port).severity is OK, "accumulators of Spark"
    with listening() as port:
        assert found_at(cluster(tmp_path, "supervisor"), port).severity is PROBLEM


@pytest.mark.parametrize(
    ("host", "protocol", "settings", "severity"),
    [
        ("127.0.0.1", "PLAINTEXT", {}, OK),
        ("127.0.0.1", "PLAINTEXT", {"regent.local.users": "any"}, WARNING),
        ("127.0.0.1", "PLAINTEXT", None, OK),
        ("0.0.0.0", "PLAINTEXT", {}, PROBLEM),
        ("0.0.0.0", "PLAINTEXT", None, PROBLEM),
        ("0.0.0.0", "SASL_SSL", None, OK),
    ],
)
def test_a_listener_is_judged_by_where_its_socket_is(
    tmp_path: Path, host: str, protocol: str, settings: Settings | None, severity: Severity
):
    """And not by the address in ``cluster.json``, which clients use."""
    with listening(host) as port:
        examined = cluster(tmp_path, "broker 0")
        entry = BrokerEntry(0, os.getpid(), "127.0.0.1", port, 1, 2, 3)
        assert examined.file is not None
        examined.file.brokers[0] = entry
        examined.registrations = {0: BrokerInfo(0, (EndPoint("L", "127.0.0.1", port, protocol),))}
        examined.settings = {} if settings is None else {0: settings}
        found = found_at(examined, port)
    assert found.severity is severity
    assert found.facts["purpose"] == "listener L"


@pytest.mark.parametrize(
    ("name", "host", "severity"),
    [
        ("control_port", "127.0.0.1", OK),
        ("control_port", "0.0.0.0", OK),
        ("replication_port", "0.0.0.0", PROBLEM),
        ("metrics_port", "127.0.0.1", OK),
        ("metrics_port", "0.0.0.0", PROBLEM),
    ],
)
def test_beyond_loopback_only_the_control_port_has_keys(
    tmp_path: Path, name: str, host: str, severity: Severity
):
    with listening(host) as port:
        entry = BrokerEntry(0, os.getpid(), "127.0.0.1", 1, 2, 3, 4)
        examined = cluster(tmp_path, "broker 0")
        assert examined.file is not None
        examined.file.brokers[0] = replace(entry, **{name: port})  # type: ignore[arg-type]
        examined.settings = {0: {}}
        assert found_at(examined, port).severity is severity


def test_the_ports_of_zookeeper(tmp_path: Path):
    with listening() as clients, listening() as peers:
        examined = cluster(tmp_path, "zookeeper 0")
        assert examined.file is not None
        examined.file.zookeeper_nodes.append(ZooKeeperEntry(os.getpid(), clients))
        (tmp_path / "zookeeper-0").mkdir()
        peer = f'{{"server_id": 1, "quorum_port": {peers}, "election_port": 1}}'
        (tmp_path / "zookeeper-0" / "peer.json").write_text(peer)
        assert found_at(examined, peers).severity is WARNING
        examined.acls = []
        assert found_at(examined, clients).severity is OK
        examined.acls = OPEN
        assert found_at(examined, clients).severity is PROBLEM


def test_the_port_of_the_placement_service_has_keys(tmp_path: Path):
    with listening("0.0.0.0") as port:
        examined = cluster(tmp_path)
        assert examined.file is not None
        examined.file.placement = PlacementEntry(os.getpid(), f"tcp://127.0.0.1:{port}#aa")
        found = found_at(examined, port)
    assert (found.severity, found.facts["why"]) == (OK, "CURVE")


@pytest.mark.parametrize("name", [SUPERVISOR, "console"])
def test_the_port_of_the_console_is_for_one_user_with_the_token(tmp_path: Path, name: str):
    """The supervisor has it until the first connection, then the console's process, too."""
    with listening() as port:
        examined = cluster(tmp_path, name)
        assert found_at(examined, port).severity is PROBLEM
        assert examined.file is not None
        examined.file.console_port = port
        found = found_at(examined, port)
    assert found.severity is OK
    assert found.facts["purpose"] == "web page"
    assert "with the token" in found.message


def test_the_port_of_the_console_is_in_the_cluster_file(tmp_path: Path):
    file = ClusterFile(tmp_path / "cluster.json", "")
    file.console_port = 8080
    file.write()
    assert ClusterFile.read(file.path) == file
