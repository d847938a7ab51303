"""Leaders and their ISRs: proposals, answers, and events between them."""

from __future__ import annotations

import pytest

from regent.core.errors import Errors
from regent.core.model import EPOCH_DURING_DELETE, UNKNOWN_BROKER_EPOCH, LeaderRecoveryState
from regent.core.protocol.controller import AlteredPartition, AlterPartitionRow
from regent.core.replication.partition import Role
from tests.core.replication.stage import (
    FULL,
    LAG_MS,
    ME,
    T0,
    T1,
    T2,
    A,
    B,
    BareBroker,
    accepted,
    refused,
    state,
)
from tests.support.replicas import hosted_as

GIVEN_UP = [
    Errors.UNKNOWN_TOPIC_OR_PARTITION,
    Errors.FENCED_LEADER_EPOCH,
    Errors.INVALID_REQUEST,
    Errors.INCONSISTENT_TOPIC_ID,
    Errors.NEW_LEADER_ELECTED,
    Errors.INVALID_UPDATE_VERSION,
]
RETRIED = [
    Errors.UNKNOWN_SERVER_ERROR,
    Errors.NOT_CONTROLLER,
    Errors.REQUEST_TIMED_OUT,
    Errors.UNKNOWN_TOPIC_ID,
]
REJECTED = [Errors.INELIGIBLE_REPLICA, Errors.OPERATION_NOT_ATTEMPTED]


@pytest.fixture
def leader() -> BareBroker:
    """A broker that leads t-0 in leader epoch 1 with ISR [1]; brokers 2 and 3 are live."""
    broker = BareBroker()
    broker.meet({1: 100, 2: 100, 3: 100})
    broker.apply({T0: state(leader_epoch=1, isr=(1,), replicas=(1, 2, 3))})
    return broker


@pytest.fixture
def full(leader: BareBroker) -> BareBroker:
    """The same with ISR [1, 2, 3], leader epoch 2 and log end 10; no follower has fetched."""
    leader.logs.ends[T0] = 10
    leader.apply({T0: state(leader_epoch=2, isr=(1, 2, 3), replicas=(1, 2, 3))})
    return leader


# --- expansion ------------------------------------------------------------------------------------


def test_a_follower_at_the_log_end_is_proposed_and_joins_when_accepted(
    leader: BareBroker,
) -> None:  # ISR-05
    leader.fetched_by(2)
    (row,) = leader.proposals()
    assert row == AlterPartitionRow("t", 0, A, 1, (1, 2), (UNKNOWN_BROKER_EPOCH, 100), 0, 3)
    assert leader.hosted().isr == (1,)
    assert leader.hosted().maximal_isr == (1, 2)
    assert leader.manager.counters.isr_expands == 0

    leader.answer(leader.send(), accepted(row))
    assert leader.hosted().isr == leader.hosted().maximal_isr == (1, 2)
    assert leader.hosted().partition_epoch == 4
    assert leader.manager.counters.isr_expands == 1
    assert leader.proposals() == []


def test_there_is_one_proposal_at_a_time_and_new_members_are_last(
    leader: BareBroker,
) -> None:  # ISR-12
    leader.fetched_by(3)
    leader.fetched_by(2)
    (row,) = leader.proposals()
    assert row.new_isr == (1, 3)
    leader.now_ms = LAG_MS + 1
    leader.manager.shrink_isrs(leader.now_ms)
    assert leader.proposals() == [row]
    leader.answer(leader.send(), accepted(row))
    leader.fetched_by(2)
    (row,) = leader.proposals()
    assert (row.new_isr, row.partition_epoch) == ((1, 3, 2), 4)


