"""Registers a broker with its endpoints, once its former registration is gone."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple, TypedDict, TypeVar

from regent import __version__
from regent.actors.broker import BrokerStatus
from regent.broker.broker_settings import StartedBroker
from regent.broker.machine_settings import log_directories
from regent.config.addresses import bracketed, port_of, tcp_endpoint
from regent.config.listeners import Listeners, ListenersError, parse_advertised
from regent.config.settings import Settings
from regent.config.tables.broker import BrokerConfig
from regent.core.controller.events import AdvertisedListenersChanged, ControllerEvent
from regent.core.errors import BadDataError, BrokerIdInUseError, RegentError, SessionExpiredError
from regent.core.model import BrokerId, BrokerInfo, EndPoint, SuspectReplicas, control_peer
from regent.core.security.session import SecurityProtocol
from regent.core.setting import SettingValues
from regent.transport.control.codec import CONTROL_VERSION
from regent.zk.client.connection import ConnectionState
from regent.zk.client.operations import ConnectionLossError
from regent.zk.client.session import SessionKeeper
from regent.zk.client.zookeeper import ZooKeeper
from regent.zk.codecs.broker_znodes import BrokerEnd
from regent.zk.stores.broker_ends import forget_end, note_end
from regent.zk.stores.cluster_identity import EndPointInUseError, check_end_points
from regent.zk.stores.controller_store import ZkControllerStore

logger = logging.getLogger(__name__)

_RETRY_S = 0.2
_LONGEST_OF_KAFKA_MS: Final = 40_000
"""The longest session that a ZooKeeper server grants if nothing is configured; Kafka asks for 18 s,
or for what its ``zookeeper.session.timeout.ms`` says, which is not a setting of this broker."""
T = TypeVar("T")


class BrokerAddress(TypedDict):
    """What a broker reports when it is ready."""

    id: BrokerId
    host: str
    port: int
    control_port: int
    replication_port: int
    metrics_port: int
    control_key: str
    listeners: list[str]


class AdvertisedListeners(NamedTuple):
    """Where clients and brokers are told that they find this broker."""

    endpoints: tuple[EndPoint, ...]
    """The listeners: Kafka's ``advertised.listeners``."""
    control_endpoint: str
    replication_endpoint: str | None
    """Where brokers find this one whose own listener for brokers has another name.

    None: it is not PLAINTEXT, which these could not know.
    """
    first_of_clients: EndPoint
    inter_broker: EndPoint

    @classmethod
    def of(
        cls, settings: Settings, ports: Mapping[str, int], control_port: int
    ) -> AdvertisedListeners:
        """Return the configured endpoints.

        ``ports`` are those that the listeners have got; they stand for port 0. The control port is
        at the host of the broker.
        """
        config, listeners = settings.broker, settings.listeners
        advertised = tuple(_at_port(e, ports) for e in listeners.advertised)
        registered = clients_first(
            (e for e in advertised if e.listener in listeners.registered_names), listeners
        )
        (inter_broker,) = (e for e in advertised if e.listener == listeners.inter_broker_name)
        return cls(
            registered,
            tcp_endpoint(
                config.advertised_host or config.host,
                config.advertised_control_port or control_port,
            ),
            tcp_endpoint(inter_broker.host, inter_broker.port)
            if inter_broker.security_protocol == SecurityProtocol.PLAINTEXT.value
            else None,
            registered[0],
            inter_broker,
        )

    def address(self, broker_id: BrokerId, metrics_port: int, control_key: str) -> BrokerAddress:
        """Return what the broker reports when it is ready."""
        return BrokerAddress(
            id=broker_id,
            host=self.first_of_clients.host,
            port=self.first_of_clients.port,
            control_port=port_of(self.control_endpoint),
            replication_port=self.inter_broker.port,
            metrics_port=metrics_port,
            control_key=control_key,
            listeners=[
                f"{e.security_protocol}://{bracketed(e.host)}:{e.port}" for e in self.endpoints
            ],
        )

    def broker_info(
        self, broker_id: BrokerId, config: BrokerConfig, control_key: str
    ) -> BrokerInfo:
        """Return the content of the registration, with the current time."""
        return BrokerInfo(
            broker_id=broker_id,
            endpoints=self.endpoints,
            rack=config.rack or None,
            control_endpoint=self.control_endpoint,
            replication_endpoint=self.replication_endpoint,
            timestamp_ms=time.time_ns() // 1_000_000,
            control_key=control_key,
            no_replicas=config.no_replicas,
            node_host=config.node_host or None,
            release=__version__,
            control_version=CONTROL_VERSION,
        )


