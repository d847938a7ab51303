"""What histories of the simulation found in the group coordinator, each as one short case."""

from __future__ import annotations

import pytest

from regent.core.coordinator.group.group_coordinator import LOAD_RETRY_MS
from regent.core.coordinator.group.group_metadata import STABLE
from regent.core.coordinator.group.group_records import StoredGroup
from regent.core.errors import Errors
from regent.core.protocol.groups import (
    CompletedTransaction,
    CompleteTransactions,
    DeleteGroup,
    DeleteOffsetsResult,
    FetchedOffset,
    SyncGroup,
    VerifiedProducer,
)
from regent.core.protocol.messages.groups import SyncGroupResponse
from tests.core.coordinator.group_stage import NAME, SESSION_MS, GroupBroker


def test_a_commit_that_is_appended_counts_although_a_later_one_was_refused():
    broker = GroupBroker()
    broker.lead()
    answers = broker.commit(1)
    refused = broker.commit(2)
    (_, first), (_, second) = broker.log.appends
    second(Errors.MESSAGE_TOO_LARGE, -1)
    first(Errors.NONE, 7)
    assert answers == [Errors.NONE]
    assert refused == [Errors.INVALID_COMMIT_OFFSET_SIZE]
    assert broker.fetch().offset == 1


@pytest.mark.parametrize("is_deletion_told_first", [False, True])
def test_a_position_is_deleted_together_with_a_commit_before_the_deletion(
    is_deletion_told_first: bool,
):
    """With the defect, seed 51009078: the position was gone only after a failover."""
    broker = GroupBroker()
    broker.lead()
    broker.commit(1)
    broker.log.appends[-1][1](Errors.NONE, 0)
    committed = broker.commit(2)
    deleted = broker.delete_offsets()
    outcomes = [(respond, 1 + place) for place, (_, respond) in enumerate(broker.log.appends[1:])]
    for respond, offset in reversed(outcomes) if is_deletion_told_first else outcomes:
        respond(Errors.NONE, offset)
    assert committed == [Errors.NONE]
    assert deleted == [DeleteOffsetsResult(Errors.NONE, {NAME: Errors.NONE})]
    assert broker.fetch() == FetchedOffset(Errors.NONE)
    assert broker.coordinator.manager.deletions == 1


def test_a_position_that_is_committed_after_its_deletion_stays():
    broker = GroupBroker()
    broker.lead()
    broker.commit(1)
    broker.log.appends[-1][1](Errors.NONE, 0)
    broker.delete_offsets()
    broker.commit(2)
    for offset, (_, respond) in enumerate(broker.log.appends[1:], 1):
        respond(Errors.NONE, offset)
    assert broker.fetch().offset == 2


def test_a_commit_before_a_deletion_that_failed_stays():
    broker = GroupBroker()
    broker.lead()
    broker.commit(1)
    broker.log.appends[-1][1](Errors.NONE, 0)
    broker.commit(2)
    deleted = broker.delete_offsets()
    (_, committed), (_, refused) = broker.log.appends[1:]
    refused(Errors.NOT_ENOUGH_REPLICAS, -1)
    committed(Errors.NONE, 1)
    assert deleted == [DeleteOffsetsResult(Errors.COORDINATOR_NOT_AVAILABLE)]
    assert broker.fetch().offset == 2


@pytest.mark.parametrize("is_marker_first", [False, True])
@pytest.mark.parametrize("is_deletion_told_first", [False, True])
def test_a_deletion_and_the_marker_of_a_transaction_take_effect_in_the_order_of_the_log(
    is_deletion_told_first: bool, is_marker_first: bool
):
    """With the defect, a position deleted after its marker was gone only after a failover."""
    broker = GroupBroker()
    broker.lead()
    broker.commit(1)
    broker.log.appends[-1][1](Errors.NONE, 0)
    broker.commit(2, VerifiedProducer(7, 0))
    broker.log.appends[-1][1](Errors.NONE, 1)
    marker_offset, tombstone_offset = (2, 3) if is_marker_first else (3, 2)
    deleted = broker.delete_offsets()
    (*_, (_, respond)) = broker.log.appends
    ended = CompleteTransactions((CompletedTransaction(0, 7, marker_offset, is_commit=True),))
    completed: list[Errors] = []

    if is_deletion_told_first:
        respond(Errors.NONE, tombstone_offset)
    broker.coordinator.handle(ended, completed.extend)
    if not is_deletion_told_first:
        respond(Errors.NONE, tombstone_offset)
    assert completed == [Errors.NONE]
    assert deleted == [DeleteOffsetsResult(Errors.NONE, {NAME: Errors.NONE})]
    assert broker.fetch().offset == (-1 if is_marker_first else 2)


