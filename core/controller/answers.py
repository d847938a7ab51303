"""The controller's answers to requests it will not, or need not, process."""

from __future__ import annotations

from regent.core.controller import events
from regent.core.controller.context import ControllerContext
from regent.core.controller.effects import Reply
from regent.core.controller.events import ControllerEvent
from regent.core.errors import Errors
from regent.core.model import NO_EPOCH, NO_LEADER
from regent.core.protocol.controller import (
    AlterPartitionReassignmentsResponse,
    AlterPartitionResponse,
    ControlledShutdownResponse,
    ControllerPartition,
    DescribeTopicsResponse,
    ElectLeadersResponse,
    ListPartitionReassignmentsResponse,
)


def refusal(event: ControllerEvent, error: Errors | None = None) -> Reply | None:
    """Return the answer to a request that is not processed; None for what is not a request.

    Without an ``error`` it is that of a broker that does not rule.
    """
    of_nobody = Errors.NOT_CONTROLLER if error is None else error
    match event:
        case events.ControlledShutdown(request_id):
            stale = Errors.STALE_CONTROLLER_EPOCH if error is None else error
            return Reply(request_id, ControlledShutdownResponse(stale))
        case events.AlterPartitionReceived(request_id):
            return Reply(request_id, AlterPartitionResponse(of_nobody))
        case events.ReplicaLeaderElection(request_id):
            return Reply(request_id, ElectLeadersResponse(of_nobody))
        case events.ApiPartitionReassignment(request_id):
            return Reply(request_id, AlterPartitionReassignmentsResponse(of_nobody))
        case events.ListPartitionReassignments(request_id):
            return Reply(request_id, ListPartitionReassignmentsResponse(of_nobody))
        case events.DescribeTopics(request_id):
            return Reply(request_id, DescribeTopicsResponse(of_nobody))
        case _:
            return None


def describe_topics(
    context: ControllerContext, topics: tuple[str, ...] | None
) -> DescribeTopicsResponse:
    """Return what the controller knows of some topics (None: of all), sorted."""
    rows: list[ControllerPartition] = []
    for topic in sorted(context.all_topics) if topics is None else topics:
        for partition in sorted(context.partitions_of(topic)):
            leadership = context.partition_leadership_info(partition)
            current = None if leadership is None else leadership.leader_and_isr
            rows.append(
                ControllerPartition(
                    topic,
                    partition.partition,
                    NO_LEADER if current is None else current.leader,
                    NO_EPOCH if current is None else current.leader_epoch,
                    () if current is None else current.isr,
                    context.partition_replica_assignment(partition),
                )
            )
    return DescribeTopicsResponse(Errors.NONE, context.epoch, tuple(rows))
