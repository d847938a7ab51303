"""Topics that appear, grow, vanish, or are written by others.

Mirrors ``KafkaController.processTopicChange``, ``processPartitionModifications`` and
``onNewPartitionCreation``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from regent.core.controller.election.election import OfflineElection
from regent.core.controller.partition_state_machine import PartitionStateMachine
from regent.core.controller.quarantine import Quarantine
from regent.core.controller.replica_state_machine import ReplicaStateMachine
from regent.core.controller.services import ControllerServices
from regent.core.controller.states import PartitionState, ReplicaState
from regent.core.controller.topics.no_replicas import keep_off
from regent.core.controller.topics.topic_deletion import TopicDeletions
from regent.core.errors import BadDataError, UnreadableError
from regent.core.model import BrokerId, PartitionAndReplica, ReplicaAssignment, TopicPartition
from regent.core.ports import TopicAssignment, WriteError
from regent.core.protocol.control import TopicId
from regent.core.topic_validation import INTERNAL_TOPICS

# Others may write a topic znode while we add its id. After so many rounds its topic is quarantined.
MAX_ROUNDS = 5

# The dictionaries of a reading are short-lived. With a million entries each collection of garbage
# would look at them for a fifth of a second.
STATES_AT_ONCE = 50_000


class TopicChanges:
    """Keeps the controller's topics equal to ``/brokers/topics``."""

    def __init__(
        self,
        services: ControllerServices,
        partitions: PartitionStateMachine,
        replicas: ReplicaStateMachine,
        deletions: TopicDeletions,
        quarantine: Quarantine,
    ) -> None:
        self._services = services
        self._log = services.log(__name__)
        self._context = services.context
        self._partitions = partitions
        self._replicas = replicas
        self._deletions = deletions
        self._quarantine = quarantine

    def load(self) -> None:
        """Learn every topic, its partitions and their leaderships at the start of a term."""
        names = self._services.store.read_topic_names()
        topics, _ = self._read_topics(names, may_have_states=True)
        # If a znode was copied by hand, two topics have the same id: the older one keeps it.
        by_age = sorted(topics, key=lambda topic: topics[topic].created_zxid)
        learned = [topic for topic in by_age if self._learn(topic, topics[topic])]
        self._learn_coordinated_partitions(learned)
        partitions = list(self._context.all_partitions())
        self._learn_leaderships(partitions)
        keep_off(self._services, partitions)

    def on_topic_change(self) -> None:
        """Compare ``/brokers/topics`` with what we know."""
        names = self._services.store.read_topic_names()
        present = set(names)
        is_quarantine_over = self._quarantine.forget_missing(present)
        known = dict.fromkeys((*self._context.all_topics, *self._context.bad_topics))
        gone = [t for t in known if t not in present]
        new = [t for t in names if t not in self._context.all_topics]
        self._forget(gone)
        self._create(new)
        if is_quarantine_over:
            self._deletions.on_topic_deletion()  # a request to delete the topic may wait

    def on_partition_modifications(self, topic: str) -> None:
        """Find added partitions, and a topic that was deleted and created again meanwhile."""
        was_bad = topic in self._context.bad_topics
        topics, absent = self._read_topics([topic], may_have_states=was_bad)
        if topic in absent and topic in self._context.all_topics:
            # Not left to TopicChange: by then there may be a new topic of that name.
            self._forget([topic])
        assignment = topics.get(topic)
        if assignment is None:
            return  # it is gone, or unreadable: then it stays as it was
        if topic not in self._context.all_topics or self._is_another(topic, assignment):
            was_queued = self._context.is_topic_queued_for_deletion(topic)
            self._purge([topic] if topic in self._context.all_topics else [])
            if self._learn(topic, assignment):
                self._on_topic_creation([topic], [topic] if was_bad else [])
            if was_queued:
                self._deletions.on_topic_deletion()  # a request to delete this topic may exist
            return
        if self._context.is_topic_queued_for_deletion(topic):
            self._deletions.on_grown(topic, assignment)
            return
        added = [
            TopicPartition(topic, partition)
            for partition in assignment.partitions
            if not self._context.partition_replica_assignment(TopicPartition(topic, partition))
        ]
        for topic_partition in added:
            self._context.update_partition_full_replica_assignment(
                topic_partition, assignment.partitions[topic_partition.partition]
            )
        if added:
            self._services.outbox.note("%s: %d partitions added", topic, len(added))
            self._on_new_partition_creation(added)

    def read_again(self) -> list[TopicPartition]:
        """Read again what could not be read before: a changed ACL fires no watch.

        Returns the partitions whose states can be read now, and those to which an ACL refused an
        access.
        """
        for topic in sorted(self._deletions.grown.union(self._context.bad_topics)):
            self.on_partition_modifications(topic)
        unreadable = sorted(self._context.unreadable_partitions)
        self._learn_leaderships(unreadable)
        now_readable = [p for p in unreadable if p not in self._context.unreadable_partitions]
        if now_readable:
            self._bring_up(now_readable)
        refused = sorted(self._context.refused_states)
        self._context.refused_states.clear()
        self._partitions.settle_late(refused)
        self._partitions.trigger_online_partition_state_change()
        self._replicas.restart_waiting()
        self._take_offline_out_of_isrs(refused)
        return [*now_readable, *refused]

    # --- reading ---

    def _read_topics(
        self, topics: Iterable[str], *, may_have_states: bool
    ) -> tuple[dict[str, TopicAssignment], frozenset[str]]:
        """Read topics; those without an id get one, the unreadable ones are quarantined.

        ``may_have_states``: other controllers may have led the topics. Returns the usable topics,
        and the names of those without a znode.
        """
        usable: dict[str, TopicAssignment] = {}
        absent: frozenset[str] = frozenset()
        remaining = list(topics)
        for _ in range(MAX_ROUNDS):
            without_id: dict[str, TopicAssignment] = {}
            found = self._services.store.read_topics(remaining)
            absent |= {topic for topic in remaining if topic not in found}
            for topic, read in found.items():
                if isinstance(read, BadDataError):
                    self._quarantine_topic(topic, read)
                    continue
                if self._context.is_topic_quarantined(topic):
                    error = self._context.quarantined[f"topic {topic}"]
                    self._quarantine_topic(topic, BadDataError(f"it ended controllers: {error}"))
                    continue
                try:
                    with_id = self._with_topic_id(topic, read)
                except UnreadableError as refused:  # it may have an id, which its logs have too
                    self._quarantine_topic(topic, refused)
                    continue
                if with_id is read or with_id == read:
                    usable[topic] = read
                else:
                    without_id[topic] = with_id
            remaining = self._write_ids(without_id, usable, are_noted=may_have_states)
            if not remaining:
                break
        for topic in remaining:  # its watch has fired: it is read again soon
            error = f"it got no id, its znode kept changing while {MAX_ROUNDS} attempts were made"
            self._quarantine_topic(topic, BadDataError(error))
        for topic in usable:
            self._context.bad_topics.pop(topic, None)
        return usable, absent

    def _with_topic_id(self, topic: str, read: TopicAssignment) -> TopicAssignment:
        """Return the assignment with the id the topic must have.

        Tools that know no topic ids rewrite the znode without the id (KAFKA-12835): then the id in
        memory is written back, with the reassignments that such tools drop too. A new controller
        has no id in memory. Then a znode that was written more than once gets the id that was noted
        with its first state, or later if Kafka's controller created the states without an id. If no
        id was noted, because that controller gave one, the topic gets the id that the controller's
        broker knows: logs have it already. If the topic has no state, no broker was told of it: an
        id that the broker knows is of an earlier topic of that name.
        """
        known = self._context.topic_id(topic)
        if known is not None and not self._is_another(topic, read):
            moves = self._moves_lost_by(topic, read) if read.topic_id is None else {}
            return replace(read, topic_id=known, partitions={**read.partitions, **moves})
        if read.topic_id is not None:
            return read
        was_rewritten = known is None and read.zk_version > 0
        lost = self._lost_id(topic, read) if was_rewritten else None
        return replace(read, topic_id=lost or self._services.topic_ids.new_topic_id())

    def _lost_id(self, topic: str, read: TopicAssignment) -> TopicId | None:
        """Return the id that a topic had before a tool dropped it; None: it had none."""
        noted = self._services.store.read_noted_topic_id(topic)
        if noted is not None:
            return noted
        known_id = self._services.topic_ids.last_known(topic)
        return known_id if known_id is not None and self._has_states(topic, read) else None

    def _has_states(self, topic: str, read: TopicAssignment) -> bool:
        partitions = [TopicPartition(topic, partition) for partition in read.partitions]
        return bool(self._services.store.read_partition_states(partitions))

    def _moves_lost_by(self, topic: str, read: TopicAssignment) -> dict[int, ReplicaAssignment]:
        """Return the reassignments that a tool dropped: it wrote only the replicas."""
        lost: dict[int, ReplicaAssignment] = {}
        for number, assignment in read.partitions.items():
            topic_partition = TopicPartition(topic, number)
            known = self._context.partition_full_replica_assignment(topic_partition)
            if known.is_being_reassigned and assignment == ReplicaAssignment(known.replicas):
                lost[number] = known
        return lost

    def _is_another(self, topic: str, read: TopicAssignment) -> bool:
        known = self._context.topic_created_zxids.get(topic)
        return known is not None and known != read.created_zxid

    def _write_ids(
        self,
        topics: dict[str, TopicAssignment],
        usable: dict[str, TopicAssignment],
        *,
        are_noted: bool,
    ) -> list[str]:
        """Write topics back with their ids; return those that others wrote since the read.

        ``are_noted``: note the ids, too, as the first states of new topics do.
        """
        if not topics:
            return []
        store = self._services.store
        write = store.assign_topic_ids if are_noted else store.write_topics
        outcomes = write(topics, self._context.epoch_zk_version)
        again: list[str] = []
        for topic, assignment in topics.items():
            outcome = outcomes[topic]
            if outcome is WriteError.BAD_VERSION:
                again.append(topic)
            elif isinstance(outcome, int):
                usable[topic] = replace(assignment, zk_version=outcome)
                self._services.outbox.note("%s: topic id %s", topic, assignment.topic_id)
            elif outcome is WriteError.NOT_ALLOWED:  # until it is: its logs need the id
                self._quarantine_topic(topic, BadDataError(f"it got no id: {outcome.value}"))
                self._context.must_read_again = True
            elif outcome is not WriteError.NO_NODE:  # better without an id than without the topic
                self._log.error("topic %s gets no id: %s", topic, outcome.value)
                usable[topic] = replace(assignment, topic_id=self._context.topic_id(topic))
        return again

    def _quarantine_topic(self, topic: str, error: BadDataError) -> None:
        if self._context.bad_topics.get(topic) != str(error):
            self._log.error("topic %s is quarantined until its znode is fixed: %s", topic, error)
            self._services.outbox.note("%s: quarantined, %s", topic, error)
        self._context.bad_topics[topic] = str(error)
        self._context.must_read_again |= isinstance(error, UnreadableError)

    # --- applying ---

    def _learn(self, topic: str, assignment: TopicAssignment) -> bool:
        """Remember a topic; False when it is quarantined because another one has its id."""
        context = self._context
        if assignment.topic_id is not None:
            namesake = context.topic_name(assignment.topic_id)
            if namesake not in (None, topic):
                taken = f"topic {topic} has the id {assignment.topic_id} of topic {namesake}"
                self._quarantine_topic(topic, BadDataError(taken))
                return False
            context.add_topic_id(topic, assignment.topic_id)
        context.add_topic(topic)
        context.topic_created_zxids[topic] = assignment.created_zxid
        context.add_partitions(topic, assignment.partitions)
        context.partitions_being_reassigned.update(
            TopicPartition(topic, number)
            for number, replicas in assignment.partitions.items()
            if replicas.adding_replicas or replicas.removing_replicas
        )
        return True

    def _learn_coordinated_partitions(self, topics: Iterable[str]) -> None:
        """Learn over how many partitions the keys of internal topics are spread.

        It is the number with which the topic began: partitions that were added later stay empty.
        Otherwise a broker that starts would look for groups in other partitions than before.
        """
        present = {t: len(self._context.entries(t)) for t in topics if t in INTERNAL_TOPICS}
        if any(present.values()):
            store, fence = self._services.store, self._context.epoch_zk_version
            numbers = store.note_coordinated_partitions(present, fence)
            self._context.coordinated_partitions.update(numbers)

    def _learn_leaderships(self, partitions: list[TopicPartition]) -> None:
        unreadable: dict[TopicPartition, BadDataError] = {}
        # One reading even of no partition: simulated histories, found by their seeds, have it.
        for start in range(0, len(partitions) or 1, STATES_AT_ONCE):
            unreadable |= self._learn_some(partitions[start : start + STATES_AT_ONCE])
        self._log.failures("the states of %d partitions cannot be read", unreadable)

    def _learn_some(self, partitions: list[TopicPartition]) -> dict[TopicPartition, BadDataError]:
        unreadable: dict[TopicPartition, BadDataError] = {}
        states, zxids = self._services.store.read_partition_states_with_zxids(partitions)
        broker_epochs = self._context.live_broker_epochs
        youngest: dict[tuple[BrokerId, ...], int] = {}  # the newest broker epoch in each ISR
        for topic_partition, state in states.items():
            if isinstance(state, BadDataError):
                self._context.unreadable_partitions.add(topic_partition)
                self._context.must_read_again |= isinstance(state, UnreadableError)
                unreadable[topic_partition] = state
                continue
            self._context.put_partition_leadership_info(topic_partition, state)
            if state.controller_epoch > self._context.loaded_epoch:
                self._context.loaded_epoch = state.controller_epoch
            written, isr = zxids[topic_partition], state.leader_and_isr.isr
            if isr not in youngest:
                youngest[isr] = max([broker_epochs.get(r, 0) for r in isr], default=0)
            if written < youngest[isr]:
                self._context.restarted_replicas[topic_partition] = frozenset(
                    r for r in isr if broker_epochs.get(r, 0) > written
                )
        return unreadable

    def _create(self, topics: list[str]) -> None:
        bad = self._context.bad_topics.keys() & set(topics)
        created: list[str] = []
        read, _ = self._read_topics(topics, may_have_states=bool(bad))
        for topic, assignment in read.items():
            if self._learn(topic, assignment):
                created.append(topic)
                self._services.outbox.note("%s: new topic", topic)
        self._on_topic_creation(created, bad.intersection(created))

    def _on_topic_creation(self, topics: list[str], repaired: Collection[str]) -> None:
        """Lead the partitions of topics, except those that are to be deleted.

        While the znode of a topic was bad, its deletion may have been requested, and begun: then
        the states of its partitions are gone. Their leader epochs must not begin again.
        """
        self._learn_coordinated_partitions(topics)
        requested = self._deletions.queue_requested() if repaired else []
        partitions = [p for topic in topics for p in self._context.partitions_of(topic)]
        self._on_new_partition_creation(partitions)
        if requested:
            self._deletions.resume(requested)

    def _on_new_partition_creation(self, partitions: list[TopicPartition]) -> None:
        if not partitions:
            return
        keep_off(self._services, partitions)
        each_replica_of = self._context.each_replica_of
        self._partitions.handle_state_changes(partitions, PartitionState.NEW)
        self._replicas.handle_state_changes(each_replica_of(partitions), ReplicaState.NEW)
        # If the topic's znode was unreadable until now, its partitions have states: a broker that
        # starts must be told of its replicas even when no replica can lead.
        self._learn_leaderships(partitions)
        self._bring_up([p for p in partitions if self._context.is_to_be_led(p)])

    def _bring_up(self, partitions: list[TopicPartition]) -> None:
        each_replica_of = self._context.each_replica_of
        unled = self._partitions.handle_state_changes(
            partitions, PartitionState.ONLINE, OfflineElection()
        )
        self._partitions.settle(unled)  # else a suspect leader would be told to continue
        self._replicas.handle_state_changes(each_replica_of(partitions), ReplicaState.ONLINE)
        self._take_offline_out_of_isrs(partitions)  # impossible while they were unreadable

    def _take_offline_out_of_isrs(self, partitions: list[TopicPartition]) -> None:
        replicas = self._context.each_replica_of(partitions)
        self._replicas.handle_state_changes(
            filter(self._is_offline_in_isr, replicas), ReplicaState.OFFLINE
        )

    def _is_offline_in_isr(self, replica: PartitionAndReplica) -> bool:
        topic_partition, broker_id = replica
        leadership = self._context.partition_leadership_info(topic_partition)
        in_sync = () if leadership is None else leadership.leader_and_isr.isr
        return broker_id in in_sync and not self._context.is_replica_online(
            broker_id, topic_partition, include_shutting_down=True
        )

    def _forget(self, topics: list[str]) -> None:
        """Purge topics whose znode is gone, and their entries in ``/admin/delete_topics``."""
        was_queued = any(map(self._context.is_topic_queued_for_deletion, topics))
        self._purge(topics)
        if was_queued:
            self._deletions.on_topic_deletion()

    def _purge(self, topics: list[str]) -> None:
        """Forget topics whose znode is gone, and tell every broker to forget them.

        The logs of a topic that is queued for deletion are deleted. Any other znode was deleted by
        hand, or lost: brokers keep the logs as stray, and use them again for a topic with the same
        id.
        """
        if not topics:
            return
        lost = {t for t in topics if not self._context.is_topic_queued_for_deletion(t)}
        # For topics queued for deletion, brokers forget the metadata and check no leader epochs.
        self._context.queue_topic_deletion(topics)
        batch = self._services.new_batch()
        for topic in topics:
            partitions = self._context.partitions_of(topic)
            batch.add_update_metadata(partitions)
            for replica in self._context.replicas_ever_told(partitions):
                batch.add_stop_replica(
                    replica.replica,
                    [replica.topic_partition],
                    delete=True,
                    is_topic_lost=topic in lost,
                )
            kept = ", not by a deletion: its logs are kept as stray" if topic in lost else ""
            self._services.outbox.note("%s: gone from ZooKeeper%s", topic, kept)
        self._services.announce(batch)
        if lost:
            self._log.warning(
                "%d topics are gone from ZooKeeper without a request to delete them, the"
                " first: %s; brokers keep their logs as stray",
                len(lost),
                min(lost),
            )
        self._withdraw_moves(topics)
        for topic in topics:
            self._context.remove_topic(topic)

    def _withdraw_moves(self, topics: list[str]) -> None:
        """Remove these topics from ``/admin/reassign_partitions``: tools may wait for them."""
        moving = self._context.partitions_being_reassigned
        dropped = {
            topic_partition: assignment.target_replicas
            for topic in topics
            for topic_partition, assignment in self._context.partition_assignments(topic).items()
            if topic_partition in moving
        }
        if dropped:
            self._services.store.remove_reassignments(dropped, self._context.epoch_zk_version)
