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
    """Return the answer to a request that is not processed; None for what is not a request.

    Without an ``error`` it is that of a broker that does not rule.
    """
    of_nobody = Errors.NOT_CONTROLLER if error is None else error
    match event:
        case events.ControlledShutdown(request_id):
            stale = Errors.STALE_CONTROLLER_EPOCH if error is None else error
            return SendResponse(request_id, ControlledShutdownResponse(stale))
        case events.AlterPartitionReceived(request_id):
            return SendResponse(request_id, AlterPartitionResponse(of_nobody))
        case events.ReplicaLeaderElection(request_id):
            return SendResponse(request_id, ElectLeadersResponse(of_nobody))
        case events.ApiPartitionReassignment(request_id):
            return SendResponse(request_id, AlterPartitionReassignmentsResponse(of_nobody))
        case events.ListPartitionReassignments(request_id):
            return SendResponse(request_id, ListPartitionReassignmentsResponse(of_nobody))
        case _:
            return None
