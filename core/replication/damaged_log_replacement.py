"""Replicas whose log is damaged are fetched anew, as soon as nobody needs what is left of it.

Kafka leaves them as they are. Here the controller takes such a replica out of service like one in a
failed directory: others lead, and the ISR does without it. Then there is nothing in the log that
the others lack, as every committed record is on all of the ISR. The controller is notified once
more, and its next order finds the log replaced by an empty one, which follows. It must be of a
leader epoch in which the damaged log was never used.
"""

from __future__ import annotations

import logging

from regent.core.errors import Errors, StorageError
from regent.core.model import NO_LEADER, BrokerId, TopicPartition
from regent.core.protocol.control import LeaderAndIsrPartition, UpdateMetadataPartition
from regent.core.replica_logs import ReplicaLogs
from regent.core.replication.all_partitions import AllPartitions
from regent.core.replication.metadata_cache import MetadataCache

log = logging.getLogger("state.change")


class DamagedLogReplacement:
    """Knows which logs can be replaced, and does it. Not thread-safe."""

    def __init__(
        self,
        broker_id: BrokerId,
        logs: ReplicaLogs,
        cache: MetadataCache,
        partitions: AllPartitions,
    ) -> None:
        self._broker_id = broker_id
        self._logs = logs
        self._cache = cache
        self._partitions = partitions
        self._named: dict[TopicPartition, tuple[BrokerId, int, int]] = {}  # leader and both epochs

    def candidates(self) -> list[TopicPartition]:
        """Return what could be replaced if the controller gave the order now.

        Each once for each leadership and ISR: who answers with an error has to be asked again.
        """
        found = []
        partitions = self._cache.snapshot.partitions
        for topic_partition in sorted(self._partitions.offline):
            row = partitions.get(topic_partition)
            if (
                row is None
                or not self._is_dispensable(row)
                or not self._logs.is_damaged(topic_partition)
            ):
                continue
            leadership = row.leader, row.leader_epoch, row.partition_epoch
            if self._named.get(topic_partition) != leadership:
                self._named[topic_partition] = leadership
                found.append(topic_partition)
        return found

    def forget(self, topic_partition: TopicPartition) -> None:
        """Forget a replica whose log is gone: epochs of another topic of its name begin anew."""
        self._named.pop(topic_partition, None)

    def make_room(
        self, topic_partition: TopicPartition, state: LeaderAndIsrPartition, *, is_registered: bool
    ) -> Errors:
        """Set a damaged log aside, if an order says that the others do without it.

        Return what is to be answered when that is not done. CORRUPT_MESSAGE asks for the same order
        in a later leader epoch: in this one where the log ended may still count, and it may be in
        the ISR by now for that. So it may if the order was for an earlier life of this broker,
        which cannot be told before it ``is_registered``.
        """
        known = self._partitions.get(topic_partition)
        if not self._logs.is_damaged(topic_partition) or not self._is_dispensable(state):
            return Errors.KAFKA_STORAGE_ERROR
        if known is not None and state.leader_epoch < known.leader_epoch:
            return Errors.KAFKA_STORAGE_ERROR
        if not is_registered or (known is not None and state.leader_epoch == known.leader_epoch):
            return Errors.CORRUPT_MESSAGE
        try:
            self._logs.set_aside(topic_partition)
        except StorageError:
            return Errors.KAFKA_STORAGE_ERROR  # a directory that fails says so itself
        self._partitions.forget(topic_partition)
        self._named.pop(topic_partition, None)
        log.warning(
            "[Broker id=%d] %s: the damaged log is set aside, to be fetched anew from leader %d",
            self._broker_id,
            topic_partition,
            state.leader,
        )
        return Errors.NONE

    def _is_dispensable(self, row: LeaderAndIsrPartition | UpdateMetadataPartition) -> bool:
        is_led_elsewhere = NO_LEADER < row.leader != self._broker_id
        return is_led_elsewhere and self._broker_id not in row.isr
