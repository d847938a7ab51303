"""Defects of the transaction coordinator and of what it stands on: they test the simulation.

Each is a function that breaks one rule while the returned context lasts. Some are left out that
hundreds of histories do not meet: transactions that are not verified, or have ended since, repeated
ends that are not confirmed, appends without a check of the term, refused positions of former
producers, and coordinators whose epoch stays that of their first election. Unit tests have them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from regent.core.coordinator.group.group_metadata_manager import GroupMetadataManager
from regent.core.coordinator.group.group_offsets import CommittedOffset, GroupOffsets
from regent.core.coordinator.transaction import transaction_marker_manager
from regent.core.coordinator.transaction.transaction_coordinator import TransactionCoordinator
from regent.core.coordinator.transaction.transaction_marker_manager import TransactionMarkerManager
from regent.core.coordinator.transaction.transaction_metadata import (
    PREPARE_ABORT,
    PREPARE_EPOCH_FENCE,
)
from regent.core.coordinator.transaction.transaction_state_manager import TransactionStateManager
from regent.core.errors import Errors
from regent.core.protocol.groups import ProducerIdAndEpoch
from regent.core.protocol.messages.producer_ids import InitProducerIdResponse
from regent.core.replication.consumer_fetches import DelayedConsumerFetch
from regent.core.replication.partition import Partition

# --- producers ------------------------------------------------------------------------------------


def fenced_producers_accepted() -> Any:
    """A coordinator does not compare the epoch of a producer."""
    check = TransactionCoordinator._of_producer

    def of_any_epoch(self: TransactionCoordinator, name: str, producer: Any) -> Any:
        found = self.states.get(name)
        if found is not None and not isinstance(found, Errors):
            known = found.metadata
            producer = ProducerIdAndEpoch(producer.producer_id, known.producer_epoch)
        return check(self, name, producer)

    return patch.object(TransactionCoordinator, "_of_producer", of_any_epoch)


def epochs_given_before_the_abort() -> Any:
    """A producer gets the epoch that fences the one before it, while that one's abort begins."""
    abort = TransactionCoordinator._abort
    init = TransactionCoordinator.init_producer_id

    def at_once(self: TransactionCoordinator, request: Any, respond: Any) -> None:
        def and_tell(_: Any, found: Any, fence: Any, decided: Any) -> None:
            assert fence.state is PREPARE_EPOCH_FENCE
            abort(self, found, fence, lambda error: None)
            respond(
                InitProducerIdResponse(
                    error_code=Errors.NONE,
                    producer_id=fence.producer_id,
                    producer_epoch=fence.producer_epoch,
                )
            )

        with patch.object(TransactionCoordinator, "_abort", and_tell):
            init(self, request, respond)

    return patch.object(TransactionCoordinator, "init_producer_id", at_once)


def timed_out_producers_not_fenced() -> Any:
    """A transaction that is open for too long is aborted in the epoch of its producer."""

    def without_fence(self: TransactionCoordinator) -> int:
        self.states.read_again()
        for found in self.states.timed_out():
            transit = found.metadata.prepare_abort_or_commit(PREPARE_ABORT, self._time_ms())
            self._decide(found, transit, lambda error: None)
        return 0

    return patch.object(TransactionCoordinator, "abort_timed_out", without_fence)


def transactions_never_time_out() -> Any:
    """The transaction of a dead producer stays open."""

    def only_read(self: TransactionCoordinator) -> int:
        self.states.read_again()
        return 0

    return patch.object(TransactionCoordinator, "abort_timed_out", only_read)


# --- decisions and markers ------------------------------------------------------------------------


def ends_told_before_they_are_decided() -> Any:
    """EndTxn is answered before the decision is replicated."""
    decide = TransactionCoordinator._decide

    def at_once(self: TransactionCoordinator, found: Any, transit: Any, respond: Any) -> None:
        respond(Errors.NONE)
        decide(self, found, transit, lambda error: None)

    return patch.object(TransactionCoordinator, "_decide", at_once)


def failed_decisions_carried_out() -> Any:
    """A decision that was not replicated in time counts as decided."""
    write = TransactionStateManager._write

    def in_any_case(self: TransactionStateManager, a: Any, b: Any, c: Any, respond: Any) -> None:
        def appended(error: Errors) -> None:
            is_unknown = error is Errors.COORDINATOR_NOT_AVAILABLE
            respond(Errors.NONE if is_unknown else error)

        write(self, a, b, c, appended)

    return patch.object(TransactionStateManager, "_write", in_any_case)


def decisions_lost_with_their_coordinator() -> Any:
    """A new coordinator sends no markers for what the one before it has decided."""

    def only_keep(self: TransactionCoordinator, partition: int, term: int, content: Any) -> None:
        self.states.on_loaded(partition, term, content)

    return patch.object(TransactionCoordinator, "on_loaded", only_keep)


