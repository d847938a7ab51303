"""Members of a group that wait, are silent, come back or leave; and the positions they need."""

from __future__ import annotations

from regent.core.coordinator.group.group_metadata_manager import GroupConfig
from regent.core.coordinator.group.group_rebalances import NEW_MEMBER_JOIN_TIMEOUT_MS
from regent.core.errors import Errors
from regent.core.model import TopicPartition
from regent.core.protocol.groups import (
    NO_MEMBER_ID,
    CommitOffsets,
    JoinGroupResult,
    OffsetAndMetadata,
)
from tests.core.coordinator.group_stage import SESSION_MS, Broker, subscription

MINUTE_MS = 60_000


def leading() -> Broker:
    broker = Broker()
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
    assert answers == [JoinGroupResult(Errors.UNKNOWN_MEMBER_ID, NO_MEMBER_ID)]
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
    assert broker.group.leader_id == back.leader_id == back.member_id
    assert back.skips_assignment  # it knows that it leads, and that nothing has to be assigned


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


def test_only_positions_that_nobody_needs_expire():
    """Those in subscribed topics stay while their group is stable, however old they are."""
    broker = Broker(GroupConfig(group_initial_rebalance_delay_ms=0, offsets_retention_minutes=60))
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
