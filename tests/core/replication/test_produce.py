"""Produce: acks, the high watermark, min.insync.replicas, idempotent producers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from regent.core.errors import Errors
from regent.core.log_config import LogConfig
from regent.core.model import TopicPartition
from regent.core.protocol.client import ProducedPartition
from regent.core.protocol.controller import AlterPartitionResponse
from regent.core.replication import produce
from regent.core.replication.partition import Role
from tests.core.replication.record_stage import TWO_IN_SYNC, RecordBroker
from tests.core.replication.stage import (
    HEADER,
    LAG_MS,
    T0,
    T1,
    T2,
    accepted,
    leader_and_isr,
    refused,
    state,
    stop_replica,
)
from tests.support.record_batches import CONTROL_MASK, TIMESTAMP_MS, batch
from tests.support.replicas import hosted_as

OK = Errors.NONE


@pytest.fixture
def leader() -> RecordBroker:
    """Leads t-0 in leader epoch 1 with broker 2 in sync; min.insync.replicas is 2."""
    leader = RecordBroker(1, TWO_IN_SYNC)
    leader.apply(1, 1)
    return leader


@pytest.fixture
def follower() -> RecordBroker:
    """Follows ``leader``."""
    follower = RecordBroker(2, TWO_IN_SYNC)
    follower.apply(1, 1)
    return follower


# --- acks -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("acks", [0, 1])
def test_acks_0_and_1_are_answered_at_once(leader: RecordBroker, acks: int) -> None:
    leader.produce(b"a", b"b", acks=acks)
    answer = leader.produce(b"c", acks=acks).answer
    assert answer == {T0: ProducedPartition(OK, 2, -1, 0)}
    assert leader.values() == [b"a", b"b", b"c"]
    assert {record.leader_epoch for record in leader.log().records()} == {1}


def test_acks_all_waits_until_every_isr_member_has_the_records(
    leader: RecordBroker, follower: RecordBroker
) -> None:
    produced = leader.produce(b"a", b"b")
    follower.follow(leader)
    assert follower.values() == [b"a", b"b"]
    assert produced.is_waiting, "the leader learns of it by the next fetch"
    follower.follow(leader)
    assert produced.answer == {T0: ProducedPartition(OK, 0, -1, 0)}
    assert leader.hosted().high_watermark == 2


def test_a_leader_alone_in_the_isr_commits_at_once() -> None:
    leader = RecordBroker()
    leader.apply(1, 1, isr=(1,))
    assert leader.produce(b"a").answer[T0].error_code is OK
    assert leader.hosted().high_watermark == 1


@pytest.mark.parametrize("acks", [2, -2, 32767])
def test_other_acks_are_refused(leader: RecordBroker, acks: int) -> None:
    answer = leader.produce_to({T0: batch(b"a"), T1: batch(b"a")}, acks).answer
    assert {a.error_code for a in answer.values()} == {Errors.INVALID_REQUIRED_ACKS}
    assert set(answer) == {T0, T1}
    assert leader.values() == []


def test_later_records_do_not_delay_the_answer_to_earlier_ones(
    leader: RecordBroker, follower: RecordBroker
) -> None:
    first = leader.produce(b"a")
    follower.follow(leader)
    second = leader.produce(b"b")
    follower.follow(leader)
    assert (first.is_waiting, second.is_waiting) == (False, True)


def test_each_partition_has_its_own_error(leader: RecordBroker, follower: RecordBroker) -> None:
    leader.apply(2, 1, T1)
    leader.apply(1, 1, T2, isr=(1, 2), replicas=(1, 2))
    follower.apply(1, 1, T2)
    unknown = TopicPartition("u", 0)
    produced = leader.produce_to(
        {topic_partition: batch(b"a") for topic_partition in (T0, T1, T2, unknown)}
    )
    follower.follow(leader, times=2)
    assert {topic_partition: a.error_code for topic_partition, a in produced.answer.items()} == {
        T0: OK,
        T1: Errors.NOT_LEADER_OR_FOLLOWER,
        T2: OK,
        unknown: Errors.UNKNOWN_TOPIC_OR_PARTITION,
    }


def test_an_empty_request_has_an_empty_answer(leader: RecordBroker) -> None:
    assert leader.produce_to({}).answer == {}


def test_the_producer_gets_the_timestamp_set_by_the_leader() -> None:
    leader = RecordBroker(1, LogConfig(message_timestamp_type="LogAppendTime"))
    leader.apply(1, 1, isr=(1,))
    assert leader.produce(b"a").answer[T0].log_append_time_ms == TIMESTAMP_MS


# --- too few replicas in sync ---------------------------------------------------------------------


def test_with_too_few_in_sync_acks_all_appends_nothing_and_acks_1_does(
    leader: RecordBroker,
) -> None:
    leader.apply(1, 2, isr=(1,))
    refused = ProducedPartition(Errors.NOT_ENOUGH_REPLICAS, log_start_offset=0)
    assert leader.produce(b"a").answer == {T0: refused}
    assert leader.values() == []
    assert leader.produce(b"a", acks=1).answer[T0].error_code is OK


def test_a_proposed_member_does_not_count_for_min_insync_replicas(
    leader: RecordBroker, follower: RecordBroker
) -> None:
    leader.apply(1, 2, isr=(1,))
    follower.apply(1, 2)
    follower.follow(leader)
    assert leader.hosted().maximal_isr == (1, 2)
    assert leader.produce(b"a").answer[T0].error_code is Errors.NOT_ENOUGH_REPLICAS
    leader.commit_isr()
    assert leader.produce(b"a").is_waiting


def test_records_on_too_few_replicas_are_not_committed(leader: RecordBroker) -> None:
    produced = leader.produce(b"a")  # KAFKA-15583
    leader.now_ms = LAG_MS + 1
    leader.manager.shrink_isrs(leader.now_ms)
    leader.commit_isr()
    assert leader.hosted().isr == (1,)
    assert (produced.is_waiting, leader.hosted().high_watermark) == (True, 0)
    assert produced.expire(leader.now_ms)[T0].error_code is Errors.REQUEST_TIMED_OUT


def test_records_on_too_few_replicas_are_committed_when_enough_are_in_sync_again(
    leader: RecordBroker, follower: RecordBroker
) -> None:
    produced = leader.produce(b"a")
    leader.now_ms = LAG_MS + 1
    leader.manager.shrink_isrs(leader.now_ms)
    leader.commit_isr()
    follower.follow(leader, times=2)
    assert produced.is_waiting, "it is proposed for the ISR, not in it"
    leader.commit_isr()
    assert produced.answer[T0].error_code is OK


def test_a_topic_with_fewer_replicas_than_min_insync_needs_all_of_them() -> None:
    leader = RecordBroker(1, TWO_IN_SYNC)
    leader.apply(1, 1, isr=(1,), replicas=(1,))
    assert leader.produce(b"a").answer[T0].error_code is OK
    assert leader.hosted().high_watermark == 1
    leader.apply(1, 2, isr=(1,), replicas=(1, 2))
    assert leader.produce(b"b").answer[T0].error_code is Errors.NOT_ENOUGH_REPLICAS


def test_a_higher_min_insync_replicas_holds_for_records_that_are_not_committed_yet() -> None:
    leader = RecordBroker(1, LogConfig())
    leader.apply(1, 1, isr=(1, 2), replicas=(1, 2, 3))
    follower = RecordBroker(2)
    follower.apply(1, 1)
    produced = leader.produce(b"a")
    leader.logs.configure({"t": LogConfig(min_insync_replicas=3)})
    follower.follow(leader, times=2)
    assert (produced.is_waiting, leader.hosted().high_watermark) == (True, 0)


def apply_with_eligible_replicas(leader: RecordBroker) -> None:
    """Let it lead alone in sync, while ZooKeeper says that broker 2 may be elected (KIP-966)."""
    request = leader_and_isr({T0: state(1, 2, isr=(1,))})
    (topic,) = request.topic_states
    leader.handle(replace(request, topic_states=(replace(topic, with_eligible_replicas=(0,)),)))


def test_with_a_lower_min_insync_a_leader_commits_when_no_other_replica_may_lead(
    leader: RecordBroker,
) -> None:
    apply_with_eligible_replicas(leader)
    assert leader.produce(b"a", acks=1).answer[T0].error_code is OK
    assert leader.manager.alter_partition_request() is None, "it has too few in sync"
    leader.logs.configure({"t": LogConfig()})
    produced = leader.produce(b"b")
    assert (produced.is_waiting, leader.hosted().high_watermark) == (True, 0)
    request = leader.send()
    (row,) = request.partitions
    assert (row.new_isr, row.partition_epoch) == ((1,), 3)
    leader.answer(request, accepted(row))
    assert produced.answer[T0].error_code is OK
    assert leader.hosted().high_watermark == 2
    assert leader.produce(b"c").answer[T0].error_code is OK


@pytest.mark.parametrize("error", [Errors.FENCED_LEADER_EPOCH, Errors.INELIGIBLE_REPLICA])
def test_with_a_lower_min_insync_a_leader_commits_nothing_while_another_may_lead(
    leader: RecordBroker, error: Errors
) -> None:
    """Another one is elected already, or ZooKeeper could not be written."""
    apply_with_eligible_replicas(leader)
    leader.logs.configure({"t": LogConfig()})
    produced = leader.produce(b"a")
    request = leader.send()
    leader.answer(request, refused(request.partitions[0], error))
    assert (produced.is_waiting, leader.hosted().high_watermark) == (True, 0)
    assert leader.manager.alter_partition_request() is None, "it does not ask again at once"
    leader.manager.shrink_isrs(leader.now_ms)
    asked_again = leader.manager.alter_partition_request() is not None
    assert asked_again is (error is Errors.INELIGIBLE_REPLICA)
    assert leader.hosted().high_watermark == 0


# --- lost leaderships -----------------------------------------------------------------------------


@pytest.mark.parametrize("next_leader", [2, -1])
def test_a_lost_leadership_answers_waiting_requests(leader: RecordBroker, next_leader: int) -> None:
    produced = leader.produce(b"a")
    leader.apply(next_leader, 2)
    assert produced.answer[T0].error_code is Errors.NOT_LEADER_OR_FOLLOWER


def test_a_leader_in_a_new_epoch_still_waits_for_the_isr(
    leader: RecordBroker, follower: RecordBroker
) -> None:
    """Another member left the ISR; the appended records remain."""
    produced = leader.produce(b"a")
    for broker in (leader, follower):
        broker.apply(1, 2)
    assert produced.is_waiting
    follower.follow(leader, times=2)
    assert produced.answer == {T0: ProducedPartition(OK, 0, -1, 0)}


def test_a_deleted_partition_answers_waiting_requests(leader: RecordBroker) -> None:
    produced = leader.produce(b"a")
    leader.manager.handle(HEADER, stop_replica(T0, 1, delete=True), 0)
    leader.apply(1, 1)
    assert produced.answer[T0].error_code is Errors.NOT_LEADER_OR_FOLLOWER
    assert leader.values() == []


# --- records the log refuses ----------------------------------------------------------------------


def test_records_refused_by_the_log_are_an_error_of_the_producer(leader: RecordBroker) -> None:
    torn = batch(b"a")[:-1]
    produced = leader.produce_to({T0: torn}).answer[T0]
    assert produced.error_code is Errors.CORRUPT_MESSAGE
    assert produced.message
    assert leader.hosted().role is Role.LEADER


def test_a_refusal_names_the_start_of_the_log_if_kafka_does(leader: RecordBroker) -> None:
    marker = leader.produce_to({T0: batch(b"a", attributes=CONTROL_MASK)}).answer[T0]
    assert (marker.error_code, marker.log_start_offset) == (Errors.INVALID_RECORD, 0)
    torn = leader.produce_to({T0: batch(b"a")[:-1]}).answer[T0]
    assert torn == ProducedPartition(Errors.CORRUPT_MESSAGE, message=torn.message)
    assert torn.log_start_offset == -1


def test_a_failed_disk_takes_the_replica_offline(leader: RecordBroker) -> None:
    waiting = leader.produce(b"a")
    leader.log().is_unwritable = True
    assert leader.produce(b"b").answer[T0].error_code is Errors.KAFKA_STORAGE_ERROR
    assert waiting.answer[T0].error_code is Errors.KAFKA_STORAGE_ERROR
    assert leader.hosted().role is Role.OFFLINE
    assert leader.produce(b"c").answer[T0].error_code is Errors.KAFKA_STORAGE_ERROR
    assert hosted_as(Role.LEADER, leader.manager) == 0
    assert hosted_as(Role.OFFLINE, leader.manager) == 1


def test_without_a_file_descriptor_the_producer_gets_a_retriable_error(
    leader: RecordBroker,
) -> None:
    waiting = leader.produce(b"a")
    leader.log().is_short = True
    assert leader.produce(b"b").answer[T0].error_code is Errors.NOT_LEADER_OR_FOLLOWER
    assert waiting.is_waiting
    assert leader.hosted().role is Role.LEADER
    leader.log().is_short = False
    assert leader.produce(b"b", acks=1).answer == {T0: ProducedPartition(OK, 1, -1, 0)}


def test_a_batch_after_one_without_a_file_descriptor_is_refused_too(
    leader: RecordBroker,
) -> None:
    first, second = (
        batch(value, producer_id=7, producer_epoch=0, base_sequence=sequence)
        for sequence, value in enumerate((b"a", b"b"))
    )
    leader.log().is_short = True
    assert leader.produce_to({T0: first}).answer[T0].error_code is Errors.NOT_LEADER_OR_FOLLOWER
    leader.log().is_short = False
    assert leader.produce_to({T0: second}).answer[T0].error_code is Errors.NOT_LEADER_OR_FOLLOWER
    for records in (first, second):
        assert leader.produce_to({T0: records}).is_waiting
    assert leader.values() == [b"a", b"b"]


# --- idempotent producers -------------------------------------------------------------------------


def test_a_duplicate_waits_for_the_first_append(
    leader: RecordBroker, follower: RecordBroker
) -> None:
    records = batch(b"a", b"b", producer_id=7, producer_epoch=0, base_sequence=0)
    first = leader.produce_to({T0: records})
    again = leader.produce_to({T0: records})
    later = leader.produce(b"c")
    assert (first.is_waiting, again.is_waiting) == (True, True)
    request, asked = follower.fetch_from(leader)
    cut = len(batch(b"a", b"b"))
    answer = asked.answer
    ((_, row),) = answer.partitions()
    assert row.records.size > cut
    follower.take(leader, request, answer)
    follower.follow(leader)
    assert first.answer == again.answer == {T0: ProducedPartition(OK, 0, -1, 0)}
    assert later.answer[T0].base_offset == 2
    assert leader.values() == [b"a", b"b", b"c"], "appended once"
    assert leader.manager.topic_stats.all_topics().messages_in == 3


def sent(number: int) -> dict[TopicPartition, bytes]:
    """Return batch number ``number`` of one producer."""
    value = b"%d" % number
    return {T0: batch(value, producer_id=7, producer_epoch=0, base_sequence=number)}


def refuse_for_now(leader: RecordBroker, error: Errors) -> None:
    """Let a leader refuse batches for a temporary reason."""
    if error is Errors.NOT_ENOUGH_REPLICAS:
        leader.apply(1, 2, isr=(1,))
    else:
        leader.apply(2, 2)


@pytest.mark.parametrize("known", [0, 1])
@pytest.mark.parametrize("error", [Errors.NOT_ENOUGH_REPLICAS, Errors.NOT_LEADER_OR_FOLLOWER])
def test_a_batch_after_a_refused_batch_gets_the_same_error(
    leader: RecordBroker, error: Errors, known: int
) -> None:
    """After OUT_OF_ORDER librdkafka would start a new epoch and write batches twice."""
    for number in range(known):
        leader.produce_to(sent(number))
    refuse_for_now(leader, error)
    assert leader.produce_to(sent(known)).answer[T0].error_code is error
    leader.apply(1, 3)
    behind = range(known + 1, known + 5)
    assert [leader.produce_to(sent(n)).answer[T0].error_code for n in behind] == [error] * 4
    for number in (known, *behind):
        assert leader.produce_to(sent(number)).is_waiting
    assert leader.values() == [b"%d" % number for number in range(known + 5)]


def test_a_producer_that_never_repeats_a_refused_batch_gets_out_of_order(
    leader: RecordBroker,
) -> None:
    leader.produce_to(sent(0))
    refuse_for_now(leader, Errors.NOT_ENOUGH_REPLICAS)
    leader.produce_to(sent(1))
    leader.apply(1, 3)
    assert errors_of(leader, 2, 2, 2, 2) == [Errors.NOT_ENOUGH_REPLICAS] * 4
    assert errors_of(leader, 2, 2) == [Errors.OUT_OF_ORDER_SEQUENCE_NUMBER] * 2


@pytest.mark.parametrize("known", [0, 1])
def test_a_new_leader_waits_for_a_batch_sent_to_the_former_leader(
    leader: RecordBroker, follower: RecordBroker, known: int
) -> None:
    """A producer may send the next batch before the one that the former leader has refused."""
    for number in range(known):
        leader.produce_to(sent(number))
    follower.follow(leader)
    follower.apply(2, 2)
    early = follower.produce_to(sent(known + 1)).answer[T0]
    assert early.error_code is Errors.NOT_LEADER_OR_FOLLOWER
    assert "may still arrive" in early.message
    for number in (known, known + 1):
        assert follower.produce_to(sent(number)).is_waiting
    late = follower.produce_to(sent(known + 3)).answer[T0]
    assert late.error_code is Errors.OUT_OF_ORDER_SEQUENCE_NUMBER, (
        "the producer has an acknowledged batch of this leader"
    )


def test_a_batch_that_overtakes_a_refused_one_is_refused_until_that_one_is_appended(
    leader: RecordBroker, follower: RecordBroker
) -> None:
    """The producer has the first refusal and not the second when it sends more."""
    follower.follow(leader)
    follower.apply(2, 2)
    error = Errors.NOT_LEADER_OR_FOLLOWER
    assert [follower.produce_to(sent(n)).answer[T0].error_code for n in (1, 2)] == [error] * 2
    assert follower.produce_to(sent(0)).is_waiting
    assert [follower.produce_to(sent(n)).answer[T0].error_code for n in (3, 4)] == [error] * 2
    for number in range(1, 5):
        assert follower.produce_to(sent(number)).is_waiting
    assert follower.values() == [b"%d" % number for number in range(5)]


def test_a_duplicate_does_not_replace_a_batch_refused_after_it(leader: RecordBroker) -> None:
    leader.produce_to(sent(0))
    refuse_for_now(leader, Errors.NOT_ENOUGH_REPLICAS)
    leader.produce_to(sent(1))
    leader.apply(1, 3)
    assert leader.produce_to(sent(0)).is_waiting, "the producer repeats it"
    early = leader.produce_to(sent(2)).answer[T0]
    assert early.error_code is Errors.NOT_ENOUGH_REPLICAS


def test_a_gap_without_a_refused_batch_is_out_of_order_at_once(leader: RecordBroker) -> None:
    leader.produce_to(sent(0))
    gap = leader.produce_to(sent(2)).answer[T0]
    assert gap.error_code is Errors.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_leader_that_its_isr_has_left_does_not_call_a_batch_out_of_order(
    leader: RecordBroker, follower: RecordBroker
) -> None:
    """The missing batch may be in the log of the next leader; see ``OutOfOrderBatches``."""
    leader.produce_to(sent(0))
    follower.follow(leader)
    leader.now_ms = 2_001  # the follower leads now, and has batch 1
    gap = leader.produce_to(sent(2)).answer[T0]
    assert gap.error_code is Errors.NOT_LEADER_OR_FOLLOWER
    follower.follow(leader)
    gap = leader.produce_to(sent(2)).answer[T0]
    assert gap.error_code is Errors.OUT_OF_ORDER_SEQUENCE_NUMBER, "no other broker led"


def errors_of(leader: RecordBroker, *numbers: int) -> list[Errors]:
    """Send batches that are refused; return their errors."""
    return [leader.produce_to(sent(number)).answer[T0].error_code for number in numbers]


def test_a_first_leader_waits_for_the_first_batch_of_a_producer() -> None:
    """The first batch went to a broker that is not the leader; the second arrives earlier."""
    leader = RecordBroker(1, TWO_IN_SYNC)
    leader.apply(1, 0)
    assert errors_of(leader, 1) == [Errors.NOT_LEADER_OR_FOLLOWER]
    for number in (0, 1):
        assert leader.produce_to(sent(number)).is_waiting
    assert leader.values() == [b"0", b"1"]


@pytest.mark.parametrize("leader_epoch", [0, 2])
def test_a_producer_with_an_expired_state_is_refused_a_few_times_and_then_accepted(
    leader_epoch: int,
) -> None:
    leader = RecordBroker(1, TWO_IN_SYNC)
    leader.apply(1, leader_epoch)
    in_flight = range(5, 10)
    for _ in range(4):
        assert set(errors_of(leader, *in_flight)) == {Errors.NOT_LEADER_OR_FOLLOWER}
    for number in in_flight:
        assert leader.produce_to(sent(number)).is_waiting
    assert leader.values() == [b"%d" % number for number in in_flight]


def test_more_producers_than_are_remembered_are_accepted_at_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each producer would be removed before it tries again."""
    monkeypatch.setattr(produce, "MAX_PRODUCERS", 10)
    leader = RecordBroker(1, TWO_IN_SYNC)
    leader.apply(1, 0)
    left = set(range(30))
    for _ in range(20):
        for producer_id in sorted(left):
            records = batch(b"a", producer_id=producer_id, producer_epoch=0, base_sequence=5)
            if leader.produce_to({T0: records}).is_waiting:
                left.remove(producer_id)
    assert not left


