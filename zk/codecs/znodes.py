"""The znodes of brokers, controllers and topics: paths, and bytes to values and back.

There is one class for each path, named as in Kafka's ``ZkData.scala``. ``encode`` writes the newest
version of Kafka's ZooKeeper mode. ``decode`` reads every version and dialect that Kafka and its
tools write, ignores unknown keys, and raises only ``core.errors.BadDataError``. The znodes of
administration and notifications are in ``zk.codecs.admin_znodes``.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain

import orjson

from regent.core.errors import BadDataError
from regent.core.model import (
    MAX_LEADER_EPOCH,
    NO_LEADER,
    NO_LEADER_EPOCH_LEFT,
    BrokerId,
    BrokerInfo,
    EndPoint,
    LeaderAndIsr,
    LeaderIsrAndControllerEpoch,
    LeaderRecoveryState,
    ReplicaAssignment,
    TopicPartition,
)
from regent.zk.codecs.json_fields import (
    MAX_INT16,
    MAX_INT64,
    JsonObject,
    bad_field,
    decode_broker_ids,
    decode_decimal,
    decode_object,
)
from regent.zk.codecs.suspect_replicas import SuspectZnodes

PERSISTENT_PATHS = (
    "/consumers",
    "/brokers/ids",
    "/brokers/topics",
    "/config/changes",
    "/admin/delete_topics",
    "/brokers/seqid",
    "/isr_change_notification",
    "/latest_producer_id_block",
    "/log_dir_event_notification",
    "/config/topics",
    "/config/clients",
    "/config/users",
    "/config/brokers",
    "/config/ips",
)
"""Every starting broker creates these empty, with their parents, if they are missing."""


class ControllerZNode:
    """``/controller``, ephemeral: the id of the active controller."""

    PATH = "/controller"

    @staticmethod
    def encode(broker_id: BrokerId, timestamp_ms: int) -> bytes:
        """Encode; the timestamp is a string, as Kafka's readers expect."""
        return orjson.dumps({"version": 1, "brokerid": broker_id, "timestamp": str(timestamp_ms)})

    @staticmethod
    def decode(data: bytes) -> BrokerId:
        """Return the id of the active controller."""
        return decode_object(data, ControllerZNode.PATH).integer("brokerid")


class ControllerEpochZNode:
    """``/controller_epoch``: the number of the latest controller election, as decimal text."""

    PATH = "/controller_epoch"

    @staticmethod
    def encode(controller_epoch: int) -> bytes:
        """Encode."""
        return b"%d" % controller_epoch

    @staticmethod
    def decode(data: bytes) -> int:
        """Return the controller epoch."""
        text = data.decode("ascii", errors="replace")
        return decode_decimal(text, ControllerEpochZNode.PATH, "the epoch")


class ControllerTermZNode:
    """``/regent/controller_terms/<session>-<epoch>``, ephemeral and empty; Kafka has none.

    It fences a former controller that was paused and kept its session while an operator deleted
    ``/controller``. The version of ``/controller_epoch`` is not enough: if that znode is deleted
    too, its version starts at 0 again, and after some elections it equals the version that the
    former controller checks. Every election creates a path that is never used again, because the
    epochs of a session only grow, and deletes the paths of all earlier elections.
    """

    PARENT = "/regent/controller_terms"

    @staticmethod
    def path(session_id: int, epoch: int) -> str:
        """Return the path for an election of this session to this epoch."""
        return f"{ControllerTermZNode.PARENT}/{session_id:x}-{epoch}"


class ClusterIdZNode:
    """``/cluster/id``: the 22-character id that the first broker created."""

    PATH = "/cluster/id"

    @staticmethod
    def encode(cluster_id: str) -> bytes:
        """Encode; only in this znode the version is a string."""
        return orjson.dumps({"version": "1", "id": cluster_id})

    @staticmethod
    def decode(data: bytes) -> str:
        """Return the cluster id."""
        return decode_object(data, ClusterIdZNode.PATH).string("id")


class BrokerIdsZNode:
    """``/brokers/ids``: one child for each live broker."""

    PATH = "/brokers/ids"

    @staticmethod
    def decode_child(name: str) -> BrokerId:
        """Return the broker id in the name of a child."""
        return decode_decimal(name, BrokerIdsZNode.PATH, "the name of a child")


