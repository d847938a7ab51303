"""Markers for the partitions of a broker: each gets an answer, also when replicas are slow."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import pytest

from regent.actors.scheduler import Scheduler
from regent.actors.transaction_markers import PartitionMarkers
from regent.core.errors import Errors
from regent.core.model import TopicPartition
from regent.core.protocol.transactions import PartitionOutcome, TxnMarker, TxnMarkerResult
from regent.testing.waits import scaled
from tests.core.replication.record_stage import RecordBroker
from tests.core.replication.stage import T0, T1
from tests.support.transactional_batches import in_transaction

ONE, TWO = 4_001, 4_002
ELSEWHERE = TopicPartition("t", 9)


class Answer:
    """The results, when they are there."""

    def __init__(self) -> None:
        self.is_given = threading.Event()
        self.results: Sequence[TxnMarkerResult] = ()

    def __call__(self, results: Sequence[TxnMarkerResult]) -> None:
        assert not self.is_given.is_set(), "it is answered twice"
        self.results = results
        self.is_given.set()


@pytest.fixture
def scheduler() -> Iterator[Scheduler]:
    scheduler = Scheduler()
    yield scheduler
    scheduler.shutdown()


@pytest.fixture
def broker() -> RecordBroker:
    """Leads t-0 with a follower, and t-1 alone; both have an open transaction."""
    broker = RecordBroker(lock=threading.RLock())
    broker.apply(1, 5)
    broker.apply(1, 5, T1, isr=(1,), replicas=(1,))
    for producer_id in (ONE, TWO):
        data = in_transaction(b"a", producer_id=producer_id, sequence=0)
        broker.produce_to({T0: data, T1: data}, acks=1)
    return broker


def outcomes(*rows: tuple[TopicPartition, Errors, int]) -> tuple[PartitionOutcome, ...]:
    return tuple(PartitionOutcome(*name, error, offset) for name, error, offset in rows)


def test_all_markers_are_written_and_answered_in_order(broker: RecordBroker, scheduler: Scheduler):
    markers = PartitionMarkers(broker.manager, scheduler, 60_000)
    answer = Answer()
    asked = (
        TxnMarker(ONE, 0, is_commit=True, coordinator_epoch=3, partitions=(T0, T1)),
        TxnMarker(TWO, 0, is_commit=False, coordinator_epoch=3, partitions=(T1, ELSEWHERE)),
    )
    markers.write_markers(asked, answer)
    assert not answer.is_given.is_set()
    follower = RecordBroker(2)
    follower.apply(1, 5)
    follower.follow(broker, times=2)
    assert answer.results == [
        TxnMarkerResult(ONE, outcomes((T0, Errors.NONE, 2), (T1, Errors.NONE, 2))),
        TxnMarkerResult(
            TWO,
            outcomes((T1, Errors.NONE, 3), (ELSEWHERE, Errors.UNKNOWN_TOPIC_OR_PARTITION, -1)),
        ),
    ]
    assert broker.hosted(T0).last_stable_offset == 1  # the other producer's is open
    assert broker.hosted(T1).last_stable_offset == broker.log(T1).log_end_offset == 4
    records = broker.log(T1).read(0, 10_000, 4, at_least_one=True)
    assert [tuple(each) for each in broker.log(T1).aborted_transactions(0, records)] == [(TWO, 1)]


def test_replicas_that_are_slow_time_out(broker: RecordBroker, scheduler: Scheduler):
    markers = PartitionMarkers(broker.manager, scheduler, 20)
    for _ in range(2):
        answer = Answer()
        marker = TxnMarker(ONE, 0, is_commit=True, coordinator_epoch=3, partitions=(T0,))
        markers.write_markers([marker], answer)
        assert answer.is_given.wait(scaled(30))
        expected = TxnMarkerResult(ONE, outcomes((T0, Errors.REQUEST_TIMED_OUT, -1)))
        assert answer.results == [expected]


def test_without_markers_the_answer_is_empty(broker: RecordBroker, scheduler: Scheduler):
    answer = Answer()
    PartitionMarkers(broker.manager, scheduler, 1).write_markers((), answer)
    assert answer.is_given.is_set()
    assert answer.results == ()
