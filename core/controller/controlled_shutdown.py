"""Moving everything away from a broker that is about to stop.

Mirrors ``KafkaController.doControlledShutdown``.
"""

from __future__ import annotations

import logging

from core.controller.election import ControlledShutdownElection
from core.controller.partition_state_machine import PartitionStateMachine
from core.controller.replica_state_machine import ReplicaStateMachine
from core.controller.states import PartitionState, ReplicaState
from core.controller.term import Term
from core.errors import Errors
from core.model import UNKNOWN_BROKER_EPOCH, BrokerId, PartitionAndReplica, TopicPartition
from core.protocol.controller import ControlledShutdownResponse

log = logging.getLogger(__name__)


class ControlledShutdowns:
    """Answers brokers that ask to stop."""

    def __init__(
        self, term: Term, partitions: PartitionStateMachine, replicas: ReplicaStateMachine
    ) -> None:
        self._term = term
        self._context = term.context
        self._partitions = partitions
        self._replicas = replicas

    def shut_down(self, broker_id: BrokerId, broker_epoch: int) -> ControlledShutdownResponse:
        """Move leaderships and ISR memberships off the broker.

        The answer names the partitions it still leads although others could: their only in-sync
        replica is the broker itself. Partitions without another replica are neither moved nor
        named.
        """
        registration = self._context.registrations.get(broker_id)
        if registration is None:
            return ControlledShutdownResponse(Errors.BROKER_NOT_AVAILABLE)
        if broker_epoch != UNKNOWN_BROKER_EPOCH and broker_epoch < registration.broker_epoch:
            return ControlledShutdownResponse(Errors.STALE_BROKER_EPOCH)
        self._context.shutting_down_broker_ids.add(broker_id)
        led, followed = self._replicated_partitions(broker_id)
        self._term.outbox.record(
            "broker %d: shutting down, leads %d, follows %d", broker_id, len(led), len(followed)
        )
        self._partitions.handle_state_changes(
            led, PartitionState.ONLINE, ControlledShutdownElection()
        )
        batch = self._term.new_batch()
        for partition in followed:
            batch.add_stop_replica(broker_id, partition, delete=False)
        self._term.announce(batch)
        self._replicas.handle_state_changes(
            [PartitionAndReplica(partition, broker_id) for partition in followed],
            ReplicaState.OFFLINE,
        )
        remaining = self._context.partition_leaders_on_broker(broker_id)
        log.info(
            "[Controller id=%d epoch=%d] broker %d is shutting down and still leads %d partitions",
            self._term.broker_id,
            self._context.epoch,
            broker_id,
            len(remaining),
        )
        return ControlledShutdownResponse(Errors.NONE, tuple(remaining))

    def _replicated_partitions(
        self, broker_id: BrokerId
    ) -> tuple[list[TopicPartition], list[TopicPartition]]:
        led: list[TopicPartition] = []
        followed: list[TopicPartition] = []
        for partition in self._context.partitions_on_broker(broker_id):
            leadership = self._context.partition_leadership_info(partition)
            if (
                leadership is None
                or len(self._context.partition_replica_assignment(partition)) < 2
                or self._context.is_topic_queued_for_deletion(partition.topic)
            ):
                continue
            is_leader = leadership.leader_and_isr.leader == broker_id
            (led if is_leader else followed).append(partition)
        return led, followed