class BrokerIdZNode:
    """``/brokers/ids/N``, ephemeral: a broker's registration. Its czxid is the broker epoch."""

    _NODE = f"{BrokerIdsZNode.PATH}/<id>"
    _MAX_BYTES = 32_767  # so that every string in it fits into a control request
    _SECURITY_PROTOCOLS = frozenset({"PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"})
    _ENDPOINT = re.compile(r"([^:/]+)://\[?([0-9A-Za-z\-%._:]*)\]?:([0-9]{1,5})", re.ASCII)

    @staticmethod
    def path(broker_id: BrokerId) -> str:
        """Return the path of a broker's registration."""
        return f"{BrokerIdsZNode.PATH}/{broker_id}"

    @staticmethod
    def encode(info: BrokerInfo, suspects: SuspectZnodes | None = None) -> bytes:
        """Encode as version 5; ``suspects`` says which znodes list the suspect replicas.

        ``host`` and ``port`` are always present (null and -1 without a PLAINTEXT endpoint) and the
        timestamp is a string, because Kafka's tools need that. Raises ValueError for an endpoint
        whose security protocol Kafka does not know: its clients would crash.
        """
        for endpoint in info.endpoints:
            if endpoint.security_protocol not in BrokerIdZNode._SECURITY_PROTOCOLS:
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
            "replication_endpoint": info.replication_endpoint,
            "suspect_replicas": suspects.encode() if suspects else None,
        }
        registration |= {key: value for key, value in optional.items() if value is not None}
        return orjson.dumps(registration)

    @staticmethod
    def decode(data: bytes, broker_id: BrokerId) -> BrokerInfo:
        """Decode the registration of ``broker_id``, in version 1 to 5 or a later one."""
        if len(data) > BrokerIdZNode._MAX_BYTES:
            raise BadDataError(f"{BrokerIdZNode._NODE}: has {len(data)} bytes")
        json = decode_object(data, BrokerIdZNode._NODE)
        return BrokerInfo(
            broker_id=broker_id,
            endpoints=_decode_endpoints(json),
            rack=json.optional_string("rack"),
            control_endpoint=json.optional_string("control_endpoint"),
            replication_endpoint=json.optional_string("replication_endpoint"),
            features=_decode_features(json.optional_nested("features")),
            jmx_port=json.integer("jmx_port", minimum=-1, default=-1),
            timestamp_ms=_decode_timestamp(json),
        )

    @staticmethod
    def suspects(data: bytes) -> SuspectZnodes:
        """Return which znodes list the suspect replicas of this broker."""
        return SuspectZnodes.decode(data, BrokerIdZNode._NODE)


def _decode_endpoints(json: JsonObject) -> tuple[EndPoint, ...]:
    if json.integer("version", minimum=1) == 1:
        return (EndPoint("PLAINTEXT", json.string("host"), json.integer("port", maximum=65535)),)
    protocols = json.optional_nested("listener_security_protocol_map")
    endpoints = []
    for text in json.array("endpoints"):
        match = BrokerIdZNode._ENDPOINT.fullmatch(text) if type(text) is str else None
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


class TopicsZNode:
    """``/brokers/topics``: one child for each topic."""

    PATH = "/brokers/topics"


@dataclass(frozen=True, slots=True)
class TopicZNodeData:
    """The data of a topic's znode; ``partitions`` is in the order of the partition ids."""

    topic_id: str | None  # 22 characters; None if the last writer does not know topic ids
    partitions: Mapping[int, ReplicaAssignment]


def encode_topic_id(uuid_bytes: bytes) -> str:
    """Return Kafka's 22-character base64url form of the 16 bytes of a UUID."""
    return base64.urlsafe_b64encode(uuid_bytes).rstrip(b"=").decode("ascii")


