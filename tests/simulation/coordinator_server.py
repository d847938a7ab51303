"""A coordinator of a simulated broker: a real machine over the broker's real replicas.

As ``actors.coordinator``: everything that happens is a message, and messages are handled one after
the other, sometimes late. Records that are appended meanwhile go into one batch.
"""

from __future__ import annotations

import random
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from regent.core.coordinator.partition_for import (
    UNKNOWN_PARTITION,
    AwaitedLeaderships,
    CoordinatorPartitions,
    partition_for,
)
from regent.core.errors import Errors
from regent.core.model import TopicPartition
from regent.core.protocol.client import ACKS_ALL, ProducedPartition
from regent.core.protocol.groups import VerifiedProducer
from regent.core.replication.all_partitions import FOR_NOW
from regent.core.replication.leader_partitions import Leadership
from regent.records.record_batch import (
    BatchHeader,
    KeyAndValue,
    batches,
    build_batch,
    keys_and_values,
)
from tests.simulation.client_requests import ProduceRequest
from tests.simulation.network import Exchange

if TYPE_CHECKING:
    from tests.simulation.broker import SimulatedBroker

COMMIT_TIMEOUT_MS = 2_500
LOAD_BYTES = 400
TICK_MS = 500
MAX_TICKS_OWED = 30  # longer than any rebalance, and the store behind it
MAX_LATE_MS = 600
LATE_PROBABILITY = 0.1
MAX_VERY_LATE_MS = 5_000
VERY_LATE_PROBABILITY = 0.01
SHORTAGE_PROBABILITY = 0.05  # of an append, in a history in which descriptors are short

Message = Callable[[], None]
RespondToAppend = Callable[[Errors, int], None]


@dataclass(slots=True, kw_only=True)
class CoordinatorWorld:
    """What the coordinators of all brokers share."""

    partitions: int
    dice: random.Random
    is_at_rest: bool = False
    keys: tuple[str, ...] = ()
    """The groups, or the transactional ids, whose coordinator clients look for."""
    shortages: random.Random | None = None
    """None: no broker lacks descriptors in this history."""

    def partition_of(self, name: str) -> int:
        """Return the partition of a group, or of a transactional id."""
        return partition_for(name, self.partitions)

    def is_short(self) -> bool:
        """Whether a broker lacks descriptors for an append."""
        dice = None if self.is_at_rest else self.shortages
        return dice is not None and dice.random() < SHORTAGE_PROBABILITY

    def late_ms(self) -> int:
        """Return how long messages wait: coordinators are busy now and then."""
        dice = 1.0 if self.is_at_rest else self.dice.random()
        if dice < VERY_LATE_PROBABILITY:
            return self.dice.randrange(MAX_VERY_LATE_MS)
        return self.dice.randrange(MAX_LATE_MS) if dice < LATE_PROBABILITY else 0


class Machine(Protocol):
    """A coordinator, as far as its server uses it."""

    def on_elected(self, partition: int, epoch: int, term: int) -> None:
        """The broker leads a partition."""
        ...

    def on_resigned(self, partition: int, epoch: int | None) -> None:
        """The broker does not lead a partition any more."""
        ...


class Loader(Protocol):
    """Takes what is read of a partition."""

    def add(self, header: BatchHeader, records: Iterable[KeyAndValue]) -> None:
        """Take a batch."""
        ...

    def content(self) -> Any:
        """Return what the batches say."""
        ...


class _Target(NamedTuple):
    partition: int
    term: int
    acks: int
    producer: VerifiedProducer | None


class _StagedBatch(NamedTuple):
    target: _Target
    appends: list[tuple[list[KeyAndValue], RespondToAppend]]


