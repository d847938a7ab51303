"""The group coordinator of a simulated broker: the real machine over the broker's real replicas.

As ``actors.group_coordinator``: everything that happens is a message, and messages are handled one
after the other, sometimes late. Records that are appended meanwhile go into one batch.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from regent.core.admin.topic_validation import GROUP_METADATA_TOPIC
from regent.core.coordinator.group.group_coordinator import GroupCoordinator
from regent.core.coordinator.group.group_loading import GroupLoader
from regent.core.coordinator.group.group_metadata_manager import (
    ACKS_ALL,
    Clock,
    GroupConfig,
    RespondToAppend,
)
from regent.core.coordinator.group.group_records import Record, encode_key, encode_value
from regent.core.coordinator.partition_for import partition_for
from regent.core.errors import Errors
from regent.core.model import TopicPartition
from regent.core.protocol.client import ProducedPartition
from regent.core.protocol.groups import GroupRequest, ProducerIdAndEpoch
from regent.core.replication.leader_partitions import Leadership
from regent.storage.record_batch import batches
from regent.storage.record_batch_builder import KeyAndValue, build_batch, keys_and_values
from tests.simulation.client_requests import GroupAnswer, GroupCall, ProduceRequest
from tests.simulation.network import Exchange

if TYPE_CHECKING:
    from tests.simulation.broker import SimulatedBroker

COMMIT_TIMEOUT_MS = 2_500
LOAD_BYTES = 400
MAX_LATE_MS = 600
LATE_PROBABILITY = 0.1
MAX_VERY_LATE_MS = 5_000
VERY_LATE_PROBABILITY = 0.01
TICK_MS = 500
MAX_TICKS_OWED = 30  # longer than any rebalance, and the store behind it

Message = Callable[[], None]


class GroupObserver:
    """Is called for everything that happens in coordinators; by default it does nothing."""

    def before(self, server: GroupServer) -> None:
        """A message is about to be handled."""

    def after(self, server: GroupServer) -> None:
        """A message was handled."""

    def on_request(self, server: GroupServer, request: GroupRequest[Any]) -> object:
        """A request is about to be handled; return what ``on_answer`` needs."""

    def on_answer(
        self, server: GroupServer, request: GroupRequest[Any], context: object, result: Any
    ) -> None:
        """A request is answered."""

    def on_timers(self, server: GroupServer) -> None:
        """Timers that were due have fired."""

    def on_appended(self, server: GroupServer, name: TopicPartition, term: int) -> None:
        """A batch was appended; it is the last one of the log."""

    def on_loaded(self, server: GroupServer, partition: int, term: int, end: int) -> None:
        """A partition was read up to an offset."""


@dataclass(slots=True)
class GroupWorld:
    """What the coordinators of all brokers share."""

    config: GroupConfig
    partitions: int
    dice: random.Random
    observer: GroupObserver = field(default_factory=GroupObserver)
    member_numbers: int = 0
    is_at_rest: bool = False

    def partition_of(self, group_id: str) -> int:
        """Return the partition of a group."""
        return partition_for(group_id, self.partitions)

    def new_member_id(self, prefix: str) -> str:
        """Return an id that no other member has."""
        self.member_numbers += 1
        return f"{prefix}-{self.member_numbers}"

    def late_ms(self) -> int:
        """Return how long messages wait: coordinators are busy now and then."""
        dice = 1.0 if self.is_at_rest else self.dice.random()
        if dice < VERY_LATE_PROBABILITY:
            return self.dice.randrange(MAX_VERY_LATE_MS)
        return self.dice.randrange(MAX_LATE_MS) if dice < LATE_PROBABILITY else 0


class _Target(NamedTuple):
    partition: int
    term: int
    acks: int


class GroupServer:
    """The coordinator of one process; ``owed`` maps requests that wait to the ticks since then."""

    def __init__(self, broker: SimulatedBroker, world: GroupWorld) -> None:
        self.broker = broker
        self.world = world
        self._manager = broker.replica_manager
        self._time = broker.world.time
        self._inbox: deque[Message] = deque()
        self._is_scheduled = False
        self._staged: dict[_Target, list[tuple[list[KeyAndValue], RespondToAppend]]] = {}
        self._alarm_ms: int | None = None
        self.owed: dict[Exchange, int] = {}
        self.machine = GroupCoordinator(
            world.config,
            self,
            Clock(lambda: broker.now_ms, self._wall_clock_ms),
            partition_of=world.partition_of,
            new_member_id=world.new_member_id,
        )
        self._manager.observe_leaderships(self._on_leaderships)
        self.machine.start()
        self._tick()

    def _wall_clock_ms(self) -> int:
        return 1_600_000_000_000 + self._time.now_ms + self.broker.disk.wall_clock_ahead_ms

    def _tick(self) -> None:
        self._time.schedule(self.broker, TICK_MS, self._tick)
        for exchange in self.owed:
            self.owed[exchange] += 1

    def stop(self) -> None:
        """Refuse the requests that wait, at a clean end of the process."""
        self.machine.stop()

    # --- messages ---

    def tell(self, message: Message) -> None:
        """Handle a message after those that are queued."""
        self._inbox.append(message)
        if not self._is_scheduled:
            self._is_scheduled = True
            self._time.schedule(self.broker, self.world.late_ms(), self._handle)

    def _handle(self) -> None:
        observer = self.world.observer
        while self._inbox:
            message = self._inbox.popleft()
            observer.before(self)
            message()
            observer.after(self)
        self._is_scheduled = False
        self._set_alarm()

    def _set_alarm(self) -> None:
        due_ms = self.machine.next_timer_ms
        if due_ms is not None and (self._alarm_ms is None or due_ms < self._alarm_ms):
            self._alarm_ms = due_ms
            after_ms = max(due_ms - self.broker.now_ms, 0)
            self._time.schedule(self.broker, after_ms, lambda: self.tell(self._run_timers))

    def _run_timers(self) -> None:
        self._alarm_ms = None
        self.machine.run_timers()
        self.world.observer.on_timers(self)

    def _on_leaderships(self, leaderships: Sequence[Leadership]) -> None:
        for leadership in leaderships:
            if leadership.topic_partition.topic == GROUP_METADATA_TOPIC:
                self.tell(lambda leadership=leadership: self._on_leadership(leadership))  # type: ignore[misc]

    def _on_leadership(self, leadership: Leadership) -> None:
        (_, partition), term, epoch = leadership
        if term is None or epoch is None:
            self.machine.on_resigned(partition, epoch)
        else:
            self.machine.on_elected(partition, epoch, term)

    # --- requests ---

    def serve(self, exchange: Exchange) -> None:
        """Answer now or later."""
        self.owed[exchange] = 0
        self.tell(lambda: self._serve(exchange))

    def _serve(self, exchange: Exchange) -> None:
        assert isinstance(exchange.request, GroupCall)
        request = exchange.request.request
        context = self.world.observer.on_request(self, request)

        def respond(result: Any) -> None:
            assert exchange in self.owed, f"AnsweredOnce: {request}: {result}"
            del self.owed[exchange]
            self.world.observer.on_answer(self, request, context, result)
            self.broker.world.network.answer(exchange, GroupAnswer(result))

        self.machine.handle(request, respond)

    def assert_owes_nothing(self) -> None:
        """Check that no request waits too long."""
        late = {e: ticks for e, ticks in self.owed.items() if ticks > MAX_TICKS_OWED}
        assert not late, f"broker {self.broker.broker_id} owes answers of groups: {late}"

    # --- GroupLog: appends ---

    def append(
        self,
        partition: int,
        term: int,
        records: Sequence[Record],
        respond: RespondToAppend,
        *,
        acks: int = ACKS_ALL,
        producer: ProducerIdAndEpoch | None = None,
    ) -> None:
        """See ``GroupLog.append``."""
        assert producer is None, "there are no transactions"
        if not self._staged:
            self.tell(self._flush)
        encoded = [(encode_key(key), encode_value(value)) for key, value in records]
        self._staged.setdefault(_Target(partition, term, acks), []).append((encoded, respond))

    def _flush(self) -> None:
        staged, self._staged = self._staged, {}
        for target, appends in staged.items():
            self._append(target, appends)

    def _append(
        self, target: _Target, appends: Sequence[tuple[list[KeyAndValue], RespondToAppend]]
    ) -> None:
        name = TopicPartition(GROUP_METADATA_TOPIC, target.partition)
        records = [record for encoded, _ in appends for record in encoded]
        data = build_batch(records, self._wall_clock_ms())
        produced = ProduceRequest(name, target.acks, bytes(data))
        log = self.broker.disk.get(name)
        end = -1 if log is None else log.log_end_offset

        def respond(outcomes: Mapping[TopicPartition, ProducedPartition]) -> None:
            outcome = outcomes[name]
            self.broker.world.observer.on_produced(self.broker, produced, log, outcome)
            self.tell(lambda: _tell_all(appends, outcome))

        operation = self._manager.append_in_term(
            name, target.term, target.acks, data, self.broker.now_ms, respond
        )
        if log is not None and self.broker.disk.get(name) is log and log.log_end_offset > end:
            self.world.observer.on_appended(self, name, target.term)
        if operation is not None:
            self._time.schedule(
                self.broker,
                COMMIT_TIMEOUT_MS,
                lambda: self._manager.expire(operation, self.broker.now_ms),
            )
        self.broker.acted()

    # --- GroupLog: loading ---

    def load(self, partition: int, term: int) -> None:
        """See ``GroupLog.load``."""
        self._read_soon(partition, term, GroupLoader(), 0)

    def _read_soon(self, partition: int, term: int, loader: GroupLoader, offset: int) -> None:
        self._time.schedule(
            self.broker, self.world.late_ms(), lambda: self._read(partition, term, loader, offset)
        )

    def _read(self, partition: int, term: int, loader: GroupLoader, offset: int) -> None:
        name = TopicPartition(GROUP_METADATA_TOPIC, partition)
        part = self._manager.read_in_term(name, term, offset, LOAD_BYTES)
        if part.error_code is not Errors.NONE:
            self.tell(lambda: self.machine.on_loaded(partition, term, None))
            return
        if not part.records.size:
            self.tell(lambda: self._on_loaded(partition, term, loader, offset))
            return
        data = memoryview(part.records.read())
        for position, header in batches(data):
            records = keys_and_values(header, data[position : position + header.size])
            loader.add_batch(header.base_offset, records)
            offset = header.next_offset
        self._read_soon(partition, term, loader, offset)

    def _on_loaded(self, partition: int, term: int, loader: GroupLoader, end: int) -> None:
        is_awaited = self.machine.manager.is_awaited(partition, term)
        self.machine.on_loaded(partition, term, loader.groups())
        if is_awaited:
            self.world.observer.on_loaded(self, partition, term, end)


def _tell_all(
    appends: Sequence[tuple[list[KeyAndValue], RespondToAppend]], outcome: ProducedPartition
) -> None:
    position = 0
    for records, respond in appends:
        respond(outcome.error_code, outcome.base_offset + position)
        position += len(records)
