"""Controlled shutdown: moving leaderships and ISR memberships away from a broker.

Mirrors ``KafkaController.doControlledShutdown``. The answer waits until the new leaders have taken
over, so that every partition has a leader that serves it (KAFKA-6029), but at most for
``controlled_shutdown_ack_timeout_ms``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from regent.core.controller.effects import SendResponse
from regent.core.controller.election.election import ControlledShutdownElection
from regent.core.controller.events import (
    ControlledShutdown,
    ControlledShutdownAbandoned,
    ControlledShutdownTimeout,
    LeaderAndIsrResponseReceived,
    RequestId,
)
from regent.core.controller.partition_state_machine import PartitionStateMachine
from regent.core.controller.replica_state_machine import ReplicaStateMachine
from regent.core.controller.services import ControllerServices
from regent.core.controller.states import PartitionState, ReplicaState
from regent.core.errors import Errors
from regent.core.model import (
    NO_LEADER,
    UNKNOWN_BROKER_EPOCH,
    BrokerId,
    LeaderAndIsr,
    PartitionAndReplica,
    TopicPartition,
)
from regent.core.protocol.controller import ControlledShutdownResponse


@dataclass(slots=True)
class _PendingShutdown:
    """A broker that waits for its answer, and the new leaders that have not responded yet."""

    broker_id: BrokerId
    unacknowledged: dict[TopicPartition, LeaderAndIsr] = field(default_factory=dict)


class ControlledShutdowns:
    """Answers brokers that ask to stop."""

    def __init__(
        self,
        services: ControllerServices,
        partitions: PartitionStateMachine,
        replicas: ReplicaStateMachine,
    ) -> None:
        self._services = services
        self._log = services.log(__name__)
        self._context = services.context
        self._partitions = partitions
        self._replicas = replicas
        self._waiting: dict[RequestId, _PendingShutdown] = {}

    def shut_down(self, event: ControlledShutdown) -> None:
        """Move leaderships and ISR memberships off the broker.

        The answer names the partitions that the broker still leads because it is their only in-sync
        replica. Partitions with only one replica are not moved and not named.
        """
        broker_id = event.broker_id
        refused = self._refusal(broker_id, event.broker_epoch)
        if refused is not Errors.NONE:
            self._services.outbox.add(
                SendResponse(event.request_id, ControlledShutdownResponse(refused))
            )
            return
        self._mark(broker_id)
        led = self.relieve(broker_id)
        waiting = _PendingShutdown(
            broker_id, {**self._awaited(broker_id), **self._new_leaders(led, broker_id)}
        )
        if not waiting.unacknowledged:
            self._let_go(event.request_id, waiting)
            return
        self._waiting[event.request_id] = waiting
        timeout = ControlledShutdownTimeout(event.request_id, self._context.epoch)
        self._services.schedule(self._services.settings.controlled_shutdown_ack_timeout_ms, timeout)

    def relieve(self, broker_id: BrokerId) -> list[TopicPartition]:
        """Move leaderships and ISR memberships off a broker; return what it led."""
        led, followed = self._replicated_partitions(broker_id)
        self._services.outbox.note(
            "broker %d: moves %d leaderships, leaves %d ISRs", broker_id, len(led), len(followed)
        )
        self._partitions.handle_state_changes(
            led, PartitionState.ONLINE, ControlledShutdownElection()
        )
        self._services.outbox.flush()
        self._replicas.handle_state_changes(
            [PartitionAndReplica(topic_partition, broker_id) for topic_partition in followed],
            ReplicaState.OFFLINE,
        )
        return led

    def on_leader_and_isr_response(self, event: LeaderAndIsrResponseReceived) -> None:
        """Note that a new leader has been told to lead; any response shows that.

        The response must be of the present broker epoch: a broker that restarted since was not
        told. A response about an earlier topic of the same name does not count.
        """
        if not self._waiting or self._context.is_stale(event.broker_id, event.header):
            return
        told_of = [
            (TopicPartition(topic.topic_name, told.partition_index), told)
            for topic in event.request.topic_states
            if topic.topic_id == self._context.topic_id(topic.topic_name)
            for told in topic.partition_states
        ]
        for request_id, waiting in list(self._waiting.items()):
            for topic_partition, told in told_of:
                awaited = waiting.unacknowledged.get(topic_partition)
                # A response to an earlier request about the partition does not count.
                if (
                    awaited is not None
                    and awaited.leader == event.broker_id
                    and told.leader_epoch >= awaited.leader_epoch
                ):
                    del waiting.unacknowledged[topic_partition]
            if not waiting.unacknowledged:
                self._let_go(request_id, self._waiting.pop(request_id))

    def on_timeout(self, event: ControlledShutdownTimeout) -> None:
        """Answer a broker although not every new leader has responded."""
        waiting = self._waiting.pop(event.request_id, None)
        if waiting is None:
            return
        self._log.warning(
            "broker %d may stop although %d new leaders have not responded",
            waiting.broker_id,
            len({leadership.leader for leadership in waiting.unacknowledged.values()}),
        )
        self._let_go(event.request_id, waiting)

    def on_abandoned(self, event: ControlledShutdownAbandoned) -> bool:
        """Use a broker again that asked to stop and did not; False: the event is out of date."""
        registration = self._context.registrations.get(event.broker_id)
        if (
            event.controller_epoch != self._context.epoch
            or event.broker_id not in self._context.shutting_down_broker_ids
            or registration is None
            or registration.broker_epoch != event.broker_epoch
        ):
            return False
        self._services.outbox.note("broker %d: did not shut down, used again", event.broker_id)
        self.use_again(event.broker_id)
        return True

    def use_again(self, broker_id: BrokerId) -> None:
        """Let a broker lead and follow again: it was expected to stop, but still runs."""
        self._context.shutting_down_broker_ids.discard(broker_id)
        hosted = self._context.replicas_on_brokers([broker_id])
        stopped: list[PartitionAndReplica] = []
        others: list[PartitionAndReplica] = []
        for replica in hosted:
            is_stopped = self._is_led_by_another(replica.topic_partition, broker_id)
            (stopped if is_stopped else others).append(replica)
        self._replicas.restart(stopped)  # in a new leader epoch: they stopped in this one
        self._replicas.handle_state_changes(others, ReplicaState.ONLINE)
        self._partitions.trigger_online_partition_state_change()

    def refuse_all(self) -> None:
        """Answer every waiting broker with an error: it must ask the next controller."""
        refused = ControlledShutdownResponse(Errors.STALE_CONTROLLER_EPOCH)
        for request_id in self._waiting:
            self._services.outbox.add(SendResponse(request_id, refused))
        self._waiting.clear()

    # --- inside ---

    def _refusal(self, broker_id: BrokerId, broker_epoch: int) -> Errors:
        registration = self._context.registrations.get(broker_id)
        if registration is None:
            return Errors.BROKER_NOT_AVAILABLE
        if broker_epoch == UNKNOWN_BROKER_EPOCH or broker_epoch == registration.broker_epoch:
            return Errors.NONE
        if broker_epoch < registration.broker_epoch:
            return Errors.STALE_BROKER_EPOCH
        # The broker registered again and we do not know it yet. Kafka accepts the request, and
        # forgets when it learns of the registration that the broker is about to stop.
        return Errors.BROKER_NOT_AVAILABLE

    def _is_led_by_another(self, topic_partition: TopicPartition, broker_id: BrokerId) -> bool:
        leadership = self._context.partition_leadership_info(topic_partition)
        return (
            leadership is not None
            and leadership.leader_and_isr.leader not in (NO_LEADER, broker_id)
            and not self._context.is_topic_queued_for_deletion(topic_partition.topic)
        )

    def _mark(self, broker_id: BrokerId) -> None:
        is_unresponsive = broker_id in self._context.unresponsive_broker_ids
        self._context.unresponsive_broker_ids.discard(broker_id)  # a response must not undo this
        if broker_id in self._context.shutting_down_broker_ids and not is_unresponsive:
            return
        self._context.shutting_down_broker_ids.add(broker_id)
        broker_epoch = self._context.registrations[broker_id].broker_epoch
        self._services.schedule(
            self._services.settings.controlled_shutdown_abandoned_ms,
            ControlledShutdownAbandoned(broker_id, broker_epoch, self._context.epoch),
        )

    def _awaited(self, broker_id: BrokerId) -> dict[TopicPartition, LeaderAndIsr]:
        """Return what earlier requests of the broker wait for: a request may arrive twice."""
        return {
            topic_partition: leadership
            for waiting in self._waiting.values()
            if waiting.broker_id == broker_id
            for topic_partition, leadership in waiting.unacknowledged.items()
        }

    def _new_leaders(
        self, partitions: list[TopicPartition], broker_id: BrokerId
    ) -> dict[TopicPartition, LeaderAndIsr]:
        """Return the new leaders of what the broker led."""
        leaders: dict[TopicPartition, LeaderAndIsr] = {}
        for topic_partition in partitions:
            leadership = self._context.partition_leadership_info(topic_partition)
            if leadership is not None:
                current = leadership.leader_and_isr
                if current.leader != broker_id and current.leader in self._context.registrations:
                    leaders[topic_partition] = current
        return leaders

    def _let_go(self, request_id: RequestId, waiting: _PendingShutdown) -> None:
        remaining = self._context.partition_leaders_on_broker(waiting.broker_id)
        self._log.info(
            "broker %d is shutting down and still leads %d partitions",
            waiting.broker_id,
            len(remaining),
        )
        response = ControlledShutdownResponse(Errors.NONE, tuple(remaining))
        self._services.outbox.add(SendResponse(request_id, response))

    def _replicated_partitions(
        self, broker_id: BrokerId
    ) -> tuple[list[TopicPartition], list[TopicPartition]]:
        led: list[TopicPartition] = []
        followed: list[TopicPartition] = []
        for topic_partition in self._context.partitions_on_broker(broker_id):
            leadership = self._context.partition_leadership_info(topic_partition)
            if (
                leadership is None
                or len(self._context.partition_replica_assignment(topic_partition)) < 2
                or self._context.is_topic_queued_for_deletion(topic_partition.topic)
            ):
                continue
            is_leader = leadership.leader_and_isr.leader == broker_id
            (led if is_leader else followed).append(topic_partition)
        return led, followed
