"""The partitions this broker leads: their ISRs, high watermarks and AlterPartition proposals.

Mirrors the ISR half of ``kafka.server.ReplicaManager`` and ``kafka.cluster.Partition``, and
``kafka.server.DefaultAlterPartitionManager``. Only the shrink timer and the metrics look through
all of them.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, NamedTuple

from regent.core.errors import Errors, StorageError
from regent.core.model import UNKNOWN_BROKER_EPOCH, BrokerId, LeaderRecoveryState, TopicPartition
from regent.core.protocol.control import TopicId
from regent.core.protocol.controller import (
    AlteredPartition,
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionRow,
)
from regent.core.records import RecordBytes
from regent.core.repeated_lines import RepeatedLines
from regent.core.replica_logs import AppendedRecords
from regent.core.replication.all_partitions import AllPartitions
from regent.core.replication.delayed_operation import (
    DelayedOperationPurgatory,
    Slices,
    run_in_slices,
    slices_to_look_at,
)
from regent.core.replication.fetch_session import FetchSessionCache
from regent.core.replication.metadata_cache import MetadataCache
from regent.core.replication.partition import (
    Partition,
    Replica,
    has_reached_isr,
    out_of_sync_members,
)
from regent.core.topic_validation import INTERNAL_TOPICS

log = logging.getLogger("state.change")

# They limit the request to what the controller's broker accepts.
MAX_PROPOSALS_AT_ONCE = 10_000
MAX_PROPOSED_BYTES: Final = 2 * 1024 * 1024
_ROW_BYTES: Final = 64  # at most, beside the name of the topic and the members
_MEMBER_BYTES: Final = 14  # a broker id and a broker epoch

LIMIT_BYTES: Final = 16 * 1024 * 1024
_COPIED_BYTES: Final = 8 * 1024  # less is copied: it would keep the whole request in memory
ENTRY_BYTES: Final = 512
"""What an append costs besides its records."""

# The controller has newer state than this leader. Keep the proposal, and with it the maximal ISR,
# until the next LeaderAndIsr.
_SUPERSEDED = frozenset(
    {
        Errors.INVALID_REQUEST,
        Errors.FENCED_LEADER_EPOCH,
        Errors.INCONSISTENT_TOPIC_ID,
        Errors.NEW_LEADER_ELECTED,
    }
)
# The controller changed nothing: the next check proposes the change again if it is still needed.
# After any other error the proposal is sent again as it is: an earlier copy of the request may have
# been carried out, for example when the controller cannot read the topic's znode now.
_REJECTED = frozenset({Errors.INELIGIBLE_REPLICA, Errors.OPERATION_NOT_ATTEMPTED})


@dataclass(slots=True)
class IsrCounters:
    """Outcomes of ISR changes since the start, as in ``kafka.server:type=ReplicaManager``."""

    isr_expands: int = 0
    isr_shrinks: int = 0
    failed_isr_updates: int = 0
    removed: Counter[BrokerId] = field(default_factory=Counter)
    """How often each broker was taken out of an ISR."""


class Leadership(NamedTuple):
    """Whether this broker leads a partition.

    ``term`` is the leader epoch with which the leadership began; None: it does not lead it.
    ``leader_epoch`` None: it has no replica. ``topic_id`` is that of the replica.
    """

    topic_partition: TopicPartition
    term: int | None
    leader_epoch: int | None
    topic_id: TopicId | None = None


class LeaderPartitions:
    """The partitions this broker leads. Not thread-safe.

    Changes of a partition are passed to ``sessions``, which answer followers, and to ``delayed``
    when records were committed or deleted, or the leadership ended.
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
        self.recent_appends = RecentAppends()
        self._partitions = partitions
        self._cache = cache
        self._sessions = sessions
        self._delayed = delayed
        self._broker_id = broker_id
        self._max_lag_ms = max_lag_ms
        self._led: dict[TopicPartition, Partition] = {}
        self._changed: dict[TopicPartition, None] = {}  # of internal topics, not reported yet
        self._proposals = AlterPartitionManager()
        self._with_eligible: frozenset[TopicPartition] = frozenset()  # of the last answer
        self._lines = RepeatedLines()

    def __len__(self) -> int:
        return len(self._led)

    # --- counts; each looks through all of them ---

    def followers(self) -> Collection[BrokerId]:
        """Return the other brokers that have replicas of what this one leads."""
        return {follower for partition in self._led.values() for follower in partition.followers}

    @property
    def under_replicated_count(self) -> int:
        """How many of them lack replicas in their ISR."""
        return sum(partition.is_under_replicated for partition in self._led.values())

    @property
    def under_min_isr_count(self) -> int:
        """How many of them have fewer replicas in sync than ``min.insync.replicas``."""
        return sum(len(p.isr) < p.min_isr for p in self._led.values())

    @property
    def at_min_isr_count(self) -> int:
        """How many of them have exactly ``min.insync.replicas`` replicas in sync."""
        return sum(len(p.isr) == p.min_isr for p in self._led.values())

    # --- events ---

    def start_leading(self, partition: Partition, now_ms: int) -> None:
        """Add a partition that has just become a leader here."""
        self._led[partition.topic_partition] = partition
        log.debug(
            "[Partition %s broker=%d] Leader starts at leader epoch %d from offset %s with high"
            " watermark %d, ISR %s",
            partition.topic_partition,
            self._broker_id,
            partition.leader_epoch,
            partition.leader_epoch_start_offset,
            partition.high_watermark,
            partition.isr,
        )
        self._on_leadership(partition.topic_partition)
        self._note_change(partition.topic_partition)
        self._advance_high_watermark(partition, now_ms)
        if partition.is_recovering:
            self._propose_recovered(partition)

    def stop_leading(self, topic_partition: TopicPartition) -> None:
        """Drop a leadership and its pending AlterPartition. No-op if not led."""
        if self._led.pop(topic_partition, None) is None:
            return
        self._on_leadership(topic_partition)
        self._note_change(topic_partition)
        self.recent_appends.forget(topic_partition)
        self._proposals.withdraw(topic_partition)

    def _note_change(self, topic_partition: TopicPartition) -> None:
        if topic_partition.topic in INTERNAL_TOPICS:
            self._changed[topic_partition] = None

    def take_changes(self) -> list[Leadership]:
        """Return the partitions of internal topics whose leadership has changed."""
        changed, self._changed = self._changed, {}
        return [self._leadership(topic_partition) for topic_partition in changed]

    def _leadership(self, topic_partition: TopicPartition) -> Leadership:
        partition = self._partitions.get(topic_partition)
        if partition is None:
            return Leadership(topic_partition, None, None)
        is_led = topic_partition in self._led
        term = partition.leading_since if is_led else None
        return Leadership(topic_partition, term, partition.leader_epoch, partition.topic_id)

    def _on_leadership(self, topic_partition: TopicPartition) -> None:
        self._sessions.on_news(topic_partition)
        self._delayed.on_change(topic_partition)

    def on_append(self, partition: Partition, appended: AppendedRecords, now_ms: int) -> None:
        """Wake the fetches of followers, and commit at once if there are no followers."""
        if appended.data and partition.followers:
            self.recent_appends.note(partition.topic_partition, appended)
        self._sessions.on_news(partition.topic_partition)
        self._advance_high_watermark(partition, now_ms)

    def on_log_start(self, partition: Partition) -> None:
        """Send the raised log start offset to followers."""
        self._on_leadership(partition.topic_partition)

    def on_fetch(
        self, partition: Partition, replica: BrokerId, *, has_moved: bool, now_ms: int
    ) -> None:
        """Expand the ISR or advance the high watermark after a follower's fetch."""
        self._expand_isr(partition, replica)
        if has_moved:
            self._advance_high_watermark(partition, now_ms)

    def advance_high_watermarks(
        self, topic_partitions: Iterable[TopicPartition], now_ms: int
    ) -> None:
        """Compute high watermarks again, because the wait for silent followers is limited."""
        for topic_partition in topic_partitions:
            partition = self._led.get(topic_partition)
            try:
                if partition is not None and not partition.is_all_committed:
                    self._advance_high_watermark(partition, now_ms)
            except StorageError as error:
                self._partitions.fail(topic_partition, error)

    def _advance_high_watermark(self, partition: Partition, now_ms: int) -> None:
        if partition.advance_high_watermark(now_ms, self._max_lag_ms, self._is_eligible):
            self.recent_appends.on_committed(partition.topic_partition, partition.high_watermark)
            self._sessions.on_change(partition.topic_partition)
            self._delayed.on_change(partition.topic_partition)
        elif partition.must_exclude_eligible_replicas:
            self._propose(partition, partition.isr)

    # --- proposals ---

    def shrink_isrs(self, now_ms: int) -> Slices[None]:
        """Propose ISRs without the replicas that are out of sync; repeat rejected proposals."""
        shrunk: list[TopicPartition] = []

        def shrink(topic_partitions: Sequence[TopicPartition]) -> None:
            self.advance_high_watermarks(topic_partitions, now_ms)
            for topic_partition in topic_partitions:
                partition = self._led.get(topic_partition)
                try:
                    if partition is not None and self._shrink_isr(partition, now_ms):
                        shrunk.append(topic_partition)
                except StorageError as error:
                    self._partitions.fail(topic_partition, error)

        yield from run_in_slices(slices_to_look_at(self._led), shrink)
        if shrunk:
            log.info(
                "[Broker id=%d] Shrinking ISR of %d partitions by replicas out of sync, the"
                " first: %s",
                self._broker_id,
                len(shrunk),
                shrunk[0],
            )

    def _shrink_isr(self, partition: Partition, now_ms: int) -> bool:
        if partition.proposal is not None:
            self._proposals.repeat(partition.topic_partition)
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
        """Return dead followers that have every record: without new records they never fall behind.

        A leader that changes ISRs in ZooKeeper may add one after the controller removed it.
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
        broker_epochs = (
            partition.followers[member].broker_epoch
            if member in partition.followers
            else UNKNOWN_BROKER_EPOCH  # the request holds the one of this broker
            for member in isr
        )
        row = AlterPartitionRow(
            *partition.topic_partition,
            partition.topic_id,
            partition.leader_epoch,
            isr,
            tuple(broker_epochs),
            LeaderRecoveryState.RECOVERED,
            partition.partition_epoch,
        )
        if not self._proposals.submit(row):
            return
        partition.proposal = row
        if isr != partition.isr:
            log.debug(
                "[Partition %s broker=%d] %s ISR from %s to %s",
                partition.topic_partition,
                self._broker_id,
                "Shrinking" if len(isr) < len(partition.isr) else "Expanding",
                partition.isr,
                isr,
            )

    def _is_eligible(self, replica: BrokerId, follower: Replica) -> bool:
        """Whether a follower is registered, with the broker epoch that it fetched with."""
        registered = self._cache.snapshot.brokers.get(replica)
        return registered is not None and (
            UNKNOWN_BROKER_EPOCH in (registered.broker_epoch, follower.broker_epoch)
            or registered.broker_epoch == follower.broker_epoch
        )

    @property
    def has_proposals(self) -> bool:
        """Whether a proposal waits or is in flight."""
        return len(self._proposals) > 0

    def alter_partition_request(self, broker_epoch: int) -> AlterPartitionRequest | None:
        """Put the proposals in flight; None if there are none or a request is in flight already."""
        return self._proposals.next_request(self._broker_id, broker_epoch)

    def on_alter_partition_response(
        self, request: AlterPartitionRequest, response: AlterPartitionResponse | None, now_ms: int
    ) -> None:
        """Apply the answer to each proposal. Those of ended leaderships were withdrawn."""
        failed: list[AlteredPartition] = []
        self._with_eligible = frozenset(response.with_eligible_replicas if response else ())
        for row, answer in self._proposals.on_response(request, response):
            partition = self._led[row.topic_partition]
            if answer.error_code is Errors.NONE:
                self._on_accepted(partition, answer, now_ms)
            else:
                self._on_refused(partition, row, answer, now_ms)
                failed.append(answer)
        self.counters.failed_isr_updates += len(failed)
        if failed and self._lines.is_due(failed[0][:3], now_ms):
            log.info(
                "[Broker id=%d] Failed to alter the ISR of %d partitions, the first: %s, %s",
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
        self.counters.removed.update({*partition.isr} - {*answer.isr})
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
            # The ISR was changed elsewhere, and a LeaderAndIsr may not follow. Adopt the
            # controller's state if it is newer; the next check proposes again.
            if partition.is_current(answer):
                self._commit(partition, answer, now_ms)
        elif error in _REJECTED:
            partition.proposal = None  # a follower that was not added is no longer awaited
            if row.new_isr == partition.isr:
                return  # the next check, fetch or append proposes it again
            self.advance_high_watermarks((partition.topic_partition,), now_ms)
            if len(row.new_isr) > len(partition.isr):
                # A member that is out of sync may be the reason. Its removal must not wait for the
                # next check, before which the follower may be proposed again.
                self._shrink_isr(partition, now_ms)
        elif error is Errors.UNKNOWN_TOPIC_OR_PARTITION:
            # The topic is deleted, or the controller does not know it yet, or is an old one: then
            # no LeaderAndIsr follows.
            self._proposals.put_off(row)
        elif error not in _SUPERSEDED:
            self._proposals.submit(row)

    def _commit(self, partition: Partition, answer: AlteredPartition, now_ms: int) -> None:
        is_it = partition.topic_partition in self._with_eligible
        partition.commit(answer, has_eligible_replicas=is_it)
        self._sessions.on_change(partition.topic_partition)  # a follower that left may rejoin
        # A smaller ISR may raise the high watermark (KAFKA-13091).
        self.advance_high_watermarks((partition.topic_partition,), now_ms)


class AlterPartitionManager:
    """The proposals of the leaders on this broker: one per partition. Not thread-safe.

    One request is in flight at a time. A proposal is kept until its answer arrives, so a lost
    request or answer loses no proposal. A repeated request is harmless (KAFKA-14144): the
    controller carries no attempt out after a later one, so an answer counts for all earlier ones.
    """

    def __init__(self) -> None:
        self._items: dict[TopicPartition, AlterPartitionRow] = {}
        self._put_off: dict[TopicPartition, AlterPartitionRow] = {}
        self._in_flight: AlterPartitionRequest | None = None
        self._attempts = 0

    def __len__(self) -> int:
        return len(self._items)

    def submit(self, row: AlterPartitionRow) -> bool:
        """Queue a proposal; False: not queued, because the partition has a pending proposal."""
        return self._items.setdefault(row.topic_partition, row) is row

    def withdraw(self, topic_partition: TopicPartition) -> None:
        """Remove the proposal of a leadership that has ended.

        If it is in flight already, its answer is ignored (KAFKA-12686).
        """
        self._items.pop(topic_partition, None)
        self._put_off.pop(topic_partition, None)

    def put_off(self, row: AlterPartitionRow) -> None:
        """Keep an answered proposal until ``repeat``."""
        self._put_off[row.topic_partition] = row

    def repeat(self, topic_partition: TopicPartition) -> None:
        """Queue the proposal of a partition again if it was put off."""
        row = self._put_off.pop(topic_partition, None)
        if row is not None:
            self.submit(row)

    def next_request(self, broker_id: BrokerId, broker_epoch: int) -> AlterPartitionRequest | None:
        """Put the queued proposals in flight and return their request.

        None: there are no proposals, or another request is in flight.
        """
        if self._in_flight is not None or not self._items:
            return None
        rows = tuple(self._next_rows())
        self._attempts += 1
        self._in_flight = AlterPartitionRequest(broker_id, broker_epoch, rows, self._attempts)
        return self._in_flight

    def _next_rows(self) -> Iterator[AlterPartitionRow]:
        room = MAX_PROPOSED_BYTES
        for row in islice(self._items.values(), MAX_PROPOSALS_AT_ONCE):
            room -= len(row.topic) + _ROW_BYTES + _MEMBER_BYTES * len(row.new_isr)
            if room < 0:
                return
            yield row

    def on_response(
        self, request: AlterPartitionRequest, response: AlterPartitionResponse | None
    ) -> list[tuple[AlterPartitionRow, AlteredPartition]]:
        """Remove and return the answered proposals; queue all others again.

        ``response`` None: no answer came. An answer to another request than the one in flight is
        late; it is ignored.
        """
        if request != self._in_flight:
            return []
        self._in_flight = None
        if response is None or response.error_code is not Errors.NONE:
            return []
        answers = {answer.topic_partition: answer for answer in response.partitions}
        answered: list[tuple[AlterPartitionRow, AlteredPartition]] = []
        for row in request.partitions:
            answer = answers.get(row.topic_partition)
            if answer is not None and self._items.get(row.topic_partition) == row:
                # Remove it before handling the answer, which may submit a retry (KAFKA-14010).
                del self._items[row.topic_partition]
                answered.append((row, answer))
        return answered


class _Append(NamedTuple):
    """One append; ``cost``: how many bytes of memory it keeps."""

    next_offset: int
    data: RecordBytes
    cost: int


class RecentAppends:
    """The appends of each partition that are not committed yet, by their first offsets.

    A follower in the ISR asks for exactly these records. Read from the file, each of them would
    copy them once more. Committed records are sent from the file, which copies them less often.
    Not thread-safe.

    They keep at most about ``limit`` bytes of memory: when there are more, all of them are
    forgotten, and followers read the file. Those of a partition must be forgotten when its
    leadership ends, because the log may be truncated then.
    """

    def __init__(self, limit: int = LIMIT_BYTES) -> None:
        self._limit = limit
        self._appends: dict[TopicPartition, dict[int, _Append]] = {}
        self.size = 0
        """How many bytes of memory they keep."""

    def note(self, topic_partition: TopicPartition, appended: AppendedRecords) -> None:
        """Keep what was appended; its bytes must not change any more."""
        data = appended.data
        if len(data) < _COPIED_BYTES:
            data = bytes(data)
        size = memoryview(data.obj).nbytes if isinstance(data, memoryview) else len(data)
        cost = size + ENTRY_BYTES
        self.size += cost
        if self.size > self._limit:
            self._appends.clear()
            self.size = 0
            return
        appends = self._appends.setdefault(topic_partition, {})
        appends[appended.first_offset] = _Append(appended.last_offset + 1, data, cost)

    def read(self, topic_partition: TopicPartition, offset: int, max_bytes: int) -> RecordBytes:
        """Return what was appended from ``offset`` on, as far as it is here and fits.

        Empty: read the log. Perhaps the log has such records nevertheless.
        """
        appends = self._appends.get(topic_partition)
        append = None if appends is None else appends.get(offset)
        pieces: list[RecordBytes] = []
        while appends is not None and append is not None and len(append.data) <= max_bytes:
            pieces.append(append.data)
            max_bytes -= len(append.data)
            append = appends.get(append.next_offset)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def on_committed(self, topic_partition: TopicPartition, high_watermark: int) -> None:
        """Forget what is committed: the members of the ISR have it."""
        appends = self._appends.get(topic_partition)
        while appends:
            first_offset, append = next(iter(appends.items()))
            if append.next_offset > high_watermark:
                return
            del appends[first_offset]
            self.size -= append.cost
        if appends is not None:
            del self._appends[topic_partition]

    def forget(self, topic_partition: TopicPartition) -> None:
        """Forget a partition."""
        appends = self._appends.pop(topic_partition, {})
        self.size -= sum(append.cost for append in appends.values())
