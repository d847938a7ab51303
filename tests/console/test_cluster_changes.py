"""What the console changes by requests to the controller: topics, moves, and who rules."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from regent.client.cluster_connection import Cluster, ClusterLocation
from regent.console import operator_actions
from regent.console.operator_actions import OPERATIONS, perform
from regent.core.errors import ApiError, Errors, RegentError
from regent.core.model import ReplicaAssignment, TopicPartition
from regent.core.ports import DeletedPartition, DeletedTopic
from regent.core.protocol.broker import HoldDeletedLogsRequest, HoldDeletedLogsResponse
from regent.core.protocol.controller import (
    MoveControllerRequest,
    MoveControllerResponse,
    NoteOperationRequest,
    NoteOperationResponse,
    UndeleteTopicRequest,
    UndeleteTopicResponse,
)
from regent.core.protocol.messages.partitions import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from regent.testing.waits import eventually, scaled
from regent.transport.control.codec import Request
from regent.zk.client.operations import ANY_VERSION, Delete
from regent.zk.znodes import ControllerZNode, DeletedTopicZNode
from tests.support.fake_cluster import ADDRESS, FakeCluster, replicas

TOPIC = "payments"
AT = TopicPartition(TOPIC, 0)


@pytest.fixture
def topics() -> Iterator[FakeCluster]:
    """A controller that decides about topics."""
    with closing(FakeCluster()) as fake:
        fake.with_brokers(3)
        yield fake


def done(fake: FakeCluster, operation: str, target: str = "", **fields: str) -> str:
    cluster = Cluster(lambda: ClusterLocation(ADDRESS, None), fake.open)
    return perform(
        cluster, operation, OPERATIONS[operation].fields_of({"target": target, **fields})
    )


def test_a_topic_is_created_grown_configured_protected_and_deleted(topics: FakeCluster) -> None:
    settings = {"name": TOPIC, "partitions": "2", "replicas": "3", "settings": "retention.bytes=9"}
    created = done(topics, "create-topic", **settings)
    assert created == "topic payments is created"
    assert len(replicas(topics, TOPIC)) == 2
    assert done(topics, "grow-topic", TOPIC, partitions="4") == "topic payments has 4 partitions"
    assert len(replicas(topics, TOPIC)) == 4
    set_to = done(topics, "configure-topic", TOPIC, setting="retention.ms", value="1000")
    assert set_to == "topic payments: retention.ms is 1000"
    removed = done(topics, "configure-topic", TOPIC, setting="retention.ms")
    assert removed == "topic payments: retention.ms is the brokers' again"
    done(topics, "protect-topic", TOPIC)
    with pytest.raises(RegentError, match="protect"):
        done(topics, "delete-topic", TOPIC, again=TOPIC)
    done(topics, "unprotect-topic", TOPIC)
    with pytest.raises(RegentError, match="nothing was deleted"):
        done(topics, "delete-topic", TOPIC, again="payment")
    assert done(topics, "delete-topic", TOPIC, again=TOPIC) == (
        "topic payments is marked for deletion"
    )


def test_a_deleted_topic_is_brought_back(topics: FakeCluster) -> None:
    topic_id, now_ms = "A" * 22, time.time_ns() // 1_000_000
    row = DeletedPartition((0, 1), (0, 1), 3)
    deleted = DeletedTopic(TOPIC, topic_id, now_ms, now_ms + 60_000, {0: row}, {})
    topics.put(DeletedTopicZNode.path(topic_id), DeletedTopicZNode.encode(deleted))

    def hold(request: Request) -> HoldDeletedLogsResponse:
        assert isinstance(request, HoldDeletedLogsRequest)
        return HoldDeletedLogsResponse(Errors.NONE, 0, 9, request.partitions)

    def bring_back(_: Request) -> UndeleteTopicResponse:
        topics.put_topic(TOPIC, {0: ReplicaAssignment((0, 1))}, topic_id)
        topics.put_state(AT, 0, (0, 1))
        return UndeleteTopicResponse(Errors.NONE)

    topics.answers[HoldDeletedLogsRequest] = hold
    topics.answers[UndeleteTopicRequest] = lambda _: UndeleteTopicResponse(Errors.NONE, "no")
    with pytest.raises(RegentError, match="no"):
        done(topics, "undelete-topic", name=TOPIC)
    topics.answers[UndeleteTopicRequest] = bring_back
    assert done(topics, "undelete-topic", name=f" {TOPIC} ") == "topic payments is back"
    with pytest.raises(RegentError, match="exists"):
        done(topics, "undelete-topic", name=TOPIC)


@pytest.mark.parametrize(
    ("operation", "fields", "problem"),
    [
        ("create-topic", {}, "Give a name"),
        ("undelete-topic", {}, "Give a name"),
        ("undelete-topic", {"name": "t"}, "cannot come back"),
        ("create-topic", {"name": "t", "partitions": "0"}, "no number of partitions"),
        ("create-topic", {"name": "t", "settings": "retention"}, "is not NAME=VALUE"),
        ("grow-topic", {"target": TOPIC, "partitions": "many"}, "no number of partitions"),
        ("configure-topic", {"target": TOPIC, "value": "1"}, "which setting"),
        ("delete-topic", {"target": "__consumer_offsets", "again": "__consumer_offsets"}, "intern"),
    ],
)
def test_a_field_that_cannot_be_understood_is_named(
    topics: FakeCluster, operation: str, fields: dict[str, str], problem: str
) -> None:
    with pytest.raises(RegentError, match=problem):
        done(topics, operation, **fields)
    assert not topics.received


def test_moves_are_throttled_and_all_throttles_removed(topics: FakeCluster) -> None:
    with pytest.raises(RegentError, match="no partition is being reassigned"):
        done(topics, "throttle-moves", rate="1000")
    moving = ReplicaAssignment((2, 0, 1), (2,), (1,))
    topics.put_topic(TOPIC, {0: moving, 1: (0, 1)})
    with pytest.raises(RegentError, match="no number of bytes"):
        done(topics, "throttle-moves", rate="1 MB")
    assert done(topics, "throttle-moves", rate="1000") == (
        "1 move: brokers 0, 1, 2 send and receive 1000 B/s each"
    )
    assert done(topics, "pause-moves") == "1 move paused"
    for operation in ("throttle-moves", "unthrottle-moves"):
        with pytest.raises(RegentError, match="moves are paused"):
            done(topics, operation, rate="1000")
    assert done(topics, "resume-moves") == "the moves go on"
    assert done(topics, "unthrottle-moves") == "the throttles of 3 brokers and 1 topic are removed"


def test_a_change_is_noted_in_the_journal_with_who_did_it(
    topics: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operator_actions, "_user", lambda: "somebody")
    noted: list[Request] = []

    def note(request: Request) -> NoteOperationResponse:
        noted.append(request)
        return NoteOperationResponse(Errors.NONE)

    topics.answers[NoteOperationRequest] = note
    with pytest.raises(RegentError, match="Give a name"):
        done(topics, "create-topic")
    done(topics, "create-topic", name=TOPIC)
    what = "create-topic: topic payments is created"
    eventually(lambda: noted == [NoteOperationRequest("somebody", what)], "it is noted", scaled(10))


def test_the_controller_moves_to_the_broker_that_is_named(topics: FakeCluster) -> None:
    def take(request: Request) -> MoveControllerResponse:
        assert request == MoveControllerRequest(1, 0)
        topics.sessions[0].multi([Delete(ControllerZNode.PATH, ANY_VERSION)])
        topics.elect(2)
        return MoveControllerResponse(Errors.NONE)

    topics.answers[MoveControllerRequest] = take
    for name, problem in (("two", "not the id"), ("7", "broker 7 is not registered")):
        with pytest.raises(RegentError, match=problem):
            done(topics, "move-controller", to=name)
    moved = "The controller moved from broker 0 (epoch 1) to broker 2 (epoch 2)."
    assert done(topics, "move-controller", to="2") == moved
    assert done(topics, "move-controller", to=" 2 ") == (
        "The controller is broker 2 (epoch 2) already."
    )


def test_all_moves_in_progress_are_rolled_back(topics: FakeCluster) -> None:
    with pytest.raises(RegentError, match="no partition is being reassigned"):
        done(topics, "cancel-moves")
    moving = {TopicPartition(TOPIC, n): ReplicaAssignment((2, 0, 1), (2,), (1,)) for n in range(2)}
    requests: list[AlterPartitionReassignmentsRequest] = []

    def alter(request: Request) -> AlterPartitionReassignmentsResponse:
        assert isinstance(request, AlterPartitionReassignmentsRequest)
        requests.append(request)
        return AlterPartitionReassignmentsResponse.of(dict.fromkeys(moving, ApiError(outcome)))

    topics.answers[ListPartitionReassignmentsRequest] = lambda _: (
        ListPartitionReassignmentsResponse.of(moving)
    )
    topics.answers[AlterPartitionReassignmentsRequest] = alter
    outcome = Errors.NONE
    assert done(topics, "cancel-moves") == "2 moves cancelled"
    assert requests == [AlterPartitionReassignmentsRequest.of(dict.fromkeys(moving))]
    outcome = Errors.INVALID_REPLICA_ASSIGNMENT
    with pytest.raises(RegentError, match="not cancelled: payments-0: "):
        done(topics, "cancel-moves")
