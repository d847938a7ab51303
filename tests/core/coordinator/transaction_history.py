"""A random history of one transactional id: producers, coordinators that fail over, partitions.

Two brokers coordinate the id one after the other, over a log whose newest records may be lost with
its leader. A deposed coordinator goes on until it hears of it. What producers were told and what
partitions saw is compared at the end. Partitions follow the rules of Kafka's producer state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from regent.core.coordinator.transaction.transaction_coordinator import TransactionCoordinator
from regent.core.coordinator.transaction.transaction_records import (
    EncodedRecord,
    TransactionLoader,
)
from regent.core.coordinator.transaction.transaction_state_manager import TransactionConfig
from regent.core.errors import Errors
from regent.core.model import BrokerId, TopicPartition
from regent.core.protocol.groups import ProducerIdAndEpoch
from regent.core.protocol.messages.producer_ids import InitProducerIdResponse
from regent.core.protocol.transactions import (
    AddPartitionsToTxn,
    EndTxn,
    InitProducerId,
    PartitionOutcome,
    TxnMarker,
    TxnMarkerResult,
)

ID = "x"
PARTITIONS = tuple(TopicPartition("t", number) for number in range(3))
TIMEOUT_MS = 60
Transaction = tuple[int, int]  # the producer and the number of its transaction


@dataclass
class Partition:
    """A partition that takes records and markers; each has a leader of its own."""

    epochs: dict[int, int] = field(default_factory=dict)  # by producer id
    coordinator_epochs: dict[int, int] = field(default_factory=dict)
    open: dict[int, Transaction] = field(default_factory=dict)
    ended: list[tuple[Transaction, bool]] = field(default_factory=list)

    def write(self, producer: ProducerIdAndEpoch, transaction: Transaction) -> bool:
        """Append records; return whether they were accepted."""
        producer_id, epoch = producer
        if epoch < self.epochs.get(producer_id, -1):
            return False
        self.epochs[producer_id] = epoch
        assert self.open.setdefault(producer_id, transaction) == transaction, "two in one"
        return True

    def mark(self, marker: TxnMarker) -> Errors:
        """Append a marker."""
        producer_id = marker.producer_id
        if marker.producer_epoch < self.epochs.get(producer_id, -1):
            return Errors.INVALID_PRODUCER_EPOCH
        if marker.coordinator_epoch < self.coordinator_epochs.get(producer_id, -1):
            return Errors.TRANSACTION_COORDINATOR_FENCED
        self.epochs[producer_id] = marker.producer_epoch
        self.coordinator_epochs[producer_id] = marker.coordinator_epoch
        if producer_id in self.open:
            self.ended.append((self.open.pop(producer_id), marker.is_commit))
        return Errors.NONE


@dataclass
class Held:
    """An append that is not answered yet; ``end``: the log end after it, None: not written."""

    term: int
    end: int | None
    respond: Callable[[Errors], None]


class SharedLog:
    """The log of the partition of the id, and its leadership."""

    def __init__(self, dice: Random) -> None:
        self.records: list[EncodedRecord] = []
        self.committed = 0
        self.term = -1
        self.held: list[Held] = []
        self.faults = True
        self._dice = dice

    def append(
        self, term: int, records: Sequence[EncodedRecord], respond: Callable[[Errors], None]
    ) -> None:
        end = None
        if term == self.term and not (self.faults and self._dice.random() < 0.1):
            self.records += records
            end = len(self.records)
        self.held.append(Held(term, end, respond))

    def answer_one(self) -> None:
        """Answer an append: appends of a leader are committed in order."""
        held = self.held.pop(0)
        if held.term != self.term:
            held.respond(Errors.NOT_LEADER_OR_FOLLOWER)
        elif held.end is None:
            held.respond(Errors.NOT_ENOUGH_REPLICAS)
        else:
            self.committed = max(self.committed, held.end)
            is_late = self.faults and self._dice.random() < 0.1
            held.respond(Errors.REQUEST_TIMED_OUT if is_late else Errors.NONE)

    def elect(self) -> None:
        """Another leader: it may lack what was not committed."""
        self.term += 1
        del self.records[self._dice.randint(self.committed, len(self.records)) :]
        self.committed = len(self.records)


class Broker:
    """A broker that may coordinate the id; what it asks for is done when the history says so."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.to_load: list[tuple[int, int]] = []
        self.sent: list[tuple[BrokerId, Sequence[TxnMarker]]] = []
        self.coordinator = TransactionCoordinator(
            TransactionConfig(),
            self,
            self,
            time_ms=lambda: history.now_ms,
            partition_of=lambda _: 0,
            leader_of=lambda topic_partition: topic_partition.partition,
            next_producer_id=history.next_producer_id,
        )

    def append(
        self,
        partition: int,
        term: int,
        records: Sequence[EncodedRecord],
        respond: Callable[[Errors], None],
    ) -> None:
        self.history.log.append(term, records, respond)

    def load(self, partition: int, term: int) -> None:
        self.to_load.append((partition, term))

    def send(self, broker_id: BrokerId, markers: Sequence[TxnMarker]) -> None:
        self.sent.append((broker_id, markers))


