"""How long a group waits for whom, and what members are told meanwhile."""

from __future__ import annotations

import pytest

from regent.core.coordinator.group.group_loading import LoadedGroup
from regent.core.coordinator.group.group_metadata import (
    COMPLETING_REBALANCE,
    EMPTY,
    PREPARING_REBALANCE,
    STABLE,
    GroupState,
)
from regent.core.coordinator.group.group_metadata_manager import GroupConfig
from regent.core.coordinator.group.group_records import StoredGroup, StoredMember
from regent.core.errors import Errors
from regent.core.protocol.groups import (
    NO_MEMBER_ID,
    Heartbeat,
    LeaveGroup,
    LeavingMember,
    SyncGroup,
)
from regent.core.protocol.messages.groups import JoinGroupResponse, SyncGroupResponse
from tests.core.coordinator.group_stage import SESSION_MS, GroupBroker

DELAY_MS = 3_000


def leading(config: GroupConfig | None = None) -> GroupBroker:
    broker = GroupBroker() if config is None else GroupBroker(config)
    broker.lead()
    return broker


def stable(broker: GroupBroker, rebalance_ms: int = SESSION_MS) -> JoinGroupResponse:
    """Return the only member, which has its assignment."""
    (member,) = broker.ask_to_join(rebalance_ms=rebalance_ms)
    broker.sync(member, {member.member_id: b"all"})
    broker.replicate()
    assert broker.group.state is STABLE
    return member


def rejoin(
    broker: GroupBroker, member: JoinGroupResponse, rebalance_ms: int = SESSION_MS
) -> list[JoinGroupResponse]:
    return broker.ask_to_join(member_id=member.member_id, rebalance_ms=rebalance_ms)


def two_members(broker: GroupBroker) -> tuple[JoinGroupResponse, JoinGroupResponse]:
    """Return a leader and another member of generation 2, which wait for their assignment."""
    first = stable(broker)
    other = broker.ask_to_join()
    leader = rejoin(broker, first)
    assert broker.group.state is COMPLETING_REBALANCE
    return leader[0], other[0]