def test_a_follower_behind_the_start_of_the_epoch_does_not_join(
    leader: BareBroker,
) -> None:  # ISR-13, KAFKA-7128
    leader.logs.ends[T0] = 10
    leader.apply({T0: state(leader_epoch=2, isr=(1,), replicas=(1, 2, 3))})
    assert leader.hosted().leader_epoch_start_offset == 10
    leader.fetched_by(2, 9, leader_epoch=2)
    assert leader.proposals() == []
    leader.logs.ends[T0] = 12
    leader.fetched_by(2, 10, leader_epoch=2)
    assert [row.new_isr for row in leader.proposals()] == [(1, 2)]


def test_a_follower_that_is_not_live_does_not_join(leader: BareBroker) -> None:  # KAFKA-14140
    leader.meet({1: 100, 3: 100})
    leader.fetched_by(2)
    assert leader.proposals() == []
    leader.meet({1: 100, 2: 100, 3: 100})
    leader.fetched_by(2)
    assert [row.new_isr for row in leader.proposals()] == [(1, 2)]


def test_the_broker_epoch_of_the_fetch_must_be_the_registered_one(
    leader: BareBroker,
) -> None:  # KIP-903
    leader.fetched_by(2, replica_epoch=150)  # restarted; the leader does not know it yet
    assert leader.proposals() == []
    leader.meet({1: 100, 2: 150, 3: 100})
    leader.fetched_by(2, replica_epoch=150)
    (row,) = leader.proposals()
    assert row.isr_broker_epochs == (UNKNOWN_BROKER_EPOCH, 150)


def test_a_restarted_follower_is_proposed_with_its_new_broker_epoch(leader: BareBroker) -> None:
    leader.fetched_by(2)
    request = leader.send()
    leader.meet({1: 100, 2: 150, 3: 100})
    leader.fetched_by(2, replica_epoch=150)
    leader.answer(request, refused(request.partitions[0], Errors.INELIGIBLE_REPLICA))
    assert leader.hosted().maximal_isr == (1,)
    leader.fetched_by(2, replica_epoch=150)
    (row,) = leader.proposals()
    assert row.isr_broker_epochs == (UNKNOWN_BROKER_EPOCH, 150)


# --- shrinking ------------------------------------------------------------------------------------


def test_a_lagging_follower_is_proposed_for_removal(full: BareBroker) -> None:  # ISR-07
    full.fetched_by(3, 10, leader_epoch=2)
    full.manager.shrink_isrs(LAG_MS)
    assert full.proposals() == []
    full.manager.shrink_isrs(LAG_MS + 1)
    (row,) = full.proposals()
    assert row.new_isr == (1, 3)
    assert row.isr_broker_epochs == (UNKNOWN_BROKER_EPOCH, 100)
    assert full.hosted().isr == full.hosted().maximal_isr == (1, 2, 3)
    assert full.hosted().high_watermark == 0

    full.now_ms = LAG_MS + 1
    full.answer(full.send(), accepted(row))
    assert full.hosted().isr == (1, 3)
    assert full.hosted().high_watermark == 10, "KAFKA-13091"
    assert full.manager.counters.isr_shrinks == 1


def test_lagging_followers_leave_together_and_the_leader_stays(full: BareBroker) -> None:
    full.manager.shrink_isrs(LAG_MS + 1)
    assert [row.new_isr for row in full.proposals()] == [(1,)]


def test_an_unassigned_member_leaves_at_once(leader: BareBroker) -> None:
    leader.apply({T0: state(leader_epoch=2, isr=(1, 4, 2), replicas=(1, 2))})
    leader.fetched_by(2, leader_epoch=2)
    leader.manager.shrink_isrs(0)
    assert [row.new_isr for row in leader.proposals()] == [(1, 2)]


def test_nothing_is_committed_before_an_unassigned_member_has_left(full: BareBroker) -> None:
    full.apply({T0: state(leader_epoch=3, isr=(1, 3, 2), replicas=(1, 2))})
    full.fetched_by(2, 10, leader_epoch=3)
    assert full.hosted().high_watermark == 0, "3 does not have the records and could be elected"
    full.manager.shrink_isrs(0)
    request = full.send()
    full.answer(request, accepted(request.partitions[0]))
    assert full.hosted().isr == (1, 2)
    assert full.hosted().high_watermark == 10


