"""Collects a complete list of partitions that several requests carry because of its size."""

from __future__ import annotations

from typing import NamedTuple

from regent.core.model import LEADER_DURING_DELETE, TopicPartition
from regent.core.protocol.control import (
    ControlHeader,
    LeaderAndIsrRequest,
    TopicId,
    UpdateMetadataRequest,
)


class _ListSource(NamedTuple):
    controller_epoch: int
    broker_epoch: int


class ListedPartitions(NamedTuple):
    """Partitions with their topic ids: those of one part, or of the complete list."""

    partitions: dict[TopicPartition, TopicId | None]
    is_everything: bool


class RequestParts:
    """Collects the partitions in the parts of a complete LeaderAndIsr or UpdateMetadata.

    Partitions that are not listed may be removed only after every part has come, in sequence and
    from one term. A part may be repeated directly after itself. After any other sequence the list
    is incomplete, and nothing is removed until the next complete list.

    Without a ``sequence`` late copies cannot be recognised, so only the first complete list of a
    term counts: a second one may be a late copy that lacks partitions created since.
    """

    def __init__(self) -> None:
        self._complete = _ListSource(-1, -1)  # of the newest complete list
        self._arriving: _ListSource | None = None
        self._parts = self._next = 0
        self._named: dict[TopicPartition, TopicId | None] = {}

    def add(
        self, header: ControlHeader, request: LeaderAndIsrRequest | UpdateMetadataRequest
    ) -> ListedPartitions | None:
        """Add a part and return the listed partitions; None for a late copy."""
        term = _ListSource(header.controller_epoch, header.broker_epoch)
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
    """Return the partitions of a part, without those being deleted."""
    return {
        TopicPartition(topic.topic_name, state.partition_index): topic.topic_id
        for topic in request.topic_states
        for state in topic.partition_states
        if state.leader != LEADER_DURING_DELETE
    }
