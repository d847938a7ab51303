"""What clients ask of topics, and what they are told: CreateTopics, CreatePartitions, DeleteTopics.

A request is decided at once and answered later: when this broker's metadata cache shows what was
asked for, or when the client's patience is over. Mirrors ``DelayedCreatePartitions`` and
``DelayedDeleteTopics``: who is told REQUEST_TIMED_OUT gets what he wanted all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from core.errors import BadDataError, Errors
from core.model import BrokerId, ReplicaAssignment
from core.ports import TopicAssignment
from core.protocol.control import TopicId
from core.replication.metadata_cache import MetadataSnapshot

UNSET = -1
"""A number of partitions or replicas that is left to the broker."""


@dataclass(frozen=True, slots=True)
class CreatableTopic:
    """A topic somebody wants; either numbers or an assignment by partition id."""

    topic: str
    partitions: int = UNSET
    replication_factor: int = UNSET
    assignment: Mapping[int, tuple[BrokerId, ...]] | None = None
    config: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GrowingTopic:
    """A topic that shall have ``total`` partitions; the new ones are placed unless assigned."""

    topic: str
    total: int
    assignments: Sequence[tuple[BrokerId, ...]] | None = None


class TopicOutcome(NamedTuple):
    """What became of one topic of a request."""

    topic: str
    error_code: Errors
    message: str = ""


class NewTopic(NamedTuple):
    """A topic to create."""

    topic_id: TopicId
    partitions: Mapping[int, ReplicaAssignment]
    config: Mapping[str, str]


class TopicStore(Protocol):
    """What topics there are, and the writes that change them. See ``zk.topic_store``."""

    def read_topic_names(self) -> Collection[str]:
        """List the topics."""
        ...

    def read_topics_being_deleted(self) -> Collection[str]:
        """List the topics that somebody wants to be deleted."""
        ...

    def read_topics(self, topics: Collection[str]) -> Mapping[str, TopicAssignment | BadDataError]:
        """Read topics; absent ones are missing."""
        ...

    def create_topics(self, topics: Mapping[str, NewTopic]) -> Mapping[str, Errors]:
        """Create topics; TOPIC_ALREADY_EXISTS for one that does."""
        ...

    def add_partitions(
        self, added: Mapping[str, Mapping[int, ReplicaAssignment]]
    ) -> Mapping[str, Errors]:
        """Add partitions, on condition that a topic has not changed since it was read."""
        ...

    def mark_for_deletion(self, topics: Collection[str]) -> Mapping[str, Errors]:
        """Write the wishes to delete topics; one that is there already is fine."""
        ...


class PendingAnswer:
    """The answer to one request, as far as it is known.

    ``is_done`` says of a topic whether a metadata snapshot shows what was asked for. Poll after
    every change of the metadata cache, and when ``deadline_ms`` has come.
    """

    def __init__(
        self,
        decided: Sequence[TopicOutcome],
        is_done: Callable[[MetadataSnapshot, str], bool],
        deadline_ms: int,
        *,
        waits: bool = True,
    ) -> None:
        self.deadline_ms = deadline_ms
        self._outcomes = list(decided)
        self._is_done = is_done
        self._waits = waits

    def poll(self, snapshot: MetadataSnapshot, now_ms: int) -> list[TopicOutcome] | None:
        """Return the answer, in the order of the request; None while it may still get better."""
        late = [
            outcome.topic
            for outcome in self._outcomes
            if self._waits
            and outcome.error_code is Errors.NONE
            and not self._is_done(snapshot, outcome.topic)
        ]
        if late and now_ms < self.deadline_ms:
            return None
        return [
            TopicOutcome(outcome.topic, Errors.REQUEST_TIMED_OUT, "it goes on nevertheless")
            if outcome.topic in late
            else outcome
            for outcome in self._outcomes
        ]
