from __future__ import annotations

from collections.abc import Mapping

import pytest

from regent.core.admin.partition_requests import PendingElections, refuse_partitions
from regent.core.errors import ApiError, Errors
from regent.core.model import NO_LEADER, BrokerId, TopicPartition
from regent.core.protocol.control import UpdateMetadataPartition
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
from regent.core.replication.metadata_cache import MetadataSnapshot

NOW, DEADLINE = 1_000, 1_500
T0, T1, T2 = (TopicPartition("t", number) for number in range(3))
REFUSED = ApiError(Errors.ELECTION_NOT_NEEDED, "broker 1 leads already")
ELECTED = ElectLeadersResponse.of({T0: NO_ERROR, T2: REFUSED, T1: NO_ERROR}, leaders={T0: 1, T1: 2})


def known(leaders: Mapping[int, BrokerId]) -> MetadataSnapshot:
    return MetadataSnapshot(
        topics={
            "t": {
                number: UpdateMetadataPartition(number, 1, leader, 0, (leader,), 0, (1, 2), ())
                for number, leader in leaders.items()
            }
        }
    )


def test_elections_are_answered_when_every_new_leader_is_known():
    pending = PendingElections(ELECTED, DEADLINE)
    assert pending.poll(known({}), NOW) is None
    assert pending.poll(known({0: 1, 1: 1}), NOW) is None
    assert pending.poll(known({0: 1, 1: 2}), NOW) == ELECTED


def test_leaders_that_are_not_known_in_time_time_out():
    late = PendingElections(ELECTED, DEADLINE).poll(known({0: 1, 1: NO_LEADER}), DEADLINE)
    assert late is not None
    why = "t-1: broker 2 is elected, but this broker does not know it yet"
    assert late.results == {T0: NO_ERROR, T2: REFUSED, T1: (Errors.REQUEST_TIMED_OUT, why)}
    assert late.leaders == {T0: 1}


WHY = ApiError(Errors.NOT_CONTROLLER, "nobody is")


@pytest.mark.parametrize(
    ("request_", "response"),
    [
        (
            ElectLeadersRequest.of(ElectionType.UNCLEAN, [T0]),
            ElectLeadersResponse.of({T0: WHY}, WHY),
        ),
        (ElectLeadersRequest.of(ElectionType.UNCLEAN), ElectLeadersResponse.of({}, WHY)),
        (
            AlterPartitionReassignmentsRequest.of({T0: None}),
            AlterPartitionReassignmentsResponse.of({T0: WHY}, WHY),
        ),
        (
            ListPartitionReassignmentsRequest.of([T0]),
            ListPartitionReassignmentsResponse.of({}, WHY),
        ),
    ],
)
def test_a_whole_request_is_refused_with_a_reason(
    request_: PartitionsRequest, response: PartitionsResponse
):
    assert refuse_partitions(request_, *WHY) == response
