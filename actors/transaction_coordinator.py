"""The transaction coordinator of a broker as an actor: its clock, its log and its producer ids."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from regent.actors.coordinator import (
    CoordinatorActor,
    PartitionsKnown,
    TimersDue,
)
from regent.actors.inbox import Reply
from regent.actors.producer_id_manager import ProducerIdManager
from regent.actors.scheduler import RepeatingTimer, Scheduler, monotonic_ms
from regent.actors.transaction_coordinator_log import TransactionCoordinatorLog
from regent.core.coordinator.partition_for import CoordinatorPartitions
from regent.core.coordinator.transaction.transaction_coordinator import TransactionCoordinator
from regent.core.coordinator.transaction.transaction_marker_manager import (
    PartitionLeaders,
    TransactionMarkerManager,
)
from regent.core.coordinator.transaction.transaction_state_manager import (
    TransactionConfig,
    TransactionLogSettings,
)
from regent.core.model import BrokerId, TopicPartition
from regent.core.protocol.transactions import TxnMarker, TxnMarkerResult
from regent.core.replication.replica_manager import ReplicaManager

log = logging.getLogger(__name__)

_RETRY_BACKOFF_MS: Final = 100
"""How long a marker that was refused, or has no leader, waits for the next attempt."""

RespondToMarkers: TypeAlias = Callable[[Sequence[TxnMarkerResult] | None], None]
SendMarkers: TypeAlias = Callable[[BrokerId, Sequence[TxnMarker], RespondToMarkers], None]
"""Sends markers to a broker, this one or another; answers once, on any thread, not at once."""


@dataclass(frozen=True, slots=True)
class TransactionIntervals:
    """How often the coordinator looks for what takes too long: Kafka's settings and defaults."""

    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = 10_000
    transaction_remove_expired_transaction_cleanup_interval_ms: int = 3_600_000


@dataclass(frozen=True, slots=True)
class MarkersAnswered:
    """A broker has answered; None: it did not."""

    broker_id: BrokerId
    results: Sequence[TxnMarkerResult] | None


@dataclass(frozen=True, slots=True)
class ProducerIdsTaken:
    """A block of producer ids was taken; None: it could not be."""

    block: range | None


@dataclass(frozen=True, slots=True)
class LeadersChanged:
    """The metadata cache has changed: markers may find their leaders."""


@dataclass(frozen=True, slots=True)
class AbortTimedOut:
    """Look for transactions that are open for too long."""


@dataclass(frozen=True, slots=True)
class ExpireIds:
    """Look for transactional ids that were not used for long."""


_Own: TypeAlias = MarkersAnswered | ProducerIdsTaken | LeadersChanged | AbortTimedOut | ExpireIds


class TransactionCoordinatorActor(CoordinatorActor):
    """Handles the requests of transactional producers, one after the other."""

    def __init__(
        self,
        replica_manager: ReplicaManager,
        scheduler: Scheduler,
        config: TransactionConfig,
        log_settings: TransactionLogSettings,
        intervals: TransactionIntervals,
        *,
        partitions: CoordinatorPartitions,
        leaders: PartitionLeaders,
        send_markers: SendMarkers,
        take_block: Callable[[], range],
    ) -> None:
        state_log = TransactionCoordinatorLog(replica_manager, log_settings, self.tell_self)
        name = f"transaction-coordinator-{replica_manager.broker_id}"
        super().__init__(name, partitions, state_log, scheduler)
        self._send_markers = send_markers
        self._producer_ids = ProducerIdManager(
            take_block, lambda block: self.tell_self(ProducerIdsTaken(block))
        )
        self._coordinator = TransactionCoordinator(
            config,
            state_log,
            self,
            time_ms=lambda: time.time_ns() // 1_000_000,
            partition_of=partitions.of,
            leader_of=leaders.leader_of,
            next_producer_id=self._producer_ids.next_id,
            knows_all=leaders.knows_all,
        )
        self._retry_ms: int | None = None
        self._timers = [
            RepeatingTimer(
                scheduler,
                intervals.transaction_abort_timed_out_transaction_cleanup_interval_ms,
                lambda: self.tell_self(AbortTimedOut()),
            ),
            RepeatingTimer(
                scheduler,
                intervals.transaction_remove_expired_transaction_cleanup_interval_ms,
                lambda: self.tell_self(ExpireIds()),
            ),
        ]

    @property
    def marker_manager(self) -> TransactionMarkerManager:
        """The markers; other threads may only look at the numbers of those that wait."""
        return self._coordinator.markers

    @staticmethod
    def collapse_key(message: Any) -> Hashable | None:
        """One queued message is enough for several reasons to look."""
        may_collapse = TimersDue | PartitionsKnown | LeadersChanged | AbortTimedOut | ExpireIds
        return message if isinstance(message, may_collapse) else None

    def on_stop(self) -> None:
        """Take no more producer ids; waiting requests are refused."""
        for timer in self._timers:
            timer.cancel()
        self._producer_ids.stop()
        super().on_stop()

    def send(self, broker_id: BrokerId, markers: Sequence[TxnMarker]) -> None:
        """See ``MarkerSender.send``."""

        def answered(results: Any) -> None:
            self.tell_self(MarkersAnswered(broker_id, results))

        reply = Reply.of(answered)
        try:
            self._send_markers(broker_id, markers, reply.set)
        except Exception:  # the queue of the broker waits for the answer
            log.exception("%s cannot send markers to broker %d", self.name, broker_id)
            reply.set(None)

    def answer(self, request: Any, respond: Callable[[Any], None]) -> None:
        """See ``CoordinatorActor.answer``."""
        self._coordinator.handle(request, respond)

    def on_elected(self, partition: int, epoch: int, term: int) -> None:
        """See ``CoordinatorActor.on_elected``. The first transactional id needs a producer id."""
        self._producer_ids.prefetch()
        self._coordinator.on_elected(partition, epoch, term)

    def on_resigned(self, partition: int, epoch: int | None) -> None:
        """See ``CoordinatorActor.on_resigned``."""
        self._coordinator.on_resigned(partition, epoch)

    def on_loaded(self, partition: int, term: int, content: Any) -> None:
        """See ``CoordinatorActor.on_loaded``."""
        self._coordinator.on_loaded(partition, term, content)

    def on_partitions_deleted(self, partitions: Collection[TopicPartition]) -> None:
        """See ``CoordinatorActor.on_partitions_deleted``."""
        self._coordinator.on_partitions_deleted(partitions)

    @property
    def next_timer_ms(self) -> int | None:
        """See ``CoordinatorActor.next_timer_ms``."""
        if not self._coordinator.markers.needs_retry:
            self._retry_ms = None
        elif self._retry_ms is None:
            self._retry_ms = monotonic_ms() + _RETRY_BACKOFF_MS
        return self._retry_ms

    def run_timers(self) -> None:
        """See ``CoordinatorActor.run_timers``."""
        if self._retry_ms is not None and self._retry_ms <= monotonic_ms():
            self._retry()

    def handle_own(self, message: _Own) -> None:
        """See ``CoordinatorActor.handle_own``."""
        match message:
            case MarkersAnswered(broker_id, results):
                self._coordinator.markers.on_answered(broker_id, results)
            case ProducerIdsTaken(block):
                self._producer_ids.add(block)
            case LeadersChanged():
                self._retry()
            case AbortTimedOut():
                self._coordinator.abort_timed_out()
            case ExpireIds():
                self._coordinator.expire_ids()

    def _retry(self) -> None:
        self._retry_ms = None
        self._coordinator.markers.retry()
