"""``reassign`` with ``log_dirs``: moves between the log directories of brokers (KIP-113)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from regent.core.errors import Errors
from regent.core.model import BrokerInfo, EndPoint, TopicPartition
from regent.core.protocol.messages.partitions import (
    AlterPartitionReassignmentsRequest,
)
from regent.transport.control.codec import Request, Response
from regent.zk.znodes import ConfigEntityZNode
from tests.cli.test_reassign_execute import command, config_of, refuse, submitted
from tests.support.fake_cluster import FakeCluster, failing
from tests.support.log_dir_broker import LogDirBroker

T0 = TopicPartition("t", 0)


@pytest.fixture
def brokers(cluster: FakeCluster) -> Iterator[list[LogDirBroker]]:
    """Three brokers with two directories each; t-0 is in the first of brokers 0 and 1."""
    found = [LogDirBroker("/d/one", "/d/two") for _ in range(3)]
    endpoint = cluster.serve(cluster.lead)
    for broker_id, broker in enumerate(found):
        cluster.add_broker(broker_id, control_endpoint=endpoint, port=broker.port)
    cluster.elect(0)
    cluster.put_topic("t", {0: (0, 1)})
    refuse(cluster)
    for broker in found[:2]:
        broker.create(T0)
    yield found
    for broker in found:
        broker.close()


def plan(replicas: list[int], *log_dirs: str) -> dict[str, object]:
    row = {"topic": "t", "partition": 0, "replicas": replicas, "log_dirs": list(log_dirs)}
    return {"version": 1, "partitions": [row]}


def test_a_replica_moves_to_the_directory_that_the_plan_names(
    cluster: FakeCluster, brokers: list[LogDirBroker], tmp_path: Path
) -> None:
    brokers[1].moves_at_once = True

    wanted = plan([0, 1], "any", "/d/two")
    result = cluster.run(*command(tmp_path, content=wanted), "--wait")

    assert (result.exit_code, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert json.loads(lines[2]) == plan([0, 1], "any", "/d/one")  # the way back
    assert lines[5:] == [
        "Successfully started partition reassignment for t-0",
        "Successfully started moving log directory to /d/two for replica t-0 with broker 1",
        "Successfully completed partition reassignment for t-0",
    ]
    assert brokers[1].current == {T0: "/d/two"}
    assert brokers[0].altered == []


def test_a_new_replica_is_created_in_its_directory(
    cluster: FakeCluster, brokers: list[LogDirBroker], tmp_path: Path
) -> None:
    order: list[object] = []
    answer = cluster.answers[AlterPartitionReassignmentsRequest]

    def reassign(request: object) -> object:
        order.append(dict(brokers[2].preferred))
        brokers[2].create(T0)
        return answer(request)  # type: ignore[arg-type]

    cluster.answers[AlterPartitionReassignmentsRequest] = reassign  # type: ignore[assignment]

    result = cluster.run(*command(tmp_path, content=plan([0, 2], "any", "/d/two")))

    assert result.exit_code == 0
    assert order == [{T0: "/d/two"}]  # the broker knew the directory before the reassignment
    assert brokers[2].current == {T0: "/d/two"}
    assert "moving log directory to /d/two for replica t-0 with broker 2" in result.stdout


def test_a_new_replica_that_does_not_come_is_named(
    cluster: FakeCluster, brokers: list[LogDirBroker], tmp_path: Path
) -> None:
    arguments = command(tmp_path, content=plan([0, 2], "any", "/d/two"))

    result = cluster.run(*arguments, "--timeout-ms", "300")

    assert result.exit_code == 1
    assert "Timed out before log directory move could be started for: t-0-2" in result.stderr
    assert "Successfully started partition reassignment for t-0" in result.stdout


@pytest.mark.parametrize(
    ("replicas", "log_dirs", "problem"),
    [
        (
            [0, 1],
            ["/d/two", "/nowhere"],
            "Failed to alter dir for t-0-1: LOG_DIR_NOT_FOUND: broker 1 has no log directory"
            " /nowhere; it has /d/one, /d/two",
        ),
        (
            [0, 2],
            ["any", "/d/three"],
            "Failed to alter dir for t-0-2: LOG_DIR_NOT_FOUND: broker 2 has no log directory"
            " /d/three; it has /d/one, /d/two",
        ),
        (
            [0, 1],
            ["/d/two", "any"],
            "Failed to alter dir for t-0-0: KAFKA_STORAGE_ERROR: /d/two of broker 0 is offline",
        ),
    ],
)
def test_nothing_begins_when_a_directory_cannot_take_replicas(
    cluster: FakeCluster,
    brokers: list[LogDirBroker],
    tmp_path: Path,
    replicas: list[int],
    log_dirs: list[str],
    problem: str,
) -> None:
    brokers[0].offline = {"/d/two"} if log_dirs[1] == "any" else set()

    line = failing(cluster.run(*command(tmp_path, content=plan(replicas, *log_dirs))))

    assert line == problem
    assert submitted(cluster) == []
    assert [broker.altered for broker in brokers] == [[], [], []]


def test_a_replica_on_a_dead_broker_cannot_be_moved(
    cluster: FakeCluster, brokers: list[LogDirBroker], tmp_path: Path
) -> None:
    del brokers
    cluster.unregister(1)

    line = failing(cluster.run(*command(tmp_path, content=plan([0, 1], "any", "/d/two"))))

    assert line.startswith("Failed to alter dir for t-0-1: broker 1 is not registered")


def test_the_progress_of_each_replica_is_printed_in_kafkas_words(
    cluster: FakeCluster, brokers: list[LogDirBroker], tmp_path: Path
) -> None:
    verify = command(tmp_path, "--verify", plan([0, 1], "/d/one", "/d/two"))

    def lines() -> list[str]:
        result = cluster.run(*verify)
        assert result.exit_code == 0
        return [*result.stdout.splitlines()[2:], *result.stderr.splitlines()]

    done = "Reassignment of replica t-0-0 completed successfully."
    assert lines() == [
        done,
        "Partition t-0 on broker 1 is not being moved from log dir /d/one to /d/two.",
    ]
    brokers[1].future = {T0: "/d/two"}
    assert lines() == [done, "Reassignment of replica t-0-1 is still in progress."]
    (row,) = cluster.json(*verify)
    assert row["state"] == "complete"
    assert row["log_dirs"][1] == {
        "broker": 1,
        "state": "in progress",
        "log_dir": "/d/one",
        "future_log_dir": "/d/two",
        "target_log_dir": "/d/two",
    }
    brokers[1].log_dirs = ("/d/one", "/d/two", "/d/three")
    brokers[1].future = {T0: "/d/three"}
    assert lines() == [
        done,
        "Partition t-0 on broker 1 is being moved to log dir /d/three instead of /d/two.",
    ]
    brokers[1].current = brokers[1].future = {}
    assert lines() == [
        done,
        "Partition t-0 is not found in any live log dir on broker 1. There is likely an offline"
        " log directory on the broker.",
    ]


def test_a_throttle_of_log_directories_is_for_the_brokers_that_move(
    cluster: FakeCluster, brokers: list[LogDirBroker], tmp_path: Path
) -> None:
    rate = {"replica.alter.log.dirs.io.max.bytes.per.second": "70"}
    arguments = command(tmp_path, content=plan([0, 1], "any", "/d/two"))

    result = cluster.run(*arguments, "--replica-alter-log-dirs-throttle", "70")

    assert "The replica-alter-dir throttle limit was set to 70 B/s" in result.stdout
    assert [config_of(cluster, f"brokers/{broker}") for broker in range(3)] == [{}, rate, {}]
    verify = command(tmp_path, "--verify", plan([0, 1], "any", "/d/two"))
    cluster.put_topic("t", {0: (0, 1)})
    cluster.run(*verify)
    assert config_of(cluster, "brokers/1") == rate  # the copy is still made
    brokers[1].finish()
    assert "Clearing broker-level throttles on brokers 1" in cluster.run(*verify).stderr
    data = cluster.zookeeper.snapshot()["/config/brokers/1"].data
    assert ConfigEntityZNode.decode(data, "") == {}


def test_a_move_between_directories_is_cancelled(
    cluster: FakeCluster, brokers: list[LogDirBroker], tmp_path: Path
) -> None:
    brokers[1].future = {T0: "/d/two"}
    cancel = command(tmp_path, "--cancel", plan([0, 1], "any", "/d/two"))

    result = cluster.run(*cancel)

    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "None of the specified partition reassignments are active.",
        "Successfully started moving log directory to /d/one for replica t-0 with broker 1",
    ]
    assert (brokers[1].current, brokers[1].future) == ({T0: "/d/one"}, {})
    assert cluster.run(*cancel).stdout.splitlines()[1:] == [
        "None of the specified partition moves are active."
    ]


def test_brokers_whose_listeners_ask_for_more_than_the_command_has_are_named(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    secured = EndPoint("CLIENTS", "127.0.0.1", 9092, "SASL_SSL")
    for broker_id in range(2):
        cluster.register_as(BrokerInfo(broker_id, (secured,), None, None, None))
    cluster.elect(0)
    cluster.put_topic("t", {0: (0, 1)})
    refuse(cluster)
    fits = "for PLAINTEXT: does security.protocol of --command-config fit the listeners?"

    moved = cluster.run(*command(tmp_path, content=plan([0, 1], "any", "/d/two")))
    shown = cluster.run("logs")

    assert (moved.exit_code, shown.exit_code) == (1, 1)
    assert f"broker 1 does not listen {fits}" in moved.stderr
    assert shown.stderr == f"regent: no broker listens {fits}\n"


def test_moves_between_directories_begin_although_a_pause_cannot_slow_the_others(
    cluster: FakeCluster, brokers: list[LogDirBroker], tmp_path: Path
) -> None:
    begin = cluster.answers[AlterPartitionReassignmentsRequest]

    def cross(request: Request) -> Response | Errors | None:
        cluster.run("reassign", "--pause")
        cluster.zookeeper.put("/config/topics/t", b"garbage")
        return begin(request)

    cluster.answers[AlterPartitionReassignmentsRequest] = cross
    result = cluster.run(*command(tmp_path, content=plan([1, 2], "/d/two", "any")))
    assert result.exit_code == 1
    assert result.stdout.splitlines()[-2:] == [
        "Successfully started partition reassignment for t-0",
        "Successfully started moving log directory to /d/two for replica t-0 with broker 1",
    ]
    assert result.stderr.startswith("regent: /config/topics/t: not JSON")
