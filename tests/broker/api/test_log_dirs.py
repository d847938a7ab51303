"""AlterReplicaLogDirs and DescribeLogDirs, with real logs and replicas."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from kafka.protocol.admin import AlterReplicaLogDirsRequest, DescribeLogDirsRequest

from regent.broker.api.log_dirs import log_dir_apis
from regent.core.errors import Errors
from regent.core.model import TopicPartition
from regent.core.replication.metadata_cache import MetadataCache
from regent.core.replication.replica_alter_log_dirs_manager import ReplicaAlterLogDirsManager
from regent.core.replication.replica_manager import ReplicaManager
from regent.storage.log_manager import LogManager
from tests.support.disk_logs import BATCH_BYTES, BROKER, T0, T1, U0, Machine, create, fill
from tests.support.led_partitions import lead
from tests.support.world import live_broker
from tests.transport.kafka.wire import ask

Logs = dict[tuple[str, int], tuple[int, int, bool]]  # size, lag, whether it is a future log


class Host:
    """A broker with two log directories and the logs t-0, t-1, u-0; it leads those of t."""

    def __init__(self, machine: Machine) -> None:
        self.logs = machine.start()
        for name in (T0, T1, U0):
            fill(create(self.logs, name), 2)
        replicas = ReplicaManager(BROKER, self.logs, MetadataCache())
        alive = live_broker(BROKER)
        lead(replicas, alive, {"t": 2}, (BROKER,))
        self._replicas = replicas

    def describe(self, topics: dict[str, list[int]] | None, version: int = 4) -> Any:
        """Return the answer to a request about partitions; None: all."""
        row = DescribeLogDirsRequest.DescribableLogDirTopic
        rows = None if topics is None else [row(topic=t, partitions=p) for t, p in topics.items()]
        with ThreadPoolExecutor(1) as executor:
            mover = ReplicaAlterLogDirsManager(self._replicas, self.logs.moves)
            apis = log_dir_apis(self._replicas, self.logs, mover, executor)
            return ask(apis, DescribeLogDirsRequest(topics=rows), version)

    def move(self, paths: dict[tuple[str, int], Path], version: int = 2) -> dict[Any, int]:
        """Ask for moves; return the error of each partition."""
        dirs = [
            AlterReplicaLogDirsRequest.AlterReplicaLogDir(
                path=str(path),
                topics=[
                    AlterReplicaLogDirsRequest.AlterReplicaLogDir.AlterReplicaLogDirTopic(
                        name=topic, partitions=[partition]
                    )
                ],
            )
            for (topic, partition), path in paths.items()
        ]
        with ThreadPoolExecutor(1) as executor:
            mover = ReplicaAlterLogDirsManager(self._replicas, self.logs.moves)
            apis = log_dir_apis(self._replicas, self.logs, mover, executor)
            answer = ask(apis, AlterReplicaLogDirsRequest(dirs=dirs), version)
        return {
            (topic.topic_name, row.partition_index): row.error_code
            for topic in answer.results
            for row in topic.partitions
        }


def logs_in(directory: Any) -> Logs:
    return {
        (topic.name, log.partition_index): (log.partition_size, log.offset_lag, log.is_future_key)
        for topic in directory.topics
        for log in topic.partitions
    }


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path / "a", tmp_path / "b")
    yield machine
    machine.end()


@pytest.mark.parametrize("version", range(5))
def test_every_log_is_described_with_its_size_and_lag(machine: Machine, version: int):
    answer = Host(machine).describe(None, version)
    assert [(d.error_code, d.log_dir) for d in answer.results] == [
        (Errors.NONE, str(path)) for path in machine.directories
    ]
    size = 2 * BATCH_BYTES
    first, second = answer.results
    assert logs_in(first) == {("t", 0): (size, 0, False), ("u", 0): (size, -1, False)}
    assert logs_in(second) == {("t", 1): (size, 0, False)}


def test_version_4_has_the_size_of_the_file_system(machine: Machine):
    (first, _) = Host(machine).describe(None).results
    found = os.statvfs(machine.directories[0])
    assert first.total_bytes == found.f_blocks * found.f_frsize
    assert 0 < first.usable_bytes <= first.total_bytes


def test_the_size_of_a_file_system_that_does_not_tell_it_is_unknown(machine: Machine):
    host = Host(machine)
    machine.directories[0].rename(machine.directories[0].with_name("gone"))
    (first, _) = host.describe(None).results
    assert (first.error_code, first.total_bytes, first.usable_bytes) == (Errors.NONE, -1, -1)
    assert logs_in(first)


def test_only_the_partitions_of_the_request_that_are_here_are_described(machine: Machine):
    host = Host(machine)
    first, second = host.describe({"t": [1, 7], "nothing": [0], "u": []}).results
    assert (logs_in(first), list(logs_in(second))) == ({}, [("t", 1)])
    assert [logs_in(directory) for directory in host.describe({}).results] == [{}, {}]


def test_a_directory_that_is_offline_has_an_error_and_no_logs(machine: Machine):
    host = Host(machine)
    meta = machine.directories[0]
    meta.rename(meta.with_name("gone"))
    host.logs.checkpoint_high_watermarks({T0: 2})
    first, second = host.describe(None).results
    assert (first.error_code, logs_in(first)) == (Errors.KAFKA_STORAGE_ERROR, {})
    assert (first.total_bytes, first.usable_bytes) == (-1, -1)
    assert (second.error_code, list(logs_in(second))) == (Errors.NONE, [("t", 1)])


def test_a_damaged_log_is_described(machine: Machine):
    host = Host(machine)
    host.logs.mark_damaged(TopicPartition("u", 0), "damaged")
    (first, _) = host.describe({"u": [0]}).results
    assert logs_in(first) == {("u", 0): (2 * BATCH_BYTES, -1, False)}


def test_a_relative_directory_is_described_by_its_absolute_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    (directory,) = LogManager([Path("data")], BROKER).describe()
    assert directory.path == str(tmp_path / "data")


@pytest.mark.parametrize("version", range(3))
def test_every_replica_to_move_has_an_outcome(machine: Machine, version: int):
    host, (first, second) = Host(machine), machine.directories
    outcomes = host.move(
        {("t", 0): second, ("t", 1): second, ("t", 2): first, ("u", 0): first.parent}, version
    )
    assert outcomes == {
        ("t", 0): Errors.NONE,
        ("t", 1): Errors.NONE,
        ("t", 2): Errors.REPLICA_NOT_AVAILABLE,
        ("u", 0): Errors.LOG_DIR_NOT_FOUND,
    }


def test_a_log_on_its_way_is_described_in_both_directories(machine: Machine):
    host = Host(machine)
    host.move({("t", 0): machine.directories[1]})
    first, second = host.describe({"t": [0]}).results
    assert logs_in(first) == {("t", 0): (2 * BATCH_BYTES, 0, False)}
    assert logs_in(second) == {("t", 0): (0, 2, True)}
