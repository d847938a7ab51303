"""Starts and stops the parts of replication other than the Broker actor.

Followers are served from before the broker registers until its controlled shutdown is done. ISR
changes are proposed as soon as there is a controller to ask, or a ZooKeeper session to write them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pykka import ActorDeadError, ActorRef
from pykka import Timeout as AskTimeout

from regent.actors.alter_partition_sender import (
    ControllerAlterPartitionSender,
    SendPending,
    ZkIsrManager,
)
from regent.actors.broker import BrokerView, ShrinkIsrs, StopFetching
from regent.actors.controller_event_manager import ControllerEventManager
from regent.actors.inbox import InboxFullError
from regent.actors.runtime import start_actor, stop_actor
from regent.actors.scheduler import RepeatingTimer, Scheduler
from regent.broker.api.authorization import with_authorization
from regent.broker.api.fetch import fetch_apis
from regent.broker.api.offsets import offset_apis
from regent.broker.listener_security import (
    controllers_of_kafka,
    security_of,
    security_to_brokers,
)
from regent.broker.machine_settings import (
    dynamic_values,
    isr_changes_through_zookeeper,
    listener_setting,
)
from regent.broker.packet_loss import LOOK_MS, PacketLoss
from regent.broker.user_credentials import UserCredentials
from regent.config.settings import LIMITS_OF_ONE_LISTENER, Settings
from regent.config.threads import named_executor
from regent.core.model import BrokerId
from regent.core.security.authorizer import ALLOW_ALL, Authorizer
from regent.core.security.scram import CredentialProvider
from regent.core.setting import SettingValues
from regent.transport.control.client import RequestClient
from regent.transport.control.sockets import Context
from regent.transport.kafka.api import KafkaApi, KafkaApiKey
from regent.transport.kafka.follower_fetch import FetchChannel
from regent.transport.kafka.limits import KafkaLimits
from regent.transport.kafka.listener import KafkaListener
from regent.transport.kafka.listener_loop import ListenerLoop
from regent.transport.kafka.metrics import RequestMetrics
from regent.transport.kafka.transaction_channel import TransactionChannel
from regent.transport.local_users import EVERYBODY, LocalUsers
from regent.zk.client.zookeeper import ZooKeeper
from regent.zk.stores.isr_store import ZkIsrStore

if TYPE_CHECKING:
    from regent.transport.kafka.client_security import ClientTls
    from regent.transport.kafka.tls import ServerTls

_STOP_TIMEOUT_S = 2.0
_LAST_ANSWERS_S = 0.05  # waiting fetches are not worth a longer stop
# The limits of clients are not those of brokers, which must not be kept out. A broker needs a few
# connections for each other one; one address cannot take all.
_LIMITS = KafkaLimits(max_connections=4_000, max_connections_per_ip=1_000)


class Replication:
    """Used by the thread that starts and stops the broker, except where stated."""

    reconfigurable_configs: Final = ("max.connections", "max.connection.creation.rate")

    def __init__(
        self,
        context: Context,
        broker_id: BrokerId,
        settings: Settings,
        scheduler: Scheduler,
        loop: ListenerLoop | None = None,
        users: LocalUsers = EVERYBODY,
        credentials: CredentialProvider | None = None,
    ) -> None:
        """Raise ``RegentError`` if the security of the brokers' listener cannot be served."""
        self._security = security_to_brokers(settings)
        self._listener_name = settings.listeners.inter_broker_name
        self._limits = self._limits_of(dynamic_values(settings))
        self.tls: Mapping[str, ServerTls] = {}
        """The keys of the brokers' listener, by its name, if it is not for clients too."""
        self._credentials = credentials or UserCredentials()
        self._loop = loop
        self._users = users
        self._context = context
        self._broker_id = broker_id
        self._settings = settings
        self._scheduler = scheduler
        self._broker: BrokerView | None = None
        self._listener: KafkaListener | None = None
        self._reader = named_executor(1, "replication-reader")  # of offsets by time
        self._sender: ActorRef[Any] | None = None
        self._timers: list[RepeatingTimer] = []
        self.packet_loss = PacketLoss()

    @property
    def _client_id(self) -> str:
        return f"replica-{self._broker_id}"

    def open_channel(self, endpoint: str) -> RequestClient:
        """Return a connection to a control port, for use by the calling thread."""
        return RequestClient(self._context, endpoint, client_id=self._client_id)

    def open_fetch_channel(self, endpoint: str) -> FetchChannel:
        """Return a connection to a leader, for use by one thread."""
        return FetchChannel(endpoint, client_id=self._client_id, security=self._security)

    def open_transaction_channel(self, endpoint: str) -> TransactionChannel:
        """Return a connection to a leader or coordinator, for use by the calling thread."""
        return TransactionChannel(endpoint, client_id=self._client_id, security=self._security)

    @property
    def client_tls(self) -> ClientTls | None:
        """The keys with which this broker connects to others; None: nothing is encrypted."""
        return None if self._security is None else self._security.tls

    def reconfigure(self, old: SettingValues, new: SettingValues) -> None:
        """Change the limit of connections of the brokers' listener."""
        del old
        self._limits = self._limits_of(new)
        if self._listener is not None:
            self._listener.limit_connections(self._limits)

    def _limits_of(self, values: SettingValues) -> KafkaLimits:
        own = {
            f"{name}_of_listener": values[listener_setting(self._listener_name, name)]
            for name in LIMITS_OF_ONE_LISTENER
        }
        return replace(_LIMITS, **own)

    @property
    def fetch_metrics(self) -> RequestMetrics | None:
        """The metrics of followers' fetches; None: they come to the listener of clients."""
        listener = self._listener
        return None if listener is None else listener.metrics.requests[KafkaApiKey.FETCH]

    def wake(self) -> None:
        """Send ISR proposals, if there are any. Thread-safe."""
        if self._sender is not None and self._replica_manager.has_proposals:
            _tell(self._sender, SendPending())

    def listen(
        self,
        broker: BrokerView,
        apis: Sequence[KafkaApi] = (),
        authorizer: Authorizer = ALLOW_ALL,
    ) -> Mapping[str, int]:
        """Serve followers on a listener of their own; return its port by its name.

        ``apis`` are other requests of brokers. The limits and quotas of clients do not apply to
        it. There may be no such listener: then ``KafkaEndpoint`` serves brokers on one of clients.
        Raises ``PortInUseError``, or ``RegentError`` for an unusable address.
        """
        self._broker = broker
        endpoint = self._settings.listeners.of_brokers_only
        self._replica_manager = replicas = broker.replica_manager
        if endpoint is None:
            return {}
        served = [
            *fetch_apis(replicas, broker.cache, self._reader, on_proposals=self.wake),
            *offset_apis(replicas, self._reader),
            *apis,
        ]
        security = security_of(endpoint, self._settings, self._credentials)
        listener = KafkaListener(
            endpoint.host,
            endpoint.port,
            with_authorization(served, authorizer),
            self._limits,
            "replication-listener",
            loop=self._loop,
            users=self._users,
            endpoint=endpoint,
            tls=security.tls,
            sasl=security.sasl,
        )
        if security.tls is not None:
            self.tls = {endpoint.listener: security.tls}
        listener.start()
        self._listener = listener
        return {endpoint.listener: listener.port}

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
        else:
            sender = start_actor(
                ControllerAlterPartitionSender,
                broker.replica_manager,
                broker.cache,
                controller,
                self.open_channel,
                scheduler=self._scheduler,
                timeout_ms=self._settings.controller.request_timeout_ms,
                of_kafka=controllers_of_kafka(self._settings, self._client_id),
            )
        self._sender = sender
        # Kafka's isr-expiration: an ISR shrinks after at most one and a half times the lag limit.
        interval_ms = self._settings.broker.replica_lag_time_max_ms / 2
        self._every(interval_ms, lambda: _tell(broker.ref, ShrinkIsrs()))
        self._every(LOOK_MS, self.packet_loss.look)

    def stop(self) -> None:
        """Stop fetching, serving followers and proposing; the Broker actor stays. Idempotent."""
        for timer in self._timers:
            timer.cancel()
        if self._broker is not None:
            with suppress(ActorDeadError, AskTimeout):
                self._broker.ref.ask(StopFetching(), timeout=_STOP_TIMEOUT_S)
        if self._sender is not None:
            stop_actor(self._sender, _STOP_TIMEOUT_S)
        if self._listener is not None:
            self._listener.close(_LAST_ANSWERS_S)
        self._reader.shutdown(wait=False, cancel_futures=True)

    def _every(self, interval_ms: float, callback: Callable[[], None]) -> None:
        self._timers.append(RepeatingTimer(self._scheduler, interval_ms, callback))


def _tell(ref: ActorRef[Any], message: object) -> None:
    """Best-effort tell: ignore a dead actor or full inbox."""
    with suppress(ActorDeadError, InboxFullError):
        ref.tell(message)
