"""Defects of replication: they test the simulation.

Each is a function that breaks one protection while the returned context lasts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from regent.core.errors import Errors
from regent.core.model import NO_EPOCH
from regent.core.replication import (
    all_partitions,
    consumer_fetches,
    follower_fetches,
    leader_partitions,
    replica_fetcher,
)
from regent.core.replication.delayed_operation import DelayedOperationPurgatory
from regent.core.replication.delete_records import DeleteRecords
from regent.core.replication.partition import Partition, Replica, Role
from regent.core.replication.produce import DelayedProduce, OutOfOrderBatches
from regent.core.replication.replica_manager import ReplicaManager
from tests.simulation.disk import ObservedLog
from tests.support.memory_logs import MemoryLog
from tests.support.producer_sequences import ProducerSequences

# --- followers ------------------------------------------------------------------------------------


def followers_truncate_to_the_high_watermark() -> Any:
    """A new follower truncates to its high watermark (KIP-101)."""
    make = Partition.make_follower

    def and_truncate(self: Partition, state: Any) -> None:
        make(self, state)
        self.local_log.truncate_to(self.high_watermark)

    return patch.object(Partition, "make_follower", and_truncate)


def logs_that_diverge_unnoticed() -> Any:
    """A leader compares a follower's position by offset, not by epoch (KIP-279)."""
    check = all_partitions.check_position

    def by_offset(log: Any, fetch_offset: int, last_fetched_epoch: int) -> Any:
        return check(log, fetch_offset, NO_EPOCH)

    return patch.object(follower_fetches, "check_position", by_offset)


def late_answers_appended() -> Any:
    """A follower appends an answer although its leader changed after the request."""
    return patch.object(replica_fetcher, "_is_expected", lambda partition, row: True)


def follower_high_watermark_beyond_its_log() -> Any:
    """A follower takes the leader's high watermark, even beyond its own log."""

    def as_it_is(self: Partition, leaders: int) -> None:
        self.high_watermark = max(self.high_watermark, leaders)

    return patch.object(Partition, "follow_high_watermark", as_it_is)


def out_of_range_at_its_own_end() -> Any:
    """A follower that is out of range truncates to its own end, for ever."""

    def to_its_own_end(partition: Partition, answer: Any) -> bool:
        partition.local_log.truncate_to(partition.local_log.log_end_offset)
        return True

    return patch.object(replica_fetcher, "_go_where_leader_is", to_its_own_end)


def followers_append_elsewhere() -> Any:
    """A follower appends without a check of its log end offset."""
    append = MemoryLog.append_as_follower

    def but_the_last(self: MemoryLog, records: Any, leader_epoch: int | None = None) -> None:
        if len(self.batches) > 1:
            self._cut(self.batches[-1].base_offset)
            self._end = self.batches[-1].last_offset + 2
            records = b""
        append(self, records, leader_epoch)

    return patch.object(MemoryLog, "append_as_follower", but_the_last)


def appends_without_a_fence() -> Any:
    """A follower appends records of its former leader after it has got another one."""
    append = ObservedLog.append_as_follower

    def in_any_epoch(self: ObservedLog, records: Any, leader_epoch: int | None = None) -> None:
        self.disk.on_unlocked()
        append(self, records)

    return patch.object(ObservedLog, "append_as_follower", in_any_epoch)


# --- commits --------------------------------------------------------------------------------------


def newcomers_are_not_waited_for() -> Any:
    """The high watermark passes a follower that is being added to the ISR (KIP-497)."""

    def of_the_committed(self: Partition, now_ms: int, max_lag_ms: int, is_eligible: Any) -> bool:
        awaited = [f.log_end_offset for r, f in self.followers.items() if r in self.isr]
        candidate = min([self.local_log.log_end_offset, *awaited])
        is_higher = candidate > self.high_watermark
        self.high_watermark = max(self.high_watermark, candidate)
        return is_higher

    return patch.object(Partition, "advance_high_watermark", of_the_committed)


def followers_join_below_the_epoch_start() -> Any:
    """A follower with all up to the high watermark joins below the epoch start (KAFKA-7128)."""

    def at_the_high_watermark(follower: Replica, high_watermark: int, start: int) -> bool:
        return follower.log_end_offset >= high_watermark

    return patch.object(leader_partitions, "has_reached_isr", at_the_high_watermark)


def every_follower_joins_the_isr() -> Any:
    """Any follower that fetches joins the ISR, at any offset."""
    return patch.object(leader_partitions, "has_reached_isr", lambda *where: True)


def one_replica_is_enough() -> Any:
    """``min.insync.replicas`` is not checked."""
    return patch.object(Partition, "min_isr", 1)


def acknowledged_when_appended() -> Any:
    """``acks=all`` does not wait."""
    outcome = DelayedProduce._outcome

    def at_once(self: DelayedProduce, awaited: Any) -> Any:
        return outcome(self, awaited._replace(required_offset=0))

    return patch.object(DelayedProduce, "_outcome", at_once)


