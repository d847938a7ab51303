"""The group coordinator of one broker, with real replicas; the test is the controller."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import TypeVar

from pykka import ActorRef

from regent.actors.coordinator import (
    CoordinatorActorService,
    LeadershipsChanged,
    PartitionsKnown,
)
from regent.actors.group_coordinator import GroupCoordinatorActor
from regent.actors.runtime import launch, stop_actor
from regent.actors.scheduler import Scheduler
from regent.core.coordinator.group.group_metadata_manager import GroupConfig, GroupLogSettings
from regent.core.coordinator.partition_for import CoordinatorPartitions
from regent.core.errors import Errors
from regent.core.model import BrokerId, TopicPartition
from regent.core.protocol.coordinator import Question
from regent.core.protocol.groups import FetchOffsets, FetchOffsetsResult, GroupRequest
from regent.core.replication.metadata_cache import MetadataCache
from regent.core.replication.replica_manager import ReplicaManager
from regent.core.topic_validation import GROUP_METADATA_TOPIC
from regent.testing.waits import eventually
from tests.support.led_partitions import lead
from tests.support.memory_logs import MemoryLogs
from tests.support.stage import TIMEOUT_S
from tests.support.world import NO_DELAY, live_broker

A = TypeVar("A")

BROKER = 1
ORDERS_0 = TopicPartition("orders", 0)
OFFSETS_0 = TopicPartition(GROUP_METADATA_TOPIC, 0)


class LedGroups:
    """Leads the only partition of ``__consumer_offsets``, and the topic ``orders``."""

    def __init__(
        self,
        undo: ExitStack,
        config: GroupConfig = NO_DELAY,
        log_settings: GroupLogSettings | None = None,
        isr: tuple[BrokerId, ...] = (BROKER,),
        manager: Callable[[MemoryLogs, MetadataCache], ReplicaManager] | None = None,
        expiry_interval_ms: int = 86_400_000,
    ) -> None:
        self.logs = MemoryLogs()
        self.cache = MetadataCache()
        self.manager = (manager or _manager)(self.logs, self.cache)
        self.partitions = CoordinatorPartitions(GROUP_METADATA_TOPIC, self.cache, 1)
        self._isr = isr
        scheduler = Scheduler("scheduler")
        undo.callback(scheduler.shutdown)
        self.actor: ActorRef[GroupCoordinatorActor] = launch(
            GroupCoordinatorActor(
                self.manager,
                scheduler,
                config,
                log_settings or GroupLogSettings(),
                self.partitions,
                expiry_interval_ms=expiry_interval_ms,
            )
        )
        undo.callback(stop_actor, self.actor, TIMEOUT_S)
        self.service = CoordinatorActorService(self.actor)
        self.manager.observe_leaderships(lambda led: self.actor.tell(LeadershipsChanged(led)))
        self.lead(0)

    def lead(self, leader_epoch: int, leader: BrokerId = BROKER) -> None:
        """Let a broker lead; wait until this one has read its partition."""
        lead(
            self.manager,
            live_broker(BROKER, port=9092),
            {GROUP_METADATA_TOPIC: 1, "orders": 2},
            self._isr,
            leader=leader,
            leader_epoch=leader_epoch,
        )
        self.actor.tell(PartitionsKnown())
        if leader == BROKER:
            loading = Errors.COORDINATOR_LOAD_IN_PROGRESS
            eventually(
                lambda: self.positions("nobody").error_code is not loading,
                "the positions are read",
                TIMEOUT_S,
            )

    def send(self, request: GroupRequest[A]) -> queue.Queue[A]:
        """Send a request; its answer comes into the queue."""
        answers: queue.Queue[A] = queue.Queue()
        self.service.ask([Question(request, answers.put)])
        return answers

    def ask(self, request: GroupRequest[A]) -> A:
        """Return the answer to a request."""
        return self.send(request).get(timeout=TIMEOUT_S)

    def positions(self, group_id: str) -> FetchOffsetsResult:
        """Return all positions of a group."""
        return self.ask(FetchOffsets(group_id, None))


def _manager(logs: MemoryLogs, cache: MetadataCache) -> ReplicaManager:
    return ReplicaManager(BROKER, logs, cache, lock=threading.RLock())
