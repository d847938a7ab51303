"""Writes this broker's ISR proposals to ZooKeeper, and notifies the controller in batches.

Mirrors ``kafka.server.ZkIsrManager``: the protocol before Kafka 2.7, chosen by
``isr_change_protocol = "zookeeper"``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from regent.actors.alter_partition_sender import AlterPartitionSender, SendPending
from regent.actors.inbox import Reply
from regent.actors.runtime import Supervisor
from regent.actors.scheduler import Scheduler
from regent.actors.timer import monotonic_ms
from regent.core.errors import Errors, RegentError
from regent.core.protocol.controller import AlterPartitionRequest, AlterPartitionResponse
from regent.core.replication.isr_change_propagation import IsrChangePropagation
from regent.core.replication.replica_manager import ReplicaManager
from regent.zk.stores.isr_store import ZkIsrStore


@dataclass(frozen=True, slots=True)
class PropagateIsrChanges:
    """Notify the controller of changed ISRs if that is due; sent every 2.5 s."""


ZkIsrMessage: TypeAlias = SendPending | PropagateIsrChanges


class ZkIsrManager(AlterPartitionSender):
    """Changes ISRs by conditional writes of this leader, without the controller."""

    def __init__(
        self,
        replica_manager: ReplicaManager,
        store: ZkIsrStore,
        *,
        scheduler: Scheduler,
        supervisor: Supervisor | None = None,
    ) -> None:
        name = f"broker-{replica_manager.broker_id}-zk-isr-manager"
        super().__init__(name, replica_manager, scheduler, supervisor)
        self._store = store
        self._propagation = IsrChangePropagation(monotonic_ms())

    def handle(self, message: ZkIsrMessage, reply: Reply | None) -> None:
        """Write proposals, or notify the controller."""
        match message:
            case SendPending():
                super().handle(message, reply)
            case PropagateIsrChanges():
                self._propagate()

    def alter_partitions(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        """Write the proposals; raises ``SessionExpiredError``."""
        hosted = self._replica_manager.partitions
        controller_epochs = {
            row.topic_partition: partition.controller_epoch
            for row in request.partitions
            if (partition := hosted.get(row.topic_partition)) is not None
        }
        response = self._store.alter_partitions(request, controller_epochs)
        changed = [
            row.topic_partition for row in response.partitions if row.error_code is Errors.NONE
        ]
        self._propagation.record(changed, monotonic_ms())
        return response

    def _propagate(self) -> None:
        due = self._propagation.due(monotonic_ms())
        if not due:
            return
        try:
            self._store.announce(due)
        except RegentError as error:
            self._failed(error)
        else:
            self._propagation.propagated(due, monotonic_ms())
