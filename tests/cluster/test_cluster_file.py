"""``cluster.json``: what is written, and what is understood of it and of a broker's first line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from regent.cluster.cluster_file import (
    BrokerEntry,
    ClusterFile,
    PlacementEntry,
    ZooKeeperEntry,
    listed_processes,
    placement_entry,
)
from regent.config.cluster_location import CLUSTER_FILE
from regent.core.errors import BadDataError
from regent.core.model import EndPoint
from regent.core.security.session import SecurityProtocol

BROKER = BrokerEntry(1, 11, "127.0.0.1", 9093, 19093, 29093, 39093)


def announcement(**changes: object) -> str:
    """Return what a broker says, with some of it changed."""
    fields = {name: getattr(BROKER, name) for name in BrokerEntry.__dataclass_fields__}
    return json.dumps(fields | changes)


def test_a_broker_is_listed_as_it_announced_itself() -> None:
    assert BrokerEntry.decode(announcement()) == BROKER
    listeners = ("SASL_SSL://127.0.0.1:9093", "SSL://[::1]:9094")
    told = BrokerEntry.decode(announcement(listeners=list(listeners)))
    assert told == replace(BROKER, listeners=listeners)


def test_a_client_finds_the_listener_that_is_secured_as_it_is() -> None:
    listeners = ("SASL_SSL://host:9093", "SSL://[::1]:9094", "SSL://host:9095")
    broker = replace(BROKER, listeners=listeners)
    assert broker.endpoint_for(SecurityProtocol.SASL_SSL) == EndPoint(
        "SASL_SSL", "host", 9093, "SASL_SSL"
    )
    assert broker.endpoint_for(SecurityProtocol.SSL) == EndPoint("SSL", "::1", 9094, "SSL")
    assert broker.endpoint_for(SecurityProtocol.PLAINTEXT) is None


def test_a_broker_that_does_not_name_its_listeners_has_one_in_plain_text() -> None:
    assert BROKER.endpoint_for(SecurityProtocol.PLAINTEXT) == EndPoint(
        "PLAINTEXT", "127.0.0.1", 9093
    )
    assert BROKER.endpoint_for(SecurityProtocol.SSL) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        "tcp://127.0.0.1:1",
        announcement(port="9093"),
        announcement(port=None),
        announcement(id=True),
        announcement(host=1),
        announcement(listeners="SSL://host:1"),
        announcement(listeners=["host:1"]),
        announcement(listeners=[1]),
    ],
)
def test_anything_else_is_no_announcement(text: str) -> None:
    with pytest.raises(BadDataError, match=r"^the announcement of a broker: "):
        BrokerEntry.decode(text)


def test_the_file_is_replaced_as_a_whole_and_removed_at_the_end(tmp_path: Path) -> None:
    file = ClusterFile(tmp_path / CLUSTER_FILE, "127.0.0.1:2181")
    file.write()
    assert ClusterFile.read(file.path) == file
    file.zookeeper_nodes = [ZooKeeperEntry(10, 2181)]
    file.brokers[1] = BROKER
    file.placement = PlacementEntry(12, "tcp://127.0.0.1:7777")
    file.write()
    assert [path.name for path in tmp_path.iterdir()] == [CLUSTER_FILE]
    assert ClusterFile.read(file.path) == file
    assert listed_processes(tmp_path) == [10, 11, 12]
    assert placement_entry(file.path) == file.placement
    file.placement = PlacementEntry(message="no Java")
    file.write()
    assert placement_entry(file.path) == file.placement
    assert listed_processes(tmp_path) == [10, 11], "it does not run"
    file.remove()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("content", [None, "", "[]", '{"brokers": [{}]}', "\xff"])
def test_an_unreadable_file_lists_no_broker(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / CLUSTER_FILE).write_text(content, encoding="latin-1")
    assert listed_processes(tmp_path) == []
