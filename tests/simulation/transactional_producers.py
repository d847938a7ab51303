"""Transactional producers: each begins transactions, one after the other, and ends them.

They do as the Java client does. When a coordinator does not answer, its connection is closed: a
request that has not arrived is lost, because an EndTxn that came later would end the next
transaction, which has the same epoch. Records may come at any time: the log must refuse late ones.
A batch whose fate is unknown makes the producer abort, and take a new epoch (KIP-360). A producer
may stall as a whole, die, or come back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from regent.core.errors import Errors
from regent.core.model import BrokerId, TopicPartition
from regent.core.protocol.client import ACKS_ALL
from regent.core.protocol.groups import (
    CommitOffsets,
    OffsetAndMetadata,
    ProducerIdAndEpoch,
    VerifiedProducer,
)
from regent.core.protocol.messages.producer_ids import InitProducerIdResponse
from regent.core.protocol.transactions import (
    AddPartitionsToTxn,
    EndTxn,
    InitProducerId,
    TransactionRequest,
)
from tests.simulation.application_topics import LEDGER
from tests.simulation.client_requests import (
    GroupAnswer,
    GroupCall,
    ProduceRequest,
    ProduceResponse,
)
from tests.simulation.coordinators import Coordinators
from tests.simulation.network import AnswerBody, Exchange
from tests.support.transactional_batches import in_transaction

TICK_MS = 250
PATIENCE_MS = 3_500
TIMEOUTS_MS = (1_500, 3_000, 8_000)
BEGIN_PROBABILITY = 0.6
PAUSE_PROBABILITY = 0.3  # after an answer, until the next tick
COMMIT_PROBABILITY = 0.75
GIVE_UP_PROBABILITY = 0.15  # of a batch, after an attempt that failed
IMPATIENCE_PROBABILITY = 0.1  # after a batch that is not acknowledged at once

FATAL = frozenset(
    {
        Errors.PRODUCER_FENCED,
        Errors.INVALID_PRODUCER_EPOCH,
        Errors.INVALID_PRODUCER_ID_MAPPING,
    }
)
ABORTABLE = FATAL | {
    Errors.INVALID_TXN_STATE,
    Errors.TRANSACTION_ABORTABLE,
    Errors.OUT_OF_ORDER_SEQUENCE_NUMBER,
    Errors.UNKNOWN_PRODUCER_ID,
}

APPLICATION = "application"
"""The group whose positions are committed in transactions."""


class Add(NamedTuple):
    """Make partitions part of the transaction."""

    partitions: tuple[TopicPartition, ...]


class Send(NamedTuple):
    """Send a batch."""

    name: TopicPartition
    values: tuple[bytes, ...]


class Commit(NamedTuple):
    """Commit a position of the application, whose group is in a partition."""

    name: TopicPartition
    topic_partition: TopicPartition
    value: bytes  # in its metadata


@dataclass(slots=True, eq=False)
class Transaction:
    """What its producer knows. ``answered``: whether it is committed; None: it was not told.

    ``acknowledged`` has the values of its records. ``has_partitions``: some were added.
    """

    number: int
    transactional_id: str
    producer: ProducerIdAndEpoch
    steps: deque[Add | Send | Commit]
    is_commit: bool = True
    asks_commit: bool = False
    has_partitions: bool = False
    answered: bool | None = None
    acknowledged: dict[TopicPartition, set[bytes]] = field(default_factory=dict)


class Phase(Enum):
    """What a producer does next."""

    INIT = "gets an epoch"
    IDLE = "may begin a transaction"
    OPEN = "adds partitions, sends records and commits positions"
    ENDING = "commits or aborts"


class ProducerObserver:
    """Is told of transactions; by default it does nothing."""

    def may_begin(self) -> bool:
        """Whether a producer may begin a transaction."""
        return True

    def begin(self, transactional_id: str, producer: ProducerIdAndEpoch) -> Transaction:
        """Return a new transaction."""
        raise NotImplementedError

    def on_ended(self, transaction: Transaction) -> None:
        """A producer was told how its transaction ended."""

    def on_unknown(self, transaction: Transaction) -> None:
        """A coordinator does not know the transaction."""


@dataclass(slots=True, eq=False)
class TransactionalProducer:
    """One process."""

    number: int
    transactional_id: str
    coordinators: Coordinators
    note: Callable[..., None]
    observer: ProducerObserver
    timeout_ms: int
    is_paused: bool = False
    is_dead: bool = False
    phase: Phase = Phase.INIT
    producer: ProducerIdAndEpoch | None = None
    transaction: Transaction | None = None
    _needs_epoch: bool = False
    _sequences: dict[TopicPartition, int] = field(default_factory=dict)
    _coordinator: BrokerId | None = None
    _waiting: Exchange | None = None

    # --- a peer of the network ---

    def receive(self, exchange: Exchange) -> None:
        """Fail: a producer serves no requests."""
        raise AssertionError("a producer serves no requests")

    # --- time ---

    def tick(self) -> None:
        """Do what is due, again and again until it dies."""
        if self.is_dead:
            return
        self.coordinators.cluster.time.schedule(self, TICK_MS, self.tick)
        waiting = self._waiting
        if waiting is None or waiting.is_over:
            self._go_on()
        elif self._has_no_answer(waiting):
            waiting.give_up()
            if isinstance(waiting.request, ProduceRequest):
                self._on_refused_batch()
            else:
                self.coordinators.cluster.network.drop_request(waiting)
                self._coordinator = None
            self._go_on()

    def _has_no_answer(self, waiting: Exchange) -> bool:
        cluster = self.coordinators.cluster
        is_gone = waiting.endpoint not in cluster.network.listeners
        return is_gone or cluster.now_ms - waiting.sent_ms >= PATIENCE_MS

    def _go_on(self) -> None:
        match self.phase:
            case Phase.INIT:
                self._init()
            case Phase.IDLE:
                if self.observer.may_begin() and self._is_lucky():
                    self.begin()
            case Phase.OPEN:
                self._take_step()
            case Phase.ENDING:
                self._end()

    def _is_lucky(self) -> bool:
        return self.coordinators.dice.random() < BEGIN_PROBABILITY

    def _go_on_soon(self) -> None:
        """Go on at once, or after a while."""
        if self.coordinators.dice.random() >= PAUSE_PROBABILITY:
            self._go_on()

    def repeat(self) -> None:
        """Send the last request again, as if its answer was lost."""
        waiting, network = self._waiting, self.coordinators.cluster.network
        is_there = waiting is not None and waiting.endpoint in network.listeners
        if waiting is None or not is_there or not waiting.has_arrived or waiting.is_over:
            return
        waiting.give_up()
        self._await(network.ask(self, waiting.endpoint, waiting.request, waiting.on_answer))

    def _ask(self, request: TransactionRequest[Any], on_answer: Callable[[Any], None]) -> None:
        if self._coordinator is None:
            self._coordinator = self.coordinators.find(self.transactional_id)
        if self._coordinator not in self.coordinators.cluster.brokers:
            self._coordinator = None
            return
        self._await(self.coordinators.ask(self, self._coordinator, request, on_answer))

    def _await(self, exchange: Exchange) -> None:
        if not exchange.is_over:  # else it is answered, and another one may be under way
            self._waiting = exchange

    def _on_error(self, error: Errors) -> None:
        self.note("  producer %d: %s", self.number, error.name)
        if error in FATAL:
            self.is_dead = True
        elif error in (Errors.NOT_COORDINATOR, Errors.COORDINATOR_NOT_AVAILABLE):
            self._coordinator = None

    # --- the epoch ---

    def _init(self) -> None:
        request = InitProducerId(self.transactional_id, self.timeout_ms, self.producer)
        self._ask(request, self._on_init)

    def _on_init(self, result: InitProducerIdResponse) -> None:
        if result.error_code is not Errors.NONE:
            self._on_error(Errors(result.error_code))
            return
        self.producer = ProducerIdAndEpoch(result.producer_id, result.producer_epoch)
        self.note("producer %d of %s is %s", self.number, self.transactional_id, self.producer)
        self._sequences.clear()
        self._needs_epoch = False
        self.phase = Phase.IDLE

    # --- a transaction ---

    def begin(self) -> None:
        """Begin a transaction, whose steps are decided now."""
        assert self.producer is not None
        transaction = self.observer.begin(self.transactional_id, self.producer)
        self.transaction, self.phase = transaction, Phase.OPEN
        transaction.is_commit = self.coordinators.dice.random() < COMMIT_PROBABILITY
        self.note("producer %d begins %s", self.number, list(transaction.steps))
        self._take_step()

    def _take_step(self) -> None:
        assert self.transaction is not None
        step = self.transaction.steps[0] if self.transaction.steps else None
        if step is None:
            self.phase = Phase.ENDING
            self._end()
        elif isinstance(step, Add):
            self._add(step, self.transaction)
        elif isinstance(step, Send):
            self._send(step, self.transaction)
        else:
            self._commit(step, self.transaction)

    def _add(self, step: Add, transaction: Transaction) -> None:
        def on_answer(errors: Mapping[TopicPartition, Errors]) -> None:
            refused = [error for error in errors.values() if error is not Errors.NONE]
            if refused:
                self._on_error(refused[0])
                return
            transaction.has_partitions = True
            transaction.steps.popleft()
            self._go_on_soon()

        self._ask(
            AddPartitionsToTxn(self.transactional_id, transaction.producer, step.partitions),
            on_answer,
        )

    def _send(self, step: Send, transaction: Transaction) -> None:
        cluster = self.coordinators.cluster
        found = self.coordinators.leader(step.name)
        if found is None:
            return
        leader = cluster.brokers[found]
        sequence = self._sequences.get(step.name, 0)
        data = in_transaction(
            *step.values,
            producer_id=transaction.producer.producer_id,
            producer_epoch=transaction.producer.producer_epoch,
            sequence=sequence,
        )

        def on_answer(answer: AnswerBody) -> None:
            assert isinstance(answer, ProduceResponse)
            error = answer.outcome.error_code
            if error is Errors.NONE:
                self._sequences[step.name] = sequence + len(step.values)
                self._on_written(step.name, step.values, transaction)
            else:
                self._on_refused(step.name, error)

        request = ProduceRequest(step.name, ACKS_ALL, data, self.transactional_id)
        exchange = cluster.network.ask(self, leader.client_endpoint, request, on_answer)
        self._await(exchange)
        if not exchange.is_over and self.coordinators.dice.random() < IMPATIENCE_PROBABILITY:
            exchange.give_up()
            self._give_up()

    def _commit(self, step: Commit, transaction: Transaction) -> None:
        cluster = self.coordinators.cluster
        found = self.coordinators.leader(step.name)
        if found is None:
            return
        position = OffsetAndMetadata(transaction.number, metadata=step.value.decode())
        commit = CommitOffsets(
            APPLICATION,
            {step.topic_partition: position},
            producer=VerifiedProducer(*transaction.producer),
        )

        def on_answer(answer: AnswerBody) -> None:
            assert isinstance(answer, GroupAnswer)
            error = answer.result[step.topic_partition]
            if error is Errors.NONE:
                self._on_written(step.name, (step.value,), transaction)
            else:
                self._on_refused(step.name, error)

        call = GroupCall(commit, self.transactional_id)
        endpoint = cluster.brokers[found].client_endpoint
        self._await(cluster.network.ask(self, endpoint, call, on_answer))

    def _on_written(
        self, name: TopicPartition, values: Iterable[bytes], transaction: Transaction
    ) -> None:
        transaction.acknowledged.setdefault(name, set()).update(values)
        transaction.steps.popleft()
        self._go_on_soon()

    def _on_refused(self, name: TopicPartition, error: Errors) -> None:
        self.note("  producer %d at %s: %s", self.number, name, error.name)
        if error in ABORTABLE:
            self._give_up()
        else:
            self._on_refused_batch()

    def _on_refused_batch(self) -> None:
        """A batch was not acknowledged: it is sent again, or given up."""
        if self.coordinators.dice.random() < GIVE_UP_PROBABILITY:
            self._give_up()

    def _give_up(self) -> None:
        """Abort, and take a new epoch: the batch may still arrive."""
        assert self.transaction is not None
        self.note("producer %d gives its transaction up", self.number)
        self.transaction.steps.clear()
        self.transaction.is_commit = False
        self._needs_epoch = True

    def _end(self) -> None:
        transaction = self.transaction
        assert transaction is not None
        transaction.asks_commit |= transaction.is_commit

        def on_answer(error: Errors) -> None:
            if error is Errors.INVALID_TXN_STATE:
                if transaction.has_partitions:
                    self.observer.on_unknown(transaction)
                self._needs_epoch = True
            elif error is not Errors.NONE:
                self._on_error(error)
                return
            else:
                transaction.answered = transaction.is_commit
                self.note("producer %d: commit is %s", self.number, transaction.is_commit)
                self.observer.on_ended(transaction)
            self.transaction = None
            self.phase = Phase.INIT if self._needs_epoch else Phase.IDLE

        self._ask(
            EndTxn(self.transactional_id, transaction.producer, transaction.is_commit), on_answer
        )


def ledger(partition: int) -> TopicPartition:
    """Return a partition that has records of transactions."""
    return TopicPartition(LEDGER, partition)
