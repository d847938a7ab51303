"""Defects in the handling of damaged logs: they test the simulation.

Each is a function that breaks one protection while the returned context lasts. One is left out:
a log that is replaced before ZooKeeper lists its replica as suspect. The list follows 50 ms later,
and no history that was tried had an election between. Unit tests have it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from regent.core.controller.brokers.notifications import Notifications
from regent.core.controller.brokers.responses import ControlResponses
from regent.core.controller.context import ControllerContext
from regent.core.controller.partition_entries import PartitionEntries
from regent.core.controller.replica_state_machine import ReplicaStateMachine
from regent.core.controller.request_batch import ControlRequestBatch
from regent.core.controller.states import ReplicaState
from regent.core.controller.topics.topic_deletion import TopicDeletions
from regent.core.errors import DamagedRecordsError, Errors
from regent.core.model import NO_LEADER
from regent.core.replication.all_partitions import AllPartitions
from regent.core.replication.consumer_fetches import DelayedConsumerFetch
from regent.core.replication.damaged_log_replacement import DamagedLogReplacement
from regent.core.replication.partition import Role
from regent.core.replication.replica_manager import ReplicaManager
from regent.core.replication.suspect_replicas import SuspectTracker
from tests.support.memory_logs import MemoryLog, MemoryLogs

# --- reads of damaged records ---------------------------------------------------------------------


def damaged_records_given_away() -> Any:
    """Reads do not check for damage."""
    read = MemoryLog.read

    def unchecked(self: MemoryLog, *where: Any, **options: Any) -> Any:
        damaged, self.damaged = self.damaged, set()
        try:
            return read(self, *where, **options)
        finally:
            self.damaged = damaged

    return patch.object(MemoryLog, "read", unchecked)


def damaged_records_skipped() -> Any:
    """A consumer gets the records after the damaged ones."""
    read = DelayedConsumerFetch._read_log

    def behind_it(self: Any, partition: Any, position: Any) -> Any:
        try:
            return read(self, partition, position)
        except DamagedRecordsError:
            end = partition.high_watermark
            behind = [b for b in partition.log.batches if position.fetch_offset < b.base_offset]
            start = min((b.base_offset for b in behind if b.last_offset < end), default=end)
            return self._read_log(partition, position._replace(fetch_offset=start))

    return patch.object(DelayedConsumerFetch, "_read_log", behind_it)


# --- which replicas leave service, and which logs are dropped -------------------------------------


def damage_left_alone() -> Any:
    """A replica that is damaged stays in service."""
    return patch.object(
        AllPartitions, "on_damaged", lambda self, name, error: Errors.CORRUPT_MESSAGE
    )


def last_copies_go_out_of_service() -> Any:
    """A damaged replica leaves service, even if no other one is in sync."""
    on_damaged = AllPartitions.on_damaged

    def as_one_of_many(self: AllPartitions, name: Any, error: Any) -> Errors:
        partition = self.by_topic_partition.get(name)
        if partition is not None and partition.role is not Role.OFFLINE:
            self._logs.mark_damaged(name, str(error))
        return on_damaged(self, name, error)

    return patch.object(AllPartitions, "on_damaged", as_one_of_many)


def logs_in_sync_replaced() -> Any:
    """A damaged log is dropped as soon as another broker leads."""

    def is_led_elsewhere(self: DamagedLogReplacement, row: Any) -> bool:
        return bool(NO_LEADER < row.leader != self._broker_id)

    return patch.object(DamagedLogReplacement, "_is_dispensable", is_led_elsewhere)


def logs_replaced_in_the_same_epoch() -> Any:
    """A damaged log is dropped in the same leader epoch, in which its end may still count."""
    return patch.object(DamagedLogReplacement, "_used_in", lambda self, name: -1)


def replaced_logs_count_as_sound() -> Any:
    """The empty log that replaces a damaged one counts as one with all records."""
    on_replaced = SuspectTracker.on_replaced

    def and_is_sound(self: SuspectTracker, name: Any) -> None:
        on_replaced(self, name)
        self.mark_sound(name)

    return patch.object(SuspectTracker, "on_replaced", and_is_sound)


# --- how it returns -------------------------------------------------------------------------------


def replaceable_logs_not_notified() -> Any:
    """The controller is not notified that a damaged log can be replaced."""
    return patch.object(ReplicaManager, "replaceable_logs", lambda self: [])


def offline_replicas_never_asked() -> Any:
    """The controller asks only for replicas that are in service, as Kafka's does."""

    def is_online(self: Notifications, replica: Any) -> bool:
        return self._context.replica_state(replica) is ReplicaState.ONLINE

    return patch.object(Notifications, "_may_have_changed", is_online)


