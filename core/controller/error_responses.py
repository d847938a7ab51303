"""The controller's answers to requests that it does not process."""

from __future__ import annotations

from regent.core.controller import events
from regent.core.controller.effects import SendResponse
from regent.core.controller.events import ControllerEvent
from regent.core.errors import Errors
from regent.core.protocol.controller import (
    AlterPartitionReassignmentsResponse,
    AlterPartitionResponse,
    ControlledShutdownResponse,
    ElectLeadersResponse,
    ListPartitionReassignmentsResponse,
)


def error_response(event: ControllerEvent, error: Errors | None = None) -> SendResponse | None:
    """Return the answer to a request that is not processed; None: the event is no request.

    Without an ``error`` it says that this broker is not the active controller.
    """
    not_controller = Errors.NOT_CONTROLLER if error is None else error
    match event:
        case events.ControlledShutdown(request_id):
            stale = Errors.STALE_CONTROLLER_EPOCH if error is None else error
            return SendResponse(request_id, ControlledShutdownResponse(stale))
        case events.AlterPartitionReceived(request_id):
            return SendResponse(request_id, AlterPartitionResponse(not_controller))
        case events.ReplicaLeaderElection(request_id):
            return SendResponse(request_id, ElectLeadersResponse(not_controller))
        case events.ApiPartitionReassignment(request_id):
            return SendResponse(request_id, AlterPartitionReassignmentsResponse(not_controller))
        case events.ListPartitionReassignments(request_id):
            return SendResponse(request_id, ListPartitionReassignmentsResponse(not_controller))
        case _:
            return None
