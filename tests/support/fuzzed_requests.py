"""Genuine client requests of every kind and version, with random changes, and their senders."""

from __future__ import annotations

import selectors
import socket
import struct
import time
import uuid
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from hypothesis import strategies as st

from regent.testing.waits import scaled
from regent.transport.kafka.api import FIRST_FLEXIBLE_VERSION, KafkaApiKey
from tests.support.delegation_token_messages import (
    CreateDelegationTokenRequest,
    DescribeDelegationTokenRequest,
    ExpireDelegationTokenRequest,
    RenewDelegationTokenRequest,
)
from tests.support.record_batches import batch

with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
    from kafka.protocol.admin import (
        AlterClientQuotasRequest,
        AlterConfigsRequest,
        AlterPartitionReassignmentsRequest,
        AlterReplicaLogDirsRequest,
        AlterUserScramCredentialsRequest,
        CreateAclsRequest,
        CreatePartitionsRequest,
        CreateTopicsRequest,
        DeleteAclsRequest,
        DeleteGroupsRequest,
        DeleteRecordsRequest,
        DeleteTopicsRequest,
        DescribeAclsRequest,
        DescribeClientQuotasRequest,
        DescribeClusterRequest,
        DescribeConfigsRequest,
        DescribeGroupsRequest,
        DescribeLogDirsRequest,
        DescribeProducersRequest,
        DescribeTransactionsRequest,
        DescribeUserScramCredentialsRequest,
        ElectLeadersRequest,
        IncrementalAlterConfigsRequest,
        ListGroupsRequest,
        ListPartitionReassignmentsRequest,
        ListTransactionsRequest,
        UpdateFeaturesRequest,
    )
    from kafka.protocol.consumer import (
        FetchRequest,
        HeartbeatRequest,
        JoinGroupRequest,
        LeaveGroupRequest,
        ListOffsetsRequest,
        OffsetCommitRequest,
        OffsetDeleteRequest,
        OffsetFetchRequest,
        OffsetForLeaderEpochRequest,
        SyncGroupRequest,
    )
    from kafka.protocol.metadata import (
        ApiVersionsRequest,
        FindCoordinatorRequest,
        MetadataRequest,
    )
    from kafka.protocol.producer import InitProducerIdRequest, ProduceRequest
    from kafka.protocol.producer.transaction import (
        AddOffsetsToTxnRequest,
        AddPartitionsToTxnRequest,
        EndTxnRequest,
        TxnOffsetCommitRequest,
        WriteTxnMarkersRequest,
    )
    from kafka.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

TOPIC = "t"
WAIT_S = scaled(30.0)
_HELD_S = 0.05  # a request without an answer by then may wait for long
_HEADER = struct.Struct(">hhih")
CLIENT_ID = b"fuzz"

