"""The group coordinator in a broker: its actor, and what tells it of leaderships and topics."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from pykka import ActorDeadError, ActorRef

from regent.actors.group_coordinator import (
    GroupCoordinatorActor,
    GroupCoordinatorService,
    LeadershipsChanged,
    PartitionsDeleted,
)
from regent.actors.runtime import launch, stop_actor
from regent.actors.scheduler import Scheduler
from regent.broker.machine_settings import group_config, group_log_settings
from regent.config.settings import Settings
from regent.core.admin.admin_requests import TopicService
from regent.core.admin.topic_validation import GROUP_METADATA_TOPIC
from regent.core.coordinator.partition_for import CoordinatorPartitions
from regent.core.model import TopicPartition
from regent.core.protocol.groups import GroupService
from regent.core.protocol.topics import (
    ConfigEntry,
    CreatableTopic,
    CreateTopicsRequest,
    TopicOutcome,
)
from regent.core.replication.leader_partitions import Leadership
from regent.core.replication.log_reads import differ
from regent.core.replication.metadata_cache import MetadataCache, MetadataSnapshot
from regent.core.replication.replica_manager import ReplicaManager

_STOP_TIMEOUT_S = 2.0
_CREATION_TIMEOUT_MS = 30_000


class BrokerGroupService:
    """Runs the group coordinator from ``start`` to ``stop``."""

    def __init__(self, settings: Settings, cache: MetadataCache) -> None:
        config = settings.groups
        self.partitions = CoordinatorPartitions(
            GROUP_METADATA_TOPIC, cache, config.offsets_topic_num_partitions
        )
        self._settings = settings
        self._cache = cache
        self._seen = cache.snapshot
        self._actor: ActorRef[GroupCoordinatorActor] | None = None

    def start(self, replica_manager: ReplicaManager, scheduler: Scheduler) -> None:
        """Start the actor. Call it before the first control request is handled."""
        actor = GroupCoordinatorActor(
            replica_manager,
            scheduler,
            group_config(self._settings),
            group_log_settings(self._settings),
            self.partitions.of,
            expiry_interval_ms=expiry_interval_ms(self._settings),
        )
        self.groups = actor.manager
        self._actor = launch(actor)
        replica_manager.observe_leaderships(self._on_leaderships)

    def stop(self) -> None:
        """Stop the actor, which refuses the requests that wait. Idempotent."""
        if self._actor is not None:
            stop_actor(self._actor, _STOP_TIMEOUT_S)

    @property
    def coordinator(self) -> GroupService:
        """Takes the requests of clients."""
        assert self._actor is not None
        return GroupCoordinatorService(self._actor)

    def on_metadata_changed(self) -> None:
        """Tell the coordinator which partitions are gone. Always on the same thread."""
        before, self._seen = self._seen, self._cache.snapshot
        gone = tuple(_deleted(before, self._seen))
        if gone:
            self._tell(PartitionsDeleted(gone))

    def _on_leaderships(self, leaderships: Sequence[Leadership]) -> None:
        self._tell(LeadershipsChanged(leaderships))

    def _tell(self, message: LeadershipsChanged | PartitionsDeleted) -> None:
        if self._actor is not None:
            with suppress(ActorDeadError):
                self._actor.tell(message)


def expiry_interval_ms(settings: Settings) -> int:
    """Return how often expired positions are looked for."""
    return settings.groups.offsets_retention_check_interval_ms


def _deleted(before: MetadataSnapshot, now: MetadataSnapshot) -> Iterator[TopicPartition]:
    """Yield the partitions of topics that were deleted, also if others have their names now."""
    if before.topic_ids is now.topic_ids:
        return
    for topic, topic_id in before.topic_ids.items():
        if topic not in now.topic_ids or differ(topic_id, now.topic_ids[topic]):
            for number in range(before.partition_count(topic)):
                yield TopicPartition(topic, number)


class InternalTopics:
    """Creates internal topics when they are first needed, with the settings of this broker.

    Used on one thread.
    """

    def __init__(self, service: TopicService, settings: Settings) -> None:
        self._service = service
        self._settings = settings
        self._being_created: set[str] = set()

    def create(self, topic: str) -> None:
        """Ask for the topic, unless a request for it is in flight."""
        if topic not in self._being_created:
            self._being_created.add(topic)
            request = CreateTopicsRequest((self._creatable(topic),), _CREATION_TIMEOUT_MS)
            self._service.ask(request, self._on_created(topic))

    def _on_created(self, topic: str) -> Callable[[Sequence[TopicOutcome]], None]:
        def note(outcomes: Sequence[TopicOutcome]) -> None:
            self._being_created.discard(topic)

        return note

    def _creatable(self, topic: str) -> CreatableTopic:
        groups = self._settings.groups
        assert topic == GROUP_METADATA_TOPIC
        return CreatableTopic(
            topic,
            groups.offsets_topic_num_partitions,
            groups.offsets_topic_replication_factor,
            config=(
                ConfigEntry("cleanup.policy", "compact"),
                ConfigEntry("compression.type", "producer"),
                ConfigEntry("segment.bytes", str(groups.offsets_topic_segment_bytes)),
            ),
        )