def test_a_batch_refused_here_and_appended_elsewhere_does_not_block_later_batches(
    leader: RecordBroker, follower: RecordBroker
) -> None:
    refuse_for_now(leader, Errors.NOT_LEADER_OR_FOLLOWER)
    follower.apply(2, 2)
    leader.produce_to(sent(0))
    follower.produce_to(sent(0))
    leader.follow(follower)
    leader.apply(1, 3)
    assert leader.produce_to(sent(1)).is_waiting
    assert leader.values() == [b"0", b"1"]


def test_a_duplicate_of_a_committed_batch_is_answered_at_once(
    leader: RecordBroker, follower: RecordBroker
) -> None:
    records = batch(b"a", producer_id=7, producer_epoch=0, base_sequence=0)
    leader.produce_to({T0: records})
    follower.follow(leader, times=2)
    assert leader.produce_to({T0: records}).answer[T0] == ProducedPartition(OK, 0, -1, 0)


# --- time -----------------------------------------------------------------------------------------


def test_a_request_that_is_not_committed_in_time_times_out(
    leader: RecordBroker, follower: RecordBroker
) -> None:
    leader.apply(1, 1, T1, isr=(1, 2, 3), replicas=(1, 2, 3))
    follower.apply(1, 1, T1, isr=(1, 2, 3), replicas=(1, 2, 3))
    produced = leader.produce_to({T0: batch(b"a"), T1: batch(b"a")})
    follower.follow(leader, times=2)
    assert produced.is_waiting, "broker 3 has not fetched t-1"
    answer = produced.expire()
    assert {topic_partition: a.error_code for topic_partition, a in answer.items()} == {
        T0: OK,
        T1: Errors.REQUEST_TIMED_OUT,
    }
    produced.expire()


