"""Listeners by Kafka's settings: what Kafka takes is taken, and what it refuses is refused."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from regent.config.listeners import REPLICATION
from regent.config.settings import Settings
from regent.config.settings_file import SettingsError, load_settings
from regent.core.model import EndPoint

TWO = "CLIENT://127.0.0.1:9092,BROKER://127.0.0.1:9094"
TWO_MAP = "CLIENT:PLAINTEXT,BROKER:PLAINTEXT"


def loaded(**broker: Any) -> Settings:
    return load_settings(None, {"broker": broker})


def two(**broker: Any) -> Settings:
    named = {"listeners": TWO, "listener_security_protocol_map": TWO_MAP}
    return loaded(**{**named, "inter_broker_listener_name": "BROKER", **broker})


def refused(text: str = "", **broker: Any) -> str:
    with pytest.raises(SettingsError) as raised:
        loaded(**broker)
    message = str(raised.value)
    assert "\n" not in message
    assert text in message
    return message


def test_without_listeners_there_is_one_for_clients_and_one_for_brokers() -> None:
    listeners = loaded(port=9092, replication_port=9094, advertised_port=7).listeners
    assert listeners.listening == (
        EndPoint("PLAINTEXT", "127.0.0.1", 9092),
        EndPoint(REPLICATION, "127.0.0.1", 9094),
    )
    assert listeners.advertised[0] == EndPoint("PLAINTEXT", "127.0.0.1", 7)
    assert listeners.of_clients == listeners.listening[:1]
    assert listeners.of_brokers_only == listeners.listening[1]
    assert listeners.registered_names == ("PLAINTEXT",)


def test_a_listener_of_brokers_beside_others_is_for_clients_too() -> None:
    listeners = two().listeners
    assert listeners.of_brokers_only is None
    assert [e.listener for e in listeners.of_clients] == ["CLIENT", "BROKER"]
    assert listeners.inter_broker == EndPoint("BROKER", "127.0.0.1", 9094)
    assert listeners.keeps_brokers_apart("BROKER")
    assert not listeners.keeps_brokers_apart("CLIENT")
    assert listeners.advertised == listeners.listening
    assert listeners.registered_names == ("CLIENT", "BROKER")


def test_an_only_listener_is_for_clients_and_brokers() -> None:
    listeners = loaded(listeners="PLAINTEXT://127.0.0.1:9092").listeners
    assert listeners.of_brokers_only is None
    assert listeners.of_clients == (listeners.inter_broker,)
    assert not listeners.keeps_brokers_apart("PLAINTEXT")
    assert listeners.inter_broker_name == "PLAINTEXT"


def test_the_security_protocol_of_brokers_is_the_name_of_their_listener() -> None:
    with pytest.raises(SettingsError, match="the listener SSL, which is not advertised"):
        loaded(listeners="PLAINTEXT://127.0.0.1:1", security_inter_broker_protocol="SSL")
    both = "SASL_PLAINTEXT://127.0.0.1:1,PLAINTEXT://127.0.0.1:2"
    settings = loaded(listeners=both, security_inter_broker_protocol="SASL_PLAINTEXT")
    assert settings.listeners.inter_broker.security_protocol == "SASL_PLAINTEXT"
    assert loaded(listeners=both).listeners.inter_broker_name == "PLAINTEXT"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plaintext://127.0.0.1:9092", ("PLAINTEXT", "127.0.0.1", 9092)),
        (" PLAINTEXT://127.0.0.1:9092 ,, ", ("PLAINTEXT", "127.0.0.1", 9092)),
        ("PLAINTEXT://[::1]:0", ("PLAINTEXT", "::1", 0)),
        ("PLAINTEXT://::1:9092", ("PLAINTEXT", "::1", 9092)),
        ("PLAINTEXT://localhost:65535", ("PLAINTEXT", "localhost", 65535)),
        ("PLAINTEXT://kafka_1.example-a:1", ("PLAINTEXT", "kafka_1.example-a", 1)),
    ],
)
def test_listeners_are_written_as_in_kafka(text: str, expected: tuple[str, str, int]) -> None:
    (endpoint,) = loaded(listeners=text, allow_unauthenticated=True).listeners.listening
    assert endpoint == EndPoint(*expected)


def test_an_empty_host_listens_everywhere_and_is_advertised_by_name() -> None:
    listeners = loaded(listeners="PLAINTEXT://:9092", allow_unauthenticated=True).listeners
    assert listeners.listening[0].host in ("::", "0.0.0.0")
    assert listeners.advertised[0].host == socket.getfqdn()


def test_names_are_in_upper_case_everywhere() -> None:
    settings = loaded(
        listeners="client://127.0.0.1:1,broker://127.0.0.1:2",
        listener_security_protocol_map="Client:plaintext, broker:Plaintext",
        inter_broker_listener_name="bRoker",
    )
    assert [e.listener for e in settings.listeners.listening] == ["CLIENT", "BROKER"]
    assert settings.listeners.inter_broker_name == "BROKER"


def test_the_last_protocol_of_a_name_counts_as_in_kafka() -> None:
    protocols = "A:SSL,A:PLAINTEXT"
    settings = loaded(
        listeners="A://127.0.0.1:1",
        listener_security_protocol_map=protocols,
        inter_broker_listener_name="A",
    )
    assert settings.listeners.listening[0].security_protocol == "PLAINTEXT"


@pytest.mark.parametrize(
    "text",
    [
        "PLAINTEXT://127.0.0.1",
        "PLAINTEXT:127.0.0.1:9092",
        "://127.0.0.1:9092",
        "PLAINTEXT://127.0.0.1:65536",
        "PLAINTEXT://127.0.0.1:-1",
        "PLAINTEXT://a b:1",
        "PLAINTEXT://host:1;SSL://host:2",
        "127.0.0.1:9092",
    ],
)
def test_what_is_no_listener_is_refused(text: str) -> None:
    refused("broker.listeners must be NAME://HOST:PORT", listeners=text)


def test_no_listener_is_refused() -> None:
    refused("broker.listeners must name at least one", listeners=",")


def test_a_listener_without_a_protocol_is_refused() -> None:
    refused(
        "no security protocol is defined for the listener CLIENT", listeners="CLIENT://127.0.0.1:1"
    )
    refused(
        "no security protocol is defined for the listener PLAINTEXT",
        listeners="PLAINTEXT://127.0.0.1:1",
        listener_security_protocol_map="CLIENT:PLAINTEXT",
    )


def test_requests_of_a_controller_of_kafka_may_have_a_listener_of_their_own() -> None:
    listeners = two(control_plane_listener_name="client").listeners
    assert listeners.control_plane == listeners.listening[0]
    assert listeners.keeps_brokers_apart("CLIENT")
    assert two().listeners.control_plane is None
    refused("needs broker.listeners", control_plane_listener_name="CLIENT")


@pytest.mark.parametrize("text", ["A", "A:", ":SSL", "A:TLS", "A=SSL"])
def test_what_is_no_security_protocol_is_refused(text: str) -> None:
    refused(
        "broker.listener_security_protocol_map must be NAME:PROTOCOL",
        listeners=TWO,
        listener_security_protocol_map=text,
    )


def test_each_listener_has_a_name_of_its_own() -> None:
    refused("different name", listeners="SSL://127.0.0.1:1,ssl://127.0.0.1:2")


@pytest.mark.parametrize(
    ("listeners", "is_right"),
    [
        ("PLAINTEXT://127.0.0.1:1,SSL://127.0.0.1:1", False),
        ("PLAINTEXT://127.0.0.1:1,SSL://[::1]:1", True),
        ("PLAINTEXT://127.0.0.1:1,SSL://127.0.0.2:1", False),
        ("PLAINTEXT://[::1]:1,SSL://[::2]:1", False),
        ("PLAINTEXT://localhost:1,SSL://[::1]:1", False),
        ("PLAINTEXT://127.0.0.1:1,SSL://[::1]:1,SASL_SSL://localhost:1", False),
        ("PLAINTEXT://127.0.0.1:1,SSL://[::1]:1,SASL_SSL://127.0.0.2:1", False),
        ("PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0", True),
    ],
)
def test_two_listeners_have_one_port_only_as_ipv4_and_ipv6(listeners: str, is_right: bool) -> None:
    if is_right:
        assert len(loaded(listeners=listeners, allow_unauthenticated=True).listeners.listening) == 2
    else:
        refused("each listener must have a different port", listeners=listeners)


@pytest.mark.parametrize(
    ("broker", "expected"),
    [
        ({"advertised_listeners": "OTHER://h:1"}, "no security protocol is defined"),
        ({"advertised_listeners": "SSL://h:1"}, "no security protocol is defined"),
        (
            {
                "advertised_listeners": "CLIENT://h:1,BROKER://h:2,X://h:3",
                "listener_security_protocol_map": f"{TWO_MAP},X:PLAINTEXT",
            },
            "must be those of broker.listeners or some of them: X is not one of CLIENT, BROKER",
        ),
        ({"advertised_listeners": "CLIENT://h:1,client://h:2,BROKER://h:3"}, "different name"),
        ({"advertised_listeners": "CLIENT://h:1"}, "listener BROKER, which is not advertised"),
        ({"advertised_listeners": "CLIENT://0.0.0.0:1,BROKER://h:1"}, "clients can reach"),
        ({"advertised_listeners": "CLIENT://[::]:1,BROKER://h:1"}, "clients can reach"),
        ({"listeners": "CLIENT://0.0.0.0:1,BROKER://127.0.0.1:2"}, "tells others nothing"),
        ({"inter_broker_listener_name": "OTHER"}, "the listener OTHER is not in"),
        ({"security_inter_broker_protocol": "SSL"}, "only one of"),
        ({"port": 9092}, "broker.listeners and broker.port say where"),
        ({"replication_port": 9092}, "broker.listeners and broker.replication_port say"),
        ({"advertised_port": 9092}, "broker.listeners and broker.advertised_port say"),
        (
            {"control_plane_listener_name": "BROKER"},
            "not the one of brokers, BROKER: BROKER is not one of CLIENT",
        ),
        (
            {"control_plane_listener_name": "OTHER"},
            "not the one of brokers, BROKER: OTHER is not one of CLIENT",
        ),
    ],
)
def test_settings_of_listeners_that_contradict_each_other_are_refused(
    broker: dict[str, Any], expected: str
) -> None:
    with pytest.raises(SettingsError) as raised:
        two(**broker)
    assert expected in str(raised.value)


def test_one_listener_may_advertise_the_address_of_another() -> None:
    settings = two(advertised_listeners="BROKER://h:1, client://h:1")
    assert settings.listeners.advertised == (
        EndPoint("BROKER", "h", 1),
        EndPoint("CLIENT", "h", 1),
    )


@pytest.mark.parametrize(
    "broker",
    [
        {"advertised_listeners": "PLAINTEXT://h:1"},
        {"inter_broker_listener_name": "PLAINTEXT"},
        {"security_inter_broker_protocol": "SSL"},
        {"listener_security_protocol_map": "PLAINTEXT:SSL"},
    ],
)
def test_what_belongs_to_listeners_is_refused_without_them(broker: dict[str, Any]) -> None:
    refused("needs broker.listeners", **broker)


# --- beyond loopback ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "broker",
    [
        {"host": "192.0.2.1"},
        {"host": "0.0.0.0", "advertised_host": "b1"},
        {"host": "::", "advertised_host": "b1"},
        {"listeners": "PLAINTEXT://192.0.2.1:1"},
        {"listeners": "PLAINTEXT://:1"},
        {"listeners": "SASL_SSL://192.0.2.1:1,PLAINTEXT://192.0.2.1:2"},
        {"host": "no-such-host.invalid"},
    ],
)
def test_nobody_is_let_in_from_other_machines_by_mistake(broker: dict[str, Any]) -> None:
    refused("set broker.allow_unauthenticated = true", **broker)
    assert loaded(**broker, allow_unauthenticated=True).unauthenticated_listeners()


@pytest.mark.parametrize(
    "broker",
    [
        {"host": "::1"},
        {"host": "127.0.0.9"},
        {"host": "localhost"},
        {
            "listeners": "SASL_SSL://192.0.2.1:1,PLAINTEXT://127.0.0.1:2",
            "inter_broker_listener_name": "PLAINTEXT",
        },
    ],
)
def test_loopback_and_listeners_with_a_login_need_no_permission(broker: dict[str, Any]) -> None:
    assert loaded(**broker).unauthenticated_listeners() == ()


# --- settings of one listener ---------------------------------------------------------------------


def test_a_listener_has_its_own_settings_and_those_of_all(tmp_path: Path) -> None:
    path = tmp_path / "broker.toml"
    path.write_text(
        f'[broker]\nlisteners = "{TWO}"\nlistener_security_protocol_map = "{TWO_MAP}"\n'
        'inter_broker_listener_name = "BROKER"\nmax_connections = 9\n'
        "[listener_name.client]\nmax_connections = 3\n"
    )
    settings = load_settings(path, {})
    assert settings.of_listener("CLIENT").broker.max_connections == 3
    assert settings.of_listener("BROKER").broker.max_connections == 9
    assert settings.broker.max_connections == 9


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[listener_name.clinet]\nmax_connections = 1\n", "did you mean client?"),
        ("[listener_name.CLIENT]\nmax_connections = 1\n", "in lower case: client"),
        ("[listener_name.client]\nmax_conections = 1\n", "did you mean max_connections?"),
        ("[listener_name.client]\nport = 1\n", "port is not a setting of a listener"),
        ("[listener_name.client]\nmax_connections = 0\n", "max_connections must be a number"),
        ("[listener_name]\nclient = 1\n", "[listener_name] must have tables"),
    ],
)
def test_a_mistake_in_the_settings_of_a_listener_is_named(
    tmp_path: Path, text: str, expected: str
) -> None:
    path = tmp_path / "broker.toml"
    path.write_text(
        f'[broker]\nlisteners = "{TWO}"\nlistener_security_protocol_map = "{TWO_MAP}"\n'
        f'inter_broker_listener_name = "BROKER"\n{text}'
    )
    with pytest.raises(SettingsError) as raised:
        load_settings(path, {})
    assert expected in str(raised.value)