def test_an_offline_follower_leaves_after_the_limit_even_at_the_log_end(
    full: BareBroker,
) -> None:
    for replica in (2, 3):
        full.fetched_by(replica, 10, leader_epoch=2)
    full.meet({1: 100, 3: 100})
    full.manager.shrink_isrs(LAG_MS)
    assert full.proposals() == []
    full.manager.shrink_isrs(LAG_MS + 1)
    assert [row.new_isr for row in full.proposals()] == [(1, 3)]


def test_only_led_partitions_are_checked(full: BareBroker) -> None:
    full.apply({T1: state(2, isr=(1, 2)), T2: state(ME, isr=(1, 2))})
    full.logs.ends.update({T1: 5, T2: 5})
    full.stop(T0, EPOCH_DURING_DELETE, delete=True)
    full.manager.shrink_isrs(LAG_MS + 1)
    assert [row.topic_partition for row in full.proposals()] == [T2]


# --- answers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", GIVEN_UP)
def test_a_leader_with_an_outdated_epoch_waits_for_the_next_leader_and_isr(
    leader: BareBroker, error: Errors
) -> None:  # ISR-10, ISR-11
    leader.fetched_by(2)
    request = leader.send()
    leader.answer(request, refused(request.partitions[0], error))
    leader.fetched_by(2)
    leader.fetched_by(3)
    assert leader.proposals() == []
    assert leader.hosted().isr == (1,)
    assert leader.hosted().maximal_isr == (1, 2), "it may have been accepted"
    assert leader.manager.counters.failed_isr_updates == 1
    leader.apply({T0: state(leader_epoch=2, isr=(1,), replicas=(1, 2, 3))})
    assert leader.hosted().maximal_isr == (1,)
    leader.fetched_by(3, leader_epoch=2)
    assert [row.new_isr for row in leader.proposals()] == [(1, 3)]


def test_a_proposal_for_a_partition_that_the_controller_does_not_know_is_repeated_by_the_next_check(
    full: BareBroker,
) -> None:
    full.manager.shrink_isrs(LAG_MS + 1)
    request = full.send()
    full.answer(request, refused(request.partitions[0], Errors.UNKNOWN_TOPIC_OR_PARTITION))
    assert full.proposals() == []
    full.manager.shrink_isrs(2 * LAG_MS)
    assert full.proposals() == list(request.partitions)
    full.manager.shrink_isrs(3 * LAG_MS)
    assert full.proposals() == list(request.partitions), "once at a time"


def test_a_refused_removal_is_not_proposed_again(full: BareBroker) -> None:  # ISR-10
    full.manager.shrink_isrs(LAG_MS + 1)
    request = full.send()
    full.answer(request, refused(request.partitions[0], Errors.INVALID_UPDATE_VERSION))
    full.manager.shrink_isrs(3 * LAG_MS)
    assert full.proposals() == []
    assert full.hosted().isr == full.hosted().maximal_isr == (1, 2, 3)
    assert full.hosted().high_watermark == 0


@pytest.mark.parametrize("error", RETRIED)
def test_a_proposal_that_failed_for_another_reason_is_sent_again(
    leader: BareBroker, error: Errors
) -> None:
    leader.fetched_by(2)  # ISR-11, KAFKA-14010
    request = leader.send()
    leader.answer(request, refused(request.partitions[0], error))
    assert leader.hosted().maximal_isr == (1, 2)
    assert leader.proposals() == list(request.partitions)


@pytest.mark.parametrize("error", REJECTED)
def test_a_rejected_change_is_withdrawn_and_may_be_proposed_again(
    leader: BareBroker, error: Errors
) -> None:
    leader.fetched_by(2)
    request = leader.send()
    leader.answer(request, refused(request.partitions[0], error))
    assert leader.hosted().maximal_isr == (1,)
    assert leader.proposals() == []
    leader.fetched_by(2)
    assert leader.proposals() == list(request.partitions)


