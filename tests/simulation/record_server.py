"""How a broker handles requests about records: it asks the replica manager and answers once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from regent.core.errors import Errors
from regent.core.model import TopicPartition
from regent.core.protocol.broker import FetchRequest, FetchResponse
from regent.core.protocol.client import ConsumedPartition, DeletedRecords, ProducedPartition
from regent.core.protocol.transactions import TransactionToVerify
from regent.core.records import MemoryRecords
from regent.core.replica_logs import NO_VERIFICATION, NOT_VERIFIED
from regent.core.replication.delayed_operation import DelayedOperation
from regent.core.replication.produce import AppendRules
from tests.simulation.client_requests import (
    ConsumeRequest,
    ConsumeResponse,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    ProduceRequest,
    ProduceResponse,
)
from tests.simulation.network import AnswerBody, Exchange
from tests.simulation.simulated_logs import SimulatedLog
from tests.support.record_checks import headers_of

if TYPE_CHECKING:
    from tests.simulation.broker import SimulatedBroker

CLIENT_WAIT_MS = 1_500
CONSUMER_WAIT_MS = 500


class RecordServer:
    """For one broker; ``waiting`` maps the unanswered requests to their deadlines."""

    def __init__(self, broker: SimulatedBroker) -> None:
        self._broker = broker
        self._manager = broker.replica_manager
        self._world = broker.world
        self.waiting: dict[Exchange, int] = {}

    def serve(self, exchange: Exchange) -> None:
        """Answer now or later."""
        request = exchange.request
        match request:
            case FetchRequest():
                self._fetch(exchange, request)
            case ProduceRequest():
                self._produce(exchange, request)
            case ConsumeRequest():
                self._consume(exchange, request)
            case DeleteRecordsRequest():
                self._delete_records(exchange, request)
            case _:
                raise AssertionError(f"not about records: {request}")

    def _fetch(self, exchange: Exchange, request: FetchRequest) -> None:
        answer = self._once(exchange, request.max_wait_ms)

        def respond(response: FetchResponse) -> None:
            self._world.observer.on_fetched(self._broker, response)
            answer(response)

        self._world.observer.on_fetch(self._broker, request)
        operation = self._manager.fetch(request, self._broker.now_ms, respond)
        self._world.observer.on_fetch_taken(self._broker, request)
        self._wait(operation, request.max_wait_ms)

    def _produce(self, exchange: Exchange, request: ProduceRequest) -> None:
        name, log = request.name, self._log(request.name)
        answer = self._once(exchange, CLIENT_WAIT_MS)

        def respond(outcomes: Mapping[TopicPartition, ProducedPartition]) -> None:
            outcome = self._broker.produced(request, outcomes[name])
            self._world.observer.on_produced(self._broker, request, log, outcome)
            answer(ProduceResponse(outcome))

        def append(guards: Mapping[TopicPartition, int]) -> None:
            records = {name: bytearray(request.batch)}
            self._world.observer.on_produce(self._broker, request)
            operation = self._manager.produce(
                request.acks, records, self._broker.now_ms, respond, AppendRules(guards=guards)
            )
            self._world.observer.on_produce_taken(self._broker, request)
            self._wait(operation, CLIENT_WAIT_MS)

        if request.transactional_id is None:
            append({})
        else:
            self._verify(request, request.transactional_id, append, answer)

    def _verify(
        self,
        request: ProduceRequest,
        transactional_id: str,
        append: Callable[[Mapping[TopicPartition, int]], None],
        answer: Callable[[AnswerBody], None],
    ) -> None:
        """Ask whether the partition is part of the transaction, as ``api.produce`` does."""
        name, transactions = request.name, self._broker.transactions
        assert transactions is not None
        guards = self._manager.begin_verifications({name: request.batch})
        if guards[name] in (NO_VERIFICATION, NOT_VERIFIED):
            append(guards)
            return

        def verified(errors: Mapping[TopicPartition, Errors]) -> None:
            error = errors[name]
            if error is Errors.NONE:
                append(guards)
                self._broker.acted()
            else:
                answer(ProduceResponse(ProducedPartition(error)))

        ((_, header),) = headers_of(request.batch)
        producer = header.producer_id, header.producer_epoch
        transactions.verify(TransactionToVerify(transactional_id, *producer, (name,)), verified)

    def _consume(self, exchange: Exchange, request: ConsumeRequest) -> None:
        logs = {name: self._log(name) for name in request.fetch.positions}
        answer = self._once(exchange, CONSUMER_WAIT_MS)

        def respond(partitions: Mapping[TopicPartition, ConsumedPartition]) -> None:
            sent = {  # read now: the log may change
                name: outcome._replace(records=MemoryRecords(outcome.records.read()))
                for name, outcome in partitions.items()
            }
            self._world.observer.on_consumed(self._broker, request, logs, sent)
            answer(ConsumeResponse(sent))

        operation = self._manager.fetch_for_consumer(
            request.fetch, self._broker.now_ms, respond, waits=request.waits
        )
        self._wait(operation, CONSUMER_WAIT_MS)

    def _delete_records(self, exchange: Exchange, request: DeleteRecordsRequest) -> None:
        name = request.name
        self._world.observer.on_delete_records(self._log(name), request.offset)
        answer = self._once(exchange, CLIENT_WAIT_MS)

        def respond(outcomes: Mapping[TopicPartition, DeletedRecords]) -> None:
            answer(DeleteRecordsResponse(outcomes[name]))

        operation = self._manager.delete_records(
            {name: request.offset}, self._broker.now_ms, respond
        )
        self._wait(operation, CLIENT_WAIT_MS)

    def _log(self, name: TopicPartition) -> SimulatedLog | None:
        """Return the present log: a later one may belong to another topic."""
        return self._broker.disk.get(name)

    def _once(self, exchange: Exchange, max_wait_ms: int) -> Callable[[AnswerBody], None]:
        """Return a function that answers a request and may be called once."""
        self.waiting[exchange] = self._world.time.now_ms + max_wait_ms

        def answer(body: AnswerBody) -> None:
            assert exchange in self.waiting, f"AnsweredOnce: {exchange.request}"
            del self.waiting[exchange]
            self._world.network.answer(exchange, body)

        return answer

    def _wait(self, operation: DelayedOperation | None, max_wait_ms: int) -> None:
        if operation is not None:
            self._world.time.schedule(self._broker, max_wait_ms, lambda: self._expire(operation))

    def _expire(self, operation: DelayedOperation) -> None:
        self._manager.expire(operation, self._broker.now_ms)
        self._broker.acted()
