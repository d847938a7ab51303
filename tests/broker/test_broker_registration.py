"""A broker registers after its former session has expired."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable

import pytest

from regent.broker.broker_registration import AdvertisedListeners, RegisteredEndPoints, register
from regent.broker.machine_settings import dynamic_values
from regent.config.settings import Settings
from regent.config.tables.broker import BrokerConfig
from regent.core.admin.config_descriptions import LISTENER_SETTINGS
from regent.core.admin.config_handlers import values_in_force
from regent.core.controller.events import AdvertisedListenersChanged, ControllerEvent
from regent.core.errors import BrokerIdInUseError
from regent.core.model import NO_SUSPECTS, BrokerInfo, EndPoint
from regent.zk.stores.controller_store import ZkControllerStore
from regent.zk.znodes import BrokerIdZNode
from tests.support.fake_zookeeper import FakeZooKeeper, FakeZooKeeperServer

INFO = BrokerInfo(broker_id=1, endpoints=(EndPoint("PLAINTEXT", "127.0.0.1", 9092),))
KEY = "0" * 64
SESSION_TIMEOUT_MS = 60_000  # no test waits for it


class Pauses(threading.Event):
    """The pauses between attempts to register; ``at_the_third`` is called at the third."""

    def __init__(self, at_the_third: Callable[[threading.Event], None]) -> None:
        super().__init__()
        self.count = 0
        self._at_the_third = at_the_third

    def wait(self, timeout: float | None = None) -> bool:
        del timeout
        self.count += 1
        if self.count == 3:
            self._at_the_third(self)
        return self.is_set()


@pytest.fixture
def server() -> FakeZooKeeperServer:
    return FakeZooKeeperServer()


@pytest.fixture
def former(server: FakeZooKeeperServer) -> FakeZooKeeper:
    """The former session of the same broker, which is still registered."""
    zookeeper = FakeZooKeeper(server)
    store = ZkControllerStore(zookeeper)
    store.create_persistent_paths()
    store.register_broker(INFO)
    return zookeeper


def register_again(server: FakeZooKeeperServer, pauses: Pauses) -> tuple[int, int]:
    zookeeper = FakeZooKeeper(server)
    store = ZkControllerStore(zookeeper)
    return register(INFO, lambda: NO_SUSPECTS, zookeeper, store, SESSION_TIMEOUT_MS, pauses)


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [
        ("PLAINTEXT://10.9.9.9:9094", "10.9.9.9", 9094),
        (" PLAINTEXT://kafka.example:1 ", "kafka.example", 1),
        ("PLAINTEXT://[fd00::1]:9094", "fd00::1", 9094),
    ],
)
def test_clients_get_the_address_in_zookeeper_and_brokers_do_not(
    address: str, host: str, port: int
) -> None:
    static = AdvertisedListeners("b1", 9092, 9093, 9094, "CONTROLLER")
    events: list[ControllerEvent] = []
    registered = RegisteredEndPoints(static, events.append)
    started = dynamic_values(Settings())
    changed = values_in_force(started, {"advertised.listeners": address}, LISTENER_SETTINGS)

    registered.reconfigure(started, changed)
    assert registered.current[0] == EndPoint("PLAINTEXT", host, port)
    assert registered.current[1:] == static.endpoints[1:]
    assert events == [AdvertisedListenersChanged(registered.current)]
    registered.reconfigure(changed, started)
    assert registered.current == static.endpoints
    assert events[1:] == [AdvertisedListenersChanged(static.endpoints)]


def test_registration_waits_for_the_former_session_and_is_logged_once(
    server: FakeZooKeeperServer, former: FakeZooKeeper, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="regent.broker.broker_registration")
    pauses = Pauses(lambda _: server.expire(former.session_id))
    broker_epoch, session_id = register_again(server, pauses)
    assert pauses.count == 3
    node = server.snapshot()["/brokers/ids/1"]
    assert (node.stat.czxid, node.stat.ephemeral_owner) == (broker_epoch, session_id)
    (line,) = caplog.messages
    assert line.startswith("broker id 1 is registered by another process")
    assert "choose another id, or for another cluster a chroot of its own (--zookeeper" in line


def test_registration_gives_up_when_the_broker_stops(
    server: FakeZooKeeperServer, former: FakeZooKeeper
) -> None:
    with pytest.raises(BrokerIdInUseError):
        register_again(server, Pauses(threading.Event.set))
    assert server.snapshot()["/brokers/ids/1"].stat.ephemeral_owner == former.session_id


def test_the_advertised_addresses_are_the_listening_ones_unless_configured():
    listening = AdvertisedListeners.of(BrokerConfig(host="::1"), 1, 2, 3)
    assert listening == AdvertisedListeners("::1", 1, 2, 3)
    info = listening.broker_info(7, rack="", control_key=KEY)
    assert (info.control_endpoint, info.replication_endpoint) == ("tcp://[::1]:2", "tcp://[::1]:3")
    behind_a_gateway = BrokerConfig(
        host="0.0.0.0",
        advertised_host="b7.example",
        advertised_port=10,
        advertised_replication_port=30,
    )
    info = AdvertisedListeners.of(behind_a_gateway, 1, 2, 3).broker_info(
        7, rack="r", control_key=KEY
    )
    assert info.endpoints == (EndPoint("PLAINTEXT", "b7.example", 10),)
    assert info.control_endpoint == "tcp://b7.example:2"
    assert info.replication_endpoint == "tcp://b7.example:30"


def test_a_control_port_with_a_name_is_the_last_endpoint_of_the_registration():
    config = BrokerConfig(advertised_control_port=20, control_plane_listener_name="Controller")
    info = AdvertisedListeners.of(config, 1, 2, 3).broker_info(7, rack="", control_key=KEY)
    registration = json.loads(BrokerIdZNode.encode(info))
    assert registration["endpoints"] == ["PLAINTEXT://127.0.0.1:1", "CONTROLLER://127.0.0.1:20"]
    protocols = {"PLAINTEXT": "PLAINTEXT", "CONTROLLER": "PLAINTEXT"}
    assert registration["listener_security_protocol_map"] == protocols
    assert (registration["host"], registration["port"]) == ("127.0.0.1", 1)
    assert registration["control_endpoint"] == "tcp://127.0.0.1:20"
    assert BrokerIdZNode.decode(BrokerIdZNode.encode(info), 7) == info


def test_a_control_port_without_a_name_is_not_among_the_endpoints():
    info = AdvertisedListeners.of(BrokerConfig(), 1, 2, 3).broker_info(7, rack="", control_key=KEY)
    assert info.endpoints == (EndPoint("PLAINTEXT", "127.0.0.1", 1),)