@dataclass
class Producer:
    """A producer with the id. It does one thing after the other, as it was told it may."""

    number: int
    who: ProducerIdAndEpoch | None = None
    is_busy: bool = False
    transaction: int = 0
    partitions: set[TopicPartition] = field(default_factory=set)
    wanted: bool | None = None  # the end that it asked for; it asks for no other


class History:
    """One history; ``run`` raises ``AssertionError`` if a promise was broken."""

    def __init__(self, seed: int) -> None:
        self.dice = Random(seed)
        self.now_ms = 0
        self.log = SharedLog(self.dice)
        self.brokers = [Broker(self) for _ in range(2)]
        self.partitions = {tp: Partition() for tp in PARTITIONS}
        self.producers = [Producer(number) for number in range(2)]
        self.given: list[ProducerIdAndEpoch] = []  # what InitProducerId answered, in order
        self.promised: dict[Transaction, bool] = {}
        self._producer_ids = 0

    def next_producer_id(self) -> int | Errors:
        if self.log.faults and self.dice.random() < 0.1:
            return Errors.COORDINATOR_LOAD_IN_PROGRESS
        self._producer_ids += 1
        return self._producer_ids

    def run(self, steps: int) -> None:
        """Do random steps, then let everything end, and compare."""
        self._elect()
        things = [self._produce] * 6 + [self._answer_append] * 6 + [self._answer_markers] * 4
        things += [self._load] * 3 + [self._hear] * 2 + [self._tick, self._retry]
        for _ in range(steps):
            self.dice.choice(things)()
            if self.dice.random() < 0.01:
                self._elect()
        self._settle()
        self._compare()

    # --- brokers ---

    @property
    def leader(self) -> Broker:
        return self.brokers[self.log.term % 2]

    def _elect(self) -> None:
        self.log.elect()
        self.leader.coordinator.on_elected(0, self.log.term, self.log.term)

    def _hear(self) -> None:
        """The deposed coordinator hears of it."""
        self.brokers[(self.log.term + 1) % 2].coordinator.on_resigned(0, self.log.term)

    def _load(self) -> None:
        for broker in self.brokers:
            while broker.to_load:
                partition, term = broker.to_load.pop(0)
                loader = TransactionLoader()
                loader.add_batch(self.log.records)
                found = loader.transactions() if term == self.log.term else None
                broker.coordinator.on_loaded(partition, term, found)

    def _answer_append(self) -> None:
        if self.log.held:
            self.log.answer_one()

    def _answer_markers(self) -> None:
        broker = self.dice.choice(self.brokers)
        if not broker.sent:
            return
        broker_id, markers = broker.sent.pop(self.dice.randrange(len(broker.sent)))
        is_lost = self.log.faults and self.dice.random() < 0.1
        results = None
        if not (is_lost and self.dice.random() < 0.5):
            results = [self._mark(marker) for marker in markers]
        broker.coordinator.markers.on_answered(broker_id, None if is_lost else results)

    def _mark(self, marker: TxnMarker) -> TxnMarkerResult:
        def outcome(topic_partition: TopicPartition) -> PartitionOutcome:
            error = Errors.NOT_LEADER_OR_FOLLOWER
            if not self.log.faults or self.dice.random() > 0.1:
                error = self.partitions[topic_partition].mark(marker)
            return PartitionOutcome(*topic_partition, error)

        return TxnMarkerResult(marker.producer_id, tuple(map(outcome, marker.partitions)))

    def _retry(self) -> None:
        for broker in self.brokers:
            broker.coordinator.markers.retry()

    def _tick(self) -> None:
        self.now_ms += self.dice.choice((1, 1, 1, 1, TIMEOUT_MS))
        for broker in self.brokers:
            broker.coordinator.abort_timed_out()

    # --- producers ---

    def _produce(self) -> None:
        producer = self.dice.choice(self.producers)
        if producer.is_busy:
            return
        is_told = self.dice.random() < 0.8
        coordinator = (self.leader if is_told else self.dice.choice(self.brokers)).coordinator
        if producer.who is None or self.dice.random() < 0.01:
            if self.dice.random() < 0.2:  # else they would only fence each other
                self._init(producer, coordinator)
        elif producer.wanted is not None or (producer.partitions and self.dice.random() < 0.4):
            self._end(producer, coordinator)
        elif self.dice.random() < 0.5:
            self._add(producer, coordinator)
        elif producer.partitions:
            self._write(producer)

    def _init(self, producer: Producer, coordinator: TransactionCoordinator) -> None:
        producer.who, producer.wanted, producer.is_busy = None, None, True
        producer.partitions.clear()
        producer.transaction += 1

        def answered(result: InitProducerIdResponse) -> None:
            producer.is_busy = False
            if result.error_code is Errors.NONE:
                producer.who = ProducerIdAndEpoch(result.producer_id, result.producer_epoch)
                self.given.append(producer.who)

        coordinator.init_producer_id(InitProducerId(ID, TIMEOUT_MS), answered)

    def _add(self, producer: Producer, coordinator: TransactionCoordinator) -> None:
        assert producer.who is not None
        topic_partition = self.dice.choice(PARTITIONS)
        producer.is_busy = True

        def answered(errors: dict[TopicPartition, Errors]) -> None:
            producer.is_busy = False
            self._judge(producer, errors[topic_partition])
            if errors[topic_partition] is Errors.NONE:
                producer.partitions.add(topic_partition)

        request = AddPartitionsToTxn(ID, producer.who, (topic_partition,))
        coordinator.add_partitions(request, lambda errors: answered(dict(errors)))

    def _write(self, producer: Producer) -> None:
        """Write records; before the first of a transaction the partition asks the coordinator."""
        assert producer.who is not None
        topic_partition = self.dice.choice(sorted(producer.partitions))
        partition, answers = self.partitions[topic_partition], list[Errors]()
        if producer.who.producer_id not in partition.open:
            question = AddPartitionsToTxn(ID, producer.who, (topic_partition,), verify_only=True)
            self.leader.coordinator.add_partitions(
                question, lambda errors: answers.extend(errors.values())
            )
            if answers != [Errors.NONE]:
                producer.wanted = False
                return
        if not partition.write(producer.who, (producer.number, producer.transaction)):
            self._judge(producer, Errors.PRODUCER_FENCED)

    def _end(self, producer: Producer, coordinator: TransactionCoordinator) -> None:
        assert producer.who is not None
        if producer.wanted is None:
            producer.wanted = self.dice.random() < 0.7
        is_commit, producer.is_busy = producer.wanted, True

        def answered(error: Errors) -> None:
            producer.is_busy = False
            if error is Errors.NONE:
                self.promised[producer.number, producer.transaction] = is_commit
                producer.transaction += 1
                producer.wanted = None
                producer.partitions.clear()
            self._judge(producer, error)

        coordinator.end(EndTxn(ID, producer.who, is_commit), answered)

    def _judge(self, producer: Producer, error: Errors) -> None:
        """A producer that is fenced, or knows nothing for certain any more, begins anew."""
        if error in (
            Errors.PRODUCER_FENCED,
            Errors.INVALID_PRODUCER_ID_MAPPING,
            Errors.INVALID_TXN_STATE,
        ):
            producer.who, producer.wanted = None, None
            producer.partitions.clear()
            producer.transaction += 1

    # --- the end ---

    def _settle(self) -> None:
        """Without faults everything ends in bounded time."""
        self.log.faults = False
        self._hear()
        self.now_ms += 10 * TIMEOUT_MS
        for _ in range(100):
            self._load()
            while self.log.held:
                self._answer_append()
            for _ in range(10):
                self._answer_markers()
            self._retry()
            self.leader.coordinator.abort_timed_out()

    def _compare(self) -> None:
        state = self.leader.coordinator.describe(ID).transaction_state
        assert state in ("", "Empty", "CompleteCommit", "CompleteAbort"), state
        assert len(set(self.given)) == len(self.given), "an epoch was given twice"
        outcomes: dict[Transaction, set[bool]] = {}
        for partition in self.partitions.values():
            assert not partition.open, "a transaction is open for ever"
            for transaction, is_commit in partition.ended:
                outcomes.setdefault(transaction, set()).add(is_commit)
        for transaction, seen in outcomes.items():
            assert len(seen) == 1, f"{transaction} was committed and aborted"
            promised = self.promised.get(transaction)
            assert promised is None or seen == {promised}, f"{transaction}: a broken promise"
