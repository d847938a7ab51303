"""Records of a coordinator: they belong to one leadership of its broker."""

from __future__ import annotations

from regent.core.errors import Errors
from regent.core.protocol.client import ACKS_LEADER, ProducedPartition
from tests.core.replication.record_stage import TWO_IN_SYNC, Pending, RecordBroker
from tests.core.replication.stage import T0
from tests.support.record_batches import batch, values_of


def append(broker: RecordBroker, term: int) -> ProducedPartition:
    records = bytearray(batch(b"decided in %d" % term))
    pending = Pending[object](
        broker.manager,
        lambda respond: broker.manager.append_in_term(
            T0, term, ACKS_LEADER, records, broker.now_ms, respond
        ),
    )
    assert isinstance(pending.answer, dict)
    answer: ProducedPartition = pending.answer[T0]
    return answer


def read(broker: RecordBroker, term: int) -> list[bytes | None] | Errors:
    part = broker.manager.read_in_term(T0, term, 0, 10_000)
    is_read = part.error_code is Errors.NONE
    return list(values_of(part.records.read())) if is_read else part.error_code


def test_a_leadership_that_ended_and_began_again_is_another_term():
    broker = RecordBroker(1, TWO_IN_SYNC)
    broker.apply(1, 1)
    assert append(broker, 1).error_code is Errors.NONE
    broker.apply(2, 2)
    assert append(broker, 1).error_code is Errors.NOT_LEADER_OR_FOLLOWER
    broker.apply(1, 3)
    assert append(broker, 1).error_code is Errors.NOT_LEADER_OR_FOLLOWER
    assert append(broker, 3).error_code is Errors.NONE
    assert read(broker, 1) is Errors.NOT_LEADER_OR_FOLLOWER
    assert read(broker, 3) == [b"decided in 1", b"decided in 3"]


def test_a_leader_that_stays_in_a_later_epoch_is_in_the_same_term():
    broker = RecordBroker(1, TWO_IN_SYNC)
    broker.apply(1, 1)
    broker.apply(1, 2)
    assert append(broker, 2).error_code is Errors.NOT_LEADER_OR_FOLLOWER
    assert append(broker, 1).error_code is Errors.NONE
    assert read(broker, 1) == [b"decided in 1"]
