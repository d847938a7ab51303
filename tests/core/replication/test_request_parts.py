"""FULL requests in parts: nothing is set aside before the last part has arrived."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import pytest

from regent.core.controller.context import ControllerContext
from regent.core.controller.request_batch import ControlRequestBatch, split_by_size
from regent.core.errors import Errors
from regent.core.model import BrokerInfo, BrokerRegistration, ReplicaAssignment, TopicPartition
from regent.core.protocol.control import (
    LeaderAndIsrPartition,
    LeaderAndIsrRequest,
    LeaderAndIsrTopic,
    LeaderAndIsrType,
    StopReplicaPartition,
    StopReplicaRequest,
    UpdateMetadataPartition,
    UpdateMetadataRequest,
    UpdateMetadataTopic,
)
from regent.transport.control.codec import encode_request
from tests.core.replication.stage import ME, T0, T1, T2, A, B, BareBroker, state
from tests.support.world import broker_info, leadership, topic_id

ALL = (T0, T1, T2)
STRAY = TopicPartition("t", 9)


def part(
    number: int,
    parts: int,
    rows: Mapping[TopicPartition, LeaderAndIsrPartition],
    id: str = A,
) -> LeaderAndIsrRequest:
    """Return one part of a FULL."""
    topics = tuple(
        LeaderAndIsrTopic(
            topic_partition.topic, id, (row._replace(partition_index=topic_partition.partition),)
        )
        for topic_partition, row in rows.items()
    )
    return LeaderAndIsrRequest(LeaderAndIsrType.FULL, topics, (), number, parts)


@pytest.fixture
def broker() -> BareBroker:
    """A broker that hosts a partition which no part lists, and one in the last part."""
    broker = BareBroker()
    broker.apply({STRAY: state(), T2: state()}, sequence=1)
    return broker


def give(broker: BareBroker, parts: Iterable[int], *, of: int = 3, sequence: int = 2) -> None:
    """Apply parts of a FULL request that lists ``ALL``, in controller epoch 8."""
    for step, number in enumerate(parts):
        broker.handle(
            part(number, of, {ALL[number]: state(leader_epoch=1)}),
            controller_epoch=8,
            sequence=sequence + step if sequence else 0,
        )


@pytest.mark.parametrize("sequence", [0, 2])
@pytest.mark.parametrize("parts", [(0, 1, 2), (0, 0, 1, 1, 2, 2), (0, 1, 0, 1, 2)])
def test_stray_logs_are_set_aside_after_the_last_part(
    broker: BareBroker, parts: tuple[int, ...], sequence: int
) -> None:
    give(broker, parts[:-1] if parts[-2:] != (2, 2) else parts[:-2], sequence=sequence)
    assert {STRAY, T2} < set(broker.manager.partitions)
    give(broker, [2], sequence=sequence and 20)
    assert set(broker.manager.partitions) == set(ALL)


@pytest.mark.parametrize("parts", [(1, 2), (0, 2), (2, 1, 0), (0, 2, 1), (0, 1)])
def test_an_incomplete_list_sets_nothing_aside_but_its_rows_are_applied(
    broker: BareBroker, parts: tuple[int, ...]
) -> None:
    give(broker, parts)
    assert STRAY in broker.manager.partitions
    for number in parts:
        assert broker.hosted(ALL[number]).leader_epoch == 1


def test_a_new_controller_in_between_starts_again(broker: BareBroker) -> None:
    give(broker, [0, 1])
    broker.handle(part(2, 3, {T2: state(leader_epoch=2)}), controller_epoch=9, sequence=9)
    assert STRAY in broker.manager.partitions
    for number in range(2):
        rows = {ALL[number]: state(leader_epoch=3)}
        broker.handle(part(number, 2, rows), controller_epoch=9, sequence=10 + number)
    assert set(broker.manager.partitions) == {T0, T1}


def test_two_lists_of_one_controller_are_not_mixed(broker: BareBroker) -> None:
    give(broker, [0, 1], of=3)
    give(broker, [0], of=3, sequence=30)
    give(broker, [2], of=3, sequence=31)
    assert STRAY in broker.manager.partitions


def test_a_log_of_an_earlier_topic_is_set_aside_by_its_own_part(broker: BareBroker) -> None:
    broker.handle(part(0, 2, {T2: state()}, id=B), controller_epoch=8, sequence=2)
    assert broker.hosted(T2).topic_id == B
    assert STRAY in broker.manager.partitions


def test_metadata_is_removed_after_the_last_part(broker: BareBroker) -> None:
    def update(number: int, parts: int, *topic_partitions: TopicPartition) -> None:
        row = UpdateMetadataPartition(0, 7, 1, 0, (1,), 0, (1,), ())
        topics = tuple(
            UpdateMetadataTopic(
                topic_partition.topic, A, (row._replace(partition_index=topic_partition.partition),)
            )
            for topic_partition in topic_partitions
        )
        request = UpdateMetadataRequest(topics, (), True, number, parts)
        broker.handle(request, controller_epoch=8, sequence=number + 2)

    update(0, 1, STRAY, T0)
    update(0, 2, T0)
    assert set(broker.cache.snapshot.partitions) == {STRAY, T0}
    update(1, 2, T1)
    assert set(broker.cache.snapshot.partitions) == {T0, T1}


# --- parts sent by the controller -----------------------------------------------------------------


def test_rows_are_divided_in_sequence_and_none_is_lost() -> None:
    topics = [(f"t{n}", (StopReplicaPartition(n, 0, True),) * (n % 7 + 1)) for n in range(50)]
    parts = split_by_size(topics, 500)
    assert len(parts) > 10
    rows = [(topic, row) for part in parts for topic, rows in part for row in rows]
    assert rows == [(topic, row) for topic, rows in topics for row in rows]
    assert all(rows for part in parts for _, rows in part)
    assert split_by_size([], 500) == [[]]
    assert [len(part) for part in split_by_size(topics[:3], 1)] == [1] * 6, "a row at least"


def full_batch(broker: BrokerInfo) -> ControlRequestBatch:
    """Return requests of each kind with 500 rows for one broker."""
    context = ControllerContext()
    context.epoch = 1
    context.add_live_broker(BrokerRegistration(broker, 5))
    batch = ControlRequestBatch(0, context, max_request_bytes=20_000)
    for number in range(500):
        topic_partition = TopicPartition("t" * (number % 200 + 1) + str(number), 2**31 - 1)
        replicas = tuple(range(2**31 - 1 - number % 9, 2**31 - 1)) or (1,)
        context.add_topic_id(topic_partition.topic, topic_id(number))
        context.update_partition_full_replica_assignment(
            topic_partition, ReplicaAssignment(replicas)
        )
        led = leadership(1, replicas, leader_epoch=2**31 - 1, partition_epoch=2**31 - 1)
        context.put_partition_leadership_info(topic_partition, led)
        batch.add_leader_and_isr([1], [topic_partition], is_new=True)
        batch.add_stop_replica(1, [topic_partition], delete=True)
    batch.make_full([1])
    batch.add_full_metadata()
    return batch


def test_a_broker_of_kafka_gets_one_leader_and_isr_of_any_size() -> None:
    """After the first one it writes its high watermarks: those of later parts became 0."""
    batch = full_batch(replace(broker_info(1), control_endpoint=None))
    sent = [effect.request for effect in batch.effects()]
    (request,) = (each for each in sent if isinstance(each, LeaderAndIsrRequest))
    assert (request.part, request.parts, len([*request.partitions()])) == (0, 1, 500)
    assert len([each for each in sent if isinstance(each, UpdateMetadataRequest)]) > 5


def test_no_request_is_larger_than_the_limit() -> None:
    sent = [effect.request for effect in full_batch(broker_info(1)).effects()]
    for kind in (LeaderAndIsrRequest, UpdateMetadataRequest, StopReplicaRequest):
        of_kind = [request for request in sent if isinstance(request, kind)]
        assert len(of_kind) > 5
        assert len([row for request in of_kind for row in request.partitions()]) == 500
        if kind is not StopReplicaRequest:
            numbers = [(r.part, r.parts) for r in of_kind]  # type: ignore[union-attr]
            assert numbers == [(n, len(of_kind)) for n in range(len(of_kind))]
    sizes = [sum(map(len, encode_request(request).frames)) for request in sent]
    assert max(sizes) < 20_000 + 1_000, "without the live brokers"
    assert sent == sorted(
        sent,
        key=lambda r: (LeaderAndIsrRequest, UpdateMetadataRequest, StopReplicaRequest).index(
            type(r)
        ),
    )


def test_errors_of_a_part_are_about_its_rows(broker: BareBroker) -> None:
    answer = broker.handle(part(0, 2, {T0: state()}), controller_epoch=8, sequence=2)
    errors = answer.partition_errors  # type: ignore[attr-defined]
    assert [(e.topic_partition, e.error_code) for e in errors] == [(T0, Errors.NONE)]
    assert broker.manager.broker_id == ME
