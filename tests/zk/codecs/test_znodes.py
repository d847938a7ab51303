"""Znodes of brokers and topics are read in all formats and written in Kafka's newest."""

from __future__ import annotations

import json
from typing import Any, TypeAlias

import pytest

from regent.core.errors import BadDataError
from regent.core.model import (
    BrokerInfo,
    EndPoint,
    LeaderAndIsr,
    LeaderIsrAndControllerEpoch,
    LeaderRecoveryState,
    ReplicaAssignment,
    TopicPartition,
)
from regent.zk.codecs.broker_znodes import decode_broker_id
from regent.zk.codecs.topic_znodes import TopicZNodeData, encode_topic_id, random_uuid
from regent.zk.znodes import (
    PERSISTENT_PATHS,
    BrokerIdZNode,
    ClusterIdZNode,
    ControllerEpochZNode,
    ControllerZNode,
    TopicPartitionStateZNode,
    TopicPartitionsZNode,
    TopicPartitionZNode,
    TopicZNode,
)

Json: TypeAlias = dict[str, Any]

TOPIC_ID = "gM2qDkxCRaW1-m_4rYdzVQ"


def bytes_of(value: object) -> bytes:
    return json.dumps(value).encode()


def state(**changes: Any) -> Json:
    plain = {"controller_epoch": 3, "leader": 1, "version": 1, "leader_epoch": 2, "isr": [1, 2, 3]}
    return {**plain, **changes}


# --- encoding -------------------------------------------------------------------------------------


def test_paths_are_kafkas() -> None:
    orders_7 = TopicPartition("orders", 7)
    assert BrokerIdZNode.path(3) == "/brokers/ids/3"
    assert TopicZNode.path("orders") == "/brokers/topics/orders"
    assert TopicPartitionsZNode.path("orders") == "/brokers/topics/orders/partitions"
    assert TopicPartitionZNode.path(orders_7) == "/brokers/topics/orders/partitions/7"
    assert TopicPartitionStateZNode.path(orders_7) == "/brokers/topics/orders/partitions/7/state"
    assert len(set(PERSISTENT_PATHS)) == 14


BROKER = BrokerInfo(
    broker_id=1,
    endpoints=(EndPoint("PLAINTEXT", "127.0.0.1", 19091),),
    rack="rack-a",
    control_endpoint="tcp://127.0.0.1:29091",
    replication_endpoint="tcp://127.0.0.1:39091",
    features={"group.version": (1, 3)},
    timestamp_ms=1795237103883,
)


WRITTEN: list[tuple[bytes, Json]] = [
    (
        ControllerZNode.encode(1, 1795237103883),
        {"version": 1, "brokerid": 1, "timestamp": "1795237103883"},
    ),
    (ClusterIdZNode.encode(TOPIC_ID), {"version": "1", "id": TOPIC_ID}),
    (
        BrokerIdZNode.encode(BROKER),
        {
            "listener_security_protocol_map": {"PLAINTEXT": "PLAINTEXT"},
            "endpoints": ["PLAINTEXT://127.0.0.1:19091"],
            "rack": "rack-a",
            "jmx_port": -1,
            "features": {"group.version": {"min_version": 1, "max_version": 3}},
            "host": "127.0.0.1",
            "timestamp": "1795237103883",
            "port": 19091,
            "version": 5,
            "control_endpoint": "tcp://127.0.0.1:29091",
            "replication_endpoint": "tcp://127.0.0.1:39091",
        },
    ),
    (
        TopicZNode.encode(
            TOPIC_ID,
            {0: ReplicaAssignment((1, 2)), 1: ReplicaAssignment((4, 1, 2), (4,), (1,))},
        ),
        {
            "version": 3,
            "topic_id": TOPIC_ID,
            "partitions": {"0": [1, 2], "1": [4, 1, 2]},
            "adding_replicas": {"1": [4]},
            "removing_replicas": {"1": [1]},
        },
    ),
    (
        TopicZNode.encode(None, {0: ReplicaAssignment((1,))}),
        {"version": 3, "partitions": {"0": [1]}, "adding_replicas": {}, "removing_replicas": {}},
    ),
]


