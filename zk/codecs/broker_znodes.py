"""The data of brokers and controllers: bytes to values and back; see ``zk.codecs.topic_znodes``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import orjson

from regent.core.errors import BadDataError
from regent.core.model import (
    BrokerId,
    BrokerInfo,
    EndPoint,
    LogEnd,
    SuspectReplicas,
    TopicPartition,
)
from regent.core.ports import ControllerFailure
from regent.zk.codecs.json_fields import (
    MAX_INT16,
    MAX_INT32,
    MAX_INT64,
    Codec,
    JsonObject,
    bad_field,
    decode_decimal,
    decode_object,
)

MAX_SUSPECT_ROWS = 2_000  # per znode: 0.7 MB with the longest topic names

_MAX_REGISTRATION_BYTES = 32_767  # so that every string in it fits into a control request
_MAX_SUSPECT_ZNODES = 10_000
_SECURITY_PROTOCOLS = frozenset({"PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"})
_ENDPOINT = re.compile(r"([^:/]+)://\[?([0-9A-Za-z\-%._:]*)\]?:([0-9]{1,5})", re.ASCII)


def decode_broker_id(name: str) -> BrokerId:
    """Return the broker id that is the name of a registration. Raises ``BadDataError``."""
    return decode_decimal(name, "/brokers/ids", "the name of a child")


def _encode_controller(broker_id: BrokerId, timestamp_ms: int) -> bytes:
    """Encode; the timestamp is a string, as Kafka's readers expect."""
    return orjson.dumps({"version": 1, "brokerid": broker_id, "timestamp": str(timestamp_ms)})


def is_kraft_controller(data: bytes) -> bool:
    """Whether ``/controller`` is of a KRaft controller, which migrates the cluster to KRaft.

    Brokers of Kafka in ZooKeeper mode write -1 for its epoch. Raises ``BadDataError``.
    """
    json = decode_object(data, "/controller")
    return json.integer("kraftControllerEpoch", minimum=-1, default=-1) >= 0


def _encode_number(number: int) -> bytes:
    return b"%d" % number


def _decode_epoch(node: str, data: bytes) -> int:
    return decode_decimal(data.decode("ascii", errors="replace"), node, "the epoch")


def _encode_cluster_id(cluster_id: str) -> bytes:
    """Encode; only in this znode the version is a string."""
    return orjson.dumps({"version": "1", "id": cluster_id})


def _encode_failures(failures: Sequence[ControllerFailure]) -> bytes:
    return orjson.dumps({"version": 1, "failures": [f._asdict() for f in failures]})


def _decode_failures(node: str, data: bytes) -> tuple[ControllerFailure, ...]:
    """Return the failures, oldest first."""
    return tuple(
        ControllerFailure(
            row.string("what"),
            row.string("event"),
            row.string("error"),
            row.integer("controllers"),
            row.integer("broker_id"),
            row.integer("controller_epoch"),
        )
        for row in decode_object(data, node).objects("failures")
    )


@dataclass(frozen=True, slots=True)
class BrokerEnd:
    """When and why a broker ended, as it said itself; ``was_asked``: it was told to stop."""

    at_ms: int  # wall clock
    reason: str
    was_asked: bool = False


def _encode_end(end: BrokerEnd) -> bytes:
    row = {"at_ms": end.at_ms, "reason": end.reason, "was_asked": end.was_asked}
    return orjson.dumps({"version": 1, **row})


def _decode_end(node: str, data: bytes) -> BrokerEnd:
    json = decode_object(data, node)
    was_asked = json.values.get("was_asked") is True
    return BrokerEnd(json.integer("at_ms", maximum=MAX_INT64), json.string("reason"), was_asked)


@dataclass(frozen=True, slots=True)
class SuspectZnodes:
    """Which znodes list the suspect replicas of a registered broker.

    A key of the registration says how many ephemeral znodes of the same session list them, and
    their generation. They are created before the registration names them, and never changed. So a
    controller never sees a broker without its list, or parts of two lists. Kafka's tools and
    controllers ignore the key and the znodes.
    """

    generation: int = 0
    count: int = 0

    @staticmethod
    def decode(registration: bytes, node: str) -> SuspectZnodes:
        """Decode the key of a registration. Raises ``BadDataError``."""
        json = decode_object(registration, node).optional_nested("suspect_replicas")
        if not json.values:
            return SuspectZnodes()
        count = json.integer("znodes", 1, _MAX_SUSPECT_ZNODES)
        return SuspectZnodes(json.integer("generation"), count)


def _encode_registration(info: BrokerInfo, suspects: SuspectZnodes | None = None) -> bytes:
    """Encode as version 5; ``suspects`` says which znodes list the suspect replicas.

    ``host`` and ``port`` are always present (null and -1 without a PLAINTEXT endpoint) and the
    timestamp is a string, because Kafka's tools need that. Raises ValueError for an endpoint
    whose security protocol Kafka does not know: its clients would crash.
    """
    for endpoint in info.endpoints:
        if endpoint.security_protocol not in _SECURITY_PROTOCOLS:
            raise ValueError(f"{endpoint} has a security protocol that Kafka does not have")
    plaintext = info.plaintext_endpoint
    registration: dict[str, object] = {
        "listener_security_protocol_map": {
            endpoint.listener: endpoint.security_protocol for endpoint in info.endpoints
        },
        "endpoints": [endpoint.connection_string for endpoint in info.endpoints],
        "jmx_port": info.jmx_port,
        "features": {
            name: {"min_version": minimum, "max_version": maximum}
            for name, (minimum, maximum) in info.features.items()
        },
        "host": plaintext.host if plaintext else None,
        "timestamp": str(info.timestamp_ms),
        "port": plaintext.port if plaintext else -1,
        "version": 5,
    }
    optional = {
        "rack": info.rack,
        "control_endpoint": info.control_endpoint,
        "curve_public_key": info.control_key,
        "replication_endpoint": info.replication_endpoint,
        "suspect_replicas": {"generation": suspects.generation, "znodes": suspects.count}
        if suspects and suspects.count
        else None,
        "no_replicas": info.no_replicas or None,
        "node_host": info.node_host,
        "release": info.release,
        "control_version": info.control_version,
    }
    registration |= {key: value for key, value in optional.items() if value is not None}
    return orjson.dumps(registration)