def test_a_member_that_is_out_of_sync_is_removed_when_a_follower_could_not_be_added(
    leader: BareBroker,
) -> None:
    """With the defect, seed 57003806: the follower was proposed again before each check."""
    leader.apply({T0: state(leader_epoch=2, isr=(1, 2), replicas=(1, 2, 3))})
    leader.now_ms = LAG_MS + 1
    leader.fetched_by(3, leader_epoch=2)
    request = leader.send()
    assert [row.new_isr for row in request.partitions] == [(1, 2, 3)]
    leader.manager.shrink_isrs(leader.now_ms)
    leader.answer(request, refused(request.partitions[0], Errors.INELIGIBLE_REPLICA))
    leader.fetched_by(3, leader_epoch=2)
    assert [row.new_isr for row in leader.proposals()] == [(1,)]


def test_an_outdated_partition_epoch_is_replaced_by_the_controllers_state(
    leader: BareBroker,
) -> None:
    leader.fetched_by(2)
    request = leader.send()
    held = AlteredPartition("t", 0, Errors.INVALID_UPDATE_VERSION, ME, 1, (3, 1), 0, 8)
    leader.answer(request, held)
    assert leader.hosted().isr == leader.hosted().maximal_isr == (3, 1)
    assert leader.manager.counters.isr_expands == 0
    leader.fetched_by(2)
    (row,) = leader.proposals()
    assert (row.new_isr, row.partition_epoch) == ((3, 1, 2), 8)


@pytest.mark.parametrize(("leader_epoch", "partition_epoch"), [(2, 8), (1, 2)])
@pytest.mark.parametrize("error", [Errors.NONE, Errors.INVALID_UPDATE_VERSION])
def test_a_state_of_another_epoch_is_ignored(
    leader: BareBroker, error: Errors, leader_epoch: int, partition_epoch: int
) -> None:
    leader.fetched_by(2)
    other = AlteredPartition("t", 0, error, ME, leader_epoch, (1, 3), 0, partition_epoch)
    leader.answer(leader.send(), other)
    assert (leader.hosted().isr, leader.hosted().partition_epoch) == ((1,), 3)
    assert leader.hosted().maximal_isr == (1, 2)
    assert leader.proposals() == []


def test_a_change_that_was_accepted_before_is_committed_at_an_equal_epoch(
    leader: BareBroker,
) -> None:  # KAFKA-12751
    leader.fetched_by(2)
    request = leader.send()
    equal = accepted(request.partitions[0])._replace(partition_epoch=3)
    leader.answer(request, equal)
    assert (leader.hosted().isr, leader.hosted().partition_epoch) == ((1, 2), 3)


def test_a_proposal_with_a_lost_answer_is_sent_again(leader: BareBroker) -> None:
    leader.fetched_by(2)
    first = leader.send()
    assert leader.manager.alter_partition_request() is None, "one in flight"
    leader.manager.on_alter_partition_response(first, None, leader.now_ms)
    again = leader.send()
    assert again.partitions == first.partitions
    leader.answer(again, accepted(first.partitions[0]))
    leader.answer(first, refused(first.partitions[0], Errors.INELIGIBLE_REPLICA))  # late
    assert leader.hosted().isr == (1, 2)


def test_each_request_has_the_present_broker_epoch(leader: BareBroker) -> None:
    leader.fetched_by(2)
    first = leader.send()
    leader.answer(first, error=Errors.STALE_BROKER_EPOCH)
    leader.manager.broker_epoch = 200
    assert (first.broker_epoch, leader.send().broker_epoch) == (100, 200)


# --- LeaderAndIsr while a proposal is pending -----------------------------------------------------


