"""Tracks the replicas of this broker that may have lost committed records.

A replica is suspect until it rejoins the ISR as a follower, or until it is elected leader: then no
better replica exists, or an operator allowed it. See ``SuspectReplicas``.
"""

from __future__ import annotations

import logging
from typing import TypeAlias

from regent.core.errors import Errors
from regent.core.model import NO_LEADER, BrokerId, SuspectReplicas, TopicPartition
from regent.core.protocol.control import (
    LeaderAndIsrPartition,
    LeaderAndIsrRequest,
    UpdateMetadataPartition,
)
from regent.core.replica_logs import PartitionLog, ReplicaLogs

LostReplicas: TypeAlias = list[tuple[TopicPartition, LeaderAndIsrPartition]]

log = logging.getLogger("state.change")


class SuspectTracker:
    """Learns from control requests which replicas are suspect. Not thread-safe."""

    def __init__(self, broker_id: BrokerId, logs: ReplicaLogs) -> None:
        self._lost: LostReplicas = []
        self._has_news = False
        self._told = logs.suspect_changes
        self._broker_id = broker_id
        self._logs = logs
        # Leader epoch and partition epoch in which a replica was known not to be in sync.
        self._out_of_sync_in: dict[TopicPartition, tuple[int, int]] = {}
        # Logs that were created outside the ISR: leader epoch and partition epoch of that.
        self._created_in: dict[TopicPartition, tuple[int, int]] = {}
        self._listed: set[TopicPartition] = set()  # as suspect, in ZooKeeper
        self._refused: dict[TopicPartition, int] = {}  # to lead, in which controller epoch
        self._are_given_up = False

    def must_refuse(
        self,
        topic_partition: TopicPartition,
        state: LeaderAndIsrPartition,
        replica_log: PartitionLog,
    ) -> bool:
        """Whether to refuse leadership: records of this leader epoch may be lost."""
        if state.leader != self._broker_id or not self._logs.is_suspect(topic_partition):
            return False
        return state.leader_epoch <= replica_log.latest_epoch

    def note_missing(self, request: LeaderAndIsrRequest) -> None:
        """Mark replicas with missing logs as suspect, before their logs are created again.

        The complete loss is known only after all parts of a FULL request. If the broker stops
        before that, the new empty logs must not count as sound after the restart.
        """
        missing = _missing(request, self._logs)
        if missing:
            self._logs.note_lost([topic_partition for topic_partition, _ in missing], are_all=False)

    def gather_lost(self, request: LeaderAndIsrRequest) -> LostReplicas:
        """Return the replicas with missing logs, in a request's parts up to this one.

        Include replicas outside the ISR: one of them may be an eligible leader (KIP-966), which
        the request does not say.
        """
        if request.part == 0:
            self._lost = []
        self._lost += _missing(request, self._logs)
        return self._lost

    def on_lost(self, lost: LostReplicas) -> None:
        """Mark the replicas as suspect whose logs a new or emptied log directory lost."""
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

    def on_created(self, topic_partition: TopicPartition, state: LeaderAndIsrPartition) -> None:
        """A log is created; it has all records when its replica is in a later ISR."""
        self._created_in.pop(topic_partition, None)
        if self._broker_id not in state.isr:
            self._created_in[topic_partition] = state.leader_epoch, state.partition_epoch

    @property
    def awaits_isrs(self) -> bool:
        """Whether ``on_leadership`` must be told of every ISR."""
        return bool(self._created_in) or self._logs.has_suspects

    def on_leadership(
        self, topic_partition: TopicPartition, row: LeaderAndIsrPartition | UpdateMetadataPartition
    ) -> None:
        """Process a leadership that the controller decided knowing that this replica is suspect.

        A replica that rejoined the ISR has fetched all committed records.
        """
        version = row.leader_epoch, row.partition_epoch
        is_in_isr = self._broker_id in row.isr
        if is_in_isr and self._created_in.get(topic_partition, version) < version:
            del self._created_in[topic_partition]
            self._logs.mark_whole(topic_partition)
        if not self._logs.is_suspect(topic_partition):
            return
        if row.leader <= NO_LEADER:
            self._has_news = True  # an election now depends on the end of its log
        elif not is_in_isr:
            self._out_of_sync_in[topic_partition] = max(
                version, self._out_of_sync_in.get(topic_partition, version)
            )
        elif self._out_of_sync_in.get(topic_partition, version) < version:
            self.mark_sound(topic_partition)

    def mark_sound(self, topic_partition: TopicPartition) -> None:
        """Clear the suspicion of a replica. No-op if it is not suspect."""
        if self._logs.is_suspect(topic_partition):
            self._out_of_sync_in.pop(topic_partition, None)
            self._logs.mark_sound(topic_partition)

    def is_listed(self, topic_partition: TopicPartition) -> bool:
        """Mark a replica with a log as suspect; return whether ZooKeeper lists it as such.

        If not, it is listed soon. A controller then sees the suspicion no later than anything that
        happens after it.
        """
        before = self._logs.suspect_changes
        self._logs.mark_suspect(topic_partition)
        if self._logs.suspect_changes != before:
            self._listed.discard(topic_partition)  # a list that is being written may lack it
        self._has_news |= topic_partition not in self._listed
        return topic_partition in self._listed

    def on_listed(self, suspects: SuspectReplicas) -> None:
        """Learn that ZooKeeper lists these replicas as suspect."""
        self._listed = set(suspects.ends)

    def on_replaced(self, topic_partition: TopicPartition) -> None:
        """A replica has an empty log instead of a damaged one: it stays suspect."""
        self._out_of_sync_in.pop(topic_partition, None)
        self._refused.pop(topic_partition, None)

    def forget(self, topic_partition: TopicPartition) -> None:
        """Forget a replica whose log was removed: a new topic of this name has new epochs."""
        self.mark_sound(topic_partition)
        self._created_in.pop(topic_partition, None)
        self._out_of_sync_in.pop(topic_partition, None)
        self._refused.pop(topic_partition, None)

    def on_answer(
        self,
        topic_partition: TopicPartition,
        row: LeaderAndIsrPartition,
        error: Errors,
        controller_epoch: int,
    ) -> None:
        """Note whether a replica has refused to lead.

        That another request has succeeded since does not undo it: the controller may have sent that
        before it read the refusal. Its successor does not know of the refusal.
        """
        if error is Errors.CORRUPT_MESSAGE and row.leader == self._broker_id:
            self._refused[topic_partition] = controller_epoch
        elif self._refused.get(topic_partition, controller_epoch) < controller_epoch:
            del self._refused[topic_partition]

    def on_stop(self, topic_partition: TopicPartition) -> None:
        """Note that a replica is stopped and not deleted.

        A controller of Kafka does so after such a refusal: for it the log has failed. It never asks
        again. A controller of this project begins a later leader epoch instead.
        """
        if self._refused.pop(topic_partition, None) is not None:
            self._are_given_up = True

    def take_given_up(self) -> bool:
        """Return whether replicas were given up since the last call that could serve."""
        were_given_up, self._are_given_up = self._are_given_up, False
        return were_given_up

    def take_changes(self) -> bool:
        """Return whether to notify the controller: suspects changed, or one lost its leader."""
        has_news = self._has_news or self._told != self._logs.suspect_changes
        self._has_news, self._told = False, self._logs.suspect_changes
        return has_news


def _missing(request: LeaderAndIsrRequest, logs: ReplicaLogs) -> LostReplicas:
    return [
        (topic_partition, state)
        for topic_partition, state in request.partitions()
        if not state.is_new and logs.get(topic_partition) is None
    ]
