"""The partitions this broker leads: who is in sync, what is committed, what is proposed.

Mirrors the ISR half of ``kafka.server.ReplicaManager`` and ``kafka.cluster.Partition``. Only the
shrink timer looks through all of them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass

from regent.core.errors import Errors, StorageError
from regent.core.model import UNKNOWN_BROKER_EPOCH, BrokerId, LeaderRecoveryState, TopicPartition
from regent.core.protocol.controller import (
    AlteredPartition,
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionRow,
)
from regent.core.replica_logs import AppendedRecords
from regent.core.replication.all_partitions import AllPartitions
from regent.core.replication.alter_partition_manager import AlterPartitionManager
from regent.core.replication.delayed_operation import DelayedOperationPurgatory
from regent.core.replication.fetch_session import FetchSessionCache
from regent.core.replication.isr import has_reached_isr, out_of_sync_members
from regent.core.replication.metadata_cache import MetadataCache
from regent.core.replication.partition import Partition
from regent.core.replication.replica import Replica

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
# Nothing was changed; when it is still called for, the next check proposes it anew. Not so with any
# other error, of a controller that cannot read the topic's znode at the moment for one: that before
# it may have done what was asked.
_REJECTED = frozenset({Errors.INELIGIBLE_REPLICA, Errors.OPERATION_NOT_ATTEMPTED})


@dataclass(slots=True)
class IsrCounters:
    """What became of proposals since the start; ``kafka.server:type=ReplicaManager`` has them."""

    isr_expands: int = 0
    isr_shrinks: int = 0
    failed_isr_updates: int = 0


class LeaderPartitions:
    """The leaderships of this broker. Not thread-safe.

    What waits for a partition hears from here of whatever happens to it: ``sessions`` of what
    followers are to be told, ``delayed`` of what is committed, dropped, or led no longer.
    """

    def __init__(
        self,
        partitions: AllPartitions,
        cache: MetadataCache,
        sessions: FetchSessionCache,
        delayed: DelayedOperationPurgatory,
        *,
        broker_id: BrokerId,
        max_lag_ms: int,
    ) -> None:
        self.counters = IsrCounters()
        self.records_in = 0  # from producers
        self._partitions = partitions
        self._cache = cache
        self._sessions = sessions
        self._delayed = delayed
        self._broker_id = broker_id
        self._max_lag_ms = max_lag_ms
        self._led: dict[TopicPartition, Partition] = {}
        self._proposals = AlterPartitionManager()

    def __len__(self) -> int:
        return len(self._led)

    # --- what there is; looks through all of them ---

    @property
    def under_replicated_count(self) -> int:
        """How many of them miss replicas in their ISR."""
        return sum(partition.is_under_replicated for partition in self._led.values())

    @property
    def under_min_isr_count(self) -> int:
        """How many of them have fewer in sync than ``acks=all`` takes."""
        return sum(len(p.isr) < p.min_isr for p in self._led.values())

    @property
    def at_min_isr_count(self) -> int:
        """How many of them would take no ``acks=all`` if one more fell behind."""
        return sum(len(p.isr) == p.min_isr for p in self._led.values())

    # --- what happens ---

    def start_leading(self, partition: Partition, now_ms: int) -> None:
        """Look after a partition that has just been made a leader."""
        self._led[partition.topic_partition] = partition
        self._on_leadership(partition.topic_partition)
        self._advance_high_watermark(partition, now_ms)
        if partition.is_recovering:
            self._propose_recovered(partition)

    def stop_leading(self, topic_partition: TopicPartition) -> None:
        """Forget a leadership with all it proposed; none is fine."""
        if self._led.pop(topic_partition, None) is not None:
            self._on_leadership(topic_partition)
        self._proposals.withdraw(topic_partition)

    def _on_leadership(self, topic_partition: TopicPartition) -> None:
        self._sessions.on_news(topic_partition)
        self._delayed.on_change(topic_partition)

    def on_append(self, partition: Partition, appended: AppendedRecords, now_ms: int) -> None:
        """Let followers have what was appended, and commit it if there are none."""
        if not appended.is_duplicate:
            self.records_in += appended.last_offset - appended.first_offset + 1
        self._sessions.on_news(partition.topic_partition)
        self._advance_high_watermark(partition, now_ms)

    def on_log_start(self, partition: Partition) -> None:
        """Let followers drop what the leader dropped."""
        self._on_leadership(partition.topic_partition)

    def on_fetch(
        self, partition: Partition, replica: BrokerId, *, got_on: bool, now_ms: int
    ) -> None:
        """Act on a follower's new position."""
        self._expand_isr(partition, replica)
        if got_on:
            self._advance_high_watermark(partition, now_ms)

    def advance_high_watermarks(
        self, topic_partitions: Iterable[TopicPartition], now_ms: int
    ) -> None:
        """Look again who must be waited for: who fell silent is not, after a while."""
        for topic_partition in topic_partitions:
            partition = self._led.get(topic_partition)
            try:
                if partition is not None and not partition.is_all_committed:
                    self._advance_high_watermark(partition, now_ms)
            except StorageError as error:
                self._partitions.fail(topic_partition, error)

    def _advance_high_watermark(self, partition: Partition, now_ms: int) -> None:
        if partition.advance_high_watermark(now_ms, self._max_lag_ms, self._is_eligible):
            self._sessions.on_change(partition.topic_partition)
            self._delayed.on_change(partition.topic_partition)

    # --- proposals ---

    def shrink_isrs(self, now_ms: int) -> None:
        """Propose ISRs without those out of sync, and again what was rejected before."""
        self.advance_high_watermarks(list(self._led), now_ms)
        shrunk: list[TopicPartition] = []
        for topic_partition, partition in list(self._led.items()):
            try:
                if self._shrink_isr(partition, now_ms):
                    shrunk.append(topic_partition)
            except StorageError as error:
                self._partitions.fail(topic_partition, error)
        if shrunk:
            log.info(
                "[Broker id=%d] proposes to shrink %d ISRs by replicas that are out of sync, the"
                " first: %s",
                self._broker_id,
                len(shrunk),
                shrunk[0],
            )

    def _shrink_isr(self, partition: Partition, now_ms: int) -> bool:
        if partition.proposal is not None:
            return False
        if partition.is_recovering:
            self._propose_recovered(partition)
            return False
        gone = out_of_sync_members(
            partition.isr,
            self._broker_id,
            partition.followers,
            partition.local_log.log_end_offset,
            now_ms,
            self._max_lag_ms,
        )
        kept = tuple(r for r in partition.isr if r not in (*gone, *self._dead(partition, now_ms)))
        if kept != partition.isr:
            self._propose(partition, kept)
        return kept != partition.isr

    def _dead(self, partition: Partition, now_ms: int) -> list[BrokerId]:
        """Return who died and has all there is: while nothing is written it does not fall behind.

        A leader that changes ISRs in ZooKeeper may let it in after the controller let it go.
        """
        return [
            replica
            for replica, follower in partition.followers.items()
            if now_ms - follower.caught_up_ms() > self._max_lag_ms
            and not self._is_eligible(replica, follower)
        ]

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

    def _is_eligible(self, replica: BrokerId, follower: Replica) -> bool:
        """Whether a follower is alive, and the life that is alive is the one that fetched."""
        registered = self._cache.snapshot.brokers.get(replica)
        return registered is not None and (
            UNKNOWN_BROKER_EPOCH in (registered.broker_epoch, follower.broker_epoch)
            or registered.broker_epoch == follower.broker_epoch
        )

    @property
    def has_proposals(self) -> bool:
        """Whether any is waiting, or in flight."""
        return len(self._proposals) > 0

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
            partition.proposal = None  # and who is not let in is waited for no longer
            self.advance_high_watermarks((partition.topic_partition,), now_ms)
        elif error not in _SUPERSEDED:
            self._proposals.submit(row)

    def _commit(self, partition: Partition, answer: AlteredPartition, now_ms: int) -> None:
        partition.commit(answer)
        self._sessions.on_change(partition.topic_partition)  # who left may come back
        # A shrunk ISR may let it (KAFKA-13091).
        self.advance_high_watermarks((partition.topic_partition,), now_ms)