_CONFIG = {"name": "retention.ms", "value": "100000"}
_PRODUCER = {"producer_id": 1, "producer_epoch": 0}
_ANY_OPERATION = {"operation": 1, "permission_type": 1}
_MEMBER = {"group_id": "g", "member_id": "m", "group_instance_id": "i"}
GENUINE: Sequence[tuple[Any, Mapping[str, Any]]] = (
    (
        ProduceRequest,
        {
            "transactional_id": None,
            "acks": -1,
            "timeout_ms": 100,
            "topic_data": [
                {"name": TOPIC, "partition_data": [{"index": 0, "records": batch(b"a", b"b")}]}
            ],
        },
    ),
    (
        FetchRequest,
        {
            "max_wait_ms": 10,
            "min_bytes": 1,
            "max_bytes": 10_000,
            "session_id": 0,
            "session_epoch": -1,
            "topics": [
                {
                    "topic": TOPIC,
                    "partitions": [
                        {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1_000}
                    ],
                }
            ],
        },
    ),
    (
        FetchRequest,
        {
            "replica_id": 7,
            "replica_state": {"replica_id": 7, "replica_epoch": 3},
            "max_wait_ms": 10,
            "min_bytes": 1,
            "max_bytes": 10_000,
            "session_id": 0,
            "session_epoch": 0,
            "topics": [
                {
                    "topic": TOPIC,
                    "partitions": [
                        {
                            "partition": 0,
                            "current_leader_epoch": 0,
                            "fetch_offset": 0,
                            "last_fetched_epoch": -1,
                            "partition_max_bytes": 1_000,
                        }
                    ],
                }
            ],
            "forgotten_topics_data": [{"topic": TOPIC, "partitions": [1, 2]}],
        },
    ),
    (
        ListOffsetsRequest,
        {
            "replica_id": -1,
            "topics": [
                {
                    "name": TOPIC,
                    "partitions": [{"partition_index": 0, "timestamp": -1, "max_num_offsets": 1}],
                }
            ],
        },
    ),
    (MetadataRequest, {"topics": [{"name": TOPIC}], "allow_auto_topic_creation": False}),
    (ApiVersionsRequest, {"client_software_name": "fuzz", "client_software_version": "1"}),
    (DescribeClusterRequest, {"include_cluster_authorized_operations": True, "endpoint_type": 1}),
    (
        CreateTopicsRequest,
        {
            "timeout_ms": 100,
            "topics": [
                {
                    "name": "new",
                    "num_partitions": 1,
                    "replication_factor": 1,
                    "assignments": [],
                    "configs": [_CONFIG],
                }
            ],
        },
    ),
    (
        CreateTopicsRequest,
        {
            "timeout_ms": 100,
            "validate_only": True,
            "topics": [
                {
                    "name": "assigned",
                    "num_partitions": -1,
                    "replication_factor": -1,
                    "assignments": [{"partition_index": 0, "broker_ids": [0]}],
                    "configs": [],
                }
            ],
        },
    ),
    (
        DeleteTopicsRequest,
        {
            "topic_names": ["deleted"],
            "topics": [{"name": None, "topic_id": uuid.UUID(int=1)}],
            "timeout_ms": 100,
        },
    ),
    (
        DeleteRecordsRequest,
        {
            "timeout_ms": 100,
            "topics": [{"name": TOPIC, "partitions": [{"partition_index": 0, "offset": 1}]}],
        },
    ),
    (InitProducerIdRequest, {"transactional_id": None, "transaction_timeout_ms": 1_000}),
    (
        OffsetForLeaderEpochRequest,
        {
            "topics": [
                {
                    "topic": TOPIC,
                    "partitions": [{"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}],
                }
            ]
        },
    ),
    (
        DescribeConfigsRequest,
        {
            "resources": [
                {
                    "resource_type": 2,
                    "resource_name": TOPIC,
                    "configuration_keys": ["retention.ms"],
                },
                {"resource_type": 4, "resource_name": "0", "configuration_keys": None},
            ]
        },
    ),
    (
        AlterConfigsRequest,
        {"resources": [{"resource_type": 2, "resource_name": TOPIC, "configs": [_CONFIG]}]},
    ),
    (
        IncrementalAlterConfigsRequest,
        {
            "resources": [
                {
                    "resource_type": 2,
                    "resource_name": TOPIC,
                    "configs": [{**_CONFIG, "config_operation": 0}],
                }
            ]
        },
    ),
    (
        CreatePartitionsRequest,
        {
            "timeout_ms": 100,
            "validate_only": False,
            "topics": [{"name": "grown", "count": 2, "assignments": [{"broker_ids": [0]}]}],
        },
    ),
    (
        ElectLeadersRequest,
        {
            "election_type": 0,
            "topic_partitions": [{"topic": TOPIC, "partitions": [0]}],
            "timeout_ms": 100,
        },
    ),
    (
        AlterPartitionReassignmentsRequest,
        {
            "timeout_ms": 100,
            "topics": [{"name": TOPIC, "partitions": [{"partition_index": 0, "replicas": [0]}]}],
        },
    ),
    (ListPartitionReassignmentsRequest, {"timeout_ms": 100, "topics": None}),
    (
        AlterReplicaLogDirsRequest,
        {"dirs": [{"path": "/tmp/d", "topics": [{"name": TOPIC, "partitions": [0]}]}]},
    ),
    (DescribeLogDirsRequest, {"topics": [{"topic": TOPIC, "partitions": [0]}]}),
    (DescribeProducersRequest, {"topics": [{"name": TOPIC, "partition_indexes": [0]}]}),
    (FindCoordinatorRequest, {"key": "g", "key_type": 0, "coordinator_keys": ["g"]}),
    (
        JoinGroupRequest,
        {
            **_MEMBER,
            "session_timeout_ms": 6_000,
            "rebalance_timeout_ms": 6_000,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": b"\0\0\0\0\0\0\xff\xff\xff\xff"}],
        },
    ),
    (
        SyncGroupRequest,
        {**_MEMBER, "generation_id": 1, "assignments": [{"member_id": "m", "assignment": b"a"}]},
    ),
    (HeartbeatRequest, {**_MEMBER, "generation_id": 1}),
    (
        LeaveGroupRequest,
        {"group_id": "g", "member_id": "m", "members": [{"member_id": "m"}]},
    ),
    (
        OffsetCommitRequest,
        {
            "group_id": "g",
            "topics": [
                {"name": TOPIC, "partitions": [{"partition_index": 0, "committed_offset": 1}]}
            ],
        },
    ),
    (
        OffsetFetchRequest,
        {
            "group_id": "g",
            "topics": [{"name": TOPIC, "partition_indexes": [0]}],
            "groups": [{"group_id": "g", "topics": None}],
        },
    ),
    (
        OffsetDeleteRequest,
        {
            "group_id": "g",
            "topics": [{"name": TOPIC, "partitions": [{"partition_index": 0}]}],
        },
    ),
    (DescribeGroupsRequest, {"groups": ["g", ""]}),
    (ListGroupsRequest, {"states_filter": ["Stable"], "types_filter": ["classic"]}),
    (DeleteGroupsRequest, {"groups_names": ["g", "h"]}),
    (
        AddPartitionsToTxnRequest,
        {
            "v3_and_below_transactional_id": "x",
            "v3_and_below_producer_id": 1,
            "v3_and_below_producer_epoch": 0,
            "v3_and_below_topics": [{"name": TOPIC, "partitions": [0]}],
            "transactions": [
                {
                    **_PRODUCER,
                    "transactional_id": "x",
                    "verify_only": False,
                    "topics": [{"name": TOPIC, "partitions": [0]}],
                }
            ],
        },
    ),
    (AddOffsetsToTxnRequest, {**_PRODUCER, "transactional_id": "x", "group_id": "g"}),
    (EndTxnRequest, {**_PRODUCER, "transactional_id": "x", "committed": True}),
    (
        WriteTxnMarkersRequest,
        {
            "markers": [
                {
                    **_PRODUCER,
                    "transaction_result": True,
                    "topics": [{"name": TOPIC, "partition_indexes": [0]}],
                    "coordinator_epoch": 0,
                }
            ]
        },
    ),
    (
        TxnOffsetCommitRequest,
        {
            **_PRODUCER,
            "transactional_id": "x",
            "group_id": "g",
            "topics": [
                {"name": TOPIC, "partitions": [{"partition_index": 0, "committed_offset": 1}]}
            ],
        },
    ),
    (
        DescribeClientQuotasRequest,
        {
            "components": [{"entity_type": "user", "match_type": 0, "match": "u"}],
            "strict": False,
        },
    ),
    (
        AlterClientQuotasRequest,
        {
            "entries": [
                {
                    "entity": [{"entity_type": "client-id", "entity_name": "c"}],
                    "ops": [{"key": "producer_byte_rate", "value": 1e9, "remove": False}],
                }
            ],
            "validate_only": True,
        },
    ),
    (DescribeUserScramCredentialsRequest, {"users": [{"name": "u"}]}),
    (
        AlterUserScramCredentialsRequest,
        {
            "deletions": [{"name": "u", "mechanism": 1}],
            "upsertions": [
                {
                    "name": "u",
                    "mechanism": 2,
                    "iterations": 4096,
                    "salt": b"salt",
                    "salted_password": b"salted",
                }
            ],
        },
    ),
    (DescribeTransactionsRequest, {"transactional_ids": ["x"]}),
    (
        ListTransactionsRequest,
        {"state_filters": ["Ongoing"], "producer_id_filters": [1], "duration_filter": -1},
    ),
    (
        DescribeAclsRequest,
        {
            "resource_type_filter": 1,
            "resource_name_filter": None,
            "principal_filter": None,
            "host_filter": None,
            **_ANY_OPERATION,
        },
    ),
    (
        CreateAclsRequest,
        {
            "creations": [
                {
                    "resource_type": 2,
                    "resource_name": TOPIC,
                    "resource_pattern_type": 3,
                    "principal": "User:a",
                    "host": "*",
                    "operation": 3,
                    "permission_type": 3,
                }
            ]
        },
    ),
    (
        DeleteAclsRequest,
        {
            "filters": [
                {
                    "resource_type_filter": 2,
                    "resource_name_filter": TOPIC,
                    "pattern_type_filter": 3,
                    "principal_filter": "User:a",
                    "host_filter": "*",
                    **_ANY_OPERATION,
                }
            ]
        },
    ),
    (SaslHandshakeRequest, {"mechanism": "PLAIN"}),
    (SaslAuthenticateRequest, {"auth_bytes": b"\0a\0b"}),
    (
        CreateDelegationTokenRequest,
        {
            "owner_principal_type": "User",
            "owner_principal_name": "a",
            "renewers": [{"principal_type": "User", "principal_name": "b"}],
            "max_lifetime_ms": -1,
        },
    ),
    (RenewDelegationTokenRequest, {"hmac": b"h", "renew_period_ms": -1}),
    (ExpireDelegationTokenRequest, {"hmac": b"h", "expiry_time_period_ms": -1}),
    (
        DescribeDelegationTokenRequest,
        {"owners": [{"principal_type": "User", "principal_name": "a"}]},
    ),
    (
        UpdateFeaturesRequest,
        {
            "timeout_ms": 100,
            "feature_updates": [{"feature": "f", "max_version_level": 1, "allow_downgrade": False}],
        },
    ),
)


_NEW_MEMBER = b"\x02g\x01\0\0\0\0\0\0\0\0\0\x64\x02\x02t"  # in group g, with an interest in topic t
CONSUMER_GROUP_HEARTBEATS: Sequence[bytes] = (_NEW_MEMBER + bytes(3), _NEW_MEMBER + bytes(4))
"""The bodies of both versions; kafka-python has no such request."""


class Advertised(NamedTuple):
    """The versions of a kind of request that a broker advertises."""

    min_version: int
    max_version: int


def build(kind: Any, values: Mapping[str, Any]) -> Any:
    """Make a message of kafka-python, which has a class for every nested structure."""
    types = {field.name: field.type_str for field in kind._struct._fields}
    built = {}
    for name, value in values.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            nested = getattr(kind, types[name])
            value = [build(nested, element) for element in value]
        elif isinstance(value, dict):
            value = build(getattr(kind, types[name]), value)
        built[name] = value
    return kind(**built)


def framed(data: bytes) -> bytes:
    """Put the size before a request."""
    return struct.pack(">i", len(data)) + data


def request(api_key: int, version: int, body: bytes, correlation_id: int = 1) -> bytes:
    """A request without its size."""
    header = _HEADER.pack(api_key, version, correlation_id, len(CLIENT_ID)) + CLIENT_ID
    if version >= FIRST_FLEXIBLE_VERSION[KafkaApiKey(api_key)]:
        header += b"\0"  # no tagged fields
    return header + body


def genuine_requests(advertised: Mapping[int, Advertised]) -> list[bytes]:
    """One of every advertised kind and version, without sizes; fails if a kind is missing."""
    found = []
    missing = set(advertised) - {KafkaApiKey.CONSUMER_GROUP_HEARTBEAT}
    if KafkaApiKey.CONSUMER_GROUP_HEARTBEAT in advertised:
        for version, body in enumerate(CONSUMER_GROUP_HEARTBEATS):
            found.append(request(KafkaApiKey.CONSUMER_GROUP_HEARTBEAT, version, body))
    for kind, values in GENUINE:
        key = kind.API_KEY
        if key not in advertised:
            continue
        missing.discard(key)
        for version in range(advertised[key].min_version, advertised[key].max_version + 1):
            body = bytes(build(kind, values).encode(version=version))
            found.append(request(key, version, body))
    assert not missing, f"there is no request of these kinds: {missing}"
    return found


# --- changes ---

_BYTES = st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFF])
_NUMBERS = st.sampled_from(
    [-(2**31), -2, -1, 0, 1, 2, 255, 2**15 - 1, 2**16, 300_000, 2**24, 2**31 - 1]
)


