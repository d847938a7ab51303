"""The group coordinator of a simulated broker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from regent.actors.coordinator_log import begin_verification
from regent.actors.group_coordinator_log import GroupReader
from regent.core.coordinator.group.group_coordinator import GroupCoordinator
from regent.core.coordinator.group.group_metadata_manager import (
    ACKS_ALL,
    Clock,
    GroupConfig,
    RespondToAppend,
)
from regent.core.coordinator.group.group_records import Record, encode_key, encode_value
from regent.core.errors import Errors
from regent.core.model import TopicPartition
from regent.core.protocol.coordinator import Question
from regent.core.protocol.groups import CommitOffsets, GroupRequest, VerifiedProducer
from regent.core.protocol.transactions import TransactionToVerify
from regent.core.replica_logs import NO_VERIFICATION
from regent.core.topic_validation import GROUP_METADATA_TOPIC
from tests.simulation.client_requests import GroupAnswer, GroupCall
from tests.simulation.coordinator_server import CoordinatorServer, CoordinatorWorld
from tests.simulation.network import Exchange

if TYPE_CHECKING:
    from tests.simulation.broker import SimulatedBroker


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


@dataclass(slots=True, kw_only=True)
class GroupWorld(CoordinatorWorld):
    """What the group coordinators of all brokers share."""

    config: GroupConfig
    observer: GroupObserver = field(default_factory=GroupObserver)
    member_numbers: int = 0

    def new_member_id(self, prefix: str) -> str:
        """Return an id that no other member has."""
        self.member_numbers += 1
        return f"{prefix}-{self.member_numbers}"


class GroupServer(CoordinatorServer):
    """The coordinator of one process."""

    def __init__(self, broker: SimulatedBroker, world: GroupWorld) -> None:
        super().__init__(broker, GROUP_METADATA_TOPIC, world)
        self.world = world
        self._alarm_ms: int | None = None
        self.machine: GroupCoordinator = GroupCoordinator(
            world.config,
            self,
            Clock(lambda: broker.now_ms, self.wall_clock_ms),
            partition_of=self.partition_of,
            new_member_id=world.new_member_id,
        )
        self.machine.start()
        self.begin()

    def stop(self) -> None:
        """Refuse the requests that wait, at a clean end of the process."""
        self.machine.stop()

    # --- messages ---

    def before(self) -> None:
        """See ``CoordinatorServer.before``."""
        self.world.observer.before(self)

    def after(self) -> None:
        """See ``CoordinatorServer.after``."""
        self.world.observer.after(self)

    def set_alarm(self) -> None:
        """See ``CoordinatorServer.set_alarm``."""
        due_ms = self.machine.next_timer_ms
        if due_ms is not None and (self._alarm_ms is None or due_ms < self._alarm_ms):
            self._alarm_ms = due_ms
            after_ms = max(due_ms - self.broker.now_ms, 0)
            self._time.schedule(self.broker, after_ms, lambda: self.tell(self._run_timers))

    def _run_timers(self) -> None:
        self._alarm_ms = None
        self.machine.run_timers()
        self.world.observer.on_timers(self)

    # --- requests ---

    def serve(self, exchange: Exchange) -> None:
        """Verify commits of transactions first, as ``api.txn_offset_commit`` does."""
        call = exchange.request
        assert isinstance(call, GroupCall)
        if call.transactional_id is None:
            super().serve(exchange)
            return
        commit, transactions = call.request, self.broker.transactions
        assert isinstance(commit, CommitOffsets)
        assert commit.producer is not None
        assert transactions is not None
        self.owed[exchange] = 0
        name = TopicPartition(GROUP_METADATA_TOPIC, self.partition_of(commit.group_id))
        guard = begin_verification(self._manager, name, commit.producer)
        verified = replace(commit, producer=commit.producer._replace(guard=guard))

        def on_verified(errors: Mapping[TopicPartition, Errors]) -> None:
            if errors[name] is Errors.NONE:
                self.tell(lambda: self._handle_request(exchange, verified))
            else:
                del self.owed[exchange]
                refused = GroupAnswer(commit.refused(errors[name]))
                self.broker.world.network.answer(exchange, refused)

        if guard == NO_VERIFICATION:
            on_verified({name: Errors.NONE})
        else:
            asked = TransactionToVerify(call.transactional_id, *commit.producer[:2], (name,))
            transactions.verify(asked, on_verified)

    def answer(self, exchange: Exchange) -> None:
        """See ``CoordinatorServer.answer``."""
        assert isinstance(exchange.request, GroupCall)
        self._handle_request(exchange, exchange.request.request)

    def _handle_request(self, exchange: Exchange, request: GroupRequest[Any]) -> None:
        context = self.world.observer.on_request(self, request)

        def respond(result: Any) -> None:
            assert exchange in self.owed, f"AnsweredOnce: {request}: {result}"
            del self.owed[exchange]
            self.world.observer.on_answer(self, request, context, result)
            self.broker.world.network.answer(exchange, GroupAnswer(result))

        self.machine.handle(request, respond)

    def ask(self, questions: Sequence[Question[Any]]) -> None:
        """See ``CoordinatorService.ask``: the broker itself asks."""
        for question in questions:
            self.tell(partial(self.machine.handle, question.request, question.respond))

    # --- GroupLog ---

    def append(
        self,
        partition: int,
        term: int,
        records: Sequence[Record],
        respond: RespondToAppend,
        *,
        acks: int = ACKS_ALL,
        producer: VerifiedProducer | None = None,
    ) -> None:
        """See ``GroupLog.append``."""
        encoded = [(encode_key(key), encode_value(value)) for key, value in records]
        self.append_encoded(partition, term, encoded, respond, acks, producer)

    def on_appended(self, name: TopicPartition, term: int) -> None:
        """See ``CoordinatorServer.on_appended``."""
        self.world.observer.on_appended(self, name, term)

    def new_loader(self) -> GroupReader:
        """See ``CoordinatorServer.new_loader``."""
        return GroupReader()

    def on_loaded(self, partition: int, term: int, content: Any, end: int) -> None:
        """See ``CoordinatorServer.on_loaded``."""
        is_awaited = self.machine.manager.is_awaited(partition, term)
        self.machine.on_loaded(partition, term, content)
        if is_awaited and content is not None:
            self.world.observer.on_loaded(self, partition, term, end)
