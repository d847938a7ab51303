"""Who has a transactional id, what its producer may do, and what ends by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, TypeVar

import pytest

from regent.core.coordinator.transaction.marker_receiver import MarkerReceiver
from regent.core.coordinator.transaction.transaction_coordinator import TransactionCoordinator
from regent.core.coordinator.transaction.transaction_metadata import (
    COMPLETE_COMMIT,
    EMPTY,
    MAX_EPOCH,
    ONGOING,
    PREPARE_COMMIT,
    TransactionMetadata,
)
from regent.core.coordinator.transaction.transaction_records import (
    EncodedRecord,
    StoredTransaction,
    decode_transaction,
    decode_transaction_key,
)
from regent.core.coordinator.transaction.transaction_state_manager import TransactionConfig
from regent.core.errors import Errors
from regent.core.model import BrokerId, TopicPartition
from regent.core.protocol.coordinator import CoordinatorRequest, Question
from regent.core.protocol.groups import (
    CompletedTransaction,
    CompleteTransactions,
    ProducerIdAndEpoch,
)
from regent.core.protocol.messages.producer_ids import InitProducerIdResponse
from regent.core.protocol.messages.transactions import (
    DescribedTransactionState,
    DescribedTransactionTopic,
    ListedTransactionState,
)
from regent.core.protocol.transactions import (
    AddPartitionsToTxn,
    DescribeTransaction,
    EndTxn,
    InitProducerId,
    ListTransactions,
    PartitionOutcome,
    TxnMarker,
    TxnMarkerResult,
)

A = TypeVar("A")

T0, T1, GONE = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("gone", 0)
PARTITION, TERM, EPOCH = 2, 5, 6
TIMEOUT_MS, EXPIRY_MS = 60_000, 7_000_000
HELD = 1_000  # the id of the producers that the tests put in


class Office:
    """A coordinator of partition 2; the test is its log and its clock."""

    def __init__(self) -> None:
        self.now_ms = 100
        self.appends: list[tuple[int, int, Sequence[EncodedRecord], Callable[[Errors], None]]] = []
        self.loads: list[tuple[int, int]] = []
        self.sent: list[TxnMarker] = []
        ids = count(1)
        self.coordinator = TransactionCoordinator(
            TransactionConfig(TIMEOUT_MS, EXPIRY_MS),
            self,
            self,
            time_ms=lambda: self.now_ms,
            partition_of=lambda _: PARTITION,
            leader_of=lambda topic_partition: None if topic_partition == GONE else 1,
            next_producer_id=lambda: next(ids),
        )
        self.coordinator.on_elected(PARTITION, EPOCH, TERM)

    def append(
        self,
        partition: int,
        term: int,
        records: Sequence[EncodedRecord],
        respond: Callable[[Errors], None],
    ) -> None:
        self.appends.append((partition, term, records, respond))

    def load(self, partition: int, term: int) -> None:
        self.loads.append((partition, term))

    def send(self, broker_id: BrokerId, markers: Sequence[TxnMarker]) -> None:
        self.sent += markers

    def ask(self, request: CoordinatorRequest[A]) -> list[A]:
        answers: list[A] = []
        self.coordinator.handle(request, answers.append)
        return answers

    def replicate(self, error: Errors = Errors.NONE) -> None:
        """Answer all appends."""
        while self.appends:
            self.appends.pop(0)[3](error)

    def do(self, request: CoordinatorRequest[A]) -> A:
        """Return the answer when its record is replicated."""
        answers = self.ask(request)
        self.replicate()
        (answer,) = answers
        return answer

    def record(self) -> StoredTransaction:
        """Return the record that is appended."""
        ((partition, term, ((key, value),), _),) = self.appends
        assert (partition, term, decode_transaction_key(key)) == (PARTITION, TERM, "x")
        assert value is not None
        return decode_transaction(value)

    def state(self) -> str:
        (described,) = self.ask(DescribeTransaction("x"))
        return described.transaction_state


@pytest.fixture
def office() -> Office:
    office = Office()
    office.coordinator.on_loaded(PARTITION, TERM, [])
    return office


def init(expected: ProducerIdAndEpoch | None = None, timeout_ms: int = 1_000) -> InitProducerId:
    return InitProducerId("x", timeout_ms, expected)


def given(office: Office, expected: ProducerIdAndEpoch | None = None) -> ProducerIdAndEpoch:
    """Return the id and epoch of a producer that begins, or that continues."""
    result = office.do(init(expected))
    assert result.error_code is Errors.NONE
    return ProducerIdAndEpoch(result.producer_id, result.producer_epoch)


def adding(producer: ProducerIdAndEpoch, *partitions: TopicPartition) -> AddPartitionsToTxn:
    return AddPartitionsToTxn("x", producer, partitions)


def held(office: Office, epoch: int) -> ProducerIdAndEpoch:
    """Let the coordinator know a producer with an epoch."""
    office.coordinator.states.put(TransactionMetadata("x", HELD, epoch, 1_000))
    return ProducerIdAndEpoch(HELD, epoch)


# --- who has the id -------------------------------------------------------------------------------


def test_each_producer_that_begins_fences_the_one_before_it(office: Office):
    first, second = given(office), given(office)
    assert (first, second) == ((1, 0), (1, 1))
    fenced = Errors.PRODUCER_FENCED
    assert office.ask(adding(first, T0)) == [{T0: fenced}]
    assert office.ask(EndTxn("x", first, is_commit=True)) == [fenced]
    assert office.ask(init(first)) == [InitProducerIdResponse(error_code=fenced)]
    later = second._replace(producer_epoch=2)
    assert office.ask(adding(later, T0)) == [{T0: fenced}], "KAFKA-9600"
    other = second._replace(producer_id=9)
    assert office.ask(adding(other, T0)) == [{T0: Errors.INVALID_PRODUCER_ID_MAPPING}]
    assert office.ask(AddPartitionsToTxn("y", second, (T0,))) == [
        {T0: Errors.INVALID_PRODUCER_ID_MAPPING}
    ]
    old = EndTxn("x", first, is_commit=True, knows_fencing=False)
    assert office.ask(old) == [Errors.INVALID_PRODUCER_EPOCH]
    assert office.do(adding(second, T0)) == {T0: Errors.NONE}


def test_a_producer_that_continues_has_the_next_epoch_and_may_ask_for_it_again(office: Office):
    """KIP-360: the answer may be lost."""
    first = given(office)
    second = given(office, first)
    assert second == (1, 1)
    assert given(office, first) == second
    third = given(office, second)
    assert third == (1, 2)
    assert office.ask(init(first)) == [InitProducerIdResponse(error_code=Errors.PRODUCER_FENCED)]


def test_a_producer_whose_epochs_are_used_up_has_another_id_and_may_ask_for_it_again(
    office: Office,
):
    last = held(office, MAX_EPOCH - 1)
    another = given(office, last)
    assert another == (1, 0)
    assert given(office, last) == another
    fenced = [InitProducerIdResponse(error_code=Errors.PRODUCER_FENCED)]
    assert office.ask(init(ProducerIdAndEpoch(HELD, 5))) == fenced
    assert office.ask(adding(last, T0)) == [{T0: Errors.INVALID_PRODUCER_ID_MAPPING}]
    assert given(office, another) == (1, 1)
    assert office.ask(init(last)) == fenced


def test_a_new_producer_does_not_get_the_last_epoch(office: Office):
    held(office, MAX_EPOCH - 2)
    assert given(office) == (HELD, MAX_EPOCH - 1)
    assert given(office) == (1, 0)


@pytest.mark.parametrize(
    ("timeout_ms", "is_valid"), [(0, False), (1, True), (TIMEOUT_MS, True), (TIMEOUT_MS + 1, False)]
)
def test_a_transaction_may_take_some_time(office: Office, timeout_ms: int, is_valid: bool):
    error = office.do(init(timeout_ms=timeout_ms)).error_code
    assert error is (Errors.NONE if is_valid else Errors.INVALID_TRANSACTION_TIMEOUT)


def test_a_producer_may_change_how_long_its_transactions_take(office: Office):
    for timeout_ms in (1_000, 2_000):
        office.do(init(timeout_ms=timeout_ms))
        (described,) = office.ask(DescribeTransaction("x"))
        assert described.transaction_timeout_ms == timeout_ms


def test_one_transition_at_a_time_is_written(office: Office):
    producer = given(office)
    office.ask(init())
    again = Errors.CONCURRENT_TRANSACTIONS
    assert office.ask(init()) == [InitProducerIdResponse(error_code=again)]
    assert office.ask(adding(producer, T0)) == [{T0: again}]
    assert office.ask(EndTxn("x", producer, is_commit=True)) == [again]
    office.replicate(Errors.NOT_ENOUGH_REPLICAS)
    assert office.do(adding(producer, T0)) == {T0: Errors.NONE}


def test_an_open_transaction_is_aborted_before_its_id_is_given_again(office: Office):
    producer = given(office)
    office.do(adding(producer, T0))
    answers = office.ask(init())
    assert answers == []
    office.replicate()
    assert answers == [InitProducerIdResponse(error_code=Errors.CONCURRENT_TRANSACTIONS)]
    assert office.sent == [TxnMarker(1, 1, False, EPOCH, (T0,))]
    assert office.state() == "PrepareAbort"
    assert office.ask(init()) == [InitProducerIdResponse(error_code=Errors.CONCURRENT_TRANSACTIONS)]
    office.coordinator.markers.on_answered(1, [written(1, T0)])
    office.replicate()
    assert office.state() == "CompleteAbort"
    assert given(office) == (1, 2)


def test_an_epoch_that_fences_and_was_not_written_is_used_again(office: Office):
    """KAFKA-9666: otherwise failures would use up all epochs."""
    producer = given(office)
    office.do(adding(producer, T0))
    for _ in range(3):
        office.ask(init())
        assert office.record().producer_epoch == 1
        office.replicate(Errors.NOT_ENOUGH_REPLICAS)


# --- partitions and the end -----------------------------------------------------------------------


def written(producer_id: int, *partitions: TopicPartition) -> TxnMarkerResult:
    rows = (PartitionOutcome(*partition, Errors.NONE) for partition in partitions)
    return TxnMarkerResult(producer_id, tuple(rows))


def test_all_partitions_are_added_or_none(office: Office):
    producer = given(office)
    refused = {T0: Errors.OPERATION_NOT_ATTEMPTED, GONE: Errors.UNKNOWN_TOPIC_OR_PARTITION}
    assert office.ask(adding(producer, T0, GONE)) == [refused]
    assert office.state() == "Empty"
    answers = office.ask(adding(producer, T0))
    assert answers == []
    office.replicate(Errors.NOT_ENOUGH_REPLICAS)
    assert answers == [{T0: Errors.COORDINATOR_NOT_AVAILABLE}]
    assert office.state() == "Empty"


def test_the_record_of_a_transaction_says_when_it_began_and_when_it_changed(office: Office):
    producer = given(office)
    office.now_ms = 300
    office.do(adding(producer, T0))
    office.now_ms = 500
    office.ask(adding(producer, T1))
    expected = StoredTransaction(1, 0, 1_000, ONGOING, (("t", (0, 1)),), 500, 300)
    assert office.record() == expected
    read = expected.metadata("x")
    assert (read.txn_start_timestamp_ms, read.txn_last_update_timestamp_ms) == (300, 500)
    assert read.topic_partitions == {T0, T1}


def test_partitions_that_are_part_of_a_transaction_already_are_not_written_again(office: Office):
    producer = given(office)
    office.do(adding(producer, T0, T1))
    assert office.ask(adding(producer, T1)) == [{T1: Errors.NONE}]
    assert office.appends == []


def test_only_partitions_that_were_added_are_verified(office: Office):
    """KIP-890; also while another partition is added (KAFKA-14904)."""
    producer = given(office)
    verifying = AddPartitionsToTxn("x", producer, (T0, T1), verify_only=True)
    none = dict.fromkeys((T0, T1), Errors.TRANSACTION_ABORTABLE)
    assert office.ask(verifying) == [none]
    office.do(adding(producer, T0))
    office.ask(adding(producer, T1))
    assert office.ask(verifying) == [{**none, T0: Errors.NONE}]
    office.replicate()
    assert office.ask(verifying) == [dict.fromkeys((T0, T1), Errors.NONE)]
    office.do(EndTxn("x", producer, is_commit=True))
    again = dict.fromkeys((T0, T1), Errors.CONCURRENT_TRANSACTIONS)
    assert office.ask(verifying) == [again]
    assert office.ask(adding(producer, T0)) == [{T0: Errors.CONCURRENT_TRANSACTIONS}]


@pytest.mark.parametrize("is_commit", [True, False])
def test_the_end_of_a_transaction_is_repeated_and_not_changed(office: Office, is_commit: bool):
    producer = given(office)
    same, other = EndTxn("x", producer, is_commit), EndTxn("x", producer, not is_commit)
    assert office.ask(same) == [Errors.INVALID_TXN_STATE]
    office.do(adding(producer, T0, T1))
    assert office.do(same) is Errors.NONE
    assert office.sent == [TxnMarker(1, 0, is_commit, EPOCH, (T0, T1))]
    for request in (same, other):
        assert office.ask(request) == [Errors.CONCURRENT_TRANSACTIONS]
    office.coordinator.markers.on_answered(1, [written(1, T0, T1)])
    office.replicate()
    assert office.state() == ("CompleteCommit" if is_commit else "CompleteAbort")
    assert office.do(same) is Errors.NONE
    assert office.ask(other) == [Errors.INVALID_TXN_STATE]


def test_a_repeated_end_is_confirmed_only_by_the_present_coordinator(office: Office):
    producer = given(office)
    office.do(adding(producer, T0))
    end = EndTxn("x", producer, is_commit=True)
    office.do(end)
    office.coordinator.markers.on_answered(1, [written(1, T0)])
    office.replicate()
    answers = office.ask(end)
    office.replicate(Errors.NOT_LEADER_OR_FOLLOWER)
    assert answers == [Errors.NOT_COORDINATOR]


# --- what takes too long --------------------------------------------------------------------------


def test_a_transaction_that_is_open_for_longer_than_its_timeout_is_aborted(office: Office):
    producer = given(office)
    office.do(adding(producer, T0))
    office.now_ms += 500
    office.do(adding(producer, T1))  # its time is that since it began
    office.now_ms += 500
    assert office.coordinator.abort_timed_out() == 0
    office.now_ms += 1
    assert office.coordinator.abort_timed_out() == 1
    assert office.coordinator.abort_timed_out() == 0, "it is under way"
    office.replicate()
    assert office.sent == [TxnMarker(1, 1, False, EPOCH, (T0, T1))]
    assert office.ask(EndTxn("x", producer, is_commit=True)) == [Errors.PRODUCER_FENCED]


@pytest.mark.parametrize("is_open", [True, False])
def test_an_id_that_was_not_used_for_long_is_forgotten(office: Office, is_open: bool):
    given(office)
    office.now_ms += 300
    producer = given(office)
    if is_open:
        office.do(adding(producer, T0))
    office.now_ms += EXPIRY_MS - 1
    assert office.coordinator.expire_ids() == 0
    office.now_ms += 1
    assert office.coordinator.expire_ids() == (not is_open)
    if is_open:
        return
    ((partition, term, records, _),) = office.appends
    assert (partition, term) == (PARTITION, TERM)
    assert [(decode_transaction_key(key), value) for key, value in records] == [("x", None)]
    assert office.ask(init()) == [InitProducerIdResponse(error_code=Errors.CONCURRENT_TRANSACTIONS)]
    office.replicate(Errors.NOT_ENOUGH_REPLICAS)  # else it would be blocked for ever (KAFKA-7519)
    assert given(office) == (1, 2)
    office.now_ms += EXPIRY_MS
    office.coordinator.expire_ids()
    office.replicate()
    assert office.ask(DescribeTransaction("x")) == [
        DescribedTransactionState(
            error_code=Errors.TRANSACTIONAL_ID_NOT_FOUND, transactional_id="x"
        )
    ]
    assert given(office) == (2, 0)


# --- another coordinator --------------------------------------------------------------------------


def test_a_partition_that_could_not_be_read_is_read_again_in_its_term():
    office = Office()
    loading = [InitProducerIdResponse(error_code=Errors.COORDINATOR_LOAD_IN_PROGRESS)]
    assert office.ask(init()) == loading
    office.coordinator.on_loaded(PARTITION, TERM, None)
    assert office.ask(init()) == loading
    office.coordinator.abort_timed_out()
    assert office.loads == [(PARTITION, TERM)] * 2
    office.coordinator.abort_timed_out()
    assert office.loads == [(PARTITION, TERM)] * 2, "it is being read"
    office.coordinator.on_loaded(PARTITION, TERM, [])
    assert given(office) == (1, 0)


def test_a_partition_that_could_not_be_read_is_not_read_again_for_another_leader():
    office = Office()
    office.coordinator.on_loaded(PARTITION, TERM, None)
    office.coordinator.on_resigned(PARTITION, EPOCH + 1)
    office.coordinator.abort_timed_out()
    assert office.loads == [(PARTITION, TERM)]


def test_loaded_decisions_are_carried_out_and_open_transactions_continue():
    office = Office()
    rows = [
        TransactionMetadata("a", 11, 3, 1_000, PREPARE_COMMIT, {T0}, 40, 60),
        TransactionMetadata("x", 12, 4, 1_000, ONGOING, {T1}, 40, 60),
        TransactionMetadata("c", 13, 0, 1_000, EMPTY),
        TransactionMetadata("d", 14, 0, 1_000, COMPLETE_COMMIT, set(), 40, 60),
    ]
    office.coordinator.on_loaded(PARTITION, TERM, rows)
    assert office.sent == [TxnMarker(11, 3, True, EPOCH, (T0,))]
    assert office.do(EndTxn("x", ProducerIdAndEpoch(12, 4), is_commit=True)) is Errors.NONE
    office.coordinator.on_resigned(PARTITION, EPOCH + 1)
    assert office.ask(DescribeTransaction("x")) == [
        DescribedTransactionState(error_code=Errors.NOT_COORDINATOR, transactional_id="x")
    ]


def test_a_decision_of_a_former_leadership_is_not_carried_out(office: Office):
    producer = given(office)
    answers = office.ask(adding(producer, T0))
    office.coordinator.on_elected(PARTITION, EPOCH + 3, TERM + 3)
    office.coordinator.on_loaded(PARTITION, TERM + 3, [TransactionMetadata("x", 1, 0, 1_000)])
    office.replicate()
    assert answers == [{T0: Errors.NOT_COORDINATOR}]
    assert office.state() == "Empty"


# --- tools ----------------------------------------------------------------------------------------


def test_transactions_are_listed_by_state_producer_and_age(office: Office):
    office.coordinator.states.put(TransactionMetadata("a", 11, 3, 1_000, ONGOING, {T0}, 40, 60))
    office.coordinator.states.put(TransactionMetadata("b", 12, 4, 1_000, ONGOING, {T0}, 90, 95))
    office.coordinator.states.put(TransactionMetadata("c", 13, 4, 1_000, EMPTY))
    names = {
        ListTransactions(): "abc",
        ListTransactions(("Ongoing", "Odd")): "ab",
        ListTransactions((), (12, 13)): "bc",
        ListTransactions(("Ongoing",), (), 10): "a",
        ListTransactions(("Ongoing",), (), 9): "ab",
    }
    for request, expected in names.items():
        (found,) = office.ask(request)
        assert "".join(row.transactional_id for row in found.transaction_states) == expected
        assert found.unknown_state_filters == tuple(s for s in request.states if s == "Odd")
    (found,) = office.ask(ListTransactions(("Empty",)))
    assert found.transaction_states == (
        ListedTransactionState(transactional_id="c", producer_id=13, transaction_state="Empty"),
    )
    (described,) = office.ask(DescribeTransaction("a"))
    assert described == DescribedTransactionState(
        error_code=Errors.NONE,
        transactional_id="a",
        transaction_state="Ongoing",
        transaction_timeout_ms=1_000,
        transaction_start_time_ms=40,
        producer_id=11,
        producer_epoch=3,
        topics=(DescribedTransactionTopic(topic=T0.topic, partitions=(T0.partition,)),),
    )


# --- markers for the partitions of this broker ----------------------------------------------------


class Brokers:
    """Partitions that take markers, and the group coordinator beside them."""

    def __init__(self, *results: TxnMarkerResult, groups: tuple[Errors, ...] = ()) -> None:
        self._results, self._groups = results, groups
        self.asked: list[object] = []

    def write_markers(
        self,
        markers: Sequence[TxnMarker],
        respond: Callable[[Sequence[TxnMarkerResult]], None],
    ) -> None:
        respond(self._results)

    def ask(self, questions: Sequence[Question[Any]]) -> None:
        for question in questions:
            self.asked.append(question.request)
            question.respond(self._groups)


def receive(brokers: Brokers, *markers: TxnMarker) -> list[TxnMarkerResult]:
    answers: list[Sequence[TxnMarkerResult]] = []
    MarkerReceiver(brokers, brokers).write_markers(markers, answers.append)
    (results,) = answers
    return list(results)


def test_positions_take_effect_where_a_marker_is_in_the_log_of_their_group():
    """Where the group coordinator could not act, the marker is sent again; and only there."""
    offsets, refused = "__consumer_offsets", Errors.NOT_LEADER_OR_FOLLOWER
    first = (
        PartitionOutcome("t", 0, Errors.NONE, 10),
        PartitionOutcome(offsets, 1, refused, -1),
        PartitionOutcome(offsets, 2, Errors.NONE, 12),
        PartitionOutcome(offsets, 3, Errors.NONE, 13),
    )
    second = (PartitionOutcome(offsets, 4, Errors.NONE, 14), PartitionOutcome("u", 0, refused, -1))
    loading = Errors.COORDINATOR_LOAD_IN_PROGRESS
    brokers = Brokers(
        TxnMarkerResult(7, first),
        TxnMarkerResult(8, second),
        groups=(Errors.NONE, loading, Errors.NONE),
    )
    markers = TxnMarker(7, 0, True, 1, ()), TxnMarker(8, 0, False, 1, ())
    results = receive(brokers, *markers)
    assert brokers.asked == [
        CompleteTransactions(
            (
                CompletedTransaction(2, 7, 12, is_commit=True),
                CompletedTransaction(3, 7, 13, is_commit=True),
                CompletedTransaction(4, 8, 14, is_commit=False),
            )
        )
    ]
    again = first[3]._replace(error_code=Errors.REQUEST_TIMED_OUT)
    assert results == [TxnMarkerResult(7, (*first[:3], again)), TxnMarkerResult(8, second)]


def test_markers_of_other_topics_do_not_reach_the_group_coordinator():
    result = TxnMarkerResult(7, (PartitionOutcome("t", 0, Errors.NONE, 10),))
    brokers = Brokers(result)
    assert receive(brokers, TxnMarker(7, 0, True, 1, (T0,))) == [result]
    assert brokers.asked == []