def test_a_marker_is_sent_again_while_the_log_is_read():
    """The log may have been read up to the marker, and the coordinator not know it yet."""
    broker = GroupBroker()
    broker.coordinator.manager.on_elected(0, 0, 0)
    ended = CompleteTransactions((CompletedTransaction(0, 7, 3, is_commit=True),))
    answers: list[Errors] = []
    broker.coordinator.handle(ended, answers.extend)
    broker.coordinator.on_loaded(0, 0, {})
    broker.coordinator.handle(ended, answers.extend)
    assert answers == [Errors.COORDINATOR_LOAD_IN_PROGRESS, Errors.NONE]


def test_a_leader_that_sends_another_assignment_does_not_replace_the_one_that_is_stored():
    """With the defect, seed 495: after a failover members had other partitions."""
    broker = GroupBroker()
    broker.lead()
    joined = broker.join()
    answers: list[SyncGroupResponse] = []
    for assignment in (b"first", b"second"):
        request = SyncGroup(
            "g", joined.generation_id, joined.member_id, assignments={joined.member_id: assignment}
        )
        broker.coordinator.handle(request, answers.append)
    ((records, stored),) = broker.log.appends
    value = records[0].value
    assert isinstance(value, StoredGroup)
    assert [member.assignment for member in value.members] == [b"first"]
    stored(Errors.NONE, 0)
    assert [answer.error_code for answer in answers] == [Errors.REBALANCE_IN_PROGRESS, Errors.NONE]
    assert answers[-1].assignment == b"first"
    assert broker.coordinator.manager.groups["g"].state is STABLE


def test_a_static_member_that_waited_longer_than_its_session_is_removed_if_it_is_silent_again():
    """With the defect it stayed for ever, with its partitions: no session had begun again."""
    broker = GroupBroker()
    broker.lead()
    former = broker.join("static")
    assignments = {former.member_id: b"all"}
    request = SyncGroup("g", 1, former.member_id, "static", assignments=assignments)
    broker.coordinator.handle(request, lambda result: None)
    broker.log.appends[-1][1](Errors.NONE, 0)
    answers = broker.ask_to_join("static")
    broker.now_ms += SESSION_MS
    broker.coordinator.run_timers()
    assert answers == []
    broker.log.appends[-1][1](Errors.NONE, 1)
    group = broker.coordinator.manager.groups["g"]
    assert list(group.members) == [answer.member_id for answer in answers] != [former.member_id]
    broker.now_ms += SESSION_MS
    broker.coordinator.run_timers()
    assert not group.members


def test_a_partition_that_could_not_be_read_is_read_again():
    """With the defect, seed 1860: no broker coordinated the groups for ever."""
    broker = GroupBroker()
    manager = broker.coordinator.manager
    manager.on_elected(0, 3, 3)
    broker.coordinator.on_loaded(0, 3, None)
    assert manager.problem("g") is Errors.COORDINATOR_LOAD_IN_PROGRESS
    broker.now_ms = LOAD_RETRY_MS
    broker.coordinator.run_timers()
    assert broker.log.loads == [(0, 3), (0, 3)]
    broker.coordinator.on_loaded(0, 3, {})
    assert manager.problem("g") is Errors.NONE


def test_a_partition_that_is_led_by_another_broker_is_not_read_again():
    broker = GroupBroker()
    broker.coordinator.manager.on_elected(0, 3, 3)
    broker.coordinator.on_loaded(0, 3, None)
    broker.coordinator.on_resigned(0, 4)
    broker.now_ms = LOAD_RETRY_MS
    broker.coordinator.run_timers()
    assert broker.log.loads == [(0, 3)]


def test_a_coordinator_leads_a_topic_that_was_created_again_with_lower_epochs():
    """The deletion of a replica is not told to a broker that does not lead it."""
    broker = GroupBroker()
    broker.lead(epoch=5)
    broker.coordinator.on_resigned(0, 6)
    broker.lead(epoch=0)
    assert broker.coordinator.manager.problem("g") is Errors.NONE


def test_a_group_that_was_used_while_it_was_deleted_keeps_its_later_generation():
    """With the defect, seed 3244: generation 1 followed generation 9 in the log."""
    broker = GroupBroker()
    broker.lead()
    broker.join_and_leave()
    answers: list[Errors] = []
    broker.coordinator.handle(DeleteGroup("g"), answers.append)
    _, deleted = broker.log.appends[-1]
    broker.join_and_leave()
    value = broker.log.appends[-1][0][0].value
    assert isinstance(value, StoredGroup)
    deleted(Errors.NONE, 1)
    assert answers == [Errors.NONE]
    assert broker.coordinator.manager.groups["g"].generation_id == value.generation_id