def stopped_replicas_started_by_notifications() -> Any:
    """A log directory event starts replicas of a broker that is shutting down."""
    return patch.object(Notifications, "_may_have_changed", lambda self, replica: True)


def returned_replicas_stay_offline() -> Any:
    """A replica that was offline stays offline in the controller's view."""

    def and_forget(self: ControlResponses, broker_id: int, replicas: Any) -> None:
        offline = self._context.replicas_on_offline_dirs[broker_id]
        offline.update(replica.topic_partition for replica in replicas)

    return patch.object(ControlResponses, "_on_back", and_forget)


def no_new_epoch_for_returned_replicas() -> Any:
    """The controller starts a returned replica in the epoch in which it was stopped."""
    on_back = ControlResponses._on_back

    def in_the_same(self: ControlResponses, broker_id: int, replicas: Any) -> None:
        with patch.object(ReplicaStateMachine, "restart", lambda self, replicas: None):
            on_back(self, broker_id, replicas)

    return patch.object(ControlResponses, "_on_back", in_the_same)


def no_new_epoch_for_damaged_logs() -> Any:
    """The controller begins no leader epoch for a damaged log that needs a new one."""
    return patch.object(ControlResponses, "_restart", lambda self, replicas, request: None)


def damaged_replicas_not_deleted() -> Any:
    """A topic is not deleted while a replica of it is out of service."""

    def is_online(self: TopicDeletions, replica: Any) -> bool:
        return self._context.is_replica_online(
            replica.replica, replica.topic_partition, include_shutting_down=True
        )

    return patch.object(TopicDeletions, "_is_reachable", is_online)


def unreadable_logs_taken_for_deleted() -> Any:
    """A log in a directory that failed before the broker started counts as deleted."""
    return patch.object(MemoryLogs, "may_be_offline", lambda self, name: False)


def logs_of_lost_topics_deleted() -> Any:
    """A topic whose znode is removed by hand loses its logs."""
    add = ControlRequestBatch.add_stop_replica

    def deleting(self: ControlRequestBatch, *replica: Any, delete: bool, **options: Any) -> None:
        add(self, *replica, delete=delete)

    return patch.object(ControlRequestBatch, "add_stop_replica", deleting)


def rejoined_replicas_stay_sound() -> Any:
    """A replica that rejoined the ISR counts as sound also after it has left it again."""
    put = PartitionEntries.put_partition_leadership_info
    return patch.object(ControllerContext, "put_partition_leadership_info", put)


SEARCH_FROM: dict[Callable[[], Any], int] = {
    rejoined_replicas_stay_sound: 80_002_488,
    damaged_records_given_away: 64,
    damaged_records_skipped: 293,
    damage_left_alone: 16,
    last_copies_go_out_of_service: 243,
    logs_in_sync_replaced: 16,
    logs_replaced_in_the_same_epoch: 149,
    replaced_logs_count_as_sound: 101_001_388,
    replaceable_logs_not_notified: 104,
    offline_replicas_never_asked: 104,
    stopped_replicas_started_by_notifications: 28,
    returned_replicas_stay_offline: 26,
    no_new_epoch_for_returned_replicas: 26,
    no_new_epoch_for_damaged_logs: 166,
    damaged_replicas_not_deleted: 6375,
    unreadable_logs_taken_for_deleted: 267,
    logs_of_lost_topics_deleted: 17,
}
