"""``topics alter``."""

from __future__ import annotations

import pytest

from regent.core.model import ReplicaAssignment
from tests.support.fake_cluster import (
    FakeCluster,
    failing,
    placed,
    replicas,
)

RING = {0: (0, 1, 2), 1: (1, 2, 0), 2: (2, 0, 1), 3: (0, 1, 2)}


def test_new_partitions_continue_the_placement_of_the_old_ones(local: FakeCluster) -> None:
    local.run("topics", "create", "t", "--partitions", "2", "--replication-factor", "3")
    topic_id = local.topic("t").topic_id
    local.placer.requests.clear()

    result = local.run("topics", "alter", "t", "--partitions", "4")

    assert result.stdout == "Topic t has 4 partitions now (2 before).\n"
    assert replicas(local, "t") == RING
    assert local.topic("t").topic_id == topic_id
    assert placed(local).topics == (("t", 2, 3, 2),)
    assert local.json("topics", "alter", "t", "--partitions", "5") == {
        "topic": "t",
        "partitions": 5,
        "added_partitions": [4],
    }


@pytest.mark.parametrize(
    ("partitions", "problem"),
    [
        ("2", "topic t already has 2 partitions"),
        ("1", "topic t cannot shrink: it has 2 partitions"),
        ("0", "topic t cannot shrink: it has 2 partitions"),
        ("-3", "topic t cannot shrink: it has 2 partitions"),
    ],
)
def test_a_topic_can_only_grow(local: FakeCluster, partitions: str, problem: str) -> None:
    local.put_topic("t", {0: (0,), 1: (1,)})

    assert failing(local.run("topics", "alter", "t", "--partitions", partitions)) == problem


def test_an_unknown_deleted_or_moving_topic_does_not_grow(local: FakeCluster) -> None:
    alter = ("--partitions", "5")
    local.put_topic("moving", {0: ReplicaAssignment((0, 1), adding_replicas=(1,))})
    local.put_topic("gone", {0: (0,)})
    local.zookeeper.put("/admin/delete_topics/gone")

    assert failing(local.run("topics", "alter", "t", *alter)) == "topic t does not exist"
    assert failing(local.run("topics", "alter", "..", *alter)) == "topic '..' does not exist"
    assert failing(local.run("topics", "alter", "gone", *alter)) == "topic gone is being deleted"
    assert failing(local.run("topics", "alter", "moving", *alter)) == (
        "topic moving is being reassigned"
    )
    assert local.run("topics", "alter", "t").exit_code == 2
    assert local.run("topics", "alter", *alter).exit_code == 2


def test_a_topic_with_more_replicas_than_live_brokers_does_not_grow(local: FakeCluster) -> None:
    local.put_topic("t", {0: (0, 1, 2, 3)})

    assert "replication factor 4 is larger than the 3 available brokers" in failing(
        local.run("topics", "alter", "t", "--partitions", "2")
    )
