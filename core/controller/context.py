"""The memory of the active controller; mirrors ``kafka.controller.ControllerContext``.

It has one object for each partition (``_PartitionEntry``), and indexes by broker, leader and state:
no query scans the whole cluster when a broker dies. It makes no decision and does no I/O: the state
machines put in what ZooKeeper has accepted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from regent.core.controller.states import PartitionState, ReplicaState
from regent.core.errors import RegentError
from regent.core.model import (
    NO_ASSIGNMENT,
    NO_LEADER,
    BrokerId,
    BrokerRegistration,
    LeaderIsrAndControllerEpoch,
    LogEnd,
    PartitionAndReplica,
    ReplicaAssignment,
    TopicPartition,
)
from regent.core.protocol.control import ControlHeader, TopicId


class IllegalStateError(RegentError):
    """Two facts contradict each other; only a defect of this program can cause it."""


@dataclass(slots=True, eq=False)
class _PartitionEntry:
    """All that is known of one partition."""

    topic_partition: TopicPartition
    assignment: ReplicaAssignment = NO_ASSIGNMENT
    leadership: LeaderIsrAndControllerEpoch | None = None
    state: PartitionState = PartitionState.NON_EXISTENT
    replica_states: dict[BrokerId, ReplicaState] = field(default_factory=dict)
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


@dataclass(slots=True)
class ControllerStats:
    """Counters that survive a term; the shell exposes them as metrics."""

    unclean_leader_elections: int = 0


_INDEXED_STATES = (PartitionState.NEW, PartitionState.OFFLINE)


class ControllerContext:
    """The controller's memory. ``reset`` forgets all but ``stats`` and ``event_id``."""

    def __init__(self) -> None:
        self.stats = ControllerStats()
        self.event_id = 0  # of the event that is being handled; grows until the process ends
        self.reset()

    def reset(self) -> None:
        """Forget everything (KAFKA-5310: state kept after a resignation was used again)."""
        self.epoch = 0
        self.epoch_zk_version = 0
        self.loaded_epoch = 0  # the highest controller epoch in the states that were loaded
        self.shutting_down_broker_ids: set[BrokerId] = set()
        self.unresponsive_broker_ids: set[BrokerId] = set()  # their leaderships were moved too
        self.replicas_on_offline_dirs: dict[BrokerId, set[TopicPartition]] = {}
        self.partitions_being_reassigned: set[TopicPartition] = set()
        self.topics_to_be_deleted: set[str] = set()
        self.topics_with_deletion_started: set[str] = set()
        self.topics_ineligible_for_deletion: set[str] = set()
        self.bad_topics: dict[str, str] = {}  # topic -> why its znode cannot be used
        self.unreadable_partitions: set[TopicPartition] = set()  # their state znodes exist
        self.quarantined: dict[str, str] = {}  # topic or event -> its error
        self.must_read_again = False  # an ACL refused an access; no watch fires when it changes
        self.refused_states: set[TopicPartition] = set()  # an ACL refused to read or write
        # Replicas whose logs were, or can be, replaced, and that wait for a new leader epoch.
        self.waiting_to_restart: set[PartitionAndReplica] = set()
        self.full_withheld_from: set[BrokerId] = set()  # they wait for a FULL LeaderAndIsr
        self.topic_created_zxids: dict[str, int] = {}
        # In-sync replicas whose brokers have started again since the leadership was decided.
        self.restarted_replicas: dict[TopicPartition, frozenset[BrokerId]] = {}
        self.offline_partition_count = 0
        self.preferred_replica_imbalance_count = 0
        self._registrations: dict[BrokerId, BrokerRegistration] = {}
        # Replicas that joined the ISR after their brokers listed them as suspect.
        self._rejoined: dict[BrokerId, set[TopicPartition]] = {}
        # Leaders that may have lost records since they were elected.
        self._leaders_with_losses: dict[TopicPartition, BrokerId] = {}
        self._partitions: dict[TopicPartition, _PartitionEntry] = {}
        self._topics: dict[str, dict[int, _PartitionEntry]] = {}
        self._topic_ids: dict[str, TopicId] = {}
        self._topic_names: dict[TopicId, str] = {}
        self._by_broker: dict[BrokerId, dict[TopicPartition, _PartitionEntry]] = {}
        self._by_leader: dict[BrokerId, dict[TopicPartition, _PartitionEntry]] = {}
        self._by_state: dict[PartitionState, dict[TopicPartition, _PartitionEntry]] = {
            state: {} for state in _INDEXED_STATES
        }

    # --- brokers ---

    def add_live_broker(self, registration: BrokerRegistration) -> None:
        """Remember a broker's registration, in place of an earlier one."""
        broker_id = registration.info.broker_id
        known = self._registrations.get(broker_id)
        if known is None or known.broker_epoch != registration.broker_epoch:
            self._rejoined.pop(broker_id, None)
        self._registrations[broker_id] = registration

    def remove_live_broker(self, broker_id: BrokerId) -> None:
        """Forget a broker's registration; its replicas stay known."""
        self._registrations.pop(broker_id, None)

    @property
    def registrations(self) -> Mapping[BrokerId, BrokerRegistration]:
        """Every registered broker, shutting down or not."""
        return MappingProxyType(self._registrations)

    @property
    def live_or_shutting_down_broker_ids(self) -> list[BrokerId]:
        """Every registered broker, ascending."""
        return sorted(self._registrations)

    @property
    def live_broker_ids(self) -> list[BrokerId]:
        """Ids of registered brokers that are not shutting down, ascending."""
        return [b for b in sorted(self._registrations) if b not in self.shutting_down_broker_ids]

    @property
    def live_broker_epochs(self) -> dict[BrokerId, int]:
        """The broker epoch of every registered broker, shutting down or not."""
        return {b: r.broker_epoch for b, r in self._registrations.items()}

    def broker_epoch(self, broker_id: BrokerId) -> int | None:
        """Return the broker epoch of a registered broker; None for others."""
        registration = self._registrations.get(broker_id)
        return None if registration is None else registration.broker_epoch

    def is_stale(self, broker_id: BrokerId, header: ControlHeader) -> bool:
        """Whether a request with ``header`` is of another term, or of another broker epoch."""
        return (header.controller_epoch, header.broker_epoch) != (
            self.epoch,
            self.broker_epoch(broker_id),
        )

    def is_replica_online(
        self,
        broker_id: BrokerId,
        topic_partition: TopicPartition,
        *,
        include_shutting_down: bool = False,
    ) -> bool:
        """Whether the replica's broker is up and its log directory works."""
        if broker_id not in self._registrations:
            return False
        if not include_shutting_down and broker_id in self.shutting_down_broker_ids:
            return False
        return topic_partition not in self.replicas_on_offline_dirs.get(broker_id, ())

    def suspect_end(self, broker_id: BrokerId, topic_partition: TopicPartition) -> LogEnd | None:
        """Return the end of a suspect replica's log; None: the replica is not suspect."""
        registration = self._registrations.get(broker_id)
        if registration is None or topic_partition in self._rejoined.get(broker_id, ()):
            return None
        return registration.suspects.end_of(topic_partition)

    def must_not_lead(self, broker_id: BrokerId, topic_partition: TopicPartition) -> bool:
        """Whether the broker is the leader, but may have lost committed records since its election.

        A replica that was elected although it was suspect may lead. The records of a topic that is
        queued for deletion do not matter.
        """
        return (
            self._leaders_with_losses.get(topic_partition) == broker_id
            and self.suspect_end(broker_id, topic_partition) is not None
            and not self.is_topic_queued_for_deletion(topic_partition.topic)
        )

    def note_leaders_with_losses(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Record that these leaders may have lost records since they were elected."""
        for topic_partition in topic_partitions:
            leadership = self.partition_leadership_info(topic_partition)
            if leadership is not None:
                leader = leadership.leader_and_isr.leader
                if self.suspect_end(leader, topic_partition) is not None:
                    self._leaders_with_losses[topic_partition] = leader

    def note_elected(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Record new elections: ``must_not_lead`` does not apply to their leaders.

        An unclean election may choose a replica that a reassignment could not create yet. Its
        broker is told to lead, so the replica exists from now on.
        """
        for topic_partition in topic_partitions:
            self._leaders_with_losses.pop(topic_partition, None)
            leadership = self.partition_leadership_info(topic_partition)
            leader = NO_LEADER if leadership is None else leadership.leader_and_isr.leader
            if leader != NO_LEADER and not self.replica_exists(leader, topic_partition):
                replica = PartitionAndReplica(topic_partition, leader)
                self.put_replica_state(replica, ReplicaState.ONLINE)

    def note_rejoined(self, broker_id: BrokerId, topic_partition: TopicPartition) -> None:
        """Clear the suspicion of a replica that joined the ISR, before its broker reports it."""
        if self.suspect_end(broker_id, topic_partition) is not None:
            self._rejoined.setdefault(broker_id, set()).add(topic_partition)

    def has_restarted(self, broker_id: BrokerId, topic_partition: TopicPartition) -> bool:
        """Whether an in-sync replica's broker started again since the leadership was decided."""
        return broker_id in self.restarted_replicas.get(topic_partition, ())

    # --- topics and assignments ---

    @property
    def all_topics(self) -> Collection[str]:
        """Every topic with a usable znode, in the sequence they were read."""
        return self._topics.keys()

    def add_topic_id(self, topic: str, topic_id: TopicId) -> None:
        """Remember a topic's id; a topic keeps its id and no two topics share one."""
        known_id, known_topic = self._topic_ids.get(topic), self._topic_names.get(topic_id)
        if known_id not in (None, topic_id) or known_topic not in (None, topic):
            raise IllegalStateError(
                f"topic {topic} with id {topic_id} contradicts {known_topic} with id {known_id}"
            )
        self._topic_ids[topic] = topic_id
        self._topic_names[topic_id] = topic

    def topic_id(self, topic: str) -> TopicId | None:
        """Return the topic's id, if it has one."""
        return self._topic_ids.get(topic)

    def topic_name(self, topic_id: TopicId) -> str | None:
        """Return the topic with this id, if there is one."""
        return self._topic_names.get(topic_id)

    def add_topic(self, topic: str) -> None:
        """Remember a topic, which may have no partitions yet."""
        self._topics.setdefault(topic, {})

    def remove_topic(self, topic: str) -> None:
        """Forget everything about a topic (KAFKA-1742, KAFKA-1558)."""
        for record in self._topics.pop(topic, {}).values():
            del self._partitions[record.topic_partition]
            self._set_state(record, PartitionState.NON_EXISTENT)
            self._assign(record, NO_ASSIGNMENT)
            self._lead(record, None)
            self.partitions_being_reassigned.discard(record.topic_partition)
            self.unreadable_partitions.discard(record.topic_partition)
            self.refused_states.discard(record.topic_partition)
            self._leaders_with_losses.pop(record.topic_partition, None)
            self.restarted_replicas.pop(record.topic_partition, None)
            for offline in self.replicas_on_offline_dirs.values():
                offline.discard(record.topic_partition)
        self.waiting_to_restart = {
            r for r in self.waiting_to_restart if r.topic_partition.topic != topic
        }
        self.bad_topics.pop(topic, None)
        self.topic_created_zxids.pop(topic, None)
        topic_id = self._topic_ids.pop(topic, None)
        if topic_id is not None:
            self._topic_names.pop(topic_id, None)
        self.topics_to_be_deleted.discard(topic)
        self.topics_with_deletion_started.discard(topic)
        self.topics_ineligible_for_deletion.discard(topic)

    def update_partition_full_replica_assignment(
        self, topic_partition: TopicPartition, assignment: ReplicaAssignment
    ) -> None:
        """Replace the partition's assignment."""
        self._assign(self._record(topic_partition), assignment)

    def partition_full_replica_assignment(
        self, topic_partition: TopicPartition
    ) -> ReplicaAssignment:
        """Return the partition's assignment; empty when unknown."""
        record = self._partitions.get(topic_partition)
        return NO_ASSIGNMENT if record is None else record.assignment

    def partition_replica_assignment(self, topic_partition: TopicPartition) -> tuple[BrokerId, ...]:
        """Return every replica of the partition, also those being added or removed."""
        record = self._partitions.get(topic_partition)
        return () if record is None else record.assignment.replicas

    def partition_assignments(self, topic: str) -> dict[TopicPartition, ReplicaAssignment]:
        """Return the assignment of every partition of a topic; empty when unknown."""
        return {r.topic_partition: r.assignment for r in self._topics.get(topic, {}).values()}

    def partitions_of(self, topic: str) -> list[TopicPartition]:
        """Return every partition of a topic."""
        return [r.topic_partition for r in self._topics.get(topic, {}).values()]

    def all_partitions(self) -> Iterator[TopicPartition]:
        """Yield every partition of every topic."""
        for partitions in self._topics.values():
            for record in partitions.values():
                yield record.topic_partition

    def partitions_on_broker(self, broker_id: BrokerId) -> list[TopicPartition]:
        """Return every partition with a replica on the broker."""
        return list(self._by_broker.get(broker_id, ()))

    def replicas_on_brokers(self, broker_ids: Iterable[BrokerId]) -> list[PartitionAndReplica]:
        """Return every replica on these brokers."""
        return [
            PartitionAndReplica(topic_partition, broker_id)
            for broker_id in broker_ids
            for topic_partition in self._by_broker.get(broker_id, ())
        ]

    def replicas_of(self, partitions: Iterable[TopicPartition]) -> list[PartitionAndReplica]:
        """Return every replica of these partitions."""
        return [
            PartitionAndReplica(topic_partition, replica)
            for topic_partition in partitions
            for replica in self.partition_replica_assignment(topic_partition)
        ]

    def replicas_ever_told(self, partitions: Iterable[TopicPartition]) -> list[PartitionAndReplica]:
        """Return every replica of these partitions, assigned or known by its state."""
        return [
            PartitionAndReplica(topic_partition, replica)
            for topic_partition in partitions
            if (record := self._partitions.get(topic_partition)) is not None
            for replica in dict.fromkeys((*record.assignment.replicas, *record.replica_states))
        ]

    def is_topic_quarantined(self, topic: str) -> bool:
        """Whether a topic is quarantined because it ended controllers."""
        return f"topic {topic}" in self.quarantined

    @property
    def knows_everything(self) -> bool:
        """Whether every topic and every leadership in ZooKeeper could be read."""
        return not self.bad_topics and not self.unreadable_partitions

    # --- leadership ---

    def read_state_again(self, topic_partition: TopicPartition) -> None:
        """Remember a state that an ACL hides or protects: no watch fires when the ACL changes."""
        self.refused_states.add(topic_partition)
        self.must_read_again = True

    def forget_hidden_leadership(self, topic_partition: TopicPartition) -> None:
        """Forget a state that an ACL hides and that may have changed since, as if a term began."""
        self._lead(self._record(topic_partition), None)
        self.put_partition_state(topic_partition, PartitionState.NEW)
        self.unreadable_partitions.add(topic_partition)
        self.must_read_again = True

    def is_of_newer_controller(self, leadership: LeaderIsrAndControllerEpoch) -> bool:
        """Whether a controller that was elected after this one wrote the state.

        Epochs up to the highest one that was loaded at the start of the term do not count. They may
        be higher than ours, because ``/controller_epoch`` was set back.
        """
        return leadership.controller_epoch > max(self.epoch, self.loaded_epoch)

    def put_partition_leadership_info(
        self, topic_partition: TopicPartition, leadership: LeaderIsrAndControllerEpoch
    ) -> None:
        """Remember a leadership that ZooKeeper holds."""
        self._lead(self._record(topic_partition), leadership)
        self.unreadable_partitions.discard(topic_partition)
        self.restarted_replicas.pop(topic_partition, None)

    def partition_leadership_info(
        self, topic_partition: TopicPartition
    ) -> LeaderIsrAndControllerEpoch | None:
        """Return the partition's leadership; None when none was ever decided."""
        record = self._partitions.get(topic_partition)
        return None if record is None else record.leadership

    def partitions_with_leadership(self) -> list[TopicPartition]:
        """Return every partition whose leadership is known."""
        return [tp for partitions in self._by_leader.values() for tp in partitions]

    def partitions_led_by(self, broker_id: BrokerId) -> list[TopicPartition]:
        """Return every partition of which this broker is the leader, in any state."""
        return list(self._by_leader.get(broker_id, ()))

    @property
    def partition_count(self) -> int:
        """How many partitions have, or had, a leader."""
        return sum(len(partitions) for partitions in self._by_leader.values())

    @property
    def leaderless_partition_count(self) -> int:
        """Partitions that lost their leader, and those that never found a live replica."""
        return self.offline_partition_count + len(self._by_state[PartitionState.NEW])

    def partitions_with_offline_leader(self) -> list[TopicPartition]:
        """Return partitions without a leader, or with one that is not online, sorted."""
        offline = [
            tp
            for leader, partitions in self._by_leader.items()
            if leader == NO_LEADER or not self._is_live(leader)
            for tp in partitions
        ]
        for leader, failed in self.replicas_on_offline_dirs.items():
            if self._is_live(leader):
                offline += [tp for tp in failed if tp in self._by_leader.get(leader, ())]
        return sorted(tp for tp in offline if not self.is_topic_queued_for_deletion(tp.topic))

    def partition_leaders_on_broker(self, broker_id: BrokerId) -> list[TopicPartition]:
        """Return partitions that the broker leads and that have other replicas, sorted."""
        return sorted(
            tp
            for tp, record in self._by_leader.get(broker_id, {}).items()
            if len(record.assignment.replicas) > 1
            and not self.is_topic_queued_for_deletion(tp.topic)
        )

    # --- states ---

    def partition_state(self, topic_partition: TopicPartition) -> PartitionState:
        """Return the partition's state; NON_EXISTENT when unknown."""
        record = self._partitions.get(topic_partition)
        return PartitionState.NON_EXISTENT if record is None else record.state

    def put_partition_state(self, topic_partition: TopicPartition, state: PartitionState) -> None:
        """Remember the partition's state."""
        self._set_state(self._record(topic_partition), state)

    def partitions_in_state(self, *states: PartitionState) -> list[TopicPartition]:
        """Return the partitions in these states, sorted. Only NEW and OFFLINE are allowed."""
        return sorted(tp for state in states for tp in self._by_state[state])

    def replica_state(self, replica: PartitionAndReplica) -> ReplicaState:
        """Return the replica's state; NON_EXISTENT when unknown."""
        record = self._partitions.get(replica.topic_partition)
        if record is None:
            return ReplicaState.NON_EXISTENT
        return record.replica_states.get(replica.replica, ReplicaState.NON_EXISTENT)

    def replica_exists(self, broker_id: BrokerId, topic_partition: TopicPartition) -> bool:
        """Whether the broker was told of the replica, and has not deleted it since."""
        replica = PartitionAndReplica(topic_partition, broker_id)
        return self.replica_state(replica) is not ReplicaState.NON_EXISTENT

    def is_replica_kept(self, broker_id: BrokerId, topic_partition: TopicPartition) -> bool:
        """Whether the replica exists, and its broker was not asked to delete it."""
        state = self.replica_state(PartitionAndReplica(topic_partition, broker_id))
        return state not in (
            ReplicaState.NON_EXISTENT,
            ReplicaState.DELETION_STARTED,
            ReplicaState.DELETION_SUCCESSFUL,
        )

    def put_replica_state(self, replica: PartitionAndReplica, state: ReplicaState) -> None:
        """Remember the replica's state; NON_EXISTENT forgets it."""
        states = self._record(replica.topic_partition).replica_states
        if state is ReplicaState.NON_EXISTENT:
            states.pop(replica.replica, None)
        else:
            states[replica.replica] = state

    # --- topic deletion ---

    def is_topic_queued_for_deletion(self, topic: str) -> bool:
        """Whether the topic is to be deleted: it gets no leaders and no metadata any more."""
        return topic in self.topics_to_be_deleted

    def is_to_be_led(self, topic_partition: TopicPartition) -> bool:
        """Whether the partition needs a leader: its topic stays, or it is being reassigned.

        A topic is deleted only when its reassignments are complete.
        """
        is_moving = topic_partition in self.partitions_being_reassigned
        return is_moving or not self.is_topic_queued_for_deletion(topic_partition.topic)

    def queue_topic_deletion(self, topics: Iterable[str]) -> None:
        """Mark topics for deletion; repeating it changes nothing (KAFKA-13572)."""
        for topic in topics:
            if topic not in self.topics_to_be_deleted:
                self.topics_to_be_deleted.add(topic)
                for record in self._topics.get(topic, {}).values():
                    self._count_imbalance(record)

    # --- keeping the indexes ---

    def _is_live(self, broker_id: BrokerId) -> bool:
        return broker_id in self._registrations and broker_id not in self.shutting_down_broker_ids

    def _record(self, topic_partition: TopicPartition) -> _PartitionEntry:
        record = self._partitions.get(topic_partition)
        if record is None:
            record = self._partitions[topic_partition] = _PartitionEntry(topic_partition)
            topic, partition = topic_partition
            self._topics.setdefault(topic, {})[partition] = record
        return record

    def _assign(self, record: _PartitionEntry, assignment: ReplicaAssignment) -> None:
        tp = record.topic_partition
        for replica in record.assignment.replicas:
            self._by_broker[replica].pop(tp, None)
        record.assignment = assignment
        for replica in assignment.replicas:
            self._by_broker.setdefault(replica, {})[tp] = record
        self._count_imbalance(record)

    def _lead(
        self, record: _PartitionEntry, leadership: LeaderIsrAndControllerEpoch | None
    ) -> None:
        tp = record.topic_partition
        if record.leadership is not None:
            self._by_leader[record.leadership.leader_and_isr.leader].pop(tp, None)
        record.leadership = leadership
        if leadership is not None:
            self._by_leader.setdefault(leadership.leader_and_isr.leader, {})[tp] = record
        self._count_imbalance(record)

    def _set_state(self, record: _PartitionEntry, state: PartitionState) -> None:
        tp, before = record.topic_partition, record.state
        if before in _INDEXED_STATES:
            self._by_state[before].pop(tp, None)
        if state in _INDEXED_STATES:
            self._by_state[state][tp] = record
        record.state = state
        if tp.topic not in self.topics_with_deletion_started:
            self.offline_partition_count += (state is PartitionState.OFFLINE) - (
                before is PartitionState.OFFLINE
            )

    def _count_imbalance(self, record: _PartitionEntry) -> None:
        counts = (
            record.is_preferred_leader_imbalanced
            and record.topic_partition.topic not in self.topics_to_be_deleted
        )
        self.preferred_replica_imbalance_count += counts - record.counts_as_imbalanced
        record.counts_as_imbalanced = counts

    # --- checking the indexes ---

    def validate(self) -> None:
        """Compare every index with what it indexes; the tests call this after every event.

        Raises ``IllegalStateError``, which names the index and the first difference.
        """
        records = [r for partitions in self._topics.values() for r in partitions.values()]
        _compare("partitions", self._partitions, {r.topic_partition: r for r in records})
        _compare("topic ids", self._topic_names, {i: t for t, i in self._topic_ids.items()})
        by_broker = _grouped((b, r) for r in records for b in r.assignment.replicas)
        _compare("partitions by broker", _occupied(self._by_broker), by_broker)
        led = [(r.leadership.leader_and_isr.leader, r) for r in records if r.leadership]
        _compare("partitions by leader", _occupied(self._by_leader), _grouped(led))
        wanting = ((r.state, r) for r in records if r.state in _INDEXED_STATES)
        _compare("partitions by state", _occupied(self._by_state), _grouped(wanting))
        offline = self._by_state[PartitionState.OFFLINE]
        started, deleted = self.topics_with_deletion_started, self.topics_to_be_deleted
        counted = sum(tp.topic not in started for tp in offline)
        _compare("offline partitions", self.offline_partition_count, counted)
        imbalanced = {
            r.topic_partition: r.is_preferred_leader_imbalanced
            and r.topic_partition.topic not in deleted
            for r in records
        }
        marked = {r.topic_partition: r.counts_as_imbalanced for r in records}
        _compare("imbalanced partitions", marked, imbalanced)
        total = self.preferred_replica_imbalance_count
        _compare("number of imbalanced partitions", total, sum(imbalanced.values()))
        for name, found in (
            ("partitions being reassigned", self.partitions_being_reassigned),
            ("leaders that lost records", self._leaders_with_losses),
            ("restarted replicas", self.restarted_replicas),
        ):
            _compare(f"{name} that are unknown", set(found) - self._partitions.keys(), set())
        _compare("deletions begun without a request", started - deleted, set())


def _grouped(pairs: Iterable[tuple[object, _PartitionEntry]]) -> dict[object, dict[object, object]]:
    groups: dict[object, dict[object, object]] = {}
    for key, record in pairs:
        groups.setdefault(key, {})[record.topic_partition] = record
    return groups


def _occupied(
    index: Mapping[Any, Mapping[TopicPartition, _PartitionEntry]],
) -> dict[object, object]:
    return {key: partitions for key, partitions in index.items() if partitions}


def _compare(what: str, kept: object, expected: object) -> None:
    if kept != expected:
        raise IllegalStateError(f"{what}: the index has {kept!r} instead of {expected!r}")
