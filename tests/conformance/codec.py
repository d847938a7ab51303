"""Znodes as bytes: ReassignPartitionsZNodeTest, BrokerEndPointTest, notification payloads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import orjson
import pytest

from regent.core.errors import BadDataError
from regent.core.model import TopicPartition
from regent.zk.client.operations import Committed, Create
from regent.zk.stores.isr_store import ZkIsrStore
from regent.zk.znodes import (
    BrokerIdZNode,
    ConfigEntityChangeNotificationSequenceZNode,
    IsrChangeNotificationSequenceZNode,
    LogDirEventNotificationSequenceZNode,
    ReassignPartitionsZNode,
)
from tests.conformance.fields import Case, Fields, UnknownInCaseError, check_words, partition
from tests.support.fake_zookeeper import FakeZooKeeper, FakeZooKeeperServer

_REGISTRATION_FIELDS = frozenset(
    {"endpoints", "features", "host", "jmx_port", "listener_security_protocol_map", "port"}
) | {"rack", "timestamp", "version", "control_endpoint", "replication_endpoint"}


def znode_codec(case: Case) -> None:
    if "steps" in case:
        with case.nested("expect"):
            _create_notifications(case.take("steps"))
        return
    given = case.take("in")
    with case.nested("expect") as expect:
        if "json" in given:
            decoded = ReassignPartitionsZNode.decode(orjson.dumps(given["json"]))
            targets = {
                str(topic_partition): list(replicas)
                for topic_partition, replicas in decoded.items()
            }
            assert targets == expect.take("partitions", None) or targets == expect.rest()
        elif "raw" in given:
            _decode_garbage(case, given["raw"], expect)
        elif {"endpoints", "host"} & set(given):
            _decode_broker(given, expect)
        else:
            _reassignments(given, expect)


def _create_notifications(steps: list[Mapping[str, Any]]) -> None:
    server = FakeZooKeeperServer()
    server.put("/isr_change_notification")
    server.put("/config/changes")
    server.put("/log_dir_event_notification")
    session = FakeZooKeeper(server)
    for step in steps:
        with Fields(step, "step") as fields:
            if "propagate" in fields:
                ZkIsrStore(session).announce([partition(n) for n in fields.take("propagate")])
            elif "entity" in fields:
                entity = fields.take("entity")
                _create(session, ConfigEntityChangeNotificationSequenceZNode, entity)
            else:
                broker_id = fields.take("broker")
                _create(session, LogDirEventNotificationSequenceZNode, broker_id)
            path, json = fields.take("path"), fields.take("json")
            assert orjson.loads(server.snapshot()[path].data) == json


def _create(session: FakeZooKeeper, znode: Any, value: Any) -> None:
    created = session.multi([Create(znode.PATH_PREFIX, znode.encode(value), sequential=True)])
    assert isinstance(created, Committed)


def _decode_garbage(case: Case, raw: str, expect: Fields) -> None:
    decoders: dict[str, Callable[[bytes], object]] = {
        "reassign": ReassignPartitionsZNode.decode,
        "isr_change": IsrChangeNotificationSequenceZNode.decode,
        "log_dir": LogDirEventNotificationSequenceZNode.decode,
        "config_change": ConfigEntityChangeNotificationSequenceZNode.decode,
        "broker": lambda data: BrokerIdZNode.decode(data, 0),
    }
    named = [decode for word, decode in decoders.items() if word in case.meaning]
    if not named:
        raise UnknownInCaseError(f"which znode is {raw!r} of?")
    if "error" in expect:
        error = expect.take("error")
        assert "JSON" in error.upper()
        check_words(error, "the error", "json_parse json parse exception error returned not raised")
        with pytest.raises(BadDataError):  # stores turn it into a value: nothing escapes a read
            named[0](raw.encode())
        return
    decoded = named[0](raw.encode())
    for json in expect.expected("json"):
        assert isinstance(decoded, Mapping)
        assert {str(name): list(replicas) for name, replicas in decoded.items()} == json


def _reassignments(given: Mapping[str, Any], expect: Fields) -> None:
    targets: dict[TopicPartition, tuple[int, ...]] = {}
    for name, replicas in given.items():
        if not isinstance(replicas, list):
            raise UnknownInCaseError(f"{name} is to move to {replicas!r}")
        targets[partition(name)] = tuple(replicas)
    data = ReassignPartitionsZNode.encode(targets)
    for json in expect.expected("json"):
        assert orjson.loads(data) == json
    assert ReassignPartitionsZNode.decode(data) == targets


def _decode_broker(given: Mapping[str, Any], expect: Fields) -> None:
    """The case gives the fields themselves; ``unknown_field`` and ``fields`` are more of them."""
    json = dict(given)
    more = json.pop("fields", {})
    if not isinstance(more, Mapping):
        known = sorted(set(more) & _REGISTRATION_FIELDS)
        if known:
            raise UnknownInCaseError(f"fields: which values have {known}?")
        more = dict.fromkeys(more, "whatever")
    json.update(more)
    if "unknown_field" in json and isinstance(json["unknown_field"], str):
        json[json.pop("unknown_field")] = "whatever"
    info = BrokerIdZNode.decode(orjson.dumps(json), 1)
    for endpoints in expect.expected("endpoint"):
        found = {e.listener: [e.host, e.port] for e in info.endpoints}
        assert {listener: found.get(listener) for listener in endpoints} == endpoints
    for rack in expect.expected("rack"):
        assert info.rack == rack
    for features in expect.expected("features"):
        named = {
            name: {"min_version": low, "max_version": high}
            for name, (low, high) in info.features.items()
        }
        assert named == _as_ranges(features)


def _as_ranges(features: Any) -> dict[str, dict[str, int]]:
    if not isinstance(features, Mapping):
        raise UnknownInCaseError(f"features {features!r}")
    for name, levels in features.items():
        known = {"min_version", "max_version", "min", "max"}
        if isinstance(levels, Mapping) and not set(levels) <= known:
            raise UnknownInCaseError(f"feature {name} is {levels!r}")
    return {
        name: dict(zip(("min_version", "max_version"), levels, strict=True))
        if isinstance(levels, list)
        else {
            "min_version": levels.get("min_version", levels.get("min")),
            "max_version": levels.get("max_version", levels.get("max")),
        }
        for name, levels in features.items()
    }
