"""What producers are told, and when: acks, high watermarks, ISRs that are too small."""

from __future__ import annotations

import pytest

from regent.core.errors import Errors
from regent.core.log_config import LogConfig
from regent.core.model import TopicPartition
from regent.core.protocol.client import ProducedPartition
from regent.core.protocol.controller import AlterPartitionResponse
from regent.core.replication import out_of_order_batches
from regent.core.replication.partition import Role
from tests.core.replication.record_stage import TWO_IN_SYNC, RecordBroker
from tests.core.replication.stage import HEADER, LAG_MS, T0, T1, T2, refused, stop_replica
from tests.support.record_batches import TIMESTAMP_MS, batch

OK = Errors.NONE


@pytest.fixture
def leader() -> RecordBroker:
    """Leads t-0 in leader epoch 1 with broker 2 in sync; two must be."""
    leader = RecordBroker(1, TWO_IN_SYNC)
    leader.order(1, 1)
    return leader


@pytest.fixture
def follower() -> RecordBroker:
    """Follows it."""
    follower = RecordBroker(2, TWO_IN_SYNC)
    follower.order(1, 1)
    return follower


# --- acks -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("acks", [0, 1])
def test_who_does_not_wait_for_replicas_is_answered_at_once(
    leader: RecordBroker, acks: int
) -> None:
    leader.produce(b"a", b"b", acks=acks)
    answer = leader.produce(b"c", acks=acks).answer
    assert answer == {T0: ProducedPartition(OK, 2, -1, 0)}
    assert leader.values() == [b"a", b"b", b"c"]
    assert {record.leader_epoch for record in leader.log().records()} == {1}


def test_acks_all_waits_until_every_member_of_the_isr_has_it(
    leader: RecordBroker, follower: RecordBroker
) -> None:
    produced = leader.produce(b"a", b"b")
    follower.follow(leader)
    assert follower.values() == [b"a", b"b"]
    assert produced.is_waiting, "the leader learns of it by the next fetch"
    follower.follow(leader)
    assert produced.answer == {T0: ProducedPartition(OK, 0, -1, 0)}
    assert leader.hosted().high_watermark == 2


def test_alone_in_the_isr_a_leader_commits_at_once() -> None:
    leader = RecordBroker()
    leader.order(1, 1, isr=(1,))
    assert leader.produce(b"a").answer[T0].error_code is OK
    assert leader.hosted().high_watermark == 1


@pytest.mark.parametrize("acks", [2, -2, 32767])
def test_other_acks_are_refused(leader: RecordBroker, acks: int) -> None:
    answer = leader.produce_to({T0: batch(b"a"), T1: batch(b"a")}, acks).answer
    assert {a.error_code for a in answer.values()} == {Errors.INVALID_REQUIRED_ACKS}
    assert set(answer) == {T0, T1}
    assert leader.values() == []


def test_records_that_come_later_do_not_keep_earlier_ones_waiting(
    leader: RecordBroker, follower: RecordBroker
) -> None:
    first = leader.produce(b"a")
    follower.follow(leader)
    second = leader.produce(b"b")
    follower.follow(leader)
    assert (first.is_waiting, second.is_waiting) == (False, True)


def test_each_partition_is_answered_for_itself(
    leader: RecordBroker, follower: RecordBroker
) -> None:
    leader.order(2, 1, T1)
    leader.order(1, 1, T2, isr=(1, 2), replicas=(1, 2))
    follower.order(1, 1, T2)
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


def test_nothing_is_produced_to_nothing(leader: RecordBroker) -> None:
    assert leader.produce_to({}).answer == {}


def test_where_the_leader_stamps_the_time_the_producer_is_told_it() -> None:
    leader = RecordBroker(1, LogConfig(message_timestamp_type="LogAppendTime"))
    leader.order(1, 1, isr=(1,))
    assert leader.produce(b"a").answer[T0].log_append_time_ms == TIMESTAMP_MS


# --- too few in sync ------------------------------------------------------------------------------


