"""The transaction coordinator as an actor, on real replicas: markers go to a fake target."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from queue import Empty, Queue

import pytest

from regent.actors.producer_id_manager import ProducerIdManager
from regent.core.errors import Errors, SessionExpiredError
from regent.core.model import TopicPartition
from regent.core.protocol.control import (
    ControlHeader,
    LeaderAndIsrPartition,
    LeaderAndIsrRequest,
    LeaderAndIsrTopic,
    LeaderAndIsrType,
)
from regent.core.protocol.groups import (
    CommitOffsets,
    FetchOffsets,
    OffsetAndMetadata,
    VerifiedProducer,
)
from regent.core.protocol.messages.producer_ids import InitProducerIdResponse
from regent.core.protocol.transactions import (
    AddPartitionsToTxn,
    InitProducerId,
    TransactionToVerify,
    TxnMarker,
)
from regent.core.replication.metadata_cache import MetadataSnapshot
from regent.core.topic_validation import TRANSACTION_STATE_TOPIC
from regent.testing.waits import eventually
from tests.support.led_groups import BROKER, ORDERS_0, LedGroups
from tests.support.led_partitions import now_ms
from tests.support.led_transactions import OFFSETS_0, LedTransactions
from tests.support.stage import TIMEOUT_S


@pytest.fixture
def undo() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_a_committed_transaction_gets_its_marker_and_is_complete(undo: ExitStack):
    led = LedTransactions(undo)
    producer = led.init()
    assert producer == (1_000, 0)
    led.begin(producer)
    assert led.end(producer, is_commit=True) is Errors.NONE
    marker = led.target.written.get(timeout=TIMEOUT_S)
    assert marker == TxnMarker(1_000, 0, True, 0, (ORDERS_0,))
    assert not led.wait_for("CompleteCommit").topics


def test_a_new_leadership_continues_with_the_stored_decisions(undo: ExitStack):
    led = LedTransactions(undo)
    led.target.error = Errors.NOT_LEADER_OR_FOLLOWER
    producer = led.init()
    led.begin(producer)
    assert led.end(producer, is_commit=False) is Errors.NONE
    assert led.target.written.get(timeout=TIMEOUT_S).coordinator_epoch == 0
    led.lead(1, leader=2)
    assert led.describe().error_code is Errors.NOT_COORDINATOR
    led.target.error = Errors.NONE
    led.lead(2)
    led.wait_for("CompleteAbort")
    assert led.target.written.queue[-1] == TxnMarker(1_000, 0, False, 2, (ORDERS_0,))


def test_a_marker_that_is_refused_is_sent_again(undo: ExitStack):
    led = LedTransactions(undo)
    led.target.error = Errors.NOT_ENOUGH_REPLICAS
    producer = led.init()
    led.begin(producer)
    led.end(producer, is_commit=True)
    for _ in range(2):
        led.target.written.get(timeout=TIMEOUT_S)
    led.target.error = Errors.NONE
    led.wait_for("CompleteCommit")


@pytest.mark.parametrize("is_answered", [True, False])
def test_a_marker_whose_sending_fails_is_sent_again(
    is_answered: bool, undo: ExitStack, monkeypatch: pytest.MonkeyPatch
):
    led = LedTransactions(undo)
    producer = led.init()
    write, calls = led.target.write_markers, itertools.count()

    def fail_once(markers: Sequence[TxnMarker], respond: Callable[..., None]) -> None:
        is_first = not next(calls)
        if is_answered or not is_first:
            write(markers, respond)
        if is_first:
            raise RuntimeError("no thread can be started")

    monkeypatch.setattr(led.target, "write_markers", fail_once)
    for _ in range(2):
        led.begin(producer)
        assert led.end(producer, is_commit=True) is Errors.NONE
        led.wait_for("CompleteCommit")


def test_a_second_producer_aborts_the_transaction_of_the_first_and_fences_it(undo: ExitStack):
    led = LedTransactions(undo)
    first = led.init()
    led.begin(first)
    second = led.init()
    assert second == (1_000, 2)
    assert led.target.written.get(timeout=TIMEOUT_S) == TxnMarker(1_000, 1, False, 0, (ORDERS_0,))
    assert led.end(first, is_commit=True) is Errors.PRODUCER_FENCED


def test_a_decision_waits_for_the_replicas(undo: ExitStack):
    led = LedTransactions(undo, isr=(1, 2))
    answers: Queue[InitProducerIdResponse] = Queue()

    def is_decided() -> bool:  # it is refused as long as there is no producer id
        nonlocal answers
        answers = led.send(InitProducerId("x", 60_000))
        return led.describe().error_code is Errors.NONE

    eventually(is_decided, "the request before it was handled")
    with pytest.raises(Empty):
        answers.get_nowait()


def test_without_zookeeper_there_are_no_producer_ids_and_clients_ask_again(undo: ExitStack):
    blocks: Iterator[Exception | range] = iter([SessionExpiredError("no session"), range(5, 10)])

    def take_block() -> range:
        block = next(blocks)
        if isinstance(block, Exception):
            raise block
        return block

    led = LedTransactions(undo, take_block=take_block)
    assert led.init() == (5, 0)


def test_producer_ids_are_taken_again_after_no_thread_could_be_started(
    undo: ExitStack, monkeypatch: pytest.MonkeyPatch
):
    taken: Queue[range | None] = Queue()
    producer_ids = ProducerIdManager(lambda: range(7, 9), taken.put)
    undo.callback(producer_ids.stop)

    def fail(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", fail)
        with pytest.raises(RuntimeError):
            producer_ids.prefetch()
    producer_ids.prefetch()
    producer_ids.add(taken.get(timeout=TIMEOUT_S))
    assert producer_ids.next_id() == 7


def test_positions_take_effect_when_the_transaction_is_complete(undo: ExitStack):
    led = LedTransactions(undo)
    producer = led.init()
    led.begin(producer, (OFFSETS_0,))
    commit = CommitOffsets(
        "g", {ORDERS_0: OffsetAndMetadata(7)}, producer=VerifiedProducer(*producer)
    )
    assert led.groups.ask(commit) == {ORDERS_0: Errors.NONE}
    assert _stable(led.groups) is Errors.UNSTABLE_OFFSET_COMMIT
    led.end(producer, is_commit=True)
    led.wait_for("CompleteCommit")
    assert led.groups.positions("g").offsets[ORDERS_0].offset == 7
    assert _stable(led.groups) is Errors.NONE


def test_positions_of_an_aborted_transaction_are_dropped(undo: ExitStack):
    led = LedTransactions(undo)
    producer = led.init()
    led.begin(producer, (OFFSETS_0,))
    led.groups.ask(
        CommitOffsets("g", {ORDERS_0: OffsetAndMetadata(7)}, producer=VerifiedProducer(*producer))
    )
    led.end(producer, is_commit=False)
    led.wait_for("CompleteAbort")
    assert ORDERS_0 not in led.groups.positions("g").offsets


def _stable(groups: LedGroups) -> Errors:
    fetched = groups.ask(FetchOffsets("g", (ORDERS_0,), require_stable=True))
    return fetched.offsets[ORDERS_0].error_code


@pytest.mark.parametrize(
    ("epoch", "partition", "error"),
    [
        (0, ORDERS_0, Errors.NONE),
        (0, ORDERS_0._replace(partition=1), Errors.TRANSACTION_ABORTABLE),
        (1, ORDERS_0, Errors.INVALID_PRODUCER_EPOCH),
    ],
)
def test_a_broker_asks_its_own_coordinator_in_memory(
    epoch: int, partition: TopicPartition, error: Errors, undo: ExitStack
):
    led = LedTransactions(undo)
    producer = led.init()
    led.begin(producer)
    question = TransactionToVerify("x", producer.producer_id, epoch, (partition,))
    assert led.verify(question) == {partition: error}


def test_a_question_without_a_coordinator_is_answered(undo: ExitStack):
    led = LedTransactions(undo)
    led.lead(1, leader=2)
    question = TransactionToVerify("x", 1, 0, (ORDERS_0,))
    assert led.verify(question) == {ORDERS_0: Errors.COORDINATOR_NOT_AVAILABLE}


def test_a_coordinator_continues_with_its_first_number_of_partitions_when_its_topic_grows(
    undo: ExitStack,
):
    led = LedTransactions(undo)
    producer = led.init()
    led.lead(1, leader=2, partitions=2)
    led.lead(2, partitions=2)
    assert led.describe().producer_id == producer.producer_id
    (line,) = led.service.partitions.warnings
    assert "__transaction_state has 2 partitions, but only the first 1 are used" in line


def test_a_partition_is_unknown_only_if_this_broker_has_received_all_topics(undo: ExitStack):
    led = LedTransactions(undo)
    producer = led.init()
    request = AddPartitionsToTxn("x", producer, (TopicPartition("nowhere", 0),))
    assert set(led.ask(request).values()) == {Errors.UNKNOWN_TOPIC_OR_PARTITION}
    led.cache.snapshot = replace(led.cache.snapshot, is_complete=False)
    assert set(led.ask(request).values()) == {Errors.COORDINATOR_LOAD_IN_PROGRESS}


def test_a_leadership_that_comes_before_the_number_of_partitions_is_loaded_when_it_comes(
    undo: ExitStack,
):
    led = LedTransactions(undo)
    producer = led.init()
    known, led.cache.snapshot = led.cache.snapshot, MetadataSnapshot()
    led.service.on_metadata_changed()
    header = ControlHeader(BROKER, 1, -1)
    row = LeaderAndIsrPartition(0, 1, BROKER, 9, (BROKER,), 0, (BROKER,), (), (), False, 0)
    topic = LeaderAndIsrTopic(TRANSACTION_STATE_TOPIC, None, (row,))
    request = LeaderAndIsrRequest(LeaderAndIsrType.INCREMENTAL, (topic,), ())
    led.manager.handle(header, request, now_ms())
    assert led.describe().error_code is Errors.NOT_COORDINATOR
    led.cache.snapshot = known
    led.service.on_metadata_changed()
    eventually(lambda: led.describe().producer_id == producer.producer_id, "it is loaded")