@pytest.mark.parametrize("error", [Errors.NONE, *GIVEN_UP, *RETRIED, *REJECTED])
def test_an_answer_of_an_earlier_leader_epoch_is_ignored(leader: BareBroker, error: Errors) -> None:
    leader.fetched_by(2)
    request = leader.send()
    leader.apply({T0: state(leader_epoch=2, isr=(1, 3), replicas=(1, 2, 3))})
    before = (leader.hosted().isr, leader.hosted().partition_epoch)
    leader.fetched_by(2, leader_epoch=2)  # proposes while the old request is in flight
    newer = leader.hosted().proposal
    assert newer is not None
    assert newer.leader_epoch == 2
    leader.answer(request, accepted(request.partitions[0])._replace(error_code=error))
    assert (leader.hosted().isr, leader.hosted().partition_epoch) == before
    assert leader.hosted().proposal == newer
    assert leader.proposals() == [newer]


def test_a_deposed_leader_proposes_nothing(leader: BareBroker) -> None:
    leader.fetched_by(2)
    leader.apply({T0: state(2, leader_epoch=2)})
    assert leader.proposals() == []
    assert leader.hosted().proposal is None
    assert leader.hosted().followers == {}


def test_a_deleted_partition_is_not_proposed_and_its_answer_is_ignored(
    leader: BareBroker,
) -> None:
    leader.fetched_by(2)
    request = leader.send()
    assert leader.stop(T0, EPOCH_DURING_DELETE, delete=True) is Errors.NONE
    leader.apply({T0: state(leader_epoch=1, isr=(1,), is_new=True)}, id=B)
    leader.answer(request, accepted(request.partitions[0]))
    assert leader.hosted().isr == (1,)
    assert leader.proposals() == []


def test_a_stray_or_offline_partition_is_not_proposed(leader: BareBroker) -> None:
    leader.apply({T1: state(isr=(1,), replicas=(1, 2))})
    leader.fetched_by(2)
    leader.logs.offline.add(T0)
    leader.apply({T0: state(leader_epoch=2)})
    assert leader.proposals() == []
    leader.apply({T1: state(isr=(1,))}, type=FULL)
    assert hosted_as(Role.LEADER, leader.manager) == 1
    assert hosted_as(Role.OFFLINE, leader.manager) == 0


def test_a_stop_without_deletion_keeps_the_leader_and_its_proposal(leader: BareBroker) -> None:
    leader.fetched_by(2)
    assert leader.stop(T0, 1, delete=False) is Errors.NONE
    assert leader.role(T0) is Role.LEADER
    assert len(leader.proposals()) == 1


def test_a_leader_epoch_that_cannot_be_stored_is_not_led(
    leader: BareBroker,
) -> None:  # KAFKA-9769
    leader.logs.unwritable.add(T0)
    errors = leader.apply({T0: state(leader_epoch=2)})
    assert errors == {T0: Errors.KAFKA_STORAGE_ERROR}
    assert (leader.role(T0), leader.hosted().leader_epoch) == (Role.OFFLINE, 1)
    assert hosted_as(Role.LEADER, leader.manager) == 0
    assert hosted_as(Role.OFFLINE, leader.manager) == 1


def test_a_leader_in_a_new_epoch_remembers_the_followers_positions(full: BareBroker) -> None:
    full.fetched_by(2, 8, leader_epoch=2)
    full.now_ms = 5
    full.apply({T0: state(leader_epoch=3, isr=(1, 2), replicas=(1, 2, 3))})
    known = full.hosted().followers
    assert (known[2].log_end_offset, known[2].last_caught_up_ms) == (8, 5)
    full.apply({T0: state(2, leader_epoch=4)})
    full.apply({T0: state(leader_epoch=5, isr=(1, 2))})
    assert {r: f.log_end_offset for r, f in full.hosted().followers.items()} == {2: -1}


# --- recovery after an unclean election -----------------------------------------------------------


