"""The group coordinator of a broker as an actor: its clock, its timers and its log.

Mirrors ``kafka.coordinator.group.GroupCoordinatorAdapter``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, TypeAlias, TypeVar
from uuid import uuid4

from pykka import ActorDeadError, ActorRef

from regent.actors.group_coordinator_log import (
    Appended,
    Flush,
    GroupCoordinatorLog,
    Loaded,
)
from regent.actors.inbox import InboxFullError, MessageWithReply, Overflow, Reply
from regent.actors.runtime import RegentActor
from regent.actors.scheduler import Scheduler
from regent.actors.timer import OneShotTimer, RepeatingTimer, monotonic_ms
from regent.core.admin.topic_validation import GROUP_METADATA_TOPIC
from regent.core.coordinator.group.group_coordinator import GroupCoordinator
from regent.core.coordinator.group.group_metadata_manager import (
    Clock,
    GroupConfig,
    GroupLogSettings,
    GroupMetadataManager,
)
from regent.core.errors import Errors
from regent.core.model import TopicPartition
from regent.core.protocol.groups import GroupRequest
from regent.core.replication.leader_partitions import Leadership
from regent.core.replication.replica_manager import ReplicaManager

A = TypeVar("A")

_EXPIRED_AT_A_TIME: Final = 100
"""How many groups are looked at for expired positions before other messages are handled."""


@dataclass(frozen=True, slots=True)
class LeadershipsChanged:
    """Leaderships of internal topics have changed."""

    leaderships: Sequence[Leadership]


@dataclass(frozen=True, slots=True)
class PartitionsDeleted:
    """Partitions do not exist any more."""

    partitions: Collection[TopicPartition]


@dataclass(frozen=True, slots=True)
class TimersDue:
    """A timer of the coordinator is due."""


@dataclass(frozen=True, slots=True)
class ExpireOffsets:
    """Look for expired positions; ``first``: the number of the first group to look at."""

    first: int = 0


_Message: TypeAlias = (
    LeadershipsChanged
    | PartitionsDeleted
    | TimersDue
    | ExpireOffsets
    | Flush
    | Appended
    | Loaded
    | GroupRequest[Any]
)
_NEVER_REFUSED = (LeadershipsChanged, TimersDue, Flush, Appended, Loaded)


class GroupCoordinatorActor(RegentActor):
    """Handles the requests of groups, one after the other."""

    overflow = Overflow(lambda message: isinstance(message, _NEVER_REFUSED))

    def __init__(
        self,
        replica_manager: ReplicaManager,
        scheduler: Scheduler,
        config: GroupConfig,
        log_settings: GroupLogSettings,
        partition_of: Callable[[str], int],
        *,
        expiry_interval_ms: int,
    ) -> None:
        super().__init__(f"group-coordinator-{replica_manager.broker_id}")
        self._log = GroupCoordinatorLog(replica_manager, log_settings, self._tell)
        self._coordinator = GroupCoordinator(
            config,
            self._log,
            Clock(monotonic_ms, lambda: time.time_ns() // 1_000_000),
            partition_of=partition_of,
            new_member_id=lambda prefix: f"{prefix}-{uuid4()}",
        )
        self._alarm = OneShotTimer(scheduler, lambda: self._tell(TimersDue()))
        self._alarm_ms: int | None = None
        self._expiry = RepeatingTimer(
            scheduler, expiry_interval_ms, lambda: self._tell(ExpireOffsets())
        )

    @property
    def manager(self) -> GroupMetadataManager:
        """The groups; other threads may only call what is thread-safe."""
        return self._coordinator.manager

    @staticmethod
    def collapse_key(message: _Message) -> Hashable | None:
        """One queued message is enough for several due timers."""
        return message if isinstance(message, TimersDue | ExpireOffsets) else None

    def on_start(self) -> None:
        """Answer requests from now on."""
        self._coordinator.start()

    def on_stop(self) -> None:
        """Refuse the requests that wait."""
        self._expiry.cancel()
        self._alarm.cancel()
        self._coordinator.stop()
        self._log.stop()

    def handle(  # noqa: C901  one match over every message
        self, message: _Message, reply: Reply | None
    ) -> None:
        """Handle one message."""
        match message:
            case GroupRequest():
                if reply is not None:
                    self._coordinator.handle(message, reply.set)
            case Flush():
                self._log.flush()
            case Appended(error_code, base_offset, responds):
                for position, respond in responds:
                    respond(error_code, base_offset + position)
            case LeadershipsChanged(leaderships):
                for leadership in leaderships:
                    self._on_leadership(leadership)
            case Loaded(partition, term, groups):
                self._coordinator.on_loaded(partition, term, groups)
            case PartitionsDeleted(partitions):
                self._coordinator.manager.on_partitions_deleted(partitions)
            case TimersDue():
                self._alarm_ms = None
                self._coordinator.run_timers()
                self._log.expire()
            case ExpireOffsets(first):
                self._expire(first)
        self._set_alarm()

    def _on_leadership(self, leadership: Leadership) -> None:
        (topic, partition), term, epoch = leadership
        if topic != GROUP_METADATA_TOPIC:
            return
        if term is None or epoch is None:
            self._coordinator.on_resigned(partition, epoch)
        else:
            self._coordinator.manager.on_elected(partition, epoch, term)

    def _expire(self, first: int) -> None:
        """Expire the positions of some groups, and of the others after what is queued."""
        manager = self._coordinator.manager
        groups = list(islice(manager.groups.values(), first, first + _EXPIRED_AT_A_TIME))
        manager.expire(groups)
        if len(groups) == _EXPIRED_AT_A_TIME:
            self._tell(ExpireOffsets(first + _EXPIRED_AT_A_TIME))

    def _set_alarm(self) -> None:
        for due_ms in (self._coordinator.next_timer_ms, self._log.next_deadline_ms):
            if due_ms is not None and (self._alarm_ms is None or due_ms < self._alarm_ms):
                self._alarm_ms = due_ms
                self._alarm.set(max(due_ms - monotonic_ms(), 0))

    def _tell(self, message: _Message) -> None:
        with suppress(ActorDeadError):
            self.actor_ref.tell(message)


class GroupCoordinatorService:
    """Implements ``core.protocol.groups.GroupService`` with an actor."""

    def __init__(self, actor: ActorRef[GroupCoordinatorActor]) -> None:
        self._actor = actor

    def ask(self, request: GroupRequest[A], respond: Callable[[A], None]) -> None:
        """See ``GroupService.ask``."""

        def deliver(answer: Any) -> None:
            is_refused = isinstance(answer, Exception)
            is_gone = isinstance(answer, ActorDeadError | InboxFullError)
            error = Errors.COORDINATOR_NOT_AVAILABLE if is_gone else Errors.UNKNOWN_SERVER_ERROR
            respond(request.refused(error) if is_refused else answer)

        try:
            self._actor.tell(MessageWithReply(request, Reply.of(deliver)))
        except (ActorDeadError, InboxFullError) as gone:
            deliver(gone)
