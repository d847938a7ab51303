"""Replicas with damaged records: they go offline and copy the log again."""

from __future__ import annotations

import pytest

from regent.core.errors import DamagedRecordsError, Errors
from regent.core.model import EPOCH_DURING_DELETE, LogEnd, TopicPartition
from regent.core.protocol.control import (
    LeaderAndIsrRequest,
    LeaderAndIsrType,
    StopReplicaResponse,
    UpdateMetadataPartition,
    UpdateMetadataRequest,
    UpdateMetadataTopic,
)
from regent.core.replication.partition import Role
from tests.core.replication.record_stage import RecordBroker, consumed, rows
from tests.core.replication.stage import HEADER, T0, A, B, live, stop_replica
from tests.support.replicas import hosted_as

DAMAGE = DamagedRecordsError("t-0: at 1")


def filled(broker_id: int = 1, *, isr: tuple[int, ...] = (1, 2, 3)) -> RecordBroker:
    """Return the leader of t-0 with three committed batches; the second is damaged."""
    broker = RecordBroker(broker_id)
    broker.apply(broker_id, 0, isr=(broker_id,), replicas=(1, 2, 3))
    for value in (b"0", b"1", b"2"):
        broker.produce(value, acks=1)
    broker.apply(broker_id, 1, isr=isr, replicas=(1, 2, 3))
    broker.log().damaged.add(1)
    return broker


def learn(
    broker: RecordBroker, leader: int, leader_epoch: int, *isr: int, partition_epoch: int = 4
) -> None:
    """Send a broker the leader and ISR of t-0 by UpdateMetadata."""
    row = UpdateMetadataPartition(0, 7, leader, leader_epoch, isr, partition_epoch, (1, 2, 3), ())
    topic = UpdateMetadataTopic("t", A, (row,))
    brokers = tuple(live(b, 100) for b in (1, 2, 3))
    broker.manager.handle(HEADER, UpdateMetadataRequest((topic,), brokers), broker.now_ms)


def list_suspects(broker: RecordBroker) -> None:
    """Let ZooKeeper list the suspect replicas of a broker, if it has reported a change."""
    if broker.manager.take_suspect_changes():
        broker.manager.on_suspects_listed(broker.logs.suspects())


def replace(
    broker: RecordBroker, leader: int, leader_epoch: int, isr: tuple[int, ...]
) -> dict[TopicPartition, Errors]:
    """Send a LeaderAndIsr of t-0, and again when the replica is listed; return the last errors."""
    broker.apply(leader, leader_epoch, isr=isr, replicas=(1, 2, 3))
    list_suspects(broker)
    return broker.apply(leader, leader_epoch, isr=isr, replicas=(1, 2, 3))


def delete(broker: RecordBroker, leader_epoch: int, topic_id: str = A) -> Errors:
    """Send a broker StopReplica with deletion of t-0; return the error."""
    request = stop_replica(T0, leader_epoch, delete=True, id=topic_id)
    response = broker.manager.handle(HEADER, request, broker.now_ms)
    assert isinstance(response, StopReplicaResponse)
    (row,) = response.partition_errors
    return row.error_code


# --- reads of damaged records ---------------------------------------------------------------------


def test_a_consumer_gets_the_records_before_the_damage() -> None:
    broker = filled()
    answer = broker.consume({T0: 0}).answer[T0]
    assert (answer.error_code, consumed(answer)) == (Errors.NONE, [b"0"])
    assert broker.hosted().role is Role.LEADER


def test_a_leader_that_reads_damaged_records_goes_offline_when_the_isr_has_others() -> None:
    broker = filled()
    assert broker.consume({T0: 1}).answer[T0].error_code is Errors.KAFKA_STORAGE_ERROR
    assert broker.hosted().role is Role.OFFLINE
    assert broker.logs.is_damaged(T0)
    assert hosted_as(Role.OFFLINE, broker.manager) == 1


