"""Replicas whose records turn out to be damaged: out of service, and fetched anew."""

from __future__ import annotations

import pytest

from regent.core.errors import DamagedRecordsError, Errors
from regent.core.model import EPOCH_DURING_DELETE, UNKNOWN_BROKER_EPOCH
from regent.core.protocol.control import (
    UpdateMetadataPartition,
    UpdateMetadataRequest,
    UpdateMetadataTopic,
)
from regent.core.replication.partition import Role
from tests.core.replication.record_stage import RecordBroker, consumed, rows
from tests.core.replication.stage import HEADER, T0, A, live, stop_replica

DAMAGE = DamagedRecordsError("t-0: at 1")


def filled(broker_id: int = 1, *, isr: tuple[int, ...] = (1, 2, 3)) -> RecordBroker:
    """Return the leader of t-0 with three committed batches, of which the second is damaged."""
    broker = RecordBroker(broker_id)
    broker.order(broker_id, 0, isr=(broker_id,), replicas=(1, 2, 3))
    for value in (b"0", b"1", b"2"):
        broker.produce(value, acks=1)
    broker.order(broker_id, 1, isr=isr, replicas=(1, 2, 3))
    broker.log().damaged.add(1)
    return broker


def learn(
    broker: RecordBroker, leader: int, leader_epoch: int, *isr: int, partition_epoch: int = 4
) -> None:
    """Tell a broker who leads t-0 and who is in sync."""
    row = UpdateMetadataPartition(0, 7, leader, leader_epoch, isr, partition_epoch, (1, 2, 3), ())
    topic = UpdateMetadataTopic("t", A, (row,))
    lives = tuple(live(b, 100) for b in (1, 2, 3))
    broker.manager.handle(HEADER, UpdateMetadataRequest((topic,), lives), broker.now_ms)


# --- who reads damaged records --------------------------------------------------------------------


def test_a_consumer_gets_what_is_before_the_damage() -> None:
    broker = filled()
    answer = broker.consume({T0: 0}).answer[T0]
    assert (answer.error_code, consumed(answer)) == (Errors.NONE, [b"0"])
    assert broker.hosted().role is Role.LEADER


def test_a_leader_that_reads_damaged_records_leaves_it_to_the_others_in_sync() -> None:
    broker = filled()
    assert broker.consume({T0: 1}).answer[T0].error_code is Errors.KAFKA_STORAGE_ERROR
    assert broker.hosted().role is Role.OFFLINE
    assert broker.logs.is_damaged(T0)
    assert broker.manager.offline_replica_count == 1


