"""A complete list that comes in several requests, because one body cannot hold it."""

from __future__ import annotations

from typing import NamedTuple

from regent.core.model import LEADER_DURING_DELETE, TopicPartition
from regent.core.protocol.control import (
    ControlHeader,
    LeaderAndIsrRequest,
    TopicId,
    UpdateMetadataRequest,
)


class _Term(NamedTuple):
    controller_epoch: int
    broker_epoch: int


class ListedPartitions(NamedTuple):
    """Partitions with their topic ids: those of one part, or ``is_everything`` there is."""

    partitions: dict[TopicPartition, TopicId | None]
    is_everything: bool


class RequestParts:
    """Gathers what the parts of a complete LeaderAndIsr, or UpdateMetadata, name.

    What is not named may be given up only when every part has come: from the first on, one after
    the other, of one term, each once or repeated at once. Whatever else comes, the list stays
    incomplete, and nothing is given up until the next one.

    Where late copies cannot be told (no ``sequence``) only the first complete list of a term
    counts: another may be a copy of it, which does not name what was created since.
    """

    def __init__(self) -> None:
        self._complete = _Term(-1, -1)  # of the newest complete list
        self._arriving: _Term | None = None
        self._parts = self._next = 0
        self._named: dict[TopicPartition, TopicId | None] = {}

    def add(
        self, header: ControlHeader, request: LeaderAndIsrRequest | UpdateMetadataRequest
    ) -> ListedPartitions | None:
        """Add a part and return what is named; None for a copy that came late."""
        term = _Term(header.controller_epoch, header.broker_epoch)
        if header.sequence == 0 and term <= self._complete:
            return None
        named = _named(request)
        if request.part == 0:
            self._arriving, self._parts, self._next = term, request.parts, 0
            self._named = {}
        is_next = request.part in (self._next, self._next - 1)
        if term != self._arriving or request.parts != self._parts or not is_next:
            self._forget()
            return ListedPartitions(named, is_everything=False)
        self._next = request.part + 1
        self._named.update(named)
        if self._next < self._parts:
            return ListedPartitions(named, is_everything=False)
        self._complete = term
        everything = self._named
        self._forget()
        return ListedPartitions(everything, is_everything=True)

    def _forget(self) -> None:
        self._arriving = None
        self._named = {}


def _named(
    request: LeaderAndIsrRequest | UpdateMetadataRequest,
) -> dict[TopicPartition, TopicId | None]:
    """Return what a part names; what is being deleted is not there any more."""
    return {
        TopicPartition(topic.topic_name, state.partition_index): topic.topic_id
        for topic in request.topic_states
        for state in topic.partition_states
        if state.leader != LEADER_DURING_DELETE
    }