def refused_markers_dropped() -> Any:
    """A marker that is refused, or not answered, is not sent again."""
    return patch.object(transaction_marker_manager, "_WRITTEN", frozenset(Errors))


def complete_with_the_first_marker() -> Any:
    """A transaction is complete when one of its partitions knows."""
    take = TransactionMarkerManager._take

    def and_drop_the_rest(self: TransactionMarkerManager, entry: Any, errors: Any) -> None:
        if Errors.NONE in errors.values() and self._is_current(entry.pending):
            entry.pending.metadata.topic_partitions.clear()
        take(self, entry, errors)

    return patch.object(TransactionMarkerManager, "_take", and_drop_the_rest)


# --- partitions -----------------------------------------------------------------------------------


def markers_count_before_they_are_replicated() -> Any:
    """Readers pass a transaction whose marker may still be lost."""

    def without_commit(self: Partition) -> int:
        log = self.local_log
        first = log.first_unstable_offset(log.log_end_offset)
        return self.high_watermark if first is None else min(first, self.high_watermark)

    return patch.object(Partition, "last_stable_offset", property(without_commit))


def aborted_transactions_not_told() -> Any:
    """Readers of committed records are not told what was aborted."""
    read = DelayedConsumerFetch._read_log

    def of_all(self: DelayedConsumerFetch, partition: Any, position: Any) -> Any:
        return read(self, partition, position)._replace(aborted=())

    return patch.object(DelayedConsumerFetch, "_read_log", of_all)


def ends_lost_by_a_shortage() -> Any:
    """A coordinator whose log lacks descriptors believes that another one goes on."""

    def once(self: TransactionMarkerManager, pending: Any) -> None:
        def appended(error: Errors) -> None:
            if error not in (Errors.NONE, Errors.NOT_COORDINATOR):
                self._appends.append(pending)

        self._states.append(
            pending.metadata,
            pending.coordinator_epoch,
            pending.transit,
            appended,
            is_retried=True,
        )

    return patch.object(TransactionMarkerManager, "_append", once)


# --- positions ------------------------------------------------------------------------------------


def positions_counted_before_the_marker() -> Any:
    """A position counts as soon as its record is replicated."""
    commit = GroupOffsets.commit

    def and_count(
        self: GroupOffsets, offsets: Any, record_offset: int, producer_id: int | None = None
    ) -> None:
        commit(self, offsets, record_offset, producer_id)
        for name, value in offsets.items() if producer_id is not None else ():
            self.put(name, CommittedOffset(record_offset, value, record_offset))

    return patch.object(GroupOffsets, "commit", and_count)


def positions_of_aborted_transactions_counted() -> Any:
    """The marker of an abort has the effect of a commit."""
    complete = GroupOffsets.complete_transaction

    def always(self: GroupOffsets, producer_id: int, offset: int, *, is_commit: bool) -> None:
        complete(self, producer_id, offset, is_commit=True)

    return patch.object(GroupOffsets, "complete_transaction", always)


def open_positions_lost_with_their_coordinator() -> Any:
    """A new coordinator does not know the positions of open transactions."""
    load = GroupMetadataManager._load

    def without_open(self: GroupMetadataManager, group_id: str, partition: int, group: Any) -> Any:
        group.transactional.clear()
        return load(self, group_id, partition, group)

    return patch.object(GroupMetadataManager, "_load", without_open)


def deletions_before_late_markers_forgotten() -> Any:
    """A position counts that was deleted between the marker and what the marker does."""
    complete = GroupOffsets.complete_transaction

    def at_the_end(self: GroupOffsets, producer_id: int, _: int, *, is_commit: bool) -> None:
        complete(self, producer_id, 2**62, is_commit=is_commit)

    return patch.object(GroupOffsets, "complete_transaction", at_the_end)


SEARCH_FROM: dict[Callable[[], Any], int] = {
    fenced_producers_accepted: 312,
    epochs_given_before_the_abort: 531,
    timed_out_producers_not_fenced: 2992,
    transactions_never_time_out: 102_002_607,
    ends_told_before_they_are_decided: 1816,
    failed_decisions_carried_out: 1394,
    decisions_lost_with_their_coordinator: 298,
    refused_markers_dropped: 1287,
    complete_with_the_first_marker: 531,
    ends_lost_by_a_shortage: 9795,
    markers_count_before_they_are_replicated: 365,
    aborted_transactions_not_told: 241,
    positions_counted_before_the_marker: 2141,
    positions_of_aborted_transactions_counted: 1287,
    open_positions_lost_with_their_coordinator: 12,
    deletions_before_late_markers_forgotten: 3,
}
