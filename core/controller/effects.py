"""The effects of an event, which the shell performs in sequence, and the outbox that collects them.

One of them has the changes for the journal: small records, and their sentences for people.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import NamedTuple, ParamSpec, TypeAlias

from regent.core.controller import events
from regent.core.controller.events import ControllerEvent, RequestId
from regent.core.errors import ApiError, Errors, RegentError
from regent.core.model import (
    BrokerId,
    BrokerRegistration,
    LeaderAndIsr,
    LeaderIsrAndControllerEpoch,
    LeaderRecoveryState,
    TopicPartition,
)
from regent.core.protocol.api import ActorResponse
from regent.core.protocol.control import ControlHeader, ControlRequest
from regent.core.protocol.controller import (
    AlterPartitionResponse,
    ControlledShutdownResponse,
    MoveControllerResponse,
    NoteOperationResponse,
    UndeleteTopicResponse,
)
from regent.core.protocol.messages.partitions import (
    AlterPartitionReassignmentsResponse,
    ElectLeadersResponse,
    ListPartitionReassignmentsResponse,
)
from regent.core.topic_validation import INTERNAL_TOPICS

MAX_NAMED_CHANGES = 20  # an event may move 100,000 leaders; the journal names the first few

P = ParamSpec("P")

# --- changes --------------------------------------------------------------------------------------


class PartitionCreated(NamedTuple):
    """A partition has its first leader and ISR."""

    topic_partition: TopicPartition
    now: LeaderAndIsr

    def __str__(self) -> str:
        leader, isr = self.now.leader, list(self.now.isr)
        return f"{self.topic_partition}: created, leader {leader}, isr {isr}"


class PartitionChanged(NamedTuple):
    """The leader, the ISR or the leader epoch of a partition changed; None: not known before."""

    topic_partition: TopicPartition
    before: LeaderIsrAndControllerEpoch | None
    now: LeaderAndIsr

    def __str__(self) -> str:
        now = self.now
        then = self.before.leader_and_isr if self.before else None
        if then is not None and then.leader == now.leader:
            text = f"leader {now.leader}, isr {list(then.isr)} → {list(now.isr)}"
        else:
            text = f"leader {then.leader if then else '?'} → {now.leader}, isr {list(now.isr)}"
        if then is None or then.leader_epoch != now.leader_epoch:
            text += f", leader epoch {now.leader_epoch}"
        if now.leader_recovery_state is LeaderRecoveryState.RECOVERING:
            text += ", recovering"
        return f"{self.topic_partition}: {text}"


class BrokersStarted(NamedTuple):
    """Brokers have registered."""

    broker_ids: tuple[BrokerId, ...]

    def __str__(self) -> str:
        return f"brokers {list(self.broker_ids)}: started"


class BrokersFailed(NamedTuple):
    """The registrations of brokers are gone."""

    broker_ids: tuple[BrokerId, ...]

    def __str__(self) -> str:
        return f"brokers {list(self.broker_ids)}: failed"


class ControllerElected(NamedTuple):
    """This broker became the active controller."""

    broker_id: BrokerId
    controller_epoch: int

    def __str__(self) -> str:
        return f"broker {self.broker_id}: controller epoch {self.controller_epoch}"


class ControllerResigned(NamedTuple):
    """This broker is no longer the active controller."""

    broker_id: BrokerId
    controller_epoch: int

    def __str__(self) -> str:
        return f"broker {self.broker_id}: resigned"


Change: TypeAlias = (
    PartitionCreated
    | PartitionChanged
    | BrokersStarted
    | BrokersFailed
    | ControllerElected
    | ControllerResigned
    | str
)
"""A change; a ``str`` is one that has only a sentence."""


# --- effects --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AddBroker:
    """Start a RequestSendThread for this registration of a broker."""

    registration: BrokerRegistration


@dataclass(frozen=True, slots=True)
class RemoveBroker:
    """Stop the broker's RequestSendThread and drop what it has queued."""

    broker_id: BrokerId


@dataclass(frozen=True, slots=True)
class SendControlRequest:
    """Deliver a request to a broker, in order, until it answers or is removed.

    ``request`` may be the same object in several effects: it is encoded once.
    """

    broker_id: BrokerId
    header: ControlHeader
    request: ControlRequest


@dataclass(frozen=True, slots=True)
class SendResponse:
    """Answer the request with this id."""

    request_id: RequestId
    response: ActorResponse


@dataclass(frozen=True, slots=True)
class ScheduleEvent:
    """Put ``event`` into the queue after ``after_ms``."""

    after_ms: int
    event: ControllerEvent


@dataclass(frozen=True, slots=True)
class CancelScheduledEvents:
    """Forget every scheduled event of the term that has not been queued yet."""


@dataclass(frozen=True, slots=True)
class BrokerRegistered:
    """This broker has registered: its requests and answers must have this broker epoch."""

    broker_epoch: int


