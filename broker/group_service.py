"""The group coordinator in a broker: its actor, and what tells it of leaderships and topics."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from pykka import ActorDeadError, ActorRef

from regent.actors.coordinator import (
    CoordinatorActorService,
    LeadershipsChanged,
    PartitionsDeleted,
    PartitionsKnown,
)
from regent.actors.group_coordinator import GroupCoordinatorActor
from regent.actors.runtime import launch, stop_actor
from regent.actors.scheduler import Scheduler
from regent.broker.internal_topics import deleted_partitions, is_news_of
from regent.broker.machine_settings import filled
from regent.config.settings import Settings
from regent.core.coordinator.group.group_metadata_manager import GroupConfig, GroupLogSettings
from regent.core.coordinator.partition_for import CoordinatorPartitions
from regent.core.protocol.coordinator import CoordinatorService
from regent.core.replication.leader_partitions import Leadership
from regent.core.replication.metadata_cache import MetadataCache
from regent.core.replication.replica_manager import ReplicaManager
from regent.core.topic_validation import GROUP_METADATA_TOPIC

_STOP_TIMEOUT_S = 2.0


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
            filled(GroupConfig, self._settings),
            filled(GroupLogSettings, self._settings),
            self.partitions,
            expiry_interval_ms=expiry_interval_ms(self._settings),
        )
        self.groups, self.loads = actor.manager, actor.loads
        self._actor = launch(actor)
        replica_manager.observe_leaderships(self._on_leaderships)

    def stop(self) -> None:
        """Stop the actor, which refuses the requests that wait. Idempotent."""
        if self._actor is not None:
            stop_actor(self._actor, _STOP_TIMEOUT_S)

    @property
    def coordinator(self) -> CoordinatorService:
        """Takes the requests of clients."""
        assert self._actor is not None
        return CoordinatorActorService(self._actor)

    def on_metadata_changed(self) -> None:
        """Tell the coordinator which partitions are gone. Always on the same thread."""
        before, self._seen = self._seen, self._cache.snapshot
        gone = tuple(deleted_partitions(before, self._seen))
        if gone:
            self._tell(PartitionsDeleted(gone))
        if is_news_of(self.partitions.topic, before, self._seen):
            self._tell(PartitionsKnown())

    def _on_leaderships(self, leaderships: Sequence[Leadership]) -> None:
        self._tell(LeadershipsChanged(leaderships))

    def _tell(self, message: LeadershipsChanged | PartitionsKnown | PartitionsDeleted) -> None:
        if self._actor is not None:
            with suppress(ActorDeadError):
                self._actor.tell(message)


def expiry_interval_ms(settings: Settings) -> int:
    """Return how often expired positions are looked for."""
    return settings.groups.offsets_retention_check_interval_ms
