"""Members of a group that wait, are silent, come back or leave; and the positions they need."""

from __future__ import annotations

import pytest

from regent.core.coordinator.group.group_loading import LoadedGroup
from regent.core.coordinator.group.group_metadata import COMPLETING_REBALANCE, EMPTY, STABLE
from regent.core.coordinator.group.group_metadata_manager import GroupConfig
from regent.core.coordinator.group.group_rebalances import NEW_MEMBER_JOIN_TIMEOUT_MS
from regent.core.coordinator.group.group_records import StoredGroup, StoredMember
from regent.core.errors import Errors
from regent.core.model import TopicPartition
from regent.core.protocol.groups import (
    NO_MEMBER_ID,
    CommitOffsets,
    JoinGroup,
    LeaveGroup,
    LeaveGroupResult,
    LeavingMember,
    OffsetAndMetadata,
    SupportedProtocol,
    SyncGroup,
)
from regent.core.protocol.messages.groups import (
    DescribedGroupMember,
    JoinGroupResponse,
    JoinGroupResponseMember,
    SyncGroupResponse,
)
from tests.core.coordinator.group_stage import SESSION_MS, GroupBroker
from tests.support.world import NO_DELAY, subscription

MINUTE_MS = 60_000
RANGE = (SupportedProtocol("range", b""),)


def leading() -> GroupBroker:
    broker = GroupBroker()
    broker.lead()
    return broker


def test_a_new_member_whose_client_is_gone_is_removed_while_its_first_request_waits():
    """Otherwise it stays for ever, and each later generation waits for it (KAFKA-7610)."""
    broker = leading()
    slow = NEW_MEMBER_JOIN_TIMEOUT_MS * 3
    (first,) = broker.ask_to_join(rebalance_ms=slow, session_ms=slow)
    answers = broker.ask_to_join(rebalance_ms=slow)
    broker.pass_time(SESSION_MS)
    assert answers == []  # it need not say anything for longer than its session
    assert len(broker.group.members) == 2
    broker.pass_time(NEW_MEMBER_JOIN_TIMEOUT_MS - SESSION_MS)
    assert answers == [
        JoinGroupResponse(error_code=Errors.UNKNOWN_MEMBER_ID, member_id=NO_MEMBER_ID)
    ]
    assert list(broker.group.members) == [first.member_id]


def test_a_member_that_joins_again_keeps_its_place_while_its_request_waits():
    """Its session ends meanwhile, for it sends no heartbeat. Only a new member may be gone."""
    broker = leading()
    slow = SESSION_MS * 5
    (leader,) = broker.ask_to_join(rebalance_ms=slow, session_ms=slow)
    joined = broker.ask_to_join(rebalance_ms=slow)
    broker.ask_to_join(member_id=leader.member_id, rebalance_ms=slow, session_ms=slow)
    (member,) = joined
    broker.ask_to_join(rebalance_ms=slow)
    answers = broker.ask_to_join(member_id=member.member_id, rebalance_ms=slow)
    broker.pass_time(SESSION_MS * 2)
    assert answers == []
    assert member.member_id in broker.group.members


def test_a_static_member_that_comes_back_still_leads_its_group():
    broker = leading()
    former = broker.join("static")
    broker.sync(former, {former.member_id: b"all"}, "static")
    broker.replicate()
    answers = broker.ask_to_join("static")
    broker.replicate()
    (back,) = answers
    assert back.member_id != former.member_id
    assert broker.group.leader_id == back.leader == back.member_id
    assert back.skip_assignment  # it knows that it leads, and that nothing has to be assigned


def test_the_assignment_of_a_static_leader_that_came_back_is_that_of_its_group():
    """If its group knew it by its former id, all would wait for an assignment for ever."""
    broker = leading()
    former = broker.join("static")
    broker.ask_to_join("static")  # before it was told its assignment: a rebalance begins
    (leader_id,) = broker.group.members
    assert broker.group.leader_id == leader_id != former.member_id
    (joined,) = broker.ask_to_join("static", member_id=leader_id)
    told = broker.sync(joined, {leader_id: b"all"}, "static")
    broker.replicate()
    assert [answer.assignment for answer in told] == [b"all"]


