"""The group coordinator of a broker as an actor: its clock, its timers and its log.

Mirrors ``kafka.coordinator.group.GroupCoordinatorAdapter``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final
from uuid import uuid4

from regent.actors.coordinator import CoordinatorActor, PartitionsKnown, TimersDue
from regent.actors.group_coordinator_log import GroupCoordinatorLog
from regent.actors.scheduler import RepeatingTimer, Scheduler, monotonic_ms
from regent.core.coordinator.group.group_coordinator import GroupCoordinator
from regent.core.coordinator.group.group_metadata_manager import (
    Clock,
    GroupConfig,
    GroupLogSettings,
    GroupMetadataManager,
)
from regent.core.coordinator.partition_for import CoordinatorPartitions
from regent.core.model import TopicPartition
from regent.core.replication.replica_manager import ReplicaManager

_EXPIRED_AT_A_TIME: Final = 100
"""How many groups are looked at for expired positions before other messages are handled."""


@dataclass(frozen=True, slots=True)
class ExpireOffsets:
    """Look for expired positions; ``first``: the number of the first group to look at."""

    first: int = 0


class GroupCoordinatorActor(CoordinatorActor):
    """Handles the requests of groups, one after the other."""

    def __init__(
        self,
        replica_manager: ReplicaManager,
        scheduler: Scheduler,
        config: GroupConfig,
        log_settings: GroupLogSettings,
        partitions: CoordinatorPartitions,
        *,
        expiry_interval_ms: int,
    ) -> None:
        log = GroupCoordinatorLog(replica_manager, log_settings, self.tell_self)
        name = f"group-coordinator-{replica_manager.broker_id}"
        super().__init__(name, partitions, log, scheduler)
        self._coordinator = GroupCoordinator(
            config,
            log,
            Clock(monotonic_ms, lambda: time.time_ns() // 1_000_000),
            partition_of=partitions.of,
            new_member_id=lambda prefix: f"{prefix}-{uuid4()}",
        )
        self._expiry = RepeatingTimer(
            scheduler, expiry_interval_ms, lambda: self.tell_self(ExpireOffsets())
        )

    @property
    def manager(self) -> GroupMetadataManager:
        """The groups; other threads may only call what is thread-safe."""
        return self._coordinator.manager

    @staticmethod
    def collapse_key(message: Any) -> Hashable | None:
        """One queued message is enough for several reasons to look."""
        return message if isinstance(message, TimersDue | PartitionsKnown | ExpireOffsets) else None

    def on_start(self) -> None:
        """Answer requests from now on."""
        self._coordinator.start()

    def on_stop(self) -> None:
        """Refuse the requests that wait."""
        self._expiry.cancel()
        self._coordinator.stop()
        super().on_stop()

    def answer(self, request: Any, respond: Callable[[Any], None]) -> None:
        """See ``CoordinatorActor.answer``."""
        self._coordinator.handle(request, respond)

    def on_elected(self, partition: int, epoch: int, term: int) -> None:
        """See ``CoordinatorActor.on_elected``."""
        self._coordinator.on_elected(partition, epoch, term)

    def on_resigned(self, partition: int, epoch: int | None) -> None:
        """See ``CoordinatorActor.on_resigned``."""
        self._coordinator.on_resigned(partition, epoch)

    def on_loaded(self, partition: int, term: int, content: Any) -> None:
        """See ``CoordinatorActor.on_loaded``."""
        self._coordinator.on_loaded(partition, term, content)

    def on_partitions_deleted(self, partitions: Collection[TopicPartition]) -> None:
        """See ``CoordinatorActor.on_partitions_deleted``."""
        self._coordinator.manager.on_partitions_deleted(partitions)

    @property
    def next_timer_ms(self) -> int | None:
        """See ``CoordinatorActor.next_timer_ms``."""
        return self._coordinator.next_timer_ms

    def run_timers(self) -> None:
        """See ``CoordinatorActor.run_timers``."""
        self._coordinator.run_timers()

    def handle_own(self, message: ExpireOffsets) -> None:
        """Expire the positions of some groups, and of the others after what is queued."""
        manager, first = self._coordinator.manager, message.first
        groups = list(islice(manager.groups.values(), first, first + _EXPIRED_AT_A_TIME))
        manager.expire(groups)
        if len(groups) == _EXPIRED_AT_A_TIME:
            self.tell_self(ExpireOffsets(first + _EXPIRED_AT_A_TIME))
