from __future__ import annotations

import pytest

from bench.control_plane import replicas_by_broker
from bench.partition_znodes import topic_sizes
from bench.told import Arrival, CompleteLists, Leaders, ReceivedBody
from regent.core.errors import Errors
from regent.core.protocol.api import ApiKey
from regent.core.protocol.control import (
    ControlRequest,
    LeaderAndIsrPartition,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopic,
    LeaderAndIsrType,
    PartitionError,
    UpdateMetadataPartition,
    UpdateMetadataRequest,
    UpdateMetadataTopic,
)
from regent.transport.control.codec import decode_response_body, encode_request


def leader_and_isr(
    *numbers: int, leader: int = 1, part: int = 0, parts: int = 1, full: bool = True
) -> LeaderAndIsrRequest:
    rows = tuple(
        LeaderAndIsrPartition(n, 1, leader, 0, (1,), 0, (1,), (), (), False, 0) for n in numbers
    )
    kind = LeaderAndIsrType.FULL if full else LeaderAndIsrType.INCREMENTAL
    return LeaderAndIsrRequest(kind, (LeaderAndIsrTopic("a", None, rows),), (), part, parts)


def update_metadata(*numbers: int, leader: int = 1, full: bool = True) -> UpdateMetadataRequest:
    rows = tuple(UpdateMetadataPartition(n, 1, leader, 0, (1,), 0, (1,), ()) for n in numbers)
    return UpdateMetadataRequest((UpdateMetadataTopic("a", None, rows),), (), is_full=full)


def arrival(at: float, request: ControlRequest, epoch: int = 1) -> Arrival:
    encoded = encode_request(request)
    return Arrival(at, epoch, ReceivedBody(encoded.api_key, bytes(encoded.frames[0])))


def test_the_answer_to_leader_and_isr_lists_every_partition_without_an_error() -> None:
    answer = arrival(1.0, leader_and_isr(0, 1)).body.answer

    errors = (PartitionError("a", 0, Errors.NONE), PartitionError("a", 1, Errors.NONE))
    read = decode_response_body(ApiKey.LEADER_AND_ISR, answer)
    assert read == LeaderAndIsrResponse(Errors.NONE, errors)


def test_lists_are_complete_with_the_last_part_of_both() -> None:
    arrivals = [
        arrival(1.0, leader_and_isr(0, part=0, parts=2)),
        arrival(2.0, update_metadata(0, 1)),
        arrival(3.0, leader_and_isr(1, part=1, parts=2)),
    ]

    assert CompleteLists(1, 2, 2)(arrivals).at == 3.0
    assert CompleteLists(1, 2, 2)(arrivals[:2]).at is None


@pytest.mark.parametrize(
    "arrivals",
    [
        [arrival(1.0, leader_and_isr(0)), arrival(2.0, update_metadata(0, full=False))],
        [arrival(1.0, leader_and_isr(0, full=False)), arrival(2.0, update_metadata(0))],
        [arrival(1.0, leader_and_isr(0), epoch=0), arrival(2.0, update_metadata(0))],
        [arrival(1.0, leader_and_isr()), arrival(2.0, update_metadata(0))],
    ],
)
def test_changes_and_the_lists_of_another_controller_do_not_count(arrivals: list[Arrival]) -> None:
    assert CompleteLists(1, 1, 1)(arrivals).at is None


def test_leaders_count_once_each_and_only_where_the_broker_led_that_is_gone() -> None:
    arrivals = [
        arrival(1.0, leader_and_isr(0, 3, full=False)),
        arrival(2.0, update_metadata(0, 1, 2, full=False)),
        arrival(3.0, update_metadata(0, 3, leader=-1, full=False)),
        arrival(4.0, update_metadata(0, full=False)),
        arrival(5.0, update_metadata(3, full=False)),
    ]

    assert Leaders(2, 2, brokers=3, gone=0)(arrivals).at == 5.0
    assert Leaders(2, 3)(arrivals).at == 2.0


def test_replicas_are_counted_as_they_are_placed() -> None:
    sizes = topic_sizes(7, 4)

    assert sizes == {"topic-0000000": 4, "topic-0000001": 3}
    assert replicas_by_broker(sizes, [1, 2, 3, 4]) == {1: 5, 2: 5, 3: 6, 4: 5}
    assert replicas_by_broker(sizes, [1, 2, 3], leader=2) == {1: 2, 2: 2, 3: 2}
