"""How requests of clients about elections and reassignments are answered.

The controller decides. The answer to ElectLeaders is given when this broker's metadata cache shows
the new leaders, or when the request's time is over. Mirrors ``kafka.server.DelayedElectLeader``:
REQUEST_TIMED_OUT does not undo an election.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

from regent.core.errors import ApiError, Errors
from regent.core.protocol.envelope import ForwardedClient
from regent.core.protocol.messages.partitions import (
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

    def ask_controller(
        self, request: PartitionsRequest, respond: RespondAboutPartitions, client: ForwardedClient
    ) -> None:
        """Call ``respond`` exactly once, with the answer to the request, on any thread.

        The controller authorizes ``client`` again.
        """
        ...


def refuse_partitions(
    request: PartitionsRequest, error_code: Errors, message: str
) -> PartitionsResponse:
    """Return the answer that refuses a whole request."""
    error = ApiError(error_code, message)
    match request:
        case ElectLeadersRequest():
            return ElectLeadersResponse.of(dict.fromkeys(request.partitions or (), error), error)
        case AlterPartitionReassignmentsRequest():
            results = dict.fromkeys(request.targets, error)
            return AlterPartitionReassignmentsResponse.of(results, error)
        case ListPartitionReassignmentsRequest():
            return ListPartitionReassignmentsResponse.of({}, error)


class PendingElections:
    """The answer to ElectLeaders, which waits until this broker knows the leaders.

    Poll after every change of the metadata cache, and at ``deadline_ms``.
    """

    def __init__(self, decided: ElectLeadersResponse, deadline_ms: int) -> None:
        self.deadline_ms = deadline_ms
        self._decided = decided
        self._leaders = decided.leaders

    def poll(self, snapshot: MetadataSnapshot, now_ms: int) -> ElectLeadersResponse | None:
        """Return the answer; None: this broker does not know all the leaders yet."""
        late = {
            topic_partition: ApiError(
                Errors.REQUEST_TIMED_OUT,
                f"{topic_partition}: broker {leader} is elected, but this broker does not know it"
                " yet",
            )
            for topic_partition, leader in self._leaders.items()
            if (known := snapshot.partitions.get(topic_partition)) is None or known.leader != leader
        }
        if not late:
            return self._decided
        if now_ms < self.deadline_ms:
            return None
        in_time = {p: leader for p, leader in self._leaders.items() if p not in late}
        return ElectLeadersResponse.of({**self._decided.results, **late}, leaders=in_time)
