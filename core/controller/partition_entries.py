"""All that the controller knows of one partition, in about 200 bytes.

Thousands of partitions have equal assignments, leaderships and replica states. Their entries refer
to the same objects: the decoders of znodes return the same object for the same bytes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from types import MappingProxyType

from regent.core.controller.states import PartitionState, ReplicaState
from regent.core.errors import RegentError
from regent.core.model import (
    NO_ASSIGNMENT,
    BrokerId,
    LeaderIsrAndControllerEpoch,
    PartitionAndReplica,
    ReplicaAssignment,
    TopicPartition,
)

_REPLICA_STATES = tuple(ReplicaState)
_NOT_KEPT = (
    ReplicaState.NON_EXISTENT,
    ReplicaState.DELETION_STARTED,
    ReplicaState.DELETION_SUCCESSFUL,
)
_NO_STATES: Mapping[BrokerId, ReplicaState] = MappingProxyType({})
_NO_ENTRIES: Mapping[int, PartitionEntry] = MappingProxyType({})


class IllegalStateError(RegentError):
    """Two facts contradict each other; only a defect of this program can cause it."""


@dataclass(slots=True, eq=False)
class PartitionEntry:
    """One partition in the controller's memory; only ``ControllerContext`` changes it.

    ``replica_states`` has the code of one ``ReplicaState`` for each of ``assignment.replicas``.
    """

    topic_partition: TopicPartition
    assignment: ReplicaAssignment = NO_ASSIGNMENT
    leadership: LeaderIsrAndControllerEpoch | None = None
    state: PartitionState = PartitionState.NON_EXISTENT
    replica_states: bytes = b""
    counts_as_imbalanced: bool = False

    @property
    def is_preferred_leader_imbalanced(self) -> bool:
        """Whether another replica than the first assigned one leads."""
        if self.leadership is None or not self.assignment.replicas:
            return False
        leadership, preferred = self.leadership.leader_and_isr, self.assignment.replicas[0]
        if preferred in self.assignment.adding_replicas:
            return preferred in leadership.isr  # else it could not lead yet
        return leadership.leader != preferred

    def replica_state(self, broker_id: BrokerId) -> ReplicaState | None:
        """Return the state of an assigned replica; None for other brokers."""
        replicas = self.assignment.replicas
        if broker_id not in replicas:
            return None
        return _REPLICA_STATES[self.replica_states[replicas.index(broker_id)]]

    def put_replica_state(self, broker_id: BrokerId, state: ReplicaState) -> None:
        """Set the state of an assigned replica."""
        index = self.assignment.replicas.index(broker_id)
        self.replica_states = _with_code(self.replica_states, index, state.code)


@lru_cache(maxsize=1024)
def pack_states(states: tuple[ReplicaState, ...]) -> bytes:
    """Return the packed states. Interned: equal states are one object."""
    return bytes([state.code for state in states])


@lru_cache(maxsize=128)
def no_states(count: int) -> bytes:
    """Return the packed states of ``count`` NonExistent replicas."""
    return pack_states((ReplicaState.NON_EXISTENT,) * count)


@lru_cache(maxsize=4096)
def _with_code(states: bytes, index: int, code: int) -> bytes:
    changed = bytearray(states)
    changed[index] = code
    return bytes(changed)


class PartitionEntries:
    """The entries of all partitions, their counters, and those that wait for a leader."""

    def forget_entries(self) -> None:
        """Forget all partitions."""
        self.topics_to_be_deleted: set[str] = set()
        self.topics_with_deletion_started: set[str] = set()
        self.unreadable_partitions: set[TopicPartition] = set()  # their state znodes exist
        # In-sync replicas whose brokers have started again since the leadership was decided.
        self.restarted_replicas: dict[TopicPartition, frozenset[BrokerId]] = {}
        self.offline_partition_count = 0
        self.preferred_replica_imbalance_count = 0
        self.partition_count = 0  # that have, or had, a leader
        self._topics: dict[str, dict[int, PartitionEntry]] = {}
        # The states of replicas that are not assigned any more, or not yet.
        self._unassigned: dict[TopicPartition, dict[BrokerId, ReplicaState]] = {}
        self._waiting: dict[PartitionState, dict[TopicPartition, None]] = {
            PartitionState.NEW: {},
            PartitionState.OFFLINE: {},
        }

    def entries(self, topic: str) -> Mapping[int, PartitionEntry]:
        """Return the entry of every partition of a topic (read only); empty if it is unknown."""
        return self._topics.get(topic, _NO_ENTRIES)

    def entries_of(self, partitions: Iterable[TopicPartition]) -> list[PartitionEntry]:
        """Return the entry of each partition (read only); an empty entry if it is unknown."""
        find = self._find
        return [find(tp) or PartitionEntry(tp) for tp in partitions]

    def add_partitions(self, topic: str, assignments: Mapping[int, ReplicaAssignment]) -> None:
        """Remember the assignments of many partitions of a topic."""
        entries = self._topics.setdefault(topic, {})
        for number, assignment in assignments.items():
            entry = entries.get(number)
            if entry is not None:
                self._assign(entry, assignment)
                continue
            entries[number] = PartitionEntry(
                TopicPartition(topic, number),
                assignment,
                replica_states=no_states(len(assignment.replicas)),
            )

    def update_partition_full_replica_assignment(
        self, topic_partition: TopicPartition, assignment: ReplicaAssignment
    ) -> None:
        """Replace the partition's assignment."""
        self._assign(self._entry(topic_partition), assignment)

    def partition_full_replica_assignment(
        self, topic_partition: TopicPartition
    ) -> ReplicaAssignment:
        """Return the partition's assignment; an empty one if it is unknown."""
        entry = self._find(topic_partition)
        return NO_ASSIGNMENT if entry is None else entry.assignment

    def partition_replica_assignment(self, topic_partition: TopicPartition) -> tuple[BrokerId, ...]:
        """Return every replica of the partition, also those being added or removed."""
        entry = self._find(topic_partition)
        return () if entry is None else entry.assignment.replicas

    def partition_assignments(self, topic: str) -> dict[TopicPartition, ReplicaAssignment]:
        """Return the assignment of every partition of a topic; empty when unknown."""
        return {e.topic_partition: e.assignment for e in self.entries(topic).values()}

    def partitions_of(self, topic: str) -> list[TopicPartition]:
        """Return every partition of a topic."""
        return [e.topic_partition for e in self.entries(topic).values()]

    def all_partitions(self) -> Iterator[TopicPartition]:
        """Yield every partition of every topic."""
        return (entry.topic_partition for entry in self._entries())

    def partitions_on_broker(self, broker_id: BrokerId) -> list[TopicPartition]:
        """Return every partition with a replica on the broker."""
        return [e.topic_partition for e in self._entries() if broker_id in e.assignment.replicas]

    def replicas_on_brokers(self, broker_ids: Iterable[BrokerId]) -> list[PartitionAndReplica]:
        """Return every replica on these brokers."""
        return [
            PartitionAndReplica(topic_partition, broker_id)
            for broker_id in broker_ids
            for topic_partition in self.partitions_on_broker(broker_id)
        ]

    def replicas_of(self, partitions: Iterable[TopicPartition]) -> list[PartitionAndReplica]:
        """Return every replica of these partitions."""
        return list(self.each_replica_of(partitions))

    def each_replica_of(
        self, partitions: Iterable[TopicPartition]
    ) -> Iterator[PartitionAndReplica]:
        """Yield every replica of these partitions.

        A list of millions of them would stop all threads when it is freed: for 0.1 s or longer.
        """
        for topic_partition in partitions:
            for replica in self.partition_replica_assignment(topic_partition):
                yield PartitionAndReplica(topic_partition, replica)

    def replicas_ever_told(self, partitions: Iterable[TopicPartition]) -> list[PartitionAndReplica]:
        """Return every replica of these partitions, assigned or known by its state."""
        return [
            PartitionAndReplica(topic_partition, replica)
            for topic_partition in partitions
            for replica in (
                *self.partition_replica_assignment(topic_partition),
                *self._unassigned.get(topic_partition, ()),
            )
        ]

    def partition_leadership_info(
        self, topic_partition: TopicPartition
    ) -> LeaderIsrAndControllerEpoch | None:
        """Return the partition's leadership; None when none was ever decided."""
        entry = self._find(topic_partition)
        return None if entry is None else entry.leadership

    def put_partition_leadership_info(
        self, topic_partition: TopicPartition, leadership: LeaderIsrAndControllerEpoch
    ) -> LeaderIsrAndControllerEpoch | None:
        """Remember a leadership that ZooKeeper holds; return the one that was known before."""
        entry = self._entry(topic_partition)
        before = entry.leadership
        self._lead(entry, leadership)
        self.unreadable_partitions.discard(topic_partition)
        self.restarted_replicas.pop(topic_partition, None)
        return before

    def partition_state(self, topic_partition: TopicPartition) -> PartitionState:
        """Return the partition's state; NON_EXISTENT when unknown."""
        entry = self._find(topic_partition)
        return PartitionState.NON_EXISTENT if entry is None else entry.state

    def put_partition_state(self, topic_partition: TopicPartition, state: PartitionState) -> None:
        """Remember the partition's state."""
        self._set_state(self._entry(topic_partition), state)

    def partitions_in_state(self, *states: PartitionState) -> list[TopicPartition]:
        """Return the partitions in these states, sorted. Only NEW and OFFLINE are allowed."""
        return sorted(tp for state in states for tp in self._waiting[state])

    def replica_state(self, replica: PartitionAndReplica) -> ReplicaState:
        """Return the replica's state; NON_EXISTENT when unknown."""
        topic_partition, broker_id = replica
        entry = self._find(topic_partition)
        state = None if entry is None else entry.replica_state(broker_id)
        if state is None:
            unassigned = self._unassigned.get(topic_partition, _NO_STATES)
            return unassigned.get(broker_id, ReplicaState.NON_EXISTENT)
        return state

    def replicas_in_states(
        self, replicas: Iterable[PartitionAndReplica], states: Collection[ReplicaState]
    ) -> tuple[dict[BrokerId, list[TopicPartition]], list[PartitionAndReplica]]:
        """Return the replicas in these states, by broker, and the others."""
        by_broker: dict[BrokerId, list[TopicPartition]] = {}
        others: list[PartitionAndReplica] = []
        for replica in replicas:
            topic_partition, broker_id = replica
            if self.replica_state(replica) in states:
                by_broker.setdefault(broker_id, []).append(topic_partition)
            else:
                others.append(replica)
        return by_broker, others

    def replica_exists(self, broker_id: BrokerId, topic_partition: TopicPartition) -> bool:
        """Whether the broker was told of the replica, and has not deleted it since."""
        replica = PartitionAndReplica(topic_partition, broker_id)
        return self.replica_state(replica) is not ReplicaState.NON_EXISTENT

    def kept_replicas(
        self, broker_ids: Iterable[BrokerId], topic_partition: TopicPartition
    ) -> list[BrokerId]:
        """Return the brokers whose replica exists, and that were not asked to delete it."""
        replicas = [PartitionAndReplica(topic_partition, broker_id) for broker_id in broker_ids]
        return [r.replica for r in replicas if self.replica_state(r) not in _NOT_KEPT]

    def put_replica_state(self, replica: PartitionAndReplica, state: ReplicaState) -> None:
        """Remember the replica's state; NON_EXISTENT forgets it."""
        topic_partition, broker_id = replica
        entry = self._entry(topic_partition)
        if broker_id in entry.assignment.replicas:
            entry.put_replica_state(broker_id, state)
        else:
            self._put_unassigned(topic_partition, {broker_id: state})

    def _entries(self) -> Iterator[PartitionEntry]:
        return chain.from_iterable([entries.values() for entries in self._topics.values()])

    def _find(self, topic_partition: TopicPartition) -> PartitionEntry | None:
        topic, number = topic_partition
        try:
            return self._topics[topic][number]
        except KeyError:
            return None

    def _entry(self, topic_partition: TopicPartition) -> PartitionEntry:
        topic, number = topic_partition
        try:
            return self._topics[topic][number]
        except KeyError:
            entry = PartitionEntry(topic_partition)
            self._topics.setdefault(topic, {})[number] = entry
            return entry

    def _assign(self, entry: PartitionEntry, assignment: ReplicaAssignment) -> None:
        replicas, topic_partition = entry.assignment.replicas, entry.topic_partition
        states = {r: entry.replica_state(r) for r in replicas}
        states.update(self._unassigned.pop(topic_partition, {}))
        entry.assignment = assignment
        none = ReplicaState.NON_EXISTENT
        entry.replica_states = pack_states(
            tuple(states.pop(r, none) or none for r in assignment.replicas)
        )
        self._put_unassigned(topic_partition, states)
        self._count_imbalance(entry)

    def _put_unassigned(
        self, topic_partition: TopicPartition, states: Mapping[BrokerId, ReplicaState | None]
    ) -> None:
        known = self._unassigned.get(topic_partition, {})
        for broker_id, state in states.items():
            if state is None or state is ReplicaState.NON_EXISTENT:
                known.pop(broker_id, None)
            else:
                known[broker_id] = state
        if known:
            self._unassigned[topic_partition] = known
        else:
            self._unassigned.pop(topic_partition, None)

    def _lead(self, entry: PartitionEntry, leadership: LeaderIsrAndControllerEpoch | None) -> None:
        self.partition_count += (leadership is not None) - (entry.leadership is not None)
        entry.leadership = leadership
        self._count_imbalance(entry)

    def _set_state(self, entry: PartitionEntry, state: PartitionState) -> None:
        before = entry.state
        if before is state:
            return
        topic_partition = entry.topic_partition
        waiting = self._waiting.get(before)
        if waiting is not None:
            waiting.pop(topic_partition, None)
        waiting = self._waiting.get(state)
        if waiting is not None:
            waiting[topic_partition] = None
        entry.state = state
        if topic_partition.topic not in self.topics_with_deletion_started:
            self.offline_partition_count += (state is PartitionState.OFFLINE) - (
                before is PartitionState.OFFLINE
            )

    def _count_imbalance(self, entry: PartitionEntry) -> None:
        counts = (
            entry.is_preferred_leader_imbalanced
            and entry.topic_partition.topic not in self.topics_to_be_deleted
        )
        if counts is not entry.counts_as_imbalanced:
            self.preferred_replica_imbalance_count += counts - entry.counts_as_imbalanced
            entry.counts_as_imbalanced = counts

    def validate_entries(self) -> None:
        """Compare counters and indexes with the entries; raises ``IllegalStateError``."""
        entries = list(self._entries())
        for state, kept in self._waiting.items():
            found = {e.topic_partition for e in entries if e.state is state}
            compare(f"partitions in state {state.value}", set(kept), found)
        states = [(len(e.assignment.replicas), len(e.replica_states)) for e in entries]
        compare("replica states", [n for _, n in states], [n for n, _ in states])
        started, deleted = self.topics_with_deletion_started, self.topics_to_be_deleted
        offline = self._waiting[PartitionState.OFFLINE]
        counted = sum(tp.topic not in started for tp in offline)
        compare("offline partitions", self.offline_partition_count, counted)
        led = sum(e.leadership is not None for e in entries)
        compare("partitions with a leadership", self.partition_count, led)
        imbalanced = {
            e.topic_partition: e.is_preferred_leader_imbalanced
            and e.topic_partition.topic not in deleted
            for e in entries
        }
        marked = {e.topic_partition: e.counts_as_imbalanced for e in entries}
        compare("imbalanced partitions", marked, imbalanced)
        total = self.preferred_replica_imbalance_count
        compare("number of imbalanced partitions", total, sum(imbalanced.values()))


def compare(what: str, kept: object, expected: object) -> None:
    """Raise ``IllegalStateError`` unless the two are equal."""
    if kept != expected:
        raise IllegalStateError(f"{what}: the index has {kept!r} instead of {expected!r}")