class CoordinatorServer:
    """Of one process; ``owed`` maps requests that wait to the ticks since then."""

    machine: Machine

    def __init__(self, broker: SimulatedBroker, topic: str, world: CoordinatorWorld) -> None:
        self.broker = broker
        self.topic = topic
        self.partitions = CoordinatorPartitions(topic, broker.cache, world.partitions)
        self._world = world
        self._late_ms = world.late_ms
        self._manager = broker.replica_manager
        self._time = broker.world.time
        self._inbox: deque[Message] = deque()
        self._is_scheduled = False
        self._staged: list[_StagedBatch] = []
        self.owed: dict[Exchange, int] = {}

    def begin(self) -> None:
        """Listen to leaderships, and let time pass."""
        self._leaderships = AwaitedLeaderships(
            self.partitions, self.machine.on_elected, self.machine.on_resigned
        )
        self._manager.observe_leaderships(self._on_leaderships)
        self._tick()

    def wall_clock_ms(self) -> int:
        """Return the time of the machine's wall clock."""
        return 1_600_000_000_000 + self._time.now_ms + self.broker.disk.wall_clock_ahead_ms

    def _tick(self) -> None:
        self._time.schedule(self.broker, TICK_MS, self._tick)
        for exchange in self.owed:
            self.owed[exchange] += 1
        self.on_tick()

    def on_tick(self) -> None:
        """Some time has passed."""

    def partition_of(self, key: str) -> int:
        """Return what FindCoordinator says; it must never be another partition."""
        found, right = self.partitions.of(key), self._world.partition_of(key)
        known = f"broker {self.broker.broker_id}: {key} in partition {found} of {self.topic}"
        assert found in (right, UNKNOWN_PARTITION), f"CoordinatorsAgree: {known}, not {right}"
        return found

    def on_metadata_changed(self) -> None:
        """The clients that wait for a coordinator ask at once, in any state of the metadata."""
        for key in self._world.keys:
            self.partition_of(key)
        if self._leaderships:
            self.tell(self._leaderships.on_metadata_changed)

    # --- messages ---

    def tell(self, message: Message) -> None:
        """Handle a message after those that are queued."""
        self._inbox.append(message)
        if not self._is_scheduled:
            self._is_scheduled = True
            self._time.schedule(self.broker, self._late_ms(), self._handle)

    def _handle(self) -> None:
        while self._inbox:
            message = self._inbox.popleft()
            self.before()
            message()
            self.after()
        self._is_scheduled = False
        self.set_alarm()

    def before(self) -> None:
        """A message is about to be handled."""

    def after(self) -> None:
        """A message was handled."""

    def set_alarm(self) -> None:
        """All messages are handled: the machine may wait for a time."""

    def _on_leaderships(self, leaderships: Sequence[Leadership]) -> None:
        for leadership in leaderships:
            if leadership.topic_partition.topic == self.topic:
                self.tell(lambda leadership=leadership: self._leaderships.add(leadership))  # type: ignore[misc]

    # --- requests ---

    def serve(self, exchange: Exchange) -> None:
        """Answer now or later."""
        self.owed[exchange] = 0
        self.tell(lambda: self.answer(exchange))

    @abstractmethod
    def answer(self, exchange: Exchange) -> None:
        """Let the machine answer a request."""

    def assert_owes_nothing(self) -> None:
        """Check that no request waits too long."""
        late = {e: ticks for e, ticks in self.owed.items() if ticks > MAX_TICKS_OWED}
        assert not late, f"broker {self.broker.broker_id} owes answers of {self.topic}: {late}"

    # --- appends ---

    def append_encoded(
        self,
        partition: int,
        term: int,
        records: Sequence[KeyAndValue],
        respond: RespondToAppend,
        acks: int = ACKS_ALL,
        producer: VerifiedProducer | None = None,
    ) -> None:
        """Append records after the messages that are queued, together with others.

        ``producer``: they are a batch of its transaction.
        """
        if not self._staged:
            self.tell(self._flush)
        target = _Target(partition, term, acks, producer)
        of_partition = [b for b in self._staged if b.target.partition == partition]
        if not of_partition or of_partition[-1].target != target or producer is not None:
            of_partition.append(_StagedBatch(target, []))
            self._staged.append(of_partition[-1])
        of_partition[-1].appends.append((list(records), respond))

    def _flush(self) -> None:
        staged, self._staged = self._staged, []
        for batch in staged:
            if self._world.is_short():
                refused = ProducedPartition(FOR_NOW)
                self.tell(lambda refused=refused, batch=batch: _tell_all(batch.appends, refused))  # type: ignore[misc]
            else:
                self._append(*batch)

    def _append(
        self, target: _Target, appends: Sequence[tuple[list[KeyAndValue], RespondToAppend]]
    ) -> None:
        name = TopicPartition(self.topic, target.partition)
        records = [record for encoded, _ in appends for record in encoded]
        producer = target.producer or VerifiedProducer(-1, -1)
        data = build_batch(
            records,
            self.wall_clock_ms(),
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            base_sequence=-1 if target.producer is None else 0,
        )
        produced = ProduceRequest(name, target.acks, bytes(data))
        log = self.broker.disk.get(name)
        end = -1 if log is None else log.log_end_offset

        def respond(outcomes: Mapping[TopicPartition, ProducedPartition]) -> None:
            outcome = outcomes[name]
            self.broker.world.observer.on_produced(self.broker, produced, log, outcome)
            self.tell(lambda: _tell_all(appends, outcome))

        operation = self._manager.append_in_term(
            name, target.term, target.acks, data, self.broker.now_ms, respond, producer.guard
        )
        if log is not None and self.broker.disk.get(name) is log and log.log_end_offset > end:
            self.on_appended(name, target.term)
        if operation is not None:
            self._time.schedule(
                self.broker,
                COMMIT_TIMEOUT_MS,
                lambda: self._manager.expire(operation, self.broker.now_ms),
            )
        self.broker.acted()

    def on_appended(self, name: TopicPartition, term: int) -> None:
        """A batch was appended; it is the last one of the log."""

    # --- loading ---

    @abstractmethod
    def new_loader(self) -> Loader:
        """Return what takes the batches of a partition."""

    def load(self, partition: int, term: int) -> None:
        """Begin to read a partition."""
        self._read_soon(partition, term, self.new_loader(), 0)

    def _read_soon(self, partition: int, term: int, loader: Loader, offset: int) -> None:
        self._time.schedule(
            self.broker, self._late_ms(), lambda: self._read(partition, term, loader, offset)
        )

    def _read(self, partition: int, term: int, loader: Loader, offset: int) -> None:
        name = TopicPartition(self.topic, partition)
        part = self._manager.read_in_term(name, term, offset, LOAD_BYTES)
        if part.error_code is not Errors.NONE:
            self.tell(lambda: self.on_loaded(partition, term, None, -1))
            return
        if not part.records.size:
            self.tell(lambda: self.on_loaded(partition, term, loader.content(), offset))
            return
        data = memoryview(part.records.read())
        for position, header in batches(data):
            loader.add(header, keys_and_values(header, data[position : position + header.size]))
            offset = header.next_offset
        self._read_soon(partition, term, loader, offset)

    @abstractmethod
    def on_loaded(self, partition: int, term: int, content: Any, end: int) -> None:
        """A partition was read up to an offset; ``content`` None: it could not be."""


def _tell_all(
    appends: Sequence[tuple[list[KeyAndValue], RespondToAppend]], outcome: ProducedPartition
) -> None:
    position = 0
    for records, respond in appends:
        respond(outcome.error_code, outcome.base_offset + position)
        position += len(records)
