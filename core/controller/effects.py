"""The effects of an event, which the shell performs in sequence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from regent.core.controller.changes import Change
from regent.core.controller.events import ControllerEvent, RequestId
from regent.core.errors import RegentError
from regent.core.model import BrokerId, BrokerRegistration
from regent.core.protocol.api import ActorResponse
from regent.core.protocol.control import ControlHeader, ControlRequest


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
