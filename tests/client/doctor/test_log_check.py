"""Failed and full directories, and logs that belong to no partition of their broker."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from regent.client.doctor import served_cluster
from regent.client.doctor.examined_cluster import ExaminedCluster
from regent.client.doctor.findings import Finding, Severity
from regent.client.doctor.log_check import check_logs
from regent.client.doctor.served_cluster import ServedCluster, read_served
from regent.client.health import Troubles
from regent.client.log_sizes import LogDirectorySize, LogSize
from regent.cluster.cluster_file import BrokerEntry, ClusterFile
from regent.core.errors import Errors
from regent.core.model import ReplicaAssignment
from regent.core.protocol.broker import DescribeMetadataResponse
from regent.storage.log_names import STRAY, TO_DELETE
from regent.zk.stores.admin_store import ZkAdminStore
from tests.support.fake_zookeeper import FakeZooKeeper
from tests.support.world import World


def directory(*logs: LogSize, free: int = 90, is_offline: bool = False) -> LogDirectorySize:
    return LogDirectorySize(1, "/d", is_offline, 100, free, logs)


def found(served: ServedCluster) -> list[Finding]:
    return list(check_logs(ExaminedCluster(served=served)))


@pytest.mark.parametrize(
    ("free", "severity"), [(16, None), (15, Severity.WARNING), (5, Severity.PROBLEM)]
)
def test_a_disk_that_fills_is_named_unless_the_broker_does_it_itself(
    free: int, severity: Severity | None
) -> None:
    log_dirs = {1: [directory(free=free)]}
    findings = found(ServedCluster(log_dirs=log_dirs))
    assert [finding.severity for finding in findings] == ([] if severity is None else [severity])
    told = DescribeMetadataResponse(Errors.NONE, 1, "running", 1, 1)
    assert found(ServedCluster(log_dirs=log_dirs, caches={1: told})) == []


def test_a_failed_directory_is_a_problem() -> None:
    (finding,) = found(ServedCluster(log_dirs={1: [directory(is_offline=True)]}))
    assert finding.severity is Severity.PROBLEM
    assert finding.sentence == (
        "log directory /d of broker 1 has failed: make room on its disk, or replace it, and restart"
        " the broker"
    )


def test_logs_of_unknown_topics_and_of_other_brokers_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    logs = [LogSize("here", 0, 1_000, False), LogSize("moved", 0, 1_000, False)]
    logs += [LogSize("unknown", 0, 1_000, False), LogSize("new", 0, 1_000, False)]
    world = World((1, 2))
    world.put_topic("here", {0: ReplicaAssignment((2, 1))})
    world.put_topic("moved", {0: ReplicaAssignment((2,))})

    def read_log_dirs(_: object) -> dict[int, list[LogDirectorySize]]:
        world.put_topic("new", {0: ReplicaAssignment((1,))})  # after the first look at topics
        return {1: [directory(*logs)]}

    monkeypatch.setattr(served_cluster, "read_log_dirs", read_log_dirs)
    served = read_served(ZkAdminStore(FakeZooKeeper(world.zookeeper)), {}, Troubles())
    (finding,) = found(served)
    assert finding.message == (
        "broker 1 serves 2 logs of partitions that are not assigned to it (moved-0, unknown-0;"
        " 2.0 kB)"
    )


@pytest.fixture
def local(tmp_path: Path) -> ExaminedCluster:
    """A broker of this machine, with one log in use and two that are not."""
    for name in ("t-0", f"t-1.{'a' * 32}{TO_DELETE}", f"t-2.{'b' * 32}{STRAY}"):
        (tmp_path / name).mkdir()
    file = ClusterFile(tmp_path / "cluster.json", "zk:2181")
    file.brokers[1] = BrokerEntry(1, os.getpid(), "127.0.0.1", 1, 2, 3, 4, "key")
    return ExaminedCluster(
        file=file,
        processes={os.getpid(): "broker 1"},
        settings={1: {"log.dirs": str(tmp_path)}},
        served=ServedCluster(),
    )


def test_stray_logs_of_a_broker_that_does_not_name_them_are_found_on_this_machine(
    local: ExaminedCluster,
) -> None:
    (finding,) = check_logs(local)
    assert finding.message.startswith("broker 1 has 1 stray log, which no client can read: /")
    told = DescribeMetadataResponse(Errors.NONE, 1, "running", 1, 1)
    local.served = ServedCluster(caches={1: told})
    assert list(check_logs(local)) == []


def test_deleted_logs_that_stay_on_the_disk_are_named(local: ExaminedCluster) -> None:
    _, finding = check_logs(local, lambda: time.time() + 3_600)
    assert finding.message.startswith(
        "1 log of broker 1 is still on the disk, 1.0 h after the deletion: /"
    )