def _set_byte(data: bytearray, at: int, number: int) -> None:
    data[at] = number & 0xFF


def _set_int16(data: bytearray, at: int, number: int) -> None:
    data[at : at + 2] = struct.pack(">i", number)[2:]


def _set_int32(data: bytearray, at: int, number: int) -> None:
    data[at : at + 4] = struct.pack(">i", number)


def _cut(data: bytearray, at: int, _: int) -> None:
    del data[at:]


def _drop(data: bytearray, at: int, number: int) -> None:
    del data[at : at + (number & 0x0F)]


def _insert(data: bytearray, at: int, number: int) -> None:
    data[at:at] = struct.pack(">i", number) * (1 + (number & 7))


def _repeat(data: bytearray, at: int, number: int) -> None:
    data[at:at] = data[at : at + 1 + (number & 0x3F)] * 3


_CHANGES = (_set_byte, _set_int16, _set_int32, _cut, _drop, _insert, _repeat)


class Change(NamedTuple):
    """A change of a request; positions wrap around."""

    kind: int
    at: int
    number: int

    def apply(self, data: bytearray) -> None:
        """Apply the change."""
        if data:
            _CHANGES[self.kind](data, self.at % len(data), self.number)


_changes = st.builds(
    Change, st.integers(0, len(_CHANGES) - 1), st.integers(0, 400), st.one_of(_NUMBERS, _BYTES)
)


