"""A leader that writes its ISRs into ZooKeeper itself, as ``ZkIsrManager`` of the actors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from regent.core.errors import SessionExpiredError
from regent.core.protocol.controller import AlterPartitionRequest, AlterPartitionResponse
from regent.core.replication.isr_change_propagation import CHECK_INTERVAL_MS, IsrWriter
from regent.zk.stores.isr_store import ZkIsrStore

if TYPE_CHECKING:
    from tests.simulation.broker import SimulatedBroker


class SimulatedIsrWriter:
    """Writes the proposals of one broker, as a controller would."""

    def __init__(self, broker: SimulatedBroker) -> None:
        self._broker = broker
        self._writer = IsrWriter(broker.replica_manager, ZkIsrStore(broker.session), broker.now_ms)

    def alter(self, request: AlterPartitionRequest) -> AlterPartitionResponse | None:
        """Write a proposal; None without a session, or if it ends before the answer."""
        with suppress(SessionExpiredError), self._as_another_thread():
            answer = self._writer.alter_partitions(request, self._broker.now_ms)
            return None if self._broker.world.is_answer_lost(request) else answer
        return None

    def propagate_again_and_again(self) -> None:
        """Notify the controller of the written ISRs, and schedule the next time."""
        time = self._broker.world.time
        time.schedule(self._broker, CHECK_INTERVAL_MS, self.propagate_again_and_again)
        with suppress(SessionExpiredError), self._as_another_thread():
            self._writer.propagate(self._broker.now_ms)

    @contextmanager
    def _as_another_thread(self) -> Iterator[None]:
        """Faults in the controller's calls do not happen in these calls."""
        session = self._broker.session
        hook, session.hook = session.hook, None
        try:
            yield
        finally:
            session.hook = hook
