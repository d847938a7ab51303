"""Replicas: NonExistent → New → Online ⇄ Offline → DeletionStarted → … → NonExistent.

Mirrors ``kafka.controller.ZkReplicaStateMachine``. Transitions and what they do:

* → New: tell the replica its leadership, as a new replica, if there is one.
* New → Online: memory only.
* Online, Offline, DeletionIneligible → Online: tell the replica its leadership.
* → Offline: stop the replica; take it out of the ISR and tell the others.
* Offline → DeletionStarted: stop the replica and delete its data.
* → DeletionIneligible, → DeletionSuccessful: memory only.
* DeletionSuccessful → NonExistent: forget the replica.

A transition that is not in the table is logged and skipped, and nothing changes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from regent.core.controller.election.decisions import Failures
from regent.core.controller.election.partition_change import NewLeaderEpoch, RemoveReplica
from regent.core.controller.election.partition_change_writer import change_partitions
from regent.core.controller.request_batch import ControlRequestBatch
from regent.core.controller.services import ControllerServices
from regent.core.controller.states import VALID_PREVIOUS_REPLICA_STATES, ReplicaState
from regent.core.model import BrokerId, PartitionAndReplica, ReplicaAssignment, TopicPartition


class ReplicaStateMachine:
    """Owns the state of every replica."""

    def __init__(self, services: ControllerServices) -> None:
        self._services = services
        self._log = services.log("state.change")
        self._context = services.context

    def startup(self, offline: Iterable[PartitionAndReplica]) -> None:
        """Take offline replicas out of the ISRs (KAFKA-3143); tell every broker all that it hosts.

        Every replica has its first state of this term already.
        """
        batch = self._services.new_batch()
        self._make_full(batch, self._context.live_or_shutting_down_broker_ids)
        batch.add_full_metadata()
        self._move_all(offline, ReplicaState.OFFLINE, batch)
        batch.add_every_leader_and_isr()
        self._services.announce(batch)

    def handle_state_changes(
        self,
        replicas: Iterable[PartitionAndReplica],
        target: ReplicaState,
        *,
        metadata_of: Collection[TopicPartition] | None = None,
    ) -> None:
        """Move replicas to ``target`` and announce what changed.

        ``metadata_of``: partitions whose metadata goes to every broker, with the live brokers.
        Raises ``ControllerMovedError``.
        """
        batch = self._services.new_batch()
        if metadata_of is not None:
            batch.add_update_metadata(metadata_of)
        self._move_all(replicas, target, batch)
        self._services.announce(batch)

    # --- FULL requests ---

    def send_everything(self, broker_ids: Collection[BrokerId]) -> None:
        """Send only these brokers the complete metadata and all that they host (KAFKA-7537)."""
        metadata = self._services.new_batch()
        metadata.add_full_metadata(broker_ids)
        self._services.announce(metadata)
        self._announce_removed_topics(broker_ids)
        batch = self._services.new_batch()
        self._make_full(batch, broker_ids)
        self._move_all(self._context.replicas_on_brokers(broker_ids), ReplicaState.ONLINE, batch)
        self._stop_removed(broker_ids, batch)
        self._services.announce(batch)

    def _announce_removed_topics(self, broker_ids: Collection[BrokerId]) -> None:
        """Tell brokers of Kafka again which topics are gone: their caches keep unlisted ones."""
        registered = self._context.registrations
        of_kafka = [b for b in broker_ids if b in registered and registered[b].info.is_of_kafka]
        if of_kafka:
            removed = self._services.new_batch()
            removed.add_removed_topics(of_kafka)
            self._services.announce(removed)

    def _stop_removed(self, broker_ids: Collection[BrokerId], batch: ControlRequestBatch) -> None:
        """Let brokers of Kafka delete again what they had to delete in this term.

        The requests may have been dropped with the channel. For brokers of this project the FULL
        request is enough: they set stray replicas aside.
        """
        removed = self._context.removed_replicas
        for broker_id in removed.keys() & broker_ids:
            removed[broker_id] = {
                p
                for p in removed[broker_id]
                if broker_id not in self._context.partition_replica_assignment(p)
            }
            registration = self._context.registrations.get(broker_id)
            if registration is not None and registration.info.is_of_kafka:
                batch.add_stop_replica(broker_id, sorted(removed[broker_id]), delete=True)
            elif registration is not None:
                del removed[broker_id]

    def _make_full(self, batch: ControlRequestBatch, broker_ids: Collection[BrokerId]) -> None:
        """Make the LeaderAndIsr requests to these brokers FULL, or withhold the FULL ones.

        While the znode of a topic or of a partition's state is unreadable, a FULL request would
        lack replicas, and its receiver would take them for stray. Then the requests stay
        INCREMENTAL, and ``send_withheld_full`` sends FULL ones when everything can be read.
        """
        if self._context.knows_everything:
            batch.make_full(broker_ids)
            self._context.full_withheld_from.difference_update(broker_ids)
        else:
            self._context.full_withheld_from.update(broker_ids)

    def withhold_full(self) -> None:
        """Let every broker get a FULL request as soon as everything can be read.

        A state became unreadable: brokers that know the partition would not be told of its
        deletion.
        """
        self._context.full_withheld_from.update(self._context.registrations)

    def send_withheld_full(self) -> None:
        """Send the FULL requests that were withheld, if everything can be read now."""
        waiting = self._context.full_withheld_from & self._context.registrations.keys()
        if waiting and self._context.knows_everything:
            self.send_everything(sorted(waiting))

    # --- leaderships that are sent again ---

    def resend_leadership(self, replicas: Iterable[PartitionAndReplica]) -> None:
        """Send replicas their leadership again, because their response is needed."""
        batch = self._services.new_batch()
        for broker_id, partitions in _by_broker(replicas).items():
            batch.add_leader_and_isr((broker_id,), partitions)
        self._services.announce(batch)

    def delete_earlier(self, broker_id: BrokerId, partitions: Iterable[TopicPartition]) -> None:
        """Let a broker delete its logs of earlier topics of these names."""
        batch = self._services.new_batch()
        batch.add_deletion_of_earlier(broker_id, partitions)
        self._services.announce(batch)

    def restart(self, replicas: Collection[PartitionAndReplica]) -> None:
        """Use failed replicas again, in a leader epoch that their former logs do not have.

        In the present epoch they may have been stopped, and the leader may still count earlier
        fetches of theirs. Replicas whose partition cannot be changed now wait for
        ``restart_waiting``. Raises ``ControllerMovedError``.
        """
        kept = [r for r in replicas if self._is_kept(r)]
        led = sorted({r.topic_partition for r in kept if self._was_led(r.topic_partition)})
        accepted, _ = change_partitions(self._services, led, NewLeaderEpoch())
        batch = self._services.new_batch()
        for broker_id, partitions in self._valid(kept, ReplicaState.ONLINE).items():
            restarted: list[TopicPartition] = []
            for topic_partition in partitions:
                replica = PartitionAndReplica(topic_partition, broker_id)
                if topic_partition not in accepted:
                    self._context.waiting_to_restart.add(replica)
                elif self._context.replica_state(replica) is not ReplicaState.NEW:
                    restarted.append(topic_partition)
            self._put(broker_id, restarted, ReplicaState.ONLINE)
        batch.add_changes(accepted)
        self._services.announce(batch)

    def restart_waiting(self) -> None:
        """Restart the waiting replicas that are still assigned to a registered broker."""
        waiting = sorted(self._context.waiting_to_restart)
        self._context.waiting_to_restart.clear()
        self.restart(
            [
                r
                for r in waiting
                if r.replica in self._context.registrations
                and r.replica in self._context.partition_replica_assignment(r.topic_partition)
            ]
        )

    def _is_kept(self, replica: PartitionAndReplica) -> bool:
        return replica.topic_partition.topic not in self._context.topics_with_deletion_started

    def _was_led(self, topic_partition: TopicPartition) -> bool:
        return self._context.partition_leadership_info(topic_partition) is not None

    def _valid(
        self, replicas: Iterable[PartitionAndReplica], target: ReplicaState
    ) -> dict[BrokerId, list[TopicPartition]]:
        """Return the replicas that may become ``target``, by broker; log how many may not."""
        valid_before = VALID_PREVIOUS_REPLICA_STATES[target]
        by_broker, invalid = self._context.replicas_in_states(replicas, valid_before)
        if invalid:
            self._log.warning(
                "%d replicas cannot become %s, the first: %s is %s",
                len(invalid),
                target.value,
                invalid[0],
                self._context.replica_state(invalid[0]).value,
            )
        return by_broker

    def _move_all(
        self,
        replicas: Iterable[PartitionAndReplica],
        target: ReplicaState,
        batch: ControlRequestBatch,
    ) -> None:
        by_broker = self._valid(replicas, target)
        for broker_id in sorted(by_broker):
            self._move(broker_id, by_broker.pop(broker_id), target, batch)

    def _move(
        self,
        broker_id: BrokerId,
        partitions: list[TopicPartition],
        target: ReplicaState,
        batch: ControlRequestBatch,
    ) -> None:
        match target:
            case ReplicaState.NEW:
                partitions = self._tell_new_replica(broker_id, partitions, batch)
            case ReplicaState.ONLINE:
                self._tell_replica(broker_id, partitions, batch)
                partitions = self._without_failed_logs(broker_id, partitions)
            case ReplicaState.OFFLINE:
                partitions = self._take_offline(broker_id, partitions, batch)
            case ReplicaState.DELETION_STARTED:
                batch.add_stop_replica(broker_id, partitions, delete=True)
            case ReplicaState.NON_EXISTENT:
                self._forget(broker_id, partitions)
            case ReplicaState.DELETION_INELIGIBLE | ReplicaState.DELETION_SUCCESSFUL:
                pass
        self._put(broker_id, partitions, target)

    def _put(
        self, broker_id: BrokerId, partitions: Collection[TopicPartition], state: ReplicaState
    ) -> None:
        state_of = self._context.replica_state
        self._log.each(
            "Changed state of replica %d for partition %s from %s to %s",
            (
                (broker_id, p, state_of(PartitionAndReplica(p, broker_id)).value, state.value)
                for p in partitions
            ),
        )
        for topic_partition in partitions:
            self._context.put_replica_state(PartitionAndReplica(topic_partition, broker_id), state)

    # --- the transitions ---

    def _tell_new_replica(
        self, broker_id: BrokerId, partitions: list[TopicPartition], batch: ControlRequestBatch
    ) -> list[TopicPartition]:
        told: list[TopicPartition] = []
        led: list[TopicPartition] = []
        for entry in self._context.entries_of(partitions):
            leads = entry.leadership and entry.leadership.leader_and_isr.leader == broker_id
            (led if leads else told).append(entry.topic_partition)
        batch.add_leader_and_isr((broker_id,), told, is_new=True)
        if led:
            self._log.error(
                "%d replicas of broker %d cannot become new, because they lead, the first: %s",
                len(led),
                broker_id,
                led[0],
            )
        return told

    def _tell_replica(
        self, broker_id: BrokerId, partitions: list[TopicPartition], batch: ControlRequestBatch
    ) -> None:
        new: list[TopicPartition] = []
        told_before: list[TopicPartition] = []
        for topic_partition in partitions:
            replica = PartitionAndReplica(topic_partition, broker_id)
            if self._context.replica_state(replica) is ReplicaState.NEW:
                self._ensure_assigned(replica)
                new.append(topic_partition)
            else:
                told_before.append(topic_partition)
        batch.add_leader_and_isr((broker_id,), told_before)
        # A new replica was told before, but a replica that a FULL request omits is stray.
        if batch.is_full_for(broker_id):
            batch.add_leader_and_isr((broker_id,), new, is_new=True)

    def _without_failed_logs(
        self, broker_id: BrokerId, partitions: list[TopicPartition]
    ) -> list[TopicPartition]:
        """Return the partitions whose logs did not fail; the others only have to respond.

        If those became online, they would fail again with the response, and every broker would be
        told: one broker whose channel overflowed would fill the channels of all others.
        """
        failed = self._context.replicas_on_offline_dirs.get(broker_id)
        return [p for p in partitions if p not in failed] if failed else partitions

    def _ensure_assigned(self, replica: PartitionAndReplica) -> None:
        topic_partition = replica.topic_partition
        assignment = self._context.partition_full_replica_assignment(topic_partition)
        if replica.replica not in assignment.replicas:
            self._log.error("%s is not assigned; assigning it", replica)
            self._context.update_partition_full_replica_assignment(
                topic_partition,
                ReplicaAssignment(
                    (*assignment.replicas, replica.replica),
                    assignment.adding_replicas,
                    assignment.removing_replicas,
                ),
            )

    def _take_offline(
        self, broker_id: BrokerId, partitions: list[TopicPartition], batch: ControlRequestBatch
    ) -> list[TopicPartition]:
        # In the present leader epoch, before the ISR changes.
        batch.add_stop_replica(broker_id, partitions, delete=False)
        led = [p for p in partitions if self._context.partition_leadership_info(p) is not None]
        failures: Failures = {}
        size = self._services.settings.changes_at_once
        for start in range(0, len(led), size):
            if start:  # leaders wait for this replica until they are told
                self._services.outbox.extend(batch.take_urgent())
                self._services.outbox.flush()
            removed, failed = change_partitions(
                self._services, led[start : start + size], RemoveReplica(broker_id)
            )
            failures |= failed
            batch.add_changes({p: c for p, c in removed.items() if self._context.is_to_be_led(p)})
        # The znodes of a topic that is being deleted may be gone already.
        failures = {p: f for p, f in failures.items() if not self._is_queued_for_deletion(p)}
        unled = [p for p in partitions if self._context.partition_leadership_info(p) is None]
        if unled:
            batch.add_update_metadata(unled)
        self._log.failures("%d replicas of broker %d cannot go offline", failures, broker_id)
        return [p for p in partitions if p not in failures]

    def _forget(self, broker_id: BrokerId, partitions: list[TopicPartition]) -> None:
        registration = self._context.registrations.get(broker_id)
        if registration is None or registration.info.is_of_kafka:
            removed = self._context.removed_replicas.setdefault(broker_id, set())
            removed.update(p for p in partitions if not self._is_queued_for_deletion(p))
        for topic_partition in partitions:
            assignment = self._context.partition_full_replica_assignment(topic_partition)
            self._context.update_partition_full_replica_assignment(
                topic_partition, assignment.without_replica(broker_id)
            )

    def _is_queued_for_deletion(self, topic_partition: TopicPartition) -> bool:
        return self._context.is_topic_queued_for_deletion(topic_partition.topic)


def _by_broker(replicas: Iterable[PartitionAndReplica]) -> dict[BrokerId, list[TopicPartition]]:
    by_broker: dict[BrokerId, list[TopicPartition]] = {}
    for topic_partition, broker_id in replicas:
        by_broker.setdefault(broker_id, []).append(topic_partition)
    return by_broker