class TopicZNode:
    """``/brokers/topics/T``: the assignment of a topic's partitions (KIP-455) and its id (KIP-516).

    ``adding_replicas`` and ``removing_replicas`` list only partitions that are being reassigned.
    """

    _NODE = f"{TopicsZNode.PATH}/<topic>"

    @staticmethod
    def path(topic: str) -> str:
        """Return the path of a topic's znode."""
        return f"{TopicsZNode.PATH}/{topic}"

    @staticmethod
    def encode(topic_id: str | None, partitions: Mapping[int, ReplicaAssignment]) -> bytes:
        """Encode as version 3; the key ``topic_id`` is absent when there is none."""
        node: dict[str, object] = {
            "removing_replicas": {
                str(partition): assignment.removing_replicas
                for partition, assignment in partitions.items()
                if assignment.removing_replicas
            },
            "partitions": {
                str(partition): assignment.replicas for partition, assignment in partitions.items()
            },
            "adding_replicas": {
                str(partition): assignment.adding_replicas
                for partition, assignment in partitions.items()
                if assignment.adding_replicas
            },
            "version": 3,
        }
        if topic_id is not None:
            node["topic_id"] = topic_id
        return orjson.dumps(node)

    @staticmethod
    def decode(data: bytes) -> TopicZNodeData:
        """Read version 1, 2 or 3.

        A partition without replicas is rejected, because it can have no leader and no ISR.
        """
        json = decode_object(data, TopicZNode._NODE)
        topic_id = _decode_topic_id(json)
        replicas = _decode_replica_lists(json, "partitions")
        adding = _decode_replica_lists(json, "adding_replicas")
        removing = _decode_replica_lists(json, "removing_replicas")
        if not all(replicas.values()):
            raise BadDataError(f"{json.node}: a partition has no replicas")
        partitions = {
            partition: _assignment(
                replicas[partition], adding.get(partition, ()), removing.get(partition, ())
            )
            for partition in sorted(replicas)
        }
        return TopicZNodeData(topic_id, partitions)


_TOPIC_ID = re.compile(r"[0-9A-Za-z_-]{22}")


def _decode_topic_id(json: JsonObject) -> str | None:
    topic_id = json.optional_string("topic_id")
    if topic_id is not None and _TOPIC_ID.fullmatch(topic_id) is None:
        raise bad_field(json.node, "topic_id", "22 characters of base64url", topic_id)
    return topic_id


@lru_cache(maxsize=16_384)  # thousands of partitions share a few assignments
def _assignment(
    replicas: tuple[BrokerId, ...], adding: tuple[BrokerId, ...], removing: tuple[BrokerId, ...]
) -> ReplicaAssignment:
    return ReplicaAssignment(replicas, adding, removing)


def _decode_replica_lists(json: JsonObject, key: str) -> dict[int, tuple[BrokerId, ...]]:
    if json.values.get(key) in (None, {}):
        return {}
    lists = json.nested(key)
    node, values = lists.node, lists.values
    are_lists = set(map(type, values.values())) <= {list}
    # A cache hit takes a tenth of the time; the types are checked before, because True == 1.
    are_integers = are_lists and set(map(type, chain.from_iterable(values.values()))) <= {int}
    return {
        _partition_id(partition, node): (are_integers and _broker_ids(tuple(replicas)))
        or decode_broker_ids(replicas, node, partition)
        for partition, replicas in values.items()
    }


@lru_cache(maxsize=16_384)
def _partition_id(text: str, node: str) -> int:
    return decode_decimal(text, node, "a partition id")


@lru_cache(maxsize=16_384)
def _broker_ids(integers: tuple[int, ...]) -> tuple[BrokerId, ...]:
    """Return valid broker ids; nothing for an invalid list."""
    try:
        return decode_broker_ids(list(integers), "", "")
    except BadDataError:
        return ()


