"""The markers that tell the partitions of a transaction how it ended.

A decision that is in the log is carried out: a marker is sent to the leader of each partition,
again and again until it is written. When all partitions have theirs, the end of the transaction is
written to the log. Each broker gets one request at a time, with the markers of all transactions
that wait for it. What is sent belongs to one coordinator epoch: in a later one, loading the log
begins it anew. A marker has the present leader epoch, which grows also while the leadership lasts:
another broker may have led, and have sent markers, without this one having heard of it. Mirrors
``kafka.coordinator.transaction.TransactionMarkerChannelManager`` and
``TransactionMarkerRequestCompletionHandler``.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from regent.core.coordinator.transaction.transaction_metadata import (
    COMPLETE_COMMIT,
    TransactionMetadata,
    TxnTransitMetadata,
)
from regent.core.coordinator.transaction.transaction_state_manager import (
    TransactionStateManager,
)
from regent.core.errors import Errors
from regent.core.model import NO_LEADER, BrokerId, TopicPartition
from regent.core.protocol.transactions import TxnMarker, TxnMarkerResult

log = logging.getLogger(__name__)

_PARTITIONS_OF_A_MARKER: Final = 1_000
_PARTITIONS_OF_A_REQUEST: Final = 5_000

_WRITTEN: Final = frozenset(
    {
        Errors.NONE,
        # Records of producers cannot be in such a partition.
        Errors.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        Errors.UNSUPPORTED_VERSION,
    }
)
_EXPECTED: Final = frozenset(
    {
        Errors.INVALID_PRODUCER_EPOCH,
        Errors.TRANSACTION_COORDINATOR_FENCED,
        Errors.UNKNOWN_TOPIC_OR_PARTITION,
        Errors.NOT_LEADER_OR_FOLLOWER,
        Errors.NOT_ENOUGH_REPLICAS,
        Errors.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        Errors.REQUEST_TIMED_OUT,
        Errors.KAFKA_STORAGE_ERROR,
        Errors.NETWORK_EXCEPTION,
    }
)

LeaderOf = Callable[[TopicPartition], BrokerId | None]
"""Returns the leader of a partition if it is alive, ``NO_LEADER`` if it is not, and None if there
is no such partition in the metadata cache."""


class PartitionLeaders(NamedTuple):
    """What a broker knows of leaders; ``knows_all``: whether it was told of all partitions."""

    leader_of: LeaderOf
    knows_all: Callable[[], bool]


class MarkerSender(Protocol):
    """Sends markers to other brokers, and to this one."""

    def send(self, broker_id: BrokerId, markers: Sequence[TxnMarker]) -> None:
        """Begin to send; ``TransactionMarkerManager.on_answered`` is called later, once."""
        ...


@dataclass(eq=False, slots=True)
class PendingCompleteTxn:
    """A transaction whose end is decided, and what it will be when all partitions know it."""

    metadata: TransactionMetadata
    coordinator_epoch: int
    transit: TxnTransitMetadata
    missing_since_ms: dict[TopicPartition, int] = field(default_factory=dict)

    def marker(self, leader_epoch: int, partitions: Iterable[TopicPartition]) -> TxnMarker:
        """Return the marker for some of its partitions."""
        return TxnMarker(
            self.transit.producer_id,
            self.transit.producer_epoch,
            self.transit.state is COMPLETE_COMMIT,
            leader_epoch,
            tuple(partitions),
        )


class _Entry(NamedTuple):
    pending: PendingCompleteTxn
    marker: TxnMarker


class TransactionMarkerManager:
    """Used on the coordinator's thread only."""

    def __init__(
        self,
        states: TransactionStateManager,
        sender: MarkerSender,
        leader_of: LeaderOf,
        time_ms: Callable[[], int],
        *,
        knows_all: Callable[[], bool],
        missing_partition_grace_ms: int,
    ) -> None:
        """``knows_all``: whether the metadata cache has had all partitions."""
        self._states = states
        self._sender = sender
        self._leader_of = leader_of
        self._time_ms = time_ms
        self._knows_all = knows_all
        self._grace_ms = missing_partition_grace_ms
        self._pending: dict[str, PendingCompleteTxn] = {}
        self._queues: dict[BrokerId, deque[_Entry]] = {}
        self._in_flight: dict[BrokerId, Sequence[_Entry]] = {}
        self._waiting: list[_Entry] = []  # for a leader, or for another attempt
        self._appends: list[PendingCompleteTxn] = []  # of ends that the log has refused

    @property
    def pending(self) -> Collection[PendingCompleteTxn]:
        """The transactions whose markers are not all written."""
        return self._pending.values()

    @property
    def needs_retry(self) -> bool:
        """Whether ``retry`` has something to do."""
        return bool(self._waiting or self._appends)

    @property
    def unknown_destination_count(self) -> int:
        """How many markers wait for a leader. Thread-safe."""
        leaders = (self._leader_of(entry.marker.partitions[0]) for entry in list(self._waiting))
        return sum(leader is None or leader == NO_LEADER for leader in leaders)

    @property
    def refused_append_count(self) -> int:
        """How many ends of transactions the log has refused, and must take yet. Thread-safe."""
        return len(self._appends)

    # --- begin and end ---

    def add(
        self, metadata: TransactionMetadata, coordinator_epoch: int, transit: TxnTransitMetadata
    ) -> None:
        """Send the markers of a transaction, then write that it is complete."""
        pending = PendingCompleteTxn(metadata, coordinator_epoch, transit)
        self._pending[metadata.transactional_id] = pending  # replaces an old one (KAFKA-16352)
        self._enqueue(pending, metadata.topic_partitions)
        self._complete_if_all_know(pending)
        self._send()

    def forget_partition(self, partition: int) -> None:
        """A partition of ``__transaction_state`` is read anew, or by another broker."""
        self._pending = {
            transactional_id: pending
            for transactional_id, pending in self._pending.items()
            if self._states.partition_of(transactional_id) != partition
        }

    def on_partitions_deleted(self, partitions: Collection[TopicPartition]) -> None:
        """Topics are gone: their partitions need no markers."""
        for pending in list(self._pending.values()):
            pending.metadata.topic_partitions.difference_update(partitions)
            self._complete_if_all_know(pending)

    def _is_current(self, pending: PendingCompleteTxn) -> bool:
        return self._pending.get(pending.metadata.transactional_id) is pending

    def _is_owned(self, pending: PendingCompleteTxn) -> bool:
        """Whether this broker is the coordinator, in the epoch in which it was decided."""
        return self._states.problem(pending.metadata, pending.coordinator_epoch) is Errors.NONE

    def _complete_if_all_know(self, pending: PendingCompleteTxn) -> None:
        """Write the end of a transaction, exactly once (KAFKA-9777, KAFKA-10080)."""
        if not pending.metadata.topic_partitions and self._is_current(pending):
            del self._pending[pending.metadata.transactional_id]
            self._append(pending)

    def _append(self, pending: PendingCompleteTxn) -> None:
        def appended(error: Errors) -> None:
            if error is not Errors.NONE and self._is_owned(pending):
                self._appends.append(pending)  # else a later term goes on with the work

        self._states.append(
            pending.metadata, pending.coordinator_epoch, pending.transit, appended, is_retried=True
        )

    # --- sending ---

    def retry(self) -> None:
        """Try again what failed, and look for leaders again."""
        appends, self._appends = self._appends, []
        for pending in appends:
            self._append(pending)
        waiting, self._waiting = self._waiting, []
        for pending, marker in waiting:
            if self._is_current(pending):
                self._enqueue(pending, marker.partitions)
                self._complete_if_all_know(pending)
        self._send()

    def on_answered(self, broker_id: BrokerId, results: Sequence[TxnMarkerResult] | None) -> None:
        """A broker has answered; None: it did not."""
        entries = self._in_flight.pop(broker_id, ())
        if results is not None and len(results) != len(entries):
            log.error("broker %d answered %d of %d markers", broker_id, len(results), len(entries))
            results = None
        for position, entry in enumerate(entries):
            rows = () if results is None else results[position].partitions
            self._take(entry, {row.topic_partition: row.error_code for row in rows})
        self._send()

    def _take(self, entry: _Entry, errors: Mapping[TopicPartition, Errors]) -> None:
        """Take the answers of partitions; one that is missing did not answer."""
        pending, metadata = entry.pending, entry.pending.metadata
        if not self._is_current(pending):
            return
        is_over = not self._is_owned(pending)
        refused: dict[TopicPartition, Errors] = {}
        for topic_partition in () if is_over else entry.marker.partitions:
            error = errors.get(topic_partition, Errors.NETWORK_EXCEPTION)
            if error in _WRITTEN:
                metadata.topic_partitions.discard(topic_partition)
            else:
                refused[topic_partition] = error
        if refused:
            self._log_refusal(metadata, refused)
        if Errors.INVALID_PRODUCER_EPOCH in refused.values():
            is_over = True  # a newer producer ends the transaction
        if is_over:
            del self._pending[metadata.transactional_id]
            return
        if refused:
            # A coordinator that is fenced hears of the end of its leadership, or of a later epoch.
            self._waiting.append(self._entry(pending, refused))
        self._complete_if_all_know(pending)

    def _log_refusal(
        self, metadata: TransactionMetadata, refused: Mapping[TopicPartition, Errors]
    ) -> None:
        is_expected = _EXPECTED.issuperset(refused.values())
        log.log(
            logging.DEBUG if is_expected else logging.ERROR,
            "%s: %d partitions refused a marker: %s",
            metadata.transactional_id,
            len(refused),
            ", ".join(sorted({error.name for error in refused.values()})),
        )

    def _enqueue(self, pending: PendingCompleteTxn, partitions: Iterable[TopicPartition]) -> None:
        by_leader: dict[BrokerId, list[TopicPartition]] = {}
        for topic_partition in sorted(pending.metadata.topic_partitions.intersection(partitions)):
            leader = self._leader_of(topic_partition)
            if leader is not None:
                pending.missing_since_ms.pop(topic_partition, None)
            elif self._is_gone(pending, topic_partition):
                pending.metadata.topic_partitions.discard(topic_partition)
                continue
            by_leader.setdefault(NO_LEADER if leader is None else leader, []).append(
                topic_partition
            )
        for leader, rows in by_leader.items():
            for first in range(0, len(rows), _PARTITIONS_OF_A_MARKER):
                entry = self._entry(pending, rows[first : first + _PARTITIONS_OF_A_MARKER])
                if leader == NO_LEADER:
                    self._waiting.append(entry)
                else:
                    self._queues.setdefault(leader, deque()).append(entry)

    def _entry(self, pending: PendingCompleteTxn, partitions: Iterable[TopicPartition]) -> _Entry:
        leader_epoch = self._states.leader_epoch(pending.metadata)
        return _Entry(pending, pending.marker(leader_epoch, partitions))

    def _is_gone(self, pending: PendingCompleteTxn, topic_partition: TopicPartition) -> bool:
        """Whether a partition is deleted. The metadata of a new one may still be on their way.

        A broker that has just started may wait long for the metadata of all. A partition without
        its marker would keep the transaction open for ever.
        """
        if not self._knows_all():
            pending.missing_since_ms.clear()
            return False
        now_ms = self._time_ms()
        since_ms = pending.missing_since_ms.setdefault(topic_partition, now_ms)
        if now_ms - since_ms < self._grace_ms:
            return False
        log.info(
            "%s: %s does not exist any more and gets no marker",
            pending.metadata.transactional_id,
            topic_partition,
        )
        return True

    def _send(self) -> None:
        for broker_id in list(self._queues):
            if broker_id not in self._in_flight:
                entries = list(self._next_entries(self._queues[broker_id]))
                if not self._queues[broker_id]:
                    del self._queues[broker_id]
                if entries:
                    self._in_flight[broker_id] = entries
                    self._sender.send(broker_id, [entry.marker for entry in entries])

    def _next_entries(self, queue: deque[_Entry]) -> Iterator[_Entry]:
        """Yield what goes into one request; markers of former coordinator epochs are dropped."""
        partitions = 0
        while queue and partitions < _PARTITIONS_OF_A_REQUEST:
            entry = queue.popleft()
            if self._is_current(entry.pending):
                partitions += len(entry.marker.partitions)
                yield entry