class Conversation(NamedTuple):
    """What is sent on one connection: sized requests, and whether the client leaves."""

    data: bytes
    requests: int
    leaves: bool


@st.composite
def _requests(draw: st.DrawFn, genuine: Sequence[bytes]) -> bytes:
    """One request with its size; one time in eight the size is changed as well."""
    data = bytearray(draw(st.sampled_from(genuine)))
    is_framed_before = draw(st.integers(0, 7)) == 0
    if is_framed_before:
        data = bytearray(framed(bytes(data)))
    for change in draw(st.lists(_changes, min_size=1, max_size=4)):
        change.apply(data)
    return bytes(data) if is_framed_before else framed(bytes(data))


def conversations(genuine: Sequence[bytes], count: int) -> st.SearchStrategy[list[Conversation]]:
    """This number of connections with one to three requests each."""

    def conversation(requests: list[bytes], leaves: int) -> Conversation:
        return Conversation(b"".join(requests), len(requests), leaves == 0)

    requests = st.lists(_requests(genuine), min_size=1, max_size=3)
    one = st.builds(conversation, requests, st.integers(0, 4))
    return st.lists(one, min_size=count, max_size=count)


# --- clients ---


def ask(address: tuple[str, int], data: bytes) -> bytes:
    """Send a request on its own connection and return the answer's body."""
    with socket.create_connection(address, WAIT_S) as sock:
        sock.sendall(framed(data))
        (size,) = struct.unpack(">i", _receive(sock, 4))
        return _receive(sock, size)[4:]


