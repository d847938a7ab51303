"""How requests of clients about elections and reassignments are answered.

The controller decides. The answer to ElectLeaders is given when this broker's metadata cache shows
the new leaders, or when the request's time is over. Mirrors ``kafka.server.DelayedElectLeader``:
REQUEST_TIMED_OUT does not undo an election.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol, TypeAlias

from regent.core.errors import Errors
from regent.core.model import NO_LEADER, TopicPartition
from regent.core.protocol.controller import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    PartitionsRequest,
    PartitionsResponse,
)
from regent.core.replication.metadata_cache import MetadataSnapshot

RespondAboutPartitions: TypeAlias = Callable[[PartitionsResponse], None]


class PartitionService(Protocol):
    """Takes requests about partitions from clients, on any thread and without delay."""

    def ask_controller(self, request: PartitionsRequest, respond: RespondAboutPartitions) -> None:
        """Call ``respond`` exactly once, with the answer to the request, on any thread."""
        ...


def refuse_partitions(
    request: PartitionsRequest, error_code: Errors, message: str
) -> PartitionsResponse:
    """Return the answer that refuses a whole request."""
    match request:
        case ElectLeadersRequest():
            return ElectLeadersResponse(error_code, message=message)
        case AlterPartitionReassignmentsRequest():
            return AlterPartitionReassignmentsResponse(error_code, message=message)
        case ListPartitionReassignmentsRequest():
            return ListPartitionReassignmentsResponse(error_code, message=message)


class PendingElections:
    """The answer to ElectLeaders, which waits until this broker knows the leaders.

    Poll after every change of the metadata cache, and at ``deadline_ms``.
    """

    def __init__(self, decided: ElectLeadersResponse, deadline_ms: int) -> None:
        self.deadline_ms = deadline_ms
        self._decided = decided

    def poll(self, snapshot: MetadataSnapshot, now_ms: int) -> ElectLeadersResponse | None:
        """Return the answer; None: this broker does not know all the leaders yet."""
        rows = []
        for row in self._decided.partitions:
            known = snapshot.partitions.get(TopicPartition(row.topic, row.partition))
            if row.error_code is Errors.NONE and (known is None or known.leader != row.leader):
                if now_ms < self.deadline_ms:
                    return None
                row = row._replace(
                    error_code=Errors.REQUEST_TIMED_OUT,
                    message=f"{row.topic}-{row.partition}: broker {row.leader} is elected, but this"
                    " broker does not know it yet",
                    leader=NO_LEADER,
                )
            rows.append(row)
        return replace(self._decided, partitions=tuple(rows))