def keep(broker: GroupBroker, *members: JoinGroupResponse, for_ms: int) -> list[Errors]:
    """Let time pass in which members send heartbeats; return the last answers."""
    answers: list[Errors] = []
    for _ in range(for_ms // 1_000):
        broker.pass_time(1_000)
        answers = [broker.beat(member) for member in members]
    return answers


# --- joining --------------------------------------------------------------------------------------


def test_the_first_members_wait_for_others_and_longer_for_those_that_come():
    """KIP-134."""
    broker = leading(GroupConfig(group_initial_rebalance_delay_ms=DELAY_MS))
    first = broker.ask_to_join()
    broker.pass_time(DELAY_MS - 1)
    second = broker.ask_to_join()
    broker.pass_time(1)
    assert first == second == []
    broker.pass_time(DELAY_MS - 1)
    assert first == second == []
    broker.pass_time(1)
    assert [answer.generation_id for answer in (*first, *second)] == [1, 1]


def test_the_first_members_wait_for_others_no_longer_than_for_one_that_joins_again():
    broker = leading(GroupConfig(group_initial_rebalance_delay_ms=DELAY_MS))
    rebalance_ms = DELAY_MS * 2 + 1_000
    first = broker.ask_to_join(rebalance_ms=rebalance_ms)
    for _ in range(2):
        broker.pass_time(DELAY_MS - 1)
        broker.ask_to_join(rebalance_ms=rebalance_ms)
        broker.pass_time(1)
        assert first == []
    broker.ask_to_join(rebalance_ms=rebalance_ms)
    broker.pass_time(999)
    assert first == []
    broker.pass_time(1)
    (answer,) = first
    assert len(answer.members) == 4


def test_the_slowest_member_decides_how_long_a_group_waits():
    broker = leading()
    slow = SESSION_MS * 3
    member = stable(broker, rebalance_ms=slow)
    joining = broker.ask_to_join(rebalance_ms=SESSION_MS)
    assert keep(broker, member, for_ms=slow - 1_000) == [Errors.REBALANCE_IN_PROGRESS]
    assert joining == []
    broker.pass_time(1_000)
    (joined,) = joining
    assert (joined.generation_id, joined.leader) == (2, joined.member_id)
    assert list(broker.group.members) == [joined.member_id]
    assert broker.beat(member) is Errors.UNKNOWN_MEMBER_ID


def test_a_group_does_not_wait_when_all_have_joined():
    broker = leading()
    member = stable(broker)
    joining = broker.ask_to_join()
    (leader,) = rejoin(broker, member)
    (joined,) = joining
    assert leader.generation_id == joined.generation_id == 2
    assert leader.leader == joined.leader == member.member_id
    assert [m.member_id for m in leader.members] == [member.member_id, joined.member_id]
    assert joined.members == ()


def test_a_group_waits_for_a_member_that_was_given_an_id_until_its_session_ends():
    """KIP-394."""
    broker = leading()
    member = stable(broker, rebalance_ms=SESSION_MS * 3)
    (given,) = broker.ask_to_join(requires_member_id=True, session_ms=SESSION_MS)
    assert given.error_code is Errors.MEMBER_ID_REQUIRED
    assert broker.group.state is STABLE
    joining = broker.ask_to_join(session_ms=SESSION_MS * 3)
    answers = rejoin(broker, member, rebalance_ms=SESSION_MS * 3)
    broker.pass_time(SESSION_MS - 1)
    assert joining == answers == []
    broker.pass_time(1)
    assert [answer.generation_id for answer in (*joining, *answers)] == [2, 2]


@pytest.mark.parametrize("leaves", [False, True])
def test_a_member_joins_with_the_id_that_it_was_given_or_leaves_with_it(leaves: bool):
    broker = leading()
    member = stable(broker)
    (given,) = broker.ask_to_join(requires_member_id=True)
    joining = broker.ask_to_join()
    answers = rejoin(broker, member)
    assert joining == answers == []
    if leaves:
        (left,) = broker.ask(LeaveGroup("g", (LeavingMember(given.member_id),)))
        assert [error for _, error in left.members] == [Errors.NONE]
    else:
        (joined,) = broker.ask_to_join(member_id=given.member_id)
        assert joined.member_id == given.member_id
    assert [answer.generation_id for answer in (*joining, *answers)] == [2, 2]
    assert (given.member_id in broker.group.members) is not leaves
    broker.pass_time(SESSION_MS - 1)  # the timer of the id is stopped
    assert (given.member_id in broker.group.members) is not leaves


def test_a_group_takes_as_many_members_as_it_may_have():
    broker = leading(GroupConfig(group_initial_rebalance_delay_ms=0, group_max_size=2))
    first, second = two_members(broker)
    refused = JoinGroupResponse(error_code=Errors.GROUP_MAX_SIZE_REACHED, member_id=NO_MEMBER_ID)
    assert broker.ask_to_join() == [refused]
    rejoin(broker, second)
    assert broker.ask_to_join() == [refused]
    assert list(broker.group.members) == [first.member_id, second.member_id]


@pytest.mark.parametrize(
    ("session_ms", "is_valid"), [(5_999, False), (6_000, True), (9_000, True), (9_001, False)]
)
def test_a_session_is_neither_too_short_nor_too_long(session_ms: int, is_valid: bool):
    config = GroupConfig(group_initial_rebalance_delay_ms=0, group_max_session_timeout_ms=9_000)
    (answer,) = leading(config).ask_to_join(session_ms=session_ms)
    assert answer.error_code is (Errors.NONE if is_valid else Errors.INVALID_SESSION_TIMEOUT)


def test_members_have_a_protocol_in_common_which_most_prefer():
    broker = leading()
    first = broker.ask_to_join(protocols=("range", "sticky", "cooperative"))[0]
    assert first.protocol_name == "range"
    (refused,) = broker.ask_to_join(protocols=("own",))
    assert refused.error_code is Errors.INCONSISTENT_GROUP_PROTOCOL
    second = broker.ask_to_join(protocols=("sticky", "cooperative", "own"))
    third = broker.ask_to_join(protocols=("cooperative", "sticky"))
    broker.ask_to_join(
        member_id=first.member_id, protocols=("range", "cooperative", "sticky", "more")
    )
    assert [answer.protocol_name for answer in (*second, *third)] == ["cooperative"] * 2
    (refused,) = broker.ask_to_join(protocols=("range", "more"))
    assert refused.error_code is Errors.INCONSISTENT_GROUP_PROTOCOL


def test_another_member_leads_when_the_leader_does_not_join_again():
    broker = leading()
    leader, other = two_members(broker)
    third = broker.ask_to_join()
    rejoin(broker, other)
    keep(broker, leader, for_ms=SESSION_MS)
    (joined,) = third
    assert joined.leader == other.member_id
    assert list(broker.group.members) == [other.member_id, joined.member_id]


def test_a_static_member_that_is_away_has_a_place_in_the_next_generation():
    broker = leading()
    away = broker.ask_to_join("static", session_ms=SESSION_MS * 4)[0]
    joining = broker.ask_to_join()
    broker.pass_time(SESSION_MS)  # the phase of joining ends
    (joined,) = joining
    assert list(broker.group.members) == [away.member_id, joined.member_id]
    assert joined.leader == joined.member_id, "a member that is away cannot assign"


def test_only_static_members_that_are_all_away_begin_no_generation():
    broker = leading()
    away = broker.ask_to_join("static", session_ms=SESSION_MS * 3)[0]
    broker.sync(away, {away.member_id: b"all"}, "static")
    broker.replicate()
    visitor = broker.ask_to_join(session_ms=SESSION_MS)
    (member_id,) = broker.group.members.keys() - {away.member_id}
    broker.ask(LeaveGroup("g", (LeavingMember(member_id),)))
    assert visitor == [
        JoinGroupResponse(error_code=Errors.UNKNOWN_MEMBER_ID, member_id=NO_MEMBER_ID)
    ]
    broker.pass_time(SESSION_MS)
    assert (broker.group.generation_id, broker.group.state) == (1, PREPARING_REBALANCE)
    (back,) = broker.ask_to_join("static", member_id=away.member_id)
    assert back.generation_id == 2


# --- synchronising --------------------------------------------------------------------------------


def test_members_that_do_not_ask_for_their_assignment_are_removed():
    """KAFKA-12890: others would wait for a leader that is alive and assigns nothing."""
    broker = leading()
    leader, other = two_members(broker)
    answers = broker.sync(other)
    assert keep(broker, leader, for_ms=SESSION_MS - 1_000) == [Errors.NONE]
    assert answers == []
    broker.pass_time(1_000)
    assert [answer.error_code for answer in answers] == [Errors.REBALANCE_IN_PROGRESS]
    assert list(broker.group.members) == [other.member_id]
    assert broker.beat(leader) is Errors.UNKNOWN_MEMBER_ID
    (again,) = rejoin(broker, other)
    assert (again.generation_id, again.leader) == (3, other.member_id)


def test_a_member_that_does_not_ask_for_its_assignment_is_removed_from_a_stable_group():
    broker = leading()
    leader, other = two_members(broker)
    broker.sync(leader, {leader.member_id: b"1", other.member_id: b"2"})
    broker.replicate()
    assert broker.group.state is STABLE
    assert keep(broker, leader, other, for_ms=SESSION_MS - 1_000) == [Errors.NONE] * 2
    broker.pass_time(1_000)
    assert list(broker.group.members) == [leader.member_id]
    assert broker.beat(leader) is Errors.REBALANCE_IN_PROGRESS


def test_no_member_is_removed_when_all_have_asked_for_their_assignment():
    broker = leading()
    leader, other = two_members(broker)
    told = broker.sync(other)
    broker.sync(leader, {leader.member_id: b"1", other.member_id: b"2"})
    assert told == []
    broker.replicate()
    assert [answer.assignment for answer in told] == [b"2"]
    assert keep(broker, leader, other, for_ms=SESSION_MS * 3) == [Errors.NONE] * 2
    assert broker.group.state is STABLE


def test_the_time_to_ask_for_an_assignment_is_that_of_its_generation():
    """The next generation begins shortly before: its members have all their time."""
    broker = leading()
    leader, other = two_members(broker)
    keep(broker, leader, other, for_ms=SESSION_MS - 1_000)
    answers = (broker.ask_to_join(), rejoin(broker, leader), rejoin(broker, other))
    assert [[answer.generation_id for answer in told] for told in answers] == [[3]] * 3
    broker.pass_time(1_000)
    assert len(broker.group.members) == 3
    broker.pass_time(SESSION_MS - 1_000)
    assert not broker.group.members


def test_a_group_whose_assignment_cannot_be_stored_is_rebalanced():
    broker = leading()
    leader, other = two_members(broker)
    waiting = (broker.sync(other), broker.sync(leader, {leader.member_id: b"1"}))
    _, respond = broker.log.appends[-1]
    respond(Errors.NOT_ENOUGH_REPLICAS, -1)
    refused = Errors.COORDINATOR_NOT_AVAILABLE
    assert [[answer.error_code for answer in told] for told in waiting] == [[refused]] * 2
    assert broker.group.state is PREPARING_REBALANCE
    assert {member.assignment for member in broker.group.members.values()} == {b""}


def test_an_assignment_that_is_stored_late_is_not_that_of_a_later_generation():
    broker = leading()
    leader, other = two_members(broker)
    broker.sync(leader, {leader.member_id: b"old"})
    _, stored = broker.log.appends[-1]
    third = broker.ask_to_join()
    again = [*rejoin(broker, leader)]
    again += rejoin(broker, other)
    assert len(third) == 1
    stored(Errors.NONE, 7)
    assert broker.group.state is COMPLETING_REBALANCE
    assert {member.assignment for member in broker.group.members.values()} == {b""}


def test_a_member_has_a_whole_session_after_an_answer_that_it_waited_long_for():
    """Its session may have ended while it waited, and must begin again: it may be gone since."""
    broker = leading()
    slow = SESSION_MS * 5
    leader = stable(broker, rebalance_ms=slow)
    joining = broker.ask_to_join(rebalance_ms=slow)
    (leader,) = rejoin(broker, leader, rebalance_ms=slow)
    (other,) = joining
    told = broker.sync(other)
    keep(broker, leader, for_ms=SESSION_MS * 2)
    broker.sync(leader, {other.member_id: b"2"})
    broker.replicate()
    assert [answer.assignment for answer in told] == [b"2"]
    assert keep(broker, leader, for_ms=SESSION_MS) == [Errors.REBALANCE_IN_PROGRESS]
    assert list(broker.group.members) == [leader.member_id]


def test_a_member_that_waited_long_for_a_generation_is_removed_if_it_is_silent_then():
    broker = leading()
    slow = SESSION_MS * 5
    leader = stable(broker, rebalance_ms=slow)
    joining = broker.ask_to_join(rebalance_ms=slow)
    (leader,) = rejoin(broker, leader, rebalance_ms=slow)
    (other,) = joining
    third = broker.ask_to_join(rebalance_ms=slow)
    waiting = rejoin(broker, other, rebalance_ms=slow)
    keep(broker, leader, for_ms=SESSION_MS * 2)
    assert waiting == third == []
    (again,) = rejoin(broker, leader, rebalance_ms=slow)
    assert [answer.generation_id for answer in (again, *waiting, *third)] == [3, 3, 3]
    keep(broker, leader, for_ms=SESSION_MS)
    assert other.member_id not in broker.group.members


def test_a_group_waits_again_for_static_members_that_are_away_and_no_longer_than_before():
    broker = leading()
    away = broker.ask_to_join("static", session_ms=SESSION_MS * 9)[0]
    broker.sync(away, {away.member_id: b"all"}, "static")
    broker.replicate()
    broker.ask_to_join()
    (visitor,) = broker.group.members.keys() - {away.member_id}
    broker.ask(LeaveGroup("g", (LeavingMember(visitor),)))
    broker.pass_time(SESSION_MS)  # nobody has joined: the group waits again
    joining = broker.ask_to_join()
    broker.pass_time(SESSION_MS - 1)
    assert joining == []
    broker.pass_time(1)
    (joined,) = joining
    assert (joined.generation_id, joined.leader) == (2, joined.member_id)


def test_a_group_continues_when_the_last_missing_member_leaves():
    broker = leading()
    leader, other = two_members(broker)
    joining = broker.ask_to_join()
    waiting = rejoin(broker, other)
    broker.ask(LeaveGroup("g", (LeavingMember(leader.member_id),)))
    assert [answer.generation_id for answer in (*joining, *waiting)] == [3, 3]


def test_a_removed_member_that_waits_for_its_assignment_gets_an_error():
    broker = leading()
    _, other = two_members(broker)
    told = broker.sync(other)
    broker.ask(LeaveGroup("g", (LeavingMember(other.member_id),)))
    assert [answer.error_code for answer in told] == [Errors.UNKNOWN_MEMBER_ID]


def test_a_static_member_that_comes_back_must_ask_for_its_assignment_as_its_former_self():
    broker = leading()
    leader = stable(broker)
    joining = broker.ask_to_join("static", session_ms=SESSION_MS * 9)
    (leader,) = rejoin(broker, leader)
    (former,) = joining
    broker.sync(leader, {former.member_id: b"2"})
    broker.replicate()
    answers = broker.ask_to_join("static", session_ms=SESSION_MS * 9)
    broker.replicate()
    (back,) = answers
    assert keep(broker, leader, for_ms=SESSION_MS - 1_000) == [Errors.NONE]
    assert list(broker.group.members) == [leader.member_id, back.member_id]
    broker.pass_time(1_000)
    assert list(broker.group.members) == [leader.member_id]


@pytest.mark.parametrize("is_stored", [True, False])
def test_a_static_member_that_came_back_takes_part_in_a_rebalance_that_began_meanwhile(
    is_stored: bool,
):
    """What becomes of the write of its new id is nothing to the rebalance."""
    broker = leading()
    leader = stable(broker)
    joining = broker.ask_to_join("static")
    (leader,) = rejoin(broker, leader)
    (former,) = joining
    broker.sync(former, {}, "static")
    broker.sync(leader, {former.member_id: b"2"})
    broker.replicate()
    answers = broker.ask_to_join("static")
    _, respond = broker.log.appends[-1]
    third = broker.ask_to_join()
    respond(Errors.NONE if is_stored else Errors.NOT_ENOUGH_REPLICAS, 9)
    assert answers == []
    (again,) = rejoin(broker, leader)
    (back,) = answers
    assert [answer.generation_id for answer in (again, back, *third)] == [3, 3, 3]
    assert former.member_id != back.member_id
    assert back.member_id in broker.group.members


def test_a_static_member_that_comes_back_before_its_assignment_lets_the_others_join_again():
    """KAFKA-9801: otherwise they would wait for an assignment to its former id."""
    broker = leading()
    leader = stable(broker)
    joining = broker.ask_to_join("static")
    (leader,) = rejoin(broker, leader)
    assert len(joining) == 1
    told = broker.sync(leader, {})
    back = broker.ask_to_join("static")
    assert [answer.error_code for answer in told] == [Errors.REBALANCE_IN_PROGRESS]
    (again,) = rejoin(broker, leader)
    assert [answer.generation_id for answer in (again, *back)] == [3, 3]


# --- heartbeats and members that go ---------------------------------------------------------------


def test_only_a_member_of_the_present_generation_is_alive():
    broker = leading()
    member = stable(broker)
    name = member.member_id
    requests = {
        Heartbeat("g", name, 1): Errors.NONE,
        Heartbeat("g", name, 0): Errors.ILLEGAL_GENERATION,
        Heartbeat("g", name, 2): Errors.ILLEGAL_GENERATION,
        Heartbeat("g", "other", 1): Errors.UNKNOWN_MEMBER_ID,
        Heartbeat("g", name, 1, "static"): Errors.UNKNOWN_MEMBER_ID,
        Heartbeat("other", name, 1): Errors.UNKNOWN_MEMBER_ID,
        Heartbeat("", name, 1): Errors.INVALID_GROUP_ID,
    }
    assert {request: broker.ask(request) for request in requests} == {
        request: [error] for request, error in requests.items()
    }


def test_a_silent_member_is_removed_when_its_session_ends():
    broker = leading()
    leader, other = two_members(broker)
    broker.sync(other)
    broker.sync(leader, {})
    broker.replicate()
    assert keep(broker, leader, for_ms=SESSION_MS - 1_000) == [Errors.NONE]
    assert keep(broker, leader, for_ms=1_000) == [Errors.REBALANCE_IN_PROGRESS]
    assert list(broker.group.members) == [leader.member_id]


def test_a_static_member_is_removed_by_its_name_and_a_former_one_is_fenced():
    broker = leading()
    former = broker.join("static")
    broker.sync(former, {former.member_id: b"all"}, "static")
    broker.replicate()
    answers = broker.ask_to_join("static")
    broker.replicate()
    (present,) = answers
    fenced = Errors.FENCED_INSTANCE_ID
    assert broker.ask(Heartbeat("g", former.member_id, 1, "static")) == [fenced]
    assert broker.ask(SyncGroup("g", 1, former.member_id, "static"))[0].error_code is fenced
    assert broker.ask_to_join("static", member_id=former.member_id)[0].error_code is fenced
    assert broker.ask(Heartbeat("g", present.member_id, 1, "static")) == [Errors.NONE]
    leaving = (LeavingMember(former.member_id, "static"), LeavingMember(NO_MEMBER_ID, "static"))
    (left,) = broker.ask(LeaveGroup("g", leaving))
    assert [error for _, error in left.members] == [fenced, Errors.NONE]
    assert not broker.group.static_members
    assert broker.group.state is EMPTY


def test_a_member_that_leaves_lets_the_others_rebalance_at_once():
    broker = leading()
    leader, other = two_members(broker)
    told = broker.sync(other)
    (left,) = broker.ask(LeaveGroup("g", (LeavingMember(leader.member_id),)))
    assert [error for _, error in left.members] == [Errors.NONE]
    assert [answer.error_code for answer in told] == [Errors.REBALANCE_IN_PROGRESS]
    (again,) = rejoin(broker, other)
    assert (again.generation_id, again.leader) == (3, other.member_id)


# --- another coordinator --------------------------------------------------------------------------


def test_requests_that_wait_are_answered_when_another_broker_coordinates():
    broker = leading()
    leader, other = two_members(broker)
    synchronising = broker.sync(other)
    joining = broker.ask_to_join()
    assert [answer.error_code for answer in synchronising] == [Errors.REBALANCE_IN_PROGRESS]
    (given,) = broker.ask_to_join(requires_member_id=True)
    assert given.error_code is Errors.MEMBER_ID_REQUIRED
    broker.coordinator.on_resigned(0, 1)
    assert [answer.error_code for answer in joining] == [Errors.NOT_COORDINATOR]
    assert broker.beat(leader) is Errors.NOT_COORDINATOR
    broker.pass_time(SESSION_MS * 10)
    assert len(broker.log.appends) == 1, "nothing is written for groups of another coordinator"


def test_groups_of_other_partitions_stay_when_a_partition_has_another_leader():
    broker = leading()
    member = stable(broker)
    broker.coordinator.manager.on_elected(1, 4, 4)
    broker.coordinator.on_loaded(1, 4, {"other": LoadedGroup()})
    broker.coordinator.on_resigned(1, 5)
    assert list(broker.coordinator.manager.groups) == ["g"]
    assert broker.beat(member) is Errors.NONE


def test_sessions_begin_when_a_group_was_read():
    broker = GroupBroker()
    members = tuple(
        StoredMember(name, None, "c", "/h", SESSION_MS, SESSION_MS, b"", name.encode())
        for name in ("a", "b")
    )
    stored = StoredGroup("consumer", 5, "range", "b", 0, members)
    broker.coordinator.manager.on_elected(0, 3, 3)
    broker.now_ms = SESSION_MS * 9
    broker.coordinator.on_loaded(0, 3, {"g": LoadedGroup(stored, {}, {})})
    assert (broker.group.state, broker.group.leader_id) == (STABLE, "b")
    assert [m.assignment for m in broker.group.members.values()] == [b"a", b"b"]
    broker.pass_time(SESSION_MS - 1)
    assert broker.ask(Heartbeat("g", "b", 5)) == [Errors.NONE]
    broker.pass_time(1)
    assert list(broker.group.members) == ["b"]


def test_what_the_members_of_a_group_tell_is_limited():
    told = b"x" * 100
    broker = leading(GroupConfig(group_initial_rebalance_delay_ms=0, group_max_bytes=300))
    first = broker.join("first", metadata=told)
    (again,) = broker.ask_to_join("first", metadata=told)  # a static member that comes back
    assert (first.error_code, again.error_code) == (Errors.NONE, Errors.NONE)
    broker.ask_to_join("second", metadata=told)
    (refused,) = broker.ask_to_join("third", metadata=b"y" * 200)
    assert refused.error_code is Errors.GROUP_MAX_SIZE_REACHED
    assert len(broker.group.members) == 2


@pytest.mark.parametrize("state", [STABLE, COMPLETING_REBALANCE, PREPARING_REBALANCE])
def test_a_member_that_tells_too_much_leaves_its_group_which_rebalances(state: GroupState):
    """Nobody else has its partitions until then."""
    broker = leading(GroupConfig(group_initial_rebalance_delay_ms=0, group_max_bytes=300))
    leader, other = two_members(broker)
    waiting: list[SyncGroupResponse] | list[JoinGroupResponse] = broker.sync(other)
    if state is not COMPLETING_REBALANCE:
        broker.sync(leader, {})
        broker.replicate()
        assert broker.group.state is STABLE
    if state is PREPARING_REBALANCE:
        waiting = broker.ask_to_join(member_id=other.member_id, metadata=b"x")
    assert broker.group.state is state
    (refused,) = broker.ask_to_join(member_id=other.member_id, metadata=b"x" * 300)
    assert refused == JoinGroupResponse(
        error_code=Errors.GROUP_MAX_SIZE_REACHED, member_id=NO_MEMBER_ID
    )
    assert len(waiting) == 1, "its earlier request is answered"
    assert broker.beat(leader) is Errors.REBALANCE_IN_PROGRESS
    (joined,) = rejoin(broker, leader)
    assert (joined.generation_id, len(joined.members)) == (leader.generation_id + 1, 1)


def test_an_id_is_forgotten_whose_member_tells_too_much():
    """The others do not wait for it."""
    broker = leading(GroupConfig(group_initial_rebalance_delay_ms=0, group_max_bytes=300))
    member = stable(broker)
    (given,) = broker.ask_to_join(requires_member_id=True)
    joining = broker.ask_to_join(metadata=b"new")
    answers = rejoin(broker, member)
    assert joining == answers == []
    broker.ask_to_join(member_id=given.member_id, metadata=b"x" * 300)
    assert [answer.generation_id for answer in (*joining, *answers)] == [2, 2]


def test_what_the_members_of_all_groups_tell_is_limited_and_is_free_again_when_they_leave():
    told = b"x" * 100
    config = GroupConfig(group_initial_rebalance_delay_ms=0, group_coordinator_max_bytes=150)
    broker = leading(config)
    joined = broker.join(metadata=told)
    assert joined.error_code is Errors.NONE
    (refused,) = broker.ask_to_join(metadata=told)
    assert refused.error_code is Errors.GROUP_MAX_SIZE_REACHED
    broker.coordinator.leave("g", [LeavingMember(joined.member_id)])
    assert broker.join(metadata=told).error_code is Errors.NONE