def test_an_unclean_leader_reports_its_recovery_before_a_replica_joins() -> None:  # KIP-704
    leader = BareBroker()
    leader.meet({1: 100, 2: 100})
    unclean = state(leader_epoch=1, isr=(1,), recovery=LeaderRecoveryState.RECOVERING)
    leader.apply({T0: unclean})
    (row,) = leader.proposals()
    assert (row.new_isr, row.leader_recovery_state) == ((1,), LeaderRecoveryState.RECOVERED)
    request = leader.send()
    leader.fetched_by(2)
    leader.answer(request, refused(row, Errors.INELIGIBLE_REPLICA))
    leader.fetched_by(2)
    assert leader.proposals() == [], "no expansion before the recovery is committed"
    leader.manager.shrink_isrs(15_000)
    leader.answer(leader.send(), accepted(row))
    assert not leader.hosted().is_recovering
    leader.fetched_by(2)
    assert [row.new_isr for row in leader.proposals()] == [(1, 2)]


# --- high watermark -------------------------------------------------------------------------------


def test_records_of_all_members_are_committed_and_stay_committed(full: BareBroker) -> None:
    full.fetched_by(2, 10, leader_epoch=2)
    assert full.hosted().high_watermark == 0, "3 never fetched"
    assert full.fetched_by(3, 6, leader_epoch=2).high_watermark == 6
    full.fetched_by(3, 4, leader_epoch=2)
    assert full.hosted().high_watermark == 6


def test_a_proposed_member_counts_for_the_high_watermark(leader: BareBroker) -> None:
    leader.fetched_by(2)
    leader.logs.ends[T0] = 5
    leader.now_ms = LAG_MS + 1
    leader.fetched_by(3, 5)
    assert leader.hosted().high_watermark == 0
    leader.fetched_by(2, 5)
    assert leader.hosted().high_watermark == 5


def test_a_leader_alone_in_the_isr_commits_at_once(leader: BareBroker) -> None:
    leader.logs.ends[T0] = 7
    leader.apply({T0: state(leader_epoch=2, isr=(1,), replicas=(1, 2, 3))})
    assert leader.hosted().high_watermark == 7


@pytest.mark.parametrize(("live", "high_watermark"), [({2, 3}, 0), ({2}, 5)])
def test_a_replica_about_to_join_is_waited_for_unless_it_cannot(
    leader: BareBroker, live: set[int], high_watermark: int
) -> None:
    leader.meet(dict.fromkeys(live, 100))
    leader.fetched_by(2)  # proposed; so no other replica is
    leader.fetched_by(3)
    leader.logs.ends[T0] = 5
    leader.fetched_by(2, 5)
    assert leader.hosted().high_watermark == high_watermark
    leader.now_ms = LAG_MS + 1
    leader.fetched_by(2, 4)
    leader.fetched_by(2, 5)
    assert leader.hosted().high_watermark == 5, "3 was caught up too long ago"


# --- what is counted ------------------------------------------------------------------------------


def test_leaders_and_under_replicated_partitions_are_counted(leader: BareBroker) -> None:
    assert hosted_as(Role.LEADER, leader.manager) == 1
    assert leader.manager.under_replicated_count == 1
    leader.apply(
        {
            T0: state(leader_epoch=2, isr=(1, 2), replicas=(1, 2, 3), adding=(3,)),
            T1: state(2, isr=(2,)),
            T2: state(isr=(1,)),
        }
    )
    assert hosted_as(Role.LEADER, leader.manager) == 2
    assert leader.manager.under_replicated_count == 1


def test_a_proposal_that_is_refused_again_and_again_is_logged_once_in_ten_seconds(
    leader: BareBroker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    leader.fetched_by(2)
    for leader.now_ms in range(0, 20_000, 200):
        request = leader.send()
        leader.answer(request, refused(request.partitions[0], Errors.UNKNOWN_SERVER_ERROR))
    lines = [line for line in caplog.messages if "Failed to alter the ISR" in line]
    assert len(lines) == 2
    assert leader.manager.counters.failed_isr_updates == 100
