"""Check the transactions: all or nothing, as it was told, and only by the present producer. T1–T8.

T1: a transaction, with its positions, is committed in all of its partitions, or in none. T2:
readers of committed records see nothing else. T3: they do not pass an open transaction. T4: what is
told stays, and only what was asked for is committed. T5: epochs of a producer never go back, none
is given twice, and a fenced producer writes nothing. T6: nothing is written after the end. T7:
nothing stays open. T8: readers can tell what was aborted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from regent.core.coordinator.group.group_records import OffsetKey, decode_key, decode_offset
from regent.core.coordinator.transaction.transaction_records import (
    decode_transaction,
    decode_transaction_key,
)
from regent.core.errors import Errors
from regent.core.model import BrokerId, TopicPartition
from regent.core.protocol.client import ConsumedPartition, ConsumerFetch, ConsumerPosition
from regent.core.protocol.groups import ProducerIdAndEpoch
from regent.core.protocol.transactions import InitProducerId, TransactionRequest
from regent.core.replica_logs import AbortedTransactionStart
from regent.core.topic_validation import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from tests.simulation.application_topics import LEDGER
from tests.simulation.broker import SimulatedBroker
from tests.simulation.client_requests import ConsumeRequest
from tests.simulation.committed_records import CommittedRecords, LogKey
from tests.simulation.invariants import Invariants
from tests.simulation.simulated_logs import SimulatedLog
from tests.simulation.transaction_server import (
    TransactionObserver,
    TransactionServer,
    TransactionWorld,
)
from tests.simulation.transactional_producers import ProducerObserver, Transaction
from tests.support.memory_logs import StoredBatch
from tests.support.record_batches import CONTROL_MASK, TRANSACTIONAL_MASK, Record, records_of
from tests.support.record_checks import headers_of
from tests.support.transactions_in_memory import marker_of, transactions_of

_WRITTEN = (LEDGER, GROUP_METADATA_TOPIC)
"""The topics to which transactions write."""
EVERYTHING = 2**31 - 1
MAX_TRANSACTIONS = 40  # of a history, to bound its duration


@dataclass(slots=True)
class Found:
    """What logs say of a transaction. ``closed``: the partitions with a marker after it."""

    transaction: Transaction
    is_committed: bool | None = None
    closed: set[TopicPartition] = field(default_factory=set)
    values: dict[TopicPartition, set[bytes]] = field(default_factory=dict)


@dataclass(slots=True)
class LedgerPartition:
    """The committed batches of a partition, as far as they were looked at."""

    end: int = -1
    epochs: dict[int, int] = field(default_factory=dict)  # by producer id
    open: dict[int, set[int]] = field(default_factory=dict)  # producer id -> transactions
    is_lost: bool = False  # committed records were lost, with an excuse


class TransactionHistory(TransactionObserver, ProducerObserver):
    """Observes all; raises ``AssertionError`` in the call that breaks a guarantee."""

    def __init__(self, world: TransactionWorld, invariants: Invariants, steps: Any) -> None:
        """``steps`` returns those of a new transaction with a number."""
        self._world = world
        self._steps = steps
        self._leaderships = invariants.history
        self._records = invariants.records
        self._records.on_committed_batch = self._on_committed
        self._records.on_read = self._on_read
        self._records.on_led_batch = self._on_led
        self._found: list[Found] = []
        self._partitions: dict[LogKey, LedgerPartition] = {}
        self._given: dict[str, list[ProducerIdAndEpoch]] = {}
        self._late: set[tuple[LogKey, int, int]] = set()  # batches of fenced producers

    # --- excuses ---

    def is_excused(self, name: TopicPartition) -> bool:
        """Whether committed records of a partition may be lost."""
        self._leaderships.check()
        known = self._records.latest(name)
        if known is None or known.is_tainted or known.unclean_epochs:
            return True
        partition = self._partitions.get(known.key)
        return partition is not None and partition.is_lost

    def _state_partition(self, transactional_id: str) -> TopicPartition:
        return TopicPartition(TRANSACTION_STATE_TOPIC, self._world.partition_of(transactional_id))

    def _is_doubtful(self, found: Found, *more: TopicPartition) -> bool:
        state = self._state_partition(found.transaction.transactional_id)
        names = {state, *more, *found.values, *found.transaction.acknowledged}
        return any(map(self.is_excused, names))

    # --- producers ---

    def may_begin(self) -> bool:
        """See ``ProducerObserver.may_begin``."""
        return not self._world.is_at_rest and len(self._found) < MAX_TRANSACTIONS

    def begin(self, transactional_id: str, producer: ProducerIdAndEpoch) -> Transaction:
        """See ``ProducerObserver.begin``."""
        number = len(self._found)
        transaction = Transaction(number, transactional_id, producer, deque(self._steps(number)))
        self._found.append(Found(transaction))
        return transaction

    def on_ended(self, transaction: Transaction) -> None:
        """See ``ProducerObserver.on_ended``."""
        found = self._found[transaction.number]
        is_same = found.is_committed in (None, transaction.answered)
        assert is_same or self._is_doubtful(found), f"AnswersAreTrue: {found}"

    def on_unknown(self, transaction: Transaction) -> None:
        """See ``ProducerObserver.on_unknown``."""
        found = self._found[transaction.number]
        assert self._is_doubtful(found), f"TransactionsAreKnown: {found}"

    # --- coordinators ---

    def on_answer(
        self, server: TransactionServer, request: TransactionRequest[Any], seen: Any, result: Any
    ) -> None:
        """Store which producers were fenced, and when."""
        if not isinstance(request, InitProducerId) or result.error_code is not Errors.NONE:
            return
        name = request.transactional_id
        given = self._given.setdefault(name, [])
        producer = ProducerIdAndEpoch(result.producer_id, result.producer_epoch)
        is_new = producer not in given or request.expected is not None
        is_excused = self.is_excused(self._state_partition(name))
        assert is_new or is_excused, f"EpochsAreGivenOnce: {name}: {producer}, after {given}"
        given.append(producer)
        if not is_new:
            self._records.producers_given_again.add((result.producer_id, result.producer_epoch))

    def _is_fenced(self, transactional_id: str, producer: ProducerIdAndEpoch) -> bool:
        given = self._given.get(transactional_id, [])
        return bool(given) and producer < max(given)

    # --- logs ---

    def _on_led(self, broker_id: BrokerId, known: CommittedRecords, batch: StoredBatch) -> None:
        """Remember what is written of, or by, a fenced producer: it must not be committed."""
        topic = known.key.name.topic
        written: Iterable[tuple[str, ProducerIdAndEpoch]] = ()
        if topic == TRANSACTION_STATE_TOPIC:
            written = _states_of(batch.data)
        elif topic in _WRITTEN:
            ((_, header),) = headers_of(batch.data)
            producer = ProducerIdAndEpoch(header.producer_id, header.producer_epoch)
            found = [self._found[number] for number in _numbers_of(batch.data)]
            written = [(f.transaction.transactional_id, producer) for f in found]
        if any(self._is_fenced(*row) for row in written):
            self._late.add((known.key, batch.leader_epoch, batch.base_offset))

    def _on_committed(self, known: CommittedRecords, batch: StoredBatch) -> None:
        topic = known.key.name.topic
        if topic == TRANSACTION_STATE_TOPIC and not self.is_excused(known.key.name):
            self._check_not_late(known, batch)
        elif topic in _WRITTEN:
            partition = self._partitions.setdefault(known.key, LedgerPartition())
            partition.is_lost |= batch.base_offset <= partition.end
            if not partition.is_lost and not self.is_excused(known.key.name):
                partition.end = batch.base_offset
                self._on_ledger(known, partition, batch)
            else:
                partition.is_lost = True

    def _check_not_late(self, known: CommittedRecords, batch: StoredBatch) -> None:
        is_late = (known.key, batch.leader_epoch, batch.base_offset) in self._late
        where = f"{known.key.name}, {batch.base_offset}: {records_of(batch.data)}"
        assert not is_late, f"FencedProducersAreSilent: {where}"

    def _on_ledger(
        self, known: CommittedRecords, partition: LedgerPartition, batch: StoredBatch
    ) -> None:
        name = known.key.name
        ((_, header),) = headers_of(batch.data)
        if header.producer_id < 0:
            return  # it is of a group, and of no transaction
        where = f"{name}, {batch.base_offset}: {header.producer_id, header.producer_epoch}"
        before = partition.epochs.get(header.producer_id, -1)
        assert header.producer_epoch >= before, f"EpochsGrow: {where}, after {before}"
        partition.epochs[header.producer_id] = header.producer_epoch
        if header.attributes & CONTROL_MASK:
            marker = marker_of(batch.data)
            assert marker is not None
            for number in sorted(partition.open.pop(header.producer_id, ())):
                self._on_end(self._found[number], name, is_commit=marker[0])
            return
        if not any(self._is_doubtful(self._found[n], name) for n in _numbers_of(batch.data)):
            self._check_not_late(known, batch)
        values = set(_values_of(batch.data))
        for number in _numbers_of(batch.data):
            found = self._found[number]
            assert name not in found.closed, f"NothingAfterTheEnd: {where}: {values}: {found}"
            partition.open.setdefault(header.producer_id, set()).add(number)
            found.values.setdefault(name, set()).update(values)

    def _on_end(self, found: Found, name: TopicPartition, *, is_commit: bool) -> None:
        transaction = found.transaction
        found.closed.add(name)
        if self._is_doubtful(found, name):
            return
        where = f"{name}: commit is {is_commit}: {found}"
        assert found.is_committed in (None, is_commit), f"Atomicity: {where}"
        assert transaction.answered in (None, is_commit), f"AnswersStay: {where}"
        found.is_committed = is_commit
        if is_commit:
            assert transaction.asks_commit, f"CommittedAsAsked: {where}"
            is_whole = found.values[name] == transaction.acknowledged.get(name)
            assert is_whole, f"CommittedAsAsked: {where}"

    # --- readers ---

    def _on_read(
        self,
        broker: SimulatedBroker,
        request: ConsumeRequest,
        name: TopicPartition,
        outcome: ConsumedPartition,
        log: SimulatedLog | None,
    ) -> None:
        """Readers do not pass open transactions, and can tell what was aborted."""
        if name.topic != LEDGER or outcome.error_code is not Errors.NONE or log is None:
            return
        if self.is_excused(name):
            return
        where = f"broker {broker.broker_id}: {name}: {outcome}"
        ends = list(transactions_of(batch.data for batch in log.batches))
        stable = min(
            (
                t.first_offset
                for t in ends
                if t.marker_offset is None or t.marker_offset >= outcome.high_watermark
            ),
            default=outcome.high_watermark,
        )
        stable = max(min(stable, outcome.high_watermark), log.log_start_offset)
        assert outcome.last_stable_offset <= stable, f"StableOffset: {where}, not {stable}"
        if not request.fetch.is_read_committed:
            return
        data = bytes(outcome.records.read())
        aborted = {
            (t.producer_id, offset)
            for t in ends
            if t.is_aborted and t.marker_offset is not None
            for offset in range(t.first_offset, t.marker_offset)
        }
        wanted = [
            record
            for _, header, batch in _batches_of(data)
            if not header.attributes & CONTROL_MASK
            for record in records_of(batch)
            if (header.producer_id, record.offset) not in aborted
        ]
        assert list(visible(data, outcome.aborted)) == wanted, f"AbortedAreTold: {where}: {wanted}"
        last = max((record.offset for record in records_of(data)), default=-1)
        assert last < outcome.last_stable_offset, f"ReadsBelowStableOffset: {where}: {last}"

    def check_end(self, leader: SimulatedBroker, name: TopicPartition) -> None:
        """Check a partition of a cluster at rest: what readers see is what was committed."""
        if self.is_excused(name):
            return
        seen: list[bytes] = []
        offset = leader.disk.log(name).log_start_offset
        while (outcome := _read(leader, name, offset)).records.size:
            data = bytes(outcome.records.read())
            seen += filter(None, map(_value_of, visible(data, outcome.aborted)))
            offset = records_of(data)[-1].offset + 1
        where = f"{name}, led by {leader.broker_id}"
        assert outcome.last_stable_offset == outcome.high_watermark, f"NothingHangs: {where}"
        for found in self._found:
            if self._is_doubtful(found, name):
                continue
            values = found.values.get(name, set())
            told = found.transaction.acknowledged.get(name, set())
            own = values.intersection(seen)
            if found.transaction.answered:
                assert own == told, f"CommitsStay: {where}: {found}, not {own}"
            is_whole = own == (values if found.is_committed else set())
            assert is_whole, f"AllOrNothing: {where}: {found}, not {own}"


def _numbers_of(data: bytes) -> Iterable[int]:
    """Return the transactions that the records of a batch belong to."""
    return {int(value.partition(b".")[0]) for value in _values_of(data)}


def _values_of(data: bytes) -> Iterator[bytes]:
    """Yield what transactions wrote in a batch: the values of records, or of positions."""
    ((_, header),) = headers_of(data)
    if header.attributes & TRANSACTIONAL_MASK and not header.attributes & CONTROL_MASK:
        yield from filter(None, map(_value_of, records_of(data)))


def _value_of(record: Record) -> bytes | None:
    if record.key is None or record.value is None:
        return record.value
    key = decode_key(record.key)
    return decode_offset(record.value).metadata.encode() if isinstance(key, OffsetKey) else None


def _states_of(data: bytes) -> Iterator[tuple[str, ProducerIdAndEpoch]]:
    """Yield the producers in records of ``__transaction_state``."""
    for record in records_of(data):
        assert record.key is not None
        name = decode_transaction_key(record.key)
        if name is not None and record.value is not None:
            stored = decode_transaction(record.value)
            yield name, ProducerIdAndEpoch(stored.producer_id, stored.producer_epoch)


def _batches_of(data: bytes) -> Iterator[tuple[int, Any, bytes]]:
    for position, header in headers_of(data):
        yield position, header, data[position : position + header.size]


def visible(data: bytes, aborted: Sequence[AbortedTransactionStart]) -> Iterator[Record]:
    """Yield the records that a reader of committed records sees, as the Java client does."""
    waiting = deque(sorted(aborted, key=lambda start: start.first_offset))
    skipped: set[int] = set()
    for _, header, batch in _batches_of(data):
        while waiting and waiting[0].first_offset <= header.last_offset:
            skipped.add(waiting.popleft().producer_id)
        if header.attributes & CONTROL_MASK:
            marker = marker_of(batch)
            if marker is not None and not marker[0]:
                skipped.discard(header.producer_id)
        elif header.producer_id not in skipped:
            yield from records_of(batch)


def _read(leader: SimulatedBroker, name: TopicPartition, offset: int) -> ConsumedPartition:
    answers: list[ConsumedPartition] = []
    fetch = ConsumerFetch({name: ConsumerPosition(offset, EVERYTHING)}, is_read_committed=True)
    leader.replica_manager.fetch_for_consumer(
        fetch, leader.now_ms, lambda outcomes: answers.append(outcomes[name]), waits=False
    )
    (answer,) = answers
    assert answer.error_code is Errors.NONE, f"{name}: {answer}"
    return answer
