"""Positions of groups: who may commit them, what is read, when they are deleted or expire."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from regent.core.coordinator.group.group_loading import LoadedGroup
from regent.core.coordinator.group.group_metadata_manager import GroupConfig
from regent.core.coordinator.group.group_offsets import CommittedOffset
from regent.core.coordinator.group.group_records import GroupKey, OffsetKey, StoredGroup
from regent.core.errors import Errors
from regent.core.model import TopicPartition
from regent.core.protocol.groups import (
    CommitOffsets,
    CompletedTransaction,
    CompleteTransactions,
    DeleteGroup,
    DeleteOffsets,
    DeleteOffsetsResult,
    DescribeGroup,
    FetchedOffset,
    FetchOffsets,
    LeaveGroup,
    LeavingMember,
    ListGroups,
    OffsetAndMetadata,
    VerifiedProducer,
)
from regent.core.protocol.messages.groups import (
    DescribedGroup,
    DescribedGroupMember,
    JoinGroupResponse,
    ListedGroup,
    ListGroupsResponse,
)
from tests.core.coordinator.group_stage import GroupBroker
from tests.support.world import NO_DELAY, subscription

MINUTE_MS = 60_000
RETENTION = replace(NO_DELAY, offsets_retention_minutes=60)
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
U0, U1 = TopicPartition("u", 0), TopicPartition("u", 1)
PRODUCER, OTHER = VerifiedProducer(7, 3), VerifiedProducer(8, 0)


def leading(config: GroupConfig = NO_DELAY) -> GroupBroker:
    broker = GroupBroker(config)
    broker.lead()
    return broker


def stable(broker: GroupBroker, *topics: str) -> JoinGroupResponse:
    """Return the only member, which has its assignment."""
    joined = broker.join(metadata=subscription(*topics))
    broker.sync(joined, {joined.member_id: b"all"})
    broker.replicate()
    return joined


def leave(broker: GroupBroker, joined: JoinGroupResponse) -> None:
    broker.ask(LeaveGroup("g", (LeavingMember(joined.member_id),)))
    broker.replicate()


def commit(
    broker: GroupBroker,
    positions: Mapping[TopicPartition, int],
    producer: VerifiedProducer | None = None,
    group: str = "g",
) -> list[Mapping[TopicPartition, Errors]]:
    """Commit positions of a client that is no member."""
    now_ms = broker.now_ms
    values = {
        tp: OffsetAndMetadata(offset, commit_timestamp_ms=now_ms)
        for tp, offset in positions.items()
    }
    return broker.ask(CommitOffsets(group, values, producer=producer))


def committed(broker: GroupBroker, *names: TopicPartition, group: str = "g") -> dict[str, int]:
    (answer,) = broker.ask(FetchOffsets(group, names or None))
    assert answer.error_code is Errors.NONE
    return {str(tp): row.offset for tp, row in answer.offsets.items()}


def end(
    broker: GroupBroker,
    producer: VerifiedProducer,
    offset: int,
    *,
    is_commit: bool,
    partition: int = 0,
) -> list[Errors]:
    ended = CompletedTransaction(partition, producer.producer_id, offset, is_commit)
    return list(broker.ask(CompleteTransactions((ended,)))[0])


# --- who may commit -------------------------------------------------------------------------------


def test_a_member_commits_in_its_generation():
    broker = leading()
    joined = stable(broker, "t")
    for member_id, generation_id, instance_id, error in (
        (joined.member_id, 1, None, Errors.NONE),
        (joined.member_id, 0, None, Errors.ILLEGAL_GENERATION),
        (joined.member_id, 2, None, Errors.ILLEGAL_GENERATION),
        (joined.member_id, -1, None, Errors.ILLEGAL_GENERATION),
        ("other", 1, None, Errors.UNKNOWN_MEMBER_ID),
        ("", -1, "static", Errors.UNKNOWN_MEMBER_ID),
        ("", -1, None, Errors.UNKNOWN_MEMBER_ID),
        ("", 0, None, Errors.UNKNOWN_MEMBER_ID),
    ):
        request = CommitOffsets("g", {T0: OffsetAndMetadata(5)}, member_id, generation_id)
        answers = broker.ask(replace(request, group_instance_id=instance_id))
        broker.replicate()
        assert answers == [{T0: error}], (member_id, generation_id, instance_id)


def test_a_member_commits_not_before_it_has_its_assignment():
    broker = leading()
    joined = broker.join(metadata=subscription("t"))
    request = CommitOffsets("g", {T0: OffsetAndMetadata(5)}, joined.member_id, 1)
    assert broker.ask(request) == [{T0: Errors.REBALANCE_IN_PROGRESS}]
    answers = broker.ask(replace(request, producer=PRODUCER))
    broker.replicate()
    assert answers == [{T0: Errors.NONE}]


def test_a_commit_prolongs_the_session_of_its_member_unless_it_is_part_of_a_transaction():
    broker = leading()
    joined = stable(broker, "t")
    request = CommitOffsets("g", {T0: OffsetAndMetadata(5)}, joined.member_id, 1)
    broker.pass_time(9_000)
    broker.ask(request)
    broker.pass_time(9_000)
    broker.ask(replace(request, producer=PRODUCER))
    broker.pass_time(999)
    assert list(broker.group.members) == [joined.member_id]
    broker.pass_time(1)
    assert not broker.group.members


def test_a_client_without_a_group_commits_if_it_names_no_generation():
    broker = leading()
    request = CommitOffsets("g", {T0: OffsetAndMetadata(5)})
    for generation_id in (0, 1):
        unknown = replace(request, generation_id=generation_id)
        assert broker.ask(unknown) == [{T0: Errors.ILLEGAL_GENERATION}]
    assert "g" not in broker.coordinator.manager.groups
    answers = broker.ask(request)
    broker.replicate()
    assert answers == [{T0: Errors.NONE}]
    assert committed(broker) == {"t-0": 5}
    in_transaction = replace(request, generation_id=1, member_id="m", producer=PRODUCER)
    assert broker.ask(replace(in_transaction, group_id="new")) == [{T0: Errors.UNKNOWN_MEMBER_ID}]
    assert "new" in broker.coordinator.manager.groups


def test_old_clients_get_an_error_that_they_know_while_a_partition_is_read():
    broker = GroupBroker()
    broker.coordinator.manager.on_elected(0, 0, 0)
    request = CommitOffsets("g", {T0: OffsetAndMetadata(5)}, producer=PRODUCER)
    assert broker.ask(request) == [{T0: Errors.COORDINATOR_LOAD_IN_PROGRESS}]
    old = replace(request, knows_loading=False)
    assert broker.ask(old) == [{T0: Errors.COORDINATOR_NOT_AVAILABLE}]


def test_a_position_with_too_much_metadata_is_refused_and_the_others_are_not():
    """Java counts a character beyond the basic plane as two."""
    broker = leading(replace(NO_DELAY, offset_metadata_max_bytes=4))
    texts = {T0: "four", T1: "fives", U0: "\U0001f600\U0001f600", U1: "\uffff" * 4}
    values = {tp: OffsetAndMetadata(n, metadata=text) for n, (tp, text) in enumerate(texts.items())}
    answers = broker.ask(CommitOffsets("g", values))
    broker.replicate()
    refused = {T1: Errors.OFFSET_METADATA_TOO_LARGE}
    assert answers == [{**dict.fromkeys(texts, Errors.NONE), **refused}]
    assert T1 not in broker.group.offsets.committed
    assert broker.ask(CommitOffsets("g", {T1: values[T1]})) == [refused]
    assert broker.coordinator.manager.commits == 3


# --- what is read ---------------------------------------------------------------------------------


def test_a_position_is_read_as_it_was_committed():
    broker = leading()
    value = OffsetAndMetadata(5, leader_epoch=3, metadata="why")
    broker.ask(CommitOffsets("g", {T0: value, U0: OffsetAndMetadata(9)}))
    assert committed(broker, T0) == {"t-0": -1}
    broker.replicate()
    (answer,) = broker.ask(FetchOffsets("g", (T0, T1)))
    assert answer.offsets == {
        T0: FetchedOffset(Errors.NONE, 5, 3, "why"),
        T1: FetchedOffset(Errors.NONE),
    }
    assert committed(broker) == {"t-0": 5, "u-0": 9}
    assert committed(broker, T0, group="other") == {"t-0": -1}
    assert committed(broker, group="other") == {}


def test_the_position_of_a_commit_that_failed_is_not_read():
    broker = leading()
    answers = commit(broker, {T0: 5})
    _, respond = broker.log.appends[-1]
    respond(Errors.NOT_ENOUGH_REPLICAS, -1)
    assert answers == [{T0: Errors.COORDINATOR_NOT_AVAILABLE}]
    assert committed(broker, T0) == {"t-0": -1}
    (answer,) = broker.ask(FetchOffsets("g", (T0,), require_stable=True))
    assert answer.offsets[T0].error_code is Errors.NONE, "nothing is under way any more"
    assert broker.coordinator.manager.commits == 0


@pytest.mark.parametrize("producer", [None, PRODUCER])
def test_a_position_that_may_change_soon_is_not_stable(producer: VerifiedProducer | None):
    """KIP-447."""
    broker = leading()
    commit(broker, {T0: 5, T1: 6})
    broker.replicate()
    commit(broker, {T0: 7}, producer)
    (answer,) = broker.ask(FetchOffsets("g", (T0, T1), require_stable=True))
    assert [row.error_code for row in answer.offsets.values()] == [
        Errors.UNSTABLE_OFFSET_COMMIT,
        Errors.NONE,
    ]
    assert committed(broker, T0, T1) == {"t-0": 5, "t-1": 6}


@pytest.mark.parametrize("is_commit", [True, False])
def test_positions_of_a_transaction_take_effect_with_its_own_marker(is_commit: bool):
    broker = leading()
    commit(broker, {T0: 5})
    commit(broker, {T0: 6}, PRODUCER)
    commit(broker, {T1: 7}, OTHER)
    commit(broker, {T0: 8}, PRODUCER, group="h")
    broker.replicate()
    assert end(broker, PRODUCER, 9, is_commit=is_commit, partition=1) == [Errors.NONE]
    assert committed(broker, T0, T1) == {"t-0": 5, "t-1": -1}
    assert end(broker, PRODUCER, 9, is_commit=is_commit) == [Errors.NONE]
    assert committed(broker, T0, T1) == {"t-0": 6 if is_commit else 5, "t-1": -1}
    assert committed(broker, T0, group="h") == {"t-0": 8 if is_commit else -1}
    assert list(broker.group.offsets.transactional) == [OTHER.producer_id]


def test_a_position_that_was_not_replicated_is_not_part_of_its_transaction():
    broker = leading()
    commit(broker, {T0: 5}, PRODUCER)
    broker.replicate()
    answers = commit(broker, {T0: 6, T1: 7}, PRODUCER)
    _, respond = broker.log.appends[-1]
    respond(Errors.NOT_ENOUGH_REPLICAS, -1)
    assert set(answers[0].values()) == {Errors.COORDINATOR_NOT_AVAILABLE}
    (answer,) = broker.ask(FetchOffsets("g", (T1,), require_stable=True))
    assert answer.offsets[T1].error_code is Errors.NONE
    end(broker, PRODUCER, 9, is_commit=True)
    assert committed(broker, T0, T1) == {"t-0": 5, "t-1": -1}


@pytest.mark.parametrize("is_replicated", [True, False])
@pytest.mark.parametrize("is_refused_first", [True, False])
def test_a_refused_commit_of_a_former_instance_takes_nothing_from_the_transaction(
    is_replicated: bool, is_refused_first: bool
):
    """It has the same producer id and an older epoch, which only the log knows to be old."""
    broker = leading()
    answers = commit(broker, {T0: 100}, PRODUCER)
    _, respond = broker.log.appends[-1]
    if is_replicated:
        respond(Errors.NONE, 0)
    refused = commit(broker, {T0: 50}, PRODUCER._replace(producer_epoch=1))
    _, refuse = broker.log.appends[-1]
    if is_refused_first:
        refuse(Errors.INVALID_PRODUCER_EPOCH, -1)
    if not is_replicated:
        respond(Errors.NONE, 0)
    if not is_refused_first:
        refuse(Errors.INVALID_PRODUCER_EPOCH, -1)
    assert (answers, refused) == ([{T0: Errors.NONE}], [{T0: Errors.INVALID_PRODUCER_EPOCH}])
    (answer,) = broker.ask(FetchOffsets("g", (T0,), require_stable=True))
    assert answer.offsets[T0].error_code is Errors.UNSTABLE_OFFSET_COMMIT
    end(broker, PRODUCER, 9, is_commit=True)
    assert committed(broker) == {"t-0": 100}
    (answer,) = broker.ask(FetchOffsets("g", (T0,), require_stable=True))
    assert answer.offsets[T0].error_code is Errors.NONE, "nothing is left of the transaction"


def test_of_two_commits_in_a_transaction_the_one_with_the_later_record_counts():
    broker = leading()
    for offset in (5, 6):
        commit(broker, {T0: offset}, PRODUCER)
    (_, first), (_, second) = broker.log.appends
    second(Errors.NONE, 1)
    first(Errors.NONE, 0)
    end(broker, PRODUCER, 9, is_commit=True)
    assert committed(broker) == {"t-0": 6}


def test_a_commit_that_becomes_known_after_the_end_of_its_transaction_is_not_of_the_next():
    broker = leading()
    commit(broker, {T0: 5}, PRODUCER)
    end(broker, PRODUCER, 9, is_commit=False)
    broker.replicate()
    commit(broker, {T1: 6}, PRODUCER)
    broker.replicate()
    end(broker, PRODUCER, 19, is_commit=True)
    assert committed(broker) == {"t-1": 6}


def test_a_transaction_without_positions_is_forgotten():
    broker = leading()
    commit(broker, {T0: 5}, PRODUCER)
    _, respond = broker.log.appends[-1]
    respond(Errors.NOT_ENOUGH_REPLICAS, -1)
    assert not broker.group.offsets.transactional


def test_the_commit_with_the_later_record_counts_in_either_order_of_arrival():
    broker = leading()
    for offset in (5, 6):
        commit(broker, {T0: offset})
    (_, first), (_, second) = broker.log.appends
    second(Errors.NONE, 1)
    first(Errors.NONE, 0)
    assert committed(broker) == {"t-0": 6}


def test_a_transaction_does_not_replace_a_position_with_a_later_record():
    broker = leading()
    commit(broker, {T0: 5}, PRODUCER)
    commit(broker, {T0: 6})
    broker.replicate()
    end(broker, PRODUCER, 9, is_commit=True)
    assert committed(broker) == {"t-0": 6}


# --- deletions ------------------------------------------------------------------------------------


def test_positions_of_topics_that_a_group_consumes_are_not_deleted():
    broker = leading()
    commit(broker, {T0: 5, U0: 6})
    broker.replicate()
    stable(broker, "t")
    answers = broker.ask(DeleteOffsets("g", (T0, U0)))
    broker.replicate()
    errors = {T0: Errors.GROUP_SUBSCRIBED_TO_TOPIC, U0: Errors.NONE}
    assert answers == [DeleteOffsetsResult(Errors.NONE, errors)]
    assert committed(broker) == {"t-0": 5}
    assert broker.coordinator.manager.deletions == 1
    assert broker.ask(DeleteOffsets("other", (T0,))) == [
        DeleteOffsetsResult(Errors.GROUP_ID_NOT_FOUND)
    ]


def test_a_group_of_which_it_is_not_known_what_it_consumes_keeps_its_positions():
    broker = leading()
    commit(broker, {T0: 5})
    broker.replicate()
    joined = broker.join(metadata=b"not a subscription")
    (answer,) = broker.ask(DeleteOffsets("g", (T0,)))
    assert answer.partitions == {T0: Errors.GROUP_SUBSCRIBED_TO_TOPIC}
    leave(broker, joined)
    broker.ask(DeleteOffsets("g", (T0,)))
    broker.replicate()
    assert "g" not in broker.coordinator.manager.groups


def test_only_a_group_without_members_is_deleted_with_its_positions():
    broker = leading()
    joined = stable(broker, "t")
    assert broker.ask(DeleteGroup("g")) == [Errors.NON_EMPTY_GROUP]
    leave(broker, joined)
    commit(broker, {T0: 5})
    commit(broker, {T1: 6}, PRODUCER)
    broker.replicate()
    answers = broker.ask(DeleteGroup("g"))
    records, _ = broker.log.appends[-1]
    assert records == [(OffsetKey("g", T0), None), (GroupKey("g"), None)]
    assert committed(broker) == {"t-0": 5}, "the tombstones are not replicated yet"
    broker.replicate()
    assert answers == [Errors.NONE]
    assert "g" not in broker.coordinator.manager.groups
    assert broker.ask(DeleteGroup("g")) == [Errors.GROUP_ID_NOT_FOUND]
    end(broker, PRODUCER, 99, is_commit=True)
    assert committed(broker) == {}


def test_a_deletion_that_was_not_written_keeps_the_positions_of_open_transactions():
    broker = leading()
    commit(broker, {T0: 5})
    commit(broker, {T1: 6}, PRODUCER)
    broker.replicate()
    answers = broker.ask(DeleteGroup("g"))
    _, respond = broker.log.appends[-1]
    respond(Errors.NOT_ENOUGH_REPLICAS, -1)
    assert answers == [Errors.COORDINATOR_NOT_AVAILABLE]
    end(broker, PRODUCER, 9, is_commit=True)
    assert committed(broker) == {"t-0": 5, "t-1": 6}


def test_positions_whose_records_follow_the_deletion_of_their_group_are_kept():
    broker = leading()
    commit(broker, {T0: 5})
    commit(broker, {T0: 6}, PRODUCER)
    broker.replicate()
    deleted = broker.ask(DeleteGroup("g"))
    answers = commit(broker, {T1: 7}, PRODUCER)
    (_, delete), (_, write) = broker.log.appends[-2:]
    write(Errors.NONE, 21)
    delete(Errors.NONE, 20)
    assert (deleted, answers) == ([Errors.NONE], [{T1: Errors.NONE}])
    end(broker, PRODUCER, 29, is_commit=True)
    assert committed(broker) == {"t-1": 7}


def test_a_deletion_holds_for_a_transaction_that_ended_before_it_and_is_told_later():
    broker = leading()
    commit(broker, {T0: 5})
    broker.replicate()
    commit(broker, {T0: 6}, PRODUCER)
    broker.ask(DeleteOffsets("g", (T0,)))
    (_, write), (_, delete) = broker.log.appends[-2:]
    delete(Errors.NONE, 20)
    end(broker, OTHER, 14, is_commit=True)
    write(Errors.NONE, 10)
    end(broker, PRODUCER, 15, is_commit=True)
    assert committed(broker) == {}


def test_a_group_that_has_only_positions_of_open_transactions_is_deleted():
    broker = leading()
    commit(broker, {T1: 6}, PRODUCER)
    broker.replicate()
    assert broker.ask(DeleteGroup("g")) == [Errors.NONE]
    assert "g" not in broker.coordinator.manager.groups


def test_positions_of_partitions_that_were_deleted_are_forgotten_wherever_they_are():
    broker = leading()
    commit(broker, {T0: 5, U0: 6})
    broker.replicate()
    staged = commit(broker, {T0: 7})
    commit(broker, {T0: 8, U0: 9}, PRODUCER)
    commit(broker, {T0: 10}, OTHER)
    under_way = [respond for _, respond in broker.log.appends[-3:]]
    broker.coordinator.manager.on_partitions_deleted({T0})
    records, _ = broker.log.appends[-1]
    assert records == [(OffsetKey("g", T0), None)]
    for is_replicated in (False, True):
        for respond in under_way if is_replicated else ():
            respond(Errors.NONE, 50)
        assert committed(broker) == {"u-0": 6}
        (answer,) = broker.ask(FetchOffsets("g", (T0, U0), require_stable=True))
        assert [row.error_code for row in answer.offsets.values()] == [
            Errors.NONE,
            Errors.UNSTABLE_OFFSET_COMMIT,
        ]
    assert staged == [{T0: Errors.NONE}]
    assert list(broker.group.offsets.transactional) == [PRODUCER.producer_id]
    appends = len(broker.log.appends)
    broker.coordinator.manager.on_partitions_deleted({T1})
    assert len(broker.log.appends) == appends, "no group has a position there"


def test_the_last_position_of_a_client_without_a_group_goes_with_all_that_is_known_of_it():
    broker = leading()
    commit(broker, {T0: 5, T1: 6})
    broker.replicate()
    broker.ask(DeleteOffsets("g", (T0,)))
    broker.replicate()
    assert committed(broker) == {"t-1": 6}
    broker.ask(DeleteOffsets("g", (T1,)))
    records, _ = broker.log.appends[-1]
    assert records == [(OffsetKey("g", T1), None)], "it has no record as a group"
    broker.replicate()
    assert "g" not in broker.coordinator.manager.groups


# --- expiry ---------------------------------------------------------------------------------------


def expire(broker: GroupBroker) -> int:
    count = broker.coordinator.manager.expire(list(broker.coordinator.manager.groups.values()))
    broker.replicate()
    return count


def test_positions_of_a_client_without_a_group_expire_some_time_after_their_commit():
    broker = leading(RETENTION)
    commit(broker, {T0: 5})
    broker.replicate()
    broker.pass_time(MINUTE_MS)
    commit(broker, {T1: 6})
    broker.replicate()
    broker.pass_time(59 * MINUTE_MS - 1)
    assert expire(broker) == 0
    broker.pass_time(1)
    assert expire(broker) == 1
    assert committed(broker) == {"t-1": 6}
    broker.pass_time(MINUTE_MS)
    assert expire(broker) == 1
    assert "g" not in broker.coordinator.manager.groups
    assert broker.coordinator.manager.expirations == 2


def test_positions_of_a_group_without_members_expire_some_time_after_the_last_one_left():
    broker = leading(RETENTION)
    joined = stable(broker, "t")
    broker.ask(
        CommitOffsets("g", {T0: OffsetAndMetadata(5, commit_timestamp_ms=0)}, joined.member_id, 1)
    )
    broker.replicate()
    for _ in range(12):
        broker.pass_time(5_000)
        broker.beat(joined)
    leave(broker, joined)
    broker.pass_time(60 * MINUTE_MS - 1)
    assert expire(broker) == 0
    broker.pass_time(1)
    assert expire(broker) == 1
    assert "g" not in broker.coordinator.manager.groups


def test_a_group_without_members_and_positions_is_forgotten():
    broker = leading(RETENTION)
    joined = stable(broker)
    assert expire(broker) == 0
    assert "g" in broker.coordinator.manager.groups
    leave(broker, joined)
    assert expire(broker) == 0
    records, _ = broker.log.appends[-1]
    assert records == [(GroupKey("g"), None)]
    assert "g" not in broker.coordinator.manager.groups


def test_a_position_whose_client_asked_for_a_retention_expires_after_it():
    broker = leading(RETENTION)
    for tp, expire_ms in ((T0, 10), (T1, 90 * MINUTE_MS)):
        value = OffsetAndMetadata(5, commit_timestamp_ms=0, expire_timestamp_ms=expire_ms)
        broker.ask(CommitOffsets("g", {tp: value}))
    broker.replicate()
    broker.pass_time(9)
    assert expire(broker) == 0
    broker.pass_time(1)
    assert expire(broker) == 1
    broker.pass_time(60 * MINUTE_MS)
    assert expire(broker) == 0
    assert committed(broker) == {"t-1": 5}


def test_a_position_does_not_expire_while_it_is_committed_again():
    broker = leading(RETENTION)
    commit(broker, {T0: 5})
    broker.replicate()
    broker.pass_time(60 * MINUTE_MS)
    commit(broker, {T0: 6})
    assert broker.coordinator.manager.expire([broker.group]) == 0
    broker.replicate()
    assert committed(broker) == {"t-0": 6}


@pytest.mark.parametrize("metadata", [subscription("t"), b"not a subscription"])
def test_nothing_expires_while_a_group_rebalances_or_it_is_not_known_what_it_consumes(
    metadata: bytes,
):
    broker = leading(RETENTION)
    commit(broker, {U0: 5})
    broker.replicate()
    joined = broker.join(metadata=metadata)
    is_known = metadata == subscription("t")
    broker.now_ms += 90 * MINUTE_MS
    assert expire(broker) == 0
    broker.sync(joined, {joined.member_id: b"all"})
    broker.replicate()
    assert expire(broker) == is_known


# --- after a failover, and for tools --------------------------------------------------------------


@pytest.mark.parametrize(("since_ms", "expires"), [(-1, True), (0, True), (MINUTE_MS, False)])
def test_a_loaded_group_expires_after_its_stored_time(since_ms: int, expires: bool):
    """An old record does not say since when its group is empty: then the commit counts."""
    broker = GroupBroker(RETENTION)
    broker.coordinator.manager.on_elected(0, 3, 3)
    stored = StoredGroup("consumer", 5, None, None, since_ms, ())
    position = CommittedOffset(4, OffsetAndMetadata(5, commit_timestamp_ms=0), 4)
    broker.coordinator.on_loaded(0, 3, {"g": LoadedGroup(stored, {T0: position})})
    assert committed(broker) == {"t-0": 5}
    broker.pass_time(60 * MINUTE_MS)
    assert expire(broker) == expires


def test_a_transaction_that_was_read_ends_with_its_marker():
    broker = GroupBroker()
    broker.coordinator.manager.on_elected(0, 3, 3)
    position = CommittedOffset(4, OffsetAndMetadata(5), 4)
    broker.coordinator.on_loaded(0, 3, {"g": LoadedGroup(None, {}, {7: {T0: position}})})
    end(broker, PRODUCER, 9, is_commit=True)
    assert committed(broker) == {"t-0": 5}


def test_a_group_is_described_with_its_members():
    broker = leading()
    assert broker.ask(DescribeGroup("g")) == [
        DescribedGroup(error_code=Errors.NONE, group_id="g", group_state="Dead")
    ]
    metadata = subscription("t")
    joined = broker.join("static", metadata)
    (described,) = broker.ask(DescribeGroup("g"))
    assert (described.group_state, described.protocol_data) == ("CompletingRebalance", "")
    assert [(m.member_metadata, m.member_assignment) for m in described.members] == [(b"", b"")]
    broker.sync(joined, {joined.member_id: b"all"}, "static")
    broker.replicate()
    member = DescribedGroupMember(
        member_id=joined.member_id,
        group_instance_id="static",
        client_id="c",
        client_host="/h",
        member_metadata=metadata,
        member_assignment=b"all",
    )
    expected = DescribedGroup(
        error_code=Errors.NONE,
        group_id="g",
        group_state="Stable",
        protocol_type="consumer",
        protocol_data="range",
        members=(member,),
    )
    assert broker.ask(DescribeGroup("g")) == [expected]
    broker.coordinator.on_resigned(0, 1)
    assert broker.ask(DescribeGroup("g")) == [
        DescribedGroup(error_code=Errors.NOT_COORDINATOR, group_id="g")
    ]


def test_groups_are_listed_by_state_and_type():
    broker = leading()
    stable(broker, "t")
    commit(broker, {T0: 5}, group="simple")
    consuming, simple = (
        ListedGroup(
            group_id="g", protocol_type="consumer", group_state="Stable", group_type="classic"
        ),
        ListedGroup(group_id="simple", protocol_type="", group_state="Empty", group_type="classic"),
    )
    for states, types, expected in (
        ((), (), (consuming, simple)),
        (("stable", "Dead"), (), (consuming,)),
        (("EMPTY",), ("Classic",), (simple,)),
        ((), ("consumer",), ()),
    ):
        found = broker.ask(ListGroups(states, types))
        assert found == [ListGroupsResponse(error_code=Errors.NONE, groups=expected)], (
            states,
            types,
        )
    broker.coordinator.manager.on_elected(1, 0, 0)
    assert broker.ask(ListGroups())[0].error_code is Errors.COORDINATOR_LOAD_IN_PROGRESS
    broker.coordinator.stop()
    assert broker.ask(ListGroups()) == [
        ListGroupsResponse(error_code=Errors.COORDINATOR_NOT_AVAILABLE)
    ]
