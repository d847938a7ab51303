"""What clients ask of topics: of any broker, which forwards it to the controller's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from regent.core.errors import Errors
from regent.core.model import BrokerId
from regent.core.protocol.control import TopicId

UNSET = -1
"""A number of partitions or replicas that is left to the controller's broker, or not known."""


class AssignedPartition(NamedTuple):
    """The replicas somebody wants a new partition to have."""

    partition: int
    replicas: tuple[BrokerId, ...]


class ConfigEntry(NamedTuple):
    """A setting somebody wants a new topic to have."""

    name: str
    value: str | None


class CreatableTopic(NamedTuple):
    """A topic somebody wants; either numbers or an assignment.

    Whoever may have to ask again says which ``topic_id`` the topic shall have: a topic that exists
    by that id was created by an earlier attempt.
    """

    topic: str
    partitions: int = UNSET
    replication_factor: int = UNSET
    assignment: tuple[AssignedPartition, ...] | None = None
    config: tuple[ConfigEntry, ...] = ()
    topic_id: TopicId | None = None


class GrowingTopic(NamedTuple):
    """A topic that shall have ``total`` partitions; the new ones are placed unless assigned."""

    topic: str
    total: int
    assignments: tuple[tuple[BrokerId, ...], ...] | None = None


@dataclass(frozen=True, slots=True)
class CreateTopicsRequest:
    """Create topics, or only say whether they could be (Kafka api 19)."""

    topics: tuple[CreatableTopic, ...]
    timeout_ms: int
    validate_only: bool = False


@dataclass(frozen=True, slots=True)
class CreatePartitionsRequest:
    """Give topics more partitions, or only say whether that could be (Kafka api 37)."""

    topics: tuple[GrowingTopic, ...]
    timeout_ms: int
    validate_only: bool = False


@dataclass(frozen=True, slots=True)
class DeleteTopicsRequest:
    """Delete topics by name or by id (Kafka api 20)."""

    topics: tuple[str, ...]
    timeout_ms: int
    topic_ids: tuple[TopicId, ...] = ()


class TopicOutcome(NamedTuple):
    """What became of one topic of a request; ``partitions``: how many it shall have now."""

    topic: str
    error_code: Errors
    message: str = ""
    partitions: int = UNSET


@dataclass(frozen=True, slots=True)
class TopicsResponse:
    """An outcome for each topic, named once, in the order of the request.

    NONE means that it is decided and written; how far the cluster is with it is another matter.
    """

    outcomes: tuple[TopicOutcome, ...]


TopicsRequest: TypeAlias = CreateTopicsRequest | CreatePartitionsRequest | DeleteTopicsRequest
