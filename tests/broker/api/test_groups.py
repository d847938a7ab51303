"""The requests of groups, in every version, to a real coordinator over real replicas."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest
from kafka.protocol.admin import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    ListGroupsRequest,
)
from kafka.protocol.consumer import (
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
)
from kafka.protocol.metadata import FindCoordinatorRequest

from regent.broker.api.coordinator_requests import CoordinatorRequests
from regent.broker.api.find_coordinator import find_coordinator_apis
from regent.broker.api.group_offsets import group_offset_apis
from regent.broker.api.groups import group_apis
from regent.broker.api.old_clients import ZooKeeperOffsets
from regent.core.coordinator.partition_for import CoordinatorPartitions
from regent.core.errors import ApiError, Errors, SessionExpiredError
from regent.core.topic_validation import GROUP_METADATA_TOPIC
from regent.zk.stores.consumer_offsets import ZkConsumerOffsets
from tests.broker.api.canned_replicas import cached
from tests.support.creations import Creations, explain
from tests.support.fake_zookeeper import Call, FakeZooKeeper, FakeZooKeeperServer
from tests.support.led_groups import LedGroups
from tests.transport.kafka.wire import ask

NONE, UNKNOWN_TOPIC, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR = 0, 3, 15, 16
OFFSET_METADATA_TOO_LARGE, INVALID_GROUP_ID = 12, 24
UNKNOWN_MEMBER_ID, INVALID_REQUEST, NON_EMPTY_GROUP, MEMBER_ID_REQUIRED = 25, 42, 68, 79
GROUP_SUBSCRIBED_TO_TOPIC = 86
ORDERS = b"\0\0\0\0\0\1\0\6orders\xff\xff\xff\xff"  # a subscription to it


class Group:
    """A group with one member, whose requests have the versions that a test chooses."""

    def __init__(self, undo: ExitStack) -> None:
        self.led = led = LedGroups(undo)
        requests = CoordinatorRequests(led.service)
        self.creations = Creations()
        self.apis = [
            *group_apis(requests),
            *group_offset_apis(requests, led.cache, self.zookeeper_offsets(undo)),
            *find_coordinator_apis(led.partitions, led.cache, self.creations, explain),
        ]
        self.group_id, self.member_id = "g", ""

    def zookeeper_offsets(self, undo: ExitStack) -> ZooKeeperOffsets:
        self.zookeeper = FakeZooKeeper(FakeZooKeeperServer())
        calls = undo.enter_context(ThreadPoolExecutor(2))
        return ZooKeeperOffsets(ZkConsumerOffsets(self.zookeeper), calls, max_metadata=10)

    def join(self, version: int, member_id: str = "", instance_id: str | None = None) -> Any:
        request = JoinGroupRequest(
            group_id="g",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            member_id=member_id,
            group_instance_id=instance_id,
            protocol_type="consumer",
            protocols=[JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=ORDERS)],
            reason="a test",
        )
        return ask(self.apis, request, version)

    def sync(self, version: int = 5) -> Any:
        assignment = SyncGroupRequest.SyncGroupRequestAssignment(
            member_id=self.member_id, assignment=b"all"
        )
        request = SyncGroupRequest(
            group_id="g",
            generation_id=1,
            member_id=self.member_id,
            protocol_type="consumer",
            protocol_name="range",
            assignments=[assignment],
        )
        return ask(self.apis, request, version)

    def be_stable(self) -> None:
        self.member_id = self.join(3).member_id
        assert self.sync().error_code == NONE

    def commit(
        self, version: int, *partitions: int, metadata: str = "m", **of_member: Any
    ) -> dict[int, int]:
        topic = OffsetCommitRequest.OffsetCommitRequestTopic
        row = topic.OffsetCommitRequestPartition
        rows = [
            row(
                partition_index=number,
                committed_offset=7,
                committed_leader_epoch=3,
                commit_timestamp=-1,
                committed_metadata=metadata,
            )
            for number in partitions
        ]
        request = OffsetCommitRequest(
            group_id=self.group_id,
            retention_time_ms=-1,
            topics=[topic(name="orders", partitions=rows)],
            **{"generation_id_or_member_epoch": -1, "member_id": "", **of_member},
        )
        (answer,) = ask(self.apis, request, version).topics
        return {row.partition_index: row.error_code for row in answer.partitions}

    def fetch(self, version: int, partitions: list[int] | None) -> tuple[int, list[Any]]:
        """Return the error and the partitions of the only topic."""
        old, new = OffsetFetchRequest.OffsetFetchRequestTopic, OffsetFetchRequest
        topics = None
        if partitions is not None and version < 8:
            topics = [old(name="orders", partition_indexes=partitions)]
        group = new.OffsetFetchRequestGroup
        groups = None
        if partitions is not None:
            groups = [group.OffsetFetchRequestTopics(name="orders", partition_indexes=partitions)]
        request = OffsetFetchRequest(
            group_id=self.group_id,
            topics=topics,
            groups=[group(group_id="g", member_epoch=-1, topics=groups)],
            require_stable=False,
        )
        answer = ask(self.apis, request, version)
        if version >= 8:
            (answer,) = answer.groups
        error = answer.error_code if version >= 2 else NONE
        return error, [row for topic in answer.topics for row in topic.partitions]


@pytest.fixture
def group() -> Iterator[Group]:
    with ExitStack() as undo:
        yield Group(undo)


@pytest.mark.parametrize("version", range(10))
def test_a_member_joins_and_leads(version: int, group: Group):
    joined = group.join(version)
    if version >= 4:
        assert joined.error_code == MEMBER_ID_REQUIRED
        joined = group.join(version, joined.member_id)
    assert (joined.error_code, joined.generation_id, joined.protocol_name) == (0, 1, "range")
    assert joined.leader == joined.member_id
    assert joined.member_id.startswith("client-")
    assert [(row.member_id, row.metadata) for row in joined.members] == [(joined.member_id, ORDERS)]


@pytest.mark.parametrize("version", [5, 9])
def test_a_static_member_is_named_by_its_instance(version: int, group: Group):
    joined = group.join(version, instance_id="i")
    assert joined.member_id.startswith("i-")
    assert [row.group_instance_id for row in joined.members] == ["i"]


@pytest.mark.parametrize("version", range(10))
def test_a_refused_join_has_no_protocol(version: int, group: Group):
    refused = group.join(version, "stranger")
    assert (refused.error_code, refused.member_id) == (UNKNOWN_MEMBER_ID, "stranger")
    assert refused.protocol_name == (None if version >= 7 else "")


@pytest.mark.parametrize("version", range(6))
def test_a_member_gets_its_assignment(version: int, group: Group):
    group.member_id = group.join(3).member_id
    answer = group.sync(version)
    assert (answer.error_code, bytes(answer.assignment)) == (NONE, b"all")
    if version >= 5:
        assert (answer.protocol_type, answer.protocol_name) == ("consumer", "range")


@pytest.mark.parametrize("version", range(5))
def test_a_member_lives(version: int, group: Group):
    group.be_stable()
    lives = HeartbeatRequest(group_id="g", generation_id=1, member_id=group.member_id)
    assert ask(group.apis, lives, version).error_code == NONE


@pytest.mark.parametrize("version", range(6))
def test_a_member_leaves(version: int, group: Group):
    group.be_stable()
    member = LeaveGroupRequest.MemberIdentity(member_id=group.member_id, reason="done")
    request = LeaveGroupRequest(group_id="g", member_id=group.member_id, members=[member])
    left, again = (ask(group.apis, request, version) for _ in range(2))
    assert left.error_code == NONE
    if version >= 3:
        assert [row.error_code for row in left.members] == [NONE]
        assert [row.error_code for row in again.members] == [UNKNOWN_MEMBER_ID]
    else:
        assert again.error_code == UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("version", range(1, 10))
def test_positions_are_stored_where_there_are_partitions(version: int, group: Group):
    assert group.commit(version, 0, 9) == {0: NONE, 9: UNKNOWN_TOPIC}
    error, rows = group.fetch(8, [0, 1])
    assert error == NONE
    assert [(row.partition_index, row.committed_offset) for row in rows] == [(0, 7), (1, -1)]
    assert rows[0].committed_leader_epoch == (3 if version >= 6 else -1)


@pytest.mark.parametrize("version", range(1, 10))
def test_positions_are_read(version: int, group: Group):
    group.commit(8, 0)
    error, (row,) = group.fetch(version, [0])
    assert (error, row.error_code, row.committed_offset, row.metadata) == (NONE, NONE, 7, "m")
    if version >= 5:
        assert row.committed_leader_epoch == 3
    if version >= 2:
        error, rows = group.fetch(version, None)
        assert [row.partition_index for row in rows] == [0]


@pytest.mark.parametrize("version", range(1, 10))
def test_positions_are_not_here_when_the_coordinator_is_not(version: int, group: Group):
    group.led.lead(1, leader=2)
    error, rows = group.fetch(version, [0])
    if version >= 2:
        assert (error, rows) == (NOT_COORDINATOR, [])
    else:
        assert [row.error_code for row in rows] == [NOT_COORDINATOR]


def test_the_positions_of_version_0_are_in_zookeeper(group: Group):
    assert group.commit(0, 0, 9) == {0: NONE, 9: UNKNOWN_TOPIC}
    _, rows = group.fetch(0, [0, 1, 9])
    assert [(row.partition_index, row.error_code, row.committed_offset) for row in rows] == [
        (0, NONE, 7),
        (1, UNKNOWN_TOPIC, -1),
        (9, UNKNOWN_TOPIC, -1),
    ]
    node = group.zookeeper.get("/consumers/g/offsets/orders/0")
    assert node is not None
    assert node.data == b"7"
    _, rows = group.fetch(1, [0])
    assert [row.committed_offset for row in rows] == [-1]


def test_too_much_metadata_is_refused_in_version_0_too(group: Group):
    assert group.commit(0, 0, metadata="x" * 10) == {0: NONE}
    assert group.commit(0, 0, metadata="\U0001f600" * 6) == {0: OFFSET_METADATA_TOO_LARGE}


@pytest.mark.parametrize("group_id", ["", ".", "..", "a/b", "a\0b"])
def test_a_group_that_cannot_be_a_znode_has_no_positions_in_zookeeper(group_id: str, group: Group):
    group.group_id = group_id
    assert group.commit(0, 0, 9) == {0: INVALID_GROUP_ID, 9: UNKNOWN_TOPIC}
    _, rows = group.fetch(0, [0])
    assert [row.error_code for row in rows] == [INVALID_GROUP_ID]


def test_clients_ask_again_when_zookeeper_has_not_answered(group: Group):
    def expire(call: Call) -> None:
        raise SessionExpiredError("expired")

    group.zookeeper.hook = expire
    assert group.commit(0, 0) == {0: COORDINATOR_NOT_AVAILABLE}
    _, rows = group.fetch(0, [0])
    assert [row.error_code for row in rows] == [COORDINATOR_NOT_AVAILABLE]


def test_only_positions_in_unconsumed_topics_are_deleted(group: Group):
    group.be_stable()
    group.commit(8, 0, member_id=group.member_id, generation_id_or_member_epoch=1)
    topic = OffsetDeleteRequest.OffsetDeleteRequestTopic
    rows = [topic.OffsetDeleteRequestPartition(partition_index=number) for number in (0, 9)]
    request = OffsetDeleteRequest(group_id="g", topics=[topic(name="orders", partitions=rows)])
    answer = ask(group.apis, request, 0)
    assert answer.error_code == NONE
    errors = [row.error_code for row in answer.topics[0].partitions]
    assert errors == [GROUP_SUBSCRIBED_TO_TOPIC, UNKNOWN_TOPIC]


@pytest.mark.parametrize("version", range(6))
def test_groups_are_described(version: int, group: Group):
    group.be_stable()
    request = DescribeGroupsRequest(groups=["g", "none"], include_authorized_operations=True)
    stable, dead = ask(group.apis, request, version).groups
    assert (stable.group_state, stable.protocol_type, stable.protocol_data) == (
        "Stable",
        "consumer",
        "range",
    )
    (member,) = stable.members
    assert (member.client_id, member.client_host) == ("client", "/127.0.0.1")
    assert (bytes(member.member_metadata), bytes(member.member_assignment)) == (ORDERS, b"all")
    assert (dead.error_code, dead.group_state, dead.members) == (NONE, "Dead", [])


@pytest.mark.parametrize("version", range(6))
def test_groups_are_listed(version: int, group: Group):
    group.be_stable()
    request = ListGroupsRequest(states_filter=["stable"], types_filter=["classic"])
    (listed,) = ask(group.apis, request, version).groups
    assert (listed.group_id, listed.protocol_type) == ("g", "consumer")
    if version >= 4:
        assert listed.group_state == "Stable"
        others = ListGroupsRequest(states_filter=["Empty"])
        assert ask(group.apis, others, version).groups == []


@pytest.mark.parametrize("version", range(3))
def test_groups_without_members_are_deleted(version: int, group: Group):
    group.be_stable()
    request = DeleteGroupsRequest(groups_names=["g", "g", "none"])
    results = ask(group.apis, request, version).results
    assert [(row.group_id, row.error_code) for row in results] == [
        ("g", NON_EMPTY_GROUP),
        ("none", 69),
    ]


@pytest.mark.parametrize("version", range(7))
def test_the_coordinator_is_the_leader_of_the_partition(version: int, group: Group):
    request = FindCoordinatorRequest(key="g", key_type=0, coordinator_keys=["g"])
    found = ask(group.apis, request, version)
    if version >= 4:
        (found,) = found.coordinators
    assert (found.error_code, found.node_id, found.host, found.port) == (0, 1, "127.0.0.1", 9092)
    assert group.creations.wanted == []


@pytest.mark.parametrize("version", range(7))
def test_the_topic_is_created_when_the_first_client_asks(version: int):
    cache, creations = cached(), Creations()
    partitions = CoordinatorPartitions(GROUP_METADATA_TOPIC, cache, 50)
    apis = find_coordinator_apis(partitions, cache, creations, explain)
    request = FindCoordinatorRequest(key="g", key_type=0, coordinator_keys=["g"])
    found = ask(apis, request, version)
    if version >= 4:
        (found,) = found.coordinators
    assert (found.error_code, found.node_id) == (COORDINATOR_NOT_AVAILABLE, -1)
    assert creations.wanted == ["__consumer_offsets"]


@pytest.mark.parametrize("version", range(1, 7))
def test_the_client_gets_the_reason_for_a_missing_coordinator(version: int):
    cache, refusal = cached(), ApiError(Errors.INVALID_REPLICATION_FACTOR, "2 brokers")
    creations = Creations({GROUP_METADATA_TOPIC: refusal})
    partitions = CoordinatorPartitions(GROUP_METADATA_TOPIC, cache, 50)
    apis = find_coordinator_apis(partitions, cache, creations, explain)
    request = FindCoordinatorRequest(key="g", key_type=0, coordinator_keys=["g"])
    found = ask(apis, request, version)
    if version >= 4:
        (found,) = found.coordinators
    assert found.error_code == COORDINATOR_NOT_AVAILABLE
    assert found.error_message == "no __consumer_offsets: 2 brokers"


@pytest.mark.parametrize(
    ("version", "key_type", "error"),
    [(5, 1, COORDINATOR_NOT_AVAILABLE), (5, 2, INVALID_REQUEST), (6, 2, 15), (6, 3, 42)],
)
def test_other_kinds_of_keys_have_no_coordinator(
    version: int, key_type: int, error: int, group: Group
):
    request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=["k"])
    (found,) = ask(group.apis, request, version).coordinators
    assert found.error_code == error