def new_leaders_commit_their_logs() -> Any:
    """A new leader commits its whole log."""
    make = Partition.make_leader

    def and_commit(self: Partition, state: Any, now_ms: int) -> None:
        make(self, state, now_ms)
        self.high_watermark = self.local_log.log_end_offset

    return patch.object(Partition, "make_leader", and_commit)


def high_watermark_may_fall() -> Any:
    """The high watermark is the lowest end in the ISR, even if it falls."""

    def as_it_is(self: Partition, now_ms: int, max_lag_ms: int, is_eligible: Any) -> bool:
        ends = [f.log_end_offset for r, f in self.followers.items() if r in self.maximal_isr]
        before = self.high_watermark
        self.high_watermark = max(0, min([self.local_log.log_end_offset, *ends]))
        return self.high_watermark != before

    return patch.object(Partition, "advance_high_watermark", as_it_is)


# --- requests -------------------------------------------------------------------------------------


def any_replica_appends() -> Any:
    """Producers may write to a replica that is not the leader."""
    produce = ReplicaManager.produce

    def as_leader(
        self: ReplicaManager, acks: int, records: Any, now_ms: int, respond: Any, *rules: Any
    ) -> Any:
        for name, batches in records.items():
            replica = self.partitions.get(name)
            if replica is not None and replica.role is Role.FOLLOWER:
                replica.local_log.append_as_leader(batches, replica.leader_epoch)
        return produce(self, acks, records, now_ms, respond, *rules)

    return patch.object(ReplicaManager, "produce", as_leader)


def fetches_of_any_epoch_count() -> Any:
    """A follower's position in an earlier leader epoch counts in this one."""
    return patch.object(all_partitions, "check_reader", lambda *reader: Errors.NONE)


def sequence_numbers_unchecked() -> Any:
    """Sequence numbers are not checked."""
    return patch.object(ProducerSequences, "check", lambda self, headers: None)


def sequences_forgotten_by_followers() -> Any:
    """Only the leader knows the last sequence of an idempotent producer."""
    append = ObservedLog.append_as_follower

    def and_forget(self: ObservedLog, records: Any, leader_epoch: int | None = None) -> None:
        append(self, records, leader_epoch)
        self._sequences = ProducerSequences()

    return patch.object(ObservedLog, "append_as_follower", and_forget)


def early_batches_out_of_order() -> Any:
    """A batch that arrives before its predecessors is out of order, as in Kafka."""
    return patch.object(OutOfOrderBatches, "refusal", lambda self, partition, sequence: None)


def consumers_read_to_the_log_end() -> Any:
    """Consumers read uncommitted records."""
    read = consumer_fetches.DelayedConsumerFetch._read_log

    def everything(self: Any, partition: Partition, position: Any) -> Any:
        known = partition.high_watermark
        partition.high_watermark = partition.local_log.log_end_offset
        try:
            return read(self, partition, position)._replace(high_watermark=known)
        finally:
            partition.high_watermark = known

    return patch.object(consumer_fetches.DelayedConsumerFetch, "_read_log", everything)


def records_deleted_beyond_the_high_watermark() -> Any:
    """Clients delete uncommitted records."""
    drop = DeleteRecords._drop

    def to_the_end(self: DeleteRecords, partition: Partition, offset: int) -> Any:
        partition.local_log.advance_log_start_offset(partition.local_log.log_end_offset)
        return drop(self, partition, offset)

    return patch.object(DeleteRecords, "_drop", to_the_end)


# --- delayed requests -----------------------------------------------------------------------------


def delayed_requests_not_completed() -> Any:
    """Delayed requests complete only by timeout."""
    return patch.object(DelayedOperationPurgatory, "on_change", lambda self, name: None)


def answered_twice() -> Any:
    """A completed request is answered again at its timeout."""
    complete = DelayedOperationPurgatory.complete

    def again(self: DelayedOperationPurgatory, operation: Any) -> None:
        if operation.is_completed:
            self._finish(operation)
        else:
            complete(self, operation)

    return patch.object(DelayedOperationPurgatory, "complete", again)


def waits_that_never_end() -> Any:
    """Delayed requests never time out."""
    complete = DelayedOperationPurgatory.complete

    def not_now(self: DelayedOperationPurgatory, operation: Any) -> None:
        if operation in self._woken:
            complete(self, operation)

    return patch.object(DelayedOperationPurgatory, "complete", not_now)


SEARCH_FROM: dict[Callable[[], Any], int] = {
    followers_truncate_to_the_high_watermark: 135,
    logs_that_diverge_unnoticed: 65,
    late_answers_appended: 26,
    follower_high_watermark_beyond_its_log: 9,
    out_of_range_at_its_own_end: 48,
    appends_without_a_fence: 1003,
    newcomers_are_not_waited_for: 4,
    followers_join_below_the_epoch_start: 48,
    every_follower_joins_the_isr: 8,
    one_replica_is_enough: 2,
    new_leaders_commit_their_logs: 10,
    high_watermark_may_fall: 14,
    fetches_of_any_epoch_count: 15,
    sequences_forgotten_by_followers: 48,
    early_batches_out_of_order: 1070,
    consumers_read_to_the_log_end: 4,
    records_deleted_beyond_the_high_watermark: 31,
    delayed_requests_not_completed: 16,
}
