"""Which event a request to the controller is, as in ``actors.controller_event_manager``."""

from __future__ import annotations

from core.controller import events
from core.controller.events import ControllerEvent, RequestId
from core.protocol.controller import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionRequest,
    ControlledShutdownRequest,
    DescribeTopicsRequest,
    ElectLeadersRequest,
    ListPartitionReassignmentsRequest,
)
from tests.simulation.network import RequestBody


def event_of(request: RequestBody, request_id: RequestId) -> ControllerEvent:
    """Return the event that a request to the controller is."""
    match request:
        case ControlledShutdownRequest(broker_id, broker_epoch):
            return events.ControlledShutdown(request_id, broker_id, broker_epoch)
        case AlterPartitionRequest():
            return events.AlterPartitionReceived(request_id, request)
        case ElectLeadersRequest():
            return events.ReplicaLeaderElection(request_id, request)
        case AlterPartitionReassignmentsRequest():
            return events.ApiPartitionReassignment(request_id, request)
        case ListPartitionReassignmentsRequest():
            return events.ListPartitionReassignments(request_id, request)
        case DescribeTopicsRequest(topics):
            return events.DescribeTopics(request_id, topics)
        case _:
            raise AssertionError(f"not for the controller's queue: {request}")