def test_with_too_few_in_sync_nothing_is_appended_for_all_but_for_one(
    leader: RecordBroker,
) -> None:
    leader.order(1, 2, isr=(1,))
    assert leader.produce(b"a").answer == {T0: ProducedPartition(Errors.NOT_ENOUGH_REPLICAS)}
    assert leader.values() == []
    assert leader.produce(b"a", acks=1).answer[T0].error_code is OK


def test_a_proposed_member_does_not_count_for_admission(
    leader: RecordBroker, follower: RecordBroker
) -> None:
    leader.order(1, 2, isr=(1,))
    follower.order(1, 2)
    follower.follow(leader)
    assert leader.hosted().maximal_isr == (1, 2)
    assert leader.produce(b"a").answer[T0].error_code is Errors.NOT_ENOUGH_REPLICAS
    leader.commit_isr()
    assert leader.produce(b"a").is_waiting


def test_records_of_too_few_replicas_are_not_committed(leader: RecordBroker) -> None:
    produced = leader.produce(b"a")  # KAFKA-15583
    leader.now_ms = LAG_MS + 1
    leader.manager.shrink_isrs(leader.now_ms)
    leader.commit_isr()
    assert leader.hosted().isr == (1,)
    assert (produced.is_waiting, leader.hosted().high_watermark) == (True, 0)
    assert produced.expire(leader.now_ms)[T0].error_code is Errors.REQUEST_TIMED_OUT


