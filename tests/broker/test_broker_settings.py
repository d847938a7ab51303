from __future__ import annotations

from pathlib import Path

import pytest

from regent.broker.broker_settings import StartedBroker, broker_settings, described_settings
from regent.config.settings import Settings, rows
from regent.config.settings_file import load_settings
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
)


def test_a_started_broker_has_kafkas_settings_of_its_addresses_and_directories():
    given = {"broker": {"host": "0.0.0.0", "advertised_host": "fd00::1"}}
    described = described_settings(load_settings(None, given), 0, STARTED)
    facts = {name: (row.value, row.is_given) for name, row in described.items()}
    assert facts["listeners"] == ("PLAINTEXT://0.0.0.0:9092", True)
    assert facts["advertised.listeners"] == ("PLAINTEXT://[fd00::1]:9093", True)
    assert facts["listener.security.protocol.map"] == ("PLAINTEXT:PLAINTEXT", False)
    assert facts["inter.broker.protocol.version"] == ("3.9-IV0", False)
    assert facts["log.dirs"] == ("/d/one,/d/two", False)
    assert facts["zookeeper.connect"] == ("zk:2181/chroot", True)
    assert described["log.dirs"].default == "/d/one,/d/two"
    assert not facts.keys() & {"host", "port", "advertised.host", "advertised.port"}


def test_addresses_that_are_not_given_are_defaults():
    described = described_settings(Settings(), 0, STARTED)
    assert not described["listeners"].is_given
    assert not described["advertised.listeners"].is_given
    assert described["listeners"].default == "PLAINTEXT://0.0.0.0:9092"


def test_a_control_port_with_a_name_is_described_as_kafka_describes_its_listener():
    settings = load_settings(None, {"broker": {"control_plane_listener_name": "Controller"}})
    endpoints = (*STARTED.listeners, EndPoint("CONTROLLER", "0.0.0.0", 9094))
    described = described_settings(settings, 0, STARTED._replace(listeners=endpoints))
    facts = {name: (row.value, row.is_given) for name, row in described.items()}
    assert facts["control.plane.listener.name"] == ("Controller", True)
    assert facts["listeners"] == ("PLAINTEXT://0.0.0.0:9092,CONTROLLER://0.0.0.0:9094", True)
    protocols = "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT"
    assert facts["listener.security.protocol.map"] == (protocols, False)
