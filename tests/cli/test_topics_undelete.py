"""``topics undelete``."""

from __future__ import annotations

import json
import time
from dataclasses import replace

import pytest

from regent.client.wording import moment_text
from regent.core.errors import Errors
from regent.core.model import ReplicaAssignment
from regent.core.ports import DeletedPartition, DeletedTopic
from regent.core.protocol.broker import HoldDeletedLogsRequest, HoldDeletedLogsResponse
from regent.core.protocol.controller import HeldLogs, UndeleteTopicRequest, UndeleteTopicResponse
from regent.transport.control.codec import Request
from regent.zk.znodes import DeletedTopicZNode
from tests.support.fake_cluster import FakeCluster, failing
from tests.support.world import T0, topic_id

ID = topic_id(5)
PATH = DeletedTopicZNode.path(ID)
UNDELETE = ("topics", "undelete", "t")


@pytest.fixture
def deleted(cluster: FakeCluster) -> DeletedTopic:
    """Topic t on brokers 0, 1 and 2 was deleted just now; 2 is not registered any more."""
    cluster.with_brokers(2)
    now_ms = time.time_ns() // 1_000_000
    row = DeletedPartition((0, 1, 2), (0, 1), 3)
    topic = DeletedTopic("t", ID, now_ms, now_ms + 60_000, {0: row}, {})
    cluster.put(PATH, DeletedTopicZNode.encode(topic))
    cluster.answers[HoldDeletedLogsRequest] = hold
    return topic


def hold(request: Request) -> HoldDeletedLogsResponse:
    assert isinstance(request, HoldDeletedLogsRequest)
    return HoldDeletedLogsResponse(Errors.NONE, 0, 9, request.partitions)


def row_of(deleted: DeletedTopic) -> dict[str, object]:
    return {
        "topic": "t",
        "topic_id": ID,
        "partitions": 1,
        "deleted_ms": deleted.deleted_ms,
        "until_ms": deleted.until_ms,
    }


def asked(cluster: FakeCluster) -> list[Request]:
    return [
        request
        for request in cluster.received
        if isinstance(request, HoldDeletedLogsRequest | UndeleteTopicRequest)
    ]


@pytest.mark.parametrize("output", ["table", "json"])
def test_brokers_hold_their_logs_before_the_controller_is_asked(
    cluster: FakeCluster, deleted: DeletedTopic, output: str
) -> None:
    def bring_back(_: Request) -> UndeleteTopicResponse:
        cluster.put_topic("t", {0: ReplicaAssignment((0, 1, 2))}, ID)
        cluster.put_state(T0, 0, (0, 1))
        return UndeleteTopicResponse(Errors.NONE)

    cluster.answers[UndeleteTopicRequest] = bring_back

    result = cluster.run(*UNDELETE, "-o", output)

    assert result.exit_code == 0
    if output == "json":
        assert json.loads(result.stdout) == {**row_of(deleted), "undeleted": True}
    else:
        assert result.stdout == "Topic t is back (1 partition).\n"
    holding = HoldDeletedLogsRequest("t", ID, (0,))
    node = cluster.zookeeper.snapshot()[PATH]
    held = (HeldLogs(0, 9, (0,)), HeldLogs(1, 9, (0,)))
    assert asked(cluster) == [
        holding,
        holding,
        UndeleteTopicRequest("t", ID, node.stat.mzxid, held),
    ]


def test_a_dry_run_asks_nobody(cluster: FakeCluster, deleted: DeletedTopic) -> None:
    until = moment_text(deleted.until_ms)
    shown = cluster.run(*UNDELETE, "--dry-run").stdout
    assert shown == f"Topic t (1 partition) can come back until {until}.\n"
    assert cluster.json(*UNDELETE, "--dry-run") == {**row_of(deleted), "undeleted": False}
    error = failing(cluster.run("topics", "undelete", "u", "--dry-run"))
    assert error.startswith("topic u cannot come back: no deletion of it is remembered; ")
    assert asked(cluster) == []