def _decode_registration(node: str, data: bytes, broker_id: BrokerId) -> BrokerInfo:
    """Decode the registration of ``broker_id``, in version 1 to 5 or a later one."""
    if len(data) > _MAX_REGISTRATION_BYTES:
        raise BadDataError(f"{node}: has {len(data)} bytes")
    json = decode_object(data, node)
    return BrokerInfo(
        broker_id=broker_id,
        endpoints=_decode_endpoints(json),
        rack=json.optional_string("rack"),
        control_endpoint=json.optional_string("control_endpoint"),
        replication_endpoint=json.optional_string("replication_endpoint"),
        features=_decode_features(json.optional_nested("features")),
        jmx_port=json.integer("jmx_port", minimum=-1, default=-1),
        timestamp_ms=_decode_timestamp(json),
        control_key=json.optional_string("curve_public_key"),
        no_replicas=json.values.get("no_replicas") is True,
        node_host=json.optional_string("node_host"),
        release=json.optional_string("release"),
        control_version=json.optional_string("control_version"),
    )


def _decode_endpoints(json: JsonObject) -> tuple[EndPoint, ...]:
    if json.integer("version", minimum=1) == 1:
        return (EndPoint("PLAINTEXT", json.string("host"), json.integer("port", maximum=65535)),)
    protocols = json.optional_nested("listener_security_protocol_map")
    endpoints = []
    for text in json.array("endpoints"):
        match = _ENDPOINT.fullmatch(text) if type(text) is str else None
        if match is None or int(match[3]) > 65535:
            raise bad_field(json.node, "an element of endpoints", "LISTENER://host:port", text)
        listener = match[1].upper()
        protocol = protocols.optional_string(listener) or listener
        endpoints.append(EndPoint(listener, match[2], int(match[3]), protocol))
    return tuple(endpoints)


def _decode_features(json: JsonObject) -> dict[str, tuple[int, int]]:
    ranges = [(name, json.nested(name)) for name in json.values]
    return {
        name: (
            versions.integer("min_version", maximum=MAX_INT16),
            versions.integer("max_version", maximum=MAX_INT16),
        )
        for name, versions in ranges
    }


def _decode_timestamp(json: JsonObject) -> int:
    """Return the timestamp; -1 if it is not a number, because nothing depends on it."""
    try:
        return json.decimal("timestamp", maximum=MAX_INT64)
    except BadDataError:
        return -1


def _encode_suspects(suspects: SuspectReplicas) -> list[bytes]:
    """Return the data of the znodes that list suspect replicas; none when nothing is suspect."""
    if not suspects:
        return []
    rows = [
        (topic_partition, [topic_partition.partition, *end])
        for topic_partition, end in sorted(suspects.ends.items())
    ]
    rows += [
        (topic_partition, [topic_partition.partition])
        for topic_partition in sorted(suspects.sound or ())
    ]
    size = MAX_SUSPECT_ROWS
    chunks = [rows[start : start + size] for start in range(0, len(rows), size)] or [[]]
    return [
        orjson.dumps(
            {
                "version": 1,
                "knows_all": suspects.sound is None,
                "replicas": [
                    {"topic": topic, "partitions": [row for _, row in of_topic]}
                    for topic, of_topic in groupby(chunk, key=lambda row: row[0].topic)
                ],
            }
        )
        for chunk in chunks
    ]


def _decode_suspects(node: str, data: bytes) -> SuspectReplicas:
    """Return the suspect replicas in one of the znodes."""
    ends: dict[TopicPartition, LogEnd] = {}
    sound: set[TopicPartition] = set()
    json = decode_object(data, node)
    for topic_partition, row in _suspect_rows(json):
        if len(row) == 1:
            sound.add(topic_partition)
        else:
            ends[topic_partition] = LogEnd(row[1], row[2])
    knows_all = json.values.get("knows_all") is True
    return SuspectReplicas(ends, None if knows_all else frozenset(sound))


def _suspect_rows(json: JsonObject) -> Iterator[tuple[TopicPartition, list[int]]]:
    for topic in json.objects("replicas"):
        name = topic.string("topic")
        for row in topic.array("partitions"):
            limits = (MAX_INT32, MAX_INT32, MAX_INT64)
            is_row = type(row) is list and len(row) in (1, 3)
            if not is_row or not all(
                type(number) is int and -1 <= number <= limit
                for number, limit in zip(row, limits, strict=False)
            ):
                text = str(row)[:60]
                raise BadDataError(f"{json.node}: {text} is not a partition and its log's end")
            yield TopicPartition(name, row[0]), row


CONTROLLER = Codec(
    _encode_controller, lambda node, data: decode_object(data, node).integer("brokerid")
)
EPOCH = Codec(_encode_number, _decode_epoch)
CLUSTER_ID = Codec(_encode_cluster_id, lambda node, data: decode_object(data, node).string("id"))
FAILURES = Codec(_encode_failures, _decode_failures)
END = Codec(_encode_end, _decode_end)
REGISTRATION = Codec(_encode_registration, _decode_registration)
SUSPECT_REPLICAS = Codec(_encode_suspects, _decode_suspects)
