from __future__ import annotations

from collections.abc import Mapping

import pytest

from regent.core.admin.partition_requests import PendingElections, refuse_partitions
from regent.core.errors import Errors
from regent.core.model import NO_LEADER, BrokerId
from regent.core.protocol.control import UpdateMetadataPartition
from regent.core.protocol.controller import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ElectedPartition,
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
REFUSED = ElectedPartition("t", 2, Errors.ELECTION_NOT_NEEDED, "broker 1 leads already")
ELECTED = ElectLeadersResponse(
    Errors.NONE,
    (
        ElectedPartition("t", 0, Errors.NONE, leader=1),
        REFUSED,
        ElectedPartition("t", 1, Errors.NONE, leader=2),
    ),
)


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
    first, second, third = late.partitions
    assert (first, second) == ELECTED.partitions[:2]
    assert (third.error_code, third.leader) == (Errors.REQUEST_TIMED_OUT, NO_LEADER)
    assert third.message == "t-1: broker 2 is elected, but this broker does not know it yet"


@pytest.mark.parametrize(
    ("request_", "response"),
    [
        (ElectLeadersRequest(ElectionType.UNCLEAN), ElectLeadersResponse),
        (AlterPartitionReassignmentsRequest(()), AlterPartitionReassignmentsResponse),
        (ListPartitionReassignmentsRequest(), ListPartitionReassignmentsResponse),
    ],
)
def test_a_whole_request_is_refused_with_a_reason(
    request_: PartitionsRequest, response: type[PartitionsResponse]
):
    expected = response(Errors.NOT_CONTROLLER, (), "nobody is")
    assert refuse_partitions(request_, Errors.NOT_CONTROLLER, "nobody is") == expected