class TopicPartitionsZNode:
    """``/brokers/topics/T/partitions``: one child for each partition; its data has the topic id.

    In Kafka the data is empty. A tool that rewrites the topic's znode without the topic id does not
    change this znode, which is deleted with the topic. An internal topic also has here the number
    of partitions with which it began: the keys of its records are spread over these for ever.
    """

    _NODE = f"{TopicsZNode.PATH}/<topic>/partitions"

    @staticmethod
    def path(topic: str) -> str:
        """Return the path of the parent of a topic's partitions."""
        return f"{TopicsZNode.PATH}/{topic}/partitions"

    @staticmethod
    def encode(topic_id: str | None, coordinated_partitions: int = 0) -> bytes:
        """Encode as version 1; empty when there is neither an id nor a number."""
        node: dict[str, object] = {} if topic_id is None else {"topic_id": topic_id}
        if coordinated_partitions:
            node["coordinated_partitions"] = coordinated_partitions
        return orjson.dumps({"version": 1, **node}) if node else b""

    @staticmethod
    def decode(data: bytes) -> str | None:
        """Return the topic id; None: there is none. Raises ``BadDataError``."""
        if not data:
            return None
        return _decode_topic_id(decode_object(data, TopicPartitionsZNode._NODE))

    @staticmethod
    def coordinated_partitions(data: bytes) -> int:
        """Return the number of partitions of an internal topic; 0: there is none.

        Raises ``BadDataError``.
        """
        if not data:
            return 0
        json = decode_object(data, TopicPartitionsZNode._NODE)
        return json.integer("coordinated_partitions", minimum=0, default=0)


class TopicPartitionZNode:
    """``/brokers/topics/T/partitions/P``, empty: the parent of a partition's state."""

    @staticmethod
    def path(topic_partition: TopicPartition) -> str:
        """Return the path of a partition."""
        return f"{TopicsZNode.PATH}/{topic_partition[0]}/partitions/{topic_partition[1]}"


class TopicPartitionStateZNode:
    """``/brokers/topics/T/partitions/P/state``: the leader and the ISR of a partition.

    Its version is the partition epoch.
    """

    _NODE = f"{TopicsZNode.PATH}/<topic>/partitions/<partition>/state"

    @staticmethod
    def path(topic_partition: TopicPartition) -> str:
        """Return the path of a partition's state."""
        return f"{TopicsZNode.PATH}/{topic_partition[0]}/partitions/{topic_partition[1]}/state"

    @staticmethod
    def partition_of(path: str) -> TopicPartition | None:
        """Return the partition of a path of a state; None for any other path."""
        match path.split("/"):
            case ["", "brokers", "topics", topic, "partitions", number, "state"]:
                return TopicPartition(topic, int(number)) if number.isdecimal() else None
            case _:
                return None

    @staticmethod
    def encode(state: LeaderIsrAndControllerEpoch) -> bytes:
        """Encode; ``leader_recovery_state`` is written only while RECOVERING (KIP-704).

        ``eligible_leader_replicas`` (KIP-966) are written if there are any. Kafka's ZooKeeper mode
        ignores them.
        """
        leadership = state.leader_and_isr
        recovery = (
            f',"leader_recovery_state":{leadership.leader_recovery_state:d}'
            if leadership.leader_recovery_state
            else ""
        )
        eligible = leadership.eligible_leader_replicas
        if eligible:
            recovery += f',"eligible_leader_replicas":[{",".join(map(str, eligible))}]'
        return (
            f'{{"controller_epoch":{state.controller_epoch},"leader":{leadership.leader},'
            f'"version":1,"leader_epoch":{leadership.leader_epoch},'
            f'"isr":[{",".join(map(str, leadership.isr))}]{recovery}}}'
        ).encode()

    @staticmethod
    @lru_cache(maxsize=16_384)  # thousands of partitions share a few states
    def decode(data: bytes, partition_epoch: int) -> LeaderIsrAndControllerEpoch:
        """Return the leadership; ``partition_epoch`` is the version in the znode's stat.

        The order of the ISR is kept. A leader outside the ISR and an empty ISR are accepted: old
        implementations have written both, and an election repairs them.
        """
        json = decode_object(data, TopicPartitionStateZNode._NODE)
        leader_epoch = json.integer("leader_epoch")
        if leader_epoch > MAX_LEADER_EPOCH:
            text = f"{json.node}: leader_epoch is {leader_epoch}: {NO_LEADER_EPOCH_LEFT}"
            raise BadDataError(text)
        recovery = json.integer("leader_recovery_state", maximum=1, default=0)
        return LeaderIsrAndControllerEpoch(
            LeaderAndIsr(
                json.integer("leader", NO_LEADER),
                json.broker_ids("isr"),
                leader_epoch,
                partition_epoch,
                LeaderRecoveryState.RECOVERING if recovery else LeaderRecoveryState.RECOVERED,
                json.optional_broker_ids("eligible_leader_replicas"),
            ),
            json.integer("controller_epoch"),
        )