def test_only_unneeded_positions_expire():
    """Those in subscribed topics stay while their group is stable, however old they are."""
    broker = GroupBroker(
        GroupConfig(group_initial_rebalance_delay_ms=0, offsets_retention_minutes=60)
    )
    broker.lead()
    used, unused = TopicPartition("used", 0), TopicPartition("unused", 0)
    joined = broker.join(metadata=subscription("used"))
    broker.sync(joined, {joined.member_id: b"all"})
    broker.replicate()
    for topic_partition in (used, unused):
        position = OffsetAndMetadata(5, commit_timestamp_ms=broker.now_ms)
        broker.ask(
            CommitOffsets("g", {topic_partition: position}, joined.member_id, joined.generation_id)
        )
    broker.replicate()
    for _ in range(60 * MINUTE_MS // (SESSION_MS // 2)):
        broker.pass_time(SESSION_MS // 2)
        assert broker.beat(joined) is Errors.NONE
    assert broker.coordinator.manager.expire([broker.group]) == 1
    broker.replicate()
    assert list(broker.group.offsets.committed) == [used]


# --- joining again --------------------------------------------------------------------------------


def pair(broker: GroupBroker) -> tuple[JoinGroupResponse, JoinGroupResponse]:
    """Return a leader and another member of generation 2; both have their assignments."""
    first = broker.join()
    broker.sync(first, {first.member_id: b"all"})
    broker.replicate()
    joining = broker.ask_to_join()
    (leader,) = broker.ask_to_join(member_id=first.member_id)
    (other,) = joining
    broker.sync(other)
    broker.sync(leader, {leader.member_id: b"1", other.member_id: b"2"})
    broker.replicate()
    assert broker.group.state is STABLE
    return leader, other


def test_a_member_that_joins_again_unchanged_gets_the_present_generation():
    """The answer to its earlier request was lost. A leader wants a rebalance."""
    broker = leading()
    leader, other = pair(broker)
    assert broker.ask_to_join(member_id=other.member_id) == [other]
    assert broker.group.state is STABLE
    assert broker.ask_to_join(member_id=leader.member_id) == []
    assert broker.ask_to_join(member_id=other.member_id)[0].generation_id == 3
    assert broker.group.state is COMPLETING_REBALANCE
    (again,) = broker.ask_to_join(member_id=leader.member_id)
    assert (again.generation_id, len(again.members)) == (3, 2)


def test_a_member_that_joins_again_with_another_subscription_wants_a_rebalance():
    broker = leading()
    leader, other = pair(broker)
    joining = broker.ask_to_join(member_id=other.member_id, metadata=b"changed")
    assert joining == []
    (told,) = broker.ask_to_join(member_id=leader.member_id)
    assert (
        JoinGroupResponseMember(
            member_id=other.member_id, group_instance_id=None, metadata=b"changed"
        )
        in told.members
    )
    assert [answer.generation_id for answer in joining] == [3]


def test_a_member_that_joins_again_changes_its_timeouts():
    broker = leading()
    leader, other = pair(broker)
    broker.ask_to_join(
        member_id=other.member_id, session_ms=6_000, rebalance_ms=70_000, metadata=b"x"
    )
    member = broker.group.members[other.member_id]
    assert (member.session_timeout_ms, member.rebalance_timeout_ms) == (6_000, 70_000)
    assert broker.group.rebalance_timeout_ms == 70_000
    broker.ask_to_join(member_id=leader.member_id)
    broker.pass_time(5_999)
    assert other.member_id in broker.group.members
    broker.pass_time(1)
    assert other.member_id not in broker.group.members


def test_a_request_to_join_that_is_repeated_takes_the_place_of_the_one_that_waits():
    broker = leading()
    leader, other = pair(broker)
    first = broker.ask_to_join(member_id=other.member_id, metadata=b"x")
    second = broker.ask_to_join(member_id=other.member_id, metadata=b"x")
    assert first == [
        JoinGroupResponse(error_code=Errors.REBALANCE_IN_PROGRESS, member_id=other.member_id)
    ]
    assert second == []
    broker.ask_to_join(member_id=leader.member_id)
    assert [answer.generation_id for answer in second] == [3]


def test_a_member_of_a_group_that_forgot_it_must_join_as_a_new_one():
    broker = leading()
    unknown = [JoinGroupResponse(error_code=Errors.UNKNOWN_MEMBER_ID, member_id="gone")]
    assert broker.ask_to_join(member_id="gone") == unknown
    assert "g" not in broker.coordinator.manager.groups
    joined = broker.join()
    broker.ask(LeaveGroup("g", (LeavingMember(joined.member_id),)))
    assert broker.group.state is EMPTY
    assert broker.ask_to_join(member_id="gone") == unknown
    (left,) = broker.ask(LeaveGroup("other", (LeavingMember("m"),)))
    assert left == LeaveGroupResult(Errors.NONE, ((LeavingMember("m"), Errors.UNKNOWN_MEMBER_ID),))


@pytest.mark.parametrize(("kind", "protocols"), [("", RANGE), ("consumer", ()), ("connect", RANGE)])
def test_a_member_without_a_protocol_that_its_group_has_is_refused(
    kind: str, protocols: tuple[SupportedProtocol, ...]
):
    broker = leading()
    if kind == "connect":
        broker.join()
    request = JoinGroup(
        "g", "", None, "c", "/h", SESSION_MS, SESSION_MS, kind, protocols, requires_member_id=False
    )
    assert broker.ask(request) == [
        JoinGroupResponse(error_code=Errors.INCONSISTENT_GROUP_PROTOCOL, member_id="")
    ]


# --- SyncGroup ------------------------------------------------------------------------------------


def test_an_assignment_is_only_for_a_member_of_its_generation_and_protocol():
    broker = leading()
    _, other = pair(broker)
    name = other.member_id
    told = SyncGroupResponse(
        error_code=Errors.NONE, protocol_type="consumer", protocol_name="range", assignment=b"2"
    )
    unknown, inconsistent = Errors.UNKNOWN_MEMBER_ID, Errors.INCONSISTENT_GROUP_PROTOCOL
    for request, answer in (
        (SyncGroup("g", 2, name), told),
        (SyncGroup("g", 2, name, None, "consumer", "range", needs_protocol=True), told),
        (SyncGroup("g", 1, name), SyncGroupResponse(error_code=Errors.ILLEGAL_GENERATION)),
        (SyncGroup("g", 2, "gone"), SyncGroupResponse(error_code=unknown)),
        (SyncGroup("none", 2, name), SyncGroupResponse(error_code=unknown)),
        (SyncGroup("g", 2, name, None, "connect"), SyncGroupResponse(error_code=inconsistent)),
        (SyncGroup("g", 2, name, None, None, "sticky"), SyncGroupResponse(error_code=inconsistent)),
        (
            SyncGroup("g", 2, name, None, "consumer", needs_protocol=True),
            SyncGroupResponse(error_code=inconsistent),
        ),
    ):
        assert broker.ask(request) == [answer]
    broker.ask_to_join()
    preparing = SyncGroupResponse(error_code=Errors.REBALANCE_IN_PROGRESS)
    assert broker.ask(SyncGroup("g", 2, name)) == [preparing]


def test_a_member_that_asks_again_for_its_assignment_keeps_its_session():
    broker = leading()
    leader, other = pair(broker)
    broker.pass_time(SESSION_MS - 1)
    assert broker.sync(other)[0].assignment == b"2"
    broker.beat(leader)
    broker.pass_time(SESSION_MS - 1)
    assert other.member_id in broker.group.members
    broker.pass_time(1)
    assert other.member_id not in broker.group.members


def test_members_are_asked_to_join_again_while_their_partition_is_read():
    """They wait there; and their heartbeats are taken, for their sessions begin again."""
    broker = GroupBroker()
    broker.coordinator.manager.on_elected(0, 0, 0)
    joined = JoinGroupResponse(error_code=Errors.NONE, member_id="m", generation_id=1)
    assert broker.sync(joined) == [SyncGroupResponse(error_code=Errors.REBALANCE_IN_PROGRESS)]
    assert broker.beat(joined) is Errors.NONE
    loading = Errors.COORDINATOR_LOAD_IN_PROGRESS
    assert broker.ask_to_join() == [JoinGroupResponse(error_code=loading, member_id="")]
    assert broker.ask(LeaveGroup("g", (LeavingMember("m"),))) == [LeaveGroupResult(loading)]


# --- static members that come back ----------------------------------------------------------------


def test_a_static_member_that_comes_back_keeps_its_assignment_without_a_rebalance():
    broker = leading()
    first = broker.join()
    joining = broker.ask_to_join("static")
    (leader,) = broker.ask_to_join(member_id=first.member_id)
    (former,) = joining
    broker.sync(former, {}, "static")
    broker.sync(leader, {leader.member_id: b"1", former.member_id: b"2"})
    broker.replicate()
    answers = broker.ask_to_join("static")
    assert answers == []
    broker.replicate()
    (back,) = answers
    assert (back.generation_id, back.leader) == (2, leader.member_id)
    assert not back.skip_assignment
    assert broker.sync(back, {}, "static")[0].assignment == b"2"
    assert broker.beat(leader) is Errors.NONE
    assert list(broker.group.members) == [leader.member_id, back.member_id]


def test_a_static_member_that_comes_back_with_other_protocols_wants_a_rebalance():
    broker = leading()
    (former,) = broker.ask_to_join("static", protocols=("range", "sticky"))
    broker.sync(former, {former.member_id: b"all"}, "static")
    broker.replicate()
    (back,) = broker.ask_to_join("static", protocols=("sticky", "range"))
    assert (back.generation_id, back.protocol_name) == (2, "sticky")


def test_the_place_of_a_static_member_is_its_former_one_when_the_new_id_cannot_be_stored():
    broker = leading()
    former = broker.join("static")
    broker.sync(former, {former.member_id: b"all"}, "static")
    broker.replicate()
    answers = broker.ask_to_join("static", rebalance_ms=50_000)
    _, respond = broker.log.appends[-1]
    respond(Errors.NOT_ENOUGH_REPLICAS, -1)
    (refused,) = answers
    assert (refused.error_code, refused.member_id) == (Errors.COORDINATOR_NOT_AVAILABLE, "")
    assert list(broker.group.members) == [former.member_id]
    assert broker.group.leader_id == former.member_id
    assert broker.group.static_members == {"static": former.member_id}
    assert broker.group.members[former.member_id].rebalance_timeout_ms == SESSION_MS
    assert broker.sync(former, {}, "static")[0].assignment == b"all"


def test_requests_of_the_former_self_of_a_static_member_are_fenced_while_they_wait():
    broker = leading()
    former = broker.join("static")
    synchronising = broker.sync(former, {}, "static")
    broker.ask_to_join("static")
    fenced = SyncGroupResponse(error_code=Errors.FENCED_INSTANCE_ID)
    assert synchronising == [fenced]
    (member_id,) = broker.group.members
    broker.ask_to_join()
    joining = broker.ask_to_join("other")
    waiting = next(m for m in broker.group.members if m.startswith("other"))
    broker.ask_to_join("other")
    assert joining == [JoinGroupResponse(error_code=Errors.FENCED_INSTANCE_ID, member_id=waiting)]
    assert member_id in broker.group.members


@pytest.mark.parametrize("can_skip", [True, False])
def test_only_clients_that_support_it_learn_that_they_lead_without_a_rebalance(can_skip: bool):
    """Below version 9 of JoinGroup a restarted leader must not believe that it leads (KIP-814)."""
    broker = leading()
    former = broker.join("static")
    broker.sync(former, {former.member_id: b"all"}, "static")
    broker.replicate()
    request = JoinGroup(
        *("g", "", "static", "c", "/h", SESSION_MS, SESSION_MS, "consumer"),
        RANGE,
        can_skip_assignment=can_skip,
    )
    answers = broker.ask(request)
    broker.replicate()
    (back,) = answers
    assert back.leader == (back.member_id if can_skip else former.member_id)
    assert (back.skip_assignment, len(back.members)) == (can_skip, int(can_skip))


# --- another coordinator --------------------------------------------------------------------------


def stored(name: str, instance_id: str | None = None) -> StoredMember:
    return StoredMember(
        name, instance_id, "client", "/host", 50_000, SESSION_MS, subscription("t"), name.encode()
    )


def test_a_loaded_group_continues_unchanged():
    broker = GroupBroker()
    broker.coordinator.manager.on_elected(0, 3, 3)
    group = StoredGroup("consumer", 5, "range", "b", 0, (stored("a"), stored("b", "static")))
    broker.coordinator.on_loaded(0, 3, {"g": LoadedGroup(group)})
    assert broker.group.static_members == {"static": "b"}
    assert broker.group.rebalance_timeout_ms == 50_000
    assert broker.group.is_subscribed_to("t")
    assert not broker.group.is_subscribed_to("u")
    (answer,) = broker.ask_to_join(member_id="a", metadata=subscription("t"))
    assert (answer.generation_id, answer.leader) == (5, "b")
    (described,) = broker.coordinator.describe("g").members[1:]
    assert described == DescribedGroupMember(
        member_id="b",
        group_instance_id="static",
        client_id="client",
        client_host="/host",
        member_metadata=subscription("t"),
        member_assignment=b"b",
    )


def test_a_loaded_group_with_too_many_members_is_rebalanced_until_it_has_few():
    broker = GroupBroker(GroupConfig(group_initial_rebalance_delay_ms=0, group_max_size=2))
    broker.coordinator.manager.on_elected(0, 3, 3)
    group = StoredGroup("consumer", 5, "range", "a", 0, tuple(map(stored, "abc")))
    small = StoredGroup("consumer", 5, "range", "d", 0, tuple(map(stored, "de")))
    broker.coordinator.on_loaded(0, 3, {"g": LoadedGroup(group), "small": LoadedGroup(small)})
    assert broker.coordinator.manager.groups["small"].state is STABLE
    metadata = subscription("t")
    waiting = [broker.ask_to_join(member_id=name, metadata=metadata) for name in "cb"]
    (refused,) = broker.ask_to_join(member_id="a", metadata=metadata)
    assert refused == JoinGroupResponse(
        error_code=Errors.GROUP_MAX_SIZE_REACHED, member_id=NO_MEMBER_ID
    )
    assert [[answer.generation_id for answer in told] for told in waiting] == [[6], [6]]
    assert list(broker.group.members) == ["b", "c"]


@pytest.mark.parametrize("way", ["resigned", "elected", "stopped"])
def test_a_waiting_member_gets_an_answer_when_the_coordinator_forgets_the_group(way: str):
    broker = leading()
    joined = broker.join()
    synchronising = broker.sync(joined)
    if way == "resigned":
        broker.coordinator.on_resigned(0, 1)
    elif way == "elected":  # the end of the former leadership was not told
        broker.coordinator.on_elected(0, 5, 5)
        assert broker.log.loads == [(0, 0), (0, 5)]
    else:
        broker.coordinator.stop()
    assert synchronising == [SyncGroupResponse(error_code=Errors.NOT_COORDINATOR)]
    assert not broker.coordinator.manager.groups
    appends = len(broker.log.appends)
    broker.pass_time(SESSION_MS * 9)
    assert len(broker.log.appends) == appends
    if way == "stopped":
        assert broker.beat(joined) is Errors.COORDINATOR_NOT_AVAILABLE


def test_the_record_of_a_group_has_all_that_its_next_coordinator_needs():
    broker = GroupBroker(NO_DELAY)
    broker.lead()
    broker.now_ms = 7
    (joined,) = broker.ask_to_join("static", rebalance_ms=50_000, metadata=b"m")
    broker.now_ms = 9
    broker.sync(joined, {joined.member_id: b"all"}, "static")
    ((record,), _) = broker.log.appends[-1]
    name = joined.member_id
    member = StoredMember(name, "static", "c", "/h", 50_000, SESSION_MS, b"m", b"all")
    assert record.value == StoredGroup("consumer", 1, "range", name, 7, (member,))
