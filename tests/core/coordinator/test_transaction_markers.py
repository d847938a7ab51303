"""Markers: where they go, how often, and what becomes of those that nobody takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from regent.core.coordinator.transaction.transaction_coordinator import TransactionCoordinator
from regent.core.coordinator.transaction.transaction_metadata import (
    ONGOING,
    TransactionMetadata,
)
from regent.core.coordinator.transaction.transaction_records import EncodedRecord
from regent.core.coordinator.transaction.transaction_state_manager import TransactionConfig
from regent.core.errors import Errors
from regent.core.model import NO_LEADER, BrokerId, TopicPartition
from regent.core.protocol.groups import ProducerIdAndEpoch
from regent.core.protocol.transactions import EndTxn, PartitionOutcome, TxnMarker, TxnMarkerResult

GRACE_MS = 1_000
T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)


class Desk:
    """A coordinator whose log takes everything at once; the test is the brokers and the clock."""

    def __init__(self, *partitions: TopicPartition) -> None:
        self.now_ms = 0
        self.leaders: dict[TopicPartition, BrokerId] = dict.fromkeys(partitions, 1)
        self.knows_all = True
        self.sent: list[tuple[BrokerId, Sequence[TxnMarker]]] = []
        self.appends = Errors.NONE
        self.coordinator = TransactionCoordinator(
            TransactionConfig(missing_partition_grace_ms=GRACE_MS),
            self,
            self,
            time_ms=lambda: self.now_ms,
            partition_of=lambda _: 0,
            leader_of=lambda topic_partition: self.leaders.get(topic_partition),
            next_producer_id=lambda: 1,
            knows_all=lambda: self.knows_all,
        )
        self.coordinator.on_elected(0, 0, 0)
        self.coordinator.on_loaded(0, 0, [])
        for name in ("x", "y"):
            opened = TransactionMetadata(name, ord(name), 0, 60_000, ONGOING, set(partitions), 0)
            self.coordinator.states.put(opened)

    # --- ports ---

    def append(
        self,
        partition: int,
        term: int,
        records: Sequence[EncodedRecord],
        respond: Callable[[Errors], None],
    ) -> None:
        respond(self.appends)

    def load(self, partition: int, term: int) -> None:
        pass

    def send(self, broker_id: BrokerId, markers: Sequence[TxnMarker]) -> None:
        self.sent.append((broker_id, markers))

    # --- steps ---

    def commit(self, name: str = "x") -> None:
        errors: list[Errors] = []
        request = EndTxn(name, ProducerIdAndEpoch(ord(name), 0), is_commit=True)
        self.coordinator.end(request, errors.append)
        assert errors == [Errors.NONE]

    def answer(self, error: Errors | None = Errors.NONE) -> None:
        """The oldest request is answered; None: it is not."""
        broker_id, markers = self.sent.pop(0)
        results = None
        if error is not None:
            results = [
                TxnMarkerResult(
                    marker.producer_id,
                    tuple(PartitionOutcome(*tp, error) for tp in marker.partitions),
                )
                for marker in markers
            ]
        self.coordinator.markers.on_answered(broker_id, results)

    def state(self, name: str = "x") -> str:
        return self.coordinator.describe(name).transaction_state

    def destinations(self) -> list[tuple[BrokerId, list[TopicPartition]]]:
        return [
            (broker_id, sorted(tp for marker in markers for tp in marker.partitions))
            for broker_id, markers in self.sent
        ]


def test_each_leader_gets_one_request_with_its_partitions():
    desk = Desk(T0, T1, U0)
    desk.leaders[U0] = 2
    desk.commit()
    assert sorted(desk.destinations()) == [(1, [T0, T1]), (2, [U0])]
    desk.answer()
    assert desk.state() == "PrepareCommit"
    desk.answer()
    assert desk.state() == "CompleteCommit"


def test_markers_that_wait_for_a_broker_share_its_next_request():
    desk = Desk(T0)
    desk.commit("x")
    desk.commit("y")
    assert desk.destinations() == [(1, [T0])]
    desk.answer()
    assert [marker.producer_id for marker in desk.sent[0][1]] == [ord("y")]
    assert desk.state("x") == "CompleteCommit"


def test_a_marker_follows_the_leader():
    desk = Desk(T0)
    desk.commit()
    desk.answer(Errors.NOT_LEADER_OR_FOLLOWER)
    assert desk.coordinator.markers.needs_retry
    desk.leaders[T0] = 2
    desk.coordinator.markers.retry()
    assert desk.destinations() == [(2, [T0])]


def test_a_broker_that_does_not_answer_is_asked_again():
    desk = Desk(T0)
    desk.commit()
    desk.answer(None)
    desk.coordinator.markers.retry()
    desk.answer()
    assert desk.state() == "CompleteCommit"


def test_an_unexpected_answer_does_not_lose_a_marker():
    desk = Desk(T0)
    desk.commit()
    desk.answer(Errors.CORRUPT_MESSAGE)
    desk.coordinator.markers.retry()
    assert desk.destinations() == [(1, [T0])]


def test_a_partition_without_a_leader_waits():
    desk = Desk(T0)
    desk.leaders[T0] = NO_LEADER
    desk.commit()
    desk.now_ms = 10 * GRACE_MS
    desk.coordinator.markers.retry()
    assert (desk.destinations(), desk.state()) == ([], "PrepareCommit")


def test_a_partition_that_is_missing_may_be_new():
    desk = Desk(T0)
    del desk.leaders[T0]
    desk.commit()
    desk.now_ms = GRACE_MS - 1
    desk.coordinator.markers.retry()
    assert desk.state() == "PrepareCommit"
    desk.leaders[T0] = 1
    desk.coordinator.markers.retry()
    assert desk.destinations() == [(1, [T0])]


def test_a_partition_that_stays_missing_was_deleted():
    desk = Desk(T0)
    del desk.leaders[T0]
    desk.commit()
    desk.now_ms = GRACE_MS
    desk.coordinator.markers.retry()
    assert desk.state() == "CompleteCommit"


def test_a_broker_that_does_not_know_all_partitions_does_not_count_one_as_deleted():
    desk = Desk(T0)
    del desk.leaders[T0]
    desk.knows_all = False
    desk.commit()
    desk.now_ms = 10 * GRACE_MS
    desk.coordinator.markers.retry()
    assert desk.state() == "PrepareCommit"
    desk.knows_all = True
    desk.coordinator.markers.retry()
    assert desk.state() == "PrepareCommit", "what it has heard since may lack new partitions"
    desk.now_ms += GRACE_MS
    desk.coordinator.markers.retry()
    assert desk.state() == "CompleteCommit"


def test_a_partition_that_is_known_to_be_deleted_needs_no_marker():
    desk = Desk(T0, U0)
    desk.commit()
    desk.coordinator.on_partitions_deleted([T0])
    (topic,) = desk.coordinator.describe("x").topics
    assert (topic.topic, topic.partitions) == (U0.topic, (U0.partition,))
    desk.coordinator.on_partitions_deleted([U0])
    assert desk.state() == "CompleteCommit"
    desk.answer()
    assert not desk.coordinator.markers.needs_retry


def test_a_fenced_coordinator_gives_up_when_its_leadership_ends():
    desk = Desk(T0)
    desk.commit()
    desk.answer(Errors.TRANSACTION_COORDINATOR_FENCED)
    assert desk.coordinator.markers.needs_retry
    desk.coordinator.on_resigned(0, 1)
    desk.coordinator.markers.retry()
    assert not desk.sent
    assert not desk.coordinator.markers.pending
    assert not desk.coordinator.markers.needs_retry


@pytest.mark.parametrize("is_told_first", [True, False])
def test_a_coordinator_that_never_heard_of_the_one_between_its_elections_goes_on(
    is_told_first: bool,
):
    """Another broker has led in epoch 1 and has sent the marker; its own leadership never ended."""
    desk = Desk(T0)
    desk.commit()
    if is_told_first:
        desk.coordinator.on_elected(0, 2, 0)
    desk.answer(Errors.TRANSACTION_COORDINATOR_FENCED)
    if not is_told_first:
        desk.coordinator.on_elected(0, 2, 0)
    desk.coordinator.markers.retry()
    ((_, (marker,)),) = desk.sent
    assert marker.coordinator_epoch == 2
    desk.answer()
    assert desk.state() == "CompleteCommit"


def test_a_producer_with_a_newer_epoch_ends_the_transaction_itself():
    desk = Desk(T0)
    desk.commit()
    desk.answer(Errors.INVALID_PRODUCER_EPOCH)
    assert not desk.coordinator.markers.pending
    assert not desk.coordinator.markers.needs_retry


@pytest.mark.parametrize(
    "error", [Errors.NOT_LEADER_OR_FOLLOWER, Errors.NOT_ENOUGH_REPLICAS, Errors.REQUEST_TIMED_OUT]
)
def test_the_end_of_a_transaction_is_written_until_the_log_takes_it(error: Errors):
    """NOT_LEADER_OR_FOLLOWER says that the leadership has ended, or that descriptors are short."""
    desk = Desk(T0)
    desk.commit()
    desk.appends = error
    desk.answer()
    for _ in range(2):
        assert desk.coordinator.markers.needs_retry
        desk.coordinator.markers.retry()
    assert desk.state() == "PrepareCommit"
    desk.appends = Errors.NONE
    desk.coordinator.markers.retry()
    assert desk.state() == "CompleteCommit"
    assert not desk.coordinator.markers.needs_retry


@pytest.mark.parametrize("is_elected_again", [True, False])
def test_an_end_that_the_log_has_refused_is_given_up_with_the_leadership(is_elected_again: bool):
    desk = Desk(T0)
    desk.commit()
    desk.appends = Errors.NOT_LEADER_OR_FOLLOWER
    desk.answer()
    if is_elected_again:
        desk.coordinator.on_elected(0, 2, 2)
    else:
        desk.coordinator.on_resigned(0, 1)
    desk.coordinator.markers.retry()
    assert not desk.coordinator.markers.needs_retry


def test_the_answer_for_an_earlier_leadership_is_ignored():
    desk = Desk(T0)
    desk.commit()
    desk.coordinator.on_resigned(0, 1)
    desk.coordinator.on_elected(0, 2, 2)
    desk.coordinator.on_loaded(0, 2, [])
    desk.answer()
    assert desk.coordinator.describe("x").error_code is Errors.TRANSACTIONAL_ID_NOT_FOUND


def test_large_transactions_are_sent_in_pieces():
    partitions = [TopicPartition("t", number) for number in range(12_000)]
    desk = Desk(*partitions)
    desk.commit()
    told: list[TopicPartition] = []
    while desk.sent:
        ((_, markers),) = desk.sent
        sizes = [len(marker.partitions) for marker in markers]
        assert max(sizes) <= 1_000
        assert sum(sizes) <= 6_000
        told += [tp for marker in markers for tp in marker.partitions]
        desk.answer()
    assert sorted(told) == partitions
    assert desk.state() == "CompleteCommit"


def test_waiting_markers_are_counted():
    desk = Desk(T0, T1)
    markers = desk.coordinator.markers
    desk.leaders[T0] = NO_LEADER
    desk.commit()
    assert markers.unknown_destination_count == 1
    desk.answer(Errors.NOT_LEADER_OR_FOLLOWER)
    assert markers.unknown_destination_count == 1, "the other one has a destination"
    desk.leaders[T0] = 1
    markers.retry()
    assert (markers.unknown_destination_count, markers.refused_append_count) == (0, 0)
    desk.appends = Errors.NOT_ENOUGH_REPLICAS
    desk.answer()
    assert markers.refused_append_count == 1
    desk.appends = Errors.NONE
    markers.retry()
    assert markers.refused_append_count == 0
