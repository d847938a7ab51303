"""A broker registers after its former session has expired."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import pytest

from regent.broker import broker_registration
from regent.broker.broker_registration import AdvertisedListeners, RegisteredEndPoints, register
from regent.broker.machine_settings import dynamic_values
from regent.config.settings import KAFKA_SETTINGS, Settings
from regent.config.settings_file import load_settings
from regent.config.tables.broker import BrokerConfig
from regent.core.admin.config_handlers import values_in_force
from regent.core.controller.events import AdvertisedListenersChanged, ControllerEvent
from regent.core.errors import BrokerIdInUseError
from regent.core.model import NO_SUSPECTS, BrokerInfo, EndPoint
from regent.zk.stores.controller_store import ZkControllerStore
from regent.zk.znodes import BrokerIdZNode
from tests.support.fake_zookeeper import FakeZooKeeper, FakeZooKeeperServer
from tests.support.free_ports import on_free_ports

INFO = BrokerInfo(
    broker_id=1,
    endpoints=(EndPoint("PLAINTEXT", "127.0.0.1", 9092),),
    control_endpoint="tcp://127.0.0.1:9093",
)
KEY = "0" * 64
TWO_LISTENERS = load_settings(
    None,
    {
        "broker": {
            "listeners": "CLIENT://127.0.0.1:0,BROKER://127.0.0.1:0",
            "advertised_listeners": "CLIENT://127.0.0.1:0,BROKER://b7:0",
            "listener_security_protocol_map": "CLIENT:PLAINTEXT,BROKER:PLAINTEXT",
            "inter_broker_listener_name": "BROKER",
        }
    },
)
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


def register_again(
    server: FakeZooKeeperServer, pauses: threading.Event, timeout_ms: int = SESSION_TIMEOUT_MS
) -> tuple[int, int]:
    """Return the broker epoch and the session."""
    zookeeper = FakeZooKeeper(server)
    store = ZkControllerStore(zookeeper)
    epoch = register(INFO, lambda: NO_SUSPECTS, zookeeper, store, timeout_ms, pauses)
    return epoch, zookeeper.session_id


PORTS = {"PLAINTEXT": 9092, "REPLICATION": 9094}


def registered_after(
    settings: Settings, ports: dict[str, int], text: str
) -> tuple[RegisteredEndPoints, list[ControllerEvent]]:
    """Set ``advertised.listeners`` in ZooKeeper."""
    events: list[ControllerEvent] = []
    static = AdvertisedListeners.of(settings, ports, 9093)
    registered = RegisteredEndPoints(static, settings, ports, events.append)
    started = dynamic_values(settings)
    changed = values_in_force(started, {"advertised.listeners": text}, KAFKA_SETTINGS)
    registered.reconfigure(started, changed)
    after = registered.current
    registered.reconfigure(changed, started)
    assert registered.current == static.endpoints
    if events:
        assert events == [
            AdvertisedListenersChanged(after),
            AdvertisedListenersChanged(static.endpoints),
        ]
    registered.current = after
    return registered, events


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [
        ("PLAINTEXT://10.9.9.9:9094", "10.9.9.9", 9094),
        (" PLAINTEXT://kafka.example:1 ", "kafka.example", 1),
        ("PLAINTEXT://[fd00::1]:9094", "fd00::1", 9094),
        ("plaintext://b1:0", "b1", 9092),
    ],
)
def test_clients_get_the_address_in_zookeeper(address: str, host: str, port: int) -> None:
    registered, events = registered_after(Settings(), PORTS, address)
    assert registered.current == (EndPoint("PLAINTEXT", host, port),)
    assert events


def test_each_listener_gets_its_address_in_zookeeper() -> None:
    text = "BROKER://b1:1,CLIENT://c1:0"
    registered, _ = registered_after(TWO_LISTENERS, {"CLIENT": 5, "BROKER": 6}, text)
    assert registered.current == (EndPoint("CLIENT", "c1", 5), EndPoint("BROKER", "b1", 1))


def test_an_address_in_zookeeper_of_no_listener_changes_nothing() -> None:
    registered, events = registered_after(Settings(), PORTS, "REPLICATION://b1:1")
    assert registered.current == (EndPoint("PLAINTEXT", "127.0.0.1", 9092),)
    assert events == []


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
    assert "its session has not ended yet: start again later" in line
    assert "choose another id, or for another cluster a chroot of its own (--zookeeper" in line


class Clock(threading.Event):
    """Time passes in the pauses between attempts only."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 1_000.0

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.now_s += timeout
        return self.is_set()