def test_records_of_too_few_replicas_are_committed_when_there_are_enough_again(
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


def test_where_fewer_are_assigned_than_must_be_in_sync_all_of_them_commit() -> None:
    leader = RecordBroker(1, TWO_IN_SYNC)
    leader.order(1, 1, isr=(1,), replicas=(1,))
    leader.produce(b"a", acks=1)
    assert leader.hosted().high_watermark == 1
    assert leader.produce(b"a").answer[T0].error_code is Errors.NOT_ENOUGH_REPLICAS


def test_when_more_must_be_in_sync_by_the_time_of_the_commit_the_producer_hears_it() -> None:
    leader = RecordBroker(1, LogConfig())
    leader.order(1, 1, isr=(1, 2), replicas=(1, 2))
    follower = RecordBroker(2)
    follower.order(1, 1)
    produced = leader.produce(b"a")
    leader.logs.configure({"t": LogConfig(min_insync_replicas=3)})
    follower.follow(leader, times=2)
    assert produced.answer[T0].error_code is Errors.NOT_ENOUGH_REPLICAS_AFTER_APPEND


# --- leaders that are none any more ---------------------------------------------------------------


@pytest.mark.parametrize("next_leader", [2, -1])
def test_a_leadership_that_ends_tells_those_who_wait(
    leader: RecordBroker, next_leader: int
) -> None:
    produced = leader.produce(b"a")
    leader.order(next_leader, 2)
    assert produced.answer[T0].error_code is Errors.NOT_LEADER_OR_FOLLOWER


def test_a_leader_of_a_new_epoch_goes_on_waiting_for_those_in_sync(
    leader: RecordBroker, follower: RecordBroker
) -> None:
    """Somebody else left the ISR: nothing that was appended is in doubt."""
    produced = leader.produce(b"a")
    for broker in (leader, follower):
        broker.order(1, 2)
    assert produced.is_waiting
    follower.follow(leader, times=2)
    assert produced.answer == {T0: ProducedPartition(OK, 0, -1, 0)}


def test_a_partition_that_is_deleted_tells_those_who_wait(leader: RecordBroker) -> None:
    produced = leader.produce(b"a")
    leader.manager.handle(HEADER, stop_replica(T0, 1, delete=True), 0)
    leader.order(1, 1)
    assert produced.answer[T0].error_code is Errors.NOT_LEADER_OR_FOLLOWER
    assert leader.values() == []


# --- what a log does not take ---------------------------------------------------------------------


def test_records_a_log_refuses_are_their_producers_business(leader: RecordBroker) -> None:
    torn = batch(b"a")[:-1]
    produced = leader.produce_to({T0: torn}).answer[T0]
    assert produced.error_code is Errors.CORRUPT_MESSAGE
    assert produced.message
    assert leader.hosted().role is Role.LEADER


def test_a_disk_that_fails_takes_the_replica_out_of_service(leader: RecordBroker) -> None:
    waiting = leader.produce(b"a")
    leader.log().is_unwritable = True
    assert leader.produce(b"b").answer[T0].error_code is Errors.KAFKA_STORAGE_ERROR
    assert waiting.answer[T0].error_code is Errors.KAFKA_STORAGE_ERROR
    assert leader.hosted().role is Role.OFFLINE
    assert leader.produce(b"c").answer[T0].error_code is Errors.KAFKA_STORAGE_ERROR
    assert (leader.manager.leader_count, leader.manager.offline_replica_count) == (0, 1)


def test_who_finds_no_file_descriptor_is_asked_to_come_again(leader: RecordBroker) -> None:
    waiting = leader.produce(b"a")
    leader.log().is_short = True
    assert leader.produce(b"b").answer[T0].error_code is Errors.NOT_LEADER_OR_FOLLOWER
    assert waiting.is_waiting
    assert leader.hosted().role is Role.LEADER
    leader.log().is_short = False
    assert leader.produce(b"b", acks=1).answer == {T0: ProducedPartition(OK, 1, -1, 0)}


def test_what_is_in_flight_behind_a_batch_that_found_no_file_descriptor_waits_for_it(
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


def test_a_duplicate_waits_for_what_was_appended_first(
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
    assert len(row.records) > cut
    follower.take(leader, request, answer)
    follower.follow(leader)
    assert first.answer == again.answer == {T0: ProducedPartition(OK, 0, -1, 0)}
    assert later.answer[T0].base_offset == 2
    assert leader.values() == [b"a", b"b", b"c"], "once"
    assert leader.manager.records_in == 3


def sent(number: int) -> dict[TopicPartition, bytes]:
    """Return one of the batches that a producer sends one after the other."""
    value = b"%d" % number
    return {T0: batch(value, producer_id=7, producer_epoch=0, base_sequence=number)}


def refuse_for_now(leader: RecordBroker, error: Errors) -> None:
    """Have a leader take nothing, for a reason that will pass."""
    if error is Errors.NOT_ENOUGH_REPLICAS:
        leader.order(1, 2, isr=(1,))
    else:
        leader.order(2, 2)


@pytest.mark.parametrize("known", [0, 1])
@pytest.mark.parametrize("error", [Errors.NOT_ENOUGH_REPLICAS, Errors.NOT_LEADER_OR_FOLLOWER])
def test_what_is_in_flight_behind_a_refused_batch_is_refused_like_it(
    leader: RecordBroker, error: Errors, known: int
) -> None:
    """Not as out of order: librdkafka would take a new epoch, and write other batches twice."""
    for number in range(known):
        leader.produce_to(sent(number))
    refuse_for_now(leader, error)
    assert leader.produce_to(sent(known)).answer[T0].error_code is error
    leader.order(1, 3)
    behind = range(known + 1, known + 5)
    assert [leader.produce_to(sent(n)).answer[T0].error_code for n in behind] == [error] * 4
    for number in (known, *behind):
        assert leader.produce_to(sent(number)).is_waiting
    assert leader.values() == [b"%d" % number for number in range(known + 5)]


def test_a_producer_that_never_sends_what_was_refused_hears_that_it_is_missing(
    leader: RecordBroker,
) -> None:
    leader.produce_to(sent(0))
    refuse_for_now(leader, Errors.NOT_ENOUGH_REPLICAS)
    leader.produce_to(sent(1))
    leader.order(1, 3)
    assert told(leader, 2, 2, 2, 2) == [Errors.NOT_ENOUGH_REPLICAS] * 4
    assert told(leader, 2, 2) == [Errors.OUT_OF_ORDER_SEQUENCE_NUMBER] * 2


@pytest.mark.parametrize("known", [0, 1])
def test_a_new_leader_waits_for_what_was_sent_to_the_former_one(
    leader: RecordBroker, follower: RecordBroker, known: int
) -> None:
    """By librdkafka, what comes next may be sent before what the former leader has just refused."""
    for number in range(known):
        leader.produce_to(sent(number))
    follower.follow(leader)
    follower.order(2, 2)
    early = follower.produce_to(sent(known + 1)).answer[T0]
    assert early.error_code is Errors.NOT_LEADER_OR_FOLLOWER
    assert "may still arrive" in early.message
    for number in (known, known + 1):
        assert follower.produce_to(sent(number)).is_waiting
    late = follower.produce_to(sent(known + 3)).answer[T0]
    assert late.error_code is Errors.OUT_OF_ORDER_SEQUENCE_NUMBER, "it knows this leader by now"


def test_what_overtakes_a_refused_batch_is_refused_until_that_is_there(
    leader: RecordBroker, follower: RecordBroker
) -> None:
    """Its producer has heard of the first one, and not yet of the second, when it sends more."""
    follower.follow(leader)
    follower.order(2, 2)
    error = Errors.NOT_LEADER_OR_FOLLOWER
    assert [follower.produce_to(sent(n)).answer[T0].error_code for n in (1, 2)] == [error] * 2
    assert follower.produce_to(sent(0)).is_waiting
    assert [follower.produce_to(sent(n)).answer[T0].error_code for n in (3, 4)] == [error] * 2
    for number in range(1, 5):
        assert follower.produce_to(sent(number)).is_waiting
    assert follower.values() == [b"%d" % number for number in range(5)]


def test_a_duplicate_does_not_stand_for_what_was_refused_after_it(leader: RecordBroker) -> None:
    leader.produce_to(sent(0))
    refuse_for_now(leader, Errors.NOT_ENOUGH_REPLICAS)
    leader.produce_to(sent(1))
    leader.order(1, 3)
    assert leader.produce_to(sent(0)).is_waiting, "it was not acknowledged in time"
    early = leader.produce_to(sent(2)).answer[T0]
    assert early.error_code is Errors.NOT_ENOUGH_REPLICAS


def test_a_gap_where_nothing_was_refused_is_told_at_once(leader: RecordBroker) -> None:
    leader.produce_to(sent(0))
    gap = leader.produce_to(sent(2)).answer[T0]
    assert gap.error_code is Errors.OUT_OF_ORDER_SEQUENCE_NUMBER


def told(leader: RecordBroker, *numbers: int) -> list[Errors]:
    """Send batches, and return what their producer hears at once, which is a refusal."""
    return [leader.produce_to(sent(number)).answer[T0].error_code for number in numbers]


def test_a_first_leader_waits_for_the_first_batch_of_a_producer() -> None:
    """The first batch went to a broker that does not lead; the second one arrives before it."""
    leader = RecordBroker(1, TWO_IN_SYNC)
    leader.order(1, 0)
    assert told(leader, 1) == [Errors.NOT_LEADER_OR_FOLLOWER]
    for number in (0, 1):
        assert leader.produce_to(sent(number)).is_waiting
    assert leader.values() == [b"0", b"1"]


@pytest.mark.parametrize("leader_epoch", [0, 2])
def test_a_producer_whose_state_expired_is_asked_a_few_times_and_taken_in_its_order(
    leader_epoch: int,
) -> None:
    leader = RecordBroker(1, TWO_IN_SYNC)
    leader.order(1, leader_epoch)
    in_flight = range(5, 10)
    for _ in range(4):
        assert set(told(leader, *in_flight)) == {Errors.NOT_LEADER_OR_FOLLOWER}
    for number in in_flight:
        assert leader.produce_to(sent(number)).is_waiting
    assert leader.values() == [b"%d" % number for number in in_flight]


def test_more_producers_than_are_remembered_are_not_refused_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each of them would be forgotten before it comes again."""
    monkeypatch.setattr(out_of_order_batches, "MAX_PRODUCERS", 10)
    leader = RecordBroker(1, TWO_IN_SYNC)
    leader.order(1, 0)
    left = set(range(30))
    for _ in range(20):
        for producer_id in sorted(left):
            records = batch(b"a", producer_id=producer_id, producer_epoch=0, base_sequence=5)
            if leader.produce_to({T0: records}).is_waiting:
                left.remove(producer_id)
    assert not left


def test_what_was_refused_and_sent_elsewhere_keeps_no_later_batch_out(
    leader: RecordBroker, follower: RecordBroker
) -> None:
    refuse_for_now(leader, Errors.NOT_LEADER_OR_FOLLOWER)
    follower.order(2, 2)
    leader.produce_to(sent(0))
    follower.produce_to(sent(0))
    leader.follow(follower)
    leader.order(1, 3)
    assert leader.produce_to(sent(1)).is_waiting
    assert leader.values() == [b"0", b"1"]


def test_a_duplicate_of_what_is_committed_is_answered_at_once(
    leader: RecordBroker, follower: RecordBroker
) -> None:
    records = batch(b"a", producer_id=7, producer_epoch=0, base_sequence=0)
    leader.produce_to({T0: records})
    follower.follow(leader, times=2)
    assert leader.produce_to({T0: records}).answer[T0] == ProducedPartition(OK, 0, -1, 0)


# --- time -----------------------------------------------------------------------------------------


def test_what_is_not_committed_in_time_has_timed_out(
    leader: RecordBroker, follower: RecordBroker
) -> None:
    leader.order(1, 1, T1, isr=(1, 2, 3), replicas=(1, 2, 3))
    follower.order(1, 1, T1, isr=(1, 2, 3), replicas=(1, 2, 3))
    produced = leader.produce_to({T0: batch(b"a"), T1: batch(b"a")})
    follower.follow(leader, times=2)
    assert produced.is_waiting, "broker 3 has not fetched t-1"
    answer = produced.expire()
    assert {topic_partition: a.error_code for topic_partition, a in answer.items()} == {
        T0: OK,
        T1: Errors.REQUEST_TIMED_OUT,
    }
    produced.expire()


def test_a_follower_that_falls_silent_before_it_joins_is_waited_for_no_longer() -> None:
    leader = RecordBroker()
    leader.order(1, 1, isr=(1,))
    follower = RecordBroker(2)
    follower.order(1, 1)
    follower.follow(leader)
    leader.order(1, 2, isr=(1,))  # what was proposed is void, and it does not ask again
    leader.hosted().followers[2].last_caught_up_ms = 0
    produced = leader.produce(b"a")
    assert produced.is_waiting, "it could be in the ISR at any time"
    leader.now_ms = LAG_MS + 1
    leader.manager.shrink_isrs(leader.now_ms)
    assert produced.answer[T0].error_code is OK


def test_a_follower_that_is_not_let_into_the_isr_is_waited_for_no_longer() -> None:
    leader = RecordBroker()
    leader.order(1, 1, isr=(1,))
    follower = RecordBroker(2)
    follower.order(1, 1)
    follower.follow(leader)
    produced = leader.produce(b"a")
    assert produced.is_waiting, "it may be in the ISR by now"
    request = leader.manager.alter_partition_request()
    assert request is not None
    leader.meet(1, 3)
    refusal = refused(request.partitions[0], Errors.INELIGIBLE_REPLICA)
    response = AlterPartitionResponse(Errors.NONE, (refusal,))
    leader.manager.on_alter_partition_response(request, response, leader.now_ms)
    assert produced.answer[T0].error_code is OK


@pytest.mark.parametrize("policy", ["compact", "compact,delete", "delete"])
def test_which_partitions_take_no_records_without_a_key_is_known(policy: str) -> None:
    broker = RecordBroker(1, LogConfig(cleanup_policy=policy))
    assert not broker.manager.is_compacted(T0), "it is not hosted"
    broker.order(1, 0, isr=(1,))
    assert broker.manager.is_compacted(T0) is (policy != "delete")
