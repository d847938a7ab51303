"""For any bytes a decoder returns a value or raises BadDataError; encoders and decoders agree."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regent.core.errors import BadDataError
from regent.core.model import (
    MAX_LEADER_EPOCH,
    BrokerInfo,
    EndPoint,
    LeaderAndIsr,
    LeaderIsrAndControllerEpoch,
    LeaderRecoveryState,
    ReplicaAssignment,
    TopicPartition,
)
from regent.core.ports import DeletedPartition, DeletedTopic
from regent.zk.codecs.admin_znodes import ProducerIdBlock
from regent.zk.codecs.topic_znodes import TopicZNodeData, encode_topic_id
from regent.zk.znodes import (
    BrokerIdZNode,
    ClusterIdZNode,
    ConfigEntityChangeNotificationSequenceZNode,
    ConfigEntityZNode,
    ControllerEpochZNode,
    ControllerZNode,
    DelegationTokenChangeNotificationSequenceZNode,
    DelegationTokenInfoZNode,
    DelegationTokensZNode,
    DeletedTopicZNode,
    IsrChangeNotificationSequenceZNode,
    LogDirEventNotificationSequenceZNode,
    PreferredReplicaElectionZNode,
    ProducerIdBlockZNode,
    ReassignPartitionsZNode,
    TopicPartitionStateZNode,
    TopicZNode,
)
from tests.support.token_world import a_token

repeatable = settings(derandomize=True, deadline=None, database=None)


def bytes_of(value: object) -> bytes:
    return json.dumps(value).encode()


DECODERS: dict[str, Callable[[bytes], object]] = {
    "controller": ControllerZNode.decode,
    "controller_epoch": ControllerEpochZNode.decode,
    "cluster_id": ClusterIdZNode.decode,
    "broker": lambda data: BrokerIdZNode.decode(data, 1),
    "topic": TopicZNode.decode,
    "state": lambda data: TopicPartitionStateZNode.decode(data, 0),
    "deleted_topic": DeletedTopicZNode.decode,
    "reassign_partitions": ReassignPartitionsZNode.decode,
    "preferred_replica_election": PreferredReplicaElectionZNode.decode,
    "isr_change": IsrChangeNotificationSequenceZNode.decode,
    "log_dir_event": LogDirEventNotificationSequenceZNode.decode,
    "config": ConfigEntityZNode.decode,
    "config_change": ConfigEntityChangeNotificationSequenceZNode.decode,
    "producer_ids": ProducerIdBlockZNode.decode,
    "delegation_token": lambda data: DelegationTokenInfoZNode.decode(data, "id"),
    "delegation_tokens": DelegationTokensZNode.decode,
}
ALL_DECODERS: dict[str, Callable[[bytes], object]] = {
    **DECODERS,
    "token_change": DelegationTokenChangeNotificationSequenceZNode.decode,
}


ids = st.integers(0, 5) | st.integers(0, 2**31 - 1)
ORDERS_0 = TopicPartition("orders", 0)
VALID: list[dict[str, Any]] = [
    json.loads(written)
    for written in (
        ControllerZNode.encode(1, 0),
        BrokerIdZNode.encode(
            BrokerInfo(1, (EndPoint("SSL", "h", 1, "SSL"),), "rack", features={"f": (1, 3)})
        ),
        b'{"version":1,"host":"h","port":9092}',
        TopicZNode.encode("A" * 22, {1: ReplicaAssignment((4, 1), (4,), (1,))}),
        TopicPartitionStateZNode.encode(LeaderIsrAndControllerEpoch(LeaderAndIsr(1, (1, 2)), 3)),
        DeletedTopicZNode.encode(
            DeletedTopic("t", "A" * 22, 1, 2, {0: DeletedPartition((1, 2), (1,), 3)}, {"f": "v"})
        ),
        ReassignPartitionsZNode.encode({ORDERS_0: (1, 2)}),
        ConfigEntityZNode.encode({"f": "v"}),
        ConfigEntityChangeNotificationSequenceZNode.encode("topics/orders"),
        b'{"version":1,"entity_type":"topics","entity_name":"orders"}',
        ProducerIdBlockZNode.encode(ProducerIdBlock(1, 0, 999)),
        DelegationTokenInfoZNode.encode(a_token("id")),
    )
]
keys = st.sampled_from(sorted({key for valid in VALID for key in valid} | {"0", "1", "f"}))
junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | ids,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(keys | st.text(), inner, max_size=4)
    ),
    max_leaves=12,
)
damaged = st.builds(
    lambda valid, key, value: {**valid, key: value}, st.sampled_from(VALID), keys, junk
)


@pytest.mark.parametrize("decode", ALL_DECODERS.values(), ids=ALL_DECODERS)
@repeatable
@given(data=st.binary(max_size=64) | (junk | damaged).map(bytes_of))
def test_a_decoder_raises_nothing_but_bad_data(
    decode: Callable[[bytes], object], data: bytes
) -> None:
    try:
        decode(data)
    except BadDataError as refusal:
        assert "\n" not in str(refusal)  # noqa: PT017


@pytest.mark.parametrize("decode", DECODERS.values(), ids=DECODERS)
@pytest.mark.parametrize(
    "data", [b"[" * 5000, b"\xff\xfe", b"NaN", b'{"a":1', b'"\\ud800"', b"7\n"]
)
def test_data_other_than_json_are_refused(decode: Callable[[bytes], object], data: bytes) -> None:
    with pytest.raises(BadDataError):
        decode(data)


# --- round trips ----------------------------------------------------------------------------------

broker_ids = st.lists(ids, unique=True, max_size=5).map(tuple)
leader_epochs = st.integers(0, MAX_LEADER_EPOCH)
names = st.text(st.characters(codec="utf-8", exclude_characters="/"), min_size=1, max_size=20)
partitions = st.builds(TopicPartition, names, ids)
endpoints = st.builds(
    EndPoint,
    st.sampled_from(["PLAINTEXT", "SSL", "CLIENT", "REPLICATION"]),
    st.sampled_from(["localhost", "10.0.0.1", "::1", "kafka-1.example.org", "fe80::1%eth0"]),
    st.integers(0, 65535),
    st.sampled_from(["PLAINTEXT", "SSL", "SASL_SSL", "SASL_PLAINTEXT"]),
)
versions = st.tuples(st.integers(0, 2**15 - 1), st.integers(0, 2**15 - 1))


@repeatable
@given(
    st.builds(
        LeaderIsrAndControllerEpoch,
        st.builds(
            LeaderAndIsr,
            st.just(-1) | ids,
            broker_ids,
            leader_epochs,
            ids,
            st.sampled_from(LeaderRecoveryState),
            broker_ids,
        ),
        ids,
    )
)
def test_an_encoded_state_is_decoded(value: LeaderIsrAndControllerEpoch) -> None:
    written = TopicPartitionStateZNode.encode(value)
    assert json.loads(written)["isr"] == list(value.leader_and_isr.isr)
    epoch = value.leader_and_isr.partition_epoch
    assert TopicPartitionStateZNode.decode(written, epoch) == value


@repeatable
@given(
    st.none() | st.binary(min_size=16, max_size=16).map(encode_topic_id),
    st.dictionaries(
        ids, st.builds(ReplicaAssignment, broker_ids.filter(bool), broker_ids, broker_ids)
    ),
)
def test_an_encoded_topic_is_decoded(
    topic_id: str | None, assignments: dict[int, ReplicaAssignment]
) -> None:
    written = TopicZNode.encode(topic_id, assignments)
    assert TopicZNode.decode(written) == TopicZNodeData(topic_id, assignments)
    assert json.loads(written)["partitions"] == {
        str(partition): list(assignment.replicas) for partition, assignment in assignments.items()
    }


@repeatable
@given(
    st.builds(
        DeletedTopic,
        names,
        st.binary(min_size=16, max_size=16).map(encode_topic_id),
        st.integers(0, 2**53),
        st.integers(0, 2**53),
        st.dictionaries(
            ids,
            st.builds(DeletedPartition, broker_ids.filter(bool), broker_ids, leader_epochs),
            max_size=3,
        ),
        st.dictionaries(names, names, max_size=3),
        st.booleans(),
        st.integers(1, 2**53),
    )
)
def test_an_encoded_deleted_topic_is_decoded(deleted: DeletedTopic) -> None:
    assert DeletedTopicZNode.decode(DeletedTopicZNode.encode(deleted), deleted.zxid) == deleted


@repeatable
@given(
    st.builds(
        BrokerInfo,
        ids,
        st.lists(endpoints, max_size=4, unique_by=lambda endpoint: endpoint.listener).map(tuple),
        st.none() | names,
        st.none() | names,
        st.none() | names,
        st.dictionaries(names, versions, max_size=3),
        st.integers(-1, 65535),
        st.integers(-1, 2**53),
    )
)
def test_an_encoded_broker_is_decoded(info: BrokerInfo) -> None:
    assert BrokerIdZNode.decode(BrokerIdZNode.encode(info), info.broker_id) == info


@repeatable
@given(st.dictionaries(partitions, broker_ids.filter(bool), max_size=5))
def test_encoded_partitions_are_decoded(
    reassignments: dict[TopicPartition, tuple[int, ...]],
) -> None:
    listed = tuple(reassignments)
    written = ReassignPartitionsZNode.encode(reassignments)
    assert ReassignPartitionsZNode.decode(written) == reassignments
    election = PreferredReplicaElectionZNode.encode(listed)
    assert PreferredReplicaElectionZNode.decode(election) == listed
    notification = IsrChangeNotificationSequenceZNode.encode(listed)
    assert IsrChangeNotificationSequenceZNode.decode(notification) == listed


@repeatable
@given(
    st.dictionaries(names, st.text(st.characters(codec="utf-8"), max_size=20), max_size=4),
    st.builds(ProducerIdBlock, ids, st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1)),
)
def test_other_encoded_znodes_are_decoded(config: dict[str, str], block: ProducerIdBlock) -> None:
    assert ConfigEntityZNode.decode(ConfigEntityZNode.encode(config)) == config
    assert ProducerIdBlockZNode.decode(ProducerIdBlockZNode.encode(block)) == block
    broker_id = block.broker_id
    assert ControllerZNode.decode(ControllerZNode.encode(broker_id, 0)) == broker_id
    assert ControllerEpochZNode.decode(ControllerEpochZNode.encode(broker_id)) == broker_id
    event = LogDirEventNotificationSequenceZNode.encode(broker_id)
    assert LogDirEventNotificationSequenceZNode.decode(event) == broker_id
