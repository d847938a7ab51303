from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from regent.broker.broker_settings import StartedBroker, broker_settings, described_settings
from regent.config.settings import Settings, rows
from regent.config.settings_file import load_settings
from regent.core.admin.config_descriptions import BrokerSetting
from regent.core.model import EndPoint
from regent.core.setting import ConfigType


def test_settings_have_kafkas_names_and_defaults_and_whether_they_were_given():
    given = {"num_partitions": 3, "default_replication_factor": 1}
    described = broker_settings(load_settings(None, {"broker": given}), 7)
    facts = {name: (row.value, row.default, row.is_given) for name, row in described.items()}
    assert facts["broker.id"] == ("7", "-1", True)
    assert facts["num.partitions"] == ("3", "1", True)
    assert facts["default.replication.factor"] == ("1", "1", True)
    assert facts["auto.create.topics.enable"] == ("true", "true", False)
    assert facts["zookeeper.session.timeout.ms"] == ("6000", "6000", False)


def test_settings_have_kafkas_types():
    types = {name: row.setting.type for name, row in broker_settings(Settings(), 0).items()}
    assert types["log.flush.interval.ms"] is types["log.retention.ms"] is ConfigType.LONG
    assert types["log.segment.bytes"] is types["num.partitions"] is ConfigType.INT
    assert types["log.cleanup.policy"] is ConfigType.LIST
    assert types["auto.create.topics.enable"] is ConfigType.BOOLEAN
    assert types["log.dirs"] is ConfigType.STRING


def test_settings_that_kafka_does_not_have_are_named_as_ours():
    ours = {name for name in broker_settings(Settings(), 0) if name.startswith("regent.")}
    assert {"regent.control.port", "regent.controller.request.timeout.ms"} <= ours
    assert ours == {
        f"regent.{row.dotted_name}"
        for _, row in rows()
        if row.kafka_name is None and row.name not in ("host", "port")
        if row.name not in ("advertised_host", "advertised_port")
    }


@pytest.mark.parametrize("name", ["broker.rack", "control.plane.listener.name"])
def test_a_broker_without_a_rack_and_a_name_of_its_control_port_has_none(name: str):
    described = broker_settings(Settings(), 0)[name]
    assert (described.value, described.default) == (None, None)


STARTED = StartedBroker(
    "zk:2181/chroot",
    (Path("/d/one"), Path("/d/two")),
    listeners=(EndPoint("PLAINTEXT", "0.0.0.0", 9092),),
    advertised_listeners=(EndPoint("PLAINTEXT", "fd00::1", 9093),),
    control_peer="tcp://fd00::1:9094#0a",
)


def test_a_started_broker_has_kafkas_settings_of_its_addresses_and_directories():
    given = {"host": "0.0.0.0", "advertised_host": "fd00::1", "allow_unauthenticated": True}
    described = described_settings(load_settings(None, {"broker": given}), 0, STARTED)
    facts = {name: (row.value, row.is_given) for name, row in described.items()}
    assert facts["listeners"] == ("PLAINTEXT://0.0.0.0:9092", True)
    assert facts["advertised.listeners"] == ("PLAINTEXT://[fd00::1]:9093", True)
    assert facts["listener.security.protocol.map"] == (
        "PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL",
        False,
    )
    assert facts["inter.broker.protocol.version"] == ("3.9-IV0", False)
    assert facts["log.dirs"] == ("/d/one,/d/two", False)
    assert facts["zookeeper.connect"] == ("zk:2181/chroot", True)
    assert facts["regent.control.endpoint"] == ("tcp://fd00::1:9094#0a", False)
    assert described["log.dirs"].default == "/d/one,/d/two"
    assert not facts.keys() & {"host", "port", "advertised.host", "advertised.port"}


def test_addresses_that_are_not_given_are_defaults():
    described = described_settings(Settings(), 0, STARTED)
    assert not described["listeners"].is_given
    assert not described["advertised.listeners"].is_given
    assert described["listeners"].default == "PLAINTEXT://0.0.0.0:9092"


def described_of(broker: dict[str, Any]) -> Mapping[str, BrokerSetting]:
    named = {
        "listeners": "CLIENT://127.0.0.1:1,BROKER://127.0.0.1:2",
        "listener_security_protocol_map": "CLIENT:PLAINTEXT,BROKER:PLAINTEXT",
        "inter_broker_listener_name": "BROKER",
    }
    settings = load_settings(None, {"broker": {**named, **broker}})
    started = STARTED._replace(
        listeners=settings.listeners.listening,
        advertised_listeners=settings.listeners.advertised,
    )
    return described_settings(settings, 0, started)


def test_listeners_are_described_as_in_kafka():
    described = described_of({"advertised_listeners": "CLIENT://c:1,BROKER://b:2"})
    facts = {name: (row.value, row.is_given) for name, row in described.items()}
    assert facts["listeners"] == ("CLIENT://127.0.0.1:1,BROKER://127.0.0.1:2", True)
    assert facts["advertised.listeners"] == ("CLIENT://c:1,BROKER://b:2", True)
    assert facts["listener.security.protocol.map"] == ("CLIENT:PLAINTEXT,BROKER:PLAINTEXT", True)
    assert facts["inter.broker.listener.name"] == ("BROKER", True)
    assert facts["security.inter.broker.protocol"] == ("PLAINTEXT", False)


@pytest.mark.parametrize(
    ("text", "is_right"),
    [
        ("CLIENT://c:1,BROKER://b:2", True),
        (" broker://b:2 , client://[::1]:1", True),
        ("BROKER://b:2", True),
        ("CLIENT://c:1", False),
        ("CLIENT://c:1,BROKER://b:2,client://d:1", False),
        ("CLIENT://c:1,BROKER://0.0.0.0:2", False),
        ("CLIENT://c:1,BROKER://b:2,OTHER://o:3", False),
        ("CLIENT://c:1,BROKER://b", False),
        ("", False),
    ],
)
def test_a_running_broker_advertises_its_own_listeners_only(text: str, is_right: bool):
    row = described_of({})["advertised.listeners"].setting
    assert (row.change_problem(text) is None) is is_right


@pytest.mark.parametrize(
    ("text", "is_right"),
    [
        ("CLIENT:PLAINTEXT,BROKER:PLAINTEXT", True),
        ("X:SSL, BROKER:PLAINTEXT ,CLIENT:PLAINTEXT", True),
        ("CLIENT:PLAINTEXT", False),
        ("CLIENT:SSL,BROKER:PLAINTEXT", False),
        ("CLIENT:PLAINTEXT,BROKER:PLAINTEXTS", False),
    ],
)
def test_the_protocol_of_a_running_listener_stays(text: str, is_right: bool):
    row = described_of({})["listener.security.protocol.map"].setting
    assert (row.change_problem(text) is None) is is_right


def test_the_settings_of_one_listener_are_described_with_its_name(tmp_path: Path):
    path = tmp_path / "broker.toml"
    path.write_text("[listener_name.plaintext]\nmax_connections = 3\n")
    row = broker_settings(load_settings(path, {}), 0)["listener.name.plaintext.max.connections"]
    assert (row.value, row.is_given) == ("3", True)
