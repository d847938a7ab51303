"""The requests of transactions, in every version, to a real coordinator over real replicas."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from kafka.protocol.admin import DescribeTransactionsRequest, ListTransactionsRequest
from kafka.protocol.metadata import FindCoordinatorRequest
from kafka.protocol.producer.transaction import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
    WriteTxnMarkersRequest,
)

from regent.actors.coordinator_log import begin_verification
from regent.broker.api.coordinator_requests import CoordinatorRequests
from regent.broker.api.find_coordinator import find_coordinator_apis
from regent.broker.api.producer_ids import producer_id_apis
from regent.broker.api.registered_followers import BrokerSenders
from regent.broker.api.transactions import (
    HangingTransactions,
    TransactionHandlers,
    transaction_apis,
    transaction_apis_of_brokers,
)
from regent.broker.api.txn_offset_commit import TxnOffsetCommitHandler
from regent.core.coordinator.partition_for import CoordinatorPartitions
from regent.core.errors import Errors
from regent.core.model import TopicPartition
from regent.core.protocol.messages.transactions import DescribedTransactionTopic
from regent.core.protocol.transactions import TransactionToVerify, TxnMarker
from regent.core.replica_logs import ActiveProducer
from regent.core.replication.metadata_cache import MetadataCache
from regent.core.security.session import KafkaPrincipal, Session
from regent.core.topic_validation import TRANSACTION_STATE_TOPIC
from regent.records.end_transaction_marker import EndTransactionMarker, build_marker
from regent.transport.kafka.replies import Replies
from tests.broker.api.canned_replicas import EXECUTOR, cached
from tests.support.creations import Creations, explain
from tests.support.led_groups import BROKER, ORDERS_0
from tests.support.led_transactions import OFFSETS_0, LedTransactions
from tests.support.stage import TIMEOUT_S
from tests.transport.kafka.wire import ask


class Producer:
    """A transactional producer, whose requests have the versions that a test chooses."""

    def __init__(self, undo: ExitStack) -> None:
        self.led = led = LedTransactions(undo)
        executor = undo.enter_context(ThreadPoolExecutor(1))
        transactions = CoordinatorRequests(led.service.coordinator)
        groups = led.groups.partitions
        self.offsets = TxnOffsetCommitHandler(
            CoordinatorRequests(led.groups.service),
            groups,
            partial(begin_verification, led.manager),
            led.service,
            led.cache,
            Replies(),
        )
        self.creations = Creations()
        handlers = TransactionHandlers(
            transactions, led.service.partitions, groups, led.service.markers, Replies()
        )
        self.handlers = handlers
        self.hanging = Hanging()
        self.apis_of_brokers = transaction_apis_of_brokers(handlers)
        self.apis = [
            *producer_id_apis(lambda: range(10), executor, transactions),
            *transaction_apis(handlers, HangingTransactions(self.hanging, executor)),
            *self.offsets.apis(),
            *find_coordinator_apis(
                groups, led.cache, self.creations, explain, led.service.partitions
            ),
        ]
        self.who = led.init()

    def ask(self, request: Any, version: int) -> Any:
        return ask(self.apis, request, version)

    def init(self, version: int, **fields: Any) -> tuple[int, int, int]:
        asked = {"transactional_id": "x", "transaction_timeout_ms": 60_000, **fields}
        given = self.ask(InitProducerIdRequest(**asked), version)
        return given.error_code, given.producer_id, given.producer_epoch

    def add(self, version: int, *names: str, epoch: int | None = None) -> Mapping[str, int]:
        """Add partitions to the transaction of ``x``; return the error of each."""
        topics = [(name, [int(index)]) for name, index in (n.split("-") for n in names)]
        producer_id, producer_epoch = self.who
        if version < 4:
            request = AddPartitionsToTxnRequest(
                v3_and_below_transactional_id="x",
                v3_and_below_producer_id=producer_id,
                v3_and_below_producer_epoch=producer_epoch if epoch is None else epoch,
                v3_and_below_topics=[
                    AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=name, partitions=numbers)
                    for name, numbers in topics
                ],
            )
            results = self.ask(request, version).results_by_topic_v3_and_below
        else:
            transaction = AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction
            request = AddPartitionsToTxnRequest(
                transactions=[
                    transaction(
                        transactional_id="x",
                        producer_id=producer_id,
                        producer_epoch=producer_epoch if epoch is None else epoch,
                        verify_only=False,
                        topics=[
                            AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(
                                name=name, partitions=numbers
                            )
                            for name, numbers in topics
                        ],
                    )
                ]
            )
            (result,) = ask(self.apis_of_brokers, request, version).results_by_transaction
            assert result.transactional_id == "x"
            results = result.topic_results
        return {
            f"{row.name}-{partition.partition_index}": partition.partition_error_code
            for row in results
            for partition in row.results_by_partition
        }

    def end(self, version: int, *, is_commit: bool = True, epoch: int | None = None) -> int:
        request = EndTxnRequest(
            transactional_id="x",
            producer_id=self.who.producer_id,
            producer_epoch=self.who.producer_epoch if epoch is None else epoch,
            committed=is_commit,
        )
        error: int = self.ask(request, version).error_code
        return error

    def commit_offset(self, version: int, topic: str = "orders") -> int:
        """Store a position of the group ``g``; return the error."""
        partition = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
        request = TxnOffsetCommitRequest(
            transactional_id="x",
            group_id="g",
            producer_id=self.who.producer_id,
            producer_epoch=self.who.producer_epoch,
            topics=[
                partition(
                    name=topic,
                    partitions=[
                        partition.TxnOffsetCommitRequestPartition(
                            partition_index=0, committed_offset=5, committed_metadata="m"
                        )
                    ],
                )
            ],
        )
        ((row,),) = [answered.partitions for answered in self.ask(request, version).topics]
        error: int = row.error_code
        return error


@pytest.fixture
def producer() -> Iterator[Producer]:
    with ExitStack() as undo:
        yield Producer(undo)


@pytest.mark.parametrize("version", range(6))
def test_a_transactional_producer_gets_an_epoch_that_fences_others(
    version: int, producer: Producer
):
    assert producer.init(version) == (Errors.NONE, 1_000, 1)
    error = Errors.PRODUCER_FENCED if version >= 2 else Errors.INVALID_PRODUCER_EPOCH
    assert producer.end(min(version, 4)) == error


@pytest.mark.parametrize("version", range(3, 6))
def test_a_producer_continues_with_what_it_has(version: int, producer: Producer):
    assert producer.init(version, producer_id=1_000, producer_epoch=0) == (Errors.NONE, 1_000, 1)
    assert producer.init(version, producer_id=1_000, producer_epoch=0) == (Errors.NONE, 1_000, 1)
    error = Errors.PRODUCER_FENCED if version >= 4 else Errors.INVALID_PRODUCER_EPOCH
    assert producer.init(version, producer_id=999, producer_epoch=0) == (error, -1, -1)
    half = producer.init(version, producer_id=1_000, producer_epoch=-1)
    assert half == (Errors.INVALID_REQUEST, -1, -1)


def test_an_idempotent_producer_needs_no_coordinator(producer: Producer):
    assert producer.init(5, transactional_id=None) == (Errors.NONE, 0, 0)


@pytest.mark.parametrize("version", range(6))
def test_partitions_are_added_all_or_none(version: int, producer: Producer):
    assert producer.add(version, "orders-0", "nowhere-0") == {
        "orders-0": Errors.OPERATION_NOT_ATTEMPTED,
        "nowhere-0": Errors.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert producer.add(version, "orders-0", "orders-1") == {"orders-0": 0, "orders-1": 0}
    assert producer.led.describe().topics == (
        DescribedTransactionTopic(topic="orders", partitions=(0, 1)),
    )
    error = Errors.PRODUCER_FENCED if version >= 2 else Errors.INVALID_PRODUCER_EPOCH
    assert producer.add(version, "orders-0", epoch=9) == {"orders-0": error}


@pytest.mark.parametrize("version", [4, 5])
def test_only_brokers_ask_about_several_transactions(version: int, producer: Producer):
    answer = producer.ask(AddPartitionsToTxnRequest(transactions=[]), version)
    assert answer.error_code == Errors.CLUSTER_AUTHORIZATION_FAILED


@pytest.mark.parametrize("version", range(5))
def test_a_transaction_is_ended(version: int, producer: Producer):
    producer.add(3, "orders-0")
    assert producer.end(version, is_commit=False) == Errors.NONE
    marker = producer.led.target.written.get(timeout=TIMEOUT_S)
    assert marker == TxnMarker(1_000, 0, False, 0, (ORDERS_0,))
    assert producer.end(version, is_commit=True) in (
        Errors.INVALID_TXN_STATE,
        Errors.CONCURRENT_TRANSACTIONS,
    )


@pytest.mark.parametrize("version", range(5))
def test_positions_of_a_group_are_part_of_a_transaction(version: int, producer: Producer):
    error = Errors.TRANSACTION_ABORTABLE if version >= 4 else Errors.INVALID_TXN_STATE
    assert producer.commit_offset(version) == error
    asked = AddOffsetsToTxnRequest(
        transactional_id="x", producer_id=1_000, producer_epoch=0, group_id="g"
    )
    assert producer.ask(asked, version).error_code == Errors.NONE
    assert producer.led.describe().topics == (
        DescribedTransactionTopic(topic=OFFSETS_0.topic, partitions=(OFFSETS_0.partition,)),
    )
    assert producer.commit_offset(version) == Errors.NONE
    assert producer.commit_offset(version, "nowhere") == Errors.UNKNOWN_TOPIC_OR_PARTITION
    producer.end(3)
    producer.led.wait_for("CompleteCommit")
    assert producer.led.groups.positions("g").offsets[ORDERS_0].offset == 5


@pytest.mark.parametrize("version", range(5))
def test_an_error_of_the_groups_coordinator_is_returned_first(version: int, producer: Producer):
    producer.led.groups.lead(1, leader=2)
    assert producer.commit_offset(version) == Errors.NOT_COORDINATOR


class Unreachable:
    """Implements ``TransactionVerifier``."""

    def verify(self, transaction: TransactionToVerify, respond: Any) -> None:
        respond(dict.fromkeys(transaction.partitions, Errors.NETWORK_EXCEPTION))


@pytest.mark.parametrize("version", range(5))
def test_positions_are_committed_later_if_the_coordinator_does_not_answer(version: int):
    with ExitStack() as undo:
        producer = Producer(undo)
        object.__setattr__(producer.offsets, "verifier", Unreachable())
        is_old = version < 2
        error = Errors.COORDINATOR_NOT_AVAILABLE if is_old else Errors.COORDINATOR_LOAD_IN_PROGRESS
        assert producer.commit_offset(version) == error


class VerifiesTooLate:
    """Answers that a partition is part of a transaction, which ends before the answer arrives."""

    def __init__(self, producer: Producer) -> None:
        self.producer = producer

    def verify(self, transaction: TransactionToVerify, respond: Any) -> None:
        data = build_marker(EndTransactionMarker(False, 0), *self.producer.who, 0)
        self.producer.led.manager.append_markers({OFFSETS_0: data}, 0, lambda outcomes: None)
        respond(dict.fromkeys(transaction.partitions, Errors.NONE))


@pytest.mark.parametrize("version", range(5))
def test_positions_of_a_transaction_that_ended_during_the_verification_are_refused(version: int):
    with ExitStack() as undo:
        producer = Producer(undo)
        object.__setattr__(producer.offsets, "verifier", VerifiesTooLate(producer))
        assert producer.commit_offset(version) == Errors.INVALID_TXN_STATE
        assert not producer.led.groups.positions("g").offsets


class Hanging:
    """Two partitions with a transaction of producer 7 that has been forgotten."""

    coordinator_epoch = -1  # there was no marker yet

    def active_producers(
        self, topic_partition: TopicPartition
    ) -> Sequence[ActiveProducer] | Errors:
        if topic_partition.topic != "orders":
            return Errors.NOT_LEADER_OR_FOLLOWER
        other = ActiveProducer(8, 9, 0, 0, 9, -1)
        return [other, ActiveProducer(7, 1, 3, 0, self.coordinator_epoch, 12)]


@pytest.mark.parametrize("version", range(2))
@pytest.mark.parametrize(("known", "epoch"), [(-1, 0), (0, 0), (4, 4), (4, 3)])
def test_tools_end_a_transaction_with_the_epochs_that_they_were_told(
    version: int, known: int, epoch: int, producer: Producer
):
    producer.hanging.coordinator_epoch = known
    assert written(producer.ask(markers_of(epoch), version)) == [(0, 0), (1, 0)]
    assert producer.led.target.written.get_nowait() == TxnMarker(7, 1, False, epoch, (ORDERS_0,))
    assert producer.ask(WriteTxnMarkersRequest(markers=[]), version).markers == []


@pytest.mark.parametrize(("known", "epoch"), [(-1, 1), (0, 1), (4, 5), (4, 2**31 - 1)])
def test_a_tool_cannot_fence_the_coordinator(known: int, epoch: int, producer: Producer):
    """Not with the epoch of another coordinator either: its markers would be refused for good."""
    producer.hanging.coordinator_epoch = known
    refused = Errors.CLUSTER_AUTHORIZATION_FAILED
    assert written(producer.ask(markers_of(epoch), 1)) == [(0, refused), (1, refused)]
    assert producer.led.target.written.empty()
    assert written(ask(producer.apis_of_brokers, markers_of(epoch), 1)) == [(0, 0), (1, 0)]


@pytest.mark.parametrize("change", [{"producer_epoch": 2}, {"producer_id": 6}])
def test_a_tool_cannot_fence_a_producer(change: dict[str, int], producer: Producer):
    request = markers_of(0)
    for marker in request.markers:
        for name, value in change.items():
            setattr(marker, name, value)
    refused = Errors.INVALID_PRODUCER_EPOCH
    (marker,) = producer.ask(request, 1).markers
    assert [row.error_code for row in marker.topics[0].partitions] == [refused, refused]
    assert producer.led.target.written.empty()


def test_a_marker_is_written_where_it_may_be(producer: Producer):
    request = markers_of(0)
    request.markers[1].topics[0].name = "elsewhere"
    (marker,) = producer.ask(request, 1).markers
    errors = {row.name: [p.error_code for p in row.partitions] for row in marker.topics}
    assert errors == {"orders": [0], "elsewhere": [Errors.NOT_LEADER_OR_FOLLOWER]}


def test_a_coordinator_of_kafka_sends_markers_again_until_its_epoch_is_known(producer: Producer):
    """It drops them after most errors, and the transaction never ends. Brokers are believed."""
    brokers = BrokerSenders(producer.led.cache, "brokers", EXECUTOR)
    stranger, broker = (
        Session("10.9.9.9", KafkaPrincipal("User", user)) for user in ("alice", "brokers")
    )
    unknown = CoordinatorPartitions(TRANSACTION_STATE_TOPIC, MetadataCache(), 50)
    untold = replace(producer.handlers, transaction_partitions=unknown)
    newest = producer.led.service.partitions.newest_leader_epoch
    for handlers, epoch in ((untold, newest), (producer.handlers, newest + 1)):
        apis = transaction_apis(handlers, brokers)
        again, request = Errors.NOT_LEADER_OR_FOLLOWER, markers_of(epoch)
        assert written(ask(apis, request, 1, session=stranger)) == [(0, again), (1, again)]
        assert producer.led.target.written.empty()
        assert written(ask(apis, request, 1, session=broker)) == [(0, 0), (1, 0)]
        for _ in range(2):
            assert producer.led.target.written.get_nowait().coordinator_epoch == epoch
    assert written(ask(apis, markers_of(newest), 1, session=stranger)) == [(0, 0), (1, 0)]


def markers_of(coordinator_epoch: int) -> WriteTxnMarkersRequest:
    """Return two markers of the same producer."""
    marker = WriteTxnMarkersRequest.WritableTxnMarker
    return WriteTxnMarkersRequest(
        markers=[
            marker(
                producer_id=7,
                producer_epoch=1,
                transaction_result=False,
                topics=[marker.WritableTxnMarkerTopic(name="orders", partition_indexes=[number])],
                coordinator_epoch=coordinator_epoch,
            )
            for number in (0, 1)
        ]
    )


def written(response: Any) -> list[tuple[int, int]]:
    """Return the error of each partition."""
    (marker,) = response.markers
    ((name, rows),) = [(row.name, row.partitions) for row in marker.topics]
    assert (marker.producer_id, name) == (7, "orders")
    return [(row.partition_index, row.error_code) for row in rows]


def test_tools_see_a_transaction(producer: Producer):
    producer.add(3, "orders-1", "orders-0")
    asked = DescribeTransactionsRequest(transactional_ids=["x", "", "y"])
    found, empty, unknown = producer.ask(asked, 0).transaction_states
    assert (found.error_code, found.transactional_id) == (0, "x")
    assert (found.transaction_state, found.transaction_timeout_ms) == ("Ongoing", 60_000)
    assert (found.producer_id, found.producer_epoch) == (1_000, 0)
    assert [(row.topic, list(row.partitions)) for row in found.topics] == [("orders", [0, 1])]
    assert empty.error_code == Errors.INVALID_REQUEST
    assert unknown.error_code == Errors.TRANSACTIONAL_ID_NOT_FOUND


@pytest.mark.parametrize("version", range(2))
def test_tools_list_transactions(version: int, producer: Producer):
    producer.add(3, "orders-0")
    producer.led.init("y")

    def listed(**filters: Any) -> list[tuple[str, int, str]]:
        asked = {"state_filters": [], "producer_id_filters": [], **filters}
        found = producer.ask(ListTransactionsRequest(**asked), version)
        assert found.error_code == 0
        assert list(found.unknown_state_filters) == [
            name for name in asked["state_filters"] if name == "Nonsense"
        ]
        return [
            (row.transactional_id, row.producer_id, row.transaction_state)
            for row in found.transaction_states
        ]

    assert listed() == [("x", 1_000, "Ongoing"), ("y", 1_001, "Empty")]
    assert listed(state_filters=["Ongoing", "Nonsense"]) == [("x", 1_000, "Ongoing")]
    assert listed(state_filters=["Nonsense"]) == []
    assert listed(producer_id_filters=[1_001]) == [("y", 1_001, "Empty")]
    if version >= 1:
        assert ("x", 1_000, "Ongoing") not in listed(duration_filter=3_600_000)


@pytest.mark.parametrize("version", range(1, 7))
def test_the_coordinator_of_a_transactional_id_is_found(version: int, producer: Producer):
    if version < 4:
        found = producer.ask(FindCoordinatorRequest(key="x", key_type=1), version)
    else:
        asked = FindCoordinatorRequest(coordinator_keys=["x"], key_type=1)
        (found,) = producer.ask(asked, version).coordinators
    assert (found.error_code, found.node_id) == (0, BROKER)


def test_the_topic_is_created_when_the_first_coordinator_is_looked_for():
    creations, cache = Creations(), cached()
    partitions = CoordinatorPartitions(TRANSACTION_STATE_TOPIC, cache, 50)
    apis = find_coordinator_apis(partitions, cache, creations, explain, partitions)
    found = ask(apis, FindCoordinatorRequest(key="x", key_type=1), 3)
    assert found.error_code == Errors.COORDINATOR_NOT_AVAILABLE
    assert creations.wanted == [TRANSACTION_STATE_TOPIC]


def test_a_broker_that_does_not_know_the_number_of_partitions_is_asked_again(producer: Producer):
    producer.init(4)
    cache = producer.led.cache
    cache.snapshot = replace(cache.snapshot, coordinated_partitions={}, is_complete=False)
    request = AddOffsetsToTxnRequest(
        transactional_id="x",
        producer_id=producer.who.producer_id,
        producer_epoch=producer.who.producer_epoch,
        group_id="g",
    )
    assert producer.ask(request, 3).error_code == Errors.COORDINATOR_LOAD_IN_PROGRESS
    assert producer.commit_offset(3) == Errors.NOT_COORDINATOR
    assert producer.commit_offset(3, "unknown") == Errors.COORDINATOR_NOT_AVAILABLE
