"""Which replicas of this broker may have lost committed records, and until when.

A replica is suspect until it is back in the ISR by following a leader, or until it is elected
leader: then no better replica exists, or an operator allowed it. See ``SuspectReplicas``.
"""

from __future__ import annotations

import logging
from typing import TypeAlias

from regent.core.model import NO_LEADER, BrokerId, TopicPartition
from regent.core.protocol.control import (
    LeaderAndIsrPartition,
    LeaderAndIsrRequest,
    UpdateMetadataPartition,
)
from regent.core.replica_logs import PartitionLog, ReplicaLogs

LostReplicas: TypeAlias = list[tuple[TopicPartition, LeaderAndIsrPartition]]

log = logging.getLogger("state.change")


class SuspectTracker:
    """Learns from control requests. Not thread-safe."""

    def __init__(self, broker_id: BrokerId, logs: ReplicaLogs) -> None:
        self._lost: LostReplicas = []
        self._has_lost_leader = False
        self._told = logs.suspect_changes
        self._broker_id = broker_id
        self._logs = logs
        # Leader epoch and partition epoch in which a replica was known not to be in sync.
        self._out_of_sync_in: dict[TopicPartition, tuple[int, int]] = {}

    def must_refuse(
        self,
        topic_partition: TopicPartition,
        state: LeaderAndIsrPartition,
        replica_log: PartitionLog,
        *,
        is_present: bool,
    ) -> bool:
        """Whether to refuse leadership: records of this leader epoch may be lost.

        Also if the request is for an earlier registration of this broker.
        """
        if state.leader != self._broker_id or not self._logs.is_suspect(topic_partition):
            return False
        return not is_present or state.leader_epoch <= replica_log.latest_epoch

    def note_missing(self, request: LeaderAndIsrRequest) -> None:
        """Mark replicas as suspect whose logs are missing, before these are created again.

        The whole loss is known after all parts of a FULL. If the broker stops before that, or none
        is sent, the empty logs must not pass for sound after a restart.
        """
        missing = _missing(request, self._logs)
        if missing:
            self._logs.note_lost([topic_partition for topic_partition, _ in missing], are_all=False)

    def gather_lost(self, request: LeaderAndIsrRequest) -> LostReplicas:
        """Return what is gone of all that is hosted: of a request's parts up to this one.

        Outside the ISR as well: a replica there may be eligible to lead (KIP-966), which a request
        does not tell.
        """
        if request.part == 0:
            self._lost = []
        self._lost += _missing(request, self._logs)
        return self._lost

    def on_lost(self, lost: LostReplicas) -> None:
        """Note the logs that a new or emptied log directory lacks."""
        if self._logs.knows_all:
            return
        self._logs.note_lost([topic_partition for topic_partition, _ in lost])
        for topic_partition, state in lost:
            self.on_leadership(topic_partition, state)
        if lost:
            log.error(
                "[Broker id=%d] the logs of %d replicas are missing, the first: %s",
                self._broker_id,
                len(lost),
                lost[0][0],
            )

    def on_leadership(
        self, topic_partition: TopicPartition, row: LeaderAndIsrPartition | UpdateMetadataPartition
    ) -> None:
        """Take in a leadership of which the controller knows that this replica is suspect.

        In the ISR after it was out of it, it has fetched whatever is committed.
        """
        if not self._logs.is_suspect(topic_partition):
            return
        version = row.leader_epoch, row.partition_epoch
        if row.leader <= NO_LEADER:
            self._has_lost_leader = True  # how much there is in its log counts now
        elif self._broker_id not in row.isr:
            self._out_of_sync_in[topic_partition] = max(
                version, self._out_of_sync_in.get(topic_partition, version)
            )
        elif self._out_of_sync_in.get(topic_partition, version) < version:
            self.absolve(topic_partition)

    def absolve(self, topic_partition: TopicPartition) -> None:
        """Clear the suspicion of a replica. No-op if it is not suspect."""
        if self._logs.is_suspect(topic_partition):
            self._out_of_sync_in.pop(topic_partition, None)
            self._logs.absolve(topic_partition)

    def forget(self, topic_partition: TopicPartition) -> None:
        """Forget a replica whose log is gone: a new topic of its name has new epochs."""
        self._out_of_sync_in.pop(topic_partition, None)

    def take_news(self) -> bool:
        """Return whether controllers should be told what is suspect now."""
        has_news = self._has_lost_leader or self._told != self._logs.suspect_changes
        self._has_lost_leader, self._told = False, self._logs.suspect_changes
        return has_news


def _missing(request: LeaderAndIsrRequest, logs: ReplicaLogs) -> LostReplicas:
    return [
        (topic_partition, state)
        for topic_partition, state in request.partitions()
        if not state.is_new and logs.get(topic_partition) is None
    ]
