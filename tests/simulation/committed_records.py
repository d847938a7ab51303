"""Written and committed records of one partition of one topic, batch by batch.

S5: only one broker appends in a leader epoch. S7: a committed batch stays at its offset unless an
unclean election follows. S8: the same offset in the same leader epoch is the same batch, behind
the same batches.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field
from typing import NamedTuple

from regent.core.model import BrokerId, LeaderAndIsr, TopicPartition
from regent.core.replication.partition import Partition
from regent.core.topic_validation import GROUP_METADATA_TOPIC
from tests.simulation.simulated_logs import SimulatedLog
from tests.support.memory_logs import StoredBatch
from tests.support.record_batches import CONTROL_MASK, values_of
from tests.support.record_checks import headers_of


class LogKey(NamedTuple):
    """A partition of one topic; a topic created anew has another id."""

    name: TopicPartition
    topic_id: str


class Position(NamedTuple):
    """The place of a batch."""

    leader_epoch: int
    base_offset: int


@dataclass(slots=True)
class CommittedRecords:
    """``is_tainted``: disks lost the only copies, so that losses are not checked any more."""

    key: LogKey
    is_tainted: bool = False
    unclean_epochs: list[int] = field(default_factory=list)
    deleted_to: int = 0  # by requests to delete records
    committed: dict[int, StoredBatch] = field(default_factory=dict)  # by base offset
    committed_in: dict[int, int] = field(default_factory=dict)  # the leader epoch of the commit
    # How many replicas had a batch at its commit. Another one may be committed at its offset after
    # an unclean election, while an old leader still acknowledges the first.
    _holders: dict[Position, int] = field(default_factory=dict)
    # The states in which replicas outside the ISR may be elected: leader epoch, partition epoch.
    _with_eligible: set[tuple[int, int]] = field(default_factory=set)
    _newest_led: int = -1  # the highest leader epoch with a leader
    # Committed batches that leaders lacked, and their leader epochs.
    _lost: list[tuple[int, StoredBatch]] = field(default_factory=list)
    _appenders: dict[int, BrokerId] = field(default_factory=dict)
    _written: dict[Position, tuple[StoredBatch, Position | None]] = field(default_factory=dict)
    # The last sequence number of a producer in each of its epochs, and its offset.
    _last_sequences: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    # Producers that wrote to an earlier topic of this name before. They do not know which of their
    # batches are in which topic, and write them again in a new epoch.
    _came_from_earlier_topics: set[int] = field(default_factory=set)
    _places: dict[bytes | None, int] = field(
        default_factory=dict
    )  # of records of idempotent producers

    def is_covered(self, one_epoch: int, other_epoch: int) -> bool:
        """Whether an unclean election between two epochs, or a lost disk, explains a loss."""
        low, high = sorted((one_epoch, other_epoch))
        return self.is_tainted or any(low < epoch <= high for epoch in self.unclean_epochs)

    def is_excused(self, producer_id: int) -> bool:
        """Whether a log may have forgotten the state of an idempotent producer."""
        is_known = any(producer_id == known for known, _ in self._last_sequences)
        return self.is_tainted or bool(self.unclean_epochs) or not is_known

    # --- writing ---

    def on_led(self, broker_id: BrokerId, log: SimulatedLog, batch: StoredBatch) -> None:
        """A leader appended a batch."""
        where = f"{self.key.name}: broker {broker_id} appended {_shown(batch)}"
        appender = self._appenders.setdefault(batch.leader_epoch, broker_id)
        assert appender == broker_id, f"OneAppenderPerEpoch: {where}, as {appender} did"
        position = Position(batch.leader_epoch, batch.base_offset)
        before = position_before(log, len(log.batches) - 1)
        is_new = position not in self._written or self.is_tainted
        assert is_new, f"{where} in place of another batch"
        assert before is None or before.leader_epoch <= batch.leader_epoch, (
            f"an older epoch than before, {where}"
        )
        self._written[position] = batch, before

    def on_followed(self, broker_id: BrokerId, log: SimulatedLog, index: int) -> None:
        """A follower appended a batch: a leader wrote the same one behind the same batch."""
        if self.is_tainted:
            return
        batch = log.batches[index]
        where = f"{self.key.name}: broker {broker_id} copied {_shown(batch)}"
        written = self._written.get(Position(batch.leader_epoch, batch.base_offset))
        assert written is not None, f"LogMatching: {where}, which no leader wrote"
        assert written[0].data == batch.data, f"LogMatching: {where}, the leader {written[0]}"
        if not index or log.batches[index - 1].last_offset < self.deleted_to:
            return  # the batch before it is deleted here or there
        before = position_before(log, index)
        assert before in (None, written[1]) or written[1] is None, (
            f"LogMatching: {where} behind {before}, its leader has it behind {written[1]}"
        )

    # --- committing ---

    def on_eligible_replicas(self, state: LeaderAndIsr) -> None:
        """ZooKeeper has a state in which replicas outside the ISR may be elected (KIP-966)."""
        self._with_eligible.add((state.leader_epoch, state.partition_epoch))

    def check_nobody_else_may_lead(self, leader: Partition) -> None:
        """A leader raised its high watermark: not in a state with eligible replicas."""
        is_alone = (leader.leader_epoch, leader.partition_epoch) not in self._with_eligible
        assert is_alone or self.is_tainted, f"OthersMayLead: the leader commits: {leader}"

    def has(self, batch: StoredBatch) -> bool:
        """Whether a batch is known to be committed."""
        known = self.committed.get(batch.base_offset)
        return known is not None and known.data == batch.data

    def on_committed(
        self, broker_id: BrokerId, batch: StoredBatch, leader_epoch: int, holders: int
    ) -> None:
        """The high watermark of a leader passed a batch."""
        position = Position(batch.leader_epoch, batch.base_offset)
        self._holders[position] = max(holders, self._holders.get(position, 0))
        known = self.committed.get(batch.base_offset)
        replaced_in = self.committed_in.get(batch.base_offset, -1)
        if known is not None and leader_epoch < replaced_in:
            # A leader from before an unclean election does not know of it yet.
            assert self.is_covered(leader_epoch, replaced_in), (
                f"CommittedStays: {self.key.name}: {_shown(known)} was committed in epoch"
                f" {replaced_in}, and broker {broker_id} commits {_shown(batch)} in {leader_epoch}"
            )
            self._lost.append((replaced_in, batch))
            return
        if known is not None:
            assert self.is_covered(known.leader_epoch, leader_epoch), (
                f"CommittedStays: {self.key.name}: {_shown(known)} was committed, and broker"
                f" {broker_id} commits {_shown(batch)} in epoch {leader_epoch}"
            )
        self.committed[batch.base_offset] = batch
        self.committed_in[batch.base_offset] = leader_epoch
        self._check_sequence(batch)

    def _check_sequence(self, batch: StoredBatch) -> None:
        """The records of an idempotent producer are there exactly once and in order."""
        ((_, header),) = headers_of(batch.data)
        is_of_producer = header.producer_id >= 0 and not header.attributes & CONTROL_MASK
        is_of_producer &= self.key.name.topic != GROUP_METADATA_TOPIC  # its sequences are all 0
        if not is_of_producer or self.unclean_epochs or self.is_tainted:
            return
        where = f"{self.key.name}: producer {header.producer_id}: {_shown(batch)}"
        producer = header.producer_id, header.producer_epoch
        last = self._last_sequences.get(producer, (-1, -1))
        assert header.base_sequence > last[0], f"OnceAndInOrder: {where}, {last[0]} is at {last[1]}"
        self._last_sequences[producer] = header.base_sequence, batch.base_offset
        if last[0] < 0 < header.base_sequence:
            self._came_from_earlier_topics.add(header.producer_id)
        if header.producer_id in self._came_from_earlier_topics:
            return
        for value in values_of(batch.data):  # in all producer epochs: a value is written once
            place = self._places.setdefault(value, batch.base_offset)
            assert place == batch.base_offset, f"OnceAndInOrder: {where}: {value!r} is at {place}"

    def check_leader(self, broker_id: BrokerId, log: SimulatedLog, leader_epoch: int) -> None:
        """A new leader has all committed batches; forget those whose loss is explained.

        Do not forget them if a later leader has led already: this broker applies its request late.
        """
        lacking = self.check_member(broker_id, log, leader_epoch)
        if leader_epoch < self._newest_led:
            return
        self._newest_led = leader_epoch
        for batch in lacking:
            del self.committed[batch.base_offset]
            self._lost.append((leader_epoch, batch))

    def committed_at(self, base_offset: int, leader_epoch: int) -> StoredBatch | None:
        """Return what is committed at an offset for a leader of an epoch.

        A leader from before an unclean election, which does not know of it yet, may acknowledge
        again a batch that is lost since.
        """
        for lost_in, batch in self._lost:
            if leader_epoch < lost_in and batch.base_offset == base_offset:
                return batch
        return self.committed.get(base_offset)

    def holders_of(self, batch: StoredBatch) -> int:
        """Return how many replicas had a batch when it was committed."""
        return self._holders[Position(batch.leader_epoch, batch.base_offset)]

    def check_member(
        self, broker_id: BrokerId, log: SimulatedLog, leader_epoch: int
    ) -> list[StoredBatch]:
        """A member of the ISR has all committed batches; return those it may lack."""
        there = {batch.base_offset: batch for batch in log.batches}
        start = min(self.deleted_to, log.log_start_offset)
        lacking: list[StoredBatch] = []
        for base_offset, batch in self.committed.items():
            own = there.get(base_offset)
            is_there = own is not None and own.data == batch.data
            if is_there or batch.last_offset < start:
                continue
            if self.committed_in[base_offset] > leader_epoch:
                continue  # committed by a later leader; this one applied its request late
            assert self.is_covered(batch.leader_epoch, leader_epoch), (
                f"LeaderCompleteness: {self.key.name}: broker {broker_id} may lead in epoch"
                f" {leader_epoch} and has {own and _shown(own)} for {_shown(batch)}"
            )
            lacking.append(batch)
        return lacking


def position_before(log: SimulatedLog, index: int) -> Position | None:
    """Return where the batch before another is; None: it is the first batch of the log."""
    before = log.batches[index - 1] if index else None
    if before is None or before.last_offset < log.log_start_offset:
        return None
    return Position(before.leader_epoch, before.base_offset)


def batch_at(log: SimulatedLog, base_offset: int) -> StoredBatch | None:
    """Return the batch that begins at an offset."""
    index = bisect.bisect_left(log.batches, base_offset, key=lambda batch: batch.base_offset)
    found = log.batches[index] if index < len(log.batches) else None
    return found if found is not None and found.base_offset == base_offset else None


def _shown(batch: StoredBatch) -> str:
    return f"{batch.base_offset}..{batch.last_offset} of epoch {batch.leader_epoch}"
