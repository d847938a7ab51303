from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

import pytest
from kafka.protocol.admin.topics import AlterPartitionReassignmentsRequest as Reassign
from kafka.protocol.admin.topics import ElectLeadersRequest as ElectLeaders
from kafka.protocol.admin.topics import ListPartitionReassignmentsRequest as ListReassignments

from regent.broker.api.partitions import partition_apis
from regent.core.admin.partition_requests import RespondAboutPartitions, refuse_partitions
from regent.core.errors import ApiError, Errors
from regent.core.model import ReplicaAssignment, TopicPartition
from regent.core.protocol.envelope import ForwardedClient
from regent.core.protocol.messages.partitions import (
    NO_ERROR,
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ElectionType,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    PartitionsRequest,
    PartitionsResponse,
)
from regent.transport.kafka.api import UnansweredRequestError
from tests.transport.kafka.wire import SESSION, ask

PREFERRED, UNCLEAN = ElectionType.PREFERRED, ElectionType.UNCLEAN
T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
NOT_POSSIBLE = "n" * 30_000


class Controller:
    """Gives every request the same answer, from its own thread."""

    def __init__(self, response: PartitionsResponse) -> None:
        self.asked: list[PartitionsRequest] = []
        self._response = response

    def ask_controller(
        self, request: PartitionsRequest, respond: RespondAboutPartitions, client: ForwardedClient
    ) -> None:
        self.asked.append(request)
        assert client == ("User", "ANONYMOUS", SESSION.client_host)
        threading.Thread(target=respond, args=(self._response,)).start()


def refuse(request: PartitionsRequest, why: str) -> PartitionsResponse:
    return refuse_partitions(request, Errors.NOT_CONTROLLER, why)


def results(topics: Any) -> list[tuple[str, int, int, str | None]]:
    """The rows of a response to ElectLeaders or AlterPartitionReassignments."""
    if topics and hasattr(topics[0], "partition_result"):
        rows = [(t.topic, r.partition_id, r) for t in topics for r in t.partition_result]
    else:
        rows = [(t.name, r.partition_index, r) for t in topics for r in t.partitions]
    return [(name, number, row.error_code, row.error_message) for name, number, row in rows]


# --- ElectLeaders ---------------------------------------------------------------------------------


def election(topics: Iterable[tuple[str, list[int]]] | None, election_type: int = 0) -> Any:
    row = ElectLeaders.TopicPartitions
    named = None if topics is None else [row(topic=t, partitions=numbers) for t, numbers in topics]
    return ElectLeaders(election_type=election_type, topic_partitions=named, timeout_ms=700)


@pytest.mark.parametrize("version", range(3))
def test_each_election_has_its_result(version: int):
    outcomes = {
        T0: NO_ERROR,
        U0: ApiError(Errors.ELECTION_NOT_NEEDED, "broker 1 leads already"),
        T1: ApiError(Errors.PREFERRED_LEADER_NOT_AVAILABLE, "broker 2 is dead"),
    }
    controller = Controller(ElectLeadersResponse.of(outcomes, leaders={T0: 1}))
    request = election([("t", [0]), ("u", [0, 0]), ("t", [1])], UNCLEAN)

    answer = ask(partition_apis(controller), request, version)

    partitions = (T0, T1, U0)
    wanted_type = UNCLEAN if version > 0 else PREFERRED
    assert controller.asked == [ElectLeadersRequest.of(wanted_type, partitions, 700)]
    assert results(answer.replica_election_results) == [
        ("t", 0, 0, None),
        ("t", 1, Errors.PREFERRED_LEADER_NOT_AVAILABLE, "broker 2 is dead"),
        ("u", 0, Errors.ELECTION_NOT_NEEDED, "broker 1 leads already"),
    ]
    if version > 0:
        assert answer.error_code == 0


@pytest.mark.parametrize("version", range(3))
@pytest.mark.parametrize(("named", "wanted"), [(None, None), ([], ())])
def test_null_means_all_partitions_and_an_empty_list_means_none(
    version: int, named: list[tuple[str, list[int]]] | None, wanted: tuple[()] | None
):
    controller = Controller(ElectLeadersResponse.of({}))
    answer = ask(partition_apis(controller), election(named), version)
    assert controller.asked == [ElectLeadersRequest.of(PREFERRED, wanted, 700)]
    assert answer.replica_election_results == []


def test_a_refused_request_has_the_error_at_the_top_and_in_each_partition():
    controller = Controller(refuse(ElectLeadersRequest.of(PREFERRED, [T0]), "it has moved"))
    answer = ask(partition_apis(controller), election([("t", [0, 1])]), 2)
    assert answer.error_code == Errors.NOT_CONTROLLER
    rows = results(answer.replica_election_results)
    assert rows == [
        ("t", 0, Errors.NOT_CONTROLLER, "it has moved"),
        ("t", 1, Errors.NOT_CONTROLLER, None),
    ]
    assert ask(partition_apis(controller), election(None), 1).error_code == Errors.NOT_CONTROLLER


def test_version_0_has_no_answer_when_all_elections_are_refused():
    controller = Controller(ElectLeadersResponse.of({}, ApiError(Errors.NOT_CONTROLLER)))
    with pytest.raises(UnansweredRequestError):
        ask(partition_apis(controller), election(None), 0)


