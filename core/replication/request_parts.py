"""Collects a complete list of partitions that several requests carry because of its size."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
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


class ListedTopic(NamedTuple):
    """The listed partitions of a topic."""

    topic_id: TopicId | None
    partitions: set[int]


@dataclass(frozen=True, slots=True)
class ListedPartitions:
    """Partitions by topic, with the topic's id: those of one part, or of the complete list."""

    topics: Mapping[str, ListedTopic]
    is_everything: bool

    def __contains__(self, topic_partition: TopicPartition) -> bool:
        """Whether a partition is listed."""
        return topic_partition.partition in self.partitions_of(topic_partition.topic)

    def partitions_of(self, topic: str) -> AbstractSet[int]:
        """Return the listed partitions of a topic."""
        listed = self.topics.get(topic)
        return frozenset() if listed is None else listed.partitions


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
        self._named: dict[str, ListedTopic] = {}

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
        for topic, listed in named.items():
            _add(self._named, topic, listed)
        if self._next < self._parts:
            return ListedPartitions(named, is_everything=False)
        self._complete = term
        everything = self._named
        self._forget()
        return ListedPartitions(everything, is_everything=True)

    def _forget(self) -> None:
        self._arriving = None
        self._named = {}


def _named(request: LeaderAndIsrRequest | UpdateMetadataRequest) -> dict[str, ListedTopic]:
    """Return the partitions of a part, without those being deleted."""
    named: dict[str, ListedTopic] = {}
    for topic in request.topic_states:
        states = topic.partition_states
        listed = {s.partition_index for s in states if s.leader != LEADER_DURING_DELETE}
        _add(named, topic.topic_name, ListedTopic(topic.topic_id, listed))
    return named


def _add(named: dict[str, ListedTopic], topic: str, listed: ListedTopic) -> None:
    earlier = named.get(topic)
    if earlier is not None:
        listed = ListedTopic(listed.topic_id, earlier.partitions | listed.partitions)
    named[topic] = listed
