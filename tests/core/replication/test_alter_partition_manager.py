"""Pending ISR proposals: none is lost or sent twice at once; late answers are ignored."""

from __future__ import annotations

from dataclasses import replace

import pytest

from regent.core.errors import Errors
from regent.core.protocol.controller import (
    AlteredPartition,
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionRow,
)
from regent.core.replication import leader_partitions
from regent.core.replication.leader_partitions import AlterPartitionManager
from regent.core.topic_validation import MAX_NAME_LENGTH
from regent.transport.control.codec import encode_request
from tests.core.replication.stage import T0, accepted, refused


def row(partition: int, isr: tuple[int, ...] = (1, 2), leader_epoch: int = 1) -> AlterPartitionRow:
    return AlterPartitionRow("t", partition, None, leader_epoch, isr, (-1,) * len(isr), 0, 3)


def respond(*answers: AlteredPartition, error: Errors = Errors.NONE) -> AlterPartitionResponse:
    return AlterPartitionResponse(error, answers)


@pytest.fixture
def manager() -> AlterPartitionManager:
    return AlterPartitionManager()


def send(manager: AlterPartitionManager) -> AlterPartitionRequest:
    request = manager.next_request(1, 100)
    assert request is not None
    return request


def test_no_request_is_sent_without_proposals(manager: AlterPartitionManager) -> None:
    assert manager.next_request(1, 100) is None


def test_a_request_has_the_broker_epoch_of_the_sender(manager: AlterPartitionManager) -> None:
    manager.submit(row(0))
    assert manager.next_request(1, 100) == AlterPartitionRequest(1, 100, (row(0),), attempt=1)


def test_each_attempt_has_a_higher_number(manager: AlterPartitionManager) -> None:
    manager.submit(row(0))
    first = send(manager)
    manager.on_response(first, None)
    assert send(manager) == replace(first, attempt=first.attempt + 1)


def test_a_second_proposal_for_a_partition_is_refused(manager: AlterPartitionManager) -> None:
    assert manager.submit(row(0, (1, 2)))  # ISR-18
    assert not manager.submit(row(0, (1, 3)))
    request = send(manager)
    assert request.partitions == (row(0, (1, 2)),)
    assert not manager.submit(row(0, (1, 3))), "it is in flight"


def test_a_request_has_at_most_as_many_proposals_as_the_controller_accepts(
    manager: AlterPartitionManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leader_partitions, "MAX_PROPOSALS_AT_ONCE", 2)
    for partition in range(3):
        manager.submit(row(partition))
    first = send(manager)
    assert first.partitions == (row(0), row(1))
    manager.on_response(first, respond(accepted(row(0)), accepted(row(1))))
    assert send(manager).partitions == (row(2),)


def test_proposals_for_topics_with_long_names_are_divided_so_that_each_request_can_be_sent(
    manager: AlterPartitionManager,
) -> None:
    largest, longest = 2**31 - 1, 2**63 - 1
    rows = [
        AlterPartitionRow(
            *("t" * MAX_NAME_LENGTH, largest - number, "i" * 22, largest),
            *((largest,) * members, (longest,) * members, 1, largest),
        )
        for number, members in enumerate([1, 3, 40] * 3_334)
    ]
    for proposal in rows:
        manager.submit(proposal)
    sent: list[AlterPartitionRow] = []
    while len(manager):
        request = send(manager)
        encode_request(request)
        sent += request.partitions
        manager.on_response(request, respond(*map(accepted, request.partitions)))
    assert sent == rows


def test_a_proposal_made_meanwhile_is_sent_after_the_answer(  # ISR-19
    manager: AlterPartitionManager,
) -> None:
    manager.submit(row(0))
    first = send(manager)
    for partition in range(1, 10):
        assert manager.submit(row(partition))
    assert manager.next_request(1, 100) is None
    assert manager.on_response(first, respond()) == []  # no answer for partition 0
    assert len(send(manager).partitions) == 10


@pytest.mark.parametrize(
    "response",
    [
        None,
        respond(error=Errors.NOT_CONTROLLER),
        respond(error=Errors.STALE_BROKER_EPOCH),
        respond(error=Errors.CLUSTER_AUTHORIZATION_FAILED),
        respond(error=Errors.UNKNOWN_SERVER_ERROR),
    ],
)
def test_proposals_are_sent_again_when_the_whole_request_failed(  # ISR-16
    manager: AlterPartitionManager, response: AlterPartitionResponse | None
) -> None:
    manager.submit(row(0))
    manager.submit(row(1))
    first = send(manager)
    assert manager.on_response(first, response) == []
    assert not manager.submit(row(0, (1, 3)))
    again = manager.next_request(1, 200)
    assert again == AlterPartitionRequest(1, 200, first.partitions, 2), "with the present epoch"
    assert manager.on_response(again, respond(accepted(row(0)), accepted(row(1))))
    assert manager.next_request(1, 200) is None


@pytest.mark.parametrize(
    "error", [Errors.INVALID_UPDATE_VERSION, Errors.NOT_LEADER_OR_FOLLOWER, Errors.NONE]
)
def test_an_answered_partition_may_be_proposed_again(
    manager: AlterPartitionManager, error: Errors
) -> None:
    manager.submit(row(0))  # ISR-17
    answer = refused(row(0), error)
    assert manager.on_response(send(manager), respond(answer)) == [(row(0), answer)]
    assert manager.submit(row(0))


def test_a_duplicate_of_an_answer_is_ignored(manager: AlterPartitionManager) -> None:
    manager.submit(row(0))
    request = send(manager)
    assert manager.on_response(request, respond(accepted(row(0))))
    assert manager.on_response(request, respond(accepted(row(0)))) == []
    manager.submit(row(1))
    second = send(manager)
    assert manager.on_response(request, respond(accepted(row(0)))) == []
    assert manager.next_request(1, 100) is None, "the second one is still in flight"
    assert manager.on_response(second, respond(accepted(row(1))))


def test_an_answer_to_a_withdrawn_proposal_is_ignored(manager: AlterPartitionManager) -> None:
    manager.submit(row(0))
    request = send(manager)
    manager.withdraw(T0)
    manager.withdraw(T0)
    newer = row(0, leader_epoch=2)
    assert manager.submit(newer)  # KAFKA-12686
    assert manager.on_response(request, respond(accepted(row(0)))) == []
    assert send(manager).partitions == (newer,)


def test_an_answer_for_an_unknown_partition_is_ignored(manager: AlterPartitionManager) -> None:
    manager.submit(row(0))
    assert manager.on_response(send(manager), respond(accepted(row(5)))) == []
    assert send(manager).partitions == (row(0),)