def test_an_unknown_type_of_elections_is_refused():
    controller = Controller(ElectLeadersResponse.of({}))
    answer = ask(partition_apis(controller), election([("t", [0])], election_type=7), 2)
    assert answer.error_code == Errors.INVALID_REQUEST
    rows = results(answer.replica_election_results)
    assert rows == [("t", 0, Errors.INVALID_REQUEST, "7 is not a type of elections")]
    assert not controller.asked


def test_names_that_no_topic_can_have_do_not_reach_the_controller():
    controller = Controller(ElectLeadersResponse.of({}))
    answer = ask(partition_apis(controller), election([(NOT_POSSIBLE, [0, 1])]), 2)
    assert controller.asked == [ElectLeadersRequest.of(PREFERRED, (), 700)]
    (topic,) = answer.replica_election_results
    unknown = Errors.UNKNOWN_TOPIC_OR_PARTITION
    assert [(r.partition_id, r.error_code) for r in topic.partition_result] == [
        (0, unknown),
        (1, unknown),
    ]


# --- AlterPartitionReassignments ------------------------------------------------------------------


def reassignment(*topics: tuple[str, dict[int, list[int] | None]]) -> Any:
    topic = Reassign.ReassignableTopic
    rows = [
        topic(
            name=name,
            partitions=[
                topic.ReassignablePartition(partition_index=number, replicas=replicas)
                for number, replicas in targets.items()
            ],
        )
        for name, targets in topics
    ]
    return Reassign(timeout_ms=700, topics=rows)


def test_reassignments_begin_or_are_cancelled_and_the_last_of_two_counts():
    long = "brokers [7] are not alive" * 1_000
    outcomes = {
        T0: NO_ERROR,
        T1: ApiError(Errors.NO_REASSIGNMENT_IN_PROGRESS, "it is not moving"),
        U0: ApiError(Errors.INVALID_REPLICA_ASSIGNMENT, long),
    }
    controller = Controller(AlterPartitionReassignmentsResponse.of(outcomes))
    request = reassignment(
        ("t", {0: [3], 1: None}), ("u", {0: [7]}), (NOT_POSSIBLE, {0: [1]}), ("t", {0: [1, 2]})
    )

    answer = ask(partition_apis(controller), request, 0)

    moves = {T0: (1, 2), T1: None, U0: (7,)}
    assert controller.asked == [AlterPartitionReassignmentsRequest.of(moves, 700)]
    assert (answer.error_code, answer.error_message) == (0, None)
    *rows, (_, _, impossible, _) = results(answer.responses)
    assert rows == [
        ("t", 0, 0, None),
        ("t", 1, Errors.NO_REASSIGNMENT_IN_PROGRESS, "it is not moving"),
        ("u", 0, Errors.INVALID_REPLICA_ASSIGNMENT, long[:1_000]),
    ]
    assert impossible == Errors.UNKNOWN_TOPIC_OR_PARTITION


def test_refused_reassignments_have_the_error_at_the_top_and_in_each_partition():
    refused = AlterPartitionReassignmentsResponse.of(
        {}, ApiError(Errors.REQUEST_TIMED_OUT, "no answer")
    )
    answer = ask(partition_apis(Controller(refused)), reassignment(("t", {0: [1]})), 0)
    assert (answer.error_code, answer.error_message) == (Errors.REQUEST_TIMED_OUT, "no answer")
    assert results(answer.responses) == [("t", 0, Errors.REQUEST_TIMED_OUT, "no answer")]


# --- ListPartitionReassignments -------------------------------------------------------------------


def listing(*topics: tuple[str, list[int]]) -> Any:
    row = ListReassignments.ListPartitionReassignmentsTopics
    named = [row(name=name, partition_indexes=numbers) for name, numbers in topics]
    return ListReassignments(timeout_ms=700, topics=named or None)


def test_reassignments_in_progress_are_listed_by_topic():
    ongoing = {
        T0: ReplicaAssignment((1, 2, 3), (3,), (1,)),
        TopicPartition("u", 4): ReplicaAssignment((2, 1), (2,)),
        T1: ReplicaAssignment((1, 2), (2,)),
    }
    controller = Controller(ListPartitionReassignmentsResponse.of(ongoing))

    answer = ask(partition_apis(controller), listing(), 0)

    assert controller.asked == [ListPartitionReassignmentsRequest.of(None, 700)]
    rows = [
        (t.name, r.partition_index, r.replicas, r.adding_replicas, r.removing_replicas)
        for t in answer.topics
        for r in t.partitions
    ]
    assert rows == [
        ("t", 0, [1, 2, 3], [3], [1]),
        ("t", 1, [1, 2], [2], []),
        ("u", 4, [2, 1], [2], []),
    ]


def test_reassignments_of_some_partitions_are_listed_or_refused():
    controller = Controller(refuse(ListPartitionReassignmentsRequest.of(), "it has moved"))
    answer = ask(partition_apis(controller), listing(("t", [0, 0]), (NOT_POSSIBLE, [1])), 0)
    wanted = ListPartitionReassignmentsRequest.of([T0], 700)
    assert controller.asked == [wanted]
    assert (answer.error_code, answer.error_message) == (Errors.NOT_CONTROLLER, "it has moved")
    assert answer.topics == []