def test_a_follower_that_stops_fetching_before_it_joins_is_not_waited_for() -> None:
    leader = RecordBroker()
    leader.apply(1, 1, isr=(1,))
    follower = RecordBroker(2)
    follower.apply(1, 1)
    follower.follow(leader)
    leader.apply(1, 2, isr=(1,))  # the proposal is void, and the follower does not fetch
    leader.hosted().followers[2].last_caught_up_ms = 0
    produced = leader.produce(b"a")
    assert produced.is_waiting, "it may join the ISR"
    leader.now_ms = LAG_MS + 1
    leader.manager.shrink_isrs(leader.now_ms)
    assert produced.answer[T0].error_code is OK


def test_a_follower_refused_for_the_isr_is_not_waited_for() -> None:
    leader = RecordBroker()
    leader.apply(1, 1, isr=(1,))
    follower = RecordBroker(2)
    follower.apply(1, 1)
    follower.follow(leader)
    produced = leader.produce(b"a")
    assert produced.is_waiting, "it may be in the ISR"
    request = leader.manager.alter_partition_request()
    assert request is not None
    leader.meet(1, 3)
    refusal = refused(request.partitions[0], Errors.INELIGIBLE_REPLICA)
    response = AlterPartitionResponse(Errors.NONE, (refusal,))
    leader.manager.on_alter_partition_response(request, response, leader.now_ms)
    assert produced.answer[T0].error_code is OK


@pytest.mark.parametrize("policy", ["compact", "compact,delete", "delete"])
def test_partitions_that_need_keys_are_known_by_their_cleanup_policy(policy: str) -> None:
    broker = RecordBroker(1, LogConfig(cleanup_policy=policy))
    assert not broker.manager.record_rules(T0).needs_keys, "not hosted yet"
    broker.apply(1, 0, isr=(1,))
    assert broker.manager.record_rules(T0).needs_keys is (policy != "delete")