@pytest.mark.parametrize(("written", "expected"), WRITTEN)
def test_znodes_are_written_as_kafka_writes_them(written: bytes, expected: Json) -> None:
    assert json.loads(written) == expected
    assert b" " not in written
    assert b"\n" not in written


def test_the_controller_epoch_is_plain_decimal_text() -> None:
    assert ControllerEpochZNode.encode(7) == b"7"
    assert ControllerEpochZNode.decode(b"7") == 7


def test_a_state_is_written_byte_for_byte_as_kafka_writes_it() -> None:
    leadership = LeaderAndIsr(1, (1, 2, 3), leader_epoch=2, partition_epoch=9)
    written = TopicPartitionStateZNode.encode(LeaderIsrAndControllerEpoch(leadership, 3))
    assert (
        written == b'{"controller_epoch":3,"leader":1,"version":1,"leader_epoch":2,"isr":[1,2,3]}'
    )


def test_only_a_recovering_state_has_the_recovery_field() -> None:
    recovering = LeaderAndIsr(1, (1,), leader_recovery_state=LeaderRecoveryState.RECOVERING)
    written = TopicPartitionStateZNode.encode(LeaderIsrAndControllerEpoch(recovering, 1))
    assert json.loads(written)["leader_recovery_state"] == 1
    assert TopicPartitionStateZNode.decode(written, 0).leader_and_isr == recovering


def test_a_broker_without_a_plaintext_endpoint_has_a_null_host_and_port_minus_one() -> None:
    info = BrokerInfo(1, (EndPoint("SSL", "kafka.example.org", 9093, "SSL"),))
    written = json.loads(BrokerIdZNode.encode(info))
    assert (written["host"], written["port"]) == (None, -1)
    assert written["endpoints"] == ["SSL://kafka.example.org:9093"]
    assert not written.keys() & {"rack", "control_endpoint", "replication_endpoint"}


def test_an_ipv6_address_is_written_in_brackets_and_read_without() -> None:
    info = BrokerInfo(1, (EndPoint("PLAINTEXT", "2001:db8::1", 9092),))
    written = BrokerIdZNode.encode(info)
    assert json.loads(written)["endpoints"] == ["PLAINTEXT://[2001:db8::1]:9092"]
    assert BrokerIdZNode.decode(written, 1) == info


def test_an_endpoint_must_have_a_security_protocol_that_kafka_knows() -> None:
    info = BrokerInfo(1, (EndPoint("ZMQ", "127.0.0.1", 5555, "ZMQ"),))
    with pytest.raises(ValueError, match="ZMQ"):
        BrokerIdZNode.encode(info)


def test_a_topic_id_is_the_base64url_form_of_a_uuid() -> None:
    assert encode_topic_id(bytes(16)) == "A" * 22
    assert encode_topic_id(b"\xff" * 16) == "_" * 21 + "w"


def test_no_command_takes_a_new_id_for_an_option():
    ids = {random_uuid() for _ in range(1_000)}
    assert len(ids) == 1_000
    assert not any(new.startswith("-") for new in ids)