def _receive(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        some = sock.recv(count - len(data))
        if not some:
            raise ConnectionError("closed in the middle of an answer")
        data += some
    return data


def ask_versions(address: tuple[str, int]) -> dict[int, Advertised]:
    """Request the API versions of a broker."""
    body = ask(address, request(18, 0, b""))
    rows = struct.iter_unpack(">hhh", body[6:])
    return {key: Advertised(low, high) for key, low, high in rows}


def talk(address: tuple[str, int], conversations: Sequence[Conversation]) -> Counter[str]:
    """Run all at once; return their outcomes.

    ``held``: without an answer after a quiet time; they are given up.
    """
    outcomes: Counter[str] = Counter(requests=sum(c.requests for c in conversations))
    with selectors.DefaultSelector() as selector:
        for conversation in conversations:
            sock = socket.create_connection(address, WAIT_S)
            try:
                sock.sendall(conversation.data)
            except ConnectionError:
                outcomes["closed"] += 1
                sock.close()
                continue
            if conversation.leaves:
                outcomes["left"] += 1
                sock.close()
            else:
                selector.register(sock, selectors.EVENT_READ)
        quiet_at = time.monotonic() + _HELD_S
        while selector.get_map() and time.monotonic() < quiet_at:
            for key, _ in selector.select(_HELD_S):
                outcomes[_outcome(key.fileobj)] += 1
                selector.unregister(key.fileobj)
                key.fileobj.close()  # type: ignore[union-attr]
                quiet_at = time.monotonic() + _HELD_S
        for key in list(selector.get_map().values()):
            outcomes["held"] += 1
            key.fileobj.close()  # type: ignore[union-attr]
    return outcomes


def _outcome(sock: Any) -> str:
    try:
        return "answered" if sock.recv(65_536) else "closed"
    except ConnectionError:
        return "closed"
