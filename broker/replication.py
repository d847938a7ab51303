"""Starts and stops the parts of replication other than the Broker actor.

Followers are served from before the broker registers until its controlled shutdown is done. ISR
changes are proposed as soon as there is a controller to ask, or a ZooKeeper session to write them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from pykka import ActorDeadError, ActorRef
from pykka import Timeout as AskTimeout

from regent.actors.alter_partition_sender import ControllerAlterPartitionSender, SendPending
from regent.actors.broker import BrokerView, ShrinkIsrs, StopFetching
from regent.actors.controller_event_manager import ControllerEventManager
from regent.actors.inbox import InboxFullError
from regent.actors.runtime import start_actor, stop_actor
from regent.actors.scheduler import Scheduler
from regent.actors.timer import RepeatingTimer
from regent.actors.zk_isr_manager import PropagateIsrChanges, ZkIsrManager
from regent.broker.machine_settings import isr_changes_through_zookeeper
from regent.broker.replication_server import ReplicationServer
from regent.config.addresses import tcp_endpoint
from regent.config.settings import Settings
from regent.core.model import BrokerId
from regent.core.protocol.api import ApiKey
from regent.core.replication.isr_change_propagation import CHECK_INTERVAL_MS
from regent.transport import codec
from regent.transport.client import RequestClient
from regent.transport.server import ControlServer, IncomingRequest
from regent.transport.sockets import Context
from regent.zk.client.operations import ZooKeeper
from regent.zk.stores.isr_store import ZkIsrStore

_STOP_TIMEOUT_S = 2.0
_MAX_OUTSTANDING = 1000


class Replication:
    """Used by the thread that starts and stops the broker, except where stated."""

    def __init__(
        self, context: Context, broker_id: BrokerId, settings: Settings, scheduler: Scheduler
    ) -> None:
        self._context = context
        self._broker_id = broker_id
        self._settings = settings
        self._scheduler = scheduler
        self._broker: BrokerView | None = None
        self._reaper: Scheduler | None = None
        self._server: ControlServer | None = None
        self._sender: ActorRef[Any] | None = None
        self._timers: list[RepeatingTimer] = []

    def open_channel(self, endpoint: str) -> RequestClient:
        """Return a connection to another broker, for use by the calling thread."""
        return RequestClient(self._context, endpoint, client_id=f"replica-{self._broker_id}")

    def wake(self) -> None:
        """Send ISR proposals, if there are any. Thread-safe."""
        if self._sender is not None and self._replica_manager.has_proposals:
            _tell(self._sender, SendPending())

    def listen(
        self,
        broker: BrokerView,
        take: Callable[[IncomingRequest], bool] | None = None,
    ) -> str:
        """Serve followers; return the endpoint. ``take`` answers other requests of brokers.

        Raises ``PortInUseError``, or ``RegentError`` for an unusable address.
        """
        config = self._settings.broker
        self._broker = broker
        self._replica_manager = broker.replica_manager
        # It has its own thread, as in Kafka, because expiring waits for the lock of appends.
        self._reaper = Scheduler("expiration-reaper")
        self._server = ControlServer(
            self._context,
            tcp_endpoint(config.host, config.replication_port),
            ReplicationServer(self._replica_manager, self._reaper, on_fetched=self.wake, take=take),
            name="replication-server",
            max_outstanding=_MAX_OUTSTANDING,
            max_frame_bytes=codec.max_request_bytes(ApiKey.FETCH),
        )
        self._server.start()
        return self._server.endpoint

    def propose_isrs(
        self, controller: ActorRef[ControllerEventManager], zookeeper: ZooKeeper
    ) -> None:
        """Start to propose ISR changes by the configured protocol; ``controller`` is our own."""
        assert self._broker is not None
        broker = self._broker
        if isr_changes_through_zookeeper(self._settings):
            sender: ActorRef[Any] = start_actor(
                ZkIsrManager,
                broker.replica_manager,
                ZkIsrStore(zookeeper),
                scheduler=self._scheduler,
            )
            self._every(CHECK_INTERVAL_MS, lambda: _tell(sender, PropagateIsrChanges()))
        else:
            sender = start_actor(
                ControllerAlterPartitionSender,
                broker.replica_manager,
                broker.cache,
                controller,
                self.open_channel,
                scheduler=self._scheduler,
                timeout_ms=self._settings.controller.request_timeout_ms,
            )
        self._sender = sender
        # Kafka's isr-expiration: an ISR shrinks after at most one and a half times the lag limit.
        interval_ms = self._settings.broker.replica_lag_time_max_ms / 2
        self._every(interval_ms, lambda: _tell(broker.ref, ShrinkIsrs()))

    def stop(self) -> None:
        """Stop fetching, serving followers and proposing; the Broker actor stays. Idempotent."""
        for timer in self._timers:
            timer.cancel()
        if self._broker is not None:
            with suppress(ActorDeadError, AskTimeout):
                self._broker.ref.ask(StopFetching(), timeout=_STOP_TIMEOUT_S)
        if self._sender is not None:
            stop_actor(self._sender, _STOP_TIMEOUT_S)
        if self._server is not None:
            self._server.stop()
        if self._reaper is not None:
            self._reaper.shutdown()

    def _every(self, interval_ms: float, callback: Callable[[], None]) -> None:
        self._timers.append(RepeatingTimer(self._scheduler, interval_ms, callback))


def _tell(ref: ActorRef[Any], message: object) -> None:
    """Best-effort tell: ignore a dead actor or full inbox."""
    with suppress(ActorDeadError, InboxFullError):
        ref.tell(message)
