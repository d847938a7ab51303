"""Registers a broker with its endpoints, once its former registration is gone."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final, NamedTuple, TypedDict

from regent.broker.broker_settings import LISTENER
from regent.config.addresses import tcp_endpoint
from regent.config.tables.broker import BrokerConfig
from regent.core.controller.events import AdvertisedListenersChanged, ControllerEvent
from regent.core.errors import BadDataError, BrokerIdInUseError, SessionExpiredError
from regent.core.model import BrokerId, BrokerInfo, EndPoint, SuspectReplicas
from regent.core.setting import SettingValues
from regent.zk.client.zookeeper import ZooKeeper
from regent.zk.stores.cluster_identity import EndPointInUseError, check_end_points
from regent.zk.stores.controller_store import ZkControllerStore

logger = logging.getLogger(__name__)

_RETRY_S = 0.2


class BrokerAddress(TypedDict):
    """What a broker reports when it is ready."""

    id: BrokerId
    host: str
    port: int
    control_port: int
    replication_port: int
    metrics_port: int
    control_key: str


class AdvertisedListeners(NamedTuple):
    """The endpoints that clients and brokers connect to: Kafka's ``advertised.listeners``."""

    host: str
    port: int
    control_port: int
    replication_port: int
    control_plane_listener_name: str = ""
    client_host: str = ""
    """Where clients find this broker, if that is not ``host``."""

    @classmethod
    def of(
        cls, config: BrokerConfig, port: int, control_port: int, replication_port: int
    ) -> AdvertisedListeners:
        """Return the configured endpoints; the default is where the broker listens."""
        return cls(
            config.advertised_host or config.host,
            config.advertised_port or port,
            config.advertised_control_port or control_port,
            config.advertised_replication_port or replication_port,
            config.control_plane_listener_name,
        )

    @property
    def endpoints(self) -> tuple[EndPoint, ...]:
        """The clients' listener, first, and the control port if it has a name (KIP-291)."""
        clients = EndPoint(LISTENER, self.client_host or self.host, self.port)
        if not self.control_plane_listener_name:
            return (clients,)
        name = self.control_plane_listener_name.upper()  # Kafka's readers know no other form
        return clients, EndPoint(name, self.host, self.control_port)

    def broker_info(self, broker_id: BrokerId, rack: str, control_key: str) -> BrokerInfo:
        """Return the content of the registration, with the current time."""
        return BrokerInfo(
            broker_id=broker_id,
            endpoints=self.endpoints,
            rack=rack or None,
            control_endpoint=tcp_endpoint(self.host, self.control_port),
            replication_endpoint=tcp_endpoint(self.host, self.replication_port),
            timestamp_ms=time.time_ns() // 1_000_000,
            control_key=control_key,
        )


class RegisteredEndPoints:
    """The endpoints that this broker registers; clients find it where ZooKeeper's settings say."""

    reconfigurable_configs: Final = ("advertised.listeners",)

    def __init__(
        self, started: AdvertisedListeners, tell_controller: Callable[[ControllerEvent], None]
    ) -> None:
        self.current = started.endpoints
        self._started = started
        self._tell_controller = tell_controller

    def reconfigure(self, old: SettingValues, new: SettingValues) -> None:
        """Register another address for clients; brokers find this one at the same as before."""
        del old
        advertised, address = self._started, new["advertised.listeners"]
        if address is not None:
            host, _, port = address.removeprefix(f"{LISTENER}://").rpartition(":")
            advertised = advertised._replace(client_host=host.strip("[]"), port=int(port))
        if advertised.endpoints != self.current:
            self.current = advertised.endpoints
            self._tell_controller(AdvertisedListenersChanged(self.current))


def register(
    info: BrokerInfo,
    suspects: Callable[[], SuspectReplicas],
    zookeeper: ZooKeeper,
    store: ZkControllerStore,
    session_timeout_ms: int,
    stop_requested: threading.Event,
) -> tuple[int, int]:
    """Return the broker epoch and the id of the session that registered.

    Wait until the session of an earlier process with this id expires. Raises
    ``BrokerIdInUseError`` if it does not expire, or ``SessionExpiredError``. If a stop is
    requested, raises either without a further wait. Raises ``EndPointInUseError`` when another
    broker has registered one of our addresses, before us or at the same time.
    """
    check_end_points(zookeeper, info)
    deadline = time.monotonic() + 1.5 * session_timeout_ms / 1000 + 1
    said = ""
    while True:
        try:
            session_id = zookeeper.session_id
            broker_epoch = store.register_broker(info, suspects())
            check_end_points(zookeeper, info, broker_epoch)
            return broker_epoch, session_id
        except (BrokerIdInUseError, SessionExpiredError) as error:
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
