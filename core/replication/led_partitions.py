"""The partitions this broker leads: who is in sync, what is committed, what is proposed.

Mirrors the ISR half of ``kafka.server.ReplicaManager`` and ``kafka.cluster.Partition``. Only the
shrink timer looks through all of them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from core.errors import Errors
from core.model import UNKNOWN_BROKER_EPOCH, BrokerId, LeaderRecoveryState, TopicPartition
from core.ports import ReplicaLogs
from core.protocol.controller import (
    AlteredPartition,
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionRow,
)
from core.replication.alter_partition_manager import AlterPartitionManager
from core.replication.isr import has_reached_isr, out_of_sync_members
from core.replication.metadata_cache import MetadataCache
from core.replication.partition import Partition
from core.replication.remote_replica import RemoteReplica

log = logging.getLogger("state.change")

# The controller knows more than this leader, which will be told: the proposal stays, and with it
# the maximal ISR, until the next LeaderAndIsr.
_SUPERSEDED = frozenset(
    {
        Errors.UNKNOWN_TOPIC_OR_PARTITION,
        Errors.INVALID_REQUEST,
        Errors.FENCED_LEADER_EPOCH,
        Errors.INCONSISTENT_TOPIC_ID,
        Errors.NEW_LEADER_ELECTED,
    }
)
# Nothing was changed; when it is still called for, the next check proposes it anew. A topic that
# the controller does not know at the moment may have an unreadable znode.
_REJECTED = frozenset(
    {Errors.INELIGIBLE_REPLICA, Errors.OPERATION_NOT_ATTEMPTED, Errors.UNKNOWN_TOPIC_ID}
)


@dataclass(slots=True)
class IsrCounters:
    """What became of proposals since the start; ``kafka.server:type=ReplicaManager`` has them."""

    isr_expands: int = 0
    isr_shrinks: int = 0
    failed_isr_updates: int = 0


class LedPartitions:
    """The leaderships of this broker. Not thread-safe.

    ``on_change`` hears of each whose followers may have to be told, or looked at again.
    """

    def __init__(
        self,
        broker_id: BrokerId,
        logs: ReplicaLogs,
        cache: MetadataCache,
        max_lag_ms: int,
        on_change: Callable[[TopicPartition], None],
    ) -> None:
        self.counters = IsrCounters()
        self._broker_id = broker_id
        self._logs = logs
        self._cache = cache
        self._max_lag_ms = max_lag_ms
        self._on_change = on_change
        self._led: dict[TopicPartition, Partition] = {}
        self._proposals = AlterPartitionManager()

    def __len__(self) -> int:
        return len(self._led)

    def get(self, name: TopicPartition) -> Partition | None:
        """Return the partition if this broker leads it."""
        return self._led.get(name)

    @property
    def under_replicated_count(self) -> int:
        """How many of them miss replicas in their ISR."""
        return sum(partition.is_under_replicated for partition in self._led.values())

    def lead(self, partition: Partition, now_ms: int) -> None:
        """Look after a partition that has just been made a leader."""
        self._led[partition.topic_partition] = partition
        self._on_change(partition.topic_partition)
        self._advance_high_watermark(partition, now_ms)
        if partition.is_recovering:
            self._propose_recovered(partition)

    def cede(self, name: TopicPartition) -> None:
        """Forget a leadership with all it proposed; none is fine."""
        if self._led.pop(name, None) is not None:
            self._on_change(name)
        self._proposals.withdraw(name)

    def on_fetch(
        self, partition: Partition, replica: BrokerId, *, got_on: bool, now_ms: int
    ) -> None:
        """Act on a follower's new position."""
        self._expand_isr(partition, replica)
        if got_on:
            self._advance_high_watermark(partition, now_ms)

    def _advance_high_watermark(self, partition: Partition, now_ms: int) -> None:
        before = partition.high_watermark
        end = self._logs.log_end_offset(partition.topic_partition)
        partition.advance_high_watermark(end, now_ms, self._max_lag_ms, self._is_eligible)
        if partition.high_watermark != before:
            self._on_change(partition.topic_partition)

    # --- proposals ---

    def shrink_isrs(self, now_ms: int) -> None:
        """Propose ISRs without those out of sync, and again what was rejected before."""
        shrunk: list[TopicPartition] = []
        for name, partition in self._led.items():
            if partition.proposal is not None:
                continue
            if partition.is_recovering:
                self._propose_recovered(partition)
                continue
            end = self._logs.log_end_offset(name)
            gone = out_of_sync_members(
                partition.isr, self._broker_id, partition.followers, end, now_ms, self._max_lag_ms
            )
            if gone:
                self._propose(partition, tuple(r for r in partition.isr if r not in gone))
                shrunk.append(name)
        if shrunk:
            log.info(
                "[Broker id=%d] proposes to shrink %d ISRs by replicas that are out of sync, the"
                " first: %s",
                self._broker_id,
                len(shrunk),
                shrunk[0],
            )

    def _expand_isr(self, partition: Partition, replica: BrokerId) -> None:
        follower = partition.followers[replica]
        start = partition.leader_epoch_start_offset
        assert start is not None, "only leaders are fetched from"
        if (
            replica not in partition.isr
            and partition.proposal is None
            and not partition.is_recovering
            and has_reached_isr(follower, partition.high_watermark, start)
            and self._is_eligible(replica, follower)
        ):
            self._propose(partition, (*partition.isr, replica))

    def _propose_recovered(self, partition: Partition) -> None:
        self._propose(partition, (self._broker_id,))

    def _propose(self, partition: Partition, isr: tuple[BrokerId, ...]) -> None:
        lives = (
            partition.followers[member].broker_epoch
            if member in partition.followers
            else UNKNOWN_BROKER_EPOCH  # of this broker itself, the request says it
            for member in isr
        )
        row = AlterPartitionRow(
            *partition.topic_partition,
            partition.topic_id,
            partition.leader_epoch,
            isr,
            tuple(lives),
            LeaderRecoveryState.RECOVERED,
            partition.partition_epoch,
        )
        if self._proposals.submit(row):
            partition.proposal = row

    def _is_eligible(self, replica: BrokerId, follower: RemoteReplica) -> bool:
        """Whether a follower is alive, and the life that is alive is the one that fetched."""
        registered = self._cache.snapshot.brokers.get(replica)
        return registered is not None and (
            UNKNOWN_BROKER_EPOCH in (registered.broker_epoch, follower.broker_epoch)
            or registered.broker_epoch == follower.broker_epoch
        )

    def alter_partition_request(self, broker_epoch: int) -> AlterPartitionRequest | None:
        """Put what is proposed in flight; None when nothing is, or a request is in flight."""
        return self._proposals.next_request(self._broker_id, broker_epoch)

    def on_alter_partition_response(
        self, request: AlterPartitionRequest, response: AlterPartitionResponse | None, now_ms: int
    ) -> None:
        """Take the outcome of each proposal; one of a leadership that is over has none."""
        failed: list[AlteredPartition] = []
        for row, answer in self._proposals.on_response(request, response):
            partition = self._led[row.topic_partition]  # otherwise it was withdrawn
            if answer.error_code is Errors.NONE:
                self._on_accepted(partition, answer, now_ms)
            else:
                self._on_refused(partition, row, answer, now_ms)
                failed.append(answer)
        if failed:
            self.counters.failed_isr_updates += len(failed)
            log.info(
                "[Broker id=%d] %d ISR changes were refused, the first: %s, %s",
                self._broker_id,
                len(failed),
                failed[0].topic_partition,
                failed[0].error_code.name,
            )

    def _on_accepted(self, partition: Partition, answer: AlteredPartition, now_ms: int) -> None:
        if not partition.is_current(answer):
            return
        self.counters.isr_expands += len(answer.isr) > len(partition.isr)
        self.counters.isr_shrinks += len(answer.isr) < len(partition.isr)
        self._commit(partition, answer, now_ms)

    def _on_refused(
        self,
        partition: Partition,
        row: AlterPartitionRow,
        answer: AlteredPartition,
        now_ms: int,
    ) -> None:
        error = answer.error_code
        if error is Errors.INVALID_UPDATE_VERSION:
            # Somebody else changed the ISR, and no LeaderAndIsr need follow: take over what the
            # controller holds, if it is news, and let the next check propose anew.
            if partition.is_current(answer):
                self._commit(partition, answer, now_ms)
        elif error in _REJECTED:
            partition.proposal = None
        elif error not in _SUPERSEDED:
            self._proposals.submit(row)

    def _commit(self, partition: Partition, answer: AlteredPartition, now_ms: int) -> None:
        partition.commit(answer)
        self._on_change(partition.topic_partition)  # who left may come back
        self._advance_high_watermark(partition, now_ms)  # a shrunk ISR may let it (KAFKA-13091)