# --- decoding -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("registration", "endpoints", "rack"),
    [
        ({"version": 1, "host": "h", "port": 9092}, [EndPoint("PLAINTEXT", "h", 9092)], None),
        (
            {"version": 2, "endpoints": ["PLAINTEXT://localhost:9092"]},
            [EndPoint("PLAINTEXT", "localhost", 9092)],
            None,
        ),
        (
            {"version": 3, "endpoints": ["PLAINTEXT://a:1", "SSL://b:2"], "rack": "dc1"},
            [EndPoint("PLAINTEXT", "a", 1), EndPoint("SSL", "b", 2, "SSL")],
            "dc1",
        ),
        (
            {
                "version": 4,
                "endpoints": ["CLIENT://a:1", "REPLICATION://[::1]:2"],
                "listener_security_protocol_map": {"CLIENT": "SSL", "REPLICATION": "PLAINTEXT"},
                "rack": None,
            },
            [EndPoint("CLIENT", "a", 1, "SSL"), EndPoint("REPLICATION", "::1", 2, "PLAINTEXT")],
            None,
        ),
        (
            {"version": 9, "endpoints": [], "features": {}, "news": [1], "timestamp": "soon"},
            [],
            None,
        ),
    ],
)
def test_broker_registrations_of_every_version_are_read(
    registration: Json, endpoints: list[EndPoint], rack: str | None
) -> None:
    info = BrokerIdZNode.decode(bytes_of({"jmx_port": 9999, **registration}), 7)
    assert info == BrokerInfo(7, tuple(endpoints), rack, jmx_port=9999)


def test_a_registration_of_version_zero_is_refused() -> None:
    with pytest.raises(BadDataError, match="version"):
        BrokerIdZNode.decode(bytes_of({"version": 0, "endpoints": []}), 1)


@pytest.mark.parametrize(
    ("node", "topic_id", "moving"),
    [
        ({"version": 1}, None, ReplicaAssignment((2, 1))),
        (
            {"version": 2, "adding_replicas": {"1": [2]}, "removing_replicas": {"1": [1]}},
            None,
            ReplicaAssignment((2, 1), (2,), (1,)),
        ),
        (
            {"version": 3, "topic_id": TOPIC_ID, "adding_replicas": {}, "removing_replicas": {}},
            TOPIC_ID,
            ReplicaAssignment((2, 1)),
        ),
        ({"version": 3, "topic_id": None}, None, ReplicaAssignment((2, 1))),
    ],
)
def test_topics_of_every_version_are_read(
    node: Json, topic_id: str | None, moving: ReplicaAssignment
) -> None:
    data = TopicZNode.decode(bytes_of({**node, "partitions": {"10": [3], "1": [2, 1]}}))
    assert data == TopicZNodeData(topic_id, {1: moving, 10: ReplicaAssignment((3,))})
    assert list(data.partitions) == [1, 10]


def test_a_state_keeps_the_sequence_of_its_isr_and_takes_its_znodes_version() -> None:
    read = TopicPartitionStateZNode.decode(bytes_of(state(isr=[3, 1, 2])), 17)
    assert read == LeaderIsrAndControllerEpoch(LeaderAndIsr(1, (3, 1, 2), 2, 17), 3)


def test_a_leader_outside_the_isr_and_an_empty_isr_are_accepted() -> None:
    assert TopicPartitionStateZNode.decode(bytes_of(state(leader=4)), 0).leader_and_isr.leader == 4
    assert (
        TopicPartitionStateZNode.decode(bytes_of(state(leader=-1, isr=[])), 0).leader_and_isr.isr
        == ()
    )


def test_the_children_of_the_brokers_are_broker_ids() -> None:
    assert decode_broker_id("1001") == 1001
    for name in ("", "-1", "01", "1 ", "one", "١", "9" * 5000):
        with pytest.raises(BadDataError):
            decode_broker_id(name)


# --- invalid data ---------------------------------------------------------------------------------


BAD_STATES = [
    state(isr=[1, 1]),
    state(isr=[1, -2]),
    state(isr=[1, True]),
    state(isr=[1, 2.0]),
    state(isr=[1, 2**40]),
    state(isr=["1"]),
    state(isr=None),
    state(leader=-2),
    state(leader=2**31),
    state(leader_epoch=-1),
    state(leader_epoch=float("nan")),
    state(controller_epoch="3"),
    state(leader_recovery_state=2),
]


@pytest.mark.parametrize("bad", [*BAD_STATES, {"leader": 1}, {}])
def test_a_state_with_a_bad_field_is_refused(bad: Json) -> None:
    with pytest.raises(BadDataError):
        TopicPartitionStateZNode.decode(bytes_of(bad), 0)