def test_the_last_copy_stays_and_is_read_where_it_is_whole(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broker = filled(isr=(1,))
    for _ in range(2):
        assert broker.consume({T0: 1}).answer[T0].error_code is Errors.CORRUPT_MESSAGE
    assert caplog.text.count("no other replica in the ISR has the damaged records") == 1
    assert consumed(broker.consume({T0: 2}).answer[T0]) == [b"2"]
    assert broker.produce(b"3", acks=1).answer[T0].error_code is Errors.NONE
    assert not broker.logs.is_damaged(T0)


def test_a_follower_that_needs_damaged_records_is_told_so_by_the_last_copy() -> None:
    leader, follower = filled(isr=(1,)), RecordBroker(2)
    follower.order(1, 1, isr=(1,), replicas=(1, 2, 3))
    follower.follow(leader)
    assert follower.values() == [b"0"]
    assert rows(follower.follow(leader))[T0].error_code is Errors.CORRUPT_MESSAGE
    assert follower.values() == [b"0"]


def test_a_follower_that_needs_damaged_records_makes_others_lead() -> None:
    leader, follower = filled(isr=(1, 3)), RecordBroker(2)
    follower.order(1, 1, isr=(1, 3), replicas=(1, 2, 3))
    follower.follow(leader)
    assert rows(follower.follow(leader))[T0].error_code is Errors.KAFKA_STORAGE_ERROR
    assert leader.logs.is_damaged(T0)


@pytest.mark.parametrize("leader", [1, 2])
def test_whoever_finds_damage_in_the_background_says_so(leader: int) -> None:
    broker = filled()
    broker.order(leader, 2, isr=(1, 2), replicas=(1, 2, 3))
    broker.manager.on_records_damaged(T0, DAMAGE)
    assert broker.hosted().role is Role.OFFLINE
    assert broker.logs.is_damaged(T0)


def test_damage_of_what_is_not_hosted_any_more_is_no_matter() -> None:
    broker = RecordBroker()
    broker.manager.on_records_damaged(T0, DAMAGE)
    assert not broker.manager.partitions


# --- what becomes of it ---------------------------------------------------------------------------


def damaged() -> RecordBroker:
    """Return a broker that led t-0 in epoch 1 with others, until it found damage."""
    broker = filled()
    broker.manager.on_records_damaged(T0, DAMAGE)
    return broker


def test_a_damaged_log_stays_while_its_replica_counts_as_in_sync() -> None:
    broker = damaged()
    errors = broker.order(1, 1, isr=(1, 2, 3), replicas=(1, 2, 3))
    assert errors == {T0: Errors.KAFKA_STORAGE_ERROR}
    assert broker.order(2, 2, isr=(1, 2), replicas=(1, 2, 3)) == {T0: Errors.KAFKA_STORAGE_ERROR}
    assert broker.logs.aside == []


def test_a_damaged_log_stays_while_nobody_leads() -> None:
    broker = damaged()
    assert broker.order(-1, 2, isr=(2,), replicas=(1, 2, 3)) == {T0: Errors.KAFKA_STORAGE_ERROR}
    assert broker.logs.aside == []


def test_a_damaged_log_stays_when_an_order_is_older_than_what_is_known() -> None:
    broker = damaged()
    assert broker.order(2, 0, isr=(2,), replicas=(1, 2, 3)) == {T0: Errors.KAFKA_STORAGE_ERROR}
    assert broker.logs.aside == []


def test_a_damaged_log_stays_in_the_epoch_it_was_used_in() -> None:
    """What it had then may have brought it into the ISR, which the order does not know."""
    broker = filled()
    broker.order(2, 2, isr=(2,), replicas=(1, 2, 3))
    broker.manager.on_records_damaged(T0, DAMAGE)
    assert broker.order(2, 2, isr=(2,), replicas=(1, 2, 3)) == {T0: Errors.CORRUPT_MESSAGE}
    assert broker.hosted().role is Role.OFFLINE
    assert broker.logs.aside == []
    assert broker.order(2, 3, isr=(2,), replicas=(1, 2, 3)) == {T0: Errors.NONE}
    assert broker.logs.aside == [T0]


def test_a_damaged_log_is_fetched_anew_once_others_do_without_it() -> None:
    broker, leader = damaged(), RecordBroker(2)
    leader.order(2, 1, isr=(2,), replicas=(1, 2, 3))
    for value in (b"0", b"1", b"2"):
        leader.produce(value, acks=1)
    leader.order(2, 2, isr=(2, 3), replicas=(1, 2, 3))
    assert broker.order(2, 2, isr=(2, 3), replicas=(1, 2, 3)) == {T0: Errors.NONE}
    assert broker.logs.aside == [T0]
    assert (broker.hosted().role, broker.values()) == (Role.FOLLOWER, [])
    assert broker.manager.offline_replica_count == 0
    broker.follow(leader, times=2)
    assert broker.values() == [b"0", b"1", b"2"]


def test_a_log_that_was_refused_at_the_start_is_fetched_anew_at_once() -> None:
    before = filled()
    before.logs.mark_damaged(T0, "refused")
    later = RecordBroker(logs=before.logs)
    assert later.order(2, 2, isr=(2, 3), replicas=(1, 2, 3)) == {T0: Errors.NONE}
    assert later.values() == []


def test_a_damaged_log_stays_until_the_broker_can_tell_its_own_orders_from_earlier_ones() -> None:
    before = filled()
    before.logs.mark_damaged(T0, "refused")
    later = RecordBroker(logs=before.logs)
    registered_as, later.manager.broker_epoch = later.manager.broker_epoch, UNKNOWN_BROKER_EPOCH
    assert later.order(2, 2, isr=(2, 3), replicas=(1, 2, 3)) == {T0: Errors.CORRUPT_MESSAGE}
    assert later.logs.aside == []
    later.manager.broker_epoch = registered_as
    assert later.order(2, 2, isr=(2, 3), replicas=(1, 2, 3)) == {T0: Errors.NONE}


def test_a_log_in_a_failed_directory_is_not_replaced() -> None:
    broker = damaged()
    broker.logs.fail([T0])
    errors = broker.order(2, 2, isr=(2, 3), replicas=(1, 2, 3))
    assert errors == {T0: Errors.KAFKA_STORAGE_ERROR}
    assert broker.logs.aside == []


def test_the_controller_is_to_be_notified_once_others_do_without_the_log() -> None:
    broker = damaged()
    learn(broker, 1, 1, 1, 2, 3)
    assert broker.manager.replaceable_logs() == []
    learn(broker, 2, 2, 2, 3)
    assert broker.manager.replaceable_logs() == [T0]
    assert broker.manager.replaceable_logs() == [], "it has been named"
    learn(broker, 2, 2, 2, 3, partition_epoch=6)
    assert broker.manager.replaceable_logs() == [T0], "it was in the ISR in between, and refused"
    learn(broker, 3, 3, 2, 3)
    assert broker.manager.replaceable_logs() == [T0], "that order may have been lost"
    broker.order(3, 3, isr=(2, 3), replicas=(1, 2, 3))
    learn(broker, 2, 4, 2, 3)
    assert broker.manager.replaceable_logs() == []


def test_that_a_log_was_named_says_nothing_of_one_of_a_later_topic_of_that_name() -> None:
    broker = damaged()
    learn(broker, 2, 2, 2, 3)
    assert broker.manager.replaceable_logs() == [T0]
    request = stop_replica(T0, EPOCH_DURING_DELETE, delete=True)
    broker.manager.handle(HEADER, request, broker.now_ms)
    assert T0 not in broker.manager.partitions
    broker.order(2, 2, isr=(1, 2, 3), replicas=(1, 2, 3))
    broker.manager.on_records_damaged(T0, DAMAGE)
    assert broker.manager.replaceable_logs() == [T0]


def test_a_replica_in_a_failed_directory_is_not_replaceable() -> None:
    broker = damaged()
    broker.logs.fail([T0])
    learn(broker, 2, 2, 2, 3)
    assert broker.manager.replaceable_logs() == []