@dataclass(frozen=True, slots=True)
class BrokerMustEnd:
    """This broker must end in an orderly way: ZooKeeper's data are not of its cluster."""

    reason: RegentError


@dataclass(frozen=True, slots=True)
class ControllerRoleChanged:
    """This broker became the active controller (or stopped being it)."""

    is_active: bool
    controller_epoch: int


@dataclass(frozen=True, slots=True)
class RecordChanges:
    """What the event changed, for the journal: the first few changes and how many there were."""

    controller_epoch: int
    changes: tuple[Change, ...]
    total: int


Effect: TypeAlias = (
    AddBroker
    | RemoveBroker
    | SendControlRequest
    | SendResponse
    | ScheduleEvent
    | CancelScheduledEvents
    | BrokerRegistered
    | BrokerMustEnd
    | ControllerRoleChanged
    | RecordChanges
)


# --- answers to requests that are not processed ---------------------------------------------------


def error_response(event: ControllerEvent, error: Errors | None = None) -> SendResponse | None:
    """Return the answer to a request that is not processed; None: the event is no request.

    Without an ``error`` it says that this broker is not the active controller.
    """
    code = Errors.NOT_CONTROLLER if error is None else error
    match event:
        case events.ControlledShutdown(request_id):
            stale = Errors.STALE_CONTROLLER_EPOCH if error is None else error
            return SendResponse(request_id, ControlledShutdownResponse(stale))
        case events.MoveController(request_id):
            return SendResponse(request_id, MoveControllerResponse(code))
        case events.UndeleteTopic(request_id):
            return SendResponse(request_id, UndeleteTopicResponse(code))
        case events.OperationNoted(request_id):
            return SendResponse(request_id, NoteOperationResponse(code))
        case events.AlterPartitionReceived(request_id):
            return SendResponse(request_id, AlterPartitionResponse(code))
        case events.ReplicaLeaderElection(request_id):
            return SendResponse(request_id, ElectLeadersResponse.of({}, ApiError(code)))
        case events.ApiPartitionReassignment(request_id):
            return SendResponse(
                request_id, AlterPartitionReassignmentsResponse.of({}, ApiError(code))
            )
        case events.ListPartitionReassignments(request_id):
            return SendResponse(
                request_id, ListPartitionReassignmentsResponse.of({}, ApiError(code))
            )
        case _:
            return None


# --- the outbox -----------------------------------------------------------------------------------


class Outbox:
    """Collects effects while an event is handled."""

    def __init__(self) -> None:
        self.perform: Callable[[list[Effect]], None] | None = None
        """Performs effects while their event is still being handled; None: ``flush`` waits."""
        self._effects: list[Effect] = []
        self._answered: set[RequestId] = set()
        self._changes: list[Change] = []
        self._change_count = 0

    def add(self, effect: Effect) -> None:
        """Append one effect."""
        self._effects.append(effect)

    def extend(self, effects: Iterable[Effect]) -> None:
        """Append effects."""
        self._effects.extend(effects)

    def flush(self) -> None:
        """Perform the collected effects now, because long work follows."""
        if self.perform is None or not self._effects:
            return
        effects, self._effects = self._effects, []
        self._answered.update(e.request_id for e in effects if isinstance(e, SendResponse))
        self.perform(effects)

    def has_answered(self, request_id: RequestId) -> bool:
        """Whether the request has its answer already: there is never a second one."""
        if request_id in self._answered:
            return True
        return any(
            isinstance(e, SendResponse) and e.request_id == request_id for e in self._effects
        )

    def record(self, kind: Callable[P, Change], *args: P.args, **kwargs: P.kwargs) -> None:
        """Note a change; only the first few of an event are created."""
        self._change_count += 1
        if len(self._changes) < MAX_NAMED_CHANGES:
            self._changes.append(kind(*args, **kwargs))

    def record_each(
        self,
        kind: Callable[..., Change],
        rows: Sequence[tuple[TopicPartition, *tuple[object, ...]]],
    ) -> None:
        """Note a change of one kind for each row; those of internal topics are named last."""
        internal = (row for row in rows if row[0].topic in INTERNAL_TOPICS)
        others = (row for row in rows if row[0].topic not in INTERNAL_TOPICS)
        for row in islice(chain(others, internal), MAX_NAMED_CHANGES):
            self.record(kind, *row)
        self._change_count += max(len(rows) - MAX_NAMED_CHANGES, 0)

    def note(self, template: str, *args: object) -> None:
        """Note a change that has only a sentence; only the first few are formatted."""
        self.record(template.__mod__, args)

    def drain(self, controller_epoch: int) -> list[Effect]:
        """Return everything collected, the changes last, and start empty."""
        effects = self._effects
        if self._change_count:
            changes = tuple(self._changes)
            effects.append(RecordChanges(controller_epoch, changes, self._change_count))
        self._effects, self._changes, self._change_count = [], [], 0
        self._answered.clear()
        return effects