@pytest.mark.parametrize(
    "partitions",
    [
        {"0": [1, 1]},
        {"0": [-1]},
        {"0": []},
        {"0": {"1": 2}},
        {"00": [1]},
        {"-1": [1]},
        {"one": [1]},
        {"2147483648": [1]},
        [[1, 2]],
    ],
)
def test_a_topic_with_a_bad_partition_is_refused(partitions: Any) -> None:
    with pytest.raises(BadDataError, match="/brokers/topics/<topic>"):
        TopicZNode.decode(bytes_of({"version": 1, "partitions": partitions}))


def test_a_registration_that_is_too_large_for_requests_is_refused() -> None:
    huge = bytes_of({"version": 5, "endpoints": [], "rack": "r" * 32_767})
    with pytest.raises(BadDataError, match=r"/brokers/ids/<id>: has 32\d+ bytes"):
        BrokerIdZNode.decode(huge, 1)


def test_a_refusal_is_one_short_line_that_names_the_znode_and_the_fault() -> None:
    with pytest.raises(BadDataError) as refusal:
        TopicPartitionStateZNode.decode(bytes_of(state(leader="1")), 0)
    assert str(refusal.value) == (
        "/brokers/topics/<topic>/partitions/<partition>/state: "
        "leader must be an integer from -1 to 2147483647, not '1'"
    )
    nested: Any = "deep"
    for _ in range(20):
        nested = {f"key\n{i}" + "x" * 1000: [nested] * 3 for i in range(2)} if _ < 6 else [nested]
    for bad in ({"features": nested, "version": 5, "endpoints": []}, nested):
        with pytest.raises(BadDataError) as refusal:
            BrokerIdZNode.decode(bytes_of(bad), 1)
        assert "\n" not in str(refusal.value)
        assert len(str(refusal.value)) < 1500


@pytest.mark.parametrize("replicas", [[True, 2], [1.0, 2], [1, 2, 2], [-1], [], "12", None])
def test_an_assignment_is_checked_even_if_an_equal_one_was_read_before(replicas: object) -> None:
    TopicZNode.decode(bytes_of({"version": 3, "partitions": {"0": [1, 2], "1": [1]}}))
    with pytest.raises(BadDataError, match="partition"):
        TopicZNode.decode(bytes_of({"version": 3, "partitions": {"0": [1, 2], "1": replicas}}))


def test_equal_assignments_and_partition_ids_are_the_same_objects() -> None:
    data = bytes_of({"version": 3, "partitions": {"1000": [1, 2], "1001": [1, 2]}})
    first, second = TopicZNode.decode(data).partitions, TopicZNode.decode(data).partitions
    assert first[1000] is first[1001] is second[1000]
    assert next(iter(first)) is next(iter(second))


def test_a_registration_names_the_machine_that_brokers_share() -> None:
    info = BrokerInfo(
        7, (), None, "tcp://m:1", node_host="m1", release="9.1", control_version="2.0"
    )
    assert BrokerIdZNode.decode(BrokerIdZNode.encode(info), 7) == info
    assert info.software == "regent 9.1"
    assert BrokerIdZNode.decode(BrokerIdZNode.encode(info), 7).node_host == "m1"
    others = BrokerIdZNode.encode(BrokerInfo(7, ()))
    assert b"node_host" not in others
    assert BrokerIdZNode.decode(others, 7).node_host is None


def test_a_registration_says_that_its_broker_takes_no_replicas() -> None:
    info = BrokerInfo(7, (), no_replicas=True)
    assert BrokerIdZNode.decode(BrokerIdZNode.encode(info), 7).no_replicas
    others = BrokerIdZNode.encode(BrokerInfo(7, ()))
    assert b"no_replicas" not in others
    assert not BrokerIdZNode.decode(others, 7).no_replicas
