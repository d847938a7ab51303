"""Brokers that start, stop, bounce (stop and start again) or change their registrations.

Mirrors ``KafkaController.processBrokerChange``, ``onBrokerStartup``, ``onBrokerFailure``,
``onReplicasBecomeOffline`` and ``processBrokerModification``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from regent.core.controller.effects import AddBroker, BrokersFailed, BrokersStarted, RemoveBroker
from regent.core.controller.election.alter_partition import WrittenIsrs
from regent.core.controller.partition_state_machine import PartitionStateMachine
from regent.core.controller.reassignment.partition_reassignment import Reassignments
from regent.core.controller.replica_state_machine import ReplicaStateMachine
from regent.core.controller.services import ControllerServices
from regent.core.controller.states import PartitionState, ReplicaState
from regent.core.controller.topics.topic_deletion import TopicDeletions
from regent.core.errors import BadDataError, UnreadableError
from regent.core.model import BrokerId, BrokerRegistration, PartitionAndReplica, TopicPartition


class BrokerChanges:
    """Keeps the controller's brokers equal to ``/brokers/ids``."""

    def __init__(
        self,
        services: ControllerServices,
        partitions: PartitionStateMachine,
        replicas: ReplicaStateMachine,
        deletions: TopicDeletions,
        reassignments: Reassignments,
    ) -> None:
        self._services = services
        self._log = services.log(__name__)
        self._context = services.context
        self._partitions = partitions
        self._replicas = replicas
        self._deletions = deletions
        self._reassignments = reassignments
        self._written_isrs = WrittenIsrs(services, replicas)

    def load(self) -> None:
        """Learn every broker at the start of a term."""
        for registration in self._read_brokers().values():
            self._connect(registration)

    def on_broker_change(self) -> None:
        """Compare ``/brokers/ids`` with what we know; a bounce shows only in the epoch (KIP-380).

        Dead and bounced brokers are removed first, so that none of them is elected. New brokers
        start before the failures are handled, so that they can be elected. Bounced brokers start
        last.
        """
        current = self._read_brokers()
        known = self._context.live_broker_epochs
        new = [b for b in current if b not in known]
        dead = sorted(b for b in known if b not in current)
        bounced = [b for b in current if b in known and current[b].broker_epoch > known[b]]
        self._log.info(
            "brokers new %s, bounced %s, dead %s",
            new,
            bounced,
            dead,
        )
        failed = sorted((*bounced, *dead))
        for broker_id in failed:
            self._disconnect(broker_id)
        remaining = {
            b: known
            for b, known in self._context.registrations.items()
            if known.broker_epoch == current[b].broker_epoch
        }
        self._learn_suspects(remaining, current)
        self._start(new, current)
        if failed:
            self._on_broker_failure(failed)
        self._start(bounced, current)
        for broker_id, before in remaining.items():
            if before != current[broker_id]:  # no event reported it, or the event was quarantined
                self._take_over(before, current[broker_id])

    def _learn_suspects(
        self,
        known: Mapping[BrokerId, BrokerRegistration],
        current: Mapping[BrokerId, BrokerRegistration],
    ) -> None:
        """Learn which logs may have lost records, before leaders are elected.

        Otherwise a log that is sound by now would count as suspect, and one that has lost committed
        records could be elected.
        """
        for broker_id, before in known.items():
            suspects = current[broker_id].suspects
            if before.suspects != suspects:
                self._context.add_live_broker(replace(before, suspects=suspects))

    def on_broker_modifications(self, broker_id: BrokerId) -> None:
        """Take over a changed registration: new addresses, or other suspect replicas."""
        known = self._context.registrations.get(broker_id)
        current = self._services.store.read_broker(broker_id)
        if isinstance(current, BadDataError):
            self._log.error("broker %d keeps its old addresses: %s", broker_id, current)
            self._context.must_read_again |= isinstance(current, UnreadableError)
            return
        if known is None or current is None or current.broker_epoch != known.broker_epoch:
            # It started, stopped or bounced, or could not be read when it started.
            self.on_broker_change()
            return
        self._take_over(known, current)

    def _take_over(self, known: BrokerRegistration, current: BrokerRegistration) -> None:
        """Use the new data of a broker whose broker epoch is the same."""
        broker_id = current.info.broker_id
        if known.suspects != current.suspects:
            self._context.add_live_broker(current)
            self._record_suspects(current)
            self._partitions.trigger_online_partition_state_change()
            self._reassignments.on_suspects_change(broker_id)
        before, after = known.info, current.info
        if (before.endpoints, before.control_peer, before.replication_endpoint) == (
            after.endpoints,
            after.control_peer,
            after.replication_endpoint,
        ):
            return
        self._context.add_live_broker(current)
        self._services.outbox.note("broker %d: new addresses", broker_id)
        self._services.announce_metadata()
        if before.control_peer != after.control_peer or after.is_of_kafka:
            self.send_complete_state(broker_id)

    def _record_suspects(self, registration: BrokerRegistration) -> None:
        suspects = registration.suspects
        text = "broker %d: %d replicas may have lost committed records%s"
        unknown = "" if suspects.sound is None else ", and all that it does not list as sound"
        self._services.outbox.note(text, registration.info.broker_id, len(suspects.ends), unknown)

    def start_state_machines(self) -> None:
        """Begin the states of this term, and tell brokers everything.

        Leaders that died are replaced first. When the broker of the former controller has died,
        its partitions have no leader. Kafka tells brokers everything before that.
        """
        offline = self._context.begin_replica_states()
        self._partitions.startup()
        self._services.outbox.flush()
        self._replicas.startup(offline)
        self._partitions.create_leaderships()

    def on_replicas_become_offline(self, replicas: list[PartitionAndReplica]) -> None:
        """Elect leaders in place of these replicas, and remove these from the ISRs."""
        led_again = self._replace_leaders()
        self._take_offline(replicas, led_again)

    def _replace_leaders(self) -> set[TopicPartition]:
        """Elect leaders where one is offline, and tell brokers; return what is led by another."""
        leaderless = self._context.partitions_with_offline_leader()
        before = {p: self._context.partition_leadership_info(p) for p in leaderless}
        self._partitions.handle_state_changes(leaderless, PartitionState.OFFLINE)
        self._partitions.trigger_online_partition_state_change()
        self._services.outbox.flush()  # these partitions have no leader; the rest can wait
        return {p for p in before if self._context.partition_leadership_info(p) != before[p]}

    def _take_offline(
        self, replicas: list[PartitionAndReplica], led_again: set[TopicPartition]
    ) -> None:
        """Remove replicas from the ISRs; the metadata of ``led_again`` have been sent already."""
        kept: list[PartitionAndReplica] = []
        moving: list[PartitionAndReplica] = []
        being_deleted: list[PartitionAndReplica] = []
        live = self._context.live_or_shutting_down_broker_ids
        for replica in replicas:
            topic_partition = replica.topic_partition
            if not self._context.is_topic_queued_for_deletion(topic_partition.topic):
                kept.append(replica)
            elif replica.replica not in live:
                being_deleted.append(replica)
            elif topic_partition in self._context.partitions_being_reassigned:
                moving.append(replica)  # else the deletion would wait for ever
            # Other replicas have failed logs. Their brokers report it when they must delete them.
        # Every broker gets the live brokers, once, even if the broker hosted nothing (KAFKA-13225).
        self._replicas.handle_state_changes(
            [*kept, *moving],
            ReplicaState.OFFLINE,
            metadata_of=[r.topic_partition for r in replicas if r.topic_partition not in led_again],
        )
        if being_deleted:
            self._deletions.fail(being_deleted)
        if moving:
            self._deletions.resume()
            # Brokers are not told the leaders of topics queued for deletion. So they cannot know
            # when a log can be replaced, and do not report it: ask them.
            self._replicas.resend_leadership(moving)

    def on_replicas_back(self, replicas: list[PartitionAndReplica]) -> None:
        """Use replicas again whose logs were replaced, and elect them where no other can lead."""
        self._replicas.restart(replicas)
        self._partitions.trigger_online_partition_state_change()

    def send_complete_state(self, broker_id: BrokerId) -> None:
        """Open a new channel to a broker and send all it must know, as when it starts."""
        registration = self._context.registrations[broker_id]
        self._services.outbox.add(RemoveBroker(broker_id))
        self._services.outbox.add(AddBroker(registration))
        self._replicas.send_everything([broker_id])
        self._deletions.repeat(broker_id)  # first: a completed move may start a deletion
        self._reassignments.on_broker_startup([broker_id])

    # --- starts and failures ---

    def _start(
        self, broker_ids: list[BrokerId], current: Mapping[BrokerId, BrokerRegistration]
    ) -> None:
        if not broker_ids:
            return
        already_there = self._context.live_or_shutting_down_broker_ids
        for broker_id in broker_ids:
            self._connect(current[broker_id])
            self._context.replicas_on_offline_dirs.pop(broker_id, None)
            self._note_undeposed(broker_id)
        self._services.outbox.record(BrokersStarted, tuple(broker_ids))
        for broker_id in broker_ids:
            if current[broker_id].info.is_of_kafka:
                self._services.outbox.note("broker %d is one of Kafka", broker_id)
        self._written_isrs.read_on(broker_ids)
        batch = self._services.new_batch()
        batch.add_update_metadata((), already_there)
        self._services.announce(batch)
        self._replicas.send_everything(broker_ids)
        self._partitions.trigger_online_partition_state_change()
        self._reassignments.on_broker_startup(broker_ids)
        hosted = self._context.replicas_on_brokers(broker_ids)
        topics = {replica.topic_partition.topic for replica in hosted}
        waiting = topics & self._context.topics_to_be_deleted
        if waiting:
            self._deletions.resume(waiting)

    def _on_broker_failure(self, broker_ids: list[BrokerId]) -> None:
        for broker_id in broker_ids:
            self._context.replicas_on_offline_dirs.pop(broker_id, None)
            self._context.shutting_down_broker_ids.discard(broker_id)
            self._context.unresponsive_broker_ids.discard(broker_id)
        self._services.outbox.record(BrokersFailed, tuple(broker_ids))
        led_again = self._replace_leaders()
        self._take_offline(self._context.replicas_on_brokers(broker_ids), led_again)

    def _connect(self, registration: BrokerRegistration) -> None:
        self._context.add_live_broker(registration)
        self._services.outbox.add(AddBroker(registration))
        if registration.suspects:
            self._record_suspects(registration)

    def _note_undeposed(self, broker_id: BrokerId) -> None:
        """Note what the broker still leads: that could not be changed while it was away."""
        if self._context.registrations[broker_id].suspects:
            led = self._context.partitions_led_by(broker_id)
            self._context.note_leaders_with_losses(led)

    def _disconnect(self, broker_id: BrokerId) -> None:
        self._context.remove_live_broker(broker_id)
        self._services.outbox.add(RemoveBroker(broker_id))

    def _read_brokers(self) -> dict[BrokerId, BrokerRegistration]:
        brokers: dict[BrokerId, BrokerRegistration] = {}
        for broker_id, registration in self._read_registrations().items():
            known = self._context.registrations.get(broker_id)
            self._context.must_read_again |= isinstance(registration, UnreadableError)
            if not isinstance(registration, BadDataError):
                brokers[broker_id] = registration
            elif known is not None:
                self._log.error("broker %d keeps its old addresses: %s", broker_id, registration)
                brokers[broker_id] = known
            else:
                self._log.error("broker %d is ignored: %s", broker_id, registration)
        return brokers

    def _read_registrations(self) -> dict[BrokerId, BrokerRegistration | BadDataError]:
        """Read every registration; if they cannot be listed, those of the known brokers.

        Raises ``UnreadableError`` when no broker is known.
        """
        store, known = self._services.store, self._context.registrations
        try:
            return dict(store.read_brokers())
        except UnreadableError as error:
            if not known:
                raise
            self._log.error("new brokers cannot be seen: %s", error)
        read = {broker_id: store.read_broker(broker_id) for broker_id in sorted(known)}
        return {broker_id: found for broker_id, found in read.items() if found is not None}
