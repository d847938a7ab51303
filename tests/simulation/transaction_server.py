"""The transaction coordinator of a simulated broker, and what its broker does for other ones.

It sends markers to the leaders of partitions and asks coordinators whether partitions are part of
transactions, through the simulated network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from regent.broker.internal_topics import deleted_partitions
from regent.core.coordinator.transaction.marker_receiver import MarkerReceiver
from regent.core.coordinator.transaction.transaction_coordinator import TransactionCoordinator
from regent.core.coordinator.transaction.transaction_records import (
    EncodedRecord,
    TransactionLoader,
)
from regent.core.coordinator.transaction.transaction_state_manager import (
    Respond,
    TransactionConfig,
)
from regent.core.errors import Errors
from regent.core.model import NO_LEADER, BrokerId, TopicPartition
from regent.core.protocol.client import ProducedPartition
from regent.core.protocol.groups import ProducerIdAndEpoch
from regent.core.protocol.transactions import (
    AddPartitionsToTxn,
    PartitionOutcome,
    TransactionRequest,
    TransactionToVerify,
    TxnMarker,
    TxnMarkerResult,
    VerifyPartitionsRequest,
    VerifyPartitionsResponse,
    WriteMarkersRequest,
    WriteMarkersResponse,
)
from regent.core.topic_validation import TRANSACTION_STATE_TOPIC
from regent.records.end_transaction_marker import EndTransactionMarker, build_marker
from regent.records.record_batch import BatchHeader, KeyAndValue
from tests.simulation.client_requests import TransactionAnswer, TransactionCall
from tests.simulation.coordinator_server import (
    COMMIT_TIMEOUT_MS,
    CoordinatorServer,
    CoordinatorWorld,
)
from tests.simulation.network import AnswerBody, Exchange, RequestBody

if TYPE_CHECKING:
    from tests.simulation.broker import SimulatedBroker

RETRY_BACKOFF_MS = 100
REQUEST_TIMEOUT_MS = 3_000
TICKS_TO_EXPIRY = 6
NO_ID_PROBABILITY = 0.1

RespondToMarkers = Callable[[Sequence[TxnMarkerResult] | None], None]
RespondToVerification = Callable[[Mapping[TopicPartition, Errors]], None]


class TransactionObserver:
    """Is called for what happens in coordinators; by default it does nothing."""

    def on_request(self, server: TransactionServer, request: TransactionRequest[Any]) -> object:
        """A request is about to be handled; return what ``on_answer`` needs."""

    def on_answer(
        self, server: TransactionServer, request: TransactionRequest[Any], seen: Any, result: Any
    ) -> None:
        """A request is answered."""


@dataclass(slots=True, kw_only=True)
class TransactionWorld(CoordinatorWorld):
    """What the transaction coordinators of all brokers share."""

    config: TransactionConfig
    observer: TransactionObserver = field(default_factory=TransactionObserver)
    producer_ids: int = 10_000

    def next_producer_id(self) -> int | Errors:
        """Return an id that no other producer has; now and then there is none yet."""
        if not self.is_at_rest and self.dice.random() < NO_ID_PROBABILITY:
            return Errors.COORDINATOR_LOAD_IN_PROGRESS
        self.producer_ids += 1
        return self.producer_ids


class TransactionServer(CoordinatorServer):
    """The coordinator of one process."""

    def __init__(self, broker: SimulatedBroker, world: TransactionWorld) -> None:
        super().__init__(broker, TRANSACTION_STATE_TOPIC, world)
        self.world = world
        self.machine: TransactionCoordinator = TransactionCoordinator(
            world.config,
            self,
            self,
            time_ms=self.wall_clock_ms,
            partition_of=self.partition_of,
            leader_of=self._leader_of,
            next_producer_id=world.next_producer_id,
            knows_all=lambda: broker.cache.snapshot.is_complete,
        )
        self._seen = broker.cache.snapshot
        self._ticks = 0
        self._is_retry_due = False
        self.begin()

    # --- time ---

    def on_tick(self) -> None:
        """Look for deleted partitions, and for what takes too long."""
        before, self._seen = self._seen, self.broker.cache.snapshot
        gone = tuple(deleted_partitions(before, self._seen))
        if gone:
            self.tell(lambda: self.machine.on_partitions_deleted(gone))
        self._ticks += 1
        if not self._ticks % 2:
            self.tell(self._abort_timed_out)
        if not self._ticks % TICKS_TO_EXPIRY:
            self.tell(self._expire_ids)

    def _abort_timed_out(self) -> None:
        self.machine.abort_timed_out()

    def _expire_ids(self) -> None:
        self.machine.expire_ids()

    def set_alarm(self) -> None:
        """See ``CoordinatorServer.set_alarm``."""
        if self.machine.markers.needs_retry and not self._is_retry_due:
            self._is_retry_due = True
            self._time.schedule(self.broker, RETRY_BACKOFF_MS, lambda: self.tell(self._retry))

    def _retry(self) -> None:
        self._is_retry_due = False
        self.machine.markers.retry()

    # --- requests of clients ---

    def answer(self, exchange: Exchange) -> None:
        """See ``CoordinatorServer.answer``."""
        assert isinstance(exchange.request, TransactionCall)
        request = exchange.request.request
        seen = self.world.observer.on_request(self, request)

        def respond(result: Any) -> None:
            assert exchange in self.owed, f"AnsweredOnce: {request}: {result}"
            del self.owed[exchange]
            self.world.observer.on_answer(self, request, seen, result)
            self.broker.world.network.answer(exchange, TransactionAnswer(result))

        self.machine.handle(request, respond)

    # --- TransactionLog ---

    def append(
        self, partition: int, term: int, records: Sequence[EncodedRecord], respond: Respond
    ) -> None:
        """See ``TransactionLog.append``."""
        self.append_encoded(partition, term, records, lambda error, _offset: respond(error))

    def new_loader(self) -> _Loader:
        """See ``CoordinatorServer.new_loader``."""
        return _Loader()

    def on_loaded(self, partition: int, term: int, content: Any, end: int) -> None:
        """See ``CoordinatorServer.on_loaded``."""
        self.machine.on_loaded(partition, term, content)

    # --- requests to other brokers ---

    def _leader_of(self, topic_partition: TopicPartition) -> BrokerId | None:
        snapshot = self.broker.cache.snapshot
        row = snapshot.partitions.get(topic_partition)
        if row is None:
            return None
        return row.leader if row.leader in snapshot.brokers else NO_LEADER

    def _ask(
        self,
        broker_id: BrokerId,
        request: RequestBody,
        on_answer: Callable[[AnswerBody | None], None],
    ) -> None:
        """Send a request; None: there is no answer. It is called once, not at once."""
        known = self.broker.cache.snapshot.brokers.get(broker_id)
        if known is None or known.replication_endpoint is None:
            self._time.schedule(self.broker, 0, lambda: on_answer(None))
            return

        def give_up() -> None:
            if not exchange.is_over:
                exchange.give_up()
                self.broker.world.network.drop_request(exchange)  # the connection is closed
                on_answer(None)

        exchange = self.broker.world.network.ask(
            self.broker, known.replication_endpoint, request, on_answer
        )
        self._time.schedule(self.broker, REQUEST_TIMEOUT_MS, give_up)

    def send(self, broker_id: BrokerId, markers: Sequence[TxnMarker]) -> None:
        """See ``MarkerSender.send``."""

        def answered(results: Sequence[TxnMarkerResult] | None) -> None:
            self.tell(lambda: self.machine.markers.on_answered(broker_id, results))

        def received(answer: AnswerBody | None) -> None:
            answered(answer.results if isinstance(answer, WriteMarkersResponse) else None)

        if broker_id == self.broker.broker_id:
            self._receive_markers(markers, answered)
        else:
            self._ask(broker_id, WriteMarkersRequest(tuple(markers)), received)

    def verify(self, transaction: TransactionToVerify, respond: RespondToVerification) -> None:
        """See ``TransactionVerifier.verify``."""
        number = self.partition_of(transaction.transactional_id)
        coordinator = self._leader_of(TopicPartition(TRANSACTION_STATE_TOPIC, number))

        def tell(errors: Mapping[TopicPartition, Errors]) -> None:
            respond(
                {name: _known_to_producers(errors.get(name)) for name in transaction.partitions}
            )

        def received(answer: AnswerBody | None) -> None:
            rows = answer.partitions if isinstance(answer, VerifyPartitionsResponse) else ()
            tell({row.topic_partition: row.error_code for row in rows})

        if coordinator == self.broker.broker_id:
            self.tell(lambda: self.machine.handle(_question(transaction), tell))
        elif coordinator is None or coordinator == NO_LEADER:
            tell(dict.fromkeys(transaction.partitions, Errors.COORDINATOR_NOT_AVAILABLE))
        else:
            self._ask(coordinator, VerifyPartitionsRequest(transaction), received)

    # --- requests of other brokers ---

    def take(self, exchange: Exchange) -> None:
        """Answer a request of another broker."""
        answer = partial(self.broker.world.network.answer, exchange)
        match exchange.request:
            case WriteMarkersRequest(markers):
                self._receive_markers(
                    markers,
                    lambda results: answer(WriteMarkersResponse(Errors.NONE, tuple(results))),
                )
            case VerifyPartitionsRequest(transaction):
                self.tell(
                    lambda: self.machine.handle(
                        _question(transaction), lambda errors: answer(_verified(errors))
                    )
                )
            case _:
                raise AssertionError(f"not of another coordinator: {exchange.request}")

    def _receive_markers(
        self, markers: Sequence[TxnMarker], respond: Callable[[Sequence[TxnMarkerResult]], None]
    ) -> None:
        groups = self.broker.groups
        target = self if groups is None else MarkerReceiver(self, groups)
        target.write_markers(markers, respond)

    def write_markers(
        self, markers: Sequence[TxnMarker], respond: Callable[[Sequence[TxnMarkerResult]], None]
    ) -> None:
        """Append markers as ``actors.transaction_markers`` does; respond when all are committed."""
        results: dict[int, TxnMarkerResult] = {}

        def written(number: int, outcomes: Mapping[TopicPartition, ProducedPartition]) -> None:
            marker = markers[number]
            rows = (
                PartitionOutcome(*tp, outcomes[tp].error_code, outcomes[tp].base_offset)
                for tp in marker.partitions
            )
            results[number] = TxnMarkerResult(marker.producer_id, tuple(rows))
            if len(results) == len(markers):
                respond(tuple(results[known] for known in range(len(markers))))

        for number, marker in enumerate(markers):
            data = build_marker(
                EndTransactionMarker(marker.is_commit, marker.coordinator_epoch),
                marker.producer_id,
                marker.producer_epoch,
                self.wall_clock_ms(),
            )
            batches = {name: bytearray(data) for name in marker.partitions}
            operation = self._manager.append_markers(
                batches, self.broker.now_ms, partial(written, number)
            )
            if operation is not None:
                expire = partial(self._manager.expire, operation)
                self._time.schedule(
                    self.broker,
                    COMMIT_TIMEOUT_MS,
                    lambda e=expire: e(self.broker.now_ms),  # type: ignore[misc]
                )
        self.broker.acted()


class _Loader:
    """Passes batches to a ``TransactionLoader``."""

    def __init__(self) -> None:
        self._loader = TransactionLoader()

    def add(self, header: BatchHeader, records: Iterable[KeyAndValue]) -> None:
        self._loader.add_batch(records)

    def content(self) -> Any:
        found = self._loader.transactions()
        assert not self._loader.problems, self._loader.problems
        return found


def _question(transaction: TransactionToVerify) -> AddPartitionsToTxn:
    producer = ProducerIdAndEpoch(transaction.producer_id, transaction.producer_epoch)
    return AddPartitionsToTxn(
        transaction.transactional_id, producer, transaction.partitions, verify_only=True
    )


def _verified(errors: Mapping[TopicPartition, Errors]) -> VerifyPartitionsResponse:
    rows = tuple(PartitionOutcome(*name, error) for name, error in errors.items())
    return VerifyPartitionsResponse(Errors.NONE, rows)


def _known_to_producers(error: Errors | None) -> Errors:
    if error is None:
        return Errors.NETWORK_EXCEPTION
    return Errors.INVALID_PRODUCER_EPOCH if error is Errors.PRODUCER_FENCED else error