def test_the_last_copy_stays_online_and_its_intact_records_are_read(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broker = filled(isr=(1,))
    for _ in range(2):
        assert broker.consume({T0: 1}).answer[T0].error_code is Errors.CORRUPT_MESSAGE
    assert caplog.text.count("no other replica in the ISR has the damaged records") == 1
    assert consumed(broker.consume({T0: 2}).answer[T0]) == [b"2"]
    assert broker.produce(b"3", acks=1).answer[T0].error_code is Errors.NONE
    assert not broker.logs.is_damaged(T0)


def test_a_follower_gets_an_error_for_damaged_records_of_the_last_copy() -> None:
    leader, follower = filled(isr=(1,)), RecordBroker(2)
    follower.apply(1, 1, isr=(1,), replicas=(1, 2, 3))
    follower.follow(leader)
    assert follower.values() == [b"0"]
    assert rows(follower.follow(leader))[T0].error_code is Errors.CORRUPT_MESSAGE
    assert follower.values() == [b"0"]


def test_a_follower_fetch_of_damaged_records_makes_another_replica_lead() -> None:
    leader, follower = filled(isr=(1, 3)), RecordBroker(2)
    follower.apply(1, 1, isr=(1, 3), replicas=(1, 2, 3))
    follower.follow(leader)
    assert rows(follower.follow(leader))[T0].error_code is Errors.KAFKA_STORAGE_ERROR
    assert leader.logs.is_damaged(T0)


@pytest.mark.parametrize("leader", [1, 2])
def test_damage_found_in_the_background_takes_the_replica_offline(leader: int) -> None:
    broker = filled()
    broker.apply(leader, 2, isr=(1, 2), replicas=(1, 2, 3))
    broker.manager.on_records_damaged(T0, DAMAGE)
    assert broker.hosted().role is Role.OFFLINE
    assert broker.logs.is_damaged(T0)


def test_damage_of_a_partition_that_is_no_longer_hosted_is_ignored() -> None:
    broker = RecordBroker()
    broker.manager.on_records_damaged(T0, DAMAGE)
    assert not broker.manager.partitions


# --- replacement of the log -----------------------------------------------------------------------


def damaged() -> RecordBroker:
    """Return a broker that led t-0 in epoch 1 until it found damage."""
    broker = filled()
    broker.manager.on_records_damaged(T0, DAMAGE)
    return broker


def test_a_damaged_log_is_kept_while_its_replica_is_in_the_isr() -> None:
    broker = damaged()
    errors = broker.apply(1, 1, isr=(1, 2, 3), replicas=(1, 2, 3))
    assert errors == {T0: Errors.KAFKA_STORAGE_ERROR}
    assert broker.apply(2, 2, isr=(1, 2), replicas=(1, 2, 3)) == {T0: Errors.KAFKA_STORAGE_ERROR}
    assert broker.logs.aside == []


def test_a_damaged_log_is_kept_while_there_is_no_leader() -> None:
    broker = damaged()
    assert broker.apply(-1, 2, isr=(2,), replicas=(1, 2, 3)) == {T0: Errors.KAFKA_STORAGE_ERROR}
    assert broker.logs.aside == []


def test_a_damaged_log_is_kept_when_the_request_is_old() -> None:
    broker = damaged()
    assert broker.apply(2, 0, isr=(2,), replicas=(1, 2, 3)) == {T0: Errors.KAFKA_STORAGE_ERROR}
    assert broker.logs.aside == []


def test_a_damaged_log_is_kept_in_the_epoch_it_was_used_in() -> None:
    """The leader may have added it to the ISR in that epoch; the request does not show that."""
    broker = filled()
    broker.apply(2, 2, isr=(2,), replicas=(1, 2, 3))
    broker.manager.on_records_damaged(T0, DAMAGE)
    assert broker.apply(2, 2, isr=(2,), replicas=(1, 2, 3)) == {T0: Errors.CORRUPT_MESSAGE}
    assert broker.hosted().role is Role.OFFLINE
    assert broker.logs.aside == []
    list_suspects(broker)
    assert broker.apply(2, 3, isr=(2,), replicas=(1, 2, 3)) == {T0: Errors.NONE}
    assert broker.logs.aside == [T0]


def test_a_damaged_log_is_copied_again_when_it_is_not_in_the_isr() -> None:
    broker, leader = damaged(), RecordBroker(2)
    leader.apply(2, 1, isr=(2,), replicas=(1, 2, 3))
    for value in (b"0", b"1", b"2"):
        leader.produce(value, acks=1)
    leader.apply(2, 2, isr=(2, 3), replicas=(1, 2, 3))
    assert replace(broker, 2, 2, (2, 3)) == {T0: Errors.NONE}
    assert broker.logs.aside == [T0]
    assert (broker.hosted().role, broker.values()) == (Role.FOLLOWER, [])
    assert hosted_as(Role.OFFLINE, broker.manager) == 0
    broker.follow(leader, times=2)
    assert broker.values() == [b"0", b"1", b"2"]


def restarted() -> RecordBroker:
    """Return a broker that finds at its start that t-0 is damaged, which it used in epoch 1."""
    before = filled()
    before.logs.mark_damaged(T0, "refused")
    return RecordBroker(logs=before.logs)


@pytest.mark.parametrize("leader_epoch", [1, 2])
def test_a_log_refused_at_startup_is_kept_in_the_first_epoch_that_its_broker_receives(
    leader_epoch: int,
) -> None:
    """It may have followed in that epoch without a record of it, and be in the ISR since then."""
    later = restarted()
    for _ in range(2):
        errors = later.apply(2, leader_epoch, isr=(2,), replicas=(1, 2, 3))
        assert errors == {T0: Errors.CORRUPT_MESSAGE}
    assert later.logs.aside == []
    list_suspects(later)
    assert later.apply(2, leader_epoch + 1, isr=(1, 2), replicas=(1, 2, 3)) == {
        T0: Errors.KAFKA_STORAGE_ERROR
    }
    assert later.logs.aside == []
    assert replace(later, 2, leader_epoch + 2, (2,)) == {T0: Errors.NONE}
    assert later.logs.aside == [T0]
    assert later.values() == []


def test_a_log_refused_at_startup_is_copied_again_once_it_has_left_the_isr() -> None:
    later = restarted()
    assert later.apply(2, 1, isr=(1, 2), replicas=(1, 2, 3)) == {T0: Errors.KAFKA_STORAGE_ERROR}
    assert replace(later, 2, 2, (2,)) == {T0: Errors.NONE}
    assert later.logs.aside == [T0]


def test_a_log_in_a_failed_directory_is_not_replaced() -> None:
    broker = damaged()
    broker.logs.fail([T0])
    assert replace(broker, 2, 2, (2, 3)) == {T0: Errors.KAFKA_STORAGE_ERROR}
    assert broker.logs.aside == []


def test_the_controller_is_notified_when_the_log_is_not_in_the_isr() -> None:
    broker = damaged()
    learn(broker, 1, 1, 1, 2, 3)
    assert broker.manager.replaceable_logs() == []
    learn(broker, 2, 2, 2, 3)
    assert broker.manager.replaceable_logs() == [], "it is not listed as suspect"
    list_suspects(broker)
    assert broker.manager.replaceable_logs() == [T0]
    assert broker.manager.replaceable_logs() == [], "it is named once"
    learn(broker, 2, 2, 2, 3, partition_epoch=6)
    assert broker.manager.replaceable_logs() == [T0], "it was in the ISR meanwhile"
    learn(broker, 3, 3, 2, 3)
    assert broker.manager.replaceable_logs() == [T0], "the request may have been lost"
    broker.apply(3, 3, isr=(2, 3), replicas=(1, 2, 3))
    learn(broker, 2, 4, 2, 3)
    assert broker.manager.replaceable_logs() == []


def test_a_log_of_a_later_topic_of_the_same_name_is_notified_again() -> None:
    broker = damaged()
    learn(broker, 2, 2, 2, 3)
    broker.manager.replaceable_logs()
    list_suspects(broker)
    assert broker.manager.replaceable_logs() == [T0]
    assert delete(broker, EPOCH_DURING_DELETE) is Errors.NONE
    assert T0 not in broker.manager.partitions
    broker.apply(2, 2, isr=(1, 2, 3), replicas=(1, 2, 3))
    broker.manager.on_records_damaged(T0, DAMAGE)
    assert broker.manager.replaceable_logs() == []
    list_suspects(broker)
    assert broker.manager.replaceable_logs() == [T0]


def test_a_damaged_log_is_not_deleted_for_a_later_topic_of_the_same_name() -> None:
    """The topic was removed by hand: its log is kept, and only set aside."""
    later = restarted()
    assert later.apply(2, 1, isr=(2,), replicas=(1, 2, 3)) == {T0: Errors.CORRUPT_MESSAGE}
    assert later.hosted().role is Role.OFFLINE
    assert delete(later, 1, B) is Errors.INCONSISTENT_TOPIC_ID
    assert later.logs.topic_id(T0) == A
    assert delete(later, 1, A) is Errors.NONE
    assert later.logs.topic_id(T0) is None


def test_a_replica_in_a_failed_directory_is_not_replaceable() -> None:
    broker = damaged()
    broker.logs.fail([T0])
    learn(broker, 2, 2, 2, 3)
    for _ in range(2):
        assert broker.manager.replaceable_logs() == []
        list_suspects(broker)


# --- the empty log: its replica may be an eligible leader (KIP-966) -------------------------------


def test_a_damaged_log_is_kept_until_its_replica_is_listed_as_suspect() -> None:
    broker = damaged()
    for _ in range(2):
        errors = broker.apply(2, 2, isr=(2,), replicas=(1, 2, 3))
        assert errors == {T0: Errors.KAFKA_STORAGE_ERROR}
        assert broker.manager.replaceable_logs() == []
    assert broker.logs.aside == []
    list_suspects(broker)
    assert broker.manager.replaceable_logs() == [T0], "the controller did not announce t-0"
    assert broker.apply(2, 2, isr=(2,), replicas=(1, 2, 3)) == {T0: Errors.NONE}


@pytest.mark.parametrize("ends_with", ["damage", "a refused log"])
def test_a_replica_is_suspect_from_before_its_log_is_replaced_until_it_is_in_sync(
    ends_with: str,
) -> None:
    broker = damaged() if ends_with == "damage" else restarted()
    broker.apply(2, 1, isr=(2,), replicas=(1, 2, 3))
    list_suspects(broker)
    assert broker.apply(2, 2, isr=(2,), replicas=(1, 2, 3)) == {T0: Errors.NONE}
    assert broker.logs.aside == [T0]
    learn(broker, 2, 2, 2)
    assert broker.logs.suspects().end_of(T0) == LogEnd(-1, 0)
    learn(broker, 2, 2, 1, 2, partition_epoch=5)
    assert broker.logs.suspects().end_of(T0) is None


def test_a_list_that_was_being_written_before_another_damage_does_not_count() -> None:
    broker = damaged()
    former = broker.logs.suspects()
    assert replace(broker, 2, 2, (2,)) == {T0: Errors.NONE}
    learn(broker, 2, 2, 1, 2, partition_epoch=5)
    assert broker.logs.suspects().end_of(T0) is None, "it is in sync again"
    broker.log().damaged.add(0)
    broker.manager.on_records_damaged(T0, DAMAGE)
    for _ in range(2):
        broker.apply(2, 3, isr=(2,), replicas=(1, 2, 3))
    assert broker.logs.is_damaged(T0), f"{former} is no list of now"


def test_a_damaged_log_that_is_stray_leaves_no_suspect_replica() -> None:
    broker = damaged()
    broker.apply(2, 2, isr=(2,), replicas=(1, 2, 3))
    assert broker.logs.suspects().end_of(T0) is not None
    broker.manager.handle(HEADER, LeaderAndIsrRequest(LeaderAndIsrType.FULL, (), ()), broker.now_ms)
    assert broker.logs.suspects().end_of(T0) is None
