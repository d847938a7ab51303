"""``topics list`` and ``topics describe``."""

from __future__ import annotations

import pytest

from regent.client.log_sizes import LogDirectorySize, LogSize
from regent.core.model import LeaderAndIsr, ReplicaAssignment
from regent.zk.znodes import ConfigEntityZNode
from tests.support.fake_cluster import (
    FakeCluster,
    failing,
)


def test_topics_are_listed_by_name(cluster: FakeCluster) -> None:
    assert cluster.run("topics", "list", "--names").stdout == ""
    cluster.put_topic("b", {})
    cluster.put_topic("a", {})
    cluster.zookeeper.put("/admin/delete_topics/b")

    assert cluster.run("topics", "list", "--names").stdout == "a\nb - marked for deletion\n"
    assert cluster.json("topics", "list", "--names") == ["a", "b"]


def test_topics_are_listed_with_partitions_replicas_and_bytes(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.put_topic("a", {0: ReplicaAssignment((0, 1)), 1: ReplicaAssignment((0, 1))})
    cluster.put_topic("b", {0: ReplicaAssignment((1,))})
    cluster.zookeeper.put("/admin/delete_topics/b")
    disk = LogDirectorySize(0, "/d", False, 100, 40, (LogSize("a", 0, 1_000, False),) * 2)
    monkeypatch.setattr("regent.client.log_sizes.read_log_dirs", lambda _: {0: [disk]})

    first, second = cluster.json("topics", "list")
    assert first == {
        "topic": "a",
        "partitions": 2,
        "replicas": [2],
        "bytes": 2_000,
        "is_being_deleted": False,
    }
    assert (second["bytes"], second["is_being_deleted"]) == (None, True)
    header, a, b = cluster.run("topics", "list").stdout.splitlines()
    assert header.split() == ["TOPIC", "PARTITIONS", "REPLICAS", "BYTES", "STATE"]
    assert a.split() == ["a", "2", "2", "2.0", "kB", "-"]
    assert b.split() == ["b", "1", "1", "-", "marked", "for", "deletion"]


# --- describe -------------------------------------------------------------------------------------


@pytest.fixture
def described(cluster: FakeCluster) -> FakeCluster:
    """Two topics: b is healthy, a has every kind of problem."""
    cluster.add_broker(0)
    cluster.add_broker(1)
    cluster.put_topic(
        "a",
        {
            0: ReplicaAssignment((0, 1)),
            1: ReplicaAssignment((1, 0)),
            2: ReplicaAssignment((2, 0)),
            3: ReplicaAssignment((0, 1, 2), adding_replicas=(2,)),
            10: ReplicaAssignment((0, 1)),
        },
        "A" * 22,
        leaders={
            0: LeaderAndIsr(0, (0, 1), 5),
            1: LeaderAndIsr(-1, (1,), 3),
            2: LeaderAndIsr(2, (2,), 0),
            3: LeaderAndIsr(0, (1, 0), 7),
        },
    )
    cluster.put_topic("b", {0: (1,)}, leaders={0: LeaderAndIsr(1, (1,))})
    cluster.zookeeper.put("/config/topics/a", ConfigEntityZNode.encode({"retention.ms": "5"}))
    return cluster


def test_a_description_has_exactly_the_documented_keys_in_sequence(described: FakeCluster) -> None:
    rows = described.json("topics", "describe")

    assert [(row["topic"], row["partition"]) for row in rows] == [
        ("a", 0),
        ("a", 1),
        ("a", 2),
        ("a", 3),
        ("a", 10),
        ("b", 0),
    ]
    assert rows[3] == {
        "topic": "a",
        "topic_id": "AAAAAAAAAAAAAAAAAAAAAA",
        "partition": 3,
        "leader": 0,
        "leader_epoch": 7,
        "controller_epoch": 1,
        "isr": [1, 0],
        "replicas": [0, 1, 2],
        "adding_replicas": [2],
        "removing_replicas": [],
        "partition_epoch": 0,
    }
    assert (rows[4]["leader"], rows[4]["isr"], rows[4]["partition_epoch"]) == (-1, [], -1)
    assert rows[5]["topic_id"] is None
    assert described.json("topics", "describe", "b") == rows[5:]


def test_a_description_has_kafkas_format(described: FakeCluster) -> None:
    assert described.run("topics", "describe").stdout.splitlines() == [
        "Topic: a\tTopicId: AAAAAAAAAAAAAAAAAAAAAA\tPartitionCount: 5\tReplicationFactor: 2"
        "\tConfigs: retention.ms=5",
        "\tTopic: a\tPartition: 0\tLeader: 0\tReplicas: 0,1\tIsr: 0,1",
        "\tTopic: a\tPartition: 1\tLeader: none\tReplicas: 1,0\tIsr: 1",
        "\tTopic: a\tPartition: 2\tLeader: 2\tReplicas: 2,0\tIsr: 2",
        "\tTopic: a\tPartition: 3\tLeader: 0\tReplicas: 0,1,2\tIsr: 1,0"
        "\tAdding Replicas: 2\tRemoving Replicas: ",
        "\tTopic: a\tPartition: 10\tLeader: none\tReplicas: 0,1\tIsr: ",
        "Topic: b\tPartitionCount: 1\tReplicationFactor: 1\tConfigs: ",
        "\tTopic: b\tPartition: 0\tLeader: 1\tReplicas: 1\tIsr: 1",
    ]


def partitions_shown(cluster: FakeCluster, *flags: str) -> list[int]:
    rows = cluster.json("topics", "describe", *flags)
    assert {row["topic"] for row in rows} <= {"a"}
    return [row["partition"] for row in rows]


def test_replicas_being_added_do_not_make_a_partition_under_replicated(
    described: FakeCluster,
) -> None:
    assert partitions_shown(described, "--under-replicated-partitions") == [1, 2, 10]


def test_a_leader_that_is_not_registered_makes_a_partition_unavailable(
    described: FakeCluster,
) -> None:
    assert partitions_shown(described, "--unavailable-partitions") == [1, 2, 10]
    described.unregister(0)
    assert partitions_shown(described, "--unavailable-partitions") == [0, 1, 2, 3, 10]


def test_selected_partitions_have_no_headers(described: FakeCluster) -> None:
    lines = described.run("topics", "describe", "--unavailable-partitions").stdout.splitlines()

    assert len(lines) == 3
    assert all(line.startswith("\tTopic: a") for line in lines)


@pytest.mark.parametrize("name", ["nope", "..", "a/partitions"])
def test_a_topic_that_does_not_exist_is_an_error(described: FakeCluster, name: str) -> None:
    assert failing(described.run("topics", "describe", name)) == f"topic {name} does not exist"


def test_an_unreadable_topic_does_not_hide_the_others(
    described: FakeCluster,
) -> None:
    described.zookeeper.put("/brokers/topics/bad", b"garbage")

    result = described.run("topics", "describe")

    assert result.exit_code == 0
    assert "Topic: b" in result.stdout
    assert result.stderr.startswith("regent: topic bad: ")
    assert failing(described.run("topics", "describe", "bad")).startswith("topic bad: ")
