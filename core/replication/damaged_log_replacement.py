"""Replaces damaged logs: the replica fetches all records again from another replica.

Kafka leaves damaged logs as they are. Here the controller takes such a replica out of service like
one in a failed directory: another replica leads, and this one leaves the ISR. Every committed
record is then on all of the ISR. The broker notifies the controller again. The next LeaderAndIsr
replaces the log with an empty one, and the replica follows the leader. That request must have a
leader epoch in which the damaged log was never used: in the others the leader may have added the
replica to the ISR, and the controller may not know it yet.

The replica may be an eligible leader (KIP-966), which the request does not say. With an empty log
it must not be elected like one with every committed record. So a log is replaced only when
ZooKeeper lists the replica as suspect.
"""

from __future__ import annotations

import logging

from regent.core.errors import Errors, StorageError
from regent.core.model import NO_LEADER, BrokerId, TopicPartition
from regent.core.protocol.control import LeaderAndIsrPartition, UpdateMetadataPartition
from regent.core.replica_logs import ReplicaLogs
from regent.core.replication.all_partitions import AllPartitions
from regent.core.replication.metadata_cache import MetadataCache
from regent.core.replication.suspect_replicas import SuspectTracker

log = logging.getLogger("state.change")


class DamagedLogReplacement:
    """Finds the logs that can be replaced, and replaces them. Not thread-safe."""

    def __init__(
        self,
        broker_id: BrokerId,
        logs: ReplicaLogs,
        cache: MetadataCache,
        partitions: AllPartitions,
        suspects: SuspectTracker,
    ) -> None:
        self._broker_id = broker_id
        self._logs = logs
        self._cache = cache
        self._partitions = partitions
        self._suspects = suspects
        self._unlisted: set[TopicPartition] = set()  # logs that are replaced when this is done
        # Leader and both epochs; None: the controller does not announce the partition.
        self._named: dict[TopicPartition, tuple[BrokerId, int, int] | None] = {}
        # Damaged logs: the leader epoch of the first request since the registration.
        self._first_epochs: dict[TopicPartition, int] = {}

    def candidates(self) -> list[TopicPartition]:
        """Return the logs that a LeaderAndIsr would replace now.

        A log is returned again after every change of its leader or ISR: an attempt may have failed.
        Call again when ZooKeeper lists other suspect replicas.
        """
        found = []
        partitions = self._cache.snapshot.partitions
        for topic_partition in sorted(self._partitions.offline):
            row = partitions.get(topic_partition)
            is_dispensable = row is not None and self._is_dispensable(row)
            if (
                not (is_dispensable or topic_partition in self._unlisted)
                or not self._logs.is_damaged(topic_partition)
                or not self._suspects.is_listed(topic_partition)
            ):
                continue
            leadership = (row.leader, row.leader_epoch, row.partition_epoch) if row else None
            is_named = self._named.get(topic_partition) == leadership
            if not is_named or topic_partition in self._unlisted:
                self._named[topic_partition] = leadership
                found.append(topic_partition)
            self._unlisted.discard(topic_partition)
        return found

    def forget(self, topic_partition: TopicPartition) -> None:
        """Forget a replica whose log was removed: a new topic of this name has new epochs."""
        self._named.pop(topic_partition, None)
        self._unlisted.discard(topic_partition)
        self._first_epochs.pop(topic_partition, None)

    def make_room(self, topic_partition: TopicPartition, state: LeaderAndIsrPartition) -> Errors:
        """Rename a damaged log if this replica neither leads nor is in the ISR.

        Return the error to answer if the log is not renamed. CORRUPT_MESSAGE asks the controller
        for a later leader epoch: in this one the end of the damaged log may still count, and the
        replica may have rejoined the ISR with it.
        """
        if not self._logs.is_damaged(topic_partition):
            return Errors.KAFKA_STORAGE_ERROR
        self._first_epochs.setdefault(topic_partition, state.leader_epoch)
        used_in = self._used_in(topic_partition)
        if not self._is_dispensable(state) or state.leader_epoch < used_in:
            return Errors.KAFKA_STORAGE_ERROR
        is_listed = self._suspects.is_listed(topic_partition)
        if state.leader_epoch == used_in:
            return Errors.CORRUPT_MESSAGE
        if not is_listed:
            self._unlisted.add(topic_partition)
            return Errors.KAFKA_STORAGE_ERROR
        try:
            self._logs.set_aside(topic_partition)
        except StorageError:
            return Errors.KAFKA_STORAGE_ERROR  # the directory has logged its failure
        self._partitions.forget(topic_partition)
        self.forget(topic_partition)
        log.warning(
            "[Broker id=%d] %s: replacing the damaged log; fetching it again from leader %d",
            self._broker_id,
            topic_partition,
            state.leader,
        )
        return Errors.NONE

    def _used_in(self, topic_partition: TopicPartition) -> int:
        """Return the last leader epoch in which a damaged log may have been used.

        After a restart it is that of the first request: the former process knew no later one.
        """
        known = self._partitions.get(topic_partition)
        if known is not None and known.leader_epoch >= 0:
            return known.leader_epoch
        return self._first_epochs.get(topic_partition, -1)

    def _is_dispensable(self, row: LeaderAndIsrPartition | UpdateMetadataPartition) -> bool:
        is_led_elsewhere = NO_LEADER < row.leader != self._broker_id
        return is_led_elsewhere and self._broker_id not in row.isr
