"""Long work releases the lock between slices."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

from regent.core.errors import Errors
from regent.core.model import TopicPartition
from regent.core.protocol.broker import FetchedPartition
from regent.core.protocol.control import (
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopic,
    LeaderAndIsrType,
    StopReplicaPartition,
    StopReplicaRequest,
    StopReplicaResponse,
    StopReplicaTopic,
)
from regent.core.records import RecordBytes
from regent.core.replication.delayed_operation import (
    APPEND_BYTES,
    BYTES_PER_SLICE,
    LOOKS_PER_SLICE,
    REPLICAS_PER_SLICE,
    slices_of_records,
    slices_of_replicas,
)
from regent.core.replication.partition import Role
from tests.core.replication.record_stage import RecordBroker
from tests.core.replication.stage import HEADER, LAG_MS, T0, T1, T2, A, state
from tests.support.record_batches import batch

OK = Errors.NONE
MANY = 2 * BYTES_PER_SLICE // APPEND_BYTES + 1  # small records, appended in three slices


def partitions(count: int) -> list[TopicPartition]:
    """Return ``count`` partitions."""
    return [TopicPartition("t", number) for number in range(count)]


class InterruptedLock:
    """A lock that calls a function when it is first released."""

    def __init__(self) -> None:
        self.count = 0
        self.interrupt: Callable[[], object] | None = None

    def __enter__(self) -> None:
        self.count += 1

    def __exit__(self, *failure: object) -> None:
        interrupt, self.interrupt = self.interrupt, None
        if interrupt is not None:
            interrupt()


# --- portions -------------------------------------------------------------------------------------


def test_a_portion_of_records_ends_at_the_bytes_of_one_slice() -> None:
    sizes = [(T0, BYTES_PER_SLICE), (T1, BYTES_PER_SLICE // 2), (T2, BYTES_PER_SLICE)]
    assert list(slices_of_records(sizes)) == [[T0], [T1, T2]]


def test_small_records_count_for_more_than_their_bytes() -> None:
    few, many = partitions(MANY - 1), partitions(10 * MANY)
    portions = list(slices_of_records((topic_partition, 1) for topic_partition in few))
    assert portions == [few[: MANY // 2], few[MANY // 2 :]]
    assert list(slices_of_records((topic_partition, 0) for topic_partition in many)) == [many]


def test_there_is_no_portion_of_an_empty_request() -> None:
    assert list(slices_of_records([])) == []
    assert list(slices_of_replicas([])) == []


def test_control_request_rows_are_divided_by_their_number() -> None:
    assert list(slices_of_replicas(range(REPLICAS_PER_SLICE + 1))) == [
        list(range(REPLICAS_PER_SLICE)),
        [REPLICAS_PER_SLICE],
    ]


# --- slices ---------------------------------------------------------------------------------------


def test_other_threads_get_the_lock_while_many_partitions_are_appended_to() -> None:
    lock = InterruptedLock()
    topic_partitions = partitions(MANY)
    leader = RecordBroker(lock=lock)
    leader.apply(1, 1, *topic_partitions)
    lock.count, lock.interrupt = 0, lambda: leader.apply(2, 2, T0, topic_partitions[-1])
    produced = leader.produce_to(
        {topic_partition: batch(b"a") for topic_partition in topic_partitions}
    )
    assert lock.count == 4, "three slices, and the control request after the first"
    follower = RecordBroker(2)
    follower.apply(1, 1, *topic_partitions[1:-1])
    follower.follow(leader, times=2)
    refused = {
        topic_partition for topic_partition, a in produced.answer.items() if a.error_code is not OK
    }
    assert refused == {T0, topic_partitions[-1]}
    assert {produced.answer[topic_partition].error_code for topic_partition in refused} == {
        Errors.NOT_LEADER_OR_FOLLOWER
    }
    assert list(produced.answer) == topic_partitions
    assert leader.values(topic_partitions[-1]) == []


def test_a_leader_elected_again_does_not_acknowledge_records_of_its_earlier_leadership() -> None:
    """The records were truncated, and another record is at that offset."""
    lock, topic_partitions = InterruptedLock(), partitions(MANY)
    leader = RecordBroker(lock=lock)
    leader.apply(1, 1, *topic_partitions)

    def lose_and_win() -> None:
        leader.apply(2, 2, T0)
        leader.log(T0).truncate_to(0)
        leader.apply(1, 3, T0, isr=(1,), replicas=(1,))
        assert leader.produce(b"b").answer[T0].error_code is OK

    lock.interrupt = lose_and_win
    produced = leader.produce_to(
        {topic_partition: batch(b"a") for topic_partition in topic_partitions}
    )
    assert produced.expire()[T0].error_code is Errors.NOT_LEADER_OR_FOLLOWER
    assert leader.values(T0) == [b"b"]


def test_a_request_without_partitions_takes_one_slice() -> None:
    lock = InterruptedLock()
    leader = RecordBroker(lock=lock)
    lock.count = 0
    assert leader.produce_to({}).answer == {}
    assert lock.count == 1


def test_a_partition_led_meanwhile_is_not_appended_to_as_a_follower() -> None:
    topic_partitions, lock = partitions(MANY), InterruptedLock()
    leader, follower = RecordBroker(1), RecordBroker(2, lock=lock)
    for broker in (leader, follower):
        broker.apply(1, 1, *topic_partitions)
    leader.produce_to({topic_partition: batch(b"a") for topic_partition in topic_partitions})
    request, asked = follower.fetch_from(leader)
    lock.count, lock.interrupt = 0, lambda: follower.apply(2, 2, T0, topic_partitions[-1])
    follower.take(leader, request, asked.answer)
    assert lock.count == 4, "before, between and after two appends, and the control request"
    assert follower.values(T1) == follower.values(topic_partitions[-2]) == [b"a"]
    assert follower.values(T0) == [], "it led the partition before the append"
    assert follower.values(topic_partitions[-1]) == [], "it leads the partition now"
    assert (
        follower.produce(b"b", acks=1, topic_partition=topic_partitions[-1])
        .answer[topic_partitions[-1]]
        .base_offset
        == 0
    )


def test_producers_get_the_lock_while_many_replicas_change_roles() -> None:
    topic_partitions, lock = partitions(2 * REPLICAS_PER_SLICE + 1), InterruptedLock()
    broker = RecordBroker(lock=lock)
    around = topic_partitions[
        REPLICAS_PER_SLICE - 1 : REPLICAS_PER_SLICE + 1
    ]  # the end of the first slice
    answers: dict[TopicPartition, Errors] = {}

    def produce() -> None:
        asked = broker.produce_to(
            {topic_partition: batch(b"a") for topic_partition in around}, acks=1
        )
        answers.update(
            {topic_partition: answer.error_code for topic_partition, answer in asked.answer.items()}
        )

    lock.count, lock.interrupt = 0, produce
    rows = tuple(
        state(1, 1)._replace(partition_index=topic_partition.partition)
        for topic_partition in topic_partitions
    )
    request = LeaderAndIsrRequest(
        LeaderAndIsrType.INCREMENTAL, (LeaderAndIsrTopic("t", A, rows),), ()
    )
    response = broker.manager.handle(HEADER, request, broker.now_ms)
    assert isinstance(response, LeaderAndIsrResponse)
    assert [(e.topic_partition, e.error_code) for e in response.partition_errors] == [
        (topic_partition, OK) for topic_partition in topic_partitions
    ]
    assert lock.count == 4, "three slices, and the producer's call after the first"
    assert [topic_partition for topic_partition, error in answers.items() if error is OK] == around[
        :1
    ]


def test_producers_get_the_lock_while_many_replicas_are_deleted() -> None:
    topic_partitions, lock = partitions(2 * REPLICAS_PER_SLICE + 1), InterruptedLock()
    broker = RecordBroker(lock=lock)
    around = topic_partitions[
        REPLICAS_PER_SLICE - 1 : REPLICAS_PER_SLICE + 1
    ]  # the end of the first slice
    broker.apply(1, 1, *topic_partitions)
    answers: dict[TopicPartition, Errors] = {}

    def produce() -> None:
        asked = broker.produce_to(
            {topic_partition: batch(b"a") for topic_partition in around}, acks=1
        )
        answers.update(
            {topic_partition: answer.error_code for topic_partition, answer in asked.answer.items()}
        )

    lock.interrupt = produce
    rows = tuple(
        StopReplicaPartition(topic_partition.partition, 2, delete_partition=True)
        for topic_partition in topic_partitions
    )
    request = StopReplicaRequest((StopReplicaTopic("t", A, rows),))
    response = broker.manager.handle(HEADER, request, broker.now_ms)
    assert isinstance(response, StopReplicaResponse)
    assert {error.error_code for error in response.partition_errors} == {OK}
    assert not broker.manager.partitions
    assert [topic_partition for topic_partition, error in answers.items() if error is OK] == around[
        1:
    ]


def test_other_threads_get_the_lock_while_the_isrs_of_many_partitions_are_checked() -> None:
    topic_partitions, lock = partitions(LOOKS_PER_SLICE + 2), InterruptedLock()
    broker = RecordBroker(lock=lock)
    broker.apply(1, 1, *topic_partitions)
    lock.count, lock.interrupt = 0, lambda: broker.apply(2, 2, topic_partitions[-1])
    broker.now_ms += 2 * LAG_MS
    broker.manager.shrink_isrs(broker.now_ms)
    assert lock.count == 3, "two slices, and the control request after the first"
    request = broker.manager.alter_partition_request()
    assert request is not None
    assert [row.topic_partition for row in request.partitions] == topic_partitions[:-1]


def test_a_truncation_while_many_high_watermarks_are_noted_has_the_last_word() -> None:
    topic_partitions, lock = partitions(LOOKS_PER_SLICE + 1), InterruptedLock()
    broker = RecordBroker(lock=lock)
    broker.apply(1, 1, *topic_partitions, isr=(1,), replicas=(1,))
    first = topic_partitions[0]
    broker.produce(b"a", topic_partition=first)
    assert broker.hosted(first).high_watermark == 1

    def lose_and_lead() -> None:
        broker.apply(2, 2, first)
        broker.log(first).truncate_to(0)
        broker.apply(1, 3, first)
        broker.produce(b"b", acks=1, topic_partition=first)

    lock.interrupt = lose_and_lead
    broker.manager.checkpoint_high_watermarks()
    assert broker.values(first) == [b"b"]
    assert broker.logs.checkpointed_high_watermark(first) == 0, "the record is not committed"


def test_a_topic_created_again_does_not_get_the_noted_high_watermark_of_the_former_one() -> None:
    topic_partitions, lock = partitions(LOOKS_PER_SLICE + 1), InterruptedLock()
    broker = RecordBroker(lock=lock)
    broker.apply(1, 1, *topic_partitions, isr=(1,), replicas=(1,))
    last = topic_partitions[-1]
    broker.produce(b"a", topic_partition=last)

    def delete_and_create() -> None:
        rows = (StopReplicaPartition(last.partition, 2, delete_partition=True),)
        broker.manager.handle(HEADER, StopReplicaRequest((StopReplicaTopic("t", A, rows),)), 0)
        broker.apply(1, 3, last)
        broker.produce(b"b", acks=1, topic_partition=last)

    lock.interrupt = delete_and_create
    broker.manager.checkpoint_high_watermarks()
    assert broker.values(last) == [b"b"]
    assert broker.logs.checkpointed_high_watermark(last) == 0, "the record is not committed"


def test_a_follower_appends_without_the_lock() -> None:
    lock, was_locked = threading.Lock(), list[bool]()
    leader, follower = RecordBroker(1), RecordBroker(2, lock=lock)
    for broker in (leader, follower):
        broker.apply(1, 1)
    leader.produce(b"a", acks=1)
    request, asked = follower.fetch_from(leader)
    append = follower.log().append_as_follower

    def look_and_append(records: RecordBytes, leader_epoch: int | None = None) -> None:
        was_locked.append(lock.locked())
        append(records, leader_epoch)

    setattr(follower.log(), "append_as_follower", look_and_append)  # noqa: B010
    follower.take(leader, request, asked.answer)
    assert was_locked == [False]
    assert follower.values() == [b"a"]


def test_the_error_of_an_append_is_ignored_after_its_replica_was_deleted() -> None:
    lock = InterruptedLock()
    leader, follower = RecordBroker(1), RecordBroker(2, lock=lock)
    for broker in (leader, follower):
        broker.apply(1, 1)
    leader.produce(b"a", acks=1)
    request, asked = follower.fetch_from(leader)
    deleted = follower.log()

    def delete_and_create() -> None:
        rows = (StopReplicaPartition(0, 2, delete_partition=True),)
        follower.manager.handle(HEADER, StopReplicaRequest((StopReplicaTopic("t", A, rows),)), 0)
        deleted.is_offline = True
        follower.apply(1, 3)

    lock.interrupt = delete_and_create
    follower.take(leader, request, asked.answer)
    assert follower.hosted().role is Role.FOLLOWER
    assert follower.values() == []


@pytest.mark.parametrize("error", [Errors.FENCED_LEADER_EPOCH, Errors.UNKNOWN_LEADER_EPOCH])
@pytest.mark.parametrize("next_leader", [1, 3])
def test_a_replica_that_was_refused_follows_the_leader_that_it_gets_during_an_append(
    error: Errors, next_leader: int
) -> None:
    """The refusal is in the answer with the records that are appended; it was for the former one.

    Nobody sends the LeaderAndIsr again.
    """
    lock = InterruptedLock()
    leader, follower = RecordBroker(1), RecordBroker(2, lock=lock)
    for broker in (leader, follower):
        broker.apply(1, 1, T0, T1)
    leader.produce(b"a", acks=1)
    request, asked = follower.fetch_from(leader)
    (topic,) = asked.answer.topics
    refused = FetchedPartition(T1.partition, error, -1, -1)
    mixed = replace(topic, partitions=(*topic.partitions, refused))
    lock.interrupt = lambda: follower.apply(next_leader, 2, T1, replicas=(1, 2, 3))
    follower.take(leader, request, replace(asked.answer, topics=(mixed,)))
    assert follower.values() == [b"a"]
    next_fetch = follower.manager.fetch_request(next_leader, follower.now_ms)
    assert next_fetch is not None
    assert T1 in dict(next_fetch.partitions())


def test_a_replica_that_is_in_another_directory_after_an_append_fetches_the_records_again() -> None:
    """Unless the fetch lists it, a leader takes the answer for received."""
    lock = InterruptedLock()
    leader, follower = RecordBroker(1), RecordBroker(2, lock=lock)
    for broker in (leader, follower):
        broker.apply(1, 1)
    follower.follow(leader)
    leader.produce(b"a", acks=1)
    request, asked = follower.fetch_from(leader)
    moved = RecordBroker(2)
    moved.apply(1, 1)
    lock.interrupt = lambda: follower.hosted().use(moved.log())
    follower.take(leader, request, asked.answer)
    assert moved.values() == []
    follower.follow(leader)
    assert moved.values() == [b"a"]