def known_at_start(
    settings: Settings,
    zookeeper: str,
    data_dir: Path,
    ports: Mapping[str, int],
    control_port: int,
    control_key: str,
    tell_controller: Callable[[ControllerEvent], None],
) -> tuple[AdvertisedListeners, RegisteredEndPoints, StartedBroker]:
    """Return the endpoints of a broker that listens, and what else is known only then.

    ``ports`` are those that the listeners have got.
    """
    advertised = AdvertisedListeners.of(settings, ports, control_port)
    started = StartedBroker(
        zookeeper,
        tuple(log_directories(settings, data_dir.absolute())),
        settings.listeners.shown(ports),
        advertised.endpoints,
        control_peer(advertised.control_endpoint, control_key) or "",
    )
    return advertised, RegisteredEndPoints(advertised, settings, ports, tell_controller), started


def open_listeners(settings: Settings) -> Sequence[str]:
    """Return a line for each listener beyond loopback where nobody proves who they are."""
    return [
        f"{endpoint.connection_string} lets in everybody who reaches it (allow_unauthenticated)"
        for endpoint in settings.unauthenticated_listeners()
    ]


def warn_of_open_listeners(settings: Settings, status: BrokerStatus) -> None:
    """Say in the log and in ``regent status`` which listeners let everybody in."""
    warnings = open_listeners(settings)
    for warning in warnings:
        logger.warning("%s", warning)
    status.add_warner(lambda: warnings)


def clients_first(endpoints: Iterable[EndPoint], listeners: Listeners) -> tuple[EndPoint, ...]:
    """Return the endpoints with the one that brokers use last.

    The first PLAINTEXT one is the ``host`` and ``port`` of a registration, which old clients use.
    """
    return tuple(sorted(endpoints, key=lambda e: e.listener == listeners.inter_broker_name))


def _at_port(endpoint: EndPoint, ports: Mapping[str, int]) -> EndPoint:
    return replace(endpoint, port=endpoint.port or ports[endpoint.listener])


class RegisteredEndPoints:
    """The endpoints that this broker registers: its own, or those of ZooKeeper's settings."""

    reconfigurable_configs: Final = ("advertised.listeners",)

    def __init__(
        self,
        started: AdvertisedListeners,
        settings: Settings,
        ports: Mapping[str, int],
        tell_controller: Callable[[ControllerEvent], None],
    ) -> None:
        """Begin with those of the start. ``ports`` are those that the listeners have got."""
        listeners = self._listeners = settings.listeners
        self.current = started.endpoints
        self._started = started
        self._ports = ports
        self._configured = settings.broker.advertised_listeners
        self._known = [e for e in listeners.listening if e.listener in listeners.registered_names]
        self._tell_controller = tell_controller

    def reconfigure(self, old: SettingValues, new: SettingValues) -> None:
        """Register the endpoints of the setting, or those of the start if it is as it was."""
        del old
        endpoints, text = self._started.endpoints, new["advertised.listeners"]
        if text != self._configured:
            try:
                endpoints = clients_first(
                    (_at_port(e, self._ports) for e in parse_advertised(text, self._known)),
                    self._listeners,
                )
            except ListenersError as error:
                logger.error("The advertised listeners stay as they are: %s", error)
                return
        if endpoints != self.current:
            self.current = endpoints
            self._tell_controller(AdvertisedListenersChanged(endpoints))


