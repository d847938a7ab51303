"""The memory of the active controller; mirrors ``kafka.controller.ControllerContext``.

It has one small object for each partition (``PartitionEntry``), counters, and an index of the
partitions that wait for a leader. To find the partitions of a broker it looks at every entry, at
some 60 ns each: an index would cost more at every change than it saves when a broker starts or
dies. It makes no decision and does no I/O: the state machines put in what ZooKeeper has accepted.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

from regent.core.controller.partition_entries import (
    IllegalStateError,
    PartitionEntries,
    PartitionEntry,
    compare,
    pack_states,
)
from regent.core.controller.states import PartitionState, ReplicaState
from regent.core.model import (
    NO_LEADER,
    BrokerId,
    BrokerRegistration,
    LeaderAndIsr,
    LeaderIsrAndControllerEpoch,
    LogEnd,
    PartitionAndReplica,
    ReplicaAssignment,
    TopicPartition,
)
from regent.core.protocol.control import ControlHeader, TopicId


class ControllerLog(logging.LoggerAdapter[logging.Logger]):
    """Writes ``[Controller id=1 epoch=7]`` before each line, as Kafka's ``LogContext`` does.

    Without the epoch while the broker is not the active controller.
    """

    def __init__(self, name: str, broker_id: BrokerId, context: ControllerContext) -> None:
        super().__init__(logging.getLogger(name), None)
        self._broker_id = broker_id
        self._context = context

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[str, Any]:
        """Return the line with its prefix."""
        epoch = f" epoch={self._context.epoch}" if self._context.epoch else ""
        return f"[Controller id={self._broker_id}{epoch}] {msg}", kwargs

    def each(self, template: str, rows: Iterable[tuple[object, ...]]) -> None:
        """Write a line for each row at DEBUG; at a higher level ``rows`` are not even computed."""
        if self.isEnabledFor(logging.DEBUG):
            for row in rows:
                self.debug(template, *row)

    def failures(self, template: str, failures: Mapping[Any, object], *args: object) -> None:
        """Warn how many failed, as the first argument of ``template``, and show the first failure.

        One line for many partitions; none when nothing failed.
        """
        if failures:
            first = next(iter(failures.values()))
            self.warning(f"{template}, the first: %s", len(failures), *args, first)


@dataclass(slots=True)
class ControllerStats:
    """Counters that survive a term; the shell exposes them as metrics."""

    unclean_leader_elections: int = 0


class PartitionCondition(NamedTuple):
    """What the context knows of a partition: partitions in equal conditions are decided alike.

    ``topic_partition`` is set where facts about this partition alone matter: its log may have lost
    records, its log directory failed, its topic is to be deleted.
    """

    now: LeaderAndIsr
    assignment: ReplicaAssignment
    replica_states: bytes
    topic_partition: TopicPartition | None


_new_condition = partial(tuple.__new__, PartitionCondition)


class ControllerContext(PartitionEntries):
    """The controller's memory. ``reset`` forgets all but ``stats`` and the present event."""

    def __init__(self) -> None:
        self.stats = ControllerStats()
        self.event_id = 0  # of the event that is being handled; grows until the process ends
        self.now_ms = 0  # when the handling of that event began
        self.reset()

    def reset(self) -> None:
        """Forget everything (KAFKA-5310: state kept after a resignation was used again)."""
        self.forget_entries()
        self.epoch = 0
        self.epoch_zk_version = 0
        self.loaded_epoch = 0  # the highest controller epoch in the states that were loaded
        self.shutting_down_broker_ids: set[BrokerId] = set()
        self.unresponsive_broker_ids: set[BrokerId] = set()  # their leaderships were moved too
        self.replicas_on_offline_dirs: dict[BrokerId, set[TopicPartition]] = {}
        self.partitions_being_reassigned: set[TopicPartition] = set()
        self.topics_ineligible_for_deletion: set[str] = set()
        self.bad_topics: dict[str, str] = {}  # topic -> why its znode cannot be used
        self.quarantined: dict[str, str] = {}  # topic or event -> its error
        self.must_read_again = False  # an ACL refused an access; no watch fires when it changes
        self.refused_states: set[TopicPartition] = set()  # an ACL refused to read or write
        # Replicas whose logs were, or can be, replaced, and that wait for a new leader epoch.
        self.waiting_to_restart: set[PartitionAndReplica] = set()
        self.full_withheld_from: set[BrokerId] = set()  # they wait for a FULL LeaderAndIsr
        # Replicas removed in this term whose brokers may still host them: a FULL request does not
        # remove stray replicas of brokers of Kafka.
        self.removed_replicas: dict[BrokerId, set[TopicPartition]] = {}
        # Partitions of topics removed in this term while brokers of Kafka were registered: complete
        # metadata do not remove them from their caches.
        self.removed_topics: dict[str, set[int]] = {}
        self.topic_created_zxids: dict[str, int] = {}
        # Of internal topics: over how many partitions their keys are spread.
        self.coordinated_partitions: dict[str, int] = {}
        self._registrations: dict[BrokerId, BrokerRegistration] = {}
        # Replicas that joined the ISR after their brokers listed them as suspect, and are in it.
        self._rejoined: dict[BrokerId, set[TopicPartition]] = {}
        # Leaders that may have lost records since they were elected.
        self.leaders_with_losses: dict[TopicPartition, BrokerId] = {}
        self._topic_ids: dict[str, TopicId] = {}
        self._topic_names: dict[TopicId, str] = {}

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
    def brokers_without_replicas(self) -> frozenset[BrokerId]:
        """The registered brokers that new replicas are not placed on."""
        return frozenset(b for b, r in self._registrations.items() if r.info.no_replicas)

    def host_of(self, broker_id: BrokerId) -> str | BrokerId:
        """Return the machine of a broker; its own id if it does not name one."""
        registration = self._registrations.get(broker_id)
        return (registration.info.node_host if registration else None) or broker_id

    @property
    def live_broker_epochs(self) -> dict[BrokerId, int]:
        """The broker epoch of every registered broker, shutting down or not."""
        return {b: r.broker_epoch for b, r in self._registrations.items()}

    def is_of_kafka(self, broker_id: BrokerId) -> bool:
        """Whether a broker is registered that is one of Kafka."""
        registration = self._registrations.get(broker_id)
        return registration is not None and registration.info.is_of_kafka

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
            self.leaders_with_losses.get(topic_partition) == broker_id
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
                    self.leaders_with_losses[topic_partition] = leader

    def note_elected(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Record new elections: ``must_not_lead`` does not apply to their leaders.

        An unclean election may choose a replica that a reassignment could not create yet. Its
        broker is told to lead, so the replica exists from now on.
        """
        for topic_partition in topic_partitions:
            self.leaders_with_losses.pop(topic_partition, None)
            leadership = self.partition_leadership_info(topic_partition)
            leader = NO_LEADER if leadership is None else leadership.leader_and_isr.leader
            if leader != NO_LEADER and not self.replica_exists(leader, topic_partition):
                replica = PartitionAndReplica(topic_partition, leader)
                self.put_replica_state(replica, ReplicaState.ONLINE)

    def note_rejoined(self, broker_id: BrokerId, topic_partition: TopicPartition) -> None:
        """Clear the suspicion of a replica that joined the ISR, before its broker reports it.

        Only until it leaves the ISR: its log may be damaged then, and replaced by an empty one. Its
        broker may list the two losses alike, without a list between them.
        """
        if self.suspect_end(broker_id, topic_partition) is not None:
            self._rejoined.setdefault(broker_id, set()).add(topic_partition)

    def put_partition_leadership_info(
        self, topic_partition: TopicPartition, leadership: LeaderIsrAndControllerEpoch
    ) -> LeaderIsrAndControllerEpoch | None:
        """Remember a leadership that ZooKeeper holds; return the one that was known before."""
        for broker_id, rejoined in self._rejoined.items():
            if broker_id not in leadership.leader_and_isr.isr:
                rejoined.discard(topic_partition)
        return super().put_partition_leadership_info(topic_partition, leadership)

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
        """Forget everything about a topic (KAFKA-1742, KAFKA-1558), but that it existed."""
        if any(registration.info.is_of_kafka for registration in self._registrations.values()):
            self.removed_topics.setdefault(topic, set()).update(self._topics.get(topic, ()))
        for entry in self._topics.pop(topic, {}).values():
            topic_partition = entry.topic_partition
            self._set_state(entry, PartitionState.NON_EXISTENT)
            self._lead(entry, None)
            self._unassigned.pop(topic_partition, None)
            self.partitions_being_reassigned.discard(topic_partition)
            self.unreadable_partitions.discard(topic_partition)
            self.refused_states.discard(topic_partition)
            self.leaders_with_losses.pop(topic_partition, None)
            self.restarted_replicas.pop(topic_partition, None)
            for offline in self.replicas_on_offline_dirs.values():
                offline.discard(topic_partition)
        self.waiting_to_restart = {
            r for r in self.waiting_to_restart if r.topic_partition.topic != topic
        }
        self.bad_topics.pop(topic, None)
        self.topic_created_zxids.pop(topic, None)
        self.coordinated_partitions.pop(topic, None)
        topic_id = self._topic_ids.pop(topic, None)
        if topic_id is not None:
            self._topic_names.pop(topic_id, None)
        self.topics_to_be_deleted.discard(topic)
        self.topics_with_deletion_started.discard(topic)
        self.topics_ineligible_for_deletion.discard(topic)

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
        self._lead(self._entry(topic_partition), None)
        self.put_partition_state(topic_partition, PartitionState.NEW)
        self.unreadable_partitions.add(topic_partition)
        self.must_read_again = True

    def is_of_newer_controller(self, leadership: LeaderIsrAndControllerEpoch) -> bool:
        """Whether a controller that was elected after this one wrote the state."""
        return leadership.controller_epoch > self.newest_known_epoch

    @property
    def newest_known_epoch(self) -> int:
        """The controller epoch up to which states are not of a newer controller.

        Epochs up to the highest one that was loaded at the start of the term do not count. They may
        be higher than ours, because ``/controller_epoch`` was set back.
        """
        return max(self.epoch, self.loaded_epoch)

    def known_leaderships(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, LeaderAndIsr]:
        """Return the leaderships that are known and not of a newer controller."""
        known: dict[TopicPartition, LeaderAndIsr] = {}
        newest_epoch = self.newest_known_epoch
        for entry in self.entries_of(partitions):
            leadership = entry.leadership
            if leadership is not None and leadership.controller_epoch <= newest_epoch:
                known[entry.topic_partition] = leadership.leader_and_isr
        return known

    def partitions_with_isr_on(self, broker_ids: Collection[BrokerId]) -> list[TopicPartition]:
        """Return every partition with one of these brokers in its ISR."""
        if not broker_ids:
            return []
        wanted = frozenset(broker_ids)
        return [
            entry.topic_partition
            for entry in self._entries()
            if entry.leadership is not None
            and not wanted.isdisjoint(entry.leadership.leader_and_isr.isr)
        ]

    def partitions_led_by(self, broker_id: BrokerId) -> list[TopicPartition]:
        """Return every partition of which this broker is the leader, in any state."""
        return [e.topic_partition for e in self._led_by(broker_id)]

    @property
    def leaderless_partition_count(self) -> int:
        """Partitions that lost their leader, and those that never found a live replica."""
        return self.offline_partition_count + len(self._waiting[PartitionState.NEW])

    def partitions_with_offline_leader(self) -> list[TopicPartition]:
        """Return partitions without a leader, or with one that is not online, sorted."""
        live = set(self.live_broker_ids)
        offline = [
            entry.topic_partition
            for entry in self._entries()
            if entry.leadership is not None and entry.leadership.leader_and_isr.leader not in live
        ]
        for leader, failed in self.replicas_on_offline_dirs.items():
            if leader in live:
                offline += [
                    e.topic_partition for e in self._led_by(leader) if e.topic_partition in failed
                ]
        return sorted(tp for tp in offline if not self.is_topic_queued_for_deletion(tp.topic))

    def partition_leaders_on_broker(self, broker_id: BrokerId) -> list[TopicPartition]:
        """Return partitions that the broker leads and that have other replicas, sorted."""
        return sorted(
            entry.topic_partition
            for entry in self._led_by(broker_id)
            if len(entry.assignment.replicas) > 1
            and not self.is_topic_queued_for_deletion(entry.topic_partition.topic)
        )

    # --- states ---

    def begin_partition_states(self) -> None:
        """Give every partition its first state of a term: whether it is led."""
        live = set(self.live_broker_ids)
        has_exceptions = bool(self.leaders_with_losses) or any(
            self.replicas_on_offline_dirs.values()
        )
        for entry in self._entries():
            leadership = entry.leadership
            if leadership is None:
                self._set_state(entry, PartitionState.NEW)
                continue
            leader = leadership.leader_and_isr.leader
            is_led = leader in live
            if is_led and has_exceptions:
                replica = leader, entry.topic_partition
                is_led = self.is_replica_online(*replica) and not self.must_not_lead(*replica)
            self._set_state(entry, PartitionState.ONLINE if is_led else PartitionState.OFFLINE)

    def begin_replica_states(self) -> list[PartitionAndReplica]:
        """Give every replica its first state of a term; return those that are not online."""
        live = set(self.live_broker_ids)
        first: dict[tuple[BrokerId, ...], tuple[bytes, tuple[BrokerId, ...]]] = {}
        failed = any(self.replicas_on_offline_dirs.values())
        offline: list[PartitionAndReplica] = []
        for entry in self._entries():
            replicas, tp = entry.assignment.replicas, entry.topic_partition
            known = first.get(replicas)
            if known is None or failed:
                absent = tuple(
                    r for r in replicas if r not in live or not self.is_replica_online(r, tp)
                )
                states = (
                    ReplicaState.DELETION_INELIGIBLE if r in absent else ReplicaState.ONLINE
                    for r in replicas
                )
                known = first[replicas] = pack_states(tuple(states)), absent
            entry.replica_states, absent = known
            if absent:
                offline += [PartitionAndReplica(tp, r) for r in absent]
        return offline

    def conditions(
        self, leaderships: Mapping[TopicPartition, LeaderAndIsr]
    ) -> dict[PartitionCondition, list[TopicPartition]]:
        """Group partitions by condition; ``leaderships`` has what ZooKeeper holds of them."""
        suspects = [b for b, r in self._registrations.items() if r.suspects]
        alone: set[TopicPartition] = set().union(
            self.restarted_replicas,
            self.leaders_with_losses,
            self._unassigned,
            *self.replicas_on_offline_dirs.values(),
        )
        groups: dict[PartitionCondition, list[TopicPartition]] = {}
        for entry in self.entries_of(leaderships):
            topic_partition = entry.topic_partition
            is_alone = (
                topic_partition in alone
                or topic_partition[0] in self.topics_to_be_deleted
                or any(self.suspect_end(b, topic_partition) is not None for b in suspects)
            )
            only = topic_partition if is_alone else None
            condition = _new_condition(
                (leaderships[topic_partition], entry.assignment, entry.replica_states, only)
            )
            groups.setdefault(condition, []).append(topic_partition)
        return groups

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
                for entry in self.entries(topic).values():
                    self._count_imbalance(entry)

    # --- inside ---

    def _led_by(self, broker_id: BrokerId) -> list[PartitionEntry]:
        return [
            entry
            for entry in self._entries()
            if entry.leadership is not None and entry.leadership.leader_and_isr.leader == broker_id
        ]

    # --- checking the indexes ---

    def validate(self) -> None:
        """Compare every index with what it indexes; the tests call this after every event.

        Raises ``IllegalStateError``, which names the index and the first difference.
        """
        self.validate_entries()
        compare("topic ids", self._topic_names, {i: t for t, i in self._topic_ids.items()})
        started, deleted = self.topics_with_deletion_started, self.topics_to_be_deleted
        for name, found in (
            ("partitions being reassigned", self.partitions_being_reassigned),
            ("leaders that lost records", self.leaders_with_losses),
            ("restarted replicas", self.restarted_replicas),
            ("states of unassigned replicas", self._unassigned),
        ):
            unknown = [p for p in found if self._find(p) is None]
            compare(f"{name} that are unknown", unknown, [])
        compare("deletions begun without a request", started - deleted, set())