@pytest.mark.parametrize(
    ("former_info", "longest_s"),
    [(INFO, range(10, 11)), (replace(INFO, control_endpoint=None), range(40, 60))],
)
def test_a_killed_broker_of_kafka_is_waited_for_as_long_as_its_session_lasts(
    former_info: BrokerInfo,
    longest_s: range,
    server: FakeZooKeeperServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its session is three times as long as ours by default, and ZooKeeper's longest at most."""
    store = ZkControllerStore(FakeZooKeeper(server))
    store.create_persistent_paths()
    store.register_broker(former_info)
    clock = Clock()
    monkeypatch.setattr(broker_registration, "time", SimpleNamespace(monotonic=lambda: clock.now_s))
    began_s = clock.now_s
    with pytest.raises(BrokerIdInUseError) as caught:
        register_again(server, clock, timeout_ms=6_000)
    assert int(clock.now_s - began_s) in longest_s
    assert ("a broker of Kafka" in str(caught.value)) == former_info.is_of_kafka


def test_registration_gives_up_when_the_broker_stops(
    server: FakeZooKeeperServer, former: FakeZooKeeper
) -> None:
    with pytest.raises(BrokerIdInUseError):
        register_again(server, Pauses(threading.Event.set))
    assert server.snapshot()["/brokers/ids/1"].stat.ephemeral_owner == former.session_id


def test_the_advertised_addresses_are_the_listening_ones_unless_configured():
    settings = on_free_ports(load_settings(None, {"broker": {"host": "::1"}}))
    listening = AdvertisedListeners.of(settings, PORTS, 2)
    info = listening.broker_info(7, BrokerConfig(), KEY)
    assert info.endpoints == (EndPoint("PLAINTEXT", "::1", 9092),)
    assert info.control_endpoint == "tcp://[::1]:2"
    assert info.replication_endpoint == "tcp://[::1]:9094"
    behind_a_gateway = {
        "host": "0.0.0.0",
        "advertised_host": "b7.example",
        "advertised_port": 10,
        "advertised_replication_port": 30,
        "allow_unauthenticated": True,
    }
    advertised = AdvertisedListeners.of(load_settings(None, {"broker": behind_a_gateway}), PORTS, 2)
    info = advertised.broker_info(7, BrokerConfig(rack="r"), KEY)
    assert info.endpoints == (EndPoint("PLAINTEXT", "b7.example", 10),)
    assert info.control_endpoint == "tcp://b7.example:2"
    assert info.replication_endpoint == "tcp://b7.example:30"


def test_listeners_with_names_are_registered_as_kafka_registers_them():
    advertised = AdvertisedListeners.of(TWO_LISTENERS, {"CLIENT": 5, "BROKER": 6}, 2)
    info = advertised.broker_info(7, BrokerConfig(), KEY)
    registration = json.loads(BrokerIdZNode.encode(info))
    assert registration["endpoints"] == ["CLIENT://127.0.0.1:5", "BROKER://b7:6"]
    protocols = {"CLIENT": "PLAINTEXT", "BROKER": "PLAINTEXT"}
    assert registration["listener_security_protocol_map"] == protocols
    assert (registration["host"], registration["port"]) == ("127.0.0.1", 5)
    assert registration["replication_endpoint"] == "tcp://b7:6"
    assert BrokerIdZNode.decode(BrokerIdZNode.encode(info), 7) == info