class InSomeSession:
    """Does the steps of a start; one whose session ends is done in the next session."""

    def __init__(self, settings: Settings, stop_requested: threading.Event) -> None:
        self._timeout_s = settings.zookeeper.connection_timeout_ms / 1000
        self._stop_requested = stop_requested

    def __call__(self, step: Callable[[], T]) -> T:
        """Return what a step does.

        Raises ``SessionExpiredError`` when no session comes in time, or when a stop is requested.
        """
        deadline: float | None = None
        while True:
            try:
                return step()
            except SessionExpiredError as expired:
                now = time.monotonic()
                deadline = now + self._timeout_s if deadline is None else deadline
                if now > deadline or self._stop_requested.is_set():
                    raise
                logger.info("%s; the start goes on in the next session", expired)
                self._stop_requested.wait(_RETRY_S)


def register(
    info: BrokerInfo,
    suspects: Callable[[], SuspectReplicas],
    zookeeper: ZooKeeper,
    store: ZkControllerStore,
    session_timeout_ms: int,
    stop_requested: threading.Event,
) -> int:
    """Return the broker epoch.

    Wait until the session of an earlier process with this id expires, ours or Kafka's. Raises
    ``BrokerIdInUseError`` if it does not expire, or when a stop is requested. Raises
    ``EndPointInUseError`` when another broker has registered one of our addresses, before us or at
    the same time, and ``SessionExpiredError``.
    """
    check_end_points(zookeeper, info)
    began, said = time.monotonic(), ""
    while True:
        try:
            broker_epoch = store.register_broker(info, suspects())
            check_end_points(zookeeper, info, broker_epoch)
            return broker_epoch
        except BrokerIdInUseError as error:
            longest_ms = 1.5 * session_timeout_ms
            if error.is_of_kafka:
                longest_ms = max(longest_ms, _LONGEST_OF_KAFKA_MS)
            deadline = began + longest_ms / 1000 + 1
            if time.monotonic() > deadline or stop_requested.is_set():
                raise
            if str(error) != said:
                said = str(error)
                logger.info("%s; trying again every %.1f s", error, _RETRY_S)
            stop_requested.wait(_RETRY_S)


def taken_end_points(
    zookeeper: ZooKeeper, info: BrokerInfo, broker_epoch: int
) -> EndPointInUseError | None:
    """Return an error if another broker took our addresses before this registration."""
    try:
        check_end_points(zookeeper, info, broker_epoch)
    except EndPointInUseError as taken:
        return taken
    except (SessionExpiredError, BadDataError) as error:  # the next registration checks again
        logger.info("the addresses of other brokers are not known now: %s", error)
    return None


class EndOfBroker:
    """Writes into ZooKeeper why this broker ends: its disk may be full, its log far away."""

    def __init__(self, broker_id: BrokerId) -> None:
        self._broker_id = broker_id
        self._keeper: SessionKeeper | None = None

    def follow(self, keeper: SessionKeeper) -> None:
        """Write through this session from now on."""
        self._keeper = keeper

    def note(self, failure: BaseException | None) -> None:
        """Write the reason while ZooKeeper answers; None: the broker was asked to stop.

        What is no ``RegentError`` is named by its type: its text may be of any length and kind.
        """
        keeper = self._keeper
        if keeper is None or keeper.state is not ConnectionState.CONNECTED:
            return
        reason = "it was shut down"
        if failure is not None:
            is_line = isinstance(failure, RegentError)
            reason = str(failure) if is_line else f"{type(failure).__name__}, see broker.log"
        end = BrokerEnd(time.time_ns() // 1_000_000, reason, was_asked=failure is None)
        try:
            note_end(keeper, self._broker_id, end)
        except (SessionExpiredError, ConnectionLossError) as error:
            logger.info("why this broker ends is not in ZooKeeper: %s", error)

    def forget(self) -> None:
        """Delete what an earlier process wrote, because the broker is registered again."""
        if self._keeper is not None:
            with suppress(SessionExpiredError):  # the next registration does it
                forget_end(self._keeper, self._broker_id)
