"""Notifications that brokers send to the controller through ZooKeeper.

Mirrors ``KafkaController.processIsrChangeNotification`` and
``processLogDirEventNotification``. A notification names what changed, without the new data: the
controller reads the data, then deletes the notification. The deletion fires the watch of the list,
so a notification that was written meanwhile is found.
"""

from __future__ import annotations

from collections.abc import Iterable

from regent.core.controller.effects import PartitionChanged
from regent.core.controller.reassignment.partition_reassignment import Reassignments
from regent.core.controller.replica_state_machine import ReplicaStateMachine
from regent.core.controller.services import ControllerServices
from regent.core.controller.states import VALID_PREVIOUS_REPLICA_STATES, ReplicaState
from regent.core.errors import BadDataError, UnreadableError
from regent.core.model import PartitionAndReplica, TopicPartition


class Notifications:
    """Reads notifications, acts on them, and deletes them."""

    def __init__(
        self,
        services: ControllerServices,
        replicas: ReplicaStateMachine,
        reassignments: Reassignments,
    ) -> None:
        self._services = services
        self._log = services.log(__name__)
        self._context = services.context
        self._replicas = replicas
        self._reassignments = reassignments
        self._unread: set[TopicPartition] = set()  # they changed, but an ACL hides their states

    def load(self) -> None:
        """Watch, and delete the notifications: all data are read at the start of a term."""
        self._unread.clear()
        store, epoch_zk_version = self._services.store, self._context.epoch_zk_version
        store.delete_log_dir_events(store.read_log_dir_events().keys(), epoch_zk_version)
        store.delete_isr_changes(store.read_isr_changes().keys(), epoch_zk_version)

    def on_isr_change_notification(self) -> None:
        """Learn the ISRs that leaders wrote themselves, and tell every broker."""
        notifications = self._services.store.read_isr_changes()
        named = dict.fromkeys(sorted(self._unread))
        named.update(dict.fromkeys(p for partitions in notifications.values() for p in partitions))
        self._unread.clear()
        learnt = self._learn_leaderships(
            p for p in named if self._context.partition_replica_assignment(p)
        )
        if learnt:
            self._services.announce_metadata(learnt)
            self._reassignments.on_isr_change(learnt)
        self._services.store.delete_isr_changes(
            notifications.keys(), self._context.epoch_zk_version
        )

    def on_log_dir_event_notification(self) -> None:
        """Ask brokers with a failed log directory which replicas they lost.

        They get LeaderAndIsr for their replicas again, and answer KAFKA_STORAGE_ERROR for those
        that they lost, which then go offline. Replicas that were lost earlier are asked for too: a
        damaged log may be replaced now.
        """
        events = self._services.store.read_log_dir_events()
        brokers = sorted(set(events.values()) & self._context.registrations.keys())
        if brokers:
            self._services.outbox.note("brokers %s: logs failed, or can be replaced", brokers)
            hosted = self._context.replicas_on_brokers(brokers)
            asked = [replica for replica in hosted if self._may_have_changed(replica)]
            self._replicas.resend_leadership(asked)
        self._services.store.delete_log_dir_events(events.keys(), self._context.epoch_zk_version)

    def _may_have_changed(self, replica: PartitionAndReplica) -> bool:
        """Whether the replica is in service, or out of service only because of its log."""
        state = self._context.replica_state(replica)
        failed = self._context.replicas_on_offline_dirs.get(replica.replica, ())
        could_be_back = state in VALID_PREVIOUS_REPLICA_STATES[ReplicaState.ONLINE]
        is_in_service = state in (ReplicaState.NEW, ReplicaState.ONLINE)
        return is_in_service or (could_be_back and replica.topic_partition in failed)

    def _learn_leaderships(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Read states into the context; return the partitions whose states could be read."""
        learnt: list[TopicPartition] = []
        unusable: list[str] = []
        for topic_partition, state in self._services.store.read_partition_states(
            list(partitions)
        ).items():
            if isinstance(state, UnreadableError):
                self._unread.add(topic_partition)
                self._context.must_read_again = True
            if isinstance(state, BadDataError):
                unusable.append(f"{topic_partition}: {state}")
            elif self._context.is_of_newer_controller(state):
                # Another controller is active; our next fenced write will fail.
                unusable.append(f"{topic_partition}: controller epoch {state.controller_epoch}")
            else:
                before = self._context.partition_leadership_info(topic_partition)
                self._context.put_partition_leadership_info(topic_partition, state)
                learnt.append(topic_partition)
                if state != before:
                    self._services.outbox.record(
                        PartitionChanged, topic_partition, before, state.leader_and_isr
                    )
        if unusable:
            self._log.warning(
                "%d ISR changes are ignored, the first: %s",
                len(unusable),
                unusable[0],
            )
        return learnt
