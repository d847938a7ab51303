"""Groups that do not get on, asked of a broker whose groups the test moves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from regent.client.doctor.examined_cluster import ExaminedCluster
from regent.client.doctor.findings import Finding, Severity
from regent.client.doctor.group_check import check_groups
from regent.client.doctor.served_cluster import ServedCluster
from regent.client.partitions import DescribedPartition
from regent.core.errors import Errors
from regent.core.model import (
    BrokerInfo,
    EndPoint,
    LeaderAndIsr,
    LeaderIsrAndControllerEpoch,
    ReplicaAssignment,
    TopicPartition,
)
from regent.core.protocol.messages.groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsResponse,
    ListedGroup,
    ListGroupsResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
)
from regent.core.protocol.messages.offsets import (
    ListedPartition,
    ListedTopic,
    ListOffsetsResponse,
)
from regent.transport.kafka.api import KafkaAnswer, KafkaApi, KafkaApiKey, KafkaRequest
from regent.transport.kafka.listener import KafkaListener
from regent.transport.kafka.message_codec import decoded, encoded

T0 = TopicPartition("t", 0)
ASSIGNMENT = b"\0\0\0\0\0\1\0\1t\0\0\0\1\0\0\0\0\xff\xff\xff\xff"  # t-0


@dataclass
class Coordinator:
    """A broker that leads ``t-0`` and coordinates groups: state and position of each.

    The position -1: the group has never committed, and its member has ``t-0``.
    """

    groups: dict[str, tuple[str, int]] = field(default_factory=dict)
    end: int = 10
    error: Errors = Errors.NONE
    naps: int = 0

    async def list_groups(self, request: KafkaRequest) -> KafkaAnswer:
        rows = tuple(
            ListedGroup(group_id=group, protocol_type="consumer", group_state=state)
            for group, (state, _) in self.groups.items()
        )
        answer = ListGroupsResponse(error_code=self.error, groups=rows)
        return (encoded(answer, request.api_version, is_flexible=True),)

    async def fetch(self, request: KafkaRequest) -> KafkaAnswer:
        asked = decoded(OffsetFetchRequest, request.body, request.api_version, is_flexible=True)
        groups = tuple(
            OffsetFetchResponseGroup(
                group_id=row.group_id,
                topics=self._positions(self.groups[row.group_id][1]),
                error_code=0,
            )
            for row in asked.groups
        )
        answer = OffsetFetchResponse(groups=groups)
        return (encoded(answer, request.api_version, is_flexible=True),)

    async def describe(self, request: KafkaRequest) -> KafkaAnswer:
        member = DescribedGroupMember(
            member_id="m",
            client_id="client",
            client_host="/127.0.0.1",
            member_metadata=b"",
            member_assignment=ASSIGNMENT,
        )
        groups = tuple(
            DescribedGroup(
                error_code=0,
                group_id=group,
                group_state=state,
                protocol_type="consumer",
                members=(member,),
            )
            for group, (state, position) in self.groups.items()
            if position < 0
        )
        answer = DescribeGroupsResponse(groups=groups)
        return (encoded(answer, request.api_version, is_flexible=True),)

    @staticmethod
    def _positions(offset: int) -> tuple[OffsetFetchResponseTopic, ...]:
        if offset < 0:
            return ()
        row = OffsetFetchResponsePartition(
            partition_index=0, committed_offset=offset, metadata="", error_code=0
        )
        return (OffsetFetchResponseTopic(name="t", partitions=(row,)),)

    async def list_offsets(self, request: KafkaRequest) -> KafkaAnswer:
        row = ListedPartition(partition_index=0, error_code=0, offset=self.end)
        answer = ListOffsetsResponse(topics=(ListedTopic(name="t", partitions=(row,)),))
        return (encoded(answer, request.api_version, is_flexible=False),)

    def found(
        self, port: int, *, watched_s: float = 3.0, nap: Callable[[], None] = lambda: None
    ) -> list[Finding]:
        """Return what doctor says; ``nap`` is what happens between two looks."""
        state = LeaderIsrAndControllerEpoch(LeaderAndIsr(1, (1,), 4, 1), 1)
        row = DescribedPartition(T0, None, ReplicaAssignment((1,)), state)
        cluster = ExaminedCluster(
            registrations={1: BrokerInfo(1, (EndPoint("PLAINTEXT", "127.0.0.1", port),))},
            settings={1: {}},
            served=ServedCluster(partitions=[row]),
            watched_s=watched_s,
        )

        def sleep(_: float) -> None:
            self.naps += 1
            nap()

        return list(check_groups(cluster, sleep))


@pytest.fixture
def broker() -> Coordinator:
    return Coordinator()


@pytest.fixture
def port(broker: Coordinator) -> Iterator[int]:
    apis = [
        KafkaApi(KafkaApiKey.LIST_GROUPS, 4, 4, broker.list_groups),
        KafkaApi(KafkaApiKey.DESCRIBE_GROUPS, 5, 5, broker.describe),
        KafkaApi(KafkaApiKey.OFFSET_FETCH, 8, 8, broker.fetch),
        KafkaApi(KafkaApiKey.LIST_OFFSETS, 5, 5, broker.list_offsets),
    ]
    listener = KafkaListener("127.0.0.1", 0, apis)
    listener.start()
    yield listener.port
    listener.close(0.1)


def test_a_group_that_commits_nothing_while_records_wait_is_named(
    broker: Coordinator, port: int
) -> None:
    broker.groups = {"stuck one": ("Stable", 7), "read all": ("Stable", 10), "gone": ("Empty", 0)}
    (finding,) = broker.found(port)
    assert finding.severity is Severity.WARNING
    assert finding.message == (
        "group stuck one has members, and 3 records for them in 1 partition (t-0), but it committed"
        " nothing there for 3 s"
    )
    assert "groups describe 'stuck one'`" in finding.remedy
    assert finding.facts == {"lag": 3, "partitions": ["t-0"]}


def test_a_group_that_has_never_committed_is_named_if_records_arrive(
    broker: Coordinator, port: int
) -> None:
    broker.groups = {"new": ("Stable", -1)}

    def arrive() -> None:
        broker.end += 2

    (finding,) = broker.found(port, nap=arrive)
    assert finding.message == (
        "group new has members, and has never committed anything, although 6 records for them in 1"
        " partition (t-0) arrived within 3 s: when it starts again, it begins where"
        " auto.offset.reset says"
    )
    assert broker.found(port) == [], "nothing arrives"
    assert broker.found(port, nap=lambda: broker.groups.update(new=("Stable", broker.end))) == []


def test_a_group_that_rebalances_without_end_is_named_too(broker: Coordinator, port: int) -> None:
    broker.groups = {"g": ("PreparingRebalance", 7)}
    assert [finding.subject for finding in broker.found(port)] == ["group g"]


@pytest.mark.parametrize("then", [("Stable", 8), ("Empty", 7)])
def test_a_group_that_commits_or_whose_members_leave_is_not_watched_any_longer(
    broker: Coordinator, port: int, then: tuple[str, int]
) -> None:
    broker.groups = {"g": ("Stable", 7)}
    assert broker.found(port, nap=lambda: broker.groups.update(g=then)) == []
    assert broker.naps == 1


def test_a_group_that_has_read_all_costs_no_time(broker: Coordinator, port: int) -> None:
    broker.groups = {"g": ("Stable", 10)}
    assert broker.found(port) == []
    assert broker.naps == 0


def test_no_group_is_watched_without_time(broker: Coordinator, port: int) -> None:
    broker.groups = {"g": ("Stable", 7)}
    assert broker.found(port, watched_s=0.0) == []


def test_a_broker_that_does_not_tell_its_groups_is_named(broker: Coordinator, port: int) -> None:
    broker.error = Errors.COORDINATOR_LOAD_IN_PROGRESS
    (finding,) = broker.found(port)
    assert finding.message.startswith("the groups of broker 1 are not examined: ")