def test_one_of_several_deleted_topics_is_named_by_its_id(
    cluster: FakeCluster, deleted: DeletedTopic
) -> None:
    later = replace(deleted, topic_id=topic_id(6), deleted_ms=deleted.deleted_ms + 1)
    cluster.put(DeletedTopicZNode.path(later.topic_id), DeletedTopicZNode.encode(later))
    assert [row["topic_id"] for row in cluster.json("topics", "undelete")] == [later.topic_id, ID]
    assert cluster.json(*UNDELETE, "--dry-run")["topic_id"] == later.topic_id
    assert cluster.json(*UNDELETE, "--dry-run", "--topic-id", ID)["topic_id"] == ID
    error = failing(cluster.run(*UNDELETE, "--topic-id", topic_id(7)))
    assert error.startswith(f"topic t with the id {topic_id(7)} cannot come back: ")


def test_folders_that_are_gone_are_a_refusal(cluster: FakeCluster, deleted: DeletedTopic) -> None:
    cluster.answers[HoldDeletedLogsRequest] = lambda _: HoldDeletedLogsResponse(Errors.NONE, 0, 9)

    def refuse(request: Request) -> UndeleteTopicResponse:
        assert isinstance(request, UndeleteTopicRequest)
        return UndeleteTopicResponse(
            Errors.NONE, f"held: {[row.partitions for row in request.held]}"
        )

    cluster.answers[UndeleteTopicRequest] = refuse
    result = cluster.run(*UNDELETE)
    assert result.exit_code == 1
    assert result.stderr.splitlines()[0].endswith("held: [(), ()]")


def test_topics_that_are_too_late_are_not_listed(
    cluster: FakeCluster, deleted: DeletedTopic
) -> None:
    late = replace(deleted, until_ms=deleted.deleted_ms)
    cluster.put(PATH, DeletedTopicZNode.encode(late))
    assert cluster.json("topics", "undelete") == []


@pytest.mark.parametrize("name", ["", "no/topic", "x" * 250])
def test_a_name_that_no_topic_has_is_refused(cluster: FakeCluster, name: str) -> None:
    cluster.with_brokers(1)
    assert "topic" in failing(cluster.run("topics", "undelete", name))


def test_a_refusal_names_the_brokers_that_cannot_be_asked(
    cluster: FakeCluster, deleted: DeletedTopic
) -> None:
    cluster.answers[UndeleteTopicRequest] = lambda _: UndeleteTopicResponse(
        Errors.NONE, "no records"
    )

    result = cluster.run(*UNDELETE)

    assert result.exit_code == 1
    first, second = result.stderr.splitlines()
    assert first.endswith("no records")
    assert "broker 2 cannot be asked for its records: " in second


def test_the_command_can_be_repeated_when_the_answer_is_lost(
    cluster: FakeCluster, deleted: DeletedTopic
) -> None:
    cluster.answers[UndeleteTopicRequest] = lambda _: Errors.NOT_CONTROLLER

    error = failing(cluster.run(*UNDELETE, "--timeout-ms", "100"))

    assert error.startswith("topic t may be back or not: ")
    assert error.endswith("; repeat the command")


def test_the_topics_that_can_come_back_are_listed(
    cluster: FakeCluster, deleted: DeletedTopic
) -> None:
    assert cluster.json("topics", "undelete") == [row_of(deleted)]
    _, line = cluster.run("topics", "undelete").stdout.splitlines()
    assert line.split() == ["t", ID, "1", *map(moment_text, (deleted.deleted_ms, deleted.until_ms))]
    cluster.put(PATH, DeletedTopicZNode.encode(replace(deleted, until_ms=2**62)))
    assert str(2**62) in cluster.run("topics", "undelete").stdout


def test_a_topic_that_was_not_deleted_cannot_come_back(cluster: FakeCluster) -> None:
    cluster.with_brokers(1)
    assert cluster.json("topics", "undelete") == []
    assert failing(cluster.run(*UNDELETE)).startswith(
        "topic t cannot come back: no deletion of it is remembered; "
    )
    cluster.put_topic("t", {0: ReplicaAssignment((0,))})
    assert failing(cluster.run(*UNDELETE)) == (
        "topic t exists: delete it before the deleted one can come back"
    )
    cluster.put("/admin/delete_topics/t")
    assert failing(cluster.run(*UNDELETE)) == "topic t is being deleted: wait until that is done"
