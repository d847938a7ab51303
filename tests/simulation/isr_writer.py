"""A leader that writes its ISRs into ZooKeeper itself, as ``actors.zk_isr_manager``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from regent.core.errors import Errors, SessionExpiredError
from regent.core.protocol.controller import AlterPartitionRequest, AlterPartitionResponse
from regent.core.replication.isr_change_propagation import CHECK_INTERVAL_MS, IsrChangePropagation
from regent.zk.stores.isr_store import ZkIsrStore

if TYPE_CHECKING:
    from tests.simulation.broker import SimulatedBroker


class IsrWriter:
    """Writes the proposals of one broker, as a controller would."""

    def __init__(self, broker: SimulatedBroker) -> None:
        self._broker = broker
        self._time = broker.world.time
        self._store = ZkIsrStore(broker.session)
        self._propagation = IsrChangePropagation(self._broker.now_ms)

    def alter(self, request: AlterPartitionRequest) -> AlterPartitionResponse | None:
        """Write a proposal; None without a session."""
        hosted = self._broker.replica_manager.partitions
        epochs = {
            row.topic_partition: hosted[row.topic_partition].controller_epoch
            for row in request.partitions
            if row.topic_partition in hosted
        }
        # It stands for another thread: faults in the controller's calls do not happen in it.
        session = self._broker.session
        hook, session.hook = session.hook, None
        try:
            response = self._store.alter_partitions(request, epochs)
        except SessionExpiredError:
            return None
        finally:
            session.hook = hook
        written = [r.topic_partition for r in response.partitions if r.error_code is Errors.NONE]
        self._propagation.record(written, self._broker.now_ms)
        return response

    def propagate_again_and_again(self) -> None:
        """Notify the controller of the written ISRs, and schedule the next time."""
        self._time.schedule(self._broker, CHECK_INTERVAL_MS, self.propagate_again_and_again)
        due = self._propagation.due(self._broker.now_ms)
        if not due:
            return
        session = self._broker.session
        hook, session.hook = session.hook, None
        try:
            self._store.announce(due)
        except SessionExpiredError:
            return
        finally:
            session.hook = hook
        self._propagation.propagated(due, self._broker.now_ms)
