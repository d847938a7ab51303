"""Requests about topics: from Kafka clients, the command line and jobs to the active controller.

A request whose ``timeout_ms`` is positive may be sent to any broker: it is answered when the
cluster has carried it out, or when the time is over. A request whose ``timeout_ms`` is 0 must be
sent to the active controller's broker: it is answered when it is decided and written.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple, TypeAlias

from regent.core.errors import Errors
from regent.core.model import BrokerId
from regent.core.protocol.control import TopicId

UNSET: Final = -1
"""A number of partitions or replicas that the controller's broker chooses, or that is unknown."""

MAX_NEW_PARTITIONS: Final = 10_000
"""How many partitions one request of a client may create: a mistake must not keep a cluster busy
for minutes. Kafka 4 has the same limit (``ReplicationControlManager.MAX_PARTITIONS_PER_BATCH``)."""


@dataclass(frozen=True, slots=True)
class PlacementOptions:
    """How new partitions are placed; see ``core.protocol.placement.PlaceTopicsRequest``.

    An empty ``strategy`` is the one of the active controller's broker.
    """

    strategy: str = ""
    start_index: str = "0"
    index: str = "per-topic"
    seed: int = 0
    use_service: bool = True


class AssignedPartition(NamedTuple):
    """The replicas of a new partition, chosen by the sender."""

    partition: int
    replicas: tuple[BrokerId, ...]


class ConfigEntry(NamedTuple):
    """A setting of a new topic."""

    name: str
    value: str | None


class CreatableTopic(NamedTuple):
    """A topic to create, with either numbers of partitions and replicas, or an assignment.

    A sender that may have to repeat the request chooses the ``topic_id``: a topic that exists with
    that id was created by an earlier attempt.
    """

    topic: str
    partitions: int = UNSET
    replication_factor: int = UNSET
    assignment: tuple[AssignedPartition, ...] | None = None
    config: tuple[ConfigEntry, ...] = ()
    topic_id: TopicId | None = None


class GrowingTopic(NamedTuple):
    """A topic to grow to ``total`` partitions; the new ones are placed unless assigned."""

    topic: str
    total: int
    assignments: tuple[tuple[BrokerId, ...], ...] | None = None


class Requester(NamedTuple):
    """The client whose quota of controller mutations counts (KIP-599).

    ``is_strict``: what is beyond the quota is refused; otherwise it is done, and the client waits.
    """

    user: str
    client_id: str
    is_strict: bool


@dataclass(frozen=True, slots=True)
class CreateTopicsRequest:
    """Create topics; ``validate_only``: only check whether that is possible (Kafka api 19)."""

    topics: tuple[CreatableTopic, ...]
    timeout_ms: int
    validate_only: bool = False
    placement: PlacementOptions | None = None
    max_partitions: int = MAX_NEW_PARTITIONS
    requester: Requester | None = None


@dataclass(frozen=True, slots=True)
class CreatePartitionsRequest:
    """Add partitions; ``validate_only``: only check whether that is possible (Kafka api 37)."""

    topics: tuple[GrowingTopic, ...]
    timeout_ms: int
    validate_only: bool = False
    placement: PlacementOptions | None = None
    max_partitions: int = MAX_NEW_PARTITIONS
    requester: Requester | None = None


@dataclass(frozen=True, slots=True)
class DeleteTopicsRequest:
    """Delete topics by name or by id (Kafka api 20)."""

    topics: tuple[str, ...]
    timeout_ms: int
    topic_ids: tuple[TopicId, ...] = ()
    requester: Requester | None = None


class AlterOperation(IntEnum):
    """How a setting is changed (KIP-339)."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class ConfigAlteration(NamedTuple):
    """A change of one setting; ``operation`` is an ``AlterOperation``, or one we do not know."""

    name: str
    operation: int
    value: str | None = None


class ConfiguredTopic(NamedTuple):
    """A topic to configure; ``replaces``: all other overrides are removed (Kafka api 33)."""

    topic: str
    alterations: tuple[ConfigAlteration, ...]
    replaces: bool = False


@dataclass(frozen=True, slots=True)
class AlterTopicConfigsRequest:
    """Change overrides; ``validate_only``: only check whether that is possible (Kafka api 44)."""

    topics: tuple[ConfiguredTopic, ...]
    timeout_ms: int
    validate_only: bool = False


class TopicOutcome(NamedTuple):
    """The outcome for one topic of a request; ``partitions``: how many it has now.

    ``message`` is a sentence that names the topic; with NONE it is empty, or says that there was
    nothing to do. ``topic_id`` is set for a topic that is created or that was named by its id; a
    topic with an unknown id has the id as its name. ``replication_factor`` is set for a new topic.
    """

    topic: str
    error_code: Errors
    message: str = ""
    partitions: int = UNSET
    topic_id: TopicId | None = None
    replication_factor: int = UNSET


@dataclass(frozen=True, slots=True)
class TopicsResponse:
    """An outcome for each topic, named once, in the order of the request.

    ``placement_note`` says why the placement service did not place, if it did not. After
    ``validate_only`` it is ``TopicPlacer.warming``. ``throttle_time_ms``: how long the client must
    wait because of its quota.
    """

    outcomes: tuple[TopicOutcome, ...]
    placement_note: str = ""
    throttle_time_ms: int = 0

    @property
    def error_code(self) -> Errors:
        """NOT_CONTROLLER if the broker that was asked is not the active controller; else NONE."""
        is_elsewhere = any(o.error_code is Errors.NOT_CONTROLLER for o in self.outcomes)
        return Errors.NOT_CONTROLLER if is_elsewhere else Errors.NONE


TopicsRequest: TypeAlias = (
    CreateTopicsRequest | CreatePartitionsRequest | DeleteTopicsRequest | AlterTopicConfigsRequest
)
